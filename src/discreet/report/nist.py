"""The questions of NIST SP 800-226, answered from the certificate; what only the owner knows is a line to fill in.

"Guidelines for Evaluating Differential Privacy Guarantees" (March 2025, doi 10.6028/NIST.SP.800-226) asks about every
part of a claim, from epsilon down to how the data were collected. The questions here are in our words: parameters,
unit, algorithm, composition, implementation, trust model, and what surrounds the release.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from discreet.guarantee import lower_text, protected_unit, upper_text
from discreet.report.blocks import Section, TableBlock, Text

if TYPE_CHECKING:
    from discreet.report.report import Report

Basis = Literal["computed", "certificate", "owner", "to be answered"]
"""Where an answer comes from: ``computed`` from the events of the certificate, by any verifier; stated in the
``certificate``, and as true as its signature or ledger entry; stated by the ``owner``; or from nobody yet.
"""

_BLANK = "_" * 24


@dataclass(frozen=True)
class ChecklistItem:
    """A question, its answer, and what the answer rests on."""

    topic: str
    question: str
    answer: str
    basis: Basis


def checklist(report: Report) -> tuple[ChecklistItem, ...]:
    """Every question with its answer."""
    found = []
    for topic, question, basis, answer in _QUESTIONS:
        text = answer(report)
        found.append(ChecklistItem(topic, question, text or _BLANK, basis if text else "to be answered"))
    return tuple(found)


def nist(report: Report) -> Section:
    """The checklist as a table."""
    words = (
        "The questions follow NIST SP 800-226, Guidelines for Evaluating Differential Privacy Guarantees (2025). "
        "“Computed” answers follow from the events of the certificate, and anybody can recompute them. “Certificate” "
        "answers are stated in it, and are as true as its signature or ledger entry. The owner states the others and "
        "fills in the empty lines."
    )
    rows = [(f"{line.topic}: {line.question}", line.answer, line.basis) for line in checklist(report)]
    return Section(
        "NIST SP 800-226", (Text(words), TableBlock(("question", "answer", "from"), rows, "NIST SP 800-226"))
    )


def _parameters(report: Report) -> str:
    guarantee = report.facts.guarantee
    lower, upper = guarantee.epsilon
    return (
        f"Epsilon is at most {upper_text(upper)} at delta {upper_text(guarantee.delta)}. No accounting of the "
        f"whole procedure can prove less than {lower_text(lower)}."
    )


def _meaning(report: Report) -> str:
    return report.facts.attack


def _unit(report: Report) -> str:
    guarantee = report.facts.guarantee
    unit = protected_unit(guarantee.unit, guarantee.group_size)
    rows = ", with all of their rows" if guarantee.unit == "person" else ""
    return f"One {unit}{rows}." if guarantee.group_size == 1 else f"A {unit}."


def _neighbours(report: Report) -> str:
    if report.facts.guarantee.neighbours == "add-remove":
        return (
            "Add-remove (unbounded): one data set has one unit more. The number of records is protected, too."
        )
    return "Replace-one (bounded): one unit is replaced by another. The number of records is public."


def _definition(report: Report) -> str:
    pure = report.facts.guarantee.delta == 0
    return "Pure differential privacy." if pure else "Approximate differential privacy, with the delta above."


def _algorithm(report: Report) -> str:
    return " ".join(report.facts.happened)


def _sensitivity(report: Report) -> str:
    clipped = (
        "The program clips what each unit adds to every released sum, for the data at hand, and scales the noise to "
        "that bound. Choices, such as quantiles, are drawn by the exponential mechanism from counts."
    )
    return " ".join([clipped, *(f"Checked while it ran: {check}." for check in report.certificate.checks)])


def _composition(report: Report) -> str:
    together = upper_text(report.certificate.together.epsilon.upper)
    return (
        "All releases of this procedure are accounted for together, each charged to a ledger before it happened. For "
        f"everything that the ledger allows, now and later, epsilon is at most {together}."
    )


def _floating_point(report: Report) -> str:
    if report.certificate.arithmetic.kind == "hardened":
        return (
            "The guarantee covers the released bits: integer sums on a public grid and exact discrete noise."
        )
    return (
        "The guarantee is for real numbers. The low bits of released floating-point numbers can reveal more."
    )


def _randomness(report: Report) -> str:
    if report.certificate.trusted:
        return "A cryptographic generator (AES-256 in counter mode) with keys from the operating system."
    return "A SEED DECIDED THE NOISE: there is no guarantee."


def _timing(report: Report) -> str:
    return (
        "Not covered: running time, memory use and errors outside of the program are not part of the proof."
    )


def _trust(report: Report) -> str:
    if report.observers:
        return "Several organisations, see “Who can learn what”: each observer has a guarantee of its own."
    return (
        "The central model: whoever runs the program sees the records. "
        f"The guarantee holds against anybody who {report.facts.guarantee.observer}."
    )


def _utility(report: Report) -> str:
    if report.evaluation:
        return "See “How good the model is”; the measurement was charged, too."
    return ""


def _limits(report: Report) -> str:
    return "See “What is not covered”."


def _record(report: Report) -> str:
    return f"The owner says: one record is {report.cover.record}." if report.cover.record else ""


def _purpose(report: Report) -> str:
    return f"The owner says: {report.cover.purpose}." if report.cover.purpose else ""


def _nothing(report: Report) -> str:
    return ""


_QUESTIONS: tuple[tuple[str, str, Basis, Callable[[Report], str]], ...] = (
    ("Parameters", "What are epsilon and delta?", "computed", _parameters),
    ("Parameters", "What do they mean for an attacker?", "computed", _meaning),
    ("Unit of privacy", "Who or what is protected?", "certificate", _unit),
    ("Unit of privacy", "Which data sets are neighbours?", "certificate", _neighbours),
    ("Definition", "Which variant of differential privacy is it?", "computed", _definition),
    ("Algorithm", "What was released, and by which mechanism?", "certificate", _algorithm),
    ("Algorithm", "How is the sensitivity bounded?", "certificate", _sensitivity),
    ("Composition", "How do several releases add up?", "computed", _composition),
    ("Implementation", "Does the proof cover floating-point arithmetic?", "certificate", _floating_point),
    ("Implementation", "Where does the randomness come from?", "certificate", _randomness),
    ("Implementation", "Are side channels covered?", "certificate", _timing),
    ("Trust model", "Who sees the records, and who is the guarantee against?", "certificate", _trust),
    ("Limits", "What does the guarantee not say?", "certificate", _limits),
    ("Unit of privacy", "Does each person own at most one protected unit?", "owner", _record),
    ("Purpose", "What are the results for?", "owner", _purpose),
    ("Parameters", "Why is this epsilon acceptable for this purpose?", "owner", _nothing),
    ("Utility", "How accurate are the results, and for which groups?", "owner", _utility),
    ("Bias", "Which groups are too small for the results to describe them?", "owner", _nothing),
    ("Access", "Who could read the records while the procedure was developed?", "owner", _nothing),
    ("Access", "How are records, ledger and keys stored, and who has access?", "owner", _nothing),
    ("Collection", "How were the data collected, and did people consent to this use?", "owner", _nothing),
    ("Composition", "Which other releases use the same people outside of this ledger?", "owner", _nothing),
)
