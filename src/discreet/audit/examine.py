"""All detectors on one implementation: :func:`examine`.

A :class:`Subject` hands in what it can be called with; a :class:`Specification` is what is said about it. Nothing
here knows what the subject is made of: our engines, another library, or ten lines of a notebook.

>>> from discreet.core.clipping import clip_rows
>>> rng = np.random.default_rng(0)
>>> def sums(rows):
...     return clip_rows(rows, 1.0).sum(0)
>>> def noisy(rows):
...     return sums(rows) + rng.normal(0.0, 0.9, size=5)
>>> subject = Subject(rng.normal(size=(30, 5)), sums=sums, noisy=noisy)
>>> examination = examine(subject, Specification(sensitivity=1.0, noise_std=1.0))
>>> examination.passed, [finding.name for finding in examination.findings if not finding.passed]
(False, ['release less its sum'])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from discreet.audit.conformance import conformance
from discreet.audit.finding import ALPHA, Finding
from discreet.audit.neighbours import Records, number_of, take_rows
from discreet.audit.replay import Release, noise_depends_on_data, replay, replay_noisy
from discreet.audit.samplers import sampler_test
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import InvalidParameter, one_of, probability, real, whole
from discreet.guarantee import Neighbours, neighbours_named, sensitivity_factor
from discreet.plan.plan import Plan
from discreet.plan.stage import Sampling, Stage

Progress = Callable[[str], None]

NOT_COVERED = (
    "code that the subject did not hand in, and data sets other than those tried",
    "the accounting: what noise, sensitivity and sampling cost is the accountant's to prove",
    "settings tuned on the private data, metrics and logs that leave beside the model",
    "the unit of privacy: whether one person owns more records than declared",
    "floating-point leaks below the precision of these tests: the hardened arithmetic is proved instead",
)
"""What no examination says anything about."""


@dataclass(frozen=True)
class Specification:
    """Claimed properties of a release: sensitivity, noise and sampling.

    ``sensitivity`` and ``noise_std`` are of what the subject returns, so of the sum or of the sum divided by the
    declared batch size. Under replace-one neighbours the sensitivity of a sum clipped to C is 2 C.
    """

    sensitivity: float
    noise_std: float
    neighbours: Neighbours = "add-remove"
    law: str = "gaussian"
    grid: float | None = None
    sampling: Sampling | str = "poisson"
    rate: float | None = None
    records: int | None = None

    def __post_init__(self) -> None:
        for name in ("sensitivity", "noise_std"):
            object.__setattr__(self, name, real(name, getattr(self, name), above=0))
        neighbours_named(self.neighbours)
        one_of("law", self.law, ("gaussian", "laplace"))
        one_of("sampling", self.sampling, get_args(Sampling))

    @classmethod
    def of(cls, plan: Plan, stage: str | None = None, *, divided: bool = False) -> Specification:
        """Specification of a plan's stage; ``divided`` if the subject divides by the batch size."""
        if not isinstance(plan, Plan):
            raise InvalidParameter("plan", type(plan).__name__, "must be a Plan.")
        chosen: Stage = plan.stage(stage)
        unit = chosen.divisor if divided else 1.0
        factor = float(sensitivity_factor(plan.neighbours))
        return cls(
            factor * chosen.clip_norm / unit,
            chosen.noise_std_of_sum / unit,
            plan.neighbours,
            sampling=chosen.sampling,
            rate=chosen.rate,
            records=chosen.records,
        )


@dataclass(frozen=True)
class Subject:
    """An implementation to be examined, as the functions that it hands in. Each of them may be missing.

    ``records``  some examples, made up or public, as an array or a tuple of arrays with one record per row;
    ``sums``     records -> what is released of them, without the noise;
    ``noisy``    records -> the same with the noise, fresh in every call;
    ``noise``    () -> an array (steps, coordinates) from a whole run in which the data add nothing;
    ``batches``  () -> the row numbers of each batch of a whole run.
    """

    records: Records = field(repr=False)
    sums: Release | None = None
    noisy: Release | None = None
    noise: Callable[[], Any] | None = None
    batches: Callable[[], Iterable[Any]] | None = None
    name: str = "subject"


@dataclass(frozen=True)
class Examination:
    """Findings of all detectors, and the tests that could not run. ``passed``: none contradicts the claim."""

    subject: str
    findings: tuple[Finding, ...]
    not_covered: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """True when no detector contradicts the claim. That is not a proof."""
        return all(finding.passed for finding in self.findings)

    @property
    def alpha(self) -> float:
        """Upper bound on the probability that a correct subject fails."""
        return sum(finding.alpha for finding in self.findings)

    def __str__(self) -> str:
        verdict = "nothing contradicts the claim" if self.passed else "THE CLAIM IS CONTRADICTED"
        lines = [f"{self.subject}: {verdict} (false alarms: at most {self.alpha:g})"]
        lines += [f"  {finding}" for finding in self.findings]
        return "\n".join([*lines, "  not covered:", *(f"  - {item}" for item in self.not_covered)])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "subject": self.subject,
            "passed": self.passed,
            "alpha": self.alpha,
            "findings": [finding.to_dict() for finding in self.findings],
            "not_covered": list(self.not_covered),
        }


def examine(
    subject: Subject,
    claim: Specification,
    *,
    alpha: float = ALPHA,
    pairs: int = 200,
    draws: int = 20_000,
    hostile: bool = True,
    stream: RandomStream | None = None,
    progress: Progress | None = None,
) -> Examination:
    """Run every detector that the subject has something for.

    ``pairs`` neighbouring data sets are tried, with NaN and huge numbers unless ``hostile`` is False, and about
    ``draws`` numbers of noise are looked at. ``progress`` is told the name of each detector before it starts.

    Guarantee: a subject that is as claimed is contradicted with probability at most ``alpha``.
    """
    if not isinstance(subject, Subject) or not isinstance(claim, Specification):
        raise InvalidParameter("subject", type(subject).__name__, "must be a Subject, with a Specification.")
    number_of(subject.records)
    probability("alpha", alpha)
    whole("draws", draws, at_least=20)
    detectors = list(_detectors(subject, claim, pairs, draws, hostile, stream or system_stream()))
    if not detectors:
        raise InvalidParameter("subject", subject.name, "must hand in sums, noisy, noise or batches.")
    share = alpha / sum(chance for _, chance, _ in detectors) if any(c for _, c, _ in detectors) else alpha
    findings = []
    for name, _, detector in detectors:
        if progress is not None:
            progress(name)
        findings.append(replace(detector(share), name=name))
    return Examination(subject.name, tuple(findings), (*_what_else_to_try(subject, claim), *NOT_COVERED))


Detector = tuple[str, bool, Callable[[float], Finding]]


def _detectors(
    subject: Subject, claim: Specification, pairs: int, draws: int, hostile: bool, stream: RandomStream
) -> Iterator[Detector]:
    """Name, whether chance is involved, and what to call with its share of alpha."""
    records, sums, noisy, batches = subject.records, subject.sums, subject.noisy, subject.batches
    relation, std = claim.neighbours, claim.noise_std

    def of_noise(made: Callable[[], Any], factor: float = 1.0) -> Callable[[float], Finding]:
        return lambda share: conformance(
            made(), std * factor, alpha=share, law=claim.law, grid=claim.grid, stream=stream
        )

    if subject.noise is not None:
        yield "noise of a run", True, of_noise(subject.noise)
    if noisy is not None and sums is not None:
        yield "release less its sum", True, of_noise(lambda: _gaps(noisy, sums, records, draws))
    elif noisy is not None and claim.law == "gaussian":
        factor = float(np.sqrt(2))
        yield "two releases", True, of_noise(lambda: _gaps(noisy, noisy, records, draws), factor)
    if sums is not None:
        norm = "l1" if claim.law == "laplace" else "l2"
        yield (
            "sensitivity",
            False,
            lambda _: replay(
                sums,
                records,
                claim.sensitivity,
                neighbours=relation,
                norm=norm,
                pairs=pairs,
                hostile=hostile,
                stream=stream,
            ),
        )
    elif noisy is not None:
        yield (
            "sensitivity, seen through the noise",
            True,
            lambda share: replay_noisy(
                noisy,
                records,
                claim.sensitivity,
                std,
                neighbours=relation,
                alpha=share,
                pairs=min(pairs, 22),
                draws=max(20, min(100, draws // 100)),
                hostile=hostile,
                stream=stream,
            ),
        )
    if noisy is not None and relation == "add-remove":
        yield (
            "noise, with one record more",
            True,
            lambda share: noise_depends_on_data(noisy, records, alpha=share, draws=max(500, draws // 5)),
        )
    if batches is not None and claim.rate is not None and claim.records is not None:
        rate, rows = claim.rate, claim.records
        yield (
            "sampling",
            rate < 1,
            lambda share: sampler_test(
                batches(), rows, rate, sampling=claim.sampling, alpha=share, stream=stream
            ),
        )


def _gaps(noisy: Release, other: Release, records: Records, draws: int) -> NDArray[np.float64]:
    """Nothing but noise: releases less their sums, or two releases of the same records.

    The data sets vary, so that a release which is not its sum plus noise is found out here.
    """

    def gap(rows: int) -> NDArray[np.float64]:
        part = take_rows(records, np.arange(rows))
        return (np.asarray(noisy(part), np.float64) - np.asarray(other(part), np.float64)).reshape(-1)

    most = number_of(records)
    first = gap(most)
    calls = int(np.clip(draws // max(1, first.size), 10, 200))
    return np.array([first] + [gap(1 + index % most) for index in range(calls)])


def _what_else_to_try(subject: Subject, claim: Specification) -> Iterator[str]:
    """Tests that more arguments would have allowed."""
    if subject.noise is None and subject.noisy is None:
        yield "the noise: hand in `noisy` or `noise`"
    if subject.sums is None and subject.noisy is None:
        yield "the sensitivity: hand in `sums` or `noisy`"
    elif subject.sums is None:
        yield "small excesses of the sensitivity: hand in `sums`, with the noise switched off"
    if subject.batches is None:
        yield "who is in a batch: hand in `batches`"
    elif claim.rate is None or claim.records is None:
        yield "who is in a batch: the specification must declare rate and records"
