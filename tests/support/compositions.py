"""One direction of a composition of given distributions, without an event."""

from discreet.accounting.certified_bounds import ROUGH, Proof
from discreet.accounting.dominating import Dominating
from discreet.accounting.search import OneStepSearch, Search
from discreet.guarantee import Bounds


class Composition:
    """Bounds as a privacy curve has them: the search returns the lower end, the proof the upper one."""

    def __init__(self, laws, search):
        self.laws = tuple(laws)
        self._search = search(self.laws, "remove", ROUGH)
        self._parts = Dominating(0.0, Bounds(0.0, 0.0), (), True, None)
        self.estimate_epsilon = self._search.estimate_epsilon
        self.estimate_delta = self._search.estimate_delta

    def _proof(self):
        return Proof(self._parts, lambda direction, quality: list(self.laws), lambda: None)

    def epsilon_bounds(self, delta, tolerance):
        proof = self._proof()
        return Bounds(self._search.epsilon_bounds(proof, delta, tolerance).lower, proof.epsilon(delta))

    def delta_bounds(self, epsilon, tolerance):
        proof = self._proof()
        return Bounds(self._search.delta_bounds(proof, epsilon, tolerance).lower, proof.delta(epsilon))

    def stays_below(self, delta, epsilon, tolerance):
        proof = self._proof()
        return self._search.stays_below(proof, delta, epsilon, tolerance) and proof.delta(epsilon) <= delta


def composed(laws):
    """A composition, whatever the number of its releases, by lattices and in positive arithmetic."""
    return Composition(laws, Search)


def one_step(law):
    """A single release in closed form."""
    return Composition([law], OneStepSearch)
