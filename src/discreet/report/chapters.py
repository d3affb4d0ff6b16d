"""Sections of the report, in the order of :data:`SECTIONS`.

A section is a function of the report that makes a :class:`~discreet.report.blocks.Section`, or None where there is
nothing to say. To add one, write such a function in a module of its own and name it in :data:`SECTIONS`. What it
shows has to follow from the certificate, or from the texts that the report was given: nothing private is at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from discreet.charts import Series, line_chart
from discreet.guarantee import protected_unit, upper_text
from discreet.report.blocks import Block, Bullets, CodeBlock, FigureBlock, Section, TableBlock, Text
from discreet.report.model_sections import curves, effects, how_good
from discreet.report.nist import nist
from discreet.report.risks import risks

if TYPE_CHECKING:
    from discreet.report.report import Report


def promise(report: Report) -> Section:
    """Epsilon and delta in words, for whom, against whom."""
    facts = report.facts
    return Section(
        "The guarantee",
        (
            Text(facts.promise),
            *(Text(caution, "caution") for caution in facts.cautions),
            Text(facts.protected, lead="Who is protected."),
            Text(facts.against, lead="Against whom."),
        ),
    )


def unit(report: Report) -> Section | None:
    """State the guarantee for a person who owns several records."""
    if not report.facts.several:
        return None
    rows = [
        (
            f"{one.group_size} records",
            f"ε ≤ {upper_text(one.epsilon.upper, 3)}",
            f"δ ≤ {upper_text(one.delta, 3)}",
        )
        for one in report.facts.several
    ]
    words = (
        "A person may own several records, such as visits, purchases or years. All records of such a person together "
        "are protected less. The following bounds are proved for them:"
    )
    return Section(
        "People with several records",
        (Text(words), TableBlock(("all of", "epsilon", "delta"), rows, "several records")),
    )


def attacker(report: Report) -> Section:
    """The best attack, in words and as a curve."""
    facts = report.facts
    guess = Series("guessing", ((0.0, 0.0), (1.0, 1.0)), "line-2")
    region = Series("upper bound on every attack", facts.roc, "line-1")
    axes = ("false alarms", "records found")
    chart = line_chart("What the best attack can do", [guess, region], *axes, description=facts.attack)
    words = (
        "The curve is proved: every attack lies on or below it. The closer the curve is to the dashed line, the "
        "better the protection."
    )
    return Section("What an attacker can do", (Text(facts.attack), FigureBlock(chart, words)))


def what_happened(report: Report) -> Section:
    """List the releases by stage."""
    facts = report.facts
    blocks: list[Block] = [Text(sentence) for sentence in facts.happened]
    unit = protected_unit(facts.guarantee.unit, facts.guarantee.group_size)
    if facts.stages:
        rows = [
            (one.name, one.what, f"{one.releases:,}", f"{one.noise_multiplier:.4g}", f"{one.share:.1%}")
            for one in facts.stages
        ]
        head = ("stage", "what was released, with noise", "releases", "noise", "share of the budget")
        blocks.insert(1, TableBlock(head, rows, "stages"))
        blocks.insert(
            2,
            Text(
                f"The noise is Gaussian. Its standard deviation is in units of the most that one {unit} can "
                "add to the released sum.",
                "soft",
            ),
        )
    if len(facts.spending) > 1:
        line = [Series("epsilon proved so far", facts.spending)]
        words = f"Epsilon grows to {upper_text(facts.spending[-1][1])} at the last step."
        chart = line_chart("Epsilon over training", line, "steps taken", "epsilon", description=words)
        delta = upper_text(facts.guarantee.delta, 3)
        blocks.append(FigureBlock(chart, f"Epsilon proved for the steps up to each point, at delta {delta}."))
    return Section("What happened", tuple(blocks))


def observers(report: Report) -> Section | None:
    """The observer table of several parties."""
    if not report.observers:
        return None
    rows = [_observer(row) for row in report.observers["observers"]]
    words = (
        "Several organisations took part. The table bounds what each observer can learn about the record of another "
        "party:"
    )
    return Section(
        "Who can learn what", (Text(words), TableBlock(("Observer", "Sees", "Guarantee"), rows, "observers"))
    )


def table_notes(report: Report) -> Section | None:
    """List the notes of a fit's diagnosis."""
    if not report.notes:
        return None
    words = "The released, noisy numbers show the following about the table. Their privacy cost was charged:"
    return Section("The table", (Text(words), Bullets(report.notes)))


def audit(report: Report) -> Section | None:
    """Summarise the results of attacks on the procedure."""
    if not report.audit:
        return None
    words = "An audit finds faults. It cannot prove their absence. The guarantee above comes from the proof."
    found = f"The procedure was attacked on synthetic records. {report.audit['summary']}"
    return Section("Audit", (Text(found), Text(words, "soft")))


def not_covered(report: Report) -> Section:
    """List what the guarantee does not cover."""
    return Section("What is not covered", (Bullets(report.facts.not_covered),))


def verifying(report: Report) -> Section:
    """Give the commands that recompute every number."""
    facts = report.facts
    commands = (
        "sha256sum discreet-*.whl  # compare it\n"
        "pip install ./discreet-*.whl\n"
        "discreet verify report.html --signed-by KEY\n"
        "discreet verify report.html --ledger LEDGER"
    )
    words = (
        "You do not have to trust this page. It contains its certificate. Anybody who has the page can recompute the "
        "guarantee on any machine, with Discreet in the version named below or a later one. Get Discreet from your "
        "organisation's package index, or as a wheel whose SHA-256 you received from somebody you trust. Discreet is "
        "not published on the public index: a package of this name there would belong to somebody else."
    )
    trust = (
        "The verdict states for each line whether it was computed, is in the ledger, is signed, or is only claimed. "
        "KEY is the public key of somebody you trust. Get it from that person, not from this page. Without a "
        "signature on the page or an entry in the ledger, the owner's words and every section that does not follow "
        "from the certificate are only claimed."
    )
    blocks: list[Block] = [Text(words), CodeBlock(commands), Text(trust, "soft")]
    if facts.findings:
        blocks += [
            Text("The program that wrote this page found the following, without a ledger or a key:"),
            Bullets(facts.findings),
        ]
    return Section("How to verify", tuple(blocks))


def signing(report: Report) -> Section:
    """List the signing keys and leave a line for a handwritten signature."""
    keys = [signature.public_key for signature in report.certificate.signatures]
    said = (
        "The certificate is signed (Ed25519) by the owner of the key " + ", and of the key ".join(keys) + "."
        if keys
        else "The certificate carries no electronic signature; discreet fit --sign-with KEYFILE makes one."
    )
    line = "_" * 24
    rows = [("Responsible for the data", line, line), ("Privacy officer", line, line)]
    return Section(
        "Signatures",
        (Text(said), TableBlock(("who", "name and date", "signature"), rows, "lines for signatures")),
    )


def details(report: Report) -> Section:
    """Everything, by its name."""
    return Section("Details", (TableBlock(("", ""), report.facts.details, "all numbers"),))


SECTIONS: tuple[Callable[[Report], Section | None], ...] = (
    promise,
    unit,
    risks,
    attacker,
    what_happened,
    effects,
    curves,
    how_good,
    observers,
    table_notes,
    audit,
    not_covered,
    nist,
    signing,
    verifying,
    details,
)
"""What a report says, in order."""


def _observer(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """A row of the observer table in words."""
    said, note = "no protection", str(row.get("note") or "")
    if row.get("epsilon") is not None:
        said = f"epsilon at most {upper_text(row['epsilon'])} at delta {upper_text(row['delta'])}"
        said += f" ({note})" if note else ""
    elif note:
        said = note
    return row["observer"], row["sees"], said
