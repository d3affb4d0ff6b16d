"""The trusted core: noise, clipping, sampling, and what is built of them alone."""

from discreet.core.clipping import AdaptiveClip, ClipRule, Flat, Normalised, PerBlock, clip_rows
from discreet.core.descent import AdaGrad, Adam, Momentum, OntoBall
from discreet.core.noise import BoundedSum, add_noise, grid_for, hardened_sum
from discreet.core.sampling import PoissonSampler, Sampler

__all__ = [
    "AdaGrad",
    "Adam",
    "AdaptiveClip",
    "BoundedSum",
    "ClipRule",
    "Flat",
    "Momentum",
    "Normalised",
    "OntoBall",
    "PerBlock",
    "PoissonSampler",
    "Sampler",
    "add_noise",
    "clip_rows",
    "grid_for",
    "hardened_sum",
]
