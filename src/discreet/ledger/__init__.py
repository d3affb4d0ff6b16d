"""The ledger: what was spent, written down before it is spent.

>>> from discreet import Budget, Gaussian, PoissonSampled
>>> plan = PoissonSampled(rate=0.01, of=Gaussian(noise_multiplier=4.0)) * 10_000
>>> rule = FixedPlan(plan, Budget(epsilon=1.0, delta=1e-5))
>>> with Ledger.in_memory(rule) as ledger:  # or Ledger.create("study.ledger", rule), then Ledger.open
...     run = ledger.run(plan, plan_hash=plan.digest(), data="census 2021, version 3")
...     for step in run.steps():  # paid for, and on disk, when it is given out
...         if step == 150:  # draw fresh noise, release, save
...             break
...     run.reserved, run.remaining()
(200, 9800)

The order is always: reserve, fresh noise, release, commit. A reservation is never refunded, so after a crash at
any point at least as much is counted as was released; the next attempt goes on one step after the highest
reserved one. Steps are reserved in leases, by default a hundredth of the plan at a time; who wants to see them uses
``run.reserve(steps)`` and ``run.commit(step)``. Several processes may share one budget, each with a run of its own.

What may be spent is decided by the ledger's rule (:mod:`~discreet.ledger.filters`): a plan fixed in advance, or
a filter for releases chosen along the way. That nobody altered it is shown by its seal
(:mod:`~discreet.ledger.ledger_state`). It is kept in an SQLite file or in PostgreSQL (:mod:`~discreet.ledger.store`).

Not covered: a disk that confirms writes it does not keep; whoever holds the key; and, without an anchor, an older
copy of the whole ledger put in its place.
"""

from discreet.ledger.filters import FixedPlan, GaussianFilter, TruncatedRenyiFilter
from discreet.ledger.ledger import Ledger
from discreet.ledger.ledger_state import Anchor
from discreet.ledger.till import Till

__all__ = [
    "Anchor",
    "FixedPlan",
    "GaussianFilter",
    "Ledger",
    "Till",
    "TruncatedRenyiFilter",
]
