"""
Parts of packed matrices as float32, for products with several tokens.

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
def floats_of_rows(kind, data, n_rows, n_blocks, start, stop, to):
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
def floats_of_columns(kind, data, n_rows, n_columns, row, to):
    """Rows row to row + 31 of a matrix packed by columns to float32 (n_columns, 32) at an address."""
    column_bytes = n_rows // (2 if kind == Q4_0 else 1)
    scales = data + n_columns * column_bytes
    eight = spread(np.float32(-8))
    for first in range(0, n_columns, 32):  # columns that share the scales of a row
        at = scales + (first // 32 * n_rows + row) * 2
        low_scale, high_scale = load_halves(at), load_halves(at + 32)
        low_shift, high_shift = multiply(low_scale, eight), multiply(high_scale, eight)
        for column in range(first, min(first + 32, n_columns)):
            if kind == Q4_0:
                byte = load_unsigned(data + column * column_bytes + row // 2)
                store(to, multiply_add(to_float(low_nibbles(byte)), low_scale, low_shift))
                store(to + 64, multiply_add(to_float(high_nibbles(byte)), high_scale, high_shift))
            else:
                store(to, multiply(load_signed(data + column * n_rows + row), low_scale))
                store(to + 64, multiply(load_signed(data + column * n_rows + row + 16), high_scale))
            to += 128
