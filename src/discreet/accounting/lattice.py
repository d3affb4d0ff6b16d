"""The certified lattice: privacy-loss distributions on a grid, one that overstates and one that understates the loss.

A :class:`LossLattice` carries two distributions on the same grid of losses, such that for every a >= 0

    H_optimistic(a)  <=  H_exact(a)  <=  H_pessimistic(a) + infinite mass.

Both orders survive composition, because the hockey-stick of a product is an average of hockey-sticks of one
factor: H_{12}(a) = E_{L1 ~ P1} H_2(a e^{-L1}). That also holds for sub-probabilities, so mass may be dropped
from the optimistic distribution.

* pessimistic: *chords*. The mass of a cell is split onto its two ends so that its P- and Q-mass stay the same;
  H becomes the piecewise linear interpolation of the exact curve at the grid points.
* optimistic: *tangents* at the middle of every cell. At a grid point the curve takes the smaller of the two
  tangents beside it, so each straight piece lies below a tangent, which lies below the exact curve.

Both are wrong by O(step^2) only. Distributions are stored tilted, mass(l) * e^{tilt * l - log_scale} with total 1, so
that FFTs see the region of interest at full precision: every numerical error is an L1 error of the tilted
distribution, and

    error of delta(epsilon)  <=  error * e^{log_scale - tilt * epsilon} * max_y e^{-tilt y} (1 - e^{-y}).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from discreet.accounting.pairs import Array

PESSIMISTIC, OPTIMISTIC = 0, 1
ULP = 2.3e-16
TINY = 1e-300
OMITTED = 3e-20  # e^-45
SILENT = 1e-20  # Fourier coefficients of a sum that are left out, each


# What the rounding of cell masses can do to a composed curve.
#
# A normal tail of mass m is computed to ULP (c + 2 log(1/m)) of itself, because its argument is rounded. The curve
# at a loss l is P(L > l) - e^l Q(L > l), and Q(L > l) is as small as m e^-l, so with m = P(L > l) it is computed to
# ULP m (12 + 3 log(1/m) + 3 l_+). Tests check the constants against arbitrary precision.
#
# After composition (docs/mathematics.md, (7)). Let h be the curve of one release and h' what was computed of it.
#
# * |h' - h| <= u m. As m = h + a |h'(a)| and h is convex, h + u m <= (1 + u) h(a / (1 + u)): all masses (1 + u) times
#   as large and all losses log(1 + u) larger. T releases: e^{Tu} H(a e^{-Tu}), whatever T u is.
# * What is wrong beyond a loss only, by r m there, is at most the curve of an additional distribution: r / (1 - e^-s)
# times
#   the distribution beyond, moved up by s, for any s. At the best s its tilted mass is r / max_y e^{-ty} (1 - e^-y)
# times that
#   of the distribution. T releases: all products with at least one of these, (1 + x)^T - 1 <= e^{Tx} - 1 of the
# tilted mass.
#
# To first order both are the mean of the error over the other losses; that is wrong unless T (tilt + 1) u is small.


def cell_accuracy(log_delta: float) -> float:
    """Bound on the rounding of a one-step curve after composition, relative to the composed tail P(L > epsilon).

    A normal tail of mass m is computed to ulp (c + 2 log(1/m)), because its argument is rounded. The error of
    the composed curve is the mean of m ulp (c + 2 log(1/m)) over the other losses; that function of m is
    concave, so it is at most its value at the mean of m, which is the composed tail and no less than delta. For large
    losses, ``log_delta`` is that of delta less the largest of them.
    """
    return ULP * (12.0 + 3.0 * max(-log_delta, 0.0))


@dataclass(frozen=True, eq=False)
class Layers:
    """The rounding of cell masses, told apart by how rare a loss is.

    log(1/m) is less than 1 + the number of k >= 1 with m < e^-k, and l less than 1 + that of k >= 1 with l > k. After
    composition m is averaged over the other losses. Where m < e^-k, this loss is beyond its e^-k quantile (or beyond
    k) and the total beyond epsilon, which has at most the probability of the second, the tail, and at most (Chernoff)
    the unit of the lattice times the tilted mass of the first. So most losses are charged with 18 ulps instead of
    hundreds, and only rare ones with more. Layers below all that is asked are covered by the 1.
    """

    common: float
    each: float
    rare: Array

    @classmethod
    def of(cls, losses: Array, tilted: Array, masses: Array, widths: Array, log_delta: float) -> Layers:
        """From a distribution on chords, tilted and not; ``widths`` are those of the cells above times the tilt."""
        count = int(np.clip(-log_delta, 1.0, 700.0))
        # All of a cell counts at its upper end, and from the vertex below the quantile on.
        beyond = np.cumsum((tilted * np.exp(np.minimum(widths, 50.0)))[::-1])[::-1]
        tails = np.cumsum(masses[::-1])[::-1]
        first = np.searchsorted(-tails, -np.exp(-np.arange(1.0, count + 1.0)), side="left") - 1
        large = np.searchsorted(losses, np.arange(1.0, max(float(losses[-1]), 0.0) + 1.0), side="right") - 1
        rare = 1.01 * beyond[np.clip(np.concatenate([first, large]), 0, len(beyond) - 1)]
        return cls(18.0 * ULP, 3.0 * ULP, 3.0 * ULP * rare)

    def split(self, tail: float) -> tuple[float, float]:
        """The sum of errors that count as a shift, and the tilted mass of those that count as new distributions.

        Any choice of layers is sound; beyond ``tail`` it is best to first order.
        """
        shifted = self.rare >= self.each * tail
        return self.common + self.each * int(shifted.sum()), float(self.rare[~shifted].sum())

    def times(self, count: int, more: Layers | None = None) -> Layers:
        """``count`` releases of this kind, and ``more``."""
        common, each, rare = count * self.common, count * self.each, count * self.rare
        if more is None:
            return Layers(common, each, rare)
        if len(rare) == len(more.rare):
            return Layers(common + more.common, each + more.each, rare + more.rare)
        # Layers of different kinds: the smaller of the two bounds, for each kind on its own.
        return Layers(common + more.common, max(each, more.each), np.concatenate([rare, more.rare]))


@dataclass(frozen=True, eq=False)
class LossLattice:
    """Tilted distributions on the losses ``start + step * k``; row 0 is pessimistic, row 1 (if any) optimistic."""

    start: float
    step: float
    tilt: float
    masses: Array  # (1 or 2, n), each row with total about 1
    log_scale: Array  # one a row: log of the factor that turns a row back into its tilted distribution
    infinite: float  # P-mass at infinite loss, pessimistic only
    error: float  # bound on the L1 distance of each row from the distribution it stands for
    releases: int
    cell_error: float  # bound on the rounding of all cell masses, in units of the tail beyond a loss
    layers: Layers | None = None  # a closer bound on the same
    least: float = 0.0  # the smallest delta for which the rounding of cell masses was charged

    @property
    def losses(self) -> Array:
        return np.asarray(self.start + self.step * np.arange(self.masses.shape[1]), dtype=np.float64)

    @cached_property
    def ends(self) -> tuple[int, int]:
        """The first and the last place with mass."""
        places = np.flatnonzero(self.masses.any(axis=0))
        return int(places[0]), int(places[-1])

    @property
    def end(self) -> float:
        """The loss one step beyond the last."""
        return float(self.start + self.step * self.masses.shape[1])

    def curve(self, row: int, epsilon: float) -> tuple[float, float]:
        """(delta, tail) of one row at ``epsilon``, in units of :meth:`log_unit` and without error terms.

        ``tail`` is P(L > epsilon). Losses so far out that they weigh less than e^-45 are left out.
        """
        size = self.masses.shape[1]
        first = int(min(max(0.0, np.floor((epsilon - self.start) / self.step) + 1), size))
        while first > 0 and self.start + self.step * (first - 1) > epsilon:
            first -= 1
        near, far = self._kernels
        beyond = self.masses[row, first : first + len(near)]
        start = max(self.start - epsilon + self.step * first, 0.0)
        # 1 - e^{-(a+b)} = (1 - e^{-b}) + e^{-b} (1 - e^{-a}): sums of positive terms, whatever epsilon is.
        low, high = (float(np.einsum("i,i->", beyond, part[: len(beyond)])) for part in (near, far))
        scale = float(np.exp(-self.tilt * start))
        return scale * (low - float(np.expm1(-start)) * high), scale * (low + high)

    @property
    def _kernels(self) -> tuple[Array, Array]:
        return _kernels(self.tilt, self.step, self.masses.shape[1])

    def log_unit(self, row: int, epsilon: float) -> float:
        """log of the factor that :meth:`curve` leaves out."""
        return float(self.log_scale[row] - self.tilt * epsilon)

    def rounding(self, epsilon: float) -> tuple[float, float]:
        """Rounding of cell masses at ``epsilon``: a shift of the loss, and additional tilted mass. See above.

        Of all choices, which are all sound, the one that costs least near ``epsilon``.
        """
        weight = largest_weight(self.tilt)
        tail = self.curve(PESSIMISTIC, epsilon)[1] + self.error
        choices = [(self.cell_error, 0.0)]
        if self.layers is not None:
            choices += [self.layers.split(tail), self.layers.split(0.0)]
        plds = [(shift, float(np.expm1(min(rare / weight, 50.0)))) for shift, rare in choices]
        return min(plds, key=lambda dist: dist[0] * tail + dist[1] * weight)

    def relative_rounding(self, epsilon: float) -> float:
        """Rounding of scales and exponents, as a logarithm of a factor on delta."""
        span = abs(self.start) + self.step * self.masses.shape[1] + abs(epsilon)
        return ULP * float(64.0 * self.releases + 8.0 * self.tilt * span + self.masses.shape[1])

    def delta_upper(self, epsilon: float) -> tuple[float, float]:
        """A proved upper bound on delta(epsilon), and the slope of its logarithm (not proved)."""
        shift, more = self.rounding(epsilon)
        at = epsilon - shift
        delta, tail = self.curve(PESSIMISTIC, at)
        absolute = (self.error + more) * largest_weight(self.tilt) + OMITTED
        factor = self.log_unit(PESSIMISTIC, at) + shift + self.relative_rounding(at)
        bound = max(times_exp(delta + absolute, factor) + self.infinite, self.least)
        slope = -max(tail - delta, TINY) / (delta + absolute)
        return bound if bound < 1.0 else 1.0, slope  # a NaN becomes 1, never 0


@lru_cache(maxsize=2)
def _kernels(tilt: float, step: float, size: int) -> tuple[Array, Array]:
    """e^{-tilt b} (1 - e^{-b}) and e^{-tilt b} e^{-b} at the distances b = 0, step, 2 step, ..."""
    width = size if tilt == 0 else min(size, int(np.ceil(45.0 / (tilt * step))) + 1)
    # b = b1 + b2 for few b1 and b2: e^-b is a product, and 1 - e^-b = (1 - e^-b1) + e^-b1 (1 - e^-b2).
    fine = step * np.arange(64.0)
    coarse = (64 * step * np.arange(float(-(-width // 64))))[:, None]
    near = -np.expm1(-fine) * np.exp(-coarse) - np.expm1(-coarse)
    near *= np.exp(-tilt * coarse) * np.exp(-tilt * fine)
    far = np.exp(-(tilt + 1) * coarse) * np.exp(-(tilt + 1) * fine)
    return near.ravel()[:width], far.ravel()[:width]


def exp_times(exponent: Array, factor: Array) -> Array:
    """e^exponent times ``factor``, without overflow on the way."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.exp(exponent + np.log(factor))


def times_exp(value: float, exponent: float) -> float:
    """``value`` times e^exponent, at most e."""
    return float(np.exp(min(np.log(value) + exponent, 1.0))) if value != 0.0 else 0.0


def largest_weight(tilt: float) -> float:
    """max over y >= 0 of e^{-tilt y} (1 - e^{-y})."""
    if tilt == 0.0:
        return 1.0
    return float(np.exp(tilt * np.log(tilt) - (tilt + 1) * np.log1p(tilt)))


class Transformed:
    """A one-step distribution and its Fourier transform for windows of ``size`` grid points."""

    def __init__(self, dist: LossLattice, size: int) -> None:
        self.dist, self.size = dist, size
        # One-step distributions wrap around the window without harm: only the sum must fit.
        self._spectrum = scipy.fft.rfft(_fold(dist.masses, size), axis=1)
        self._loudest = (self._spectrum.real**2 + self._spectrum.imag**2).max(axis=0)

    def power(self, count: int, most: int) -> NDArray[np.complex128]:
        """The first ``most`` coefficients of the sum of ``count`` losses, but for a silent rest.

        A sum of many losses is smooth, and nearly all of its coefficients are nothing: less than ``SILENT`` each.
        Leaving them out changes the L2 norm by at most that, and the L1 norm by the root of the size times as much.
        """
        heard = np.flatnonzero(~(self._loudest[:most] < SILENT ** (2.0 / count)))  # also what is not a number
        kept = int(heard[-1]) + 1 if len(heard) else 1
        return _power(self._spectrum[:, :kept].copy(), count)


def window_size(window: tuple[float, float], step: float) -> int:
    """A number of grid points that covers a window, and suits the FFT."""
    return int(scipy.fft.next_fast_len(int(np.ceil((window[1] - window[0]) / step)) + 2, True))


def compose(
    parts: Sequence[tuple[LossLattice, int]], window: tuple[float, float], alias: float
) -> LossLattice:
    """The distribution of the sum of ``count`` independent losses of each part, on a window of total losses.

    ``alias`` bounds the tilted mass outside of the window, of either row; :func:`mass_outside` proves it.
    All parts share tilt and step.
    """
    size = window_size(window, parts[0][0].step)
    return compose_transformed([(Transformed(part, size), count) for part, count in parts], window[0], alias)


def compose_transformed(parts: Sequence[tuple[Transformed, int]], low: float, alias: float) -> LossLattice:
    """As :func:`compose`, on the window of their size that begins at ``low``."""
    step, tilt, size = parts[0][0].dist.step, parts[0][0].dist.tilt, parts[0][0].size
    origin = sum(count * part.dist.start for part, count in parts)
    first = int(np.floor((low - origin) / step))
    spectrum: NDArray[np.complex128] | None = None
    log_scale = np.zeros(len(parts[0][0].dist.masses))
    infinite, cell_error, releases, total, few = 0.0, 0.0, 0, 0, 0
    error = 2 * alias + float(np.sqrt(size)) * SILENT
    layers: Layers | None = None
    for transformed, count in parts:
        power = transformed.power(count, size if spectrum is None else spectrum.shape[1])
        spectrum = power if spectrum is None else spectrum[:, : power.shape[1]] * power
        part = transformed.dist
        log_scale = log_scale + count * part.log_scale
        infinite += count * part.infinite
        error += float(np.expm1(min(count * part.error, 50.0)))
        few += count if count < 64 else 0
        releases += count * part.releases
        cell_error += count * part.cell_error
        layers = part.layers.times(count, layers) if part.layers else None
        total += count
    if not all(part.dist.layers for part, _ in parts):
        layers = None  # what is known of some parts says nothing of the others
    masses = scipy.fft.irfft(spectrum, size, axis=1)
    # Each output of an FFT is wrong by at most about 4 ulp log2(n) times the L1 norm of its input. A power z^m turns
    # that into m |z|^(m-1) as much: at most m for few factors; for many 2 m |z^m| where |z| >= 1/2 and m 2^(1-m),
    # which is nothing, elsewhere. From the spectrum to the L1 norm of the result it goes through the L2 norm.
    norm = float(np.sqrt(size * np.max(np.einsum("ij,ij->i", masses, masses))))
    rounding = 4 * ULP * float(np.log2(size)) * ((2 * (total - few) + 1) * norm + few * np.sqrt(size))
    masses = np.roll(masses, -first % size, axis=1)
    masses *= masses >= rounding / size  # below is noise, and costs as much once more
    error += 2 * rounding
    least = max(part.dist.least for part, _ in parts)
    start = origin + first * step
    return LossLattice(
        start, step, tilt, masses, log_scale, infinite, error, releases, cell_error, layers, least
    )


def _fold(masses: Array, size: int) -> Array:
    rows, length = masses.shape
    rounds = -(-length // size)
    padded = np.zeros((rows, rounds * size))
    padded[:, :length] = masses
    return np.asarray(padded.reshape(rows, rounds, size).sum(axis=1)) if rounds > 1 else padded


def _power(spectrum: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """Integer power by squaring, in place; a logarithm would lose its branch."""
    result = None
    while True:
        if count & 1:
            result = spectrum.copy() if result is None else np.multiply(result, spectrum, out=result)
        count >>= 1
        if not count:
            assert result is not None
            return result
        np.multiply(spectrum, spectrum, out=spectrum)


def mass_outside(
    parts: Sequence[tuple[LossLattice, int]], window: tuple[float, float], slopes: tuple[float, float]
) -> float:
    """A Chernoff bound on the tilted mass of the sum outside of ``window``, for the worse of the two rows.

    ``slopes`` are the (positive) exponents used below and above; any choice is sound.
    """
    if not min(slopes) > 0:
        return np.inf
    below = sum(count * _log_moment(part, -slopes[0]) for part, count in parts)
    above = sum(count * _log_moment(part, slopes[1]) for part, count in parts)
    exponents = np.concatenate([below + slopes[0] * window[0], above - slopes[1] * window[1]])
    return float(2 * np.exp(np.minimum(exponents, 50.0)).max())


def _log_moment(lattice: LossLattice, slope: float) -> Array:
    """log of the mean of e^{slope * loss} of each row."""
    losses = lattice.losses
    top = slope * losses[lattice.ends[0 if slope < 0 else 1]]
    with np.errstate(divide="ignore", over="ignore"):
        weights = np.exp(np.minimum(slope * losses - top, 0.0))
        return np.asarray(top + np.log(weighted_sums(lattice.masses, weights)))


def weighted_sums(rows: Array, weights: Array) -> Array:
    """Weighted sum of every row. Not a BLAS product: its threads cost more than they save at this size."""
    return np.asarray(np.einsum("ij,j->i", rows, weights))
