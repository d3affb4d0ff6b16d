"""The coordinator: asks, checks what comes back, updates the model. It holds no data and protects nobody.

Whatever is not a signed answer to the question asked, of the right study, round, type and size, and no larger than an
honest one can be, counts as zero; the divisor is public and stays. A party that is missing counts as zero, too, and
is asked again in later rounds. If more are missing than the study's ``dropouts``, the noise of the others hides less
than was promised: a round of SGD2 then changes nothing, and too many such rounds in a row end the run; SGD1 stops.

A coordinator that was killed goes on from its state file: it asks every party for its next round and takes the
latest of them. Parties never repeat a round, so what was under way is lost, not released twice. In SGD1 every turn of
a party has its number; a turn that the party has passed, because either side was killed, counts as zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from discreet.certificate import Certificate
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import InvalidParameter, StudyStopped
from discreet.events import Gaussian
from discreet.parties import sgd1
from discreet.parties.arrangement import Arrangement
from discreet.parties.joint import FinalModel, Model, is_of, refuse_strangers
from discreet.parties.messages import (
    Backoff,
    CoordinatorClient,
    DirectTransport,
    Message,
    Refusal,
    Roster,
    Transport,
)
from discreet.parties.observation.observers import ObserverTable, observers
from discreet.parties.optimizers import Iterate, UpdateRule, averages, predicted_excess_risk, step_size
from discreet.parties.question_sums import Body, QuestionSums
from discreet.parties.round_sums import PlainSums, SecureSums
from discreet.parties.state import ReleasedSum, State, StateFile
from discreet.parties.study import Study

Floats = NDArray[np.float64]

MOST_EMPTY_ROUNDS = 3
"""So many rounds in a row with too few valid answers end the run."""


@dataclass(frozen=True)
class Progress:
    """The public state of a running study: planned numbers, the missing parties, and why those refuse who do.

    ``missing`` names the parties without a valid answer in this update. ``refused`` has a sentence for each party
    whose last reply was a refusal; a sentence depends on the number of the refusal only. ``stage`` is that of a study
    by the recipe, in words, whose number of updates is not known in advance: ``updates`` are those at most.
    """

    update: int
    updates: int
    missing: tuple[str, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    stage: str = ""


class Conversation:
    """The strategy's side of a study by the recipe: ask all parties, and report progress.

    Sums that were released before are returned as they are: a strategy that is run again asks the same questions.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self.study, self._coordinator = coordinator.study, coordinator

    @property
    def noise(self) -> float:
        """The noise in a sum of all parties, over that of one table's fit."""
        return math.sqrt(len(self.study.parties) / self.study.shares)

    def ask(
        self, number: int, body: Body, digest: str, size: int, bound: float, event: Gaussian
    ) -> tuple[NDArray[np.int64], float]:
        """The sum of all answers to a question, and its noise over that of one table's fit."""
        found = self._coordinator._question(number, body, digest, size, bound, event)
        return found.counts, math.sqrt(len(found.present) / self.study.shares)

    def tell(self, stage: str, done: int, steps: int) -> None:
        """Show how far the strategy is."""
        self._coordinator._stage = f"{stage}, {done} of {steps}"


Strategy = Callable[[Conversation], bytes]
"""Asks questions, one after the other, and returns the model that follows from the answers."""


@dataclass(frozen=True, eq=False)
class StudyResult:
    """The outcome: the last model, the average of all, and who missed how many rounds.

    ``arrangement`` is the study's with what happened: how many were missing at once.
    ``certificates`` holds those of the parties that ran in this process; others issue theirs at home. The measured
    excess risk of the :attr:`recommended` model is known only where the records are public.
    """

    study: Study
    theta: Model
    average: Model
    updates: int
    missed: Mapping[str, int]
    arrangement: Arrangement
    certificates: Mapping[str, Certificate] = field(default_factory=dict)
    measured_excess_risk: float | None = None

    @property
    def recommended(self) -> Model:
        """The iterate that the theory speaks of: the average where it asks for it, else the last."""
        return self.average if averages(self.study) else self.theta

    @property
    def predicted_excess_risk(self) -> float | None:
        """What the theory promises of the recommended model, if all parties took part; a bound, often a loose one."""
        return predicted_excess_risk(self.study)

    @property
    def observers(self) -> ObserverTable:
        """What every observer could learn, given what happened; the plan is ``observers(result.study)``."""
        return observers(self.arrangement, self.study.privacy.delta, arithmetic=self.study.arithmetic)


_AT_ONCE = 4096  # draws of the schedule


def order(study: Study, key: bytes) -> Iterator[str]:
    """The parties that get the token, from the first on without end."""
    names, sizes = study.names, np.array([study.parties[name] for name in study.names])
    stream, ends = sgd1.keyed_draws(sgd1.derived_key(key, "order")), np.cumsum(sizes)
    while True:
        if study.training.schedule == "balanced":
            draws = sgd1.permutations(stream, int(ends[-1]), max(1, _AT_ONCE // int(ends[-1])))
        else:
            draws = stream.integers(int(ends[-1]), _AT_ONCE)
        yield from (names[place] for place in np.searchsorted(ends, draws, side="right").tolist())


class Coordinator:
    """Runs a study over ``transport``.

    ``roster`` holds the parties' public keys; only a rehearsal, where there is no wire, may do without
    (``Roster.without_wire()``). ``state_file``, a path or a :class:`~discreet.parties.state.StateFile`, lets a new
    coordinator go on where this one was killed. ``start`` is the first model, zeros unless given.
    ``progress`` is called with a :class:`Progress` after every update. ``strategy`` chooses the questions of a study
    by the recipe; nobody trusts it.
    """

    def __init__(
        self,
        study: Study,
        transport: Transport,
        roster: Roster | Mapping[str, str],
        state_file: str | Path | StateFile | None = None,
        progress: Callable[[Progress], None] | None = None,
        *,
        signing_key: Ed25519PrivateKey | None = None,
        start: Floats | None = None,
        stream: RandomStream | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        self.study = study
        self._strategy, self._stage = strategy, ""
        self._roster = _checked_roster(roster, study, transport)
        self._asking = CoordinatorClient(study, transport, self._roster, signing_key)
        self._file = StateFile(state_file) if isinstance(state_file, str | Path) else state_file
        self._progress = progress
        self._descent = None if study.algorithm == "recipe" else UpdateRule(study, step_size(study))
        found = None if self._file is None else self._file.load(study.digest())
        self._resumed = found is not None
        self._state = found or self._fresh(start, stream or system_stream())
        self._following: dict[str, int] = {}  # SGD1: the first turn that each party will still answer

    def _fresh(self, start: Floats | None, stream: RandomStream) -> State:
        if self.study.algorithm == "recipe":
            return State(self.study.digest(), Iterate.start(np.zeros(1)))
        theta = np.zeros(self.study.dimension) if start is None else np.array(start, np.float64)
        if theta.shape != (self.study.dimension,) or not np.isfinite(theta).all():
            raise InvalidParameter("start", theta.shape, f"must be {self.study.dimension} finite numbers.")
        key = stream.bytes(sgd1.KEY_BYTES) if self.study.algorithm == "sgd1" else b""
        return State(self.study.digest(), Iterate.start(theta), key=key)

    def meet(self) -> dict[str, int]:
        """Say hello to everybody: the next round of each party that is there.

        Ask again until all have come. Raises :class:`StudyStopped` if a party refuses the study.
        """
        self._save(now=not self._resumed)  # the schedule's key must not be told before it is kept
        self._resumed = True
        found: dict[str, int] = {}
        for name in self.study.names:
            following = self._greet(name)
            if isinstance(following, Refusal):
                raise StudyStopped(f"{name} refuses this study: {_REASONS[following]}")
            if following is not None:
                found[name] = following
        return found

    def _hello(self, party: str) -> int | None:
        """The party's next round; None if it is not there, or refuses, which it may do later than at the start."""
        following = self._greet(party)
        return None if isinstance(following, Refusal) else following

    def _greet(self, party: str) -> int | Refusal | None:
        reply = self._asking.hello(party, self._schedule_of(party))
        if isinstance(reply, int):
            self._following[party] = reply
        return reply

    def _schedule_of(self, party: str) -> bytes:
        """The party's own key: it says which records its turns concern, or only which schedule this is."""
        if self.study.algorithm != "sgd1":
            return b""
        return sgd1.derived_key(self._state.key, f"party {party}")

    def run(self) -> StudyResult:
        """Train to the end of the plan, or raise :class:`StudyStopped` with a sentence.

        A study that has come to its end before is not asked again: its result is what it was.
        """
        if self._state.finished:
            return self._result()
        fresh = self._state.round == 0
        rounds = self.meet()
        absent = [name for name in self.study.names if name not in rounds]
        if absent and (fresh or not rounds):
            raise StudyStopped(
                f"{', '.join(absent)} did not answer. Start again when all parties have joined."
            )
        try:
            if self.study.algorithm == "recipe":
                self._run_strategy()
            elif self.study.algorithm == "sgd1":
                self._run_tokens()
            else:
                following = max(rounds.values())
                if (
                    absent or following > self._state.round + 1
                ):  # there may be rounds that are not remembered here
                    self._state.most_missing = self.study.dropouts
                self._run_rounds(following)
            if not (self._state.iterate.updates or self._state.sums):
                raise self._too_few("any round")
            self._state.finished = True
        finally:
            self._save(now=True)
        return self._result()

    @property
    def refused(self) -> dict[str, str]:
        """Why parties refuse: a sentence for each one whose last reply was a refusal."""
        return {name: _REASONS[reason] for name, reason in sorted(self._asking.refused.items())}

    @property
    def finished(self) -> bool:
        """True once the model is final."""
        return self._state.finished

    def _result(self) -> StudyResult:
        iterate, missed = self._state.iterate, dict(self._state.missed)
        if self._state.model is not None:
            model, count = self._state.model, len(self._state.sums)
            return StudyResult(self.study, model, model, count, missed, self._arrangement_as_run())
        return StudyResult(
            self.study, iterate.theta, iterate.average, iterate.updates, missed, self._arrangement_as_run()
        )

    @property
    def ending(self) -> FinalModel:
        """The model as it is sent to the parties."""
        state = self._state
        model = state.iterate.theta if state.model is None else state.model
        return FinalModel(self.study.digest(), self._roster.digest(), model)

    def finish(self, parties: Collection[str]) -> dict[str, Certificate | None]:
        """Sign the model and send it: who has taken it, with the certificate that came back, if it may be shown.

        Say it again to whoever was away; the model stays the same.
        """
        if not self._state.finished:
            raise StudyStopped("The study has not come to its end; there is no model to hand out yet.")
        request, taken = self.ending.message(), {}
        replies = self._asking.ask_all(parties, request)
        for name in parties:
            reply = replies.get(name)
            if reply is Refusal.NOT_BEGUN and self._hello(name) is not None:  # restarted since its last round
                reply = self._asking.ask(name, request)
            if isinstance(reply, Message) and reply.kind == "certified":
                taken[name] = self._certificate(name, reply.array.tobytes())
        return taken

    def _certificate(self, party: str, text: bytes) -> Certificate | None:
        """What a party sent, if it is its own signed certificate of this study."""
        try:
            found = Certificate.from_json(text.decode())
        except ValueError:
            return None
        return found if is_of(found, self.study, party, self._roster.hexadecimal(party)) else None

    def _arrangement_as_run(self) -> Arrangement:
        """The arrangement with what happened, which decides what observers could learn.

        Noise was shared for the planned dropouts in secure sums. Who is missing from SGD1 is only known of those
        who were asked, so it has the planned ones, too.
        """
        arrangement, state = self.study.arrangement, self._state
        if self.study.algorithm == "sgd1" or self.study.aggregation.kind == "secure":
            return arrangement
        return replace(arrangement, dropouts=min(state.most_missing, arrangement.dropouts))

    def _run_strategy(self) -> None:
        """The recipe: whatever the strategy asks, until it has a model."""
        if self._strategy is None:
            raise InvalidParameter("strategy", None, "is needed for a study by the recipe.")
        self._sums = QuestionSums(self.study, self._asking, self._hello, self._roster, self._keep_survivors)
        self._state.model = np.frombuffer(self._strategy(Conversation(self)), np.uint8)

    def _keep_survivors(self, number: int, present: Sequence[str]) -> None:
        self._state.survivors = number, tuple(present)
        self._save(now=True)

    def _question(
        self, number: int, body: Body, digest: str, size: int, bound: float, event: Gaussian
    ) -> ReleasedSum:
        """The sum of all answers: the one that was released before, or one that is asked for until enough answer."""
        state = self._state
        if number <= len(state.sums):
            earlier = state.sums[number - 1]
            if earlier.digest != digest:
                raise StudyStopped(
                    f"Question {number} is another one than the state file holds the answer to. Go on with the same "
                    "versions of the packages, on a processor of the same kind."
                )
            return earlier
        for _ in range(MOST_EMPTY_ROUNDS):
            survivors = state.survivors[1] if state.survivors[0] == number else ()
            found, missing = self._sums.ask(number, body, size, bound, event, survivors)
            if found is not None:
                break
            self._tell(number, missing)
            self.meet()
        else:
            raise self._too_few(f"question {number}")
        state.round, state.most_missing = number, max(state.most_missing, len(missing))
        state.sums.append(ReleasedSum(digest, found.counts, found.present))
        self._save(now=True)
        self._tell(number, missing)
        return state.sums[-1]

    def _run_rounds(self, following: int) -> None:
        """SGD2: one update for each round. Rounds that were lost at a party are lost for all."""
        state, descent, empty = self._state, self._descent, 0
        assert descent is not None
        if self.study.aggregation.kind == "plain":
            sums: PlainSums | SecureSums = PlainSums(self.study, self._asking, self._hello)
        else:
            sums = SecureSums(self.study, self._asking, self._hello, self._roster)
        round = max(state.round + 1, following)
        while round <= self.study.updates:
            gradient, missing = sums.round(round, state.iterate.theta)
            state.round, empty = round, empty + 1 if gradient is None else 0
            if gradient is not None:
                state.iterate = descent.update(state.iterate, gradient)
                state.most_missing = max(state.most_missing, len(missing))
            self._tell(round, missing)
            if empty >= MOST_EMPTY_ROUNDS:
                raise self._too_few(f"{MOST_EMPTY_ROUNDS} rounds in a row, the last of them round {round}")
            round = round + 1 if gradient is not None else max([round + 1, *self.meet().values()])

    def _run_tokens(self) -> None:
        """SGD1: one update for each token. Who is missing is left alone for a while, longer each time at first."""
        state, descent, nothing = self._state, self._descent, np.zeros(self.study.dimension)
        assert descent is not None
        turns = islice(order(self.study, state.key), state.round, self.study.updates)
        away: dict[str, Backoff] = {}  # who is missing, and when to ask again
        empty = 0
        for token, party in enumerate(turns, state.round + 1):
            turn, gradient = state.calls.get(party, 0) + 1, None
            pause = away.pop(party, None)
            if len(away) > self.study.dropouts or empty >= MOST_EMPTY_ROUNDS * len(self.study.names):
                raise self._too_few(f"token {token}")
            if (pause is None or pause.over(token)) and not self._is_lost(party, turn, away):
                gradient = self._gradient(party, turn)
                empty, pause = empty + 1, pause or Backoff(self.study.network.timeout)
                pause.lengthen(token)
            if gradient is not None:
                empty = 0
            elif pause is not None and not self._has_passed(party, turn + 1):  # else it has lost its memory
                away[party] = pause
            state.iterate = descent.update(state.iterate, nothing if gradient is None else gradient)
            state.round, state.calls[party] = token, turn
            self._tell(token, [] if gradient is not None else [party])

    def _is_lost(self, party: str, turn: int, away: Collection[str]) -> bool:
        """Whether nobody is asked: the party has passed this turn, or too many others have passed theirs."""
        if self._has_passed(party, turn):
            return True
        others = [name for name in self.study.names if name != party]
        behind = {name for name in others if self._has_passed(name, self._state.calls.get(name, 0) + 1)}
        return len(behind.union(away)) > self.study.dropouts

    def _has_passed(self, party: str, turn: int) -> bool:
        return turn < self._following.get(party, 1)

    def _gradient(self, party: str, turn: int) -> Floats | None:
        """The noisy gradient of a party's turn; None if it is missing, or has passed this turn."""
        for _ in range(2):
            reply = self._asking.ask(party, sgd1.request(self.study, party, turn, self._state.iterate.theta))
            if reply not in (None, Refusal.NOT_BEGUN, Refusal.PAST_ROUND, Refusal.OTHER_REQUEST):
                return self._asking.noisy(party, reply)
            if self._hello(party) is None or self._has_passed(party, turn):
                return None  # else it was restarted, or is back: ask again
        return None

    def _too_few(self, when: str) -> StudyStopped:
        least = len(self.study.parties) - self.study.dropouts
        refused = "".join(f"{name} refuses: {why} " for name, why in self.refused.items())
        return StudyStopped(
            f"Too few parties gave a valid answer in {when}: the study needs {least} of {len(self.study.parties)}. "
            f"{refused}Check that the parties run, and start the coordinator again with the same state file to go on."
        )

    def _tell(self, update: int, missing: list[str]) -> None:
        for name in missing:
            self._state.missed[name] = self._state.missed.get(name, 0) + 1
        self._save()
        if self._progress is not None:
            stage = self._stage
            self._progress(Progress(update, self.study.updates, tuple(missing), self.refused, stage))

    def _save(self, *, now: bool = False) -> None:
        if self._file is not None:
            self._file.save(self._state, now=now)


_REASONS = {
    Refusal.OTHER_STUDY: "its study file differs; compare the digests that `discreet study check` prints.",
    Refusal.OTHER_PLAN: "it has begun it with another schedule. Start the coordinator with the state file it began "
    "with; without it, agree on a study of another name.",
    Refusal.STOPPED: "it stopped: its ledger is spent or cannot be written, or something failed there; its own "
    "screen says more.",
    Refusal.MALFORMED: "it does not accept this coordinator's signature.",
    Refusal.PAST_ROUND: "the round is over there, or was lost when it was restarted; it answers the next one.",
    Refusal.BEYOND_PLAN: "this is more than the plan that it agreed to.",
    Refusal.OTHER_REQUEST: "it was asked for this round before, with another model or other parties.",
    Refusal.NOT_BEGUN: "it was restarted and has not been greeted yet.",
    Refusal.NOT_ALLOWED: "the question is none that the study allows; all sites need the same version of discreet.",
    Refusal.MISSING_PART: "it does not know a part of the question any more.",
}
"""A public sentence for each refusal, for the coordinator's screen."""


def _checked_roster(roster: object, study: Study, transport: Transport) -> Roster:
    if not isinstance(transport, Transport):
        needed = "must have ask() and broadcast(), such as a DirectTransport."
        raise InvalidParameter("transport", type(transport).__name__, needed)
    if not isinstance(roster, Roster | Mapping):
        raise InvalidParameter("roster", roster, "must hold the public key of every party.")
    found = roster if isinstance(roster, Roster) else Roster(roster)
    if not found.signed:
        if type(transport) is not DirectTransport or study.aggregation.kind == "secure":
            needed = "is for plain sums in one process; a network and secure sums need the parties' keys."
            raise InvalidParameter("roster", "without wire", needed)
        return found
    missing = [name for name in study.names if name not in found.names()]
    if missing:
        raise InvalidParameter("roster", missing, "lacks the public keys of these parties.")
    refuse_strangers(found.names(), study)
    return found
