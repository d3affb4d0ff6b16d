"""What may be spent, as typed: refused where it would promise nothing, with a remedy that can be followed.

The number of records is private where it was not declared, so ``fit`` and ``ledger new`` cannot compare delta with
it beforehand. They refuse what is too large for any table worth protecting; once a fit has paid for a noisy count,
delta is compared with that.
"""

from __future__ import annotations

from discreet.errors import InvalidParameter, real
from discreet.guarantee import Budget, Neighbours, Unit

LARGEST_DELTA = 1e-3
"""From here on delta is refused, unless a declared number of records shows that it is small for them."""


def gaussian_budget(
    epsilon: float,
    delta: float,
    neighbours: Neighbours = "add-remove",
    group_size: int = 1,
    records: int | None = None,
    unit: Unit = "record",
) -> Budget:
    """A budget for Gaussian noise; ``records`` is the declared number of records, if there is one."""
    remedy = "Typical budgets are 0.1 to 10."
    real("epsilon", epsilon, at_least=1e-6, at_most=1e6, remedy=remedy)
    usual = (
        "It is a chance that all of a record is shown; choose it well below 1 / number of records, say 1e-6."
    )
    small = records is not None and delta * records <= 0.1
    real("delta", delta, at_least=1e-300, below=1 if small else LARGEST_DELTA, remedy=usual)
    if records is not None and delta * records >= 1:
        raise InvalidParameter("delta", delta, f"must be below 1 / records = {1 / records:.3g}. {usual}")
    return Budget(epsilon, delta, neighbours, group_size, unit)


def delta_note(delta: float, records: float, what: str) -> str | None:
    """What to say of a delta that is not far below one over the number of records; ``what`` names that number."""
    if delta * records <= 0.1:
        return None
    return (
        f"delta {delta:g} is more than a tenth of 1 / {what} ({records:,.0f}): it may allow whole records to be "
        "shown. A smaller one costs little."
    )
