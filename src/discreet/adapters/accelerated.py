"""Hugging Face ``accelerate``, private: :func:`accelerated_run`.

    accelerator = Accelerator()
    run = accelerated_run(accelerator, plan, model, optimizer, losses)
    for epoch in run.epochs(loader):
        for batch in epoch:
            run.step(batch)                    # in place of backward, clip_grad_norm_, optimizer.step and zero_grad
            scheduler.step()

The accelerator chooses the device and starts the processes; what it would do with gradients is refused by name. A
model that it, or you, sharded by FSDP2 stays so (:mod:`discreet.pytorch.sharded`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from discreet.errors import InvalidParameter, missing_extra
from discreet.plan.plan import Plan
from discreet.pytorch.checks.compatibility import is_fully_sharded
from discreet.pytorch.optimizer_step import as_optimizers
from discreet.pytorch.per_example import Losses
from discreet.pytorch.run import PrivateRun

try:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.utils import DistributedType
except ImportError as error:
    raise missing_extra(f"discreet.adapters.accelerated needs {error.name}", "huggingface") from None

REFUSED = {
    "mixed_precision": ("no", "scales losses or rounds gradients; leave it out."),
    "gradient_accumulation_steps": (1, "is not needed: Recipe(batch_size=...) is the batch of a step, and "
                                       "physical_batch_size limits how much of it is in memory."),
}  # fmt: skip
"""Arguments of an accelerator, the value at which they do nothing, and what to do instead."""

_WHOLE = {DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU}
"""Processes that each hold the whole model."""


def accelerated_run(
    accelerator: Accelerator,
    plan: Plan,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    losses: Losses,
    **options: Any,
) -> PrivateRun:
    """A :class:`~discreet.pytorch.run.PrivateRun` on the device and in the processes of an accelerator.

    ``model`` and ``optimizer`` may have gone through ``accelerator.prepare`` or not; with several processes that each
    hold the whole model it must not, because the run adds up the sums itself; with FSDP2 it must. A schedule should
    not: it would take as many steps at a time as there are processes. ``options`` are those of the run.
    """
    if not isinstance(accelerator, Accelerator):
        raise InvalidParameter(
            "accelerator", type(accelerator).__name__, "must be an accelerate.Accelerator."
        )
    for name, (harmless, remedy) in REFUSED.items():
        value = getattr(accelerator, name)
        if value != harmless:
            raise InvalidParameter(name, value, remedy)
    sharded = is_fully_sharded(model)
    if accelerator.distributed_type not in _WHOLE and not (accelerator.is_fsdp2 and sharded):
        remedy = (
            "shards or compiles the model; start the processes with torchrun or plain `accelerate launch`, or give "
            "the model as accelerator.prepare returns it with FSDP of version 2."
        )
        raise InvalidParameter("distributed_type", accelerator.distributed_type.value, remedy)
    if isinstance(model, DistributedDataParallel):
        remedy = "adds up gradients without noise; do not pass the model through accelerator.prepare."
        raise InvalidParameter("model", "DistributedDataParallel", remedy)
    inner = model if sharded else accelerator.unwrap_model(model).to(accelerator.device)
    plain = [
        each.optimizer if isinstance(each, AcceleratedOptimizer) else each
        for each in as_optimizers(optimizer)
    ]
    return PrivateRun(plan, inner, plain, losses, **options)
