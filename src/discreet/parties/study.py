"""A :class:`Study`: what several parties agree on before any of them shows anything. The same file everywhere.

>>> study = Study.from_toml('''
... [study]
... name = "readmission-2026"
... algorithm = "sgd2"
... [parties]                    # declared, public numbers of records
... hospital-a = 1200
... hospital-b = 800
... [privacy]
... epsilon = 1.0
... delta = 1e-6
... [training]
... rounds = 200
... clip_norm = 1.0
... [model]
... kind = "logistic"
... dimension = 20
... ''')
>>> study.records, study.privacy.against, study.aggregation.kind
(2000, 'coordinator', 'plain')
>>> Study.from_dict(study.to_dict()).digest() == study.digest()
True

Every number in it is public. The digest is the study's name in messages, ledgers and certificates: whoever changes
a word has another study, and the parties of this one refuse it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from os import PathLike
from typing import Any, Literal

from discreet.certificate.guarantees import Arithmetic
from discreet.core.noise import SPARED_DELTA, SPARED_DELTA_OF_FIT
from discreet.core.noise_shares import distance_of_message, grid_of_messages
from discreet.core.sampling import MAX_RECORDS
from discreet.errors import InvalidParameter, one_of, whole
from discreet.events import Gaussian
from discreet.files import digest, parse_toml, read_text
from discreet.guarantee import Budget
from discreet.parties.arrangement import Arrangement, groups_of
from discreet.parties.noise_scale import NoiseScale
from discreet.parties.notes import notes_noise
from discreet.parties.observation.observers import noise_for
from discreet.parties.study_sections import (
    ONE_RELEASE,
    Aggregation,
    Network,
    Privacy,
    Questions,
    Training,
    check_rules,
    make_section,
    refuse_words,
    section_of,
    set_fields,
)

FORMAT = "discreet study 2"
COORDINATOR = "coordinator"
"""The coordinator's name in a roster; no party can have it."""

_OLDER = (
    "A study of format 1 sent floating-point sums, whose low bits can show a record, so it cannot be gone on with. "
    "Agree on it anew: leave out the format, make new kits, and keep the ledgers, which remember what was spent."
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


@dataclass(frozen=True)
class Study:
    """What the parties agree on. ``parties`` maps their names, in one order for all, to declared numbers of records,
    or of persons, if they are what is protected.

    ``model`` says what is trained: ``kind`` and ``dimension`` (the length of the parameter vector), and whatever
    else a kind of model needs, such as names of columns; it belongs to the digest like everything else.

    With ``algorithm = "recipe"`` the coordinator fits the model as one table would be fitted, by ``questions`` that
    all parties answer; such a study has no training section and no dimension.
    """

    name: str
    algorithm: Literal["sgd1", "sgd2", "recipe"]
    parties: Mapping[str, int]
    privacy: Privacy
    training: Training
    model: Mapping[str, Any]
    aggregation: Aggregation = field(default_factory=Aggregation)
    network: Network = field(default_factory=Network)
    questions: Questions | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and _NAME.fullmatch(self.name)):
            raise InvalidParameter("name", self.name, "must be 1 to 40 letters, digits, _ and -.")
        one_of("algorithm", self.algorithm, ("sgd1", "sgd2", "recipe"))
        set_fields(self, parties=_checked_parties(self.parties))
        kinds = {"privacy": Privacy, "training": Training, "aggregation": Aggregation, "network": Network}
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise InvalidParameter(name, type(getattr(self, name)), f"must be a {kind.__name__}.")
        if not isinstance(self.questions, Questions | None):
            raise InvalidParameter("questions", type(self.questions), "must be Questions.")
        set_fields(self, model=_checked_model(self.model, self.algorithm != "recipe"))
        if self.aggregation.dropouts is None:
            any_sums = self.aggregation.kind == "plain" and self.algorithm != "recipe"
            spare = len(self.parties) - 1 if any_sums else 0
            set_fields(self, aggregation=replace(self.aggregation, dropouts=spare))
        if self.privacy.delta * max(self.parties.values()) >= 1:
            raise InvalidParameter(
                "delta", self.privacy.delta, "must be well below 1 / records of every party."
            )
        check_rules(self)
        _arrange(self)  # refuses all else that has no theorem

    @property
    def names(self) -> tuple[str, ...]:
        """The parties' names."""
        return tuple(self.parties)

    @property
    def records(self) -> int:
        """The declared number of records of all parties together: the public divisor."""
        return sum(self.parties.values())

    @property
    def dimension(self) -> int:
        """The length of the parameter vector; by the recipe, the most numbers that an answer has."""
        return int(self.model["dimension"]) if self.questions is None else self.questions.numbers

    @property
    def updates(self) -> int:
        """How many updates the model gets: rounds of SGD2, tokens of SGD1, by the recipe at most so many answers."""
        if self.questions is not None:
            return self.questions.releases
        if self.algorithm == "sgd2":
            return self.training.rounds or 0
        return self.training.tokens or self.records**2

    @property
    def dropouts(self) -> int:
        """So many parties may be missing at a time."""
        assert self.aggregation.dropouts is not None  # settled when the study was made
        return self.aggregation.dropouts

    @property
    def accounted_delta(self) -> float:
        """The delta for which events are accounted: a little is spared for discrete noise."""
        if self.algorithm == "recipe":
            return self.privacy.delta * (1 - SPARED_DELTA_OF_FIT)
        spared = SPARED_DELTA if self.privacy.arithmetic == "hardened" else 0.0
        return self.privacy.delta * (1 - spared)

    @cached_property
    def noise_scale(self) -> NoiseScale:
        """By the recipe: how a share of the budget becomes noise."""
        return NoiseScale.of(self.budget)

    def records_of(self, party: str) -> int:
        """The declared number of records of one party."""
        return self.parties[one_of("party", party, self.names)]

    @property
    def budget(self) -> Budget:
        """What the observer ``privacy.against`` may learn of one record."""
        return self.privacy.budget

    @property
    def coordinator(self) -> str:
        """The coordinator's address."""
        return self.network.coordinator

    @cached_property
    def arrangement(self) -> Arrangement:
        """The study as far as privacy depends on it, with its noise."""
        return _with_noise(self)

    @property
    def noise_multiplier(self) -> float:
        """The noise of a party's message in clip norms; with secure sums, the noise that the sum needs."""
        assert self.arrangement.noise_multiplier is not None
        return self.arrangement.noise_multiplier

    @property
    def shares(self) -> int:
        """So many shares make the noise of a secure sum, each of an honest party; a plain message has all of it."""
        if self.aggregation.kind == "plain":
            return 1
        return min(map(len, self.groups)) - self.dropouts - self.aggregation.colluders

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The groups of parties whose secure sums the coordinator sees; one, unless there are very many parties."""
        return groups_of(self.names)

    @cached_property
    def grid(self) -> float:
        """The steps in which hardened messages and sums count."""
        records = self.records if self.algorithm == "sgd2" else 1
        return grid_of_messages(Gaussian(self.noise_multiplier), self.training.clip_norm, records)

    @cached_property
    def arithmetic(self) -> Arithmetic:
        """How messages are computed, all of them together."""
        return self.arithmetic_of(self.updates)

    def arithmetic_of(self, releases: int) -> Arithmetic:
        """How so many releases of one party, or sums of all parties, are computed."""
        if self.privacy.arithmetic == "float":
            return Arithmetic()
        if self.algorithm == "recipe":
            return Arithmetic("hardened", self.noise_scale.distance)
        one = distance_of_message(
            Gaussian(self.noise_multiplier),
            self.training.clip_norm,
            self.grid,
            self.dimension,
            self.shares,
            len(self.parties),
        )
        seen = one * releases * self.privacy.persons_across_parties  # of all parties who know a person
        return Arithmetic("hardened", math.nextafter(min(seen, 0.5), 1.0))

    def to_dict(self) -> dict[str, Any]:
        """The whole study, defaults included, as plain data."""
        how = {"training": asdict(self.training)}
        if self.questions is not None:
            how = {"questions": self.questions.to_dict()}
        return {
            "format": FORMAT,
            "study": {"name": self.name, "algorithm": self.algorithm},
            "parties": dict(self.parties),
            "privacy": self.privacy.to_dict(),
            **how,
            "aggregation": asdict(self.aggregation),
            "model": dict(self.model),
            "network": asdict(self.network),
        }

    @classmethod
    def from_dict(cls, data: object) -> Study:
        """The inverse of :meth:`to_dict`. Unknown words are refused."""
        if not isinstance(data, Mapping):
            raise InvalidParameter("study", type(data), "must be a table of sections.")
        sections = dict(data)
        if sections.pop("format", FORMAT) != FORMAT:
            raise InvalidParameter("format", data["format"], f"must be {FORMAT!r}. {_OLDER}")
        head = section_of(sections, "study", required=True)
        asks = head.get("algorithm") == "recipe"
        training = dict(ONE_RELEASE) if asks else section_of(sections, "training", required=True)
        questions = make_section(Questions, "questions", section_of(sections, "questions")) if asks else None
        study = cls(
            name=head.pop("name", None),
            algorithm=head.pop("algorithm", None),
            parties=section_of(sections, "parties", required=True),
            privacy=make_section(Privacy, "privacy", section_of(sections, "privacy", required=True)),
            training=make_section(Training, "training", training),
            model=section_of(sections, "model", required=True),
            aggregation=make_section(Aggregation, "aggregation", section_of(sections, "aggregation")),
            network=make_section(Network, "network", section_of(sections, "network")),
            questions=questions,
        )
        refuse_words("study", head)
        refuse_words("the file", sections)
        return study

    @classmethod
    def from_toml(cls, text: str) -> Study:
        """A study from the text of its file."""
        return cls.from_dict(parse_toml(text, "study"))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Study:
        """Read a study from its TOML file."""
        return cls.from_toml(read_text(path, most_bytes=2**20))

    def digest(self) -> str:
        """SHA-256 of the canonical JSON: equal wherever the study is the same."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return digest(self.to_dict())


def _checked_parties(parties: object) -> dict[str, int]:
    if not isinstance(parties, Mapping) or not parties:
        raise InvalidParameter(
            "parties", parties, "must map the name of each party to its number of records."
        )
    for name in parties:
        if not (isinstance(name, str) and _NAME.fullmatch(name)) or name == COORDINATOR:
            needed = "a party's name is 1 to 40 letters, digits, _ and -, and not 'coordinator'."
            raise InvalidParameter("parties", name, needed)
    return {
        name: whole(f"parties.{name}", parties[name], at_least=1, at_most=MAX_RECORDS)
        for name in sorted(parties)
    }


def _checked_model(model: object, has_dimension: bool) -> dict[str, Any]:
    if not isinstance(model, Mapping) or not isinstance(model.get("kind"), str):
        raise InvalidParameter(
            "model", model, "must say its kind, such as kind = 'logistic', and its dimension."
        )
    checked = dict(model)
    if has_dimension:
        checked["dimension"] = whole("model.dimension", model.get("dimension"), at_least=1, at_most=2**27)
    elif "dimension" in model:
        raise InvalidParameter("model.dimension", model["dimension"], "belongs to sgd1 and sgd2.")
    try:
        digest(checked)
    except (TypeError, ValueError):
        raise InvalidParameter("model", model, "must be plain data, as in a TOML file.") from None
    return checked


def _arrange(study: Study) -> Arrangement:
    """The study without its noise, in the words of :mod:`discreet.parties.observation.observers`."""
    training = study.training
    only: dict[str, Any]
    if study.algorithm == "sgd1":
        only = {"schedule": training.schedule}
    elif study.algorithm == "recipe":
        only = {}
    else:
        weights = (
            None if training.weights == "records" else {n: 1 / count for n, count in study.parties.items()}
        )
        only = {"rate": training.rate, "weights": weights, "party_bound": training.party_bound}
        only["robust"] = study.aggregation.robust != "none"
    return Arrangement(
        study.algorithm,
        study.parties,
        rounds=1 if study.algorithm == "recipe" else study.updates,
        neighbours=study.privacy.neighbours,
        aggregation=study.aggregation.kind,
        dropouts=study.dropouts,
        colluders=study.aggregation.colluders,
        unit=study.privacy.unit,
        across=study.privacy.persons_across_parties,
        **only,
    )


def _with_noise(study: Study) -> Arrangement:
    """The arrangement with the noise that the study's budget or the notes ask for."""
    arrangement, privacy = _arrange(study), study.privacy
    if study.algorithm == "recipe":
        return arrangement.with_noise(study.noise_scale.event(1.0, 1).noise_multiplier)
    budget = replace(privacy.budget, delta=study.accounted_delta)
    if privacy.noise == "notes":
        return arrangement.with_noise(notes_noise(arrangement, budget))
    return arrangement.with_noise(noise_for(arrangement, budget, against=privacy.against))


def agreed_numbers(study: Study, party: str) -> dict[str, Any]:
    """The numbers of a study that one party enforces: :class:`~discreet.parties.party_plan.AgreedNumbers`."""
    arrangement, training, questions = study.arrangement, study.training, study.questions
    of_sgd1 = study.algorithm == "sgd1"
    return {
        "algorithm": study.algorithm,
        "budget": study.budget,
        "hardened": study.privacy.arithmetic == "hardened",
        "secure": study.aggregation.kind == "secure",
        "records": study.records_of(party),
        "all_records": study.records,
        "parties": len(study.parties),
        "dimension": study.dimension,
        "noise_multiplier": study.noise_multiplier,
        "clip_norm": training.clip_norm,
        "rounds": arrangement.tokens,
        "rate": training.rate,
        "party_bound": training.party_bound,
        "schedule": training.schedule,
        "most_uses": arrangement.cap if of_sgd1 else 0,
        "calls": arrangement.calls(party) if of_sgd1 else 0,
        "across": study.privacy.persons_across_parties,
        "group": next(group for group in study.groups if party in group),
        "smallest": arrangement.smallest_group,
        "dropouts": study.dropouts,
        "colluders": study.aggregation.colluders,
        "releases": 0 if questions is None else questions.releases,
        "kinds": () if questions is None else questions.kinds,
    }
