"""What the forward pass must leave as it is: buffers, frozen parameters, and trained ones until the noise is there.

A buffer that a forward pass writes to, or a codebook kept as a frozen parameter, would carry what it saw of the
records out of the run without noise. PyTorch counts the writes to every tensor, but not those through ``.data``,
so contents are compared as well: bit by bit for small tensors, and for large ones by whole-number sums of their
bits along the rows and columns of a matrix.

>>> layer = nn.BatchNorm1d(2)
>>> watch = Constancy(layer)
>>> layer.running_mean.data += 1.0
>>> watch.changed()
'running_mean'
>>> watch.refresh()
>>> watch.changed() is None
True
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

ROW = 8 * 4096  # bytes


class Constancy:
    """Notices tensors of a model that have changed: all that is not trained, or all there is."""

    def __init__(self, model: nn.Module, *, trained_too: bool = False) -> None:
        self._model = model
        self._trained_too = trained_too
        self.refresh()

    def refresh(self) -> None:
        """Take the present state as the one to be kept."""
        self._counts = self._counted()
        self._contents = {device: torch.cat(parts) for device, (_, parts) in self._parts().items()}

    def changed(self) -> str | None:
        """The name of a tensor that was written to, or exchanged, or None."""
        counts = self._counted()
        for name in (*counts, *self._counts):
            if counts.get(name) != self._counts.get(name):
                return name
        for device, (names, parts) in self._parts().items():
            before = self._contents[device]
            if not torch.equal(torch.cat(parts), before):
                pairs = zip(names, parts, torch.split(before, [len(part) for part in parts]), strict=True)
                return next(name for name, now, then in pairs if not torch.equal(now, then))
        return None

    def _counted(self) -> dict[str, tuple[int, int]]:
        return {name: (id(value), value._version) for name, value in _tensors(self._model)}

    def _parts(self) -> dict[torch.device, tuple[list[str], list[Tensor]]]:
        """Names and bits of what is watched, by device, because one comparison for all is the fastest."""
        found: dict[torch.device, tuple[list[str], list[Tensor]]] = {}
        for name, value in _tensors(self._model):
            if self._trained_too or not value.requires_grad:
                names, parts = found.setdefault(value.device, ([], []))
                names.append(name)
                parts.append(_bits(value.detach()))
        return found


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _bits(value: Tensor) -> Tensor:
    """The bytes of a small tensor, or of the sums of a large one; sums of 64 bits may overflow, and stay exact."""
    flat = value.contiguous().flatten().view(torch.uint8)
    rows = len(flat) // ROW
    if rows == 0:
        return flat
    if flat.storage_offset() % 8:
        flat = flat.clone()
    folded = flat[: rows * ROW].view(torch.int64).view(rows, -1)
    return torch.cat([folded.sum(0).view(torch.uint8), folded.sum(1).view(torch.uint8), flat[rows * ROW :]])
