"""Data sets as users hand them over: a ``DataLoader`` is taken apart, and what cannot be read is refused.

All of it happens before a record is read: :mod:`discreet.pytorch.batches` reads what comes out of here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from discreet.errors import InvalidParameter, PlanViolation

if TYPE_CHECKING:
    from discreet.pytorch.batches import Collate

MOST_TIMES = 3
"""A data set so many times as long as planned is a mistake; a finer comparison would tell who is in it."""


def refuse_many_rows(rows: int, planned: int) -> None:
    """Refuse a data set that was planned for far fewer records."""
    if rows >= MOST_TIMES * planned:
        raise PlanViolation(
            f"The data set has {MOST_TIMES} times as many rows as the plan has records, or more. Plan with "
            "records= as many as there are, rounded as you would publish it."
        )


def refuse_unreadable(dataset: Any) -> None:
    """Refuse what cannot be asked for the rows that the plan has drawn."""
    readable = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if isinstance(dataset, DataLoader):
        remedy = "shuffles, and here the plan draws the batches; give loader.dataset."
    elif isinstance(dataset, IterableDataset) or (hasattr(dataset, "__iter__") and not readable):
        remedy = (
            "is a stream, and the plan draws the batches: any record must be within reach. Give list(stream), or "
            "load the data without streaming."
        )
    elif not readable:
        remedy = "must be tensors, or have len() and [index]; the plan draws the batches."
    else:
        return
    raise InvalidParameter("dataset", type(dataset).__name__, remedy)


def unwrap_loader(dataset: Any, collate: Collate | None, workers: int) -> tuple[Any, Collate | None, int]:
    """The data set, ``collate`` and number of workers inside a ``DataLoader``; anything else as it is.

    Its batch size and its shuffling are the plan's business. A loader that draws in a way of its own is refused:
    it would do so in vain.
    """
    if not isinstance(dataset, DataLoader):
        return dataset, collate, workers
    loader = dataset
    refuse_unreadable(loader.dataset)
    plain = type(loader.sampler) is SequentialSampler or (
        type(loader.sampler) is RandomSampler
        and not loader.sampler.replacement
        and loader.sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    )
    if not plain or type(loader.batch_sampler) is not BatchSampler:
        shown = type(
            loader.sampler if loader.batch_sampler is None or not plain else loader.batch_sampler
        ).__name__
        remedy = "in the DataLoader has no effect, as the plan draws the batches; give loader.dataset."
        raise InvalidParameter("sampler", shown, remedy)
    if loader.worker_init_fn is not None:
        raise InvalidParameter(
            "worker_init_fn", "set", "is not called here; give loader.dataset, and workers=."
        )
    if collate is None and loader.collate_fn is not default_collate:
        collate = loader.collate_fn
    return loader.dataset, collate, workers or loader.num_workers
