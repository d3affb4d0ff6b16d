"""The coordinator: asks, checks what comes back, updates the model. It holds no data and protects nobody.

Whatever is not a signed answer to the question asked, of the right study, round, type and size, and no larger than an
honest one can be, counts as zero; the divisor is public and stays. A party that is missing counts as zero, too, and
is asked again in later rounds.

A coordinator that was killed goes on from its state file: it asks every party for its next round and takes the
latest of them. Parties never repeat a round, so what was under way is lost, not released twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from discreet.certificate import Certificate
from discreet.errors import DiscreetError, InvalidParameter
from discreet.parties import sgd1
from discreet.parties.asking import Asking
from discreet.parties.messages import Refusal, Roster
from discreet.parties.optimizers import Descent, Iterate, averages, predicted_excess_risk, step_size
from discreet.parties.state import State, StateFile
from discreet.parties.study import Study
from discreet.parties.sums import PlainSums, SecureSums
from discreet.parties.transport import DirectTransport, Transport
from discreet.parties.trust import ObserverTable, observers
from discreet.randomness import RandomStream, system_stream

Floats = NDArray[np.float64]

MOST_EMPTY_ROUNDS = 3
"""So many rounds without a single valid answer end the run."""


class StudyStopped(DiscreetError):
    """The study cannot go on now; the text says why and what to do. What was reached is in the state file."""


@dataclass(frozen=True)
class Progress:
    """What a coordinator may show: planned numbers, and who did not answer."""

    update: int
    updates: int
    missing: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class StudyResult:
    """The outcome: the last model, the average of all, and who missed how many rounds.

    ``certificates`` holds those of the parties that ran in this process; others issue theirs at home. The measured
    excess risk of the :attr:`recommended` model is known only where the records are public.
    """

    study: Study
    theta: Floats
    average: Floats
    updates: int
    missed: Mapping[str, int]
    certificates: Mapping[str, Certificate] = field(default_factory=dict)
    measured_excess_risk: float | None = None

    @property
    def recommended(self) -> Floats:
        """The iterate that the theory speaks of: the average where it asks for it, else the last."""
        return self.average if averages(self.study) else self.theta

    @property
    def predicted_excess_risk(self) -> float | None:
        """What the theory promises of the recommended model, if all parties took part; a bound, often a loose one."""
        return predicted_excess_risk(self.study)

    @property
    def observers(self) -> ObserverTable:
        """What every observer could learn."""
        return observers(self.study)


class Coordinator:
    """Runs a study over ``transport``.

    ``roster`` holds the parties' public keys; only a rehearsal, where there is no wire, may do without
    (``Roster.without_wire()``). ``state_file`` lets a new coordinator go on where this one was killed. ``start`` is
    the first model, zeros unless given. ``progress`` is called with a :class:`Progress` after every update.
    """

    def __init__(
        self,
        study: Study,
        transport: Transport,
        roster: Roster | Mapping[str, str],
        state_file: str | Path | None = None,
        progress: Callable[[Progress], None] | None = None,
        *,
        signing_key: Ed25519PrivateKey | None = None,
        start: Floats | None = None,
        stream: RandomStream | None = None,
    ) -> None:
        self.study = study
        self._roster = _checked_roster(roster, study, transport)
        self._asking = Asking(study, transport, self._roster, signing_key)
        self._file = None if state_file is None else StateFile(state_file)
        self._progress = progress
        self._descent = Descent(study, step_size(study))
        found = None if self._file is None else self._file.load(study.digest())
        self._resumed = found is not None
        self._state = found or self._fresh(start, stream or system_stream())

    def _fresh(self, start: Floats | None, stream: RandomStream) -> State:
        theta = np.zeros(self.study.dimension) if start is None else np.array(start, np.float64)
        if theta.shape != (self.study.dimension,) or not np.isfinite(theta).all():
            raise InvalidParameter("start", theta.shape, f"must be {self.study.dimension} finite numbers.")
        key = stream.bytes(sgd1.KEY_BYTES) if self.study.algorithm == "sgd1" else b""
        return State(self.study.digest(), Iterate.start(theta), key=key)

    # ---- meeting the parties ----

    def meet(self) -> dict[str, int]:
        """Say hello to everybody: the next round of each party that is there.

        Ask again until all have come. Raises :class:`StudyStopped` if a party refuses the study.
        """
        self._save(now=not self._resumed)  # the schedule's key must not be told before it is kept
        self._resumed = True
        found: dict[str, int] = {}
        for name in self.study.names:
            following = self._greeted(name)
            if isinstance(following, Refusal):
                why = _REASONS.get(following, following.name.lower())
                raise StudyStopped(f"{name} refuses this study: {why}")
            if following is not None:
                found[name] = following
        return found

    def _hello(self, party: str) -> int | None:
        """The party's next round; None if it is not there, or refuses, which it may do later than at the start."""
        following = self._greeted(party)
        return None if isinstance(following, Refusal) else following

    def _greeted(self, party: str) -> int | Refusal | None:
        following = self._asking.hello(party, self._schedule_of(party))
        if isinstance(following, int) and self.study.algorithm == "sgd1":
            self._state.calls[party] = following - 1
        return following

    def _schedule_of(self, party: str) -> bytes:
        if self.study.algorithm != "sgd1" or self.study.training.schedule == "private":
            return b""
        return sgd1.derived_key(self._state.key, f"party {party}")

    # ---- running ----

    def run(self) -> StudyResult:
        """Train to the end of the plan, or raise :class:`StudyStopped` with a sentence."""
        fresh = self._state.round == 0
        rounds = self.meet()
        absent = [name for name in self.study.names if name not in rounds]
        if absent and (fresh or not rounds):
            raise StudyStopped(
                f"{', '.join(absent)} did not answer. Start again when all parties have joined."
            )
        try:
            if self.study.algorithm == "sgd1":
                self._run_tokens()
            else:
                self._run_rounds(max(rounds.values()))
        finally:
            self._save(now=True)
        iterate = self._state.iterate
        return StudyResult(
            self.study, iterate.theta, iterate.average, iterate.updates, dict(self._state.missed)
        )

    def _run_rounds(self, following: int) -> None:
        """SGD2: one update for each round. Rounds that were lost at a party are lost for all."""
        state, empty = self._state, 0
        if self.study.aggregation.kind == "plain":
            sums: PlainSums | SecureSums = PlainSums(self.study, self._asking, self._hello)
        else:
            sums = SecureSums(self.study, self._asking, self._hello, self._roster)
        round = max(state.round + 1, following)
        while round <= self.study.updates:
            gradient, missing = sums.round(round, state.iterate.theta)
            state.round, empty = round, empty + 1 if gradient is None else 0
            if gradient is not None:
                state.iterate = self._descent.updated(state.iterate, gradient)
            self._tell(round, missing)
            self._stop_if(empty >= MOST_EMPTY_ROUNDS)
            round = round + 1 if gradient is not None else max([round + 1, *self.meet().values()])

    def _run_tokens(self) -> None:
        """SGD1: one update for each token. Who is missing is left alone for a while, longer each time."""
        state, nothing = self._state, np.zeros(self.study.dimension)
        order = islice(sgd1.order(self.study, state.key), state.round, self.study.updates)
        rest: dict[str, int] = {}  # a missing party, and the token from which on it is asked again
        pause, empty = dict.fromkeys(self.study.names, 1), 0
        for token, party in enumerate(order, state.round + 1):
            gradient = self._gradient(party) if rest.get(party, 0) <= token else None
            if gradient is not None:
                pause[party], empty = 1, 0
            elif rest.get(party, 0) <= token:
                rest[party], pause[party] = token + pause[party], 2 * pause[party]
                empty += 1
                self._stop_if(empty >= MOST_EMPTY_ROUNDS * len(self.study.names))
            state.iterate = self._descent.updated(state.iterate, nothing if gradient is None else gradient)
            state.round = token
            self._tell(token, [] if gradient is not None else [party])

    def _gradient(self, party: str) -> Floats | None:
        """The noisy gradient of the party's next call."""
        for _ in range(2):
            call = self._state.calls[party] = self._state.calls.get(party, 0) + 1
            reply = self._asking.ask(party, sgd1.request(self.study, party, call, self._state.iterate.theta))
            if reply not in (Refusal.NOT_BEGUN, Refusal.PAST_ROUND, Refusal.OTHER_REQUEST):
                break
            if self._hello(party) is None:  # it was restarted, or this coordinator was: find the place again
                break
        return self._asking.noisy(party, reply)

    # ---- small matters ----

    def _stop_if(self, over: bool) -> None:
        if over:
            raise StudyStopped(
                f"No party gave a valid answer in {MOST_EMPTY_ROUNDS} rounds, the last of them round "
                f"{self._state.round}. Check that the parties run, and start the coordinator again with the same "
                "state file to go on."
            )

    def _tell(self, update: int, missing: list[str]) -> None:
        for name in missing:
            self._state.missed[name] = self._state.missed.get(name, 0) + 1
        self._save()
        if self._progress is not None:
            self._progress(Progress(update, self.study.updates, tuple(missing)))

    def _save(self, *, now: bool = False) -> None:
        if self._file is not None:
            self._file.save(self._state, now=now)


_REASONS = {
    Refusal.OTHER_STUDY: "its study file differs; compare the digests that `discreet study check` prints.",
    Refusal.OTHER_PLAN: "it has begun it with another schedule. Start the coordinator with the state file it began "
    "with; without it, agree on a study of another name.",
    Refusal.STOPPED: "it stopped, because its ledger is spent or cannot be written; its own screen says more.",
    Refusal.MALFORMED: "it does not accept this coordinator's signature.",
}


def _checked_roster(roster: object, study: Study, transport: Transport) -> Roster:
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
    return found
