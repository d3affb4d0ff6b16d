"""Privacy curves by other means, to check the library against: densities, quadrature and Fourier integrals.

A one-step law is a list of atoms: losses with their masses under the first distribution, from Gauss-Legendre
quadrature of the densities themselves. Outcomes of total probability ``tail`` are left out. Nothing is inverted
and nothing rounded to a grid that the library also uses; nothing here is imported from the library.

Two independent roads lead from the atoms to a composition:

* :func:`contour_delta`, for many releases: delta(e) = 1/(2 pi i) int exp(K(t) - e t) / (t (t + 1)) dt over a
  vertical line, where K is the logarithm of the moment generating function. Exact up to aliasing, which is
  made negligible by a Chernoff bound.
* :class:`Grid`, for few releases: atoms are spread over a fine grid so that five moments are kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import ndtr, ndtri
from scipy.stats import binom

NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)


class Atoms(NamedTuple):
    losses: np.ndarray
    masses: np.ndarray


def quadrature(low, high, width):
    """Nodes and weights of even panels not wider than ``width``."""
    return panels(np.linspace(low, high, max(8, int(np.ceil((high - low) / width))) + 1))


def panels(edges):
    half = np.diff(edges)[:, None] / 2
    middle = (edges[1:] + edges[:-1])[:, None] / 2
    return (middle + half * NODES).ravel(), (half * WEIGHTS).ravel()


def normal_density(x, mean, noise):
    return np.exp(-(((x - mean) / noise) ** 2) / 2) / (noise * np.sqrt(2 * np.pi))


def log_mixture_ratio(x, noise, shifts, weights):
    """log of sum_j weights_j N(shifts_j) / N(0) at ``x``, without loss of digits where it is close to 0."""
    exponents = (2 * np.multiply.outer(x, shifts) - np.square(shifts)) / (2 * noise**2)
    top = np.maximum(exponents.max(axis=-1), 0.0)
    near = np.log1p((weights * np.expm1(np.minimum(exponents, 30.0))).sum(axis=-1))
    far = top + np.log((weights * np.exp(exponents - top[..., None])).sum(axis=-1))
    return np.where(top < 30.0, near, far)


def _ends(noise, direction, tail):
    reach = -ndtri(max(tail, 1e-300) / 2) * noise
    return -reach, reach + (1.0 if direction == "remove" else 0.0)


def gaussian_mixtures(noise, p, q, tail, fine=1.0):
    """Atoms of two mixtures {shift: weight} of normal laws."""
    reach = -ndtri(max(tail, 1e-300) / 2) * noise
    low, high = min(p) - reach, max(p) + reach
    x, dx = quadrature(low, high, 0.5 * noise * min(1.0, noise) / fine)
    (p_shifts, p_weights), (q_shifts, q_weights) = (
        (np.array(list(m)), np.array(list(m.values()))) for m in (p, q)
    )
    density = sum(w * normal_density(x, s, noise) for s, w in p.items())
    losses = log_mixture_ratio(x, noise, p_shifts, p_weights) - log_mixture_ratio(
        x, noise, q_shifts, q_weights
    )
    return Atoms(losses, density * dx)


def sampled_gaussian(noise, rate, direction="remove", tail=1e-30, fine=1.0):
    mixed, plain = {0.0: 1 - rate, 1.0: rate}, {0.0: 1.0}
    p, q = (mixed, plain) if direction == "remove" else (plain, mixed)
    return gaussian_mixtures(noise, p, q, tail, fine)


def group(noise, rate, leaving, joining, tail=1e-30, fine=1.0):
    """``leaving`` records against ``joining`` others, each sampled on its own."""
    p = {float(j): float(binom.pmf(j, leaving, rate)) for j in range(leaving + 1)}
    q = {-float(j): float(binom.pmf(j, joining, rate)) for j in range(joining + 1)}
    return gaussian_mixtures(noise, p, q, tail, fine)


def fixed_size(noise, rate, tail=1e-30, fine=1.0):
    """Positive losses of ((1-q) Q + q P, Q), negative ones of (P, (1-q) P + q Q), the rest at 0.

    P = N(2), Q = N(0).
    """
    reach = -ndtri(max(tail, 1e-300) / 2) * noise
    width = 0.5 * noise * min(1.0, noise) / fine
    x, dx = quadrature(1.0, max(2.0, 1.0) + reach, width)
    positive = np.log1p(rate * np.expm1(np.minimum((2 * x - 2) / noise**2, 700.0)))
    p = ((1 - rate) * normal_density(x, 0.0, noise) + rate * normal_density(x, 2.0, noise)) * dx
    y, dy = quadrature(min(2.0 - reach, 0.0), 1.0, width)
    negative = -np.log1p(rate * np.expm1(np.minimum((2 - 2 * y) / noise**2, 700.0)))
    n = normal_density(y, 2.0, noise) * dy
    atom = (1 - rate) * (1 - 2 * ndtr(-1 / noise))
    return Atoms(np.concatenate([negative, [0.0], positive]), np.concatenate([n, [atom], p]))


def laplace(width, rate=1.0, direction="remove", fine=1.0):
    """Laplace noise of scale 1 and a shift by ``width``, on a Poisson sample; two atoms and a density between."""
    x, dx = quadrature(0.0, width, 0.05 * min(1.0, width) / fine)
    base = np.concatenate([[-width], 2 * x - width, [width]])
    q = np.concatenate([[0.5], 0.5 * np.exp(-x) * dx, [0.5 * np.exp(-width)]])
    p = np.concatenate([[0.5 * np.exp(-width)], 0.5 * np.exp(x - width) * dx, [0.5]])
    losses = np.log1p(rate * np.expm1(base))
    return Atoms(losses, (1 - rate) * q + rate * p) if direction == "remove" else Atoms(-losses, q)


def _exp_times(exponent, factor):
    """e^exponent * factor, also where the exponential alone would overflow."""
    with np.errstate(divide="ignore"):
        return np.exp(exponent + np.log(factor))


class GaussianCurve:
    """N(mu, 1) against N(0, 1)."""

    def __init__(self, mu):
        self.mu = mu

    def tails(self, loss):
        """P and Q above a loss."""
        return ndtr(self.mu / 2 - loss / self.mu), ndtr(-self.mu / 2 - loss / self.mu)

    def lower(self, loss):
        """P and Q below a loss."""
        return ndtr(loss / self.mu - self.mu / 2), ndtr(loss / self.mu + self.mu / 2)


class LaplaceCurve:
    """Laplace noise of scale 1, shifted by ``width``; atoms at both ends belong to the upper side of a loss below."""

    def __init__(self, width):
        self.width = width

    def tails(self, loss):
        p, q = self.lower(-loss)[::-1]
        return p, q

    def lower(self, loss):
        """P and Q at losses < loss."""
        w = self.width
        inner = np.clip(loss, -w, w)
        p = np.where(loss > w, 1.0, np.where(loss <= -w, 0.0, 0.5 * np.exp((inner - w) / 2)))
        q = np.where(loss > w, 1.0, np.where(loss <= -w, 0.0, 1 - 0.5 * np.exp(-(inner + w) / 2)))
        return p, q


class SampledCurve:
    """((1 - rate) Q + rate P, Q)."""

    def __init__(self, base, rate):
        self.base, self.rate = base, rate

    def base_loss(self, loss):
        with np.errstate(divide="ignore", over="ignore"):
            near = np.log1p(np.maximum(np.expm1(np.minimum(loss, 30.0)) / self.rate, -1.0))
            far = loss - np.log(self.rate) + np.log1p(-(1 - self.rate) * np.exp(-np.maximum(loss, 0.0)))
        return np.where(loss > 30.0, far, near)

    def _mixed(self, p, q):
        return (1 - self.rate) * q + self.rate * p, q

    def tails(self, loss):
        return self._mixed(*self.base.tails(self.base_loss(loss)))

    def lower(self, loss):
        return self._mixed(*self.base.lower(self.base_loss(loss)))


class ReversedCurve:
    """(Q, P)."""

    def __init__(self, of):
        self.of = of

    def tails(self, loss):
        return self.of.lower(-loss)[::-1]

    def lower(self, loss):
        return self.of.tails(-loss)[::-1]


class MixtureCurve:
    """sum_j p_j N(j) against sum_j q_j N(-j): the threshold is found by bisection; H is stationary there."""

    def __init__(self, noise, rate, leaving, joining):
        self.noise = noise
        self.p = np.arange(leaving + 1.0), binom.pmf(np.arange(leaving + 1), leaving, rate)
        self.q = -np.arange(joining + 1.0), binom.pmf(np.arange(joining + 1), joining, rate)

    def threshold(self, loss):
        low = np.full(np.shape(loss), -1e3 * self.noise - 1e3)
        high = -low
        for _ in range(75):
            x = (low + high) / 2
            value = log_mixture_ratio(x, self.noise, *self.p) - log_mixture_ratio(x, self.noise, *self.q)
            low, high = np.where(value <= loss, x, low), np.where(value <= loss, high, x)
        return high

    def _sides(self, loss, sign):
        x = self.threshold(loss)
        return tuple(
            sum(w * ndtr(sign * (x - s) / self.noise) for s, w in zip(*side, strict=True))
            for side in (self.p, self.q)
        )

    def tails(self, loss):
        return self._sides(loss, -1.0)

    def lower(self, loss):
        return self._sides(loss, +1.0)


class FixedSizeCurve:
    """h(a) = rate H_{1 + (a-1)/rate}(N(2), N(0)) for a >= 1, and its mirror image 1 - a + a h(1/a) below."""

    def __init__(self, noise, rate):
        self.sampled = SampledCurve(GaussianCurve(2 / noise), rate)

    def delta(self, loss):
        above = hockey_stick(self.sampled, np.abs(loss))
        return np.where(
            loss >= 0, above, -np.expm1(np.minimum(loss, 0.0)) + np.exp(np.minimum(loss, 0.0)) * above
        )

    def tails(self, loss):
        p, _ = self.sampled.tails(np.maximum(loss, 0.0))
        _, q = self.sampled.tails(np.maximum(-loss, 0.0))  # P below a loss is Q of the mirror image
        return np.where(loss >= 0, p, 1 - q), None


class DiscreteCurve:
    def __init__(self, losses, p, q, p_infinite=0.0):
        self.losses, self.p, self.q, self.p_infinite = losses, p, q, p_infinite

    def delta(self, loss):
        a = np.exp(np.asarray(loss))[..., None]
        return np.maximum(self.p - a * self.q, 0.0).sum(axis=-1) + self.p_infinite

    def tails(self, loss):
        return (self.p * (self.losses > np.asarray(loss)[..., None])).sum(axis=-1) + self.p_infinite, None


def hockey_stick(curve, loss):
    """H at e^loss, each side of 0 from the tails that do not cancel."""
    loss = np.asarray(loss, dtype=np.float64)
    if hasattr(curve, "delta"):
        return curve.delta(loss)
    p, q = curve.tails(np.maximum(loss, 0.0))
    above = p - _exp_times(np.maximum(loss, 0.0), q)
    p, q = curve.lower(np.minimum(loss, 0.0))
    below = -np.expm1(np.minimum(loss, 0.0)) + np.exp(np.minimum(loss, 0.0)) * q - p
    return np.maximum(np.where(loss > 0, above, below), 0.0)


def tail_mass(curve, loss):
    """P(loss > this)."""
    return curve.tails(np.asarray(loss, dtype=np.float64))[0]


def twofold(curve, noise, rate, direction, epsilon, tail):
    """delta of two releases on Poisson samples: the closed form of one, averaged over the other.

    That average has a corner where the other loss is epsilon; the panels shrink towards it from both sides.
    """
    low, high = _ends(noise, direction, tail)
    sign = 1.0 if direction == "remove" else -1.0
    base = np.log1p(max(np.expm1(sign * epsilon) / rate, -1 + 1e-16))
    corner = float(np.clip(base * noise**2 + 0.5, low, high))
    edges = np.concatenate(
        [corner - noise * np.geomspace(1e-12, 1.0, 80), corner + noise * np.geomspace(1e-12, 1.0, 80)]
    )
    edges = np.unique(
        np.clip(
            np.concatenate([edges, np.arange(low, high, 0.25 * noise * min(1.0, noise)), [corner, high]]),
            low,
            high,
        )
    )
    x, dx = panels(edges)
    mixed = log_mixture_ratio(x, noise, np.array([0.0, 1.0]), np.array([1 - rate, rate]))
    density = normal_density(x, 0.0, noise) * (np.exp(mixed) if direction == "remove" else 1.0)
    return float((density * dx * hockey_stick(curve, epsilon - sign * mixed)).sum())


class SlowDecay(Exception):
    """Too few releases for a contour integral."""


class Composition:
    """Sum of independent losses, ``parts`` = [(atoms, count), ...]."""

    def __init__(self, parts):
        self.parts = [(atoms.losses, np.log(np.maximum(atoms.masses, 1e-320)), n) for atoms, n in parts]

    def log_moment(self, t):
        """K(t), for an array of real or complex t; the complex ones share their real part."""
        t = np.atleast_1d(t)
        total = np.zeros(t.shape, dtype=t.dtype)
        for losses, log_masses, count in self.parts:
            if np.iscomplexobj(t):
                exponents = log_masses + t[0].real * losses
                kept = exponents > exponents.max() - 60.0
                losses, log_masses = losses[kept], log_masses[kept]
            exponents = log_masses + np.multiply.outer(t.real, losses)
            top = exponents.max(axis=-1)
            terms = np.exp(exponents - top[:, None])
            if np.iscomplexobj(t):
                terms = terms * np.exp(1j * np.multiply.outer(t.imag, losses))
            total = total + count * (np.log(terms.sum(axis=-1) + 1e-300) + top)
        return total

    def line(self, epsilon):
        """The real part at which the integrand is smallest on the real axis."""

        def log_integrand(log_c):
            c = np.exp(log_c)
            return float(self.log_moment(np.array([c]))[0]) - c * epsilon - np.log(c) - np.log1p(c)

        return float(np.exp(minimize_scalar(log_integrand, bounds=(-8.0, 12.0), method="bounded").x))


def contour_delta(composition, epsilon, digits=12.0, most=500_000):
    """delta(epsilon) of many releases whose loss has a density; SlowDecay where the integrand decays too slowly."""
    c = composition.line(epsilon)
    here = float(composition.log_moment(np.array([c]))[0])
    scale = here - c * epsilon - np.log(c) - np.log1p(c)
    spacing = _spacing(composition, epsilon, c, here, digits * np.log(10))
    total, first, block = 0.0, 0, 64
    size = sum(len(losses) for losses, _, _ in composition.parts)
    while first * size < most:
        y = spacing * np.arange(first, first + block)
        t = c + 1j * y
        terms = np.exp(composition.log_moment(t) - epsilon * t - np.log(t) - np.log(t + 1) - scale)
        total += 2 * float(terms.real.sum()) - (1.0 if first == 0 else 0.0)
        if np.abs(terms[-16:]).max() * y[-1] < 10.0**-digits * spacing * abs(total):
            return total * spacing / (2 * np.pi) * np.exp(scale)
        first += block
    raise SlowDecay


def _spacing(composition, epsilon, c, here, digits):
    """Spacing 2 pi / w with aliases delta(epsilon -+ w) e^{-+ c w} below e^-digits of the value itself."""
    step = 1e-3 * c
    nearby = composition.log_moment(np.array([c - step, c, c + step])).real
    spread = np.sqrt(max(nearby[0] - 2 * nearby[1] + nearby[2], 1e-12)) / step
    log_delta = here - c * epsilon - np.log(c) - np.log1p(c) - np.log(spread + 1.0)
    width = max((digits - log_delta) / c, 8.0 * spread)
    steeper = c + np.geomspace(0.05, 20.0, 24) / max(spread, 1e-6)
    moments = composition.log_moment(steeper).real
    for _ in range(60):
        above = (moments - steeper * (epsilon + width) + c * width).min()
        if above < log_delta - digits:
            return 2 * np.pi / width
        width *= 1.3
    raise SlowDecay


OFFSETS = np.arange(-2, 4)


class Grid:
    """The sum of few losses on a grid of ``size`` points; atoms are spread so that five moments are kept."""

    def __init__(self, parts, tilt, size, window):
        low, high = window
        self.step, self.tilt = (high - low) / size, tilt
        spectrum, self.log_scale, origin = 1.0, 0.0, 0.0
        for atoms, count in parts:
            row, log_total = self._row(atoms, size)
            spectrum = spectrum * np.fft.rfft(row) ** count
            self.log_scale += count * log_total
            origin += count * float(atoms.losses.min())
        first = int(np.floor((low - origin) / self.step))
        self.masses = np.roll(np.fft.irfft(spectrum, size), -first)
        self.losses = origin + self.step * (first + np.arange(size))

    def _row(self, atoms, size):
        position = (atoms.losses - atoms.losses.min()) / self.step
        base = np.floor(position).astype(np.int64)
        fraction = position - base
        log_tilted = np.log(np.maximum(atoms.masses, 1e-320)) + self.tilt * atoms.losses
        tilted = np.exp(log_tilted - log_tilted.max())
        row = np.zeros(size)
        for k in OFFSETS:
            weight = np.prod([(fraction - o) / (k - o) for o in OFFSETS if o != k], axis=0)
            row += np.bincount((base + k) % size, weight * tilted, size)
        return row / tilted.sum(), float(log_tilted.max() + np.log(tilted.sum()))

    def delta(self, epsilon):
        k = int(np.searchsorted(self.losses, epsilon, side="right"))
        if k == len(self.losses):
            return 0.0
        excess = self.losses[k:] - epsilon
        value = -float((self.masses[k:] * np.exp(-self.tilt * excess) * np.expm1(-excess)).sum())
        # Euler and Maclaurin: the kink at epsilon lies a fraction of a cell before the first grid point.
        theta = excess[0] / self.step
        density = (self.masses[k] * (1 - theta) + self.masses[k - 1] * theta) / self.step
        value += density * self.step**2 * (theta**2 - theta + 1 / 6) / 2
        with np.errstate(over="ignore"):  # far below the epsilon that the tilt is meant for
            return value * np.exp(self.log_scale - self.tilt * epsilon)


def window(composition, tilt):
    """Total losses outside of which lies less than e^-36 of the tilted law, by Chernoff's bound."""
    step = 1e-3 * tilt
    moments = composition.log_moment(np.array([tilt - step, tilt, tilt + step])).real
    spread = np.sqrt(max(moments[0] - 2 * moments[1] + moments[2], 1e-300)) / step
    shifts = np.geomspace(0.01, 30.0, 40) / spread
    ends = [
        (sign * (composition.log_moment(tilt + sign * shifts).real - moments[1] + 36.0) / shifts)
        for sign in (-1.0, 1.0)
    ]
    return float(ends[0].max()), float(ends[1].min())


def useful(parts):
    """Without the atoms so low that a total above 0 is out of reach."""
    parts = list(parts)
    highest = sum(n * float(atoms.losses.max()) for atoms, n in parts)
    kept = []
    for atoms, n in parts:
        reach = atoms.losses > -(highest - float(atoms.losses.max())) - 1e-12
        kept.append((Atoms(atoms.losses[reach], atoms.masses[reach]), n))
    return kept


class Value(NamedTuple):
    """A delta and the error that it may have, relative to it."""

    delta: float
    error: float


def delta(make, counts, epsilon, scale):
    """delta at ``epsilon`` of ``counts[i]`` releases of ``make(tail, fine)[i]``; it should be about ``scale``."""
    tail = 1e-10 * scale / sum(counts)
    parts = useful(zip(make(tail, 1.0), counts, strict=True))
    if epsilon >= sum(n * float(atoms.losses.max()) for atoms, n in parts):
        return Value(0.0, 0.0)
    composition = Composition(parts)
    try:
        return Value(contour_delta(composition, epsilon), 1e-8)
    except SlowDecay:
        tilt = composition.line(epsilon)
        ends = window(composition, tilt)
        fine = useful(zip(make(tail, 12.0), counts, strict=True))
        coarse, value = (Grid(fine, tilt, size, ends).delta(epsilon) for size in (2**16, 2**17))
        return Value(value, 1e-8 + 2 * abs(coarse / value - 1))
