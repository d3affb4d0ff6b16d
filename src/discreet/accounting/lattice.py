"""The certified lattice: privacy-loss laws on a grid, one that overstates and one that understates the loss.

A :class:`Lattice` carries two laws on the same grid of losses, such that for every a >= 0

    H_optimistic(a)  <=  H_exact(a)  <=  H_pessimistic(a) + infinite mass.

Both orders survive composition, because the hockey-stick of a product is an average of hockey-sticks of one
factor: H_{12}(a) = E_{L1 ~ P1} H_2(a e^{-L1}). That also holds for sub-probabilities, so mass may be dropped
from the optimistic law.

* pessimistic: *chords*. The mass of a cell is split onto its two ends so that its P- and Q-mass stay the same;
  H becomes the piecewise linear interpolation of the exact curve at the grid points.
* optimistic: *tangents* at the middle of every cell. At a grid point the curve takes the smaller of the two
  tangents beside it, so each straight piece lies below a tangent, which lies below the exact curve.

Both are wrong by O(step^2) only. Laws are stored tilted, mass(l) * e^{tilt * l - log_scale} with total 1, so that
FFTs see the region of interest at full precision: every numerical error is an L1 error of the tilted law, and

    error of delta(epsilon)  <=  error * e^{log_scale - tilt * epsilon} * max_y e^{-tilt y} (1 - e^{-y}).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from discreet.accounting.pairs import Array, Pair
from discreet.accounting.rounding import ULP, Layers, cell_accuracy

PESSIMISTIC, OPTIMISTIC = 0, 1
TINY = 1e-300
OMITTED = 3e-20  # e^-45
SILENT = 1e-20  # Fourier coefficients of a sum that are left out, each
MOST_CORNERS = 100_000
MOST_LAYERS = 100_000
LARGEST_LOSS = 640.0  # e^640 times TINY is still negligible


@dataclass(frozen=True, eq=False)
class Lattice:
    """Tilted laws on the losses ``start + step * k``; row 0 is pessimistic, row 1, if there is one, optimistic."""

    start: float
    step: float
    tilt: float
    masses: Array  # (1 or 2, n), each row with total about 1
    log_scale: Array  # one a row: log of the factor that turns a row back into its tilted law
    infinite: float  # P-mass at infinite loss, pessimistic only
    error: float  # bound on the L1 distance of each row from the law it stands for
    releases: int
    cell_error: float  # bound on the rounding of all cell masses, in units of the tail beyond a loss
    layers: Layers | None = None  # a closer bound on the same

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

    def _slack(self, row: int, epsilon: float, tail: float) -> tuple[float, float]:
        """What numerical errors can add to a delta: absolutely, and relative to it. ``tail`` is that of ``row``."""
        tail = (tail + self.error) * float(
            np.exp(min(self.log_scale[PESSIMISTIC] - self.log_scale[row], 50.0))
        )
        cells = self.cell_error * tail
        if self.layers is not None:
            cells = min(cells, self.layers.rounding(tail))
        span = abs(self.start) + self.step * self.masses.shape[1] + abs(epsilon)
        relative = ULP * (64.0 * self.releases + 8.0 * self.tilt * span + self.masses.shape[1])
        return self.error * largest_weight(self.tilt) + cells + OMITTED, relative

    def delta_upper(self, epsilon: float) -> tuple[float, float]:
        """A proved upper bound on delta(epsilon), and the slope of its logarithm (not proved)."""
        delta, tail = self.curve(PESSIMISTIC, epsilon)
        absolute, relative = self._slack(PESSIMISTIC, epsilon, tail)
        bound = (
            _times_exp((delta + absolute) * (1.0 + relative), self.log_unit(PESSIMISTIC, epsilon))
            + self.infinite
        )
        slope = -max(tail - delta, TINY) / (delta + absolute)
        return bound if bound < 1.0 else 1.0, slope  # a NaN becomes 1, never 0

    def delta_lower(self, epsilon: float, errors_at: float | None = None) -> tuple[float, float]:
        """A proved lower bound on delta(epsilon), and the slope of its logarithm (not proved).

        ``errors_at`` takes the numerical errors of a smaller epsilon, which are larger.
        """
        delta, tail = self.curve(OPTIMISTIC, epsilon)
        absolute, relative = self._slack(OPTIMISTIC, epsilon, tail)
        if errors_at is not None and self.tilt > 0:
            absolute, relative = self._slack(OPTIMISTIC, errors_at, self.curve(OPTIMISTIC, errors_at)[1])
            absolute *= float(np.exp(min(self.tilt * (epsilon - errors_at), 700.0)))
        value = max(delta * (1.0 - relative) - absolute, 0.0)
        return _times_exp(value, self.log_unit(OPTIMISTIC, epsilon)), -max(tail - delta, TINY) / max(
            value, TINY
        )

    def total_lower(self) -> float:
        """A proved lower bound on the total mass of P, for a lattice that is not tilted."""
        return float((self.masses[OPTIMISTIC].sum() - self.error) * np.exp(self.log_scale[OPTIMISTIC]))

    def floor(self, epsilon: float) -> float:
        """What numerical errors alone add to a delta, about: no finer grid brings it down."""
        return _times_exp(
            self.error * largest_weight(self.tilt) + OMITTED, self.log_unit(PESSIMISTIC, epsilon)
        )


@lru_cache(maxsize=2)
def _kernels(tilt: float, step: float, size: int) -> tuple[Array, Array]:
    """e^{-tilt b} (1 - e^{-b}) and e^{-tilt b} e^{-b} at the distances b = 0, step, 2 step, ..."""
    reach = size if tilt == 0 else min(size, int(np.ceil(45.0 / (tilt * step))) + 1)
    # b = b1 + b2 for few b1 and b2: e^-b is a product, and 1 - e^-b = (1 - e^-b1) + e^-b1 (1 - e^-b2).
    fine = step * np.arange(64.0)
    coarse = (64 * step * np.arange(float(-(-reach // 64))))[:, None]
    near = -np.expm1(-fine) * np.exp(-coarse) - np.expm1(-coarse)
    near *= np.exp(-tilt * coarse) * np.exp(-tilt * fine)
    far = np.exp(-(tilt + 1) * coarse) * np.exp(-(tilt + 1) * fine)
    return near.ravel()[:reach], far.ravel()[:reach]


def _times_exp(value: float, exponent: float) -> float:
    return float(np.exp(min(np.log(value) + exponent, 1.0))) if value != 0.0 else 0.0


def largest_weight(tilt: float) -> float:
    """max over y >= 0 of e^{-tilt y} (1 - e^{-y})."""
    if tilt == 0.0:
        return 1.0
    return float(np.exp(tilt * np.log(tilt) - (tilt + 1) * np.log1p(tilt)))


def discretise(
    upper: Pair,
    lower: Pair | None,
    tilt: float,
    step: float,
    offset: float,
    vertices: NDArray[np.int64],
    log_delta: float,
) -> Lattice:
    """Put a one-step law on ``offset + step * vertices``, increasing whole numbers with gaps if one likes.

    ``upper`` and ``lower`` are the pair itself, or two pairs that enclose it; without ``lower`` there is no
    optimistic row. ``log_delta`` is the smallest delta that will be asked of the composition; see
    :func:`cell_accuracy`.

    Guarantee: H_optimistic <= H(lower) and H(upper) <= H_pessimistic + infinite, at every a >= 0.
    """
    losses = offset + step * vertices.astype(np.float64)
    pessimistic, infinite = chords(upper, losses)
    accuracy = cell_accuracy(log_delta - max(float(losses[-1]), 0.0))
    laws = [pessimistic] if lower is None else [pessimistic, _tangents(lower, losses, accuracy)]
    if not (all(np.all(np.isfinite(law)) for law in laws) and np.isfinite(infinite)):
        raise FloatingPointError("a privacy loss beyond the range of double precision")
    rows = np.zeros((len(laws), int(vertices[-1] - vertices[0]) + 1))
    scale = np.empty(len(laws))
    place = vertices - vertices[0]
    for row, law in enumerate(laws):
        with np.errstate(divide="ignore"):
            exponent = np.log(law) + tilt * losses
        top = exponent.max()
        if not np.isfinite(top):  # an empty optimistic law: delta is at least 0, and that is all it says
            top = 0.0
        tilted = np.exp(exponent - top)
        total = max(float(tilted.sum()), 1e-300)
        rows[row, place] = tilted / total
        scale[row] = top + np.log(total)
    layers = None
    if losses[-1] < MOST_LAYERS:
        widths = tilt * np.diff(losses, append=losses[-1])
        layers = Layers.of(losses, rows[PESSIMISTIC, place], pessimistic, widths, log_delta)
    return Lattice(float(losses[0]), step, tilt, rows, scale, infinite, 0.0, 1, accuracy, layers)


def chords(pair: Pair, losses: Array) -> tuple[Array, float]:
    """Masses at ``losses`` that keep the P- and Q-mass of every cell; what lies below moves up to the first."""
    cells = pair.cells(losses)
    gap = -np.expm1(-np.diff(losses))
    # A q that underflows counts as zero, which moves its cell up.
    scaled_q = _exp_times(losses[:-1], np.where(cells.q < TINY, 0.0, cells.q))
    with np.errstate(invalid="ignore", over="ignore"):
        to_upper = np.maximum(np.fmin((cells.p - scaled_q) / gap, cells.p), 0.0)  # a NaN moves all up
    law = np.zeros(len(losses))
    law[:-1] = cells.p - to_upper
    law[1:] += to_upper
    law[0] += cells.p_below
    return law, cells.p_above


def _tangents(pair: Pair, losses: Array, accuracy: float) -> Array:
    """Masses at ``losses`` of a curve below the exact one: tangents half-way between neighbouring losses."""
    middle = (losses[1:] + losses[:-1]) / 2
    for atom, side in zip(pair.atoms or (), (1, -1), strict=False):
        # An atom at the bottom or top of a law is a cell of its own: the tangent touches right beside it.
        here = int(np.argmin(np.abs(losses - atom)))
        margin = 1e-9 * float(np.diff(losses).min())
        beside = here if side > 0 else here - 1
        if abs(losses[here] - atom) <= margin and 0 <= beside < len(middle):
            middle[beside] = atom + side * margin
    all_p, all_q = pair.masses(
        np.concatenate([[2 * losses[0] - middle[0]], middle, [2 * losses[-1] - middle[-1]]])
    )
    # An underflow of q would make the curve too high; where e^loss could hide one, mass is dropped.
    p = np.where(losses < LARGEST_LOSS, all_p, 0.0)
    scaled_q = _exp_times(np.minimum(losses, LARGEST_LOSS), np.where(p > 0, all_q + TINY, 0.0))
    law = _lower_curve(p, scaled_q, losses, accuracy)
    if not np.any(law > 0):  # a single atom: H(a) >= p - a q for the totals
        total, total_q = float(all_p.sum()), float(all_q.sum())
        place = np.searchsorted(losses, np.log(total / total_q) - 1e-12) if total > 0 and total_q > 0 else 0
        if place > 0:
            law[place - 1] = total
    return law


def _lower_curve(p: Array, scaled_q: Array, losses: Array, accuracy: float) -> Array:
    """The law of the piecewise linear curve through the smaller of the two tangents at every loss.

    ``p`` is the P-mass around each loss and ``scaled_q`` the Q-mass there times e^loss. By excess = p - scaled_q
    the tangent on the left of a loss lies above the one on its right. At the ends, cells are merged until the
    first straight piece is a tangent itself (excess < 0) and the last one comes down to zero exactly at a loss
    (excess >= 0).
    """
    law = np.zeros(len(p))
    accuracy /= 4  # what is set straight below is charged with the rounding of cells
    excess = p - scaled_q
    left_p, left_excess = _merged(p, scaled_q, losses)
    right_p, right_excess = (part[::-1] for part in _merged(p[::-1], scaled_q[::-1], losses[::-1]))
    bend_after = np.maximum(excess[1:], 0.0) + left_excess[:-1]
    with np.errstate(over="ignore", invalid="ignore"):
        flat = left_p[:-1] - left_excess[:-1] + accuracy * left_p[:-1] / np.diff(losses)
        convex = flat >= bend_after / np.expm1(np.diff(losses))
    starts = np.nonzero((left_p[:-1] > 0) & (left_excess[:-1] <= accuracy * left_p[:-1]) & convex)[0]
    if len(starts) == 0:
        return law
    first = int(starts[0])
    beyond = np.nonzero(right_excess[first + 1 :] < -accuracy * right_p[first + 1 :])[0]
    last = first + int(beyond[0]) if len(beyond) else len(p) - 1
    if last == first:
        return law
    inside = slice(first, last + 1)
    p, excess, losses = p[inside].copy(), excess[inside], losses[inside]
    p[0], excess[0] = left_p[first], min(left_excess[first], 0.0)
    p[-1], excess[-1] = right_p[last], max(right_excess[last], 0.0)
    gap = np.diff(losses)
    bend = np.maximum(-excess[:-1], 0.0) - np.maximum(excess[1:], 0.0)
    curve = p - excess
    curve[:-1] += bend / np.expm1(gap)
    curve[1:] += bend / np.expm1(-gap)
    law[inside] = _convex(curve, losses, rounding=accuracy * right_p[last - 1] / gap[-1])
    return law


def _merged(p: Array, scaled_q: Array, losses: Array) -> tuple[Array, Array]:
    """P-mass and excess of all cells up to each loss, taken as one cell."""
    total = np.cumsum(p)
    if abs(losses[-1] - losses[0]) < 200.0 and not np.any((scaled_q > 0) & (scaled_q < 1e-200)):
        shrink = np.exp(losses - losses[0])  # nothing overflows, and nothing is lost
        return total, total - shrink * np.cumsum(scaled_q / shrink)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        merged_q = np.exp(losses + np.logaddexp.accumulate(np.log(scaled_q) - losses))
    return total, total - merged_q


def _exp_times(exponent: Array, factor: Array) -> Array:
    with np.errstate(divide="ignore", over="ignore"):
        return np.exp(exponent + np.log(factor))


def _convex(law: Array, losses: Array, rounding: float) -> Array:
    """Remove the concave corners (negative masses) of a curve: its lower convex hull, which is lower still.

    A corner is removed by splitting its mass onto the corners beside it. That may make one of those negative in
    turn; the work is proportional to the number of corners removed, which are few.
    """
    law, last = law.copy(), len(law) - 1
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    corners = np.nonzero(law[:-1] < 0)[0].tolist()
    while corners and len(after) < MOST_CORNERS:
        here = corners.pop()
        mass = float(law[here])
        if mass >= 0:
            continue
        left, right = before.get(here, here - 1), after.get(here, here + 1)
        before[right], after[left], law[here] = left, right, 0.0
        if left < 0:  # keep the slope before the first corner
            law[right] += mass * np.exp(losses[right] - losses[here])
        else:
            share = np.expm1(losses[left] - losses[here]) / np.expm1(losses[left] - losses[right])
            law[left] += mass * (1 - share)
            law[right] += mass * share
        corners += [corner for corner in (left, right) if 0 <= corner < last and law[corner] < 0]
    end = before.get(last, last - 1)
    if corners or law[last] < -rounding or end < 0 or law[end] + min(law[last], 0.0) < 0:
        return np.zeros(len(law))  # no such curve on this grid: the empty law says that delta >= 0
    law[end] += min(law[last], 0.0)  # rounding, moved down by one corner
    return np.maximum(law, 0.0)


class Transformed:
    """A one-step law and its Fourier transform for windows of ``size`` grid points."""

    def __init__(self, law: Lattice, size: int) -> None:
        self.law, self.size = law, size
        # One-step laws wrap around the window without harm: only the sum must fit.
        self._spectrum = scipy.fft.rfft(_folded(law.masses, size), axis=1)
        self._loudest = (self._spectrum.real**2 + self._spectrum.imag**2).max(axis=0)

    def power(self, count: int, most: int) -> NDArray[np.complex128]:
        """The first ``most`` coefficients of the sum of ``count`` losses, but for a silent rest.

        A sum of many losses is smooth, and nearly all of its coefficients are nothing: less than ``SILENT`` each.
        Leaving them out changes the L2 norm by at most that, and the L1 norm by the root of the size times as much.
        """
        heard = np.flatnonzero(self._loudest[:most] >= SILENT ** (2.0 / count))
        kept = int(heard[-1]) + 1 if len(heard) else 1
        return _power(self._spectrum[:, :kept].copy(), count)


def window_size(window: tuple[float, float], step: float) -> int:
    """A number of grid points that covers a window, and suits the FFT."""
    return int(scipy.fft.next_fast_len(int(np.ceil((window[1] - window[0]) / step)) + 2, True))


def compose(parts: Sequence[tuple[Lattice, int]], window: tuple[float, float], alias: float) -> Lattice:
    """The law of the sum of ``count`` independent losses of each part, on a window of total losses.

    ``alias`` bounds the tilted mass outside of the window, of either row; :func:`mass_outside` proves it.
    All parts share tilt and step.
    """
    size = window_size(window, parts[0][0].step)
    return compose_transformed([(Transformed(part, size), count) for part, count in parts], window[0], alias)


def compose_transformed(parts: Sequence[tuple[Transformed, int]], low: float, alias: float) -> Lattice:
    """As :func:`compose`, on the window of their size that begins at ``low``."""
    step, tilt, size = parts[0][0].law.step, parts[0][0].law.tilt, parts[0][0].size
    origin = sum(count * part.law.start for part, count in parts)
    first = int(np.floor((low - origin) / step))
    spectrum: NDArray[np.complex128] | None = None
    log_scale = np.zeros(len(parts[0][0].law.masses))
    infinite, cell_error, releases, total, few = 0.0, 0.0, 0, 0, 0
    error = 2 * alias + float(np.sqrt(size)) * SILENT
    layers: Layers | None = None
    for transformed, count in parts:
        power = transformed.power(count, size if spectrum is None else spectrum.shape[1])
        spectrum = power if spectrum is None else spectrum[:, : power.shape[1]] * power
        part = transformed.law
        log_scale = log_scale + count * part.log_scale
        infinite += count * part.infinite
        error += float(np.expm1(min(count * part.error, 50.0)))
        few += count if count < 64 else 0
        releases += count * part.releases
        cell_error += count * part.cell_error
        layers = part.layers.times(count, layers) if part.layers else None
        total += count
    if not all(part.law.layers for part, _ in parts):
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
    return Lattice(
        origin + first * step, step, tilt, masses, log_scale, infinite, error, releases, cell_error, layers
    )


def _folded(masses: Array, size: int) -> Array:
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
    parts: Sequence[tuple[Lattice, int]], window: tuple[float, float], slopes: tuple[float, float]
) -> float:
    """A Chernoff bound on the tilted mass of the sum outside of ``window``, for the worse of the two rows.

    ``slopes`` are the (positive) exponents used below and above; any choice is sound.
    """
    below = sum(count * _log_moment(part, -slopes[0]) for part, count in parts)
    above = sum(count * _log_moment(part, slopes[1]) for part, count in parts)
    exponents = np.concatenate([below + slopes[0] * window[0], above - slopes[1] * window[1]])
    return float(2 * np.exp(np.minimum(exponents, 50.0)).max())


def _log_moment(lattice: Lattice, slope: float) -> Array:
    """log of the mean of e^{slope * loss} of each row."""
    losses = lattice.losses
    top = slope * losses[lattice.ends[0 if slope < 0 else 1]]
    with np.errstate(divide="ignore", over="ignore"):
        weights = np.exp(np.minimum(slope * losses - top, 0.0))
        return np.asarray(top + np.log(_weighted(lattice.masses, weights)))


def _weighted(rows: Array, weights: Array) -> Array:
    """Weighted sum of every row. Not a BLAS product: its threads cost more than they save at this size."""
    return np.asarray(np.einsum("ij,j->i", rows, weights))


def coarsen(lattice: Lattice, factor: int) -> Lattice:
    """The same laws on a grid ``factor`` (odd) times coarser: chords and tangents once more.

    Guarantee: the order of the two rows around the exact curve is kept; only the gap grows.
    """
    step, count = lattice.step * factor, lattice.masses.shape[1]
    blocks = -(-count // factor)
    padded = np.zeros(blocks * factor)
    padded[:count] = lattice.masses[PESSIMISTIC]
    cells = padded.reshape(blocks, factor)
    tilt = lattice.tilt
    inside = lattice.step * np.arange(factor)
    share = np.expm1(-inside) / np.expm1(-step)
    rows = np.zeros((len(lattice.masses), blocks + 1))
    rows[PESSIMISTIC, :-1] = _weighted(cells, (1 - share) * np.exp(-tilt * inside))
    rows[PESSIMISTIC, 1:] += _weighted(cells, share * np.exp(tilt * (step - inside)))
    for row in rows[OPTIMISTIC:]:
        row[:] = _coarse_tangents(lattice.masses[OPTIMISTIC], lattice.step, factor, tilt, blocks)
    totals = np.maximum(rows.sum(axis=1), TINY)
    growth = float(np.exp(tilt * step))
    return Lattice(
        lattice.start,
        step,
        tilt,
        rows / totals[:, None],
        lattice.log_scale + np.log(totals),
        lattice.infinite,
        lattice.error * growth / min(1.0, float(totals.min()) + TINY),
        lattice.releases,
        lattice.cell_error + cell_accuracy(0.0),
        replace(lattice.layers, common=lattice.layers.common + cell_accuracy(0.0))
        if lattice.layers
        else None,
    )


def _coarse_tangents(masses: Array, fine: float, factor: int, tilt: float, blocks: int) -> Array:
    """The optimistic row of :func:`coarsen`: tangents half a coarse step to either side of each coarse loss."""
    half = factor // 2
    padded = np.zeros((blocks + 1) * factor)
    padded[half : half + len(masses)] = masses
    around = padded.reshape(blocks + 1, factor)
    distance = fine * (np.arange(factor) - half)
    # Untilting the rounding noise far from the bulk would drown it; mass may be dropped from this row.
    total = around.sum(axis=1)
    if not np.any(total > 0):
        return np.zeros(blocks + 1)
    losses = fine * factor * (np.arange(blocks + 1, dtype=np.float64) - int(np.argmax(total)))
    bulk = np.nonzero((total > 1e-11 * total.max()) & (tilt * np.abs(losses) < 300.0))[0]
    near = slice(int(bulk[0]), int(bulk[-1]) + 1)
    losses, around = losses[near], around[near]
    untilt = np.exp(-tilt * losses)
    p = _weighted(around, np.exp(-tilt * distance)) * untilt
    scaled_q = _weighted(around, np.exp(-(tilt + 1) * distance)) * untilt
    row = np.zeros(blocks + 1)
    row[near] = _lower_curve(p, scaled_q, losses, cell_accuracy(0.0)) / untilt
    return row
