"""Parties, a coordinator, and all that it ever sees: for the tests of secure sums."""

import hashlib

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet.core.randomness import RandomStream
from discreet.parties.secure.masks import WORD, add_mask
from discreet.parties.secure.secure_coordinator import SecureCoordinator, join_shares
from discreet.parties.secure.secure_group import SecureGroup, read_request, seeds_to_reveal
from discreet.parties.secure.secure_sum import SecureParty, direction_key, sign_of
from discreet.parties.secure.shares import SEALED, SHARE, open_share

STUDY = "5" * 64


def signing_key(name):
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


class World:
    """m parties named a, b, c, ...; deterministic."""

    def __init__(self, parties, dropouts=0, colluders=0, dimension=3, largest=2**63 - 1, seed=1):
        self.names = [chr(ord("a") + index) for index in range(parties)]
        self.keys = {name: signing_key(name) for name in self.names}
        public = {name: key.public_key() for name, key in self.keys.items()}
        self.group = SecureGroup(STUDY, public, dropouts, colluders)
        self.stream = RandomStream(unsafe_seed=seed)
        self.parties = {
            name: SecureParty(name, self.group, key, self.stream) for name, key in self.keys.items()
        }
        self.coordinator = SecureCoordinator(self.group, dimension, largest)
        self.dimension = dimension

    def begin(self, absent=()):
        """A session of all who are not absent."""
        self.present = [name for name in self.names if name not in absent]
        self.introductions = self.coordinator.introduce(
            {name: self.parties[name].advertise() for name in self.present}
        )
        for name in self.present:
            self.parties[name].join(self.introductions)
        return self

    def vectors(self, round=0):
        generator = np.random.default_rng(round)
        return {name: generator.integers(-(2**40), 2**40, self.dimension) for name in self.names}

    def mask(self, round, vectors, lost=()):
        return {
            name: self.parties[name].mask(round, vectors[name]) for name in self.present if name not in lost
        }

    def answers(self, round, request, names):
        return {name: self.parties[name].unmask(round, request) for name in names}

    def sum(self, round, vectors, lost=(), silent=()):
        """One round, in which the vectors of ``lost`` and the answers of ``silent`` do not arrive."""
        masked = self.mask(round, vectors, lost)
        request = self.coordinator.request(masked)
        speakers = [name for name in masked if name not in silent]
        return self.coordinator.total(self.answers(round, request, speakers))


class Attacker:
    """The coordinator with all the vectors that it received, late ones too, and the colluding parties' memories.

    It collects every share it can open or was told, joins them where they are enough, and takes off every mask it
    knows. What is left of each vector is :meth:`remainder`.
    """

    def __init__(self, world, masked, colluders=()):
        self.world, self.masked, self.names = world, masked, world.present
        self.shares = {}  # of the seed that an owner has with another: holder, share
        self.known = {}
        for colluder in colluders:
            self._take_memory(colluder)

    def _take_memory(self, colluder):
        keys = self.world.parties[colluder]._keys
        for other, pair in keys.items():
            self.known[colluder, other] = self.known[other, colluder] = pair.mask
        for owner in self.masked:
            key = direction_key(keys[owner], owner, colluder)
            for place, other in enumerate(self.names):
                piece = self._pieces(owner)[self.names.index(colluder), place]
                self._take_share(owner, other, colluder, open_share(piece.tobytes(), place, key))

    def _pieces(self, owner):
        sealed = np.frombuffer(self.masked[owner], np.uint8, offset=8 * self.world.dimension)
        return sealed.reshape(len(self.names), len(self.names), SEALED)

    def _take_share(self, owner, other, holder, share):
        self.shares.setdefault((owner, other), {})[1 + self.names.index(holder)] = [share]

    def listen(self, request, answers):
        """Take what the parties revealed in answer to a request."""
        survivors, _ = read_request(request, self.names)
        for holder, answer in answers.items():
            parts = iter([answer[at : at + SHARE] for at in range(0, len(answer), SHARE)])
            for owner in survivors:
                for place in seeds_to_reveal(owner, survivors, self.names):
                    self._take_share(owner, self.names[place], holder, next(parts))

    def seeds(self):
        """Every seed that can be known, by owner and other party."""
        for (owner, other), rows in self.shares.items():
            if len(rows) >= self.world.group.threshold:
                self.known[owner, other] = self.known[other, owner] = join_shares(rows)[0]
        return self.known

    def remainder(self, name):
        """A vector without the masks that are known."""
        vector = np.frombuffer(self.masked[name], WORD, count=self.world.dimension).copy()
        for (owner, other), seed in self.seeds().items():
            if owner == name:
                add_mask(vector, seed, -sign_of(owner, other))
        return vector.astype(np.int64)
