"""Several processes, one guarantee: each samples its own records and draws the noise of its own share of the weights.

Start the script with ``torchrun`` and call ``torch.distributed.init_process_group`` as usual; a
:class:`~discreet.pytorch.run.PrivateRun` notices and needs nothing else. Every process passes the same data set
and takes part of it. The clipped sums are added up so that each of the K processes gets the total of one K-th of the
weights; it adds the noise of the plan there, and then all share what they have. So every number gets the noise of the
plan once, neither less nor K times as much, and nobody draws for the others. The processes are one curator: the sums
that pass between them have no noise yet.

>>> [Processes(rank, size=4).part(10) for rank in range(4)]
[slice(0, 3, None), slice(3, 6, None), slice(6, 9, None), slice(9, 10, None)]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from discreet.core.randomness import RandomStream
from discreet.errors import PlanViolation, whole

_REFUSED = -1


def reduce_scatter(own: Tensor, parts: Tensor, *, async_op: bool = False) -> Any:
    """Let ``own`` be this process's part of the sum of all processes' ``parts``."""
    name = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
    return getattr(dist, name)(own, parts, async_op=async_op)


def all_gather(parts: Tensor, own: Tensor) -> None:
    """Let ``parts`` be what all processes have, one after the other."""
    name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    getattr(dist, name)(parts, own)


@dataclass(frozen=True)
class Processes:
    """This process among those that train together. The one of rank 0 keeps the ledger."""

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> Processes:
        """The group that ``torch.distributed`` was told of, or this process alone."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    @property
    def first(self) -> bool:
        """True for the process that keeps the ledger, the progress bar and the checkpoints."""
        return self.rank == 0

    def rows(self, rows: int) -> range:
        """The rows of the data set that belong to this process."""
        return range(self.rank, rows, self.size)

    def part(self, count: int) -> slice:
        """Return the part of ``count`` numbers that this process finishes; the last parts may be shorter."""
        each = -(-count // self.size)
        return slice(min(self.rank * each, count), min((self.rank + 1) * each, count))

    def add_up(self, tensor: Tensor) -> None:
        """Replace ``tensor`` by its sum over all processes."""
        if self.size > 1:
            dist.all_reduce(tensor)

    def add_up_in_parts(self, vector: Tensor, finish: Callable[[Tensor], None]) -> None:
        """Replace ``vector`` by its sum over all processes, after each has finished its own part of it in place.

        Guarantee: ``finish`` sees the sum of every number in one process, once.
        """
        if self.size == 1:
            finish(vector)
            return
        count, each = vector.numel(), -(-vector.numel() // self.size)
        padded = vector if count == each * self.size else vector.new_zeros(each * self.size)
        if padded is not vector:
            padded[:count] = vector
        total = vector.new_empty(each)
        reduce_scatter(total, padded)
        mine = self.part(count)
        finish(total[: mine.stop - mine.start])
        all_gather(padded, total)
        if padded is not vector:
            vector.copy_(padded[:count])

    def most(self, numbers: Iterable[int]) -> list[int]:
        """The largest of each of these integers over all processes."""
        found = self.on_its_device(torch.tensor([int(number) for number in numbers]))
        if self.size > 1:
            dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return [int(number) for number in found.tolist()]

    def let_first_decide(self, decide: Callable[[], int]) -> int:
        """An integer of at least 0 that the first process decides. If it refuses, all do."""
        if self.size == 1:
            return decide()
        answer = torch.tensor([_REFUSED])
        try:
            if self.first:
                answer[0] = decide()
        finally:
            answer = self._send_from_first(answer)
        if int(answer) == _REFUSED:
            raise PlanViolation("The first process refused, so nothing is released; it says why.")
        return int(answer)

    def text_of_first(self, write: Callable[[], str]) -> str:
        """A text that the first process writes, for all of them."""
        if self.size == 1:
            return write()
        content = bytearray(write().encode() if self.first else b"")
        length = int(self._send_from_first(torch.tensor([len(content)])))
        letters = torch.frombuffer(content, dtype=torch.uint8) if self.first else torch.empty(length).byte()
        return bytes(self._send_from_first(letters).tolist()).decode()

    def start_alike(self, model: nn.Module) -> None:
        """Give every process the parameters and buffers of the first one."""
        if self.size > 1:
            with torch.no_grad():
                for tensor in (*model.parameters(), *model.buffers()):
                    if not hasattr(tensor, "placements"):  # of which there is only one, in shards
                        dist.broadcast(tensor, src=0)

    def refuse_difference(self, settings: dict[str, str]) -> None:
        """Raise in every process if one of them was given other settings than the first."""
        if self.size == 1:
            return
        text = self.text_of_first(lambda: json.dumps(settings))
        different = [name for name, value in json.loads(text).items() if settings.get(name) != value]
        if self.most([len(different)])[0]:
            raise PlanViolation(
                f"The processes differ in {different[0] if different else 'what they were given'}, so their shares "
                "do not add up to the plan. Start all of them with the same plan, clipping, model and data set."
            )

    def _send_from_first(self, tensor: Tensor) -> Tensor:
        """``tensor`` of the first process, by way of the device that the group communicates on."""
        there = self.on_its_device(tensor)
        dist.broadcast(there, src=0)
        return there.cpu()

    def on_its_device(self, tensor: Tensor) -> Tensor:
        return tensor.cuda() if self.size > 1 and dist.get_backend() == "nccl" else tensor


def stream_of(unsafe_seed: int | None, processes: Processes) -> RandomStream:
    if unsafe_seed is None:
        return RandomStream()
    seed = whole("unsafe_seed", unsafe_seed, at_least=0)
    return RandomStream(unsafe_seed=seed * 2**16 + processes.rank)
