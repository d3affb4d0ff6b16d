"""Models that ``fully_shard`` (FSDP2) has spread over the processes: private steps in which nobody holds all of them.

    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    run = PrivateRun(plan, model, optimizer, losses)     # and all else as ever, under torchrun

Each process works on its own records with whole layers, which FSDP2 gathers for the time that they are needed. So
it knows the whole gradient of each of its examples, and norms and clip factors need no other process. The sums of
layers that are gathered together are added up together, in one reduce-scatter, which leaves each process with its
shard of them. It adds the noise of the plan there: every number gets it once, from one process.

What all of them do together they must do equally often. So they agree before each step in how many parts the largest
batch is worked off, whether the model is checked, and whether all gradients follow from rules. The checks, and models
without rules, need the whole model in every process: it is gathered, taken for a plain one meanwhile, and let go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.fsdp._fully_shard._fsdp_param_group import RegisterPostBackwardFunction
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import pad

from discreet.errors import CheckFailed, PlanViolation
from discreet.pytorch.checks.model_guard import ModelGuard
from discreet.pytorch.checks.spot_check import SpotCheck
from discreet.pytorch.checks.state_guard import modules_of
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.distributed import Processes, reduce_scatter
from discreet.pytorch.gradients import Sums
from discreet.pytorch.graph_rules import MIXED, RowLayout, Shape, add_rule
from discreet.pytorch.per_example import number_of_examples, select, trainable
from discreet.pytorch.refusals import ANOTHER_PROCESS

IN_FLIGHT = 2
"""So many buckets are on their way at a time; each takes the memory of the layers in it."""

_OF_FSDP = "torch.distributed.fsdp."


def _pass_through(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    """The node by which FSDP2 learns that a layer's backward pass is over: gradients go through it unchanged."""
    return rows.run if shape == rows.shape else MIXED


add_rule(RegisterPostBackwardFunction, _pass_through)


class Shards:
    """The trained parameters of a model that is sharded over all processes, and how to gather it."""

    def __init__(self, model: nn.Module, processes: Processes) -> None:
        self.model, self.processes = model, processes
        self._sharded = [module for module in modules_of(model) if isinstance(module, FSDPModule)]
        self.let_go()
        refuse_unknown_shards(model, processes)
        self.parameters: dict[str, Any] = trainable(model)
        self.buckets = self._gathered_together()

    def let_go(self) -> None:
        """Leave each process with its shards: a forward pass without a backward pass may have left more."""
        for module in self._sharded:
            module.reshard()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """The model as a plain one with all its weights, in every process; what is written to them is lost.

        All processes have to come here together. Within, none of them depends on the others.
        """
        for module in self._sharded:
            module.unshard()
        try:
            with plain_modules(self.model):
                yield
        finally:
            self.let_go()

    def _gathered_together(self) -> list[list[str]]:
        """The names of trained parameters by the layers that FSDP2 gathers at once."""
        owners: dict[int, int] = {}
        for place, module in enumerate(self._sharded):  # parents first, so that children take theirs away
            for parameter in module.parameters():
                owners[id(parameter)] = place
        buckets: dict[int, list[str]] = {}
        for name, value in self.parameters.items():
            buckets.setdefault(owners[id(value)], []).append(name)
        return list(buckets.values())

    def sum_of(self, clipped_sum: ClippedSum) -> ShardedSum:
        """Sums of a gathered model, for the sharded one."""
        return ShardedSum(clipped_sum, self)

    def in_parts(self, total: Tensor) -> Tensor:
        """The numbers of a parameter in equal parts, one for each process, padded with zeros: (size, each)."""
        rows, size = total.shape[0], self.processes.size
        flat = total.reshape(rows, -1)
        return (flat if rows % size == 0 else pad(flat, (0, 0, 0, -rows % size))).reshape(size, -1)


def as_shard(here: Tensor, mesh: Any, shape: Iterable[int]) -> Tensor:
    """This process's numbers as the shard of a tensor of this shape; memory is shared."""
    whole = torch.empty(tuple(shape), device="meta")
    found: Tensor = DTensor.from_local(
        here, mesh, (Shard(0),), run_check=False, shape=whole.shape, stride=whole.stride()
    )
    return found


def is_shard(value: Any) -> bool:
    """Return whether a tensor is sharded in the way that is known here."""
    return (
        isinstance(value, DTensor) and tuple(value.placements) == (Shard(0),) and value.device_mesh.ndim == 1
    )


class ShardedSums(Sums):
    """By parameter its shard as a ``DTensor`` over ``vector``, which holds the numbers of this process only."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__({name: value._local_tensor for name, value in parameters.items()})
        self.here = dict(self)
        for name, value in parameters.items():
            self[name] = as_shard(self.here[name], value.device_mesh, value.shape)


class ShardedSum:
    """Clipped sums of a sharded model, made of those of the gathered one."""

    def __init__(self, clipped_sum: ClippedSum, shards: Shards) -> None:
        self._sum, self._shards, self._processes = clipped_sum, shards, shards.processes
        self.spare: Callable[[], Any] = lambda: None
        """Gives a batch of one record, whichever, to keep step with the others when there is none."""
        self._stand_in: Any = None
        self._gathers_all = False
        self.let_go = shards.let_go

    def before_step(self, examples: Any, count: int, watch: ModelGuard, spot_check: SpotCheck) -> None:
        """Check the model in all processes if it is due in one of them; a refusal of one is a refusal of all."""
        self._shards.let_go()
        wanted = [watch.is_due(count), self._processes.first and spot_check.is_due()]
        check, compare = self._processes.most(wanted)
        if not (check or compare):
            return
        problem: Exception | None = None
        with self._shards.whole():
            try:
                if check:
                    self._learn(examples if count else self._other())
                if check and count:
                    watch.check(examples, count)
                if compare and count:
                    spot_check.compare_steady(examples)
            except Exception as found:  # told below, when all have come this far
                problem = found
        states = [problem is not None, self._gathers_all, bool(spot_check.refusal)]
        refused, gathers_all, ended = self._processes.most(states)
        self._gathers_all = bool(gathers_all)
        if ended:
            spot_check.refusal = spot_check.refusal or ANOTHER_PROCESS
        if refused:
            raise problem or PlanViolation(ANOTHER_PROCESS)

    @torch.no_grad()
    def __call__(self, examples: Any, count: int) -> ShardedSums:
        """This process's shard of the sum of all processes' clipped gradients."""
        size = max(1, self._sum.part_size(count))
        parts = [select(examples, slice(start, start + size)) for start in range(0, count, size)]
        sums = ShardedSums(self._shards.parameters)
        most = self._processes.most([len(parts)])[0]
        for part in (*parts, *(None for _ in range(most - len(parts)))):
            if self._gathers_all or not self._add_by_rules(part, sums):
                self._gathers_all = True
                self._add_gathered(part, sums)
        return sums

    def _add_by_rules(self, part: Any, sums: ShardedSums) -> bool:
        """Add the gradients of a part, or of none; False if they do not follow from rules in some process."""
        examples = self._other() if part is None else part
        try:
            gradients = self._sum.gradients_by_rules(examples)
        finally:
            self._shards.let_go()
        if self._processes.most([gradients is None])[0]:
            return False
        if part is None or gradients is None:
            self._reduce(lambda _: None, sums)
            return True
        blocks = self._sum.blocks()
        weights = self._sum.weights_of(gradients, blocks)
        self._reduce(lambda bucket: gradients.add_to(bucket, blocks, weights), sums)
        return True

    def _add_gathered(self, part: Any, sums: ShardedSums) -> None:
        """Add the gradients of models that need more than one pass, while the model is gathered."""
        with self._shards.whole():
            total = Sums(self._sum.parameters) if part is None else self._sum(part)

        def copy(bucket: Sums) -> None:
            for name, value in bucket.items():
                value.copy_(total[name])

        self._reduce(copy, sums)

    def _reduce(self, fill: Callable[[Sums], None], sums: ShardedSums) -> None:
        """Add up what ``fill`` puts into each bucket over all processes, and add the own shard of it to ``sums``."""
        waiting: deque[tuple[Any, Tensor, list[str], Tensor]] = deque()
        for names in self._shards.buckets:
            bucket = Sums({name: self._sum.parameters[name] for name in names})
            fill(bucket)
            sent = torch.cat([self._shards.in_parts(bucket[name]) for name in names], 1)
            own = sent.new_empty(sent.shape[1])
            work = reduce_scatter(own, sent.flatten(), async_op=True)
            waiting.append((work, own, names, sent))
            if len(waiting) == IN_FLIGHT:
                self._receive(waiting.popleft(), sums)
        for each in waiting:
            self._receive(each, sums)

    def _receive(self, arriving: tuple[Any, Tensor, list[str], Tensor], sums: ShardedSums) -> None:
        work, own, names, _ = arriving
        work.wait()
        start = 0
        for name in names:
            here, shape = sums.here[name], self._sum.parameters[name].shape
            here += own[start : start + here.numel()].view(here.shape)
            start += -(-shape[0] // self._processes.size) * shape[1:].numel()

    def _learn(self, examples: Any) -> None:
        """Find out about the model what takes several passes, while it is whole."""
        part = select(examples, slice(0, self._sum.physical_batch_size))
        self._gathers_all = not self._sum.follows_rules(part)

    def _other(self) -> Any:
        if self._stand_in is None:
            self._stand_in = self.spare()
        assert number_of_examples(self._stand_in) == 1
        return self._stand_in


@contextmanager
def plain_modules(model: nn.Module) -> Iterator[None]:
    """Without what ``fully_shard`` has added to classes, hooks and attributes, for the time being."""
    kept = []
    for module in modules_of(model):
        kept.append((module, type(module), module._forward_pre_hooks, module._forward_hooks, _states(module)))
        if isinstance(module, FSDPModule):
            module.__class__ = type(module).__mro__[FSDPModule._orig_cls_mro_index]
        for name in ("_forward_pre_hooks", "_forward_hooks"):
            hooks = getattr(module, name)
            setattr(
                module, name, type(hooks)((key, hook) for key, hook in hooks.items() if not _is_its(hook))
            )
    try:
        yield
    finally:
        for module, kind, before, after, states in kept:
            module.__class__ = kind
            module._forward_pre_hooks, module._forward_hooks = before, after
            module.__dict__.update(states)


def _states(module: nn.Module) -> dict[str, Any]:
    """Take the attributes of a module out that must not be copied."""
    return {key: module.__dict__.pop(key) for key in (STATE_KEY, REGISTRY_KEY) if key in module.__dict__}


def _is_its(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith(_OF_FSDP)


def refuse_unknown_shards(model: nn.Module, processes: Processes) -> None:
    """Refuse every kind of sharding but the plain one: each parameter by its first dimension, over all processes."""
    for name, parameter in model.named_parameters():
        problem = _problem(parameter, processes)
        if problem:
            raise CheckFailed(f"The parameter {name!r} {problem}")
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule):
            problem = _problem_of_settings(module)
            if problem:
                raise CheckFailed(f"The layer {name!r} was given to fully_shard {problem}")


def _problem(parameter: Any, processes: Processes) -> str:
    if not isinstance(parameter, DTensor):
        return "is not sharded while others are. Call fully_shard on the model itself, after its layers."
    if not is_shard(parameter) or parameter.device_mesh.size() != processes.size:
        return (
            "is sharded in another way than by its first dimension over all processes (as in tensor parallelism, or "
            "with replicas), which is not known here. Give fully_shard no mesh, or one of a single dimension."
        )
    own = parameter._local_tensor.shape[0]
    mine = processes.part(parameter.shape[0])
    if own != mine.stop - mine.start:
        return "has shards of other sizes than fully_shard makes, which is not known here."
    return ""


def _problem_of_settings(module: Any) -> str:
    state = module._get_fsdp_state()
    if not hasattr(state, "_fsdp_param_groups"):
        return "of a version of PyTorch whose insides are not known here; it takes 2.13 or a later one."
    policy, none = state._mp_policy, MixedPrecisionPolicy()
    if any(
        getattr(policy, name) != getattr(none, name)
        for name in ("param_dtype", "reduce_dtype", "output_dtype")
    ):
        return "with an mp_policy, which would round sums that the clip norm bounds. Leave it out."
    for group in state._fsdp_param_groups:
        if type(group.offload_policy).__name__ != "OffloadPolicy":
            return "with an offload_policy, which is not known here. Leave it out."
        if group._use_post_forward_mesh:
            return "with a number for reshard_after_forward, which is not known here. Give True or False."
    return ""
