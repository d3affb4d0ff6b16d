"""The charge for the rounding of cell masses to first order."""

import numpy as np


def charged(layers, tail):
    """The charge of ``layers`` where the total loss has this tail, if all errors were small."""
    return layers.common * tail + float(np.minimum(layers.each * tail, layers.rare).sum())
