"""Steps of ``discreet fit``: read the declarations and the table, fit, write a folder."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from discreet.certificate import Certificate
from discreet.certificate.signatures import read_signing_key
from discreet.cli.events import delta_note, gaussian_budget
from discreet.cli.ledger import RUN_NAME, open_ledger
from discreet.cli.shell import MODEL, REPORT, CommandResult, ignore_interrupts, note, refuse_existing, table
from discreet.cli.watching import Spent, watch_chunks
from discreet.errors import InvalidParameter, LedgerUnavailable, one_of
from discreet.files import parse_json, read_text
from discreet.folders import insist_writable, whole_folder
from discreet.guarantee import Budget, Neighbours, Unit
from discreet.ledger import GaussianFilter, Ledger
from discreet.linear import (
    DeclarationWarning,
    PrivateAdditiveClassifier,
    PrivateAdditiveRegressor,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivatePoissonRegressor,
)
from discreet.linear.column_kinds import Numeric
from discreet.linear.fitted_model import FittedModel
from discreet.linear.model_folder import spending, write_model
from discreet.linear.out_of_core import OutOfCoreTable
from discreet.linear.partitions import Partitions
from discreet.linear.row_source import Source, store_rows
from discreet.linear.schema import TASKS, Schema
from discreet.linear.storage import Storage
from discreet.linear.tables import table_in
from discreet.report import Report

_CURVES = (PrivateAdditiveClassifier, PrivateAdditiveRegressor)
_CONFIDENCE, _LARGEST = 0.9, 10  # of the intervals that are printed; effects that are


def fit_table(
    table_file: Path,
    schema_file: Path,
    target: str | None,
    out: Path,
    task: str | None,
    family: str,
    ledger: str | None,
    key: Path | None,
    sign_with: Path | None,
    name: str,
    inference: bool = False,
    engine: str | None = None,
    scheduler: str | None = None,
    log: Path | None = None,
    **settings: Any,
) -> CommandResult:
    """Fit a model to a table, write it into the folder ``out``, and say what was spent.

    Guarantee: whatever is refused before the first release is refused by names and parameters. What is released
    is within the budget, also when the process is stopped at any moment.
    """
    refuse_existing("out", out, False, "a model was paid for and is never replaced: choose another name.")
    schema = read_schema(schema_file, target)
    unit: Unit = "record" if schema.unit is None else "person"
    budget = gaussian_budget(settings["epsilon"], settings["delta"], settings["neighbours"], unit=unit)
    signer = None if sign_with is None else read_signing_key(sign_with)
    task = task_of(schema, task)
    if inference and family != "linear":
        raise InvalidParameter("inference", True, "is for models with coefficients: add --model linear.")
    if inference:
        settings["inference"] = True
    refuse_half_a_cluster(engine, scheduler)
    _refuse_a_log_alone(log, scheduler, ledger)
    source = table_in(table_file) if scheduler is None else Partitions(table_file)
    insist_writable(out)
    with ExitStack() as stack:
        book = stack.enter_context(_ledger(ledger, key, budget, name))
        cluster = None if scheduler is None else stack.enter_context(_engine_at(scheduler, log))
        rows = source if isinstance(source, Partitions) else _read(source, schema)
        progress = stack.enter_context(Spent(book, budget).bar())
        model = estimator_for(task, schema, family, **settings, ledger=book, verbose=progress)
        notes = fit_and_note(model, rows, cluster)
        ignore_interrupts()  # all is paid for: it is written, and told, whatever is pressed now
        with whole_folder(out) as folder:
            files = [*write_model(model, folder, signer), REPORT]
            title = f"Privacy report of {type(model).__name__}"
            said = parse_json(read_text(folder / MODEL), MODEL)
            told = (*model.diagnosis_.notes, *filter(None, [model.diagnosis_.scores]))
            page = Report(model.certificate_, title, notes=told, model=said)
            page = page if signer is None else page.signed(signer)
            with suppress(LedgerUnavailable):  # the model was paid for, and is written
                book.issue("report", page.digest())
            page.save(folder / REPORT)
    notes += _of_delta(budget, model)
    for text in notes:
        note(text)
    return _answer(out, task, model, files, notes, ledger)


def preview_fit(
    records: int | None,
    best: float | None,
    guess: float | None,
    schema_file: Path,
    target: str | None,
    task: str | None,
    family: str,
    epsilon: float,
    delta: float,
    neighbours: Neighbours,
    **unused: Any,
) -> CommandResult:
    """Predict the accuracy at several epsilons from the declarations alone, with or without a table."""
    if records is None:
        raise InvalidParameter("records", None, "must say how many records there will be; none is counted.")
    schema = read_schema(schema_file, target)
    unit: Unit = "record" if schema.unit is None else "person"
    gaussian_budget(epsilon, delta, neighbours, unit=unit)  # refuses what fit would refuse
    budget = {"epsilon": epsilon, "delta": delta, "neighbours": neighbours}
    model = estimator_for(task_of(schema, task), schema, family, **budget)
    found = model.preview(records, best=best, guess=guess)
    return CommandResult(found.to_dict(), str(found))


def read_schema(path: Path, target: str | None) -> Schema:
    """The schema in a file, with its target."""
    try:
        schema = Schema.from_toml(read_text(path))
    except InvalidParameter as error:
        if error.name != "schema":
            raise InvalidParameter(error.name, error.value, f"{error.requirement} See {path}.") from None
        raise InvalidParameter("schema_file", str(path), error.requirement) from None
    wanted = target if target is not None else schema.target
    if wanted is None or wanted not in schema.columns:
        requirement = "must be a column of the schema; give --target, or write target = ... in the schema."
        raise InvalidParameter("target", wanted, requirement)
    return replace(schema, target=wanted)


def task_of(schema: Schema, task: str | None) -> str:
    """The task, which must go with the kind of the target."""
    numeric = isinstance(schema.columns[str(schema.target)], Numeric)
    if task is None:
        return "regression" if numeric else "classification"
    if numeric == (task == "classification"):
        remedy = (
            "bounds in the schema go with regression and counts, categories and flags with classification."
        )
        raise InvalidParameter("task", task, f"does not go with the target {schema.target!r}: {remedy}")
    return task


def estimator_for(task: str, schema: Schema, family: str, **settings: Any) -> Any:
    """The estimator for a task; all that it knows of the table is the schema.

    An additive one becomes a line by itself where the budget cannot carry curves, so ``"auto"`` is one as well.
    """
    place = TASKS.index(one_of("task", task, TASKS))
    if family == "linear":
        lines = (PrivateLogisticRegression, PrivateLinearRegression, PrivatePoissonRegressor)
        return lines[place](schema=schema, **settings)
    if task == "classification":
        return PrivateAdditiveClassifier(schema=schema, **settings)
    loss = "poisson" if task == "counts" else "squared"
    return PrivateAdditiveRegressor(schema=schema, loss=loss, **settings)


def fit_and_note(model: Any, rows: OutOfCoreTable | Partitions, engine: Any = None) -> list[str]:
    """Fit the model; what it has to say besides, which follows from released numbers."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", DeclarationWarning)
        model.fit(rows, engine=engine)
    notes = [str(warning.message) for warning in said if issubclass(warning.category, DeclarationWarning)]
    return [*notes, *model.diagnosis_.notes]


def refuse_half_a_cluster(engine: str | None, scheduler: str | None) -> None:
    """Raise where only one is given; no cluster is started here."""
    if engine is None and scheduler is not None:
        raise InvalidParameter("scheduler", scheduler, "goes with --engine dask.")
    if engine is not None and scheduler is None:
        remedy = (
            "needs --scheduler, the address of a cluster that runs; none is started here. On one machine: "
            "dask scheduler --host 127.0.0.1 --port 8786, dask worker tcp://127.0.0.1:8786, "
            "and --scheduler tcp://127.0.0.1:8786."
        )
        raise InvalidParameter("engine", engine, remedy)


def _refuse_a_log_alone(log: Path | None, scheduler: str | None, ledger: str | None) -> None:
    """Raise where nothing could go on from a log."""
    if log is not None and scheduler is None:
        raise InvalidParameter("log", str(log), "goes with --engine dask.")
    if log is not None and ledger is None:
        remedy = "goes with --ledger: what was paid before a fit was killed must still be known."
        raise InvalidParameter("log", str(log), remedy)


def _engine_at(scheduler: str, log: Path | None) -> AbstractContextManager[Any]:
    from discreet.adapters.dask_engine import engine_at  # which most fits do not need

    return engine_at(scheduler, log)


def _read(source: Source, schema: Schema) -> OutOfCoreTable:
    """The rows, encoded from here on."""
    cells = schema.to_read()
    return store_rows(watch_chunks("reading", source, cells), cells, Storage())


def _ledger(place: str | None, key: Path | None, budget: Budget, name: str) -> Ledger:
    """The ledger that is charged; without a place, one for this fit alone."""
    if not RUN_NAME.fullmatch(name):
        raise InvalidParameter("name", name, "must be 1 to 40 letters, digits and . _ -, such as 'fit-1'.")
    if place is None:
        return Ledger.in_memory(GaussianFilter(budget))
    return open_ledger(place, key, label=f"{name}:", begin=True)


def _of_delta(budget: Budget, model: Any) -> list[str]:
    """Return a warning about a large delta, based on the noisy record count that was paid for."""
    counts = model._model.counts
    if counts is None or counts.records < 3 * counts.noise_of_records:
        return []  # nothing that could be told from noise
    who = "people" if budget.unit == "person" else "records"
    said = delta_note(budget.delta, counts.records, f"number of {who}, a noisy count")
    return [] if said is None else [said]


def _answer(
    out: Path, task: str, model: Any, files: list[str], notes: list[str], ledger: str | None
) -> CommandResult:
    certificate: Certificate = model.certificate_
    spent = spending(certificate)
    data = {
        "out": out,
        "files": files,
        "task": task,
        "estimator": type(model).__name__,
        "chosen": _choice(model),
        "target": model.schema.target,
        "epsilon": certificate.guarantee.epsilon._asdict(),
        "delta": certificate.guarantee.delta,
        "neighbours": certificate.guarantee.neighbours,
        "unit": certificate.guarantee.unit,
        "spending": spent,
        **_summary(model),
        "certificate": certificate.digest(),
        "signed_by": [signature.public_key for signature in certificate.signatures],
        "notes": notes,
    }
    rows = [
        (s["stage"], str(s["releases"]), f"{s['noise_multiplier']:.4g}", f"{s['share']:.1%}") for s in spent
    ]
    checking = f"discreet verify {out}" + ("" if ledger is None else f" --ledger {ledger}")
    text = (
        f"{type(model).__name__} of {model.schema.target!r} on {_columns(model)}: {_choice(model)}\n"
        f"{certificate.headline}\n\n{table(('spent on', 'releases', 'noise multiplier', 'share'), rows)}\n\n"
        f"{_effects(model)}written to {out}: {', '.join(files)}\ncheck it: {checking}"
    )
    return CommandResult(data, text)


def _summary(model: Any) -> dict[str, Any]:
    """The largest effects of curves; of lines the coefficients, and their errors if they were paid for."""
    if isinstance(model, _CURVES):
        keys = ("column", "least", "at", "most", "at_most")
        return {"effects": [dict(zip(keys, row, strict=True)) for row in _curve_ends(model)]}
    told = {"coefficients": model.coefficients().to_dict()}
    return told | ({"summary": model.summary(_CONFIDENCE).to_dict()} if model.inference else {})


def _effects(model: Any) -> str:
    """The largest effects, and the summary if it was paid for."""
    if isinstance(model, _CURVES):
        return _of_curves(model)
    effects = model.coefficients()
    rows = [
        (row.name, f"{row.effect:.3g}", f"{max(row.values, key=abs):.3g}", row.unit)
        for row in effects.largest()
    ]
    scores = effects.outputs[0] if len(effects.outputs) == 1 else f"one of {len(effects.outputs)} scores"
    heads = (f"largest effects on {scores}", "end to end", "coefficient", "")
    summary = f"{model.summary(_CONFIDENCE)}\n\n" if model.inference else ""
    return f"{table(heads, rows)}\n\n{summary}"


def _of_curves(model: Any) -> str:
    rows = [
        (name, f"{low + 0.0:+.3g}", f"at {low_at}", f"{high + 0.0:+.3g}", f"at {high_at}")  # -0.0 is 0
        for name, low, low_at, high, high_at in _curve_ends(model)
        if low < high
    ]
    return f"{table(('largest effects on the score', 'from', '', 'to', ''), rows)}\n\n"


def _curve_ends(model: Any) -> list[tuple[str, float, str, float, str]]:
    """The ten largest effects of curves: column, what it adds at least, where, at most, and where."""
    shares, found = FittedModel.of(model).shares, []
    for name, effect in model.curves_.items():
        rare = {value for value in effect.at if shares.get(f"{name}={value}") == 0.0}
        (low_at, low), (high_at, high) = effect.ends(rare)
        found.append((name, low, low_at, high, high_at))
    return sorted(found, key=lambda row: row[1] - row[3])[:_LARGEST]


def _columns(model: Any) -> str:
    features, encoded = len(model.schema.features), len(model.coef_names_)
    plain = "1 feature" if features == 1 else f"{features} features"
    return plain if encoded == features else f"{plain}, encoded as {encoded} columns"


def _choice(model: Any) -> str:
    """Curves or lines, and why."""
    return str(getattr(model, "chosen_", "lines, as asked for"))
