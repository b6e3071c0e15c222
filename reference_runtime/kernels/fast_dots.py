"""
Dot products of packed rows with float32 activations: four rows at a time, one block of 32 weights after the other.

A row's result depends on the row and the activations alone, not on the three beside it or on the thread.

Q4_0 keeps weight i of a block in the low and weight 16 + i in the high nibble of byte i, worth scale * (nibble - 8).
With byte = 16 * high + low the high nibbles need no shift:

    low * x + high * x' = byte * x' / 16 + low * (x - x' / 16)

These two factors and the offset -8 * (x + x') are made once per activation vector: 48 floats a block.

Untyped functions: numba compiles them for the types they meet.  An address is an integer; see fast_vectors.py.
"""
# mypy: disable-error-code="no-untyped-def"

import numba
import numpy as np

from reference_runtime.kernels.fast_vectors import (
    load,
    load_half,
    load_halves,
    load_signed,
    load_spread,
    load_unsigned,
    low_nibbles,
    multiply,
    multiply_add,
    prefetch,
    spread,
    store,
    to_float,
    total,
)

Q4_0 = 2  # GGML's number; every other kind here is Q8_0
RUN = 256  # consecutive rows that go into one call
_LINE = 64  # bytes that a prefetch brings


@numba.njit(cache=True, nogil=True)
def prepared(x, kind):
    """What the dots of a kind need of an activation vector (columns,): float32, contiguous."""
    if kind != Q4_0:
        return x
    factors = np.empty(len(x) // 32 * 48, np.float32)
    for block in range(len(x) // 32):
        for i in range(16):
            low, high = x[block * 32 + i], x[block * 32 + 16 + i]
            factors[block * 48 + i] = high * np.float32(0.0625)
            factors[block * 48 + i + 16] = low - high * np.float32(0.0625)
            factors[block * 48 + i + 32] = np.float32(-8) * (low + high)
    return factors


@numba.njit(cache=True, nogil=True)
def dot_rows(kind, data, n_rows, n_blocks, first, ids, factors, out):
    """
    out[i] = row (first + ids[i]) @ x for all ids, of a matrix (n_rows, 32 * n_blocks) packed by rows at address data.

    factors: prepared(x, kind).  The rows of the next four are fetched while four are multiplied: their addresses need
    not be in a run, so the CPU would not foresee them.
    """
    row_bytes = n_blocks * (16 if kind == Q4_0 else 32)
    scales = np.empty(4 * n_blocks, np.float32)
    dots = np.empty(4, np.float32)
    rows = np.empty(4, np.int64)  # addresses of the quants
    ahead = np.empty(4, np.int64)
    n = len(ids)
    for start in range(0, n, 4):
        for i in range(4):
            row = first + ids[min(start + i, n - 1)]  # the last group may repeat its last row
            rows[i] = data + row * row_bytes
            ahead[i] = data + (first + ids[min(start + 4 + i, n - 1)]) * row_bytes
            _read_scales(data + n_rows * row_bytes + row * n_blocks * 2, scales[i * n_blocks : (i + 1) * n_blocks])
        if kind == Q4_0:
            _dot_four_q4(rows, ahead, factors.ctypes.data, scales.ctypes.data, n_blocks, dots)
        else:
            _dot_four_q8(rows, ahead, factors.ctypes.data, scales.ctypes.data, n_blocks, dots)
        for i in range(min(4, n - start)):
            out[start + i] = dots[i]


@numba.njit(cache=True, nogil=True)
def _read_scales(address, scales):
    n = len(scales)
    whole = n - n % 16
    for i in range(0, whole, 16):
        store(scales.ctypes.data + i * 4, load_halves(address + i * 2))
    for i in range(whole, n):
        scales[i] = load_half(address + i * 2)


@numba.njit(cache=True, nogil=True)
def _q4(quants, factors):
    """One block before its scale, in sixteen parts."""
    byte = load_unsigned(quants)
    high = multiply_add(to_float(byte), load(factors), load(factors + 128))
    return multiply_add(to_float(low_nibbles(byte)), load(factors + 64), high)


@numba.njit(cache=True, nogil=True)
def _q8(quants, x):
    """One block before its scale, in sixteen parts."""
    return multiply_add(load_signed(quants), load(x), multiply(load_signed(quants + 16), load(x + 64)))


@numba.njit(cache=True, nogil=True)
def _dot_four_q4(rows, ahead, factors, scales, n_blocks, out):
    a, b, c, d = rows[0], rows[1], rows[2], rows[3]
    zero = spread(np.float32(0))
    sum_a, sum_b, sum_c, sum_d = zero, zero, zero, zero
    for block in range(n_blocks):
        prefetch(ahead[block & 3] + (block >> 2) * _LINE)
        at, x, scale = block * 16, factors + block * 192, scales + block * 4
        sum_a = multiply_add(_q4(a + at, x), load_spread(scale), sum_a)
        sum_b = multiply_add(_q4(b + at, x), load_spread(scale + n_blocks * 4), sum_b)
        sum_c = multiply_add(_q4(c + at, x), load_spread(scale + n_blocks * 8), sum_c)
        sum_d = multiply_add(_q4(d + at, x), load_spread(scale + n_blocks * 12), sum_d)
    out[0], out[1], out[2], out[3] = total(sum_a), total(sum_b), total(sum_c), total(sum_d)


@numba.njit(cache=True, nogil=True)
def _dot_four_q8(rows, ahead, x_at, scales, n_blocks, out):
    a, b, c, d = rows[0], rows[1], rows[2], rows[3]
    zero = spread(np.float32(0))
    sum_a, sum_b, sum_c, sum_d = zero, zero, zero, zero
    for block in range(n_blocks):
        prefetch(ahead[block & 3] + (block >> 2) * 2 * _LINE)
        prefetch(ahead[block & 3] + (block >> 2) * 2 * _LINE + _LINE)
        at, x, scale = block * 32, x_at + block * 128, scales + block * 4
        sum_a = multiply_add(_q8(a + at, x), load_spread(scale), sum_a)
        sum_b = multiply_add(_q8(b + at, x), load_spread(scale + n_blocks * 4), sum_b)
        sum_c = multiply_add(_q8(c + at, x), load_spread(scale + n_blocks * 8), sum_c)
        sum_d = multiply_add(_q8(d + at, x), load_spread(scale + n_blocks * 12), sum_d)
    out[0], out[1], out[2], out[3] = total(sum_a), total(sum_b), total(sum_c), total(sum_d)


@numba.njit(cache=True, nogil=True)
def dot_run(kind, data, n_rows, n_blocks, start, stop, factors, out):
    """out[row] = row @ x for the rows start to stop - 1."""
    ids = np.arange(RUN)
    for first in range(start, stop, RUN):
        last = min(first + RUN, stop)
        dot_rows(kind, data, n_rows, n_blocks, first, ids[: last - first], factors, out[first:last])


@numba.njit(cache=True, nogil=True, parallel=True)
def multiply_rows(n_threads, kind, data, n_rows, n_blocks, x, out):
    """out (n_rows,) = matrix @ x, the rows split evenly in fours."""
    factors = prepared(x, kind)
    share = (n_rows + 4 * n_threads - 1) // (4 * n_threads) * 4
    for part in numba.prange(n_threads):
        dot_run(kind, data, n_rows, n_blocks, part * share, min((part + 1) * share, n_rows), factors, out)
