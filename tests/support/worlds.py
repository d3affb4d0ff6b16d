"""The one-step laws that the tests try: a pair of the library beside an independent closed form of the same law."""

from typing import NamedTuple

import numpy as np

from discreet.accounting.pairs import DiscretePair, GaussianPair, LaplacePair, Pair, Reversed, Sampled
from discreet.accounting.sampled_pairs import FixedSize, GroupPair
from support import accounting_reference as ref


class World(NamedTuple):
    name: str
    pair: Pair
    curve: object


def _sampled_gaussian(noise, rate):
    pair, curve = (
        Sampled(GaussianPair(1 / noise), rate),
        ref.SampledCurve(ref.GaussianCurve(1 / noise), rate),
    )
    yield World(f"remove noise={noise} rate={rate}", pair, curve)
    yield World(f"add noise={noise} rate={rate}", Reversed(pair), ref.ReversedCurve(curve))


def _sampled_laplace(width, rate):
    pair, curve = Sampled(LaplacePair(width), rate), ref.SampledCurve(ref.LaplaceCurve(width), rate)
    yield World(f"remove Laplace width={width} rate={rate}", pair, curve)
    yield World(f"add Laplace width={width} rate={rate}", Reversed(pair), ref.ReversedCurve(curve))


def _groups(noise, rate, leaving, joining):
    pair, curve = GroupPair(noise, rate, leaving, joining), ref.MixtureCurve(noise, rate, leaving, joining)
    yield World(f"group noise={noise} rate={rate} {leaving}:{joining}", pair, curve)
    if leaving != joining:
        name = f"reversed group noise={noise} rate={rate} {leaving}:{joining}"
        yield World(name, Reversed(pair), ref.ReversedCurve(curve))


def _discrete():
    for epsilon in (0.01, 1.0, 6.0):
        pair = DiscretePair.randomised_response(epsilon)
        yield World(f"response {epsilon}", pair, ref.DiscreteCurve(pair.losses, pair.p, pair.q))
    rng = np.random.default_rng(7)
    for infinite in (0.0, 1e-3):
        q = rng.dirichlet(np.ones(12))
        losses = np.sort(rng.normal(0.0, 1.0, 12))
        p = q * np.exp(losses)
        scale = (1 - infinite) / p.sum()  # both masses are probabilities, the loss log(p / q) moves with them
        losses, p = losses + np.log(scale), p * scale
        name = f"discrete infinite={infinite}"
        yield World(name, DiscretePair(losses, p, q, infinite), ref.DiscreteCurve(losses, p, q, infinite))


def worlds():
    """About forty laws, from nearly no privacy to nearly perfect, in both directions."""
    for noise, rate in [
        (4.0, 0.01),
        (1.0, 0.01),
        (0.5, 0.1),
        (0.3, 1e-4),
        (30.0, 1e-5),
        (1.0, 0.9),
        (2.0, 1e-3),
    ]:
        yield from _sampled_gaussian(noise, rate)
    for width, rate in [(1.0, 0.1), (4.0, 0.01), (0.05, 0.5), (20.0, 1e-3)]:
        yield from _sampled_laplace(width, rate)
    for width in (0.1, 1.0, 10.0):
        yield World(f"Laplace {width}", LaplacePair(width), ref.LaplaceCurve(width))
    for mu in (0.02, 1.0, 5.0):
        yield World(f"Gaussian {mu}", GaussianPair(mu), ref.GaussianCurve(mu))
    for noise, rate, leaving, joining in [
        (1.0, 0.01, 1, 1),
        (4.0, 0.2, 1, 1),
        (0.4, 1e-3, 1, 1),
        (1.0, 0.01, 4, 0),
        (3.0, 0.3, 5, 0),
        (0.7, 0.05, 2, 2),
        (2.0, 0.1, 8, 3),
    ]:
        yield from _groups(noise, rate, leaving, joining)
    for noise, rate in [(4.0, 0.01), (1.0, 0.1), (0.5, 1e-3), (10.0, 0.5)]:
        name = f"fixed size noise={noise} rate={rate}"
        yield World(name, FixedSize(GaussianPair(2 / noise), rate), ref.FixedSizeCurve(noise, rate))
    yield from _discrete()
