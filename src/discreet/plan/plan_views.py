"""A plan in words and pictures.

Nothing that is charged, refused or certified comes from here: a plan's event, rule, guarantee and digest use nothing
of this file, so that no text or picture can change what is promised.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from html import escape
from typing import Any

from discreet.accounting.curve import PrivacyCurve, account
from discreet.accounting.power import power_bound
from discreet.charts import Picture, Series, attack_chart, line_chart
from discreet.errors import DiscreetError
from discreet.guarantee import Guarantee, Neighbours
from discreet.plan.explanation import ALARMS, adaptive_explanation, explanation
from discreet.plan.stage import Stage


class PlanViews(ABC):
    """What a plan shows to people."""

    stages: tuple[Stage, ...]
    delta: float
    neighbours: Neighbours
    group_size: int
    name: str
    settings: Mapping[str, Any]

    @property
    @abstractmethod
    def curve(self) -> PrivacyCurve:
        """The certified privacy curve of the plan."""

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """The certified cost of the plan."""

    @abstractmethod
    def stage(self, name: str | None = None) -> Stage:
        """The stage of this name; without a name, the only one."""

    def explain(self) -> str:
        """Describe the plan in plain words: procedure, guarantee, protected unit, observer, exclusions."""
        if self.stages:
            return explanation(self.stages, self.guarantee, self.curve.power(ALARMS))
        return adaptive_explanation(self.name, self.settings, self.guarantee)

    def plot(self) -> Picture:
        """Epsilon as the steps go by, for a plan of one stage; for others, what the best attack finds."""
        if len(self.stages) != 1:
            epsilon, delta = self.guarantee.epsilon.upper, self.guarantee.delta
            return Picture(attack_chart(lambda alarms: power_bound(epsilon, delta, alarms)))
        points = ((0.0, 0.0), *epsilon_after(self, 1.0))
        title = f"Epsilon at delta {self.delta:g}, step by step"
        return Picture(line_chart(title, [Series("epsilon", points)], "steps", "epsilon"))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.explain())}</pre>"


def epsilon_after(plan: PlanViews, times: float) -> list[tuple[float, float]]:
    """Steps of the only stage, up to ``times`` as many as planned, and epsilon after them at the same noise."""
    stage = plan.stage()
    charges = stage.steps // stage.steps_per_charge
    counts = sorted({max(1, round(times * charges * (part / 12) ** 2)) for part in range(1, 13)})
    found = []
    for count in counts:
        with suppress(DiscreetError):  # a point of a picture that cannot be certified is left out
            curve = account(stage.charge * count, plan.neighbours, plan.group_size)
            found.append((float(count * stage.steps_per_charge), curve.epsilon(plan.delta)))
    return found
