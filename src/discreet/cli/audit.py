"""``discreet audit``: attack a procedure, and look for the mistakes that attacks do not see."""

from __future__ import annotations

import importlib
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from discreet.cli.refusals import REFUSED
from discreet.cli.shell import CERTIFICATE, FILE, NUMBER, Command, CommandResult, progress
from discreet.errors import InvalidParameter, UnsupportedEvent
from discreet.files import parse_json, read_text

if TYPE_CHECKING:
    from discreet.adapters.audit_subjects import AuditTarget
    from discreet.audit import AuditResult
    from discreet.audit.examine import Examination, Specification, Subject
    from discreet.certificate import Certificate
    from discreet.plan.plan import Plan


class Audit(Command):
    """A command whose exit status is 1 where something contradicts the claim."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and print its answer."""
        answer = super().invoke(ctx)
        if isinstance(answer, CommandResult) and not answer.data["passed"]:
            ctx.exit(REFUSED)
        return answer


@click.command("audit", cls=Audit)
@click.argument("document", type=FILE, required=False)
@click.option(
    "--subject", help="Your own function, module:function, that returns a Subject and a Specification."
)
@click.option("--engine", type=click.Choice(["core", "linear"]), default="core", show_default=True)
@click.option("--stage", help="Stage of the plan, if it has several.")
@click.option(
    "--alpha", type=NUMBER, default=1e-3, show_default=True, help="Largest false-alarm rate of the detectors."
)
@click.option(
    "--pairs", type=NUMBER, default=200, show_default=True, help="Number of neighbouring data sets to try."
)
@click.option(
    "--draws", type=NUMBER, default=20_000, show_default=True, help="Number of noise samples to test."
)
@click.option(
    "--canaries", type=NUMBER, default=500, show_default=True, help="Number of canaries per run; 0 for none."
)
@click.option("--runs", type=NUMBER, default=4, show_default=True, help="Number of runs with canaries.")
@click.option(
    "--fits",
    type=NUMBER,
    default=200,
    show_default=True,
    help="Number of fits with extreme records, and of fits without.",
)
@click.option(
    "--confidence", type=NUMBER, default=0.99, show_default=True, help="Confidence of the bound on epsilon."
)
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
    fits: int,
    confidence: float,
) -> CommandResult:
    """Audit the library's implementation of a plan, a certificate or a model's folder, or your own function.

    \b
    discreet audit plan.json
    discreet audit model/
    discreet audit --subject my_training:subject

    For a certificate of `discreet fit`, the audit fits the same estimator many times. It uses synthetic records
    only. The exit status is 1 if a result contradicts the claim. The absence of a contradiction is not a proof:
    the accountant proves the guarantee, and the audit looks for mistakes in the code.
    """
    from discreet.plan.plan import Plan

    if (document is None) == (subject is None):
        raise InvalidParameter("subject", subject, "give exactly one of DOCUMENT and --subject.")
    settings = {"alpha": alpha, "pairs": pairs, "draws": draws}
    with progress() as bar:
        task = bar.add_task("audit", total=None)

        def told(name: str) -> None:
            bar.update(task, description=name)

        def counted(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        if subject is not None:
            return _answer(_of_user(subject, settings, told), None, "")
        assert document is not None
        found = _read(document)
        if not isinstance(found, Plan):
            return _of_fit(found, fits, confidence, settings, told, counted)
        plan = Plan((found.stage(stage),), found.delta, found.neighbours)
        examination, attacked = _of_plan(plan, engine, canaries, runs, settings, told)
        result = None
        if attacked is not None:
            told("canaries")
            result, attacked = _attack(plan, attacked, confidence, counted)
    return _answer(examination, result, "" if attacked is None else f"canaries in {attacked.steps} steps")


def _of_user(name: str, settings: dict[str, Any], told: Callable[[str], None]) -> Examination:
    from discreet.audit.examine import examine

    subject, specification = _users_subject(name)
    return examine(subject, specification, progress=told, **settings)


def _of_plan(
    plan: Plan, engine: str, canaries: int, runs: int, settings: dict[str, Any], told: Callable[[str], None]
) -> tuple[Examination, AuditTarget | None]:
    from discreet.adapters import audit_subjects as made
    from discreet.audit.examine import Specification, examine

    stage = plan.stage()
    if engine == "linear":
        subject = made.linear_subject(plan)
        attack = made.linear_attack(plan, canaries, runs) if canaries else None
    else:
        subject = made.core_subject(stage)
        attack = made.core_attack(stage, canaries, runs) if canaries else None
    return examine(subject, Specification.of(plan), progress=told, **settings), attack


def _of_fit(
    certificate: Certificate,
    fits: int,
    confidence: float,
    settings: dict[str, Any],
    told: Callable[[str], None],
    counted: Callable[[int, int], None],
) -> CommandResult:
    from discreet.adapters.audit_fit import audit_fit

    found = audit_fit(certificate, fits, confidence, **settings, progress=told, counted=counted)
    return _answer(
        found.examination,
        found.attack,
        f"attack on {2 * fits} models of made-up records" if found.attack else "",
    )


def _users_subject(name: str) -> tuple[Subject, Specification]:
    """Import ``module:function`` and return its Subject and Specification."""
    from discreet.audit.examine import Specification, Subject

    module, _, function = name.partition(":")
    if not (module and function):
        raise InvalidParameter("subject", name, "must be written as module:function.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise InvalidParameter("subject", name, f"cannot be imported ({type(error).__name__}).") from None
    if not (
        isinstance(made, tuple)
        and len(made) == 2
        and isinstance(made[0], Subject)
        and isinstance(made[1], Specification)
    ):
        raise InvalidParameter("subject", name, "must return a Subject and a Specification.")
    return made


def _attack(
    plan: Plan, attacked: AuditTarget, confidence: float, counted: Callable[[int, int], None]
) -> tuple[AuditResult | None, AuditTarget | None]:
    from discreet.audit import audit as attack

    try:
        result = attack(
            attacked.train,
            attacked.event,
            attacked.method,
            confidence,
            delta=plan.delta,
            neighbours=plan.neighbours,
            progress=counted,
        )
    except UnsupportedEvent:  # no canaries for this sampling
        return None, None
    return result, attacked


def _read(document: Path) -> Plan | Certificate:
    """The plan in a file, or that of a certificate; or a certificate of something else."""
    from discreet.certificate import Certificate
    from discreet.plan.plan import Plan

    text = read_text(document / CERTIFICATE if document.is_dir() else document)
    found = parse_json(text, "document")
    try:
        if not str(found.get("format", "")).startswith("discreet certificate"):
            return Plan.from_json(text)
        certificate = Certificate.from_json(text)
    except InvalidParameter as error:
        reason = f"holds neither a plan nor a certificate: {error.name} {error.requirement}"
        raise InvalidParameter("document", str(document), reason) from None
    return certificate.plan if certificate.plan.stages else certificate


def _answer(examination: Examination, result: AuditResult | None, attack: str) -> CommandResult:
    contradicted = result is not None and result.lower > result.claimed
    passed = examination.passed and not contradicted
    summary = _summary(examination, result, attack, passed)
    data = {
        "passed": passed,
        "summary": summary,
        "attack": None if result is None else {**result.to_dict(), "name": attack},
        **{key: value for key, value in examination.to_dict().items() if key != "passed"},
    }
    lines = [summary, ""]
    lines += [_row(finding.name, finding.passed, finding.explanation) for finding in examination.findings]
    if result is not None:
        lines.append(_row(attack, not contradicted, str(result)))
    lines += ["", "Not covered", *(_wrap(f"- {item}") for item in examination.not_covered)]
    return CommandResult(data, "\n".join(lines))


def _summary(examination: Examination, result: AuditResult | None, attack: str, passed: bool) -> str:
    """One or two sentences, which the report repeats."""
    tried = len(examination.findings) + (result is not None)
    verdict = "nothing contradicts the claim" if passed else "THE CLAIM IS CONTRADICTED"
    text = f"{examination.subject}: {tried} detectors, {verdict}."
    if result is not None:
        bound = "no bound" if result.lower <= 0 else f"epsilon is at least {result.lower:.3g}"
        void = ", which so few tries could not contradict" if result.void else ""
        text += f" {attack.capitalize()}: {bound}, claimed {result.claimed:.3g}{void}."
    return text


def _row(name: str, passed: bool, explanation: str) -> str:
    verdict = "as claimed" if passed else "CONTRADICTED"
    return _wrap(f"{name}: {verdict}. {explanation}")


def _wrap(text: str) -> str:
    return textwrap.fill(text, 110, subsequent_indent="  ")
