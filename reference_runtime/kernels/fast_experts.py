"""
One token through the experts of a wave, straight from the packed blocks: gate and up by rows, down by columns.

First pass: for each expert the gates of a range of neurons, then up for those alone whose gate is not zero.  Second
pass: a range of outputs, over the open neurons of all experts.  So a layer takes two parallel regions, neither thread
adds what another has computed, and a shut neuron's up row and down column are never read.

In a block of columns the neurons share the scale of an output row: their quants are summed first, then scaled.  For
Q4_0 two sums are enough, of byte = 16 * high + low and of low, since the high nibbles' sum is (bytes - low) / 16.
"""
# mypy: disable-error-code="no-untyped-def"

import math

import numba
import numpy as np

from reference_runtime.kernels.fast_dots import Q4_0, dot_rows, dot_run, prepared
from reference_runtime.kernels.fast_vectors import (
    add,
    load,
    load_halves,
    load_signed,
    load_unsigned,
    low_nibbles,
    multiply,
    multiply_add,
    prefetch,
    spread,
    store,
    to_float,
)

GATE, UP, DOWN, GATE_KIND, UP_KIND, DOWN_KIND = range(6)  # columns of a wave's table; the first three are addresses


@numba.njit(cache=True, nogil=True)
def _activated(gate, is_relu):
    if is_relu:
        return np.float32(0) if gate <= 0 else gate  # NaN stays
    e = np.float32(math.exp(-abs(gate)))  # the exponent cannot overflow
    return gate * (np.float32(1) if gate >= 0 else e) / (np.float32(1) + e)


@numba.njit(cache=True, nogil=True)
def _open_neurons(table, weight, z, n_ffn, start, stop, is_relu, products, ids, counts):
    """
    products[j] = weight * activation(gate_j z) * (up_j z) for the neurons start to stop - 1, multiples of 32, and for
    each block of 32 the open ones: ids[block, : counts[block]].
    """
    n_blocks = len(z) // 32
    gates = np.empty(n_ffn, np.float32)
    dot_run(table[GATE_KIND], table[GATE], n_ffn, n_blocks, start, stop, prepared(z, table[GATE_KIND]), gates)
    opened = np.empty(stop - start, np.int64)
    n_open = 0
    for block in range(start // 32, stop // 32):
        count = 0
        for j in range(block * 32, block * 32 + 32):
            gates[j] = _activated(gates[j], is_relu)
            if gates[j] != 0:
                ids[block, count] = j
                opened[n_open] = j
                count += 1
                n_open += 1
        counts[block] = count
    ups = np.empty(n_open, np.float32)
    factors = prepared(z, table[UP_KIND])
    dot_rows(table[UP_KIND], table[UP], n_ffn, n_blocks, 0, opened[:n_open], factors, ups)
    for i in range(n_open):
        products[opened[i]] = gates[opened[i]] * ups[i] * weight


@numba.njit(cache=True, nogil=True)
def _add_128_q4(columns, scales, n_rows, row, products, ids, ahead, out):
    """out[row : row + 128] += one block of 32 columns @ products; of a neuron these rows are one cache line."""
    at = columns + row // 2
    for j in ahead:
        prefetch(at + j * (n_rows // 2))
    zero = spread(np.float32(0))
    a, b, c, d, low_a, low_b, low_c, low_d = zero, zero, zero, zero, zero, zero, zero, zero
    offset = np.float32(0)
    for j in ids:
        product = spread(products[j])
        offset += products[j]
        line = at + j * (n_rows // 2)
        byte = load_unsigned(line)
        a = multiply_add(to_float(byte), product, a)
        low_a = multiply_add(to_float(low_nibbles(byte)), product, low_a)
        byte = load_unsigned(line + 16)
        b = multiply_add(to_float(byte), product, b)
        low_b = multiply_add(to_float(low_nibbles(byte)), product, low_b)
        byte = load_unsigned(line + 32)
        c = multiply_add(to_float(byte), product, c)
        low_c = multiply_add(to_float(low_nibbles(byte)), product, low_c)
        byte = load_unsigned(line + 48)
        d = multiply_add(to_float(byte), product, d)
        low_d = multiply_add(to_float(low_nibbles(byte)), product, low_d)
    scale, to = scales + row * 2, out.ctypes.data + row * 4
    _add_scaled(a, low_a, offset, scale, to)
    _add_scaled(b, low_b, offset, scale + 64, to + 128)
    _add_scaled(c, low_c, offset, scale + 128, to + 256)
    _add_scaled(d, low_d, offset, scale + 192, to + 384)


@numba.njit(cache=True, nogil=True)
def _add_scaled(bytes_sum, low_sum, offset, scale, out):
    """Sums of 32 output rows, times their scales, to memory: rows 0 to 15 are low nibbles, 16 to 31 high ones."""
    shift = spread(np.float32(-8) * offset)
    minus_low = multiply(low_sum, spread(np.float32(-1)))
    high = multiply_add(add(bytes_sum, minus_low), spread(np.float32(0.0625)), shift)
    store(out, multiply_add(add(low_sum, shift), load_halves(scale), load(out)))
    store(out + 64, multiply_add(high, load_halves(scale + 32), load(out + 64)))


@numba.njit(cache=True, nogil=True)
def _add_32(kind, columns, scales, n_rows, row, products, ids, ahead, out):
    """out[row : row + 32] += one block of 32 columns @ products."""
    per_byte = 2 if kind == Q4_0 else 1
    for j in ahead:
        prefetch(columns + (j * n_rows + row) // per_byte)
    a = b = spread(np.float32(0))
    offset = np.float32(0)
    for j in ids:
        product = spread(products[j])
        offset += products[j]
        at = columns + (j * n_rows + row) // per_byte
        if kind == Q4_0:
            byte = load_unsigned(at)
            a = multiply_add(to_float(byte), product, a)
            b = multiply_add(to_float(low_nibbles(byte)), product, b)
        else:
            a = multiply_add(load_signed(at), product, a)
            b = multiply_add(load_signed(at + 16), product, b)
    scale, to = scales + row * 2, out.ctypes.data + row * 4
    if kind == Q4_0:
        _add_scaled(a, b, offset, scale, to)
    else:
        store(to, multiply_add(a, load_halves(scale), load(to)))
        store(to + 64, multiply_add(b, load_halves(scale + 32), load(to + 64)))


@numba.njit(cache=True, nogil=True)
def _add_outputs(table, n_ffn, start, stop, products, ids, counts, out):
    """out[start:stop] += down @ products of each expert in the wave's order; start and stop are multiples of 32."""
    n_rows = len(out)
    for e in range(len(table)):
        kind, columns = table[e, DOWN_KIND], table[e, DOWN]
        scales = columns + n_ffn * n_rows // (2 if kind == Q4_0 else 1)
        n_blocks = n_ffn // 32
        for block in range(n_blocks):
            following = min(block + 1, n_blocks - 1)
            some, ahead = ids[e, block, : counts[e, block]], ids[e, following, : counts[e, following]]
            row = start
            while row < stop and len(some) > 0:
                if kind == Q4_0 and row + 128 <= stop:
                    _add_128_q4(columns, scales, n_rows, row, products[e], some, ahead, out)
                    row += 128
                else:
                    _add_32(kind, columns, scales, n_rows, row, products[e], some, ahead, out)
                    row += 32
            scales += n_rows * 2


@numba.njit(cache=True, nogil=True)
def _open_range(table, weights, z, n_ffn, start, stop, is_relu, products, ids, counts):
    """The first pass over neurons start to stop - 1 of all experts laid end to end."""
    for e in range(start // n_ffn, (stop + n_ffn - 1) // n_ffn):
        first, last = max(start - e * n_ffn, 0), min(stop - e * n_ffn, n_ffn)
        _open_neurons(table[e], weights[e], z, n_ffn, first, last, is_relu, products[e], ids[e], counts[e])


@numba.njit(cache=True, nogil=True, parallel=True)
def add_wave(n_threads, table, weights, z, out, n_ffn, is_relu):
    """
    out (hidden,) += weights[e] * down_e(activation(gate_e z) * (up_e z)) over the wave.

    table: int64 (n_experts, 6), see GATE to DOWN_KIND.  Returns how many gates are zero after the activation.
    """
    n_experts = len(table)
    products = np.empty((n_experts, n_ffn), np.float32)
    ids = np.empty((n_experts, n_ffn // 32, 32), np.int64)
    counts = np.empty((n_experts, n_ffn // 32), np.int64)
    n_neurons, n_out = n_experts * n_ffn, len(out)
    share = (n_neurons + 32 * n_threads - 1) // (32 * n_threads) * 32
    for part in numba.prange(n_threads):
        start, stop = min(part * share, n_neurons), min((part + 1) * share, n_neurons)
        _open_range(table, weights, z, n_ffn, start, stop, is_relu, products, ids, counts)
    out_share = (n_out + 128 * n_threads - 1) // (128 * n_threads) * 128
    for part in numba.prange(n_threads):
        _add_outputs(table, n_ffn, part * out_share, min((part + 1) * out_share, n_out), products, ids, counts, out)
    return n_neurons - counts.sum()
