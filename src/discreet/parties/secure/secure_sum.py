"""A sum of the parties' vectors of which the coordinator sees nothing but the sum.

This is the protocol of Bonawitz et al. (2017), arranged for a few organisations that meet in every round: keys are
agreed once, and a round is two exchanges.

>>> import numpy as np
>>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
>>> keys = {name: Ed25519PrivateKey.generate() for name in ("ann", "bob", "cem")}
>>> group = SecureGroup("0" * 64, {name: key.public_key() for name, key in keys.items()}, dropouts=1)
>>> parties = {name: SecureParty(name, group, key) for name, key in keys.items()}
>>> from discreet.parties.secure.secure_coordinator import SecureCoordinator
>>> coordinator = SecureCoordinator(group, dimension=2, largest=1000)

Once, and again whenever a party has lost its memory, everybody's fresh public key goes to everybody:

>>> introductions = coordinator.introduce({name: party.advertise() for name, party in parties.items()})
>>> for party in parties.values():
...     party.join(introductions)

In each round, masked vectors go up; then one request goes to all whose vector came, and their answers unmask the
sum. Here cem's vector is lost on its way:

>>> vectors = {"ann": np.array([1, -2]), "bob": np.array([10, 20]), "cem": np.array([100, 200])}
>>> masked = {name: party.mask(1, vectors[name]) for name, party in parties.items()}
>>> del masked["cem"]
>>> request = coordinator.request(masked)
>>> coordinator.total({name: parties[name].unmask(1, request) for name in masked})
array([11, 18])

**How it works.** Every two parties have a mask for the round that one adds and the other subtracts
(:mod:`~discreet.parties.secure.masks`); every party adds a mask of its own besides. All arithmetic is modulo 2**64.
A party sends its masked vector together with the seeds of its masks, split into shares
(:mod:`~discreet.parties.secure.shares`): one sealed share of each seed for each party. The coordinator says whose
vectors it has: the survivors. Each survivor then opens and reveals, for every survivor, its share of that one's own
seed and of the seeds which that one has in common with those who did not survive. So the coordinator removes every
mask that does not cancel.

The paper recovers the masks of a lost party by revealing its key, so keys serve one round and every round has four
exchanges. Here only seeds are ever revealed, each of one pair and one round; keys last as long as the parties'
memories. The price is m * m sealed shares of 49 bytes in a masked vector: 5 kB for ten parties, 50 kB for 32.

**More than 32 parties** add up in groups (:func:`~discreet.parties.arrangement.groups_of`), each of which is such a
sum by itself, and the coordinator adds up what it learns of each. Else a round of 1000 parties would be 49 GB of
shares; now it is 50 MB. All that is said here holds for each group, with m its size and D and c what they are in all,
for they may all be in one group. A party's vector is in its own group's sum and in no other, and other groups have
secrets and noise of their own: so what everybody together learns of a record beyond its group's sum does not depend
on it. That sum is seen, so it must hold all of the noise: each party adds 1 / (size - D - c) of the variance, where
the size is that of the smallest group. Those who see only models see the sum over all groups, from each of which D
may be missing.

**Who sees what.** m parties, at most D of them drop out in a round, c collude with the coordinator; h = m - c are
honest. The threshold is m - D shares, and a party refuses to unmask for fewer than m - D survivors.

======================  =====================================================================================
public keys             everybody; signed with the key in the roster, so nobody can speak for another party
masked vector           the coordinator; uniform to whoever lacks one of its masks
sealed shares           the coordinator, closed; the party they are meant for, open
request                 the survivors: who survived, and the sealed shares they are asked for
revealed shares         the coordinator: the seeds of masks that do not cancel, of this round only
sum of the survivors    the coordinator
======================  =====================================================================================

**What is proved.** The coordinator keeps the rules but tries to learn all it can, from all that it ever receives,
late vectors included, and from everything that c < m - D colluding parties know. Then it learns of the honest
vectors of a round nothing but the sum over the honest survivors, who are at least h - D. Sketch: take an honest
party. (1) It did not survive: no honest party reveals its own seed, and the colluders have too few shares of it. So
its vector is uniform, even if it arrives late. This is what the own mask is for. (2) It survived: all its masks but
those with honest survivors are known. The seeds of these are revealed by nobody, so the vectors of the honest
survivors are uniform among all vectors with the same sum.

**A lying coordinator** can tell parties different things, but it cannot open seals, forge keys or ask twice: a party
masks a round once and answers for one set of survivors. If h > D (D + 1), for which see
:attr:`~discreet.parties.secure.secure_group.SecureGroup.withstands_lies`, the statement above holds for any requests
it can invent, with at least h - D honest vectors in whatever sum it learns. Sketch: it learns a seed from h - D
honest parties who reveal it. These are more than half of them, so those who reveal one seed and those who reveal
another have a member in common. Let R be the k honest parties whose own seeds are learned. The common seed of two of
them is not: those who reveal it take one of the two for lost, and that one's own seed is revealed by nobody who does.
Hence the masks within R stay, and only the sum over R can be learned. For that, a member of R must lose its masks
with all h - k honest parties outside. Each takes h - D parties who believe the member survived and the other is lost,
and each of the h parties believes so of at most D others: (h - k) (h - D) <= h D, from which h - k < D + 1 follows.
If h is smaller a lying coordinator can unmask a single party, so a :class:`~discreet.parties.study.Study` with too
many dropouts is refused. About the outcome the coordinator has to be believed in any case: it can leave out or alter
any vector, and so can each party its own.

**What the caller must keep.** Vectors hold noise before they are masked
(:func:`~discreet.core.noise_shares.add_noise_share`). The same vector is never masked twice, in any session: sums
over two sets of survivors would differ by one vector. :class:`SecureParty` refuses a round that is not beyond its
last; after a restart the caller's ledger does. Masked vectors and answers are signed by whoever carries them
(:mod:`~discreet.parties.messages`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import InvalidParameter, PlanViolation, whole
from discreet.parties.secure.masks import (
    KEY,
    WORD,
    RoundKeys,
    add_mask,
    pair_secret,
    public_bytes,
    round_keys,
)
from discreet.parties.secure.secure_group import (
    SecureGroup,
    read_introductions,
    read_request,
    seeds_to_reveal,
)
from discreet.parties.secure.shares import open_share, seal, split_secrets


class SecureParty:
    """One party: it advertises a key, joins a session, masks its vector in each round and helps to unmask the sum.

    Every refusal is a :class:`PlanViolation` that depends on messages alone, never on a vector. The object is not
    for several threads at once.

    Guarantee: that of the module's docstring, as far as the caller keeps what stands there at the end.
    """

    def __init__(
        self,
        name: str,
        group: SecureGroup,
        signing_key: Ed25519PrivateKey,
        stream: RandomStream | None = None,
    ) -> None:
        own = signing_key.public_key().public_bytes_raw()
        if name not in group.keys or group.keys[name].public_bytes_raw() != own:
            raise InvalidParameter("signing_key", name, "is not the key that the group knows of this party.")
        self._name, self._group, self._signing_key = name, group, signing_key
        self._stream = system_stream() if stream is None else stream
        self._secret: X25519PrivateKey | None = None
        self._session: _Session | None = None
        self._last_round = -1
        self._keys: dict[str, RoundKeys] = {}
        self._answered: tuple[bytes, bytes] | None = None

    def advertise(self) -> bytes:
        """A fresh public key, signed. It ends the session before, with all its secrets."""
        self._session, self._keys, self._answered = None, {}, None
        self._secret = X25519PrivateKey.from_private_bytes(self._stream.bytes(KEY))
        own = public_bytes(self._secret)
        return own + self._signing_key.sign(self._group.signed_text(self._name, own))

    def join(self, introductions: bytes) -> None:
        """Agree on a secret with every party that the coordinator introduces, once for each advertised key."""
        if self._secret is None or self._session is not None:
            raise PlanViolation("There is no advertised key to join a session with.")
        self._session = _Session(self._name, self._secret, introductions, self._group)

    def mask(self, round: int, counts: NDArray[np.int64]) -> bytes:
        """The vector under its masks, and the sealed shares of their seeds: what may leave the party.

        Guarantee: uniform to whoever lacks one of the masks; see the module's docstring for who that is.
        """
        session = self._present_session()
        round = whole("round", round, at_least=0, at_most=2**63 - 1)
        if round <= self._last_round:
            raise PlanViolation("This round was masked before; a vector is masked once.")
        if not (isinstance(counts, np.ndarray) and counts.dtype == np.int64 and counts.ndim == 1):
            raise InvalidParameter("counts", type(counts), "must be a vector of int64.")
        self._last_round, self._answered = round, None
        self._keys = keys = session.round_keys(round, self._stream)
        vector = counts.astype(WORD)
        for name in keys:
            add_mask(vector, keys[name].mask, sign_of(self._name, name))
        rows = split_secrets(
            [pair.mask for pair in keys.values()], self._group.threshold, len(keys), self._stream
        )
        sealed = (
            seal(row, direction_key(keys[name], self._name, name))
            for name, row in zip(keys, rows, strict=True)
        )
        return b"".join((vector.tobytes(), *sealed))

    def unmask(
        self,
        round: int,
        request: bytes,
        reveals: Callable[[tuple[str, ...]], object] = lambda survivors: None,
    ) -> bytes:
        """Shares of the seeds that the coordinator needs, for one set of survivors; a retry gets the same bytes.

        ``reveals`` is called with the survivors before anything is revealed, and raises unless it may be.
        """
        session = self._present_session()
        if round != self._last_round or not self._keys:
            raise PlanViolation("Only the round that was masked last can be unmasked.")
        if self._answered is None:
            survivors, sealed = read_request(request, session.names)
            if len(survivors) < self._group.threshold or self._name not in survivors:
                raise PlanViolation("Too few parties survived, or not this one; nothing is unmasked.")
            reveals(tuple(survivors))
            self._answered = request, self._reveal(session, survivors, sealed)
        if self._answered[0] != request:
            raise PlanViolation("This round was unmasked before, for another request.")
        return self._answered[1]

    def _reveal(self, session: _Session, survivors: list[str], sealed: NDArray[np.uint8]) -> bytes:
        mine = sealed[:, survivors.index(self._name)]
        return b"".join(
            open_share(piece.tobytes(), index, direction_key(self._keys[name], name, self._name))
            for name, pieces in zip(survivors, mine, strict=True)
            for piece, index in zip(pieces, seeds_to_reveal(name, survivors, session.names), strict=True)
        )

    @property
    def joined(self) -> bool:
        """Whether the party is in a session."""
        return self._session is not None

    def _present_session(self) -> _Session:
        if self._session is None:
            raise PlanViolation("This party has not joined a session.")
        return self._session


class _Session:
    """The secrets that one party shares with each of the others who joined with it.

    The secrets depend on all that was introduced: parties who were told different things share nothing.
    """

    def __init__(self, name: str, key: X25519PrivateKey, introductions: bytes, group: SecureGroup) -> None:
        public_keys = read_introductions(introductions, group)
        if public_keys.get(name) != public_bytes(key):
            raise PlanViolation("The introductions show another key of this party than it advertised.")
        session = hashlib.sha256(introductions).digest()
        self.names = list(public_keys)
        self._secrets = {
            other: pair_secret(key, public_keys[other], "\0".join(sorted((name, other))).encode() + session)
            for other in self.names
            if other != name
        }

    def round_keys(self, round: int, stream: RandomStream) -> dict[str, RoundKeys]:
        """What this party shares with each of the others in one round, and, drawn afresh, with itself."""
        own = RoundKeys.cut(stream.bytes(3 * KEY))
        keys = {name: round_keys(secret, round) for name, secret in self._secrets.items()}
        return {name: keys.get(name, own) for name in self.names}


def sign_of(first: str, second: str) -> int:
    """Of the mask that two parties share, as ``first`` adds it; a party's own mask counts 1."""
    return 1 if first <= second else -1


def direction_key(keys: RoundKeys, sender: str, receiver: str) -> bytes:
    """The key for messages from ``sender`` to ``receiver``."""
    return keys.upward if sender < receiver else keys.downward
