"""Small studies by the recipe: a synthetic table, cut among parties."""

from __future__ import annotations

from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet.adapters.joint_recipe import JointRecipe, kinds_for
from discreet.certificate.signatures import public_key_of
from discreet.core.randomness import RandomStream
from discreet.linear.row_source import Table
from discreet.linear.schema import Schema
from discreet.parties.coordinator import Coordinator
from discreet.parties.messages import DirectTransport, Roster
from discreet.parties.party import Party
from discreet.parties.study import Study

NAMES = ("ann", "bob", "cem")
COLUMNS: dict[str, dict[str, Any]] = {
    "a": {"bounds": [-4, 4]},
    "b": {"bounds": [-4, 4], "missing": "flag"},
    "c": {"bounds": [-4, 4]},
    "g": {"categories": ["x", "y", "z"]},
}
TARGETS = {
    "classification": {"flag": "yes"},
    "classes": {"categories": ["low", "middle", "high"]},
    "regression": {"bounds": [-20, 20]},
    "counts": {"bounds": [0, 40]},
}


def table(rows: int = 3000, target: str = "classification", seed: int = 0, persons: bool = False) -> Table:
    """A table with three numbers, a category and a target; some cells of ``b`` are missing."""
    rng = np.random.default_rng(seed)
    x, g = rng.normal(size=(rows, 3)), rng.integers(0, 3, rows)
    score = x[:, 0] - 0.7 * x[:, 1] + (g == 1) + x[:, 0] * x[:, 2]
    noisy = score + rng.normal(size=rows)
    answers: Any = {
        "classification": np.where(noisy > 0, "yes", "no").astype(object),
        "classes": np.array(["low", "middle", "high"], object)[np.searchsorted([-1.0, 1.0], noisy)],
        "regression": 2 * noisy,
        "counts": rng.poisson(np.exp(np.clip(0.4 * score, -3, 2))).astype(float),
    }[target]
    x[rng.random(rows) < 0.05, 1] = np.nan
    columns: dict[str, Any] = {"a": x[:, 0], "b": x[:, 1], "c": x[:, 2]}
    columns |= {"g": np.array(["x", "y", "z"], object)[g], "t": answers}
    if persons:
        columns["who"] = np.array([f"person {number // 3}" for number in range(rows)], object)
    return Table(columns, rows)


def part(whole: Table, rows: Any) -> Table:
    """Some rows of a table."""
    return Table({name: whole[name][rows] for name in whole.column_names}, len(rows))


def cut(whole: Table, names: tuple[str, ...] = NAMES) -> dict[str, Table]:
    """A table cut among parties, in the order of its rows."""
    places = np.array_split(np.arange(len(whole)), len(names))
    return {name: part(whole, rows) for name, rows in zip(names, places, strict=True)}


def study(
    target: str = "classification",
    family: str = "linear",
    *,
    names: tuple[str, ...] = NAMES,
    secure: bool = False,
    dropouts: int = 0,
    learn: bool = False,
    persons: bool = False,
    inference: bool = False,
    epsilon: float = 2.0,
    **questions: Any,
) -> Study:
    """A study by the recipe."""
    columns = {**COLUMNS, "t": TARGETS[target]}
    if learn:
        columns |= {"c": {"learn": True}}
        columns |= {"t": {"learn": True}} if target == "regression" else {}
    told: dict[str, Any] = {"columns": columns, "target": "t"} | ({"unit": "who"} if persons else {})
    schema = Schema.from_dict(told)
    task = "classification" if target in ("classification", "classes") else target
    return Study.from_dict(
        {
            "study": {"name": "small", "algorithm": "recipe"},
            "parties": dict.fromkeys(names, 1000),
            "privacy": {
                "epsilon": epsilon,
                "delta": 1e-5,
                "neighbours": "add-remove",
                "unit": "person" if persons else "record",
            },
            "questions": {"kinds": list(kinds_for(schema, task, family, inference))} | questions,
            "aggregation": {"kind": "secure" if secure else "plain", "dropouts": dropouts},
            "network": {"timeout": 0.1},
            "model": {"kind": task, "family": family, "inference": inference} | schema.to_dict(),
        }
    )


class Sites:
    """All parties of a study, and their coordinator, in one process."""

    def __init__(
        self, made: Study, tables: dict[str, Table], folder: Any = None, seed: int | None = 1
    ) -> None:
        self.study, self.joint, self._tables, self._folder = made, JointRecipe.of(made), tables, folder
        self.keys = {name: Ed25519PrivateKey.generate() for name in made.names}
        self.roster = Roster({name: public_key_of(key) for name, key in self.keys.items()})
        self.streams = {
            name: RandomStream() if seed is None else RandomStream(unsafe_seed=100 * seed + place)
            for place, name in enumerate(made.names)
        }
        self.parties = {name: self.party(name) for name in made.names}

    def party(self, name: str) -> Party:
        """A party, or the same one after a restart."""
        ledger = log = None
        if self._folder is not None:
            ledger, log = self._folder / f"{name}.ledger", self._folder / f"{name}-answers"
        holder = self.joint.table_of(self._tables[name])
        key, stream = self.keys[name], self.streams[name]
        return Party(name, self.study, holder, ledger, key, self.roster, stream=stream, log=log)

    def restart(self, name: str) -> None:
        """Kill a party and start it again with its ledger and its log."""
        self.parties[name].ledger.close()
        self.parties[name] = self.party(name)

    def transport(self) -> DirectTransport:
        """Calls whoever the parties are at the time."""
        return DirectTransport({name: self._answer(name) for name in self.study.names})

    def _answer(self, name: str) -> Any:
        return lambda frame: self.parties[name].answer(frame)

    def coordinator(self, state: Any = None, transport: Any = None, **options: Any) -> Coordinator:
        """A coordinator, which goes on from its state."""
        wire = self.transport() if transport is None else transport
        return Coordinator(self.study, wire, self.roster, state, strategy=self.joint.strategy, **options)
