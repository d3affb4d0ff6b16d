"""Random words in, random floating-point numbers out.

A kernel is a deterministic function of the words it is given, so that it can be tested word by word.

A word is read as a signed number: its sign says from which end of (0, 1) a uniform number is measured, and
its magnitude how far, so both ends have full relative precision. Where the leading 12 bits of the word are
equal (1 in 2048) the draw is near an end; it is made again with fresh bits of ``spare`` appended, as many
as it takes. So the tails are complete: a normal draw of 9 standard deviations is as likely as it should be,
where 32 bits alone would end at 6.7.

The polynomials are those of Cephes (float32) and fdlibm (float64), in a form that the compiler turns into
vector instructions; a draw is accurate to a few units in the last place.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.core.compiler import Function, compiled

Array = NDArray[Any]

SPARE_WORDS = 256
"""Spare words (uint64) of a block. Of the 2**15 words of a block that may need them 16 do on average,
at two spare words each. More than 256 are needed with probability below 1e-60; then they serve again."""

f32, i32, i64, u64 = np.float32, np.int32, np.int64, np.uint64

_CHUNK = 256  # words that are checked together for the need of refinement
_NEAR32 = i32(2**20)  # words of a smaller magnitude have 12 equal leading bits
_NEAR64 = i64(2**52)


def _vectorised(function: Function) -> Function:
    # Fused multiply-add and no signed zeros; never reassociation, which would undo the two-part constants.
    return compiled(function, fastmath={"contract", "nsz", "arcp"})


@compiled
def _bits32(x: Any) -> Any:
    return np.float32(x).view(np.int32)


@compiled
def _float32(bits: Any) -> Any:
    return np.int32(bits).view(np.float32)


@compiled
def _bits64(x: Any) -> Any:
    return np.float64(x).view(np.int64)


@compiled
def _float64(bits: Any) -> Any:
    return np.int64(bits).view(np.float64)


@_vectorised
def _log32(v: Any) -> Any:
    """ln(v) for v > 0 and ln(1 + v) for v < 0, where abs(v) <= 1/2."""
    x = v if v > f32(0) else f32(1) + v
    bits = _bits32(x)
    power = i32(i32(bits - i32(0x3F3504F3)) >> i32(23))  # x = m * 2**power with sqrt(1/2) <= m < sqrt(2)
    f = _float32(i32(bits - i32(power << i32(23)))) - f32(1)
    f = v if power == i32(0) else f  # there x = 1 + v, and v has not lost its low bits
    square, p = f * f, f32(7.0376836292e-2)
    p = p * f + f32(-1.1514610310e-1)
    p = p * f + f32(1.1676998740e-1)
    p = p * f + f32(-1.2420140846e-1)
    p = p * f + f32(1.4249322787e-1)
    p = p * f + f32(-1.6668057665e-1)
    p = p * f + f32(2.0000714765e-1)
    p = p * f + f32(-2.4999993993e-1)
    p = p * f + f32(3.3333331174e-1)
    low = p * f * square - f32(0.5) * square + f32(power) * f32(-2.12194440e-4)
    return f + low + f32(power) * f32(0.693359375)


@_vectorised
def _log64(v: Any) -> Any:
    """ln(v) for v > 0 and ln(1 + v) for v < 0, where abs(v) <= 1/2."""
    x = v if v > 0.0 else 1.0 + v
    bits = _bits64(x)
    power = i64(u64(bits + i64(0x3FF0000000000000 - 0x3FE6A09E667F3BCD)) >> u64(52)) - i64(1023)
    f = _float64(bits - (power << i64(52))) - 1.0
    f = v if power == i64(0) else f
    s = f / (2.0 + f)
    z, half, p = s * s, 0.5 * f * f, 1.479819860511658591e-01
    p = p * z + 1.531383769920937332e-01
    p = p * z + 1.818357216161805012e-01
    p = p * z + 2.222219843214978396e-01
    p = p * z + 2.857142874366239149e-01
    p = p * z + 3.999999999940941908e-01
    p = p * z + 6.666666666666735130e-01
    low = s * (half + p * z) + float(power) * 1.90821492927058770002e-10
    return float(power) * 6.93147180369123816490e-01 - ((half - low) - f)


@_vectorised
def _pairs32(radii: Array, angles: Array, first: Array, second: Array, scale: Any) -> Any:
    """Box–Muller on a chunk of words; returns the smallest magnitude among the radius words."""
    smallest = i32(2**31 - 1)
    for i in range(radii.size):
        word, angle = radii[i], angles[i]
        magnitude = i32(word ^ (word >> i32(31)))
        smallest = magnitude if magnitude < smallest else smallest
        radius = np.sqrt(f32(-2) * _log32((f32(word) + f32(0.5)) * f32(2.0**-32))) * scale
        # 30 bits of the angle move inside a quarter turn around 0; the two leading ones choose the quarter.
        t = f32(i32(angle << i32(2))) * f32(math.pi * 2.0**-33) + f32(math.pi * 2.0**-32)
        s = t * t
        p = f32(-1.9515295891e-4)
        p = p * s + f32(8.3321608736e-3)
        p = p * s + f32(-1.6666654611e-1)
        q = f32(2.443315711809948e-5)
        q = q * s + f32(-1.388731625493765e-3)
        q = q * s + f32(4.166664568298827e-2)
        sine, cosine = t + t * s * p, f32(1) - f32(0.5) * s + s * s * q
        cosine = _float32(i32(_bits32(cosine) ^ i32(angle & i32(-(2**31)))))
        swap = (angle & i32(2**30)) != i32(0)
        first[i] = radius * (sine if swap else cosine)
        second[i] = radius * (cosine if swap else sine)
    return smallest


@_vectorised
def _pairs64(radii: Array, angles: Array, first: Array, second: Array, scale: Any) -> Any:
    """Box–Muller on a chunk of words; returns the smallest magnitude among the radius words."""
    smallest = i64(2**63 - 1)
    for i in range(radii.size):
        word, angle = radii[i], angles[i]
        magnitude = word if word >= i64(0) else ~word
        smallest = magnitude if magnitude < smallest else smallest
        radius = np.sqrt(-2.0 * _log64((float(word) + 0.5) * 2.0**-64)) * scale
        t = (float(i64(angle << i64(2))) + 2.0) * (math.pi * 2.0**-65)
        s = t * t
        p = 1.58969099521155010221e-10
        p = p * s - 2.50507602534068634195e-08
        p = p * s + 2.75573137070700676789e-06
        p = p * s - 1.98412698298579493134e-04
        p = p * s + 8.33333333332248946124e-03
        p = p * s - 1.66666666666666324348e-01
        q = -1.13596475577881948265e-11
        q = q * s + 2.08757232129817482790e-09
        q = q * s - 2.75573143513906633035e-07
        q = q * s + 2.48015872894767294178e-05
        q = q * s - 1.38888888888741095749e-03
        q = q * s + 4.16666666666666019037e-02
        sine, cosine = t + t * s * p, 1.0 - 0.5 * s + s * s * q
        cosine = _float64(_bits64(cosine) ^ (angle & i64(-(2**63))))
        swap = (angle & i64(2**62)) != i64(0)
        first[i] = radius * (sine if swap else cosine)
        second[i] = radius * (cosine if swap else sine)
    return smallest


@_vectorised
def _lengths(words: Array, out: Array, scale: Any) -> Any:
    """Exponential draws from a chunk of words; returns the smallest magnitude among the words."""
    smallest = i64(2**63 - 1)
    for i in range(words.size):
        magnitude = words[i] if words[i] >= i64(0) else ~words[i]
        smallest = magnitude if magnitude < smallest else smallest
        out[i] = -scale * _log64((float(words[i]) + 0.5) * 2.0**-64)
    return smallest


@compiled
def _refine(word: Any, spare: Array, used: Any) -> Any:
    """-ln(u) for the uniform number u that begins with ``word`` (near an end); and the spare words used."""
    magnitude = word if word >= i64(0) else ~word
    unit, more, used = 2.0**-64, spare[used % SPARE_WORDS], used + 1
    while magnitude == i64(0) and more == u64(0) and unit > 2.0**-512:
        unit, more, used = unit * 2.0**-64, spare[used % SPARE_WORDS], used + 1
    u = (float(magnitude) + (float(more) + 0.5) * 2.0**-64) * unit
    return (-math.log(u) if word >= i64(0) else -math.log1p(-u)), used


@compiled
def _turn(length: Any, angle: Any, scale: Any) -> Any:
    """The pair of normal draws with this exponential draw as half its squared radius."""
    radius = math.sqrt(2.0 * length) * scale
    t = (float(i64(angle << i64(2))) + 2.0) * (math.pi * 2.0**-65)
    cosine = -math.cos(t) if angle < i64(0) else math.cos(t)
    if angle & i64(2**62):
        return radius * math.sin(t), radius * cosine
    return radius * cosine, radius * math.sin(t)


@compiled
def normal32(words: Array, spare: Array, out: Array, scale: float) -> None:
    """Fill ``out`` (float32, even size) with normal draws from as many int32 words: radii, then angles."""
    half, used = out.size // 2, 0
    for start in range(0, half, _CHUNK):
        stop = min(half, start + _CHUNK)
        radii, angles = words[start:stop], words[half + start : half + stop]
        first, second = out[start:stop], out[half + start : half + stop]
        if _pairs32(radii, angles, first, second, f32(scale)) < _NEAR32:
            for i in range(radii.size):
                if i32(radii[i] ^ (radii[i] >> i32(31))) < _NEAR32:
                    word = (i64(radii[i]) << i64(32)) | i64(spare[used % SPARE_WORDS] >> u64(32))
                    length, used = _refine(word, spare, used + 1)
                    first[i], second[i] = _turn(length, i64(angles[i]) << i64(32), scale)


@compiled
def normal64(words: Array, spare: Array, out: Array, scale: float) -> None:
    """Fill ``out`` (float64, even size) with normal draws from as many int64 words: radii, then angles."""
    half, used = out.size // 2, 0
    for start in range(0, half, _CHUNK):
        stop = min(half, start + _CHUNK)
        radii, angles = words[start:stop], words[half + start : half + stop]
        first, second = out[start:stop], out[half + start : half + stop]
        if _pairs64(radii, angles, first, second, scale) < _NEAR64:
            for i in range(radii.size):
                if (radii[i] if radii[i] >= i64(0) else ~radii[i]) < _NEAR64:
                    length, used = _refine(radii[i], spare, used)
                    first[i], second[i] = _turn(length, angles[i], scale)


@compiled
def exponential(words: Array, spare: Array, out: Array, scale: float) -> None:
    """Fill ``out`` with exponential draws of mean ``scale`` from as many int64 words."""
    used = 0
    for start in range(0, out.size, _CHUNK):
        chunk, part = words[start : start + _CHUNK], out[start : start + _CHUNK]
        if _lengths(chunk, part, scale) < _NEAR64:
            for i in range(chunk.size):
                if (chunk[i] if chunk[i] >= i64(0) else ~chunk[i]) < _NEAR64:
                    length, used = _refine(chunk[i], spare, used)
                    part[i] = scale * length


@compiled
def laplace(words: Array, spare: Array, out: Array, scale: float) -> None:
    """Fill ``out`` with Laplace draws from twice as many int64 words: magnitudes, then signs."""
    exponential(words[: out.size], spare, out, scale)
    for i in range(out.size):
        out[i] = -out[i] if words[out.size + i] < i64(0) else out[i]
