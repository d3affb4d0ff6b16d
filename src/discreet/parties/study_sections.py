"""The sections of a study file, each checked by itself: privacy, training, aggregation, network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from discreet.core.clipping import clip_norm_of
from discreet.errors import InvalidParameter, one_of, probability, real, whole
from discreet.guarantee import Budget, Neighbours, Unit, neighbours_named, unit_named
from discreet.parties.arrangement import least_parties, withstands_lies
from discreet.parties.observation.observer_views import OBSERVERS

if TYPE_CHECKING:
    from discreet.parties.study import Study


MOST_ROUNDS = 10**12

Section = TypeVar("Section")


@dataclass(frozen=True)
class Privacy:
    """The budget, and the observer for whom the noise is calibrated (:mod:`discreet.parties.observation`).

    ``noise`` is ``"calibrated"``, as small as the certified accountant allows, or ``"notes"``, the formulas of
    the lecture notes, whose true cost the table of observers shows.

    ``arithmetic`` is ``"hardened"``: messages are whole multiples of a public grid with discrete noise, and what is
    promised holds for their bits. With ``"float"`` it is proved for real numbers only, and the low bits of a message
    can show a record with certainty; every page that names an epsilon says so then.

    ``unit`` is what is protected: one ``"record"``, or one ``"person"`` with all of their rows, where parties declare
    how many persons they have and know whose each row is. A person may be known to ``persons_across_parties`` of the
    parties at most, and is protected against what all of these release together.
    """

    epsilon: float
    delta: float
    neighbours: Neighbours = "replace-one"
    against: str = "coordinator"
    noise: Literal["calibrated", "notes"] = "calibrated"
    arithmetic: Literal["hardened", "float"] = "hardened"
    unit: Unit = "record"
    persons_across_parties: int = 1

    def __post_init__(self) -> None:
        unit_named(self.unit)
        across = whole("persons_across_parties", self.persons_across_parties, at_least=1)
        set_fields(self, persons_across_parties=across)
        if across > 1 and self.unit != "person":
            raise InvalidParameter("persons_across_parties", across, "needs unit = 'person'.")
        set_fields(
            self, epsilon=real("epsilon", self.epsilon, above=0), delta=probability("delta", self.delta)
        )
        neighbours_named(self.neighbours)
        one_of("noise", self.noise, ("calibrated", "notes"))
        one_of("arithmetic", self.arithmetic, ("hardened", "float"))
        one_of("against", self.against, OBSERVERS)

    @property
    def budget(self) -> Budget:
        """The budget as the accountant wants it."""
        return Budget(self.epsilon, self.delta, self.neighbours, unit=self.unit)

    def to_dict(self) -> dict[str, Any]:
        """The section; words that older versions did not know are left out where they change nothing."""
        usual = {"unit": "record", "persons_across_parties": 1}
        return {name: value for name, value in asdict(self).items() if usual.get(name) != value}


@dataclass(frozen=True)
class Training:
    """How the model is trained.

    SGD2 makes ``rounds`` updates with everybody's sum, over records that each party draws with probability
    ``rate``. SGD1 makes ``tokens`` updates (default: the square of the number of records) with one record each;
    ``schedule`` says who chooses it. The model stays in the ball of ``radius`` around 0, if there is one.
    With ``party_bound`` (SGD2) each party cuts its whole sum to so many clip norms before it adds noise.
    """

    clip_norm: float
    rounds: int | None = None
    radius: float | None = None
    learning_rate: float = 0.1
    optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    rate: float = 1.0
    weights: Literal["records", "equal"] = "records"
    steps: Literal["constant", "notes-convex", "notes-strongly-convex"] = "constant"
    strong_convexity: float | None = None
    schedule: Literal["uniform", "balanced", "private"] = "balanced"
    tokens: int | None = None
    party_bound: float | None = None

    def __post_init__(self) -> None:
        set_fields(self, clip_norm=clip_norm_of("clip_norm", self.clip_norm))
        set_fields(self, learning_rate=real("learning_rate", self.learning_rate, above=0))
        set_fields(self, rate=real("rate", self.rate, at_least=1e-12, at_most=1))
        for name in ("rounds", "tokens"):
            if getattr(self, name) is not None:
                set_fields(self, **{name: whole(name, getattr(self, name), at_least=1, at_most=MOST_ROUNDS)})
        for name in ("radius", "strong_convexity", "party_bound"):
            if getattr(self, name) is not None:
                set_fields(self, **{name: real(name, getattr(self, name), above=0)})
        one_of("optimizer", self.optimizer, ("sgd", "momentum", "adam"))
        one_of("weights", self.weights, ("records", "equal"))
        one_of("steps", self.steps, ("constant", "notes-convex", "notes-strongly-convex"))
        one_of("schedule", self.schedule, ("uniform", "balanced", "private"))
        self._check_steps()

    def _check_steps(self) -> None:
        if self.steps == "notes-convex" and self.radius is None:
            raise InvalidParameter("radius", None, "steps = 'notes-convex' follow from it; name one.")
        if self.steps == "notes-strongly-convex" and self.strong_convexity is None:
            needed = "steps = 'notes-strongly-convex' follow from it; name the strong convexity of one record's loss."
            raise InvalidParameter("strong_convexity", None, needed)
        if self.steps != "constant" and self.optimizer != "sgd":
            raise InvalidParameter("optimizer", self.optimizer, "must be 'sgd' for the steps of the notes.")


@dataclass(frozen=True)
class Aggregation:
    """``"plain"``: the coordinator sees every party's noisy sum. ``"secure"``: it sees only the sum of the sums.

    ``dropouts`` parties may be missing at a time; a round from which more are missing changes nothing. Unless given
    it is all but one party with plain sums, and none with secure ones: the fewer may be missing, the more noise of
    others hides a record from those who see only the model, and the less noise a secure sum needs.
    ``colluders`` may collude with the coordinator in a secure study, and everybody else is still protected. More than
    32 parties make secure sums by groups, and the coordinator sees the sum of each group, which has all of the noise.
    ``robust = "geometric-median"`` (plain SGD2) keeps parties that lie from leading the model astray, as long as they
    have less than half of the weight.
    """

    kind: Literal["plain", "secure"] = "plain"
    dropouts: int | None = None
    colluders: int = 0
    robust: Literal["none", "geometric-median"] = "none"

    def __post_init__(self) -> None:
        one_of("kind", self.kind, ("plain", "secure"))
        one_of("robust", self.robust, ("none", "geometric-median"))
        if self.dropouts is not None:
            set_fields(self, dropouts=whole("dropouts", self.dropouts, at_least=0))
        set_fields(self, colluders=whole("colluders", self.colluders, at_least=0))


@dataclass(frozen=True)
class Questions:
    """Limits of the questions in a study by the recipe.

    The coordinator asks one question after the other, and chooses each by the released answers to those before.
    ``releases`` are all answers of a party, of at most ``numbers`` each; ``kinds`` are the queries that it answers,
    by their names. What is not listed is refused, and so is whatever the budget does not cover.
    """

    kinds: tuple[str, ...]
    releases: int = 400
    numbers: int = 2**18

    def __post_init__(self) -> None:
        kinds = self.kinds
        named = isinstance(kinds, list | tuple) and all(isinstance(kind, str) and kind for kind in kinds)
        if not named or not kinds or len(set(kinds)) < len(kinds):
            raise InvalidParameter("kinds", kinds, "must list the names of queries, each of them once.")
        set_fields(self, kinds=tuple(sorted(kinds)))
        set_fields(self, releases=whole("releases", self.releases, at_least=1, at_most=10_000))
        set_fields(self, numbers=whole("numbers", self.numbers, at_least=1, at_most=2**27))

    def to_dict(self) -> dict[str, Any]:
        """The section."""
        return {"kinds": list(self.kinds), "releases": self.releases, "numbers": self.numbers}


ONE_RELEASE: dict[str, Any] = {"clip_norm": 1.0, "rounds": 1}
"""The training section of a study by the recipe, which has none.

All its releases together are as private as one sum of records of norm 1 that spends the whole budget.
"""


@dataclass(frozen=True)
class Network:
    """Where the coordinator is found, and after how many seconds a silent party counts as missing."""

    coordinator: str = "localhost:8443"
    timeout: float = 10.0

    def __post_init__(self) -> None:
        host, _, port = str(self.coordinator).rpartition(":")
        if not (isinstance(self.coordinator, str) and host and port.isdigit() and 0 < int(port) < 2**16):
            raise InvalidParameter("coordinator", self.coordinator, "must be host:port.")
        set_fields(self, timeout=real("timeout", self.timeout, above=0, at_most=86_400))


def set_fields(target: object, **values: object) -> None:
    """Set fields of a frozen object while it is made."""
    for name, value in values.items():
        object.__setattr__(target, name, value)


def section_of(sections: dict[str, Any], name: str, required: bool = False) -> dict[str, Any]:
    """Take a section out of a file."""
    found = sections.pop(name, None)
    if found is None and not required:
        return {}
    if not isinstance(found, Mapping):
        raise InvalidParameter(name, found, f"a study needs the section [{name}].")
    return dict(found)


def make_section(kind: type[Section], name: str, values: dict[str, Any]) -> Section:
    """The section as an object; words that it does not know are refused."""
    known = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    refuse_words(name, {word: value for word, value in values.items() if word not in known})
    try:
        return kind(**values)
    except TypeError as error:
        missing = str(error).rpartition(":")[2].strip()
        raise InvalidParameter(name, values, f"lacks {missing}.") from None


def refuse_words(where: str, words: Mapping[str, Any]) -> None:
    """Raise if there are any."""
    if words:
        raise InvalidParameter(where, sorted(words)[0], "is not a word that a study knows here.")


# Which words of a study go together. What an algorithm would ignore is refused, and what has no theorem.


def check_rules(study: Study) -> None:
    """Raise unless all sections fit the algorithm and one another."""
    training, privacy, secure = study.training, study.privacy, study.aggregation.kind == "secure"
    if study.algorithm == "recipe":
        _check_recipe(study)
    elif study.questions is not None:
        raise InvalidParameter("questions", "given", "belong to algorithm = 'recipe'.")
    if privacy.unit == "person" and privacy.arithmetic == "float":
        raise InvalidParameter("arithmetic", "float", "must be 'hardened' for unit = 'person'.")
    if study.algorithm == "sgd1":
        if privacy.neighbours != "replace-one":
            needed = "must be 'replace-one' for sgd1, which draws among a public number of records."
            raise InvalidParameter("neighbours", privacy.neighbours, needed)
        if training.rate != 1 or training.rounds is not None or training.weights != "records":
            raise InvalidParameter("training", "rate, rounds, weights", "belong to sgd2; sgd1 has tokens.")
        if training.party_bound is not None:
            raise InvalidParameter("party_bound", training.party_bound, "belongs to sgd2, which sends sums.")
        if study.aggregation.robust != "none":
            raise InvalidParameter(
                "robust", study.aggregation.robust, "needs sgd2: sgd1 hears one at a time."
            )
        if secure:
            raise InvalidParameter("aggregation", "secure", "needs sgd2: in sgd1 one party speaks at a time.")
        return
    if training.rounds is None:
        raise InvalidParameter("rounds", None, "sgd2 needs the number of rounds.")
    if training.tokens is not None:
        raise InvalidParameter("tokens", training.tokens, "belongs to sgd1; sgd2 has rounds.")
    if training.rate < 1 and privacy.neighbours != "add-remove":
        needed = "must be 'add-remove' for rate < 1: records are drawn by independent coins."
        raise InvalidParameter("neighbours", privacy.neighbours, needed)
    if privacy.arithmetic == "float":
        if secure:
            raise InvalidParameter("arithmetic", "float", "needs plain sums: secure ones add whole numbers.")
        if training.party_bound is not None:
            raise InvalidParameter(
                "arithmetic", "float", "must be 'hardened' for a party_bound to be proved."
            )
    if study.aggregation.robust != "none":
        _check_robust(study)
    if secure:
        _check_secure(study)
    if secure and training.weights == "equal":
        raise InvalidParameter(
            "weights", "equal", "needs plain aggregation: a secure sum has one weight for all."
        )


def _check_recipe(study: Study) -> None:
    """Questions are answered by sums of integers with Gaussian noise, calibrated against the coordinator."""
    privacy = study.privacy
    if study.questions is None:
        raise InvalidParameter(
            "questions", None, "are needed: a study by the recipe lists what may be asked."
        )
    if study.training != Training(**ONE_RELEASE):
        raise InvalidParameter("training", "given", "belongs to sgd1 and sgd2; a recipe has no settings.")
    needed = {"against": "coordinator", "noise": "calibrated", "arithmetic": "hardened"}
    for name, value in needed.items():
        if getattr(privacy, name) != value:
            raise InvalidParameter(
                name, getattr(privacy, name), f"must be {value!r} for algorithm = 'recipe'."
            )
    if privacy.persons_across_parties > 1:
        raise InvalidParameter("persons_across_parties", privacy.persons_across_parties, "needs sgd2.")
    if study.aggregation.robust != "none":
        raise InvalidParameter("robust", study.aggregation.robust, "needs sgd2: answers are added up.")


def _check_robust(study: Study) -> None:
    """A median needs three, and nobody who outweighs all others."""
    robust, parties = study.aggregation.robust, study.parties
    if study.aggregation.kind == "secure":
        raise InvalidParameter("robust", robust, "needs plain sums: in a secure one no party's sum is seen.")
    if len(parties) < 3:
        raise InvalidParameter("robust", robust, f"needs three parties at least, not {len(parties)}.")
    if study.training.weights == "records" and 2 * max(parties.values()) >= study.records:
        needed = (
            "would follow the party with half of the records or more; use weights = 'equal', or leave it out."
        )
        raise InvalidParameter("robust", robust, needed)


def _check_secure(study: Study) -> None:
    parties, dropouts, colluders = min(map(len, study.groups)), study.dropouts, study.aggregation.colluders
    if parties < 2 or dropouts + colluders > parties - 2:
        needed = f"must leave at least two honest parties of {parties}{_of_group(study)}."
        raise InvalidParameter("dropouts + colluders", dropouts + colluders, needed)
    if not withstands_lies(parties, dropouts, colluders):
        needed = (
            f"is too many for {parties} parties{_of_group(study)} and {colluders} colluders: a lying coordinator "
            "could unmask one party. Allow fewer dropouts, or bring in more parties, at least "
            f"{least_parties(dropouts, colluders)}."
        )
        raise InvalidParameter("dropouts", dropouts, needed)


def _of_group(study: Study) -> str:
    return " in a group" if len(study.groups) > 1 else ""
