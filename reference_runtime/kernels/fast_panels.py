"""
Packed matrices as float32 panels, for a product with several tokens: a panel is unpacked once and BLAS does the rest.

The values are exact: a scale of 11 bits times a quant of 4 or 8 fits a float32.
"""
# mypy: disable-error-code="no-untyped-def"

import numba
import numpy as np

from reference_runtime.kernels.fast_dots import Q4_0
from reference_runtime.kernels.fast_vectors import (
    high_nibbles,
    load_half,
    load_halves,
    load_signed,
    load_unsigned,
    low_nibbles,
    multiply,
    multiply_add,
    spread,
    store,
    to_float,
)


@numba.njit(cache=True, nogil=True)
def _unpack_rows(kind, data, n_rows, n_blocks, start, stop, to):
    """Rows start to stop - 1 of a matrix packed by rows to float32 (stop - start, 32 * n_blocks) at an address."""
    row_bytes = n_blocks * (16 if kind == Q4_0 else 32)
    scales = data + n_rows * row_bytes
    for block in range(start * n_blocks, stop * n_blocks):
        scale = spread(load_half(scales + block * 2))
        if kind == Q4_0:
            byte = load_unsigned(data + block * 16)
            shift = multiply(scale, spread(np.float32(-8)))
            store(to, multiply_add(to_float(low_nibbles(byte)), scale, shift))
            store(to + 64, multiply_add(to_float(high_nibbles(byte)), scale, shift))
        else:
            store(to, multiply(load_signed(data + block * 32), scale))
            store(to + 64, multiply(load_signed(data + block * 32 + 16), scale))
        to += 128


@numba.njit(cache=True, nogil=True)
def _unpack_columns(kind, data, n_rows, n_columns, start, stop, to):
    """Columns start to stop - 1 of a matrix packed by columns to float32 (stop - start, n_rows) at an address."""
    column_bytes = n_rows // (2 if kind == Q4_0 else 1)
    scales = data + n_columns * column_bytes
    for column in range(start, stop):
        for row in range(0, n_rows, 32):
            at = scales + (column // 32 * n_rows + row) * 2
            low_scale, high_scale = load_halves(at), load_halves(at + 32)
            if kind == Q4_0:
                byte = load_unsigned(data + column * column_bytes + row // 2)
                eight = spread(np.float32(-8))
                store(to, multiply_add(to_float(low_nibbles(byte)), low_scale, multiply(low_scale, eight)))
                store(to + 64, multiply_add(to_float(high_nibbles(byte)), high_scale, multiply(high_scale, eight)))
            else:
                store(to, multiply(load_signed(data + column * n_rows + row), low_scale))
                store(to + 64, multiply(load_signed(data + column * n_rows + row + 16), high_scale))
            to += 128


@numba.njit(cache=True, nogil=True, parallel=True)
def unpack_panel(n_threads, by_columns, kind, data, n_rows, n_columns, start, stop, panel):
    """Lines start to stop - 1 (rows, or columns of a matrix packed by columns) to panel: float32 (lines, the other)."""
    share = (stop - start + n_threads - 1) // n_threads
    line = panel.shape[1] * 4  # bytes
    for part in numba.prange(n_threads):
        first, last = min(start + part * share, stop), min(start + (part + 1) * share, stop)
        to = panel.ctypes.data + (first - start) * line
        if by_columns:
            _unpack_columns(kind, data, n_rows, n_columns, first, last, to)
        else:
            _unpack_rows(kind, data, n_rows, n_columns // 32, first, last, to)
