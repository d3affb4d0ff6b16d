"""Who holds what, and how they talk: everything public that decides what an observer can learn.

An :class:`Arrangement` holds numbers that all parties know before the first record is touched: the algorithm,
how many records each party declared, how much noise a party adds, how often it is asked. It holds nothing of the
data, so it may be published. :func:`discreet.parties.observation.observers.observers` turns it into a table.

>>> hospitals = {"hospital-a": 1200, "hospital-b": 800, "hospital-c": 2000}
>>> arrangement = Arrangement("sgd2", hospitals, noise_multiplier=40.0, rounds=200)
>>> arrangement.records
4000
>>> Arrangement("sgd1", hospitals).rounds
16000000
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from discreet.errors import InvalidParameter, one_of, real, whole
from discreet.events.common import MAX_COUNT
from discreet.guarantee import Neighbours, Unit, neighbours_named, unit_named
from discreet.parties.observation.binomial import chance_above, most_likely_count

ALGORITHMS = ("sgd1", "sgd2", "recipe")
AGGREGATIONS = ("plain", "secure")
SCHEDULES = ("uniform", "balanced", "private")

MOST_IN_GROUP = 32
"""Parties in one secure sum: each sends a share for every pair of its group, so more of them add up by groups."""

OVERRUN = 1e-12
"""The chance that a random schedule asks for more than some owner will answer, unless ``most_uses`` is given."""


@dataclass(frozen=True)
class Arrangement:
    """A joint training, as far as privacy depends on it.

    * ``algorithm``: ``"sgd1"`` asks one party for the gradient of one record at a time, ``"sgd2"`` asks all
      parties for the sum over their records in every round, ``"recipe"`` asks all parties one query after the other
      and spends the budget adaptively; its ``noise_multiplier`` is that of one release which spends all of it.
    * ``parties``: the declared, public number of records of each.
    * ``noise_multiplier``: noise on a message in units of the clip norm (of the scaled gradient in SGD1). With
      secure sums it is the noise that the sum needs; each party adds a share of it, see :attr:`noise_share`.
      None while it is still to be found by :func:`~discreet.parties.observation.observers.noise_for`.
    * ``rounds``: rounds of SGD2, or tokens of SGD1; the notes' n^2 tokens unless given.
    * ``dropouts``: so many parties may be missing at a time; their noise is missing then, too.
    * ``colluders``: so many parties may pool what they know.
    * ``schedule`` (SGD1; nothing in SGD2): ``"uniform"``, the coordinator draws every record afresh;
      ``"balanced"``, it goes through all records again and again, each time in another order; ``"private"``, it
      draws the party, each as often as it has records, and the party draws the record, in secret.
    * ``rate`` (SGD2): below 1 each record joins a round by its owner's secret coin.
    * ``weights`` (SGD2): public factors of the parties' noisy sums; 1 for all unless given.
    * ``most_uses`` (SGD1): a party refuses to use a record more often, whatever the coordinator asks.
    * ``contraction`` (SGD2): a promise about the loss, see
    :func:`~discreet.parties.observation.observer_views.contracted_noise`.
    * ``party_bound`` (SGD2): each party cuts its whole sum to so many clip norms, which protects it as a whole.
    * ``robust`` (SGD2, plain): the coordinator looks at every message by itself before it adds up, so that the model
      is no function of their sum, and the noise of other parties hides nothing.
    * ``unit``: what ``parties`` counts and a message clips: records, or persons with all of their rows.
    * ``across`` (SGD2): a person may be known to so many parties.
    """

    algorithm: str
    parties: Mapping[str, int]
    noise_multiplier: float | None = None
    rounds: int | None = None
    neighbours: Neighbours = "replace-one"
    aggregation: str = "plain"
    dropouts: int = 0
    colluders: int = 0
    schedule: str = "uniform"
    rate: float = 1.0
    weights: Mapping[str, float] | None = None
    most_uses: int | None = None
    contraction: float | None = None
    party_bound: float | None = None
    robust: bool = False
    unit: Unit = "record"
    across: int = 1

    def __post_init__(self) -> None:
        def keep(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        one_of("algorithm", self.algorithm, ALGORITHMS)
        keep("parties", _named_records(self.parties))
        neighbours_named(self.neighbours)
        one_of("aggregation", self.aggregation, AGGREGATIONS)
        one_of("schedule", self.schedule, SCHEDULES)
        if self.noise_multiplier is not None:
            keep("noise_multiplier", real("noise_multiplier", self.noise_multiplier, above=0))
        keep(
            "rounds", whole("rounds", self._rounds(), at_least=1, at_most=MAX_COUNT, remedy="Name how many.")
        )
        keep("rate", real("rate", self.rate, above=0, at_most=1))
        keep("weights", _named_weights(self.weights, self.parties))
        others = len(self.parties) - 1
        remedy = "At least the owner of a record must be left."
        keep("dropouts", whole("dropouts", self.dropouts, at_least=0, at_most=others, remedy=remedy))
        keep("colluders", whole("colluders", self.colluders, at_least=0, at_most=others, remedy=remedy))
        if self.most_uses is not None:
            keep("most_uses", whole("most_uses", self.most_uses, at_least=1, at_most=MAX_COUNT))
        if self.contraction is not None:
            keep("contraction", real("contraction", self.contraction, at_least=0, below=1))
        if self.party_bound is not None:
            keep("party_bound", real("party_bound", self.party_bound, above=0))
        unit_named(self.unit)
        remedy = "So many parties may know a person."
        keep("across", whole("across", self.across, at_least=1, at_most=len(self.parties), remedy=remedy))
        self._refuse_what_has_no_theorem()

    def _rounds(self) -> object:
        if self.rounds is None and self.algorithm == "sgd1":
            return self.records**2
        return self.rounds

    def _refuse_what_has_no_theorem(self) -> None:
        if self.algorithm == "sgd1":
            if self.neighbours != "replace-one":
                remedy = "SGD1 draws among a public number of records; use neighbours='replace-one'."
                raise InvalidParameter("neighbours", self.neighbours, remedy)
            if self.aggregation != "plain":
                remedy = "SGD1 asks one party at a time, so a sum hides nothing; use 'plain', or SGD2."
                raise InvalidParameter("aggregation", self.aggregation, remedy)
            for name, default in _OF_SGD2.items():
                if getattr(self, name) != default:
                    raise InvalidParameter(name, getattr(self, name), "is a setting of SGD2 only.")
        if self.unit == "person" and self.algorithm == "sgd1" and self.schedule != "private":
            remedy = "needs schedule = 'private' in SGD1: who else has a number depends on who is a person."
            raise InvalidParameter("unit", self.unit, remedy)
        if self.across > 1 and (self.unit != "person" or self.rate < 1 or self.contraction is not None):
            remedy = "is for persons, in SGD2 with all of them in every round, and without a contraction."
            raise InvalidParameter("persons_across_parties", self.across, remedy)
        if self.most_uses is not None and (self.algorithm == "sgd2" or self.schedule == "private"):
            remedy = "is for SGD1 where the coordinator names the records; leave it out."
            raise InvalidParameter("most_uses", self.most_uses, remedy)
        if self.robust is not False and (self.robust is not True or self.aggregation == "secure"):
            raise InvalidParameter("robust", self.robust, "must be True or False, and False for secure sums.")
        if self.contraction is not None and self.robust:
            remedy = "the theorem is for updates by the sum of all messages; use robust=False."
            raise InvalidParameter("contraction", self.contraction, remedy)
        if self.contraction is not None and self.rate < 1:
            remedy = "the theorem is for all records in every round; use rate=1."
            raise InvalidParameter("contraction", self.contraction, remedy)
        if self.aggregation == "secure" and self.dropouts + self.colluders >= self.smallest_group:
            remedy = f"with dropouts={self.dropouts} no honest party would be left to add noise."
            raise InvalidParameter("colluders", self.colluders, remedy)

    @property
    def records(self) -> int:
        """All declared records together: the notes' n."""
        return sum(self.parties.values())

    @property
    def noise(self) -> float:
        """The noise multiplier, once there is one."""
        if self.noise_multiplier is None:
            remedy = "is still open; give it, or find it with noise_for(arrangement, budget, against=...)."
            raise InvalidParameter("noise_multiplier", None, remedy)
        return self.noise_multiplier

    @property
    def noise_share(self) -> float:
        """The part of the noise multiplier that each party adds.

        All of it, if every message is seen. With secure sums variances add up within a group, and the parties that
        may be missing or collude are not counted on: 1 / sqrt(smallest group - dropouts - colluders).
        """
        if self.aggregation == "plain":
            return 1.0
        return 1 / math.sqrt(self.smallest_group - self.dropouts - self.colluders)

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Whose secure sums are seen: the sum of each group, and nothing of any of its parties."""
        return groups_of(self.parties)

    @property
    def smallest_group(self) -> int:
        """How many parties the smallest group has. Dropouts and colluders may all be in one group."""
        return min(map(len, self.groups))

    @property
    def withstands_lies(self) -> bool:
        """Whether secure sums hide a party even from a coordinator that tells the parties different things."""
        return withstands_lies(self.smallest_group, self.dropouts, self.colluders)

    @property
    def cap(self) -> int:
        """SGD1: how often a party lets one record be used, when the coordinator names the records.

        Unless ``most_uses`` says it: the passes of a balanced schedule, or so many that a uniform one asks for
        more, of any record, with a chance of ``OVERRUN`` at most.
        """
        if self.most_uses is not None:
            return self.most_uses
        if self.schedule == "balanced":
            return -(-self.tokens // self.records)
        return most_likely_count(self.tokens, 1 / self.records, OVERRUN / self.records)

    def calls(self, party: str) -> int:
        """SGD1: how often a party answers at most; found like :attr:`cap`, over all parties."""
        size = self.parties[party]
        if self.schedule == "balanced":
            return self.cap * size
        return most_likely_count(self.tokens, size / self.records, OVERRUN / len(self.parties))

    @property
    def overrun(self) -> float:
        """SGD1: the chance, rounded up, that an honest schedule asks for more than some owner answers.

        The refusal shows something of the schedule, so this is taken off delta wherever the schedule is hidden.
        """
        if self.schedule == "balanced":
            return 0.0 if self.cap * self.records >= self.tokens else 1.0
        if self.schedule == "private":
            return OVERRUN
        return min(1.0, self.records * chance_above(self.cap, self.tokens, 1 / self.records))

    @property
    def tokens(self) -> int:
        """The same as ``rounds``, which are tokens in SGD1."""
        assert self.rounds is not None  # checked when it was made
        return self.rounds

    def with_noise(self, noise_multiplier: float) -> Arrangement:
        """The same with this much noise."""
        return replace(self, noise_multiplier=noise_multiplier)

    def to_dict(self) -> dict[str, Any]:
        """The arrangement as plain data for JSON."""
        usual = {"unit": "record", "across": 1}
        return {name: value for name, value in asdict(self).items() if usual.get(name) != value}


def groups_of(names: Collection[str]) -> tuple[tuple[str, ...], ...]:
    """The groups of a secure sum: as few as can be, as equal as can be, in the order of the names.

    >>> [len(group) for group in groups_of([f"p{place:02}" for place in range(70)])]
    [24, 23, 23]
    """
    ordered = sorted(names)
    count = -(-len(ordered) // MOST_IN_GROUP)
    size, more = divmod(len(ordered), count)
    starts = [place * size + min(place, more) for place in range(count + 1)]
    return tuple(tuple(ordered[start:end]) for start, end in itertools.pairwise(starts))


def withstands_lies(parties: int, dropouts: int, colluders: int) -> bool:
    """Whether a secure sum of so many parties keeps its promise for any requests that a coordinator can invent.

    The proof is in :mod:`discreet.parties.secure.secure_sum`.
    """
    return parties - colluders > dropouts * (dropouts + 1)


def least_parties(dropouts: int, colluders: int) -> int:
    """So many parties withstand a lying coordinator."""
    return dropouts * (dropouts + 1) + colluders + 1


_OF_SGD2: dict[str, object] = {
    "rate": 1.0,
    "weights": None,
    "contraction": None,
    "party_bound": None,
    "robust": False,
    "across": 1,
}


def _named_records(parties: object) -> dict[str, int]:
    if not isinstance(parties, Mapping) or not parties:
        raise InvalidParameter(
            "parties", parties, "must map the name of each party to its number of records."
        )
    for name in parties:
        if not isinstance(name, str) or not name:
            raise InvalidParameter("parties", name, "is not the name of a party.")
    return {name: whole(f"parties[{name!r}]", size, at_least=1) for name, size in parties.items()}


def _named_weights(weights: object, parties: Mapping[str, int]) -> dict[str, float] | None:
    if weights is None:
        return None
    if not isinstance(weights, Mapping) or set(weights) != set(parties):
        raise InvalidParameter("weights", weights, "must map the name of every party to its public weight.")
    return {name: real(f"weights[{name!r}]", weights[name], above=0) for name in parties}
