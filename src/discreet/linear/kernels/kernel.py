"""The clipped gradient of a linear model: one pass over the rows, at nearly the speed of reading them.

The gradient of a row z is its residual times (constant, z): a number times a vector, or for softmax an outer
product. So its norm is known without computing it, and clipping is a limit on the residual.

>>> from discreet.linear.losses import Logistic
>>> Z, y = np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 1.0]]), np.array([1, 0, 1])
>>> norms = row_norms(Z, constant=0.0)
>>> clipped_gradient(Logistic(), Z, y, np.zeros(3), 0.0, norms, clip_norm=1.0).round(4)
array([ 0.  , -0.45, -0.6 ])

Rows are float32 or float64, dense or CSR. The rows' norms do not change from step to step, so they are taken
once. Work is divided into tasks by the shape of the matrix; results do not depend on the number of threads.

| row                          | counts as                                                               |
|------------------------------|-------------------------------------------------------------------------|
| gradient within the clip     | itself                                                                  |
| longer                       | the same direction, norm at most ``clip_norm``                          |
| NaN or infinity in it        | zero: no error, warning, log or count, since each of them would tell    |
| target that no loss accepts  | zero, likewise                                                          |
| weight                       | moved into [0, 1], NaN to 0, and applied after the clip                 |

**What is proved.** A row's contribution depends on that row alone, bit for bit, and its exact value has norm at
most ``clip_norm``. The contributions are integers of grid steps and are added up as such, in any order and
without rounding: so a record that comes or goes changes the sum by at most ``clip_norm``, exactly, however many
records there are. :func:`hardened_clipped_gradient` gives these integers, and :func:`clipped_gradient` the same
as floats, which keep the bound for up to :data:`MOST_ROWS` rows.

In docs/engines.md: E3, E13, E14.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse

from discreet.core.clipping import clip_norm_of
from discreet.core.noise import FLOAT_ROOM, MOST_ROWS, checked_grid, sum_grid
from discreet.errors import InvalidParameter, real
from discreet.linear.kernels import csr_kernel, dense_kernel
from discreet.linear.kernels.coefficients import CODES, GIVEN, ManyScores, OneScore, RecordArrays, Step
from discreet.linear.kernels.rowwise import in_threads, times
from discreet.linear.losses import Loss
from discreet.linear.residuals import accepted, checked_loss, residuals

Array = NDArray[Any]
Floats = NDArray[np.float64]

_TASK_BYTES = 2**23  # of the matrix: read in half a millisecond, which makes the cost of a task small
_TASK_ROWS = 128  # a multiple of all blocks
_MOST_TASKS, _FEWEST_TASKS, _RESULT_BYTES = 256, 8, 2**26


def row_norms(Z: Any, constant: float) -> Floats:
    """Upper bounds of the norms of (constant, z), for each row z; infinity if z holds NaN or infinity.

    Guarantee: never below the exact norm, and above it by a few roundings at most.
    """
    Z, constant = _checked_rows(Z), real("constant", constant, at_least=0, at_most=2.0**450)
    norms = np.empty(Z.shape[0])
    cuts = _cuts(Z, 1)

    def work(task: int) -> None:
        first, last = cuts[task], cuts[task + 1]
        if issparse(Z):
            csr_kernel.norms_of(_triple(Z), Z.shape[1], constant, first, norms[first:last])
        else:
            dense_kernel.norms_of(Z, constant, first, norms[first:last])

    in_threads(len(cuts) - 1, work)
    return norms


def clipped_gradient(
    loss: Loss,
    Z: Any,
    y: ArrayLike,
    theta: ArrayLike,
    constant: float,
    norms: Floats,
    clip_norm: float,
    weights: ArrayLike | None = None,
) -> Floats:
    """The sum over the rows of the clipped gradients, of shape (d + 1,), or (d + 1, K) for K classes.

    ``theta`` has that shape, the intercept first; a row's score is ``theta[0] * constant + z @ theta[1:]``.
    ``norms`` are :func:`row_norms` of the same rows and constant. ``y`` and ``weights`` are used as they are
    if they have the type of ``Z``, and converted otherwise.

    Guarantee: adding or removing a row changes the result, as computed, by a vector of norm at most ``clip_norm``:
    it is a sum of integers, and one rounding to float64 at its end, for which the clip leaves room.
    """
    clip_norm = clip_norm_of("clip_norm", clip_norm)
    grid = sum_grid(clip_norm)
    inner = clip_norm * (1 - FLOAT_ROOM)
    known = (loss, Z, y, theta, constant, norms, inner, grid, weights)
    return np.asarray(hardened_clipped_gradient(*known) * grid, np.float64)


def hardened_clipped_gradient(
    loss: Loss,
    Z: Any,
    y: ArrayLike,
    theta: ArrayLike,
    constant: float,
    norms: Floats,
    clip_norm: float,
    grid: float,
    weights: ArrayLike | None = None,
    people: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """The same sum in whole steps of a public ``grid``, every number of a row's gradient rounded on its own.

    ``people`` holds a number for each row, that of its person; rows of a person follow one another. Their gradients
    are weighed, added up, and clipped together.

    ``BoundedSum(result, clip_norm, grid=grid)`` takes it on; see :mod:`discreet.core.noise` and its
    ``grid_for``.

    Guarantee: exact and independent of the order of the rows. Adding or removing a row changes the result by
    a vector of norm at most ``clip_norm / grid``, which depends on that row only; with ``people`` the same is true
    of all rows of a person together.
    """
    if people is not None and not issparse(Z):
        with np.errstate(all="ignore"):
            Z = np.asarray(Z).astype(np.float32, copy=False)  # one type less to compile
    if checked_loss(loss).machine_code is None:
        y = _residuals(loss, Z, y, theta, constant)
    data, grid = _checked_data(Z, y, norms, weights), checked_grid(grid)
    step, cuts = _step(loss, Z, theta, constant, clip_norm, grid), _cuts(Z, loss.outputs)
    if people is not None:
        step, cuts = step._replace(clip=math.inf), _between_people(cuts, people, Z)
    parts = _parts(Z, loss, cuts, np.int64)
    lattice = dense_kernel.lattice_for(Z.dtype, clip_norm, grid)

    def work(task: int) -> None:
        first, last = cuts[task], cuts[task + 1]
        if people is not None:
            known = (step, data, people, dense_kernel.room_for(Z, loss.outputs), first, last, clip_norm, grid)
            dense_kernel.add_people(*known, np.zeros(parts[task].shape), parts[task])
        elif issparse(Z):
            room: Any = csr_kernel.room_for(Z.dtype, loss.outputs)
            csr_kernel.add_counts(step, data, room, first, last, grid, parts[task])
        else:
            room, below = dense_kernel.room_for(Z, loss.outputs), dense_kernel.sums_for(Z, loss.outputs)
            dense_kernel.add_counts(step, data, room, first, last, lattice, grid, below, parts[task])

    in_threads(len(cuts) - 1, work)
    total: NDArray[np.int64] = _shape_sums(parts, Z, loss)
    return total


def _residuals(loss: Loss, Z: Any, y: Any, theta: ArrayLike, constant: float) -> Array:
    """The residual of each row by the loss itself; 0 where it is not a number, or where the target does not count.

    Guarantee: that of a row depends on the row only, as far as the loss keeps records apart.
    """
    Z, weights = _checked_rows(Z), np.asarray(theta, np.float64)
    with np.errstate(all="ignore"):  # a warning would tell of a value
        scores = np.asarray(Z @ weights[1:] if issparse(Z) else times(Z, weights[1:]), np.float64)
        y = _column("y", y, Z)
        found = residuals(loss, scores + constant * weights[0], y)
        counted = np.isfinite(found) & accepted(loss, y)
        return np.where(counted, found, 0.0).astype(Z.dtype)


def _checked_rows(Z: Any) -> Any:
    """The matrix as the kernels want it, judged by its type and width only."""
    if issparse(Z):
        if Z.format != "csr":
            raise InvalidParameter("Z", Z.format, "must be CSR if it is sparse; Z.tocsr() makes it so.")
    elif not isinstance(Z, np.ndarray) or Z.ndim != 2:
        raise InvalidParameter("Z", type(Z), "must be a two-dimensional numpy array or a CSR matrix.")
    if Z.dtype not in (np.float32, np.float64):
        raise InvalidParameter("Z.dtype", str(Z.dtype), "must be float32 or float64.")
    if Z.shape[0] > MOST_ROWS:
        raise InvalidParameter("Z", "too many rows", "must have at most 2**32: so many are added up exactly.")
    return Z if issparse(Z) else readable(Z)


def _checked_data(Z: Any, y: Any, norms: Any, weights: Any) -> RecordArrays:
    Z = _checked_rows(Z)
    if not isinstance(norms, np.ndarray) or norms.dtype != np.float64 or norms.shape != Z.shape[:1]:
        raise InvalidParameter("norms", type(norms), "must be what row_norms() gives for the same rows.")
    own = np.empty(0, Z.dtype) if weights is None else _column("weights", weights, Z)
    return RecordArrays(_triple(Z) if issparse(Z) else Z, _column("y", y, Z), own, readable(norms))


def _column(name: str, values: Any, Z: Any) -> Array:
    """One number for each row, in the type of the matrix."""
    column = np.asarray(values)
    if column.dtype.kind not in "biuf" or column.shape != Z.shape[:1]:
        raise InvalidParameter(name, type(values), "must hold one number for each row.")
    with np.errstate(all="ignore"):  # a warning would tell of a number that the type cannot hold
        return readable(column.astype(Z.dtype, copy=False))


def readable(array: Array) -> Array:
    """The array in C order, of one and the same type whether or not it may be written to.

    Kernels write to none of them; without this a memmap would make numba compile everything a second time.
    """
    array = np.ascontiguousarray(array)
    if type(array) is np.ndarray and array.flags.writeable:
        return array
    return np.asarray(_Borrowed(array))


class _Borrowed:
    """An array's memory, described as writable."""

    def __init__(self, array: Array) -> None:
        interface = array.__array_interface__
        self.owner = array
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _triple(Z: Any) -> tuple[Array, Array, Array]:
    return readable(Z.data), readable(Z.indices), readable(Z.indptr)


def _step(loss: Loss, Z: Any, theta: ArrayLike, constant: float, clip_norm: float, grid: float) -> Step:
    constant = real("constant", constant, at_least=0, at_most=2.0**450)
    clip_norm = clip_norm_of("clip_norm", clip_norm)
    if Z.dtype == np.float32 and not 1e-30 <= clip_norm <= 1e30:
        raise InvalidParameter("clip_norm", clip_norm, "must be between 1e-30 and 1e30 for float32 rows.")
    shape = (Z.shape[1] + 1, loss.outputs) if loss.outputs > 1 else (Z.shape[1] + 1,)
    theta = np.asarray(theta, np.float64)
    if theta.shape != shape:
        raise InvalidParameter(
            "theta.shape", theta.shape, f"must be {shape}: the intercept, then the columns."
        )
    with np.errstate(all="ignore"):
        columns = theta.reshape(shape[0], -1).astype(Z.dtype)
        offsets = (theta[0] * constant).reshape(-1).astype(Z.dtype)
    rounded = 0 if issparse(Z) else columns.size
    coarse = grid * dense_kernel.lattice_for(Z.dtype, clip_norm, grid).steps
    clip = _room_for_rounding(clip_norm, grid, coarse, rounded) * (1 - clip_margin(Z.dtype))
    return Step(loss_code(loss), _weights(Z, columns[1:]), offsets, constant, clip, *limit_range(Z.dtype))


def _room_for_rounding(clip_norm: float, grid: float, coarse: float, rounded: int) -> float:
    """The clip norm, less what rounding so many numbers to the nearest ``coarse`` step can add to a norm."""
    clip = clip_norm - 0.5 * math.sqrt(rounded) * coarse
    if not (clip > 0 and clip_norm / grid <= 2.0**50):
        requirement = "must be above clip_norm * 2**-50 and far below clip_norm; discreet.core.grid_for() is."
        raise InvalidParameter("grid", grid, requirement)
    return clip


def _weights(Z: Any, columns: Array) -> Array:
    """By column for CSR; for dense rows one padded row for each output."""
    if issparse(Z):
        return np.ascontiguousarray(columns)
    padded = np.zeros((columns.shape[1], dense_kernel.padded_width(columns.shape[0], Z.itemsize)), Z.dtype)
    padded[:, : columns.shape[0]] = columns.T
    return padded


def _cuts(Z: Any, outputs: int) -> list[int]:
    """Where the tasks begin and end: a matter of shapes, so that results do not depend on the machine."""
    rows = Z.shape[0]
    size = Z.data.nbytes + Z.indices.nbytes if issparse(Z) else Z.nbytes
    most = _RESULT_BYTES // (8 * outputs * (Z.shape[1] + 1))
    tasks = min(-(-size // _TASK_BYTES), _MOST_TASKS, max(_FEWEST_TASKS, most))
    pitch = -(-rows // max(1, tasks))
    pitch = max(_TASK_ROWS, -(-pitch // _TASK_ROWS) * _TASK_ROWS)
    return [*range(0, rows, pitch), rows]


def _between_people(cuts: list[int], people: NDArray[np.int64], Z: Any) -> list[int]:
    """The cuts moved back to where a person begins."""
    if issparse(Z) or people.shape != Z.shape[:1] or people.dtype != np.int64:
        raise InvalidParameter("people", "other rows", "must hold a whole number for each row of a dense Z.")
    starts = np.flatnonzero(np.diff(people, prepend=people[:1] - 1))
    places = np.searchsorted(starts, cuts[:-1], side="right") - 1
    return [*dict.fromkeys(starts[places].tolist()), len(people)] if len(people) else cuts


def _parts(Z: Any, loss: Loss, cuts: list[int], dtype: Any) -> Array:
    """The results of the tasks, as zeros: by column for CSR, by output for dense rows."""
    shape = (Z.shape[1] + 1, loss.outputs) if issparse(Z) else (loss.outputs, Z.shape[1] + 1)
    return np.zeros((len(cuts) - 1, *shape), dtype)


def _shape_sums(parts: Array, Z: Any, loss: Loss) -> Any:
    total = parts.sum(0) if issparse(Z) else parts.sum(0).T
    return np.ascontiguousarray(total if loss.outputs > 1 else total[:, 0])


def loss_code(loss: Loss) -> OneScore | ManyScores:
    """The loss as numbers, for machine code; without code of its own, residuals are given in place of targets."""
    if loss.machine_code is None:
        return OneScore(GIVEN, 0.0)
    name, parameter = loss.machine_code
    return ManyScores(loss.outputs) if name == "softmax" else OneScore(CODES[name], float(parameter))


def clip_margin(dtype: np.dtype[Any]) -> float:
    """By how much limits are rounded down: more than the roundings of limit, factor and product together."""
    return 2.0**-22 if dtype == np.float32 else 2.0**-49


def limit_range(dtype: np.dtype[Any]) -> tuple[float, float]:
    """A limit below the first number counts as 0, so that no product loses digits; none is above the second."""
    return (2.0**-96, 2.0**100) if dtype == np.float32 else (2.0**-960, 2.0**900)
