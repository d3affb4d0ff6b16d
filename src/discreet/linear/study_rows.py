"""A fit whose rows lie at the parties of a study: what its coordinator needs to run the strategy of one table.

:class:`StudyTable` stands for the table, and :class:`JointSpending` for the budget. Both are untrusted: they hold no
row, charge nothing and draw no noise. Each question goes to the parties, who charge their own ledgers and add their
own noise; what comes back is the sum of noisy integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from discreet.errors import BudgetExceeded, PlanViolation, real, whole
from discreet.events import Gaussian
from discreet.guarantee import Budget
from discreet.linear.checked_questions import LEAST_SHARE, Question
from discreet.linear.gate.private_table import EncodedRows, View
from discreet.linear.losses import Loss
from discreet.linear.row_views.curve_bases import Basis
from discreet.trusted.opaque import Opaque
from discreet.trusted.spending import NoisyAnswer, Progress

Array = NDArray[np.float64]


class JointSum(NamedTuple):
    """The sum of the parties' noisy integers, and by how much its noise is larger than that of one table's fit."""

    counts: NDArray[np.int64]
    noise: float


Ask = Callable[[Question, Gaussian], JointSum]
"""Sends a question to all parties, who answer with this noise, and returns the sum of their answers."""


class StageNoise(Protocol):
    """The noise of a share of the budget, with the numbers of a fit of one table."""

    @property
    def gdp_mu(self) -> float:
        """The contribution of one record over the noise of a release that spends the whole budget."""

    @property
    def most_records(self) -> int:
        """The largest number of records in an integer sum."""

    def event(self, share: float, steps: int) -> Gaussian:
        """Each of ``steps`` releases that spend a share of the budget together."""

    def grid(self, event: Gaussian, bound: float) -> float:
        """The steps in which a sum of this sensitivity is counted."""


class StudyTable(Opaque):
    """The rows of all parties together, of which nothing is known here."""

    __slots__ = ()

    def rows(self, view: View) -> StudyRows:
        """The rows of a view, which answer queries."""
        return StudyRows(view)

    def _row_count(self) -> int:
        return 0  # each party refuses more rows than sums have room for

    def __repr__(self) -> str:
        return "StudyTable()"


class StudyRows(Opaque):
    """Rows of a view at all parties: the view itself, and what else is public of them."""

    __slots__ = ("basis", "fills", "view")

    sparse = False

    def __init__(self, view: View) -> None:
        self.view, self.fills, self.basis = view, None, None  # type: View, Array | None, Basis | None

    @property
    def columns(self) -> Any:
        """The kinds of the columns; of raw columns, how many there are."""
        return self.view.columns if self.basis is None else self.basis.columns  # type: ignore[union-attr]

    @property
    def loss(self) -> Loss:
        """The loss that says which targets count."""
        return self.view.loss  # type: ignore[union-attr]

    def fill_missing(self, values: Array) -> None:
        """From now on let every missing number be the value of its column, which is public."""
        self.fills = np.clip(np.asarray(values, np.float64), 0.0, 1.0)

    def in_curves(self, basis: Basis) -> StudyRows:
        """The same records as rows of a basis."""
        if not isinstance(self.view, EncodedRows):
            raise PlanViolation("Only encoded records can be rows of a basis.")
        rows = StudyRows(self.view)
        rows.fills, rows.basis = self.fills, basis
        return rows

    def _row_count(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"StudyRows({type(self.view).__name__})"


class JointSpending:
    """The budget of a study as its strategy sees it: in stages, by shares.

    ``noise`` is by how much the noise of a complete sum is larger than that of one table's fit: 1 with secure sums
    that tolerate neither dropouts nor colluders, the root of the number of parties with plain sums. The parties
    enforce the budget; what is checked here only keeps the strategy from asking what they would refuse.
    """

    arithmetic: Literal["hardened"] = "hardened"
    log = None
    trusted = True

    def __init__(self, budget: Budget, scale: StageNoise, noise: float, ask: Ask) -> None:
        self.budget, self._scale, self._noise, self._ask = budget, scale, noise, ask
        self.strength = scale.gdp_mu / noise
        self.most_records = scale.most_records
        self.progress: Progress | None = None
        self.questions = 0
        self._shares: list[float] = []
        self._names: set[str] = set()

    @property
    def left(self) -> float:
        """The share of the budget that no stage has taken yet."""
        return max(0.0, 1.0 - math.fsum(self._shares))

    def stage(self, name: str, share: float | None = None, steps: int = 1) -> JointStage:
        """Take ``share`` of the budget, or all that is left, for ``steps`` releases."""
        steps, left = whole("steps", steps, at_least=1), self.left
        share = left if share is None else real("share", share, at_least=LEAST_SHARE)
        if not LEAST_SHARE <= share <= left + 1e-12:
            raise BudgetExceeded(
                f"The stage {name!r} asks for {share:.3g} of the budget; {left:.3g} is left."
            )
        self._shares.append(share)
        self.tell(name, 0, steps)
        return JointStage(self, self._free_name(name), share, steps)

    def _free_name(self, name: str) -> str:
        free = next(
            free for number in range(1, 10**6) if (free := _numbered(name, number)) not in self._names
        )
        self._names.add(free)
        return free

    def release(self, stage: JointStage, step: int, rows: StudyRows, query: Any) -> NoisyAnswer:
        """Ask the parties. For stages."""
        self.questions += 1
        asked = (self.questions, stage.name, stage.share, stage.steps)
        bound, event = float(query.bound), self._scale.event(stage.share, stage.steps)
        grid = self._scale.grid(event, bound)
        released = self._ask(Question(*asked, rows.view, rows.fills, rows.basis, query), event)
        if released.counts.dtype != np.int64 or released.counts.shape != (query.size,):
            raise PlanViolation(f"A sum of {query.size} integers was asked for. Got other numbers.")
        self.tell(stage.name, step, stage.steps)
        return NoisyAnswer(
            np.asarray(released.counts * grid, np.float64),
            event.noise_multiplier * bound * released.noise,
            grid,
        )

    def noise_multiplier(self, share: float, steps: int) -> float:
        """The noise of each of ``steps`` releases of a stage, if all parties are present."""
        return self._scale.event(share, steps).noise_multiplier * self._noise

    def admit(self, rows: Any) -> None:
        """Accept any number of rows: each party refuses too many by itself."""

    def tell(self, stage: str, done: int, steps: int) -> None:
        """Tell :attr:`progress`, if anybody listens."""
        if self.progress is not None:
            self.progress(stage, done, steps)


class JointBudget:
    """The budget of a fit whose parties pay: what an estimator asks of a budget, without a ledger.

    What was paid stands in the parties' own certificates.
    """

    sample = None
    plan = None

    def __init__(self, spending: JointSpending) -> None:
        self.budget, self._spending = spending.budget, spending

    def __enter__(self) -> JointBudget:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was opened."""

    def spending(self) -> JointSpending:
        """The budget, to be spent in stages."""
        return self._spending

    def refuse_foreign(self, earlier: object) -> None:
        """No fit goes on from another one."""

    def certificate(self, not_covered: tuple[str, ...]) -> None:
        """None: the parties certify."""


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


class JointStage:
    """A share of a study's budget: so many questions with so much noise. Made by :meth:`JointSpending.stage`."""

    arithmetic: Literal["hardened"] = "hardened"

    def __init__(self, spending: JointSpending, name: str, share: float, steps: int) -> None:
        self.name, self.share, self.steps = name, share, steps
        self._spending, self._used = spending, 0

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise of one release / contribution of one record."""
        return self._spending.noise_multiplier(self.share, self.steps)

    @property
    def strength(self) -> float:
        """Contribution of one record / noise of the average of all releases of the stage."""
        return math.sqrt(self.steps) / self.noise_multiplier

    def ask(self, rows: Any, query: Any) -> NoisyAnswer:
        """The sum that a query asks for, with the parties' noise."""
        if self._used >= self.steps:
            raise PlanViolation(f"The stage {self.name!r} has made all its {self.steps} releases.")
        self._used += 1
        return self._spending.release(self, self._used, rows, query)
