"""Sums of clipped per-example gradients by one forward and one backward pass.

The backward pass brings the gradient of every layer's output. Norms follow from it and the layer's input by
the cheapest exact rule, the clipping rule turns them into one weight per example, and one product per layer
gives the weighted sum. Gradients of single examples are formed only where that is cheaper, and where a model
does something that has no rule.

In docs/engines.md: E6 to E9.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from discreet.core.clipping import LEAST_FACTOR, UNIT, ClipRule, Flat, Normalised, PerBlock
from discreet.errors import InvalidParameter, whole
from discreet.pytorch.checks.state_guard import refuse_written, tensors_in, write_counts
from discreet.pytorch.gradients import Gradients, Sums, wide_type
from discreet.pytorch.kernels import norms as kernels
from discreet.pytorch.layer_rules.use import Scratch, Source
from discreet.pytorch.linear_fast_path import (
    LinearGradients,
    LinearNetworks,
    UnusualCall,
    UsualCalls,
    gradients_in_graph,
)
from discreet.pytorch.mapped_gradients import mapped_gradients, per_example_gradients
from discreet.pytorch.per_example import (
    Losses,
    checked_losses,
    number_of_examples,
    select,
    tensors_of,
    trainable,
)
from discreet.pytorch.recording import Key, Recording

# Relative errors of a norm as computed here, and of the product of a gradient with its weight, together.
ERRORS = {torch.float32: 4e-6, torch.float64: 1e-12}
# Below these clip norms the smallest numbers of a type are no longer nothing beside a clipped gradient.
LEAST_CLIP_NORM = {torch.float32: 1e-9, torch.float64: 1e-100}
DEEPEST = 8  # constant calls of constant calls of ...
MOST_ROWS = 1 << 26  # numbers: per-example gradients that may exist at once where there is no rule
MOST_HELD = 1 << 26
"""Bytes that the gradients of all layers' outputs may have at once, on the CPU.

A plain backward pass drops them as it goes; here they wait for the norms. What a process frees beyond 64 MB the usual
allocator gives back to the system, which hands it out again page by page, and that takes longer than another part.
"""


class ExampleNorms:
    """The losses and gradient norms that a sum has computed for the examples of a batch: private, not for release."""

    def __init__(self) -> None:
        self._losses: list[Tensor | None] = []
        self._squares: list[Tensor] = []

    def add(self, losses: Tensor | None, squares: Tensor) -> None:
        """Add the examples of one part; ``squares`` are squared norms, with a column for each block."""
        self._losses.append(losses)
        self._squares.append(squares)

    @property
    def losses(self) -> Tensor | None:
        """One loss for each example in float64 on the CPU; None where gradients were formed without them."""
        found = [part.double().cpu() for part in self._losses if part is not None]
        return torch.cat(found) if found and len(found) == len(self._losses) else None

    @property
    def norms(self) -> Tensor:
        """The norms by which examples were clipped, in float64 on the CPU, with a column for each block."""
        return torch.cat([part.double().cpu() for part in self._squares]).sqrt()


class ClippedSum:
    """Sums of clipped per-example gradients.

    ``losses(model, batch)`` gives one loss per example. A batch is processed in parts of at most
    ``physical_batch_size`` examples, and on the CPU of at most :data:`MOST_HELD`, as far as is known from the batch
    before; that bounds the memory and changes nothing else. With
    :class:`~discreet.core.clipping.PerBlock` a block is a module with parameters of its own, or a single parameter
    if there are as many clip norms as parameters.

    Guarantee: the gradient of one example changes the result by at most ``rule.clip_norm``, provided that
    its loss depends on no other example. Gradients that are not finite count as zero.
    """

    def __init__(
        self,
        model: nn.Module,
        losses: Losses,
        rule: ClipRule,
        *,
        physical_batch_size: int | None = None,
    ) -> None:
        self.model = model
        self.losses = losses
        self.rule = rule
        self.parameters = trainable(model)
        self._identities = _identities(model)
        if not self.parameters:
            raise InvalidParameter("model", type(model).__name__, "must have a parameter to train.")
        if physical_batch_size is not None:
            whole("physical_batch_size", physical_batch_size, at_least=1)
        self.physical_batch_size = physical_batch_size
        self._networks = LinearNetworks(
            {id(value): Source.of(name, value) for name, value in self.parameters.items()}
        )
        self._readable = True  # as far as is known, all uses can be read off the graph
        self._constant: set[Key] = set()
        self._slow: set[str] = set()  # parameters that had no rule in the last part
        self._held = 0.0  # bytes that wait for each example's norm, in the last part
        self._unmapped = False
        self._ruled_out = False
        self._scratch = Scratch()
        self.seen: ExampleNorms | None = None
        """If set, the next sums write down here what they compute for each example."""
        kinds = {wide_type(value) for value in self.parameters.values()}
        self._error = max(ERRORS[kind] for kind in kinds)
        self.least_clip_norm = max(LEAST_CLIP_NORM[kind] for kind in kinds)

    @torch.no_grad()
    def __call__(self, batch: Any) -> Sums:
        """The sum over the batch of each example's clipped gradient, by parameter, in float32 or wider."""
        self._check_settings()
        blocks, sums, writes = self.blocks(), None, write_counts(batch)
        for part, count in self._parts(batch):
            gradients = self._gradients(part, count)
            self._held = gradients.received / count
            if sums is None:  # not before: here the memory for the activations is free
                sums = self._clipped_at_once(gradients, blocks)
                if sums is not None:
                    continue
                sums = Sums(self.parameters)
            gradients.add_to(sums, blocks, self.weights_of(gradients, blocks))
        refuse_written(batch, writes)
        return sums or Sums(self.parameters)

    @torch.no_grad()
    def norms(self, batch: Any) -> Tensor:
        """The norm of each example's whole gradient, not clipped, in float64: private, not for release."""
        blocks = dict.fromkeys(self.parameters, 0)
        found = [self._gradients(*part).squared_norms(blocks)[:, 0] for part in self._parts(batch)]
        return torch.cat(found).sqrt() if found else torch.zeros(0, dtype=torch.float64)

    def _check_settings(self) -> None:
        refuse_coarse_products()
        limits = self.rule.clip_norms if isinstance(self.rule, PerBlock) else (self.rule.clip_norm,)
        if min(limits) < self.least_clip_norm:
            needed = f"must be at least {self.least_clip_norm:g} for this type; scale the losses up."
            raise InvalidParameter("clip_norm", min(limits), needed)

    def _clipped_at_once(self, gradients: Gradients, blocks: dict[str, int]) -> Sums | None:
        """The clipped sums of small linear layers by one call; None for other models and rules."""
        if type(self.rule) is not Flat or not isinstance(gradients, LinearGradients):
            return None
        sums = gradients.clipped_sums(self.rule, self._error)
        if sums is not None and self.seen is not None:
            self.seen.add(gradients.losses, gradients.squared_norms(blocks))
        return sums

    def weights_of(self, gradients: Gradients, blocks: dict[str, int]) -> Tensor:
        """Return the factor of each example's gradient; gradients that are not finite become zeros."""
        self._check_settings()
        squares = gradients.squared_norms(blocks)
        if self.seen is not None:
            self.seen.add(gradients.losses, squares)
        if not kernels.on_host(squares):
            found = factors_on_device(self.rule, squares.sqrt(), self._error)
            if found is not None:
                gradients.forget(~squares.isfinite().all(1))
                return found
        return torch.from_numpy(self.rule.factors(_finite_norms(gradients, squares), self._error))

    def gradients_by_rules(self, batch: Any) -> Gradients | None:
        """Gradients by one forward and one backward pass, never more and never less; None if that is not enough.

        What is known of the model comes from :meth:`follows_rules`.
        """
        count, writes = number_of_examples(batch), write_counts(batch)
        recording, values, new = self._forward(batch, count)
        refuse_written(batch, writes)
        if values.requires_grad:
            with torch.enable_grad():
                recording.differentiate(values)
        if new or not _by_rules(recording):
            return None
        return Gradients(self.parameters, count, recording.uses, {})

    @torch.no_grad()
    def follows_rules(self, batch: Any) -> bool:
        """Return whether all gradients of a batch follow from rules, and none from the values of parameters."""
        recording = self._record(batch, number_of_examples(batch))
        return recording is not None and _by_rules(recording)

    def blocks(self) -> dict[str, int]:
        """The number of the block to which each parameter belongs."""
        if not isinstance(self.rule, PerBlock):
            return dict.fromkeys(self.parameters, 0)
        wanted, names = len(self.rule.clip_norms), list(self.parameters)
        if wanted == len(names):
            return {name: place for place, name in enumerate(names)}
        owners = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
        if wanted != len(owners):
            needed = (
                f"must hold one clip norm per module ({len(owners)}) or one per parameter ({len(names)})."
            )
            raise InvalidParameter("clip_norms", self.rule.clip_norms, needed)
        return {name: owners.index(name.rpartition(".")[0]) for name in names}

    def check_parameters(self) -> None:
        """A layer that was replaced or unfrozen meanwhile would stay as it is, without a word."""
        if _identities(self.model) != self._identities:
            needed = "must keep its trainable parameters; make a new ClippedSum after changing them."
            raise InvalidParameter("model", type(self.model).__name__, needed)

    def part_size(self, count: int) -> int:
        """Return the number of examples, of ``count``, that are processed at once; the last part may be smaller."""
        size = min(count, self.physical_batch_size or count)
        if self._slow:
            each = sum(self.parameters[name].numel() for name in self._slow)
            size = min(size, max(1, MOST_ROWS // each))
        parts = math.ceil(size * self._held / MOST_HELD)
        return -(-size // max(1, parts))

    def _parts(self, batch: Any) -> Iterator[tuple[Any, int]]:
        """The parts in which a batch is worked off, and how many examples are in each."""
        self.check_parameters()
        count = number_of_examples(batch)
        step = self.part_size(count)
        for start in range(0, count, max(1, step)):
            part = select(batch, slice(start, start + step)) if step < count else batch
            yield part, min(step, count - start)

    def _gradients(self, batch: Any, count: int) -> Gradients:
        """One forward and one backward pass, and another way for what escapes them."""
        if self._readable:
            found = self._read(batch, count)
            if found is not None:
                return found
            self._readable = False
        recording = None if self._ruled_out else self._record(batch, count)
        if recording is None:
            return Gradients(self.parameters, count, [], self._rows(batch, sorted(self.parameters)))
        found = Gradients(
            self.parameters, count, recording.uses, self._rows(batch, sorted(recording.distrusted))
        )
        found.losses = recording.losses
        return found

    def _read(self, batch: Any, count: int) -> Gradients | None:
        """The gradients as far as the graph shows all uses of parameters; None if it does not."""
        calls = UsualCalls()
        try:
            with torch.enable_grad(), calls:
                values = checked_losses(self.losses, self.model, batch, count)
        except UnusualCall:
            return None
        layers = self._networks.layers(values) if calls.only else None
        if not layers:
            return None
        found = gradients_in_graph(self.parameters, values, layers, self._scratch)
        found.losses = values.detach()
        return found

    def _record(self, batch: Any, count: int) -> Recording | None:
        """The uses of all parameters in this batch, or None if gradients by rules are out of the question."""
        for _ in range(DEEPEST):
            recording, values, new = self._forward(batch, count)
            if recording.differentiated:
                self._ruled_out = True
                return None
            if not new:
                break
            self._constant |= new
        if values.requires_grad and recording.distrusted < set(self.parameters):
            with torch.enable_grad():
                recording.differentiate(values)
        recording.losses = values.detach()
        return recording

    def _forward(self, batch: Any, count: int) -> tuple[Recording, Tensor, set[Key]]:
        """One forward pass, settled, its losses, and constant calls that were not known as such."""
        recording = Recording(dict(self.parameters), self._constant, count, self._scratch, tensors_of(batch))
        try:
            with torch.enable_grad(), recording:
                values = checked_losses(self.losses, self.model, batch, count)
            new = set() if recording.differentiated else recording.settle(values)
        finally:
            recording.forget_graph()
        return recording, values, new

    def _rows(self, batch: Any, names: list[str]) -> dict[str, Tensor]:
        """Per-example gradients where there is no rule."""
        self._slow = set(names)
        if not names:
            return {}
        if not self._unmapped:
            try:
                return mapped_gradients(self.model, self.losses, batch, names)
            except Exception:  # whatever a model does that cannot be mapped, a loop can do
                self._unmapped = True
        return per_example_gradients(self.model, self.losses, batch, names)


AUTOCAST = ("cpu", "cuda", "mps", "xpu")


def refuse_coarse_products() -> None:
    """Raise if products of float32 matrices may be rounded to fewer digits: by their precision, or by autocast.

    Norms and sums would be off by up to 2**-8, and where large parts of a gradient cancel, by many clip norms.
    Autocast within the losses is the model's own affair: norms and sums are taken outside of it.
    """
    for device in AUTOCAST:
        if torch.is_autocast_enabled(device):
            needed = (
                "would round the norms of examples: enter torch.autocast inside losses, not around the step."
            )
            raise InvalidParameter("autocast", device, needed)
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # what was set for one backend is not what was set for all
        precision = "mixed"
    if precision != "highest":
        needed = "would round the norms of examples: call torch.set_float32_matmul_precision('highest')."
        raise InvalidParameter("float32_matmul_precision", precision, needed)


def factors_on_device(rule: ClipRule, norms: Tensor, error: float) -> Tensor | None:
    """The factors of ``rule`` without a word to the host; None for a rule that is known for arrays only.

    Guarantee: that of :func:`~discreet.core.clipping.scale_factors`; a norm that is not finite has the factor 0.
    """
    if type(rule) not in (Flat, PerBlock, Normalised):
        return None
    limits = rule.clip_norms if isinstance(rule, PerBlock) else (rule.clip_norm,)
    clip_norms = torch.tensor(limits, dtype=torch.float64).to(norms.device, non_blocking=True)
    upper = norms * (1 + error + 4 * UNIT)
    if isinstance(rule, Normalised):
        factors = clip_norms / (upper + rule.stabiliser) * (1 - 4 * UNIT)
    else:
        down = clip_norms / torch.maximum(upper, clip_norms) * (1 - 4 * UNIT)
        factors = torch.where(upper <= clip_norms, 1.0, down)
    return torch.where((upper >= 0) & (upper < torch.inf) & (factors >= LEAST_FACTOR), factors, 0.0)


def _finite_norms(gradients: Gradients, squares: Tensor) -> Any:
    """Norms as an array; gradients that are not finite become zeros."""
    norms = squares.sqrt().cpu().numpy()
    if not math.isfinite(norms.sum()):
        gradients.forget(torch.from_numpy(~np.isfinite(norms).all(1)))
    return norms


def _by_rules(recording: Recording) -> bool:
    """Return whether no gradient escaped the rules or leads back through numbers that may be gone by then."""
    return not (recording.differentiated or recording.distrusted) and all(
        use.source.isometric for use in recording.uses
    )


def _identities(model: nn.Module) -> list[int]:
    """Return the identities of trained parameters; the sum keeps all of them alive."""
    return [id(value) for _, _, value in tensors_in(model) if value.requires_grad]
