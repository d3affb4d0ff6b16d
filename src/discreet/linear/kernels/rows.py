"""One view of dense arrays, memory maps and sparse matrices: rows in chunks, in bounded memory.

>>> from discreet.linear.losses import Squared
>>> rows = Rows(np.arange(8.0).reshape(4, 2)).mapped(lambda part: part / 10, width=2)
>>> rows.gradient(Squared(), [0.0, 1.0, 0.0, 1.0], theta=[0.0, 1.0, 0.0], constant=1.0, clip_norm=1.0).round(3)
array([-0.8 , -0.24, -0.32])

A chunk is what the kernels want: float32 or float64, in C order, or CSR. Rows of such a kind are used where they
are; others (integers, float16, a slice of columns, a map that scales or encodes) are converted chunk by chunk.
So 1e8 rows on disk need the memory of one chunk.

A matrix is judged by what is public, its kind, type and width, never by its values or the number of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from scipy.sparse import issparse

from discreet.errors import InvalidParameter, whole
from discreet.linear.kernels.kernel import clipped_gradient, hardened_clipped_gradient, row_norms
from discreet.linear.losses import Loss

Floats = NDArray[np.float64]
Progress = Callable[[float], None]

CHUNK_BYTES = 2**27
_TICKS = 100


class Rows:
    """The rows of a matrix. ``chunk_bytes`` bounds the size of a chunk, and so the memory of a conversion."""

    def __init__(self, matrix: Any, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._matrix = _checked(matrix)
        self._map: Callable[[Any], Any] | None = None
        self._chunk_bytes = whole("chunk_bytes", chunk_bytes, at_least=1)
        self.width = int(matrix.shape[1])
        self.dtype: np.dtype[Any] = _float_type(matrix.dtype)

    def __len__(self) -> int:
        return int(self._matrix.shape[0])

    def mapped(self, function: Callable[[Any], Any], width: int, dtype: DTypeLike | None = None) -> Rows:
        """The rows after ``function``, which turns a chunk into a matrix of ``width`` columns, row by row.

        Nothing is computed before it is needed, and nothing is kept. ``dtype`` is float32 or float64.
        """
        if self._map is not None:
            raise InvalidParameter("function", function, "is the second map; compose the functions instead.")
        rows = Rows(self._matrix, self._chunk_bytes)
        rows._map, rows.width = function, whole("width", width, at_least=0)
        rows.dtype = self.dtype if dtype is None else _float_type(np.dtype(dtype))
        return rows

    def chunks(self) -> Iterator[tuple[slice, Any]]:
        """Pairs of a slice and its rows, as a dense array in C order or as CSR, of type ``dtype``."""
        step = self._rows_of_chunk()
        for first in range(0, len(self), step):
            where = slice(first, min(first + step, len(self)))
            part = self._matrix if step >= len(self) else self._matrix[where]
            yield where, self._converted(part)

    def norms(self, constant: float) -> Floats:
        """See :func:`~discreet.linear.kernels.kernel.row_norms`; 8 bytes for each row."""
        parts = [row_norms(part, constant) for _, part in self.chunks()]
        return np.concatenate(parts) if parts else np.zeros(0)

    def gradient(
        self,
        loss: Loss,
        y: ArrayLike,
        theta: ArrayLike,
        constant: float,
        clip_norm: float,
        weights: ArrayLike | None = None,
        norms: Floats | None = None,
        progress: Progress | None = None,
    ) -> Floats:
        """The sum of the clipped gradients; see :func:`~discreet.linear.kernels.kernel.clipped_gradient`.

        Without ``norms`` they are taken chunk by chunk and forgotten. ``progress`` is told the fraction that is
        done: 0.01, 0.02 and so on to 1, whatever the number of rows.

        Guarantee: that of ``clipped_gradient``.
        """

        def of(part: Any, y: Any, weights: Any, norms: Floats) -> Any:
            return clipped_gradient(loss, part, y, theta, constant, norms, clip_norm, weights)

        start = np.zeros((self.width + 1, loss.outputs) if loss.outputs > 1 else self.width + 1)
        total: Floats = self._summed(of, start, y, weights, norms, constant, progress)
        return total

    def hardened_gradient(
        self,
        loss: Loss,
        y: ArrayLike,
        theta: ArrayLike,
        constant: float,
        clip_norm: float,
        grid: float,
        weights: ArrayLike | None = None,
        norms: Floats | None = None,
        progress: Progress | None = None,
    ) -> NDArray[np.int64]:
        """The same in whole steps of ``grid``; see :func:`~discreet.linear.kernels.kernel.hardened_clipped_gradient`.

        Guarantee: that of ``hardened_clipped_gradient``.
        """

        def of(part: Any, y: Any, weights: Any, norms: Floats) -> Any:
            return hardened_clipped_gradient(loss, part, y, theta, constant, norms, clip_norm, grid, weights)

        shape = (self.width + 1, loss.outputs) if loss.outputs > 1 else (self.width + 1,)
        start = np.zeros(shape, np.int64)
        total: NDArray[np.int64] = self._summed(of, start, y, weights, norms, constant, progress)
        return total

    def _summed(
        self,
        of: Callable[[Any, Any, Any, Floats], Any],
        total: Any,
        y: Any,
        weights: Any,
        norms: Floats | None,
        constant: float,
        progress: Progress | None,
    ) -> Any:
        y, weights = _column("y", y, len(self)), _column("weights", weights, len(self))
        told = 0
        for where, part in self.chunks():
            bounds = row_norms(part, constant) if norms is None else norms[where]
            total += of(part, y[where], None if weights is None else weights[where], bounds)
            told = _tell(progress, told, where.stop / len(self))
        _tell(progress, told, 1.0)
        return total

    def _rows_of_chunk(self) -> int:
        """All rows at once where they can be used as they are; otherwise as many as fit the chunk."""
        if issparse(self._matrix) and self._map is None:
            return max(1, len(self))
        entries: int = self.width + self._matrix.shape[1]
        if issparse(self._matrix):
            entries = self.width + 2 * int(-(-self._matrix.nnz // max(1, len(self))))
        return max(1, self._chunk_bytes // max(1, entries * 8))

    def _converted(self, part: Any) -> Any:
        with np.errstate(all="ignore"):  # a warning would tell of a value
            part = part if self._map is None else self._map(part)
            if issparse(part):
                part = part.tocsr().astype(self.dtype, copy=False)
            else:
                part = np.ascontiguousarray(part, self.dtype)
        if part.ndim != 2 or part.shape[1] != self.width:
            raise InvalidParameter("width", self.width, "must be the number of columns that the map makes.")
        return part


def _checked(matrix: Any) -> Any:
    if not issparse(matrix) and not isinstance(matrix, np.ndarray):
        raise InvalidParameter("matrix", type(matrix), "must be a numpy array, a memmap or a sparse matrix.")
    if matrix.ndim != 2:
        raise InvalidParameter("matrix", f"{matrix.ndim} dimensions", "must have two: rows and columns.")
    return matrix.tocsr() if issparse(matrix) else matrix


def _float_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which such numbers are computed with."""
    if dtype in (np.float32, np.float16):
        return np.dtype(np.float32)
    if dtype.kind in "biu" or dtype == np.float64:
        return np.dtype(np.float64)
    raise InvalidParameter("dtype", str(dtype), "must be float64 or narrower, integers or booleans.")


def _column(name: str, values: Any, rows: int) -> Any:
    if values is None:
        return None
    column = values if isinstance(values, np.ndarray) else np.asarray(values)
    if column.dtype.kind not in "biuf" or column.ndim != 1 or column.shape[0] != rows:
        raise InvalidParameter(name, type(values), "must hold one number for each row.")
    return column


def _tell(progress: Progress | None, told: int, done: float) -> int:
    """Report every hundredth once; how the work was cut into chunks would tell the number of rows."""
    reached = min(_TICKS, int(done * _TICKS + 1e-9))
    for tick in range(told + 1, reached + 1):
        if progress is not None:
            progress(tick / _TICKS)
    return max(told, reached)
