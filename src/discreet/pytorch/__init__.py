"""Private training of PyTorch models: model, optimizer and loop stay the user's own.

* :class:`~discreet.pytorch.run.PrivateRun`: your own loop, one private step at a time;
* :func:`~discreet.pytorch.fit.fit`: training in one call;
* :class:`~discreet.pytorch.per_person.PerPerson`: a data set of people, each with several rows;
* :func:`~discreet.pytorch.fit.of_views`: losses over several augmented views of each example;
* :func:`~discreet.pytorch.checks.check.check`: does the guarantee hold for this model and this loss?
* :func:`~discreet.pytorch.checks.compatibility.without_batch_norm`: the model with group norm instead.
"""

from discreet.errors import missing_extra

try:
    import torch as _torch
except ImportError as error:
    raise missing_extra(f"discreet.pytorch needs {error.name}", "torch") from None

from discreet.errors import CheckFailed
from discreet.pytorch.batches import Batch
from discreet.pytorch.checks.check import check
from discreet.pytorch.checks.compatibility import without_batch_norm
from discreet.pytorch.fit import Fitted, fit, of_views
from discreet.pytorch.per_person import PerPerson
from discreet.pytorch.run import PrivateRun

__all__ = [
    "Batch",
    "CheckFailed",
    "Fitted",
    "PerPerson",
    "PrivateRun",
    "check",
    "fit",
    "of_views",
    "without_batch_norm",
]

del _torch
