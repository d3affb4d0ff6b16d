"""``discreet audit``: attack a procedure, and look for the mistakes that attacks do not see."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from discreet.cli.refusals import REFUSED
from discreet.cli.shell import FILE, NUMBER, Answer, Command, progress
from discreet.documents import parsed, read_text
from discreet.errors import InvalidParameter, UnsupportedEvent

if TYPE_CHECKING:
    from discreet.audit import AuditResult
    from discreet.audit.examine import Examination
    from discreet.cli.audit_subjects import Attacked
    from discreet.plan import Plan


class Audit(Command):
    """A command whose exit status is 1 where something contradicts the claim."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and print its answer."""
        answer = super().invoke(ctx)
        if isinstance(answer, Answer) and not answer.data["passed"]:
            ctx.exit(REFUSED)
        return answer


@click.command("audit", cls=Audit)
@click.argument("document", type=FILE, required=False)
@click.option(
    "--subject", help="A function of yours, module:function, that returns a Subject and a Specification."
)
@click.option("--engine", type=click.Choice(["core", "linear"]), default="core", show_default=True)
@click.option("--stage", help="Which stage of the plan, if it has several.")
@click.option(
    "--alpha", type=NUMBER, default=1e-3, show_default=True, help="False alarms of the detectors, at most."
)
@click.option("--pairs", type=NUMBER, default=200, show_default=True, help="Neighbouring data sets to try.")
@click.option("--draws", type=NUMBER, default=20_000, show_default=True, help="Numbers of noise to look at.")
@click.option(
    "--canaries", type=NUMBER, default=500, show_default=True, help="Canaries in each run; 0 for none."
)
@click.option("--runs", type=NUMBER, default=4, show_default=True, help="Runs with canaries.")
@click.option("--confidence", type=NUMBER, default=0.99, show_default=True, help="Of the bound on epsilon.")
def audit(
    document: Path | None,
    subject: str | None,
    engine: str,
    stage: str | None,
    alpha: float,
    pairs: int,
    draws: int,
    canaries: int,
    runs: int,
    confidence: float,
) -> Answer:
    """Audit DOCUMENT, a plan or certificate, as this library carries it out; or a function of yours.

    \b
    discreet audit plan.json
    discreet audit --subject my_training:subject

    Only made-up records are used. The exit status is 1 if something contradicts the claim. No contradiction is not
    a proof: the guarantee comes from the accountant, and the audit looks for mistakes in the code.
    """
    if (document is None) == (subject is None):
        raise InvalidParameter("subject", subject, "give exactly one of DOCUMENT and --subject.")
    settings = {"alpha": alpha, "pairs": pairs, "draws": draws}
    with progress() as bar:
        task = bar.add_task("audit", total=None)

        def told(name: str) -> None:
            bar.update(task, description=name)

        if subject is not None:
            return _answer(_of_user(subject, settings, told), None, 0)
        assert document is not None
        plan = _plan(document, stage)
        examination, attacked = _of_plan(plan, engine, canaries, runs, settings, told)
        result = None
        if attacked is not None:
            told("canaries")
            result, attacked = _attack(plan, attacked, confidence)
    return _answer(examination, result, 0 if attacked is None else attacked.steps)


def _of_user(name: str, settings: dict[str, Any], told: Callable[[str], None]) -> Examination:
    from discreet.audit.examine import examine
    from discreet.cli.audit_subjects import users_subject

    subject, specification = users_subject(name)
    return examine(subject, specification, progress=told, **settings)


def _of_plan(
    plan: Plan, engine: str, canaries: int, runs: int, settings: dict[str, Any], told: Callable[[str], None]
) -> tuple[Examination, Attacked | None]:
    from discreet.audit.examine import Specification, examine
    from discreet.cli import audit_subjects as made

    stage = plan.stage()
    if engine == "linear":
        subject = made.linear_subject(plan)
        attack = made.linear_attack(plan, canaries, runs) if canaries else None
    else:
        subject = made.core_subject(stage)
        attack = made.core_attack(stage, canaries, runs) if canaries else None
    return examine(subject, Specification.of(plan), progress=told, **settings), attack


def _attack(plan: Plan, attacked: Attacked, confidence: float) -> tuple[AuditResult | None, Attacked | None]:
    from discreet.audit import audit as attack

    try:
        result = attack(
            attacked.train,
            attacked.event,
            attacked.method,
            confidence,
            delta=plan.delta,
            neighbours=plan.neighbours,
        )
    except UnsupportedEvent:  # no canaries for this sampling
        return None, None
    return result, attacked


def _plan(document: Path, stage: str | None) -> Plan:
    """The plan in a file, or that of a certificate, with only the stage in question."""
    from discreet.certificate import Certificate
    from discreet.plan import Plan

    text = read_text(document)
    found = parsed(text, "document")
    if str(found.get("format", "")).startswith("discreet certificate"):
        procedure = Certificate.from_json(text).procedure
        if not isinstance(procedure, Plan):
            remedy = "certifies a procedure that is not a plan; hand it in with --subject."
            raise InvalidParameter("document", str(document), remedy)
        plan = procedure
    else:
        plan = Plan.from_json(text)
    return Plan((plan.stage(stage),), plan.delta, plan.neighbours)


def _answer(examination: Examination, result: AuditResult | None, steps: int) -> Answer:
    contradicted = result is not None and result.lower > result.claimed
    passed = examination.passed and not contradicted
    summary = _summary(examination, result, steps, passed)
    data = {
        "passed": passed,
        "summary": summary,
        "attack": None if result is None else {**result.to_dict(), "steps": steps},
        **{key: value for key, value in examination.to_dict().items() if key != "passed"},
    }
    lines = [summary, ""]
    lines += [_row(finding.name, finding.passed, finding.explanation) for finding in examination.findings]
    if result is not None:
        lines.append(_row(f"canaries, {steps} steps", not contradicted, str(result)))
    lines += ["", "Not covered", *(_wrapped(f"- {item}") for item in examination.not_covered)]
    return Answer(data, "\n".join(lines))


def _summary(examination: Examination, result: AuditResult | None, steps: int, passed: bool) -> str:
    """One or two sentences, which the report repeats."""
    tried = len(examination.findings) + (result is not None)
    verdict = "nothing contradicts the claim" if passed else "THE CLAIM IS CONTRADICTED"
    text = f"{examination.subject}: {tried} detectors, {verdict}."
    if result is not None:
        bound = "no bound" if result.lower <= 0 else f"epsilon is at least {result.lower:.3g}"
        void = " (too few canaries to contradict it)" if result.void else ""
        text += f" Canaries in {steps} steps: {bound}, claimed {result.claimed:.3g}{void}."
    return text


def _row(name: str, passed: bool, explanation: str) -> str:
    verdict = "as claimed" if passed else "CONTRADICTED"
    return _wrapped(f"{name}: {verdict}. {explanation}")


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 110, subsequent_indent="  ")
