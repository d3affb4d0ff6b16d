"""Study files as text: for a new model, and for the evaluation of one."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from discreet.errors import InvalidParameter


def study_text(
    name: str,
    parties: tuple[str, ...],
    schema_file: Path,
    target: str | None,
    epsilon: float,
    delta: float,
    rounds: int | None,
    clip_norm: float | None,
    learning_rate: float | None,
    secure: bool,
    robust: bool,
    dropouts: int | None,
    party_bound: float | None,
    coordinator: str,
    across: int | None = None,
    algorithm: str | None = None,
    family: str | None = None,
    inference: bool = False,
    task: str | None = None,
) -> str:
    """The text of a new study file: by the recipe, unless a setting of SGD2 is given."""
    from discreet.adapters.joint_model import dimension
    from discreet.linear.column_kinds import Numeric
    from discreet.linear.schema import Schema
    from discreet.parties.optimizers import suggested_rate, suggested_rounds
    from discreet.parties.study import Study

    found = Schema.load(schema_file)
    schema = Schema(found.columns, target or found.target)
    if schema.target is None:
        raise InvalidParameter("target", None, "is needed: the column to be predicted.")
    of_sgd2 = {
        "rounds": rounds,
        "clip-norm": clip_norm,
        "learning-rate": learning_rate,
        "robust": robust or None,
        "party-bound": party_bound,
        "persons-across-parties": across,
    }
    chosen = [name for name, value in of_sgd2.items() if value is not None]
    if algorithm == "recipe" and chosen:
        raise InvalidParameter(chosen[0], of_sgd2[chosen[0]], "is a setting of --algorithm sgd2.")
    if algorithm != "sgd2" and not chosen:
        described = replace(found, target=schema.target)
        counts = dict(named_values(parties, "party", "NAME=RECORDS", int))
        budget = {"epsilon": epsilon, "delta": delta}
        return _recipe_text(
            name, counts, described, budget, secure, dropouts, coordinator, family, inference, task
        )
    for option, value in {"model": family, "inference": inference or None, "task": task}.items():
        if value is not None:
            raise InvalidParameter(option, value, "goes with --algorithm recipe, without settings of sgd2.")
    clip_norm = 1.0 if clip_norm is None else clip_norm
    kind = "linear" if isinstance(schema.columns[schema.target], Numeric) else "logistic"
    sections: dict[str, dict[str, Any]] = {
        "study": {"name": name, "algorithm": "sgd2"},
        "parties": dict(named_values(parties, "party", "NAME=RECORDS", int)),
        "privacy": {"epsilon": epsilon, "delta": delta, "against": "coordinator"},
        "training": {"rounds": 100 if rounds is None else rounds, "clip_norm": clip_norm},
        "aggregation": {
            "kind": "secure" if secure else "plain",
            "dropouts": 0 if secure else len(parties) - 1,
        },
        "network": {"coordinator": coordinator, "timeout": 10.0},
        "model": {"kind": kind, "dimension": dimension(schema), "target": schema.target},
    }
    if found.unit is not None:
        sections["privacy"] |= {"unit": "person", "persons_across_parties": across or 1}
        sections["model"]["unit"] = found.unit.column
    elif across is not None:
        raise InvalidParameter(
            "persons-across-parties", across, "needs a [unit] in the schema: whose a row is."
        )
    if dropouts is not None:
        sections["aggregation"]["dropouts"] = dropouts
    if robust:
        sections["aggregation"]["robust"] = "geometric-median"
    if party_bound is not None:
        sections["training"]["party_bound"] = party_bound
    if rounds is None:
        sections["training"]["rounds"] = suggested_rounds(Study.from_dict(sections), _steepest(schema))
    if learning_rate is None:
        learning_rate = suggested_rate(Study.from_dict(sections), _steepest(schema))
    sections["training"]["learning_rate"] = learning_rate
    return _text(sections, {key: column.to_dict() for key, column in schema.columns.items()})


def _recipe_text(
    name: str,
    parties: Mapping[str, int],
    schema: Any,
    budget: dict[str, float],
    secure: bool,
    dropouts: int | None,
    coordinator: str,
    family: str | None,
    inference: bool,
    task: str | None,
) -> str:
    """The text of a study by the recipe."""
    from discreet.adapters.joint_recipe import JointRecipe, kinds_for
    from discreet.cli.fitting import task_of
    from discreet.parties.study import Study

    task, family = task_of(schema, task), family or "auto"
    told = schema.to_dict()
    columns = told.pop("columns")
    model = {"kind": task, "family": family} | ({"inference": True} if inference else {}) | told
    sections: dict[str, dict[str, Any]] = {
        "study": {"name": name, "algorithm": "recipe"},
        "parties": dict(parties),
        "privacy": budget
        | {"neighbours": "add-remove", "against": "coordinator"}
        | ({} if schema.unit is None else {"unit": "person"}),
        "questions": {
            "kinds": list(kinds_for(schema, task, family, inference)),
            "releases": 400,
            "numbers": 2**18,
        },
        "aggregation": {"kind": "secure" if secure else "plain", "dropouts": dropouts or 0},
        "network": {"coordinator": coordinator, "timeout": 30.0},
        "model": model,
    }
    text = _text(sections, columns)
    JointRecipe.of(Study.from_toml(text))
    return text


def evaluation_text(
    model: Path,
    epsilon: float,
    delta: float | None,
    by: tuple[str, ...],
    parties: tuple[str, ...],
    secure: bool,
    coordinator: str | None,
    name: str | None,
) -> str:
    """The text of a study that evaluates the model in a folder, which a study has trained."""
    from discreet.adapters.joint_evaluation import JointEvaluation, layout_of
    from discreet.adapters.joint_recipe import files_in
    from discreet.linear.fitted_model import FittedModel, model_text
    from discreet.parties.study import Study

    about = model_text(model)
    if "study" not in about:
        remedy = "is no model of a study; `discreet evaluate` scores models of one table."
        raise InvalidParameter("model", str(model), remedy)
    trained, fitted = Study.from_dict(about["study"]), FittedModel.read(model)
    layout, declared = layout_of(fitted, by), fitted.schema.to_dict()
    scored: dict[str, Any] = {"target": declared["target"]}
    if trained.privacy.unit == "person":
        unit = trained.model["unit"]
        scored["unit"] = unit["column"] if isinstance(unit, Mapping) else unit
    if trained.algorithm == "recipe":
        scored["files"] = base64.b64encode(files_in(model).tobytes()).decode()
    else:
        scored["parameters"] = about["parameters"]
    counts = dict(named_values(parties, "party", "NAME=RECORDS", int))
    if unknown := sorted(set(counts) - set(trained.names)):
        raise InvalidParameter("party", unknown[0], f"must be one of {', '.join(trained.names)}.")
    sections: dict[str, dict[str, Any]] = {
        "study": {"name": name or f"{trained.name[:29]}-evaluation", "algorithm": "sgd2"},
        "parties": dict(trained.parties) | counts,
        "privacy": {
            "epsilon": epsilon,
            "delta": trained.privacy.delta if delta is None else delta,
            "neighbours": "add-remove",
            "against": "coordinator",
            "unit": trained.privacy.unit,
            "persons_across_parties": trained.privacy.persons_across_parties,
        },
        "training": {"rounds": 1, "clip_norm": 1.0, "learning_rate": 1.0},
        "aggregation": {"kind": "secure" if secure else "plain"},
        "network": {
            "coordinator": coordinator or trained.network.coordinator,
            "timeout": trained.network.timeout,
        },
        "model": {"kind": "evaluation", "dimension": layout.size, "by": list(by)} | scored,
    }
    text = _text(sections, declared["columns"])
    JointEvaluation.of(Study.from_toml(text))
    return text


def _text(sections: Mapping[str, Mapping[str, Any]], columns: Mapping[str, Any]) -> str:
    """A study file."""
    from discreet.parties.study import FORMAT

    written = [
        f"[{title}]\n" + "\n".join(f"{_word(key)} = {_toml(value)}" for key, value in section.items())
        for title, section in sections.items()
    ]
    declared = "\n".join(f"{_word(key)} = {_toml(column)}" for key, column in columns.items())
    return "\n\n".join([f"format = {_toml(FORMAT)}", *written, f"[model.columns]\n{declared}"]) + "\n"


def _steepest(schema: Any) -> float:
    """The largest learning rate: twice the inverse of the loss's curvature; for numbers, whose errors vary, 1."""
    from discreet.linear.column_kinds import Category, Numeric

    target = schema.columns[schema.target]
    if isinstance(target, Numeric):
        return 1.0
    return 4.0 if isinstance(target, Category) and len(target.values) > 2 else 8.0


def named_values(pairs: tuple[str, ...], option: str, form: str, kind: Any) -> list[tuple[str, Any]]:
    found = []
    for pair in pairs:
        name, separator, value = pair.partition("=")
        try:
            found.append((name, kind(value)))
        except ValueError:
            separator = ""
        if not separator or not name:
            raise InvalidParameter(option, pair, f"must be {form}.")
        if name in [before for before, _ in found[:-1]]:
            raise InvalidParameter(option, pair, f"names {name} a second time; leave one out.")
    return found


def _word(key: str) -> str:
    """A key as TOML writes it: bare if it can be."""
    return key if re.fullmatch("[A-Za-z0-9_-]+", key) else _toml(key)


def _toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_word(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)
