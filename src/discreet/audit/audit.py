"""``audit(train, claim, method)``: how much does this procedure leak, at least?

A privacy proof speaks of a procedure on paper. An audit attacks the procedure as it runs, and reports an epsilon
that it surely exceeds. Near the claim, it shows that the claim is not much too pessimistic; above the claim,
that the implementation is wrong. It never proves that something is private.

>>> from discreet.audit.one_step import OneStep
>>> from discreet.events import Gaussian
>>> from discreet.guarantee import Bounds
>>> stream = RandomStream(unsafe_seed=1)
>>> def release(world, draws):  # a sum of 0 or 1, with noise
...     return world + stream.normal(draws)
>>> result = audit(release, Gaussian(noise_multiplier=1.0), OneStep(draws=20_000), delta=1e-5)
>>> print(result)  # doctest: +ELLIPSIS
one step: epsilon >= 4.1... at 95 % (delta 1e-05, add-remove); claimed 4.37..., ceiling ...
>>> result.contradicts(Guarantee(Bounds(4.377, 4.378), delta=1e-5))
False
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from discreet.accounting.curve import PrivacyCurve
from discreet.audit.bounds import Evidence, Method, Told, lower_epsilon, refuted_step
from discreet.audit.canaries import GradientCanaries
from discreet.audit.claims import Claim
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import InvalidParameter, probability
from discreet.guarantee import Guarantee, Neighbours, lower_text, upper_text


@dataclass(frozen=True)
class AuditResult:
    """Result of an audit.

    ``lower`` is the epsilon at ``delta`` that the subject exceeds, through the trade-off curve of the claim;
    ``classic`` is the same through (epsilon, delta) alone, which needs no family of curves. ``ceiling`` is the
    bound that this audit would have returned had every guess been right: an audit whose ceiling is below the claim
    could not have contradicted it, and is void.

    Guarantee: if the subject obeys the claim, ``lower`` exceeds ``claimed`` with probability at most
    1 - ``confidence``, under ``assumptions``.
    """

    method: str
    lower: float
    classic: float
    ceiling: float
    claimed: float
    delta: float
    neighbours: Neighbours
    confidence: float
    runs: int
    seconds: float
    assumptions: str
    evidence: Evidence
    refuted: PrivacyCurve | None = field(default=None, repr=False, compare=False)
    group_size: int = 1

    @property
    def void(self) -> bool:
        """True if no attack whatever could have contradicted the claim with so few trials."""
        return self.ceiling < self.claimed

    @property
    def tightness(self) -> float:
        """The lower bound as a share of what is claimed; above 1 the claim is contradicted."""
        return self.lower / self.claimed

    def lower_at(self, delta: float) -> float:
        """The lower bound on epsilon at another delta."""
        return 0.0 if self.refuted is None else self.refuted.epsilon_bounds(delta).lower

    def contradicts(self, guarantee: Guarantee) -> bool:
        """True if the subject leaks more than ``guarantee`` allows, at this confidence."""
        for name, ours in (("neighbours", self.neighbours), ("group_size", self.group_size)):
            theirs = getattr(guarantee, name)
            if theirs != ours:
                raise InvalidParameter(
                    name, theirs, f"the audit was made for {ours!r}; audit that claim instead."
                )
        return self.lower_at(guarantee.delta) > guarantee.epsilon.upper

    def __str__(self) -> str:
        """One line; bounds are rounded to the safe side."""
        verdict = "; VOID: this audit could not have contradicted the claim" if self.void else ""
        verdict = "; CONTRADICTS the claim" if self.lower > self.claimed else verdict
        return (
            f"{self.method}: epsilon >= {lower_text(self.lower)} at {100 * self.confidence:g} % "
            f"(delta {self.delta:g}, {self.neighbours}); claimed {upper_text(self.claimed)}, "
            f"ceiling {lower_text(self.ceiling)}{verdict} ({self.runs} calls, {self.seconds:.1f} s)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        fields = {name: value for name, value in vars(self).items() if name not in ("refuted", "evidence")}
        return fields | {"void": self.void, "evidence": asdict(self.evidence)}  # type: ignore[call-overload]


def audit(
    train: Callable[..., Any],
    claim: Any,
    method: Method | None = None,
    confidence: float = 0.95,
    *,
    delta: float | None = None,
    neighbours: Neighbours | None = None,
    stream: RandomStream | None = None,
    progress: bool | Told = False,
) -> AuditResult:
    """Attack ``train`` by ``method``, and bound its epsilon from below.

    ``claim`` is a plan, certificate, guarantee, privacy curve or event; a curve or event needs a ``delta``.
    ``train`` is called as the method says; it may be anything. ``stream`` flips the coins that decide which
    canaries are used. ``progress`` draws a bar, or is a function that is told how many of how many calls are done.

    Guarantee: if the subject obeys the claim, the bound exceeds the claimed epsilon with probability at most
    1 - ``confidence``, under the assumptions that the result names.
    """
    method = GradientCanaries() if method is None else method
    if not isinstance(method, Method):
        raise InvalidParameter("method", method, "must be OneStep(), GradientCanaries() or ModelCanaries().")
    if not callable(train):
        raise InvalidParameter("train", train, f"must be a function; see {type(method).__name__}.")
    confidence = probability("confidence", confidence)
    claimed = replace(Claim.of(claim, delta=delta, neighbours=neighbours), group=method.group)
    start = time.perf_counter()
    with show_progress(progress) as told:
        evidence = method.play(train, claimed, confidence, stream or system_stream(), told)
    step = refuted_step(evidence, claimed, 1 - confidence)
    lower = 0.0 if step is None else claimed.epsilon_at(step)
    ceiling = lower_epsilon(evidence.perfect(), claimed, confidence, resolution=8)
    return AuditResult(
        method=method.name,
        lower=lower,
        classic=lower_epsilon(evidence, claimed.plain(), confidence),
        ceiling=max(lower, ceiling),
        claimed=claimed.epsilon,
        delta=claimed.delta,
        neighbours=claimed.neighbours,
        confidence=confidence,
        runs=method.calls,
        seconds=time.perf_counter() - start,
        assumptions=method.assumptions,
        evidence=evidence,
        refuted=None if step is None else claimed.curve(step),
        group_size=claimed.protects,
    )


@contextmanager
def show_progress(progress: bool | Told) -> Iterator[Told]:
    """Progress callback for each call of the subject; draws a bar on standard error if ``progress``."""
    if not progress or callable(progress):
        yield progress or (lambda done, total: None)
        return
    columns = (TextColumn("audit"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("audit", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
