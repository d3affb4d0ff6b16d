"""The per-example gradients of a batch, in whatever form they are: measured, weighted and added up.

The sums of all parameters are one vector, which gets its noise at once. Until then the sums are nowhere that an
optimizer or a logger looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from discreet.pytorch.kernels.norms import chunks
from discreet.pytorch.layer_rules.embedding import EmbeddingWeight
from discreet.pytorch.layer_rules.linear import LinearWeight
from discreet.pytorch.layer_rules.use import (
    CANCELLED,
    PRECISION,
    Use,
    inner_product_error,
    not_cancelled,
    settle_doubtful,
    sums_of_squares,
    wide,
    without,
)

# Weights outside of these limits could make numbers that float32 (or float64) has no digits for.
LEAST_WEIGHT = {torch.float32: 2.0**-100, torch.float64: 2.0**-900}
MOST_WEIGHT = {torch.float32: 2.0**30, torch.float64: 2.0**400}


class Gradients:
    """``uses`` are those of a recording; ``rows`` are whole per-example gradients of other parameters."""

    def __init__(
        self, parameters: Mapping[str, Tensor], examples: int, uses: list[Use], rows: dict[str, Tensor]
    ) -> None:
        self.parameters, self.examples = parameters, examples
        self.losses: Tensor | None = None
        """The losses of the forward pass that the gradients come from; None if there was none of the whole batch."""
        self.rows = {name: wide(value) for name, value in rows.items()}
        self.received = sum({use.place: use.received for use in uses}.values())
        """Bytes of the gradients that were handed to the uses and wait for the norms, on the CPU."""
        self.uses: dict[str, list[Use]] = {}
        for use in uses:
            for name in use.source.roots:
                if name not in rows:
                    self.uses.setdefault(name, []).append(use)
        self.uses = {
            name: join_linear(group) if len(group) > 1 else group for name, group in self.uses.items()
        }

    def squared_norms(self, blocks: dict[str, int]) -> Tensor:
        """Squared norms in float64, one row per example and one column per block."""
        columns: list[list[Tensor]] = [[] for _ in range(1 + max(blocks.values()))]
        for name, rows in self.rows.items():
            columns[blocks[name]].append(sums_of_squares(rows))
        for name, group in list(self.uses.items()):
            columns[blocks[name]].append(self._of_parameter(name, group))
        found = [torch.stack(column).sum(0) if column else self._no_norms() for column in columns]
        return torch.stack(found, 1)

    def _no_norms(self) -> Tensor:
        device = next(iter(self.parameters.values())).device
        return torch.zeros(self.examples, dtype=torch.float64, device=device)

    def _of_parameter(self, name: str, uses: list[Use]) -> Tensor:
        if all(use.source.isometric for use in uses):
            if len(uses) == 1:
                return uses[0].squared_norms() if uses[0].squares is None else uses[0].squares
            kinds = {type(use): use for use in uses}
            if len(uses) == 2 and set(kinds) == {EmbeddingWeight, LinearWeight}:
                looked_up, applied = kinds[EmbeddingWeight], kinds[LinearWeight]
                assert isinstance(looked_up, EmbeddingWeight)
                assert isinstance(applied, LinearWeight)
                if looked_up.source is applied.source and not applied.transposed:
                    return self._of_tied(looked_up, applied)
        return self._of_sum(name, uses, chunks(self.examples, _largest(uses)))

    def _of_tied(self, looked_up: EmbeddingWeight, applied: LinearWeight) -> Tensor:
        apart = looked_up.squared_norms() + applied.squared_norms()
        inner, lost = tied_product(looked_up, applied)
        total = apart + inner
        sure = (total >= torch.maximum(CANCELLED * apart, lost / PRECISION)) & (total < torch.inf)
        uses: list[Use] = [looked_up, applied]
        total = settle_doubtful(
            total,
            ~(sure | (apart == 0)),
            2 * apart,
            lambda i: self._of_sum(applied.source.name, uses, [slice(i, i + 1)])[0],
        )
        return not_cancelled(total, apart)

    def _of_sum(self, name: str, uses: list[Use], parts: list[slice]) -> Tensor:
        """The long way: form the gradients of all uses and add them up. What is formed at once is kept."""
        found = []
        gains = {use.source: use.source.gain(name) for use in uses}
        for part in parts:
            rows = [use.source.pull_back(use.rows(part))[name] for use in uses]
            apart = torch.stack([sums_of_squares(row) for row in rows]).sum(0)
            for use in uses:
                apart = apart + use.of_parts()[part] * gains[use.source]
            whole = sum(rows[1:], rows[0])
            found.append(not_cancelled(sums_of_squares(whole), apart))
            if len(whole) == self.examples and not all(use.source.isometric for use in uses):
                self.rows[name] = wide(whole)
                del self.uses[name]
        return torch.cat(found)

    def forget(self, bad: Tensor) -> None:
        """Gradients that are not finite count as zero, and must not meet the others in a sum."""
        bad = bad.to(next(iter(self.parameters.values())).device)
        self.rows = {name: without(rows, bad) for name, rows in self.rows.items()}
        for use in {id(use): use for group in self.uses.values() for use in group}.values():
            use.forget(bad)

    def add_to(self, sums: Sums, blocks: dict[str, int], weights: Tensor) -> None:
        """Add the weighted sums to others; ``weights`` has a column per block."""
        for (name, total), column in zip(sums.items(), self._columns(sums, blocks, weights), strict=True):
            if name in self.rows:
                rows = self.rows[name]
                total += (column @ rows.reshape(self.examples, -1)).view(rows.shape[1:]).to(total.device)
            uses = self.uses.get(name, [])
            if all(use.source.isometric for use in uses):
                for use in uses:
                    if use.source.is_parameter:
                        use.add_to(total, column)
                    else:
                        total += use.source.pull_back_sum(use.weighted_sum(column), name).to(total.device)
            else:
                self._add_rows(name, uses, total, column)

    def _add_rows(self, name: str, uses: list[Use], total: Tensor, weights: Tensor) -> None:
        """Add what was measured, row by row.

        Behind a function of the parameter large gradients may cancel. Added up before it they would leave rounding
        errors behind that no norm has counted, and that the function may well enlarge.
        """
        for part in chunks(self.examples, _largest(uses)):
            rows = [use.source.pull_back(use.rows(part))[name] for use in uses]
            whole = sum(rows[1:], rows[0]).reshape(len(rows[0]), -1)
            total.view(-1).add_((weights[part].to(whole.dtype) @ whole).to(total))

    def _columns(self, names: Iterable[str], blocks: dict[str, int], weights: Tensor) -> Iterator[Tensor]:
        """For each parameter the weights of its block, in the type of its sum."""
        columns: dict[tuple[int, torch.dtype], Tensor] = {}
        for name in names:
            parameter = self.parameters[name]
            key = (blocks[name], wide_type(parameter))
            if key not in columns:
                columns[key] = within_range(weights[:, key[0]], key[1]).to(parameter.device)
            yield columns[key]


def _largest(uses: list[Use]) -> int:
    """Numbers in the largest gradient of one example."""
    return max(use.source.tensor.numel() for use in uses)


def within_range(weights: Tensor, kind: torch.dtype) -> Tensor:
    """Weights in this type, not above what they were; too small ones, which would lose digits, are 0."""
    least, most = LEAST_WEIGHT[kind], MOST_WEIGHT[kind]
    return torch.where(weights >= least, weights, 0).clamp_(max=most).to(kind)


def join_linear(uses: list[Use]) -> list[Use]:
    """The uses with all linear uses of one source made into one."""
    first: dict[tuple[int, bool], LinearWeight] = {}
    others: list[Use] = []
    for use in uses:
        if isinstance(use, LinearWeight):
            key = (id(use.source), use.transposed)
            first[key] = first[key].join(use) if key in first else use
        else:
            others.append(use)
    return [*first.values(), *others]


def tied_product(looked_up: EmbeddingWeight, applied: LinearWeight) -> tuple[Tensor, Tensor]:
    """Twice the inner product of the two gradients of a weight that is embedding and output layer at once, or more.

    And how much of it may be lost in products that are too small for their type.

    Position t of the output layer adds g_t a_t' and position s of the embedding adds row e_s at index i_s;
    their inner product is (a_t . e_s) times the entry i_s of g_t. What rounding may have taken from a_t . e_s, in
    whatever order it was added up, is added.
    """
    a, g = applied.by_position
    index = looked_up.index[:, None, :].expand(-1, g.shape[1], -1)
    met = g.gather(2, index).double()
    lost = 2 * torch.finfo(a.dtype).tiny * a.shape[2] * met.abs().sum((1, 2))
    of_input, of_rows = (
        torch.linalg.vector_norm(rows, dim=2, dtype=torch.float64) for rows in (a, looked_up.g)
    )
    rounded = torch.einsum("nts,nt,ns->n", met.abs(), of_input, of_rows)
    rounded *= inner_product_error(a.shape[2], a.dtype) * (1 + 2.0**-20)
    return 2 * (torch.sum(met * torch.bmm(a, looked_up.g.mT), (1, 2)) + rounded), lost


def wide_type(parameter: Tensor) -> torch.dtype:
    """The type of sums of gradients of a parameter: half precision is for the model."""
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32


class Sums(dict[str, Tensor]):
    """By parameter a view of ``vector``, which begins as zeros.

    >>> sums = Sums({"weight": torch.ones(2, 3), "bias": torch.ones(2)})
    >>> sums["bias"] += 1
    >>> sums.vector
    tensor([0., 0., 0., 0., 0., 0., 1., 1.])
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        values = list(parameters.values())
        kind = torch.float64 if any(value.dtype == torch.float64 for value in values) else torch.float32
        size = sum([value.numel() for value in values])
        self.vector = torch.zeros(size, dtype=kind, device=values[0].device)
        super().__init__(zip(parameters, _views(self.vector, values), strict=True))


def _views(vector: Tensor, values: list[Tensor]) -> list[Tensor]:
    """The vector in parts that have the shapes of ``values``, by one call however many they are."""
    return list(torch._C._nn.unflatten_dense_tensors(vector, values))
