"""Adapters between packages and to other frameworks: audits of fits, joint models, private trainers.

* :class:`~discreet.adapters.hugging_face.PrivateTrainer`: the ``Trainer`` of Hugging Face;
* :class:`~discreet.adapters.lightning_module.PrivateModule`: a ``LightningModule`` for the trainer of Lightning;
* :func:`~discreet.adapters.accelerated.accelerated_run`: a run on what an ``Accelerator`` of ``accelerate`` chooses;
* :class:`~discreet.adapters.dask_engine.DaskEngine`: models of tables over files on a Dask cluster;
* :class:`~discreet.adapters.flare_site.FlareSite`: a site of an NVFlare job, for its Client API;
* :class:`~discreet.adapters.flower_site.FlowerSite`: a site of a Flower federation, for its ClientApp;
* :class:`~discreet.adapters.federated_site.PrivateSite`: a site of any other framework of federated averaging;
* :func:`~discreet.adapters.hugging_face.losses_of`: one loss per example for the heads of its models.

Each is loaded when it is first used, together with the package that it adapts to.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from discreet.adapters.accelerated import accelerated_run
    from discreet.adapters.dask_engine import DaskEngine
    from discreet.adapters.federated_site import PrivateSite
    from discreet.adapters.flare_site import FlareSite
    from discreet.adapters.flower_site import FlowerSite
    from discreet.adapters.hugging_face import PrivateTrainer
    from discreet.adapters.lightning_module import PrivateModule

__all__ = [
    "DaskEngine",
    "FlareSite",
    "FlowerSite",
    "PrivateModule",
    "PrivateSite",
    "PrivateTrainer",
    "accelerated_run",
]

_LATER = {
    "DaskEngine": "dask_engine",
    "FlareSite": "flare_site",
    "FlowerSite": "flower_site",
    "PrivateModule": "lightning_module",
    "PrivateSite": "federated_site",
    "PrivateTrainer": "hugging_face",
    "accelerated_run": "accelerated",
}


def __getattr__(name: str) -> _Any:
    if name in _LATER:
        return getattr(_import_module(f"discreet.adapters.{_LATER[name]}"), name)
    raise AttributeError(f"module 'discreet.adapters' has no attribute {name!r}")
