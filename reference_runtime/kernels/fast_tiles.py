"""
Products of several tokens at once, in tiles of 4 rows by 32 tokens: a lane of a vector is a token.

Activations lie in panels of 16 tokens, panel[k, lane], the last one filled up with zeros.  A tile's weights are
numbers in memory that are spread over the lanes; where they lie follows from two steps, so that rows that were unpacked
one after the other and columns that were unpacked side by side go through the same loop.  Sums over k are taken in
spans of SPAN and these added up, which keeps the rounding of long rows small.  A tile depends on no other one, so
results do not depend on the threads.
"""
# mypy: disable-error-code="no-untyped-def"

import numba
import numpy as np

from reference_runtime.kernels.fast_unpacking import floats_of_columns, floats_of_rows
from reference_runtime.kernels.fast_vectors import add, load, load_spread, multiply_add, spread, store

TOKENS = 16  # of a panel
ROWS = 4  # of a tile
SPAN = 256  # products that are summed before they are added to others
PANEL_STEP = TOKENS * 4  # bytes from one k of a panel to the next
_COLUMN_ROWS = 32  # that are unpacked from a matrix packed by columns at a time


def panels(x: np.ndarray) -> np.ndarray:
    """float32 (n, k) -> (n_panels, k, TOKENS), the tokens behind the last one zero."""
    return panels_of_heads(x[:, None])[0]


def panels_of_heads(x: np.ndarray) -> np.ndarray:
    """The same of each head: float32 (n, heads, k) -> (heads, n_panels, k, TOKENS)."""
    n, heads, k = x.shape
    n_panels = -(-n // TOKENS)
    filled = np.zeros((n_panels * TOKENS, heads, k), np.float32)
    filled[:n] = x
    return np.ascontiguousarray(filled.reshape(n_panels, TOKENS, heads, k).transpose(2, 0, 3, 1))


@numba.njit(cache=True, nogil=True)
def _add_to_four(tile, a, b, c, d):
    store(tile, add(load(tile), a))
    store(tile + PANEL_STEP, add(load(tile + PANEL_STEP), b))
    store(tile + 2 * PANEL_STEP, add(load(tile + 2 * PANEL_STEP), c))
    store(tile + 3 * PANEL_STEP, add(load(tile + 3 * PANEL_STEP), d))


@numba.njit(cache=True, nogil=True)
def _add_one_panel(weights, row_step, k_step, first, last, panel, tile):
    """tile[row, lane] += sum over k of weights[row, k] * panel[k, lane]; weights, panel and tile are addresses."""
    zero = spread(np.float32(0))
    a, b, c, d = zero, zero, zero, zero
    at, x_at = weights + first * k_step, panel + first * PANEL_STEP
    for _ in range(first, last):
        x = load(x_at)
        a = multiply_add(load_spread(at), x, a)
        b = multiply_add(load_spread(at + row_step), x, b)
        c = multiply_add(load_spread(at + 2 * row_step), x, c)
        d = multiply_add(load_spread(at + 3 * row_step), x, d)
        at += k_step
        x_at += PANEL_STEP
    _add_to_four(tile, a, b, c, d)


@numba.njit(cache=True, nogil=True)
def _add_two_panels(weights, row_step, k_step, first, last, panel, other, tile, other_tile):
    """The same for two panels and a tile of each: every weight is loaded once."""
    zero = spread(np.float32(0))
    a, b, c, d, e, f, g, h = zero, zero, zero, zero, zero, zero, zero, zero
    at, x_at, y_at = weights + first * k_step, panel + first * PANEL_STEP, other + first * PANEL_STEP
    for _ in range(first, last):
        x, y = load(x_at), load(y_at)
        w = load_spread(at)
        a, e = multiply_add(w, x, a), multiply_add(w, y, e)
        w = load_spread(at + row_step)
        b, f = multiply_add(w, x, b), multiply_add(w, y, f)
        w = load_spread(at + 2 * row_step)
        c, g = multiply_add(w, x, c), multiply_add(w, y, g)
        w = load_spread(at + 3 * row_step)
        d, h = multiply_add(w, x, d), multiply_add(w, y, h)
        at += k_step
        x_at += PANEL_STEP
        y_at += PANEL_STEP
    _add_to_four(tile, a, b, c, d)
    _add_to_four(other_tile, e, f, g, h)


@numba.njit(cache=True, nogil=True)
def add_products(weights, row_step, k_step, n_k, panel, other, tile, other_tile):
    """
    tile[row, lane] += sum over n_k of weights[row, k] * panel[k, lane], and so for another panel with its own tile.

    All but the numbers are addresses; other: that of panel where there is no second one.
    """
    for first in range(0, n_k, SPAN):
        last = min(first + SPAN, n_k)
        if other != panel:
            _add_two_panels(weights, row_step, k_step, first, last, panel, other, tile, other_tile)
        else:
            _add_one_panel(weights, row_step, k_step, first, last, panel, tile)


@numba.njit(cache=True, nogil=True)
def tiles(weights, row_step, k_step, n_k, x, row, out, tile):
    """
    out[token, row : row + ROWS] = x @ weights.T for all tokens; weights: address of the first row's first number.

    x: panels (n_panels, n_k, TOKENS); out: (n, rows); tile: float32 (2, ROWS, TOKENS) to work in.
    """
    n_panels, n = len(x), len(out)
    to = tile.ctypes.data
    for first in range(0, n_panels, 2):
        tile[:] = 0
        panel, other = x[first].ctypes.data, x[min(first + 1, n_panels - 1)].ctypes.data
        add_products(weights, row_step, k_step, n_k, panel, other, to, to + ROWS * PANEL_STEP)
        for which in range(min(2, n_panels - first)):
            start = (first + which) * TOKENS
            for lane in range(min(TOKENS, n - start)):
                for i in range(min(ROWS, out.shape[1] - row)):
                    out[start + lane, row + i] = tile[which, i, lane]


@numba.njit(cache=True, nogil=True, parallel=True)
def multiply_tokens(n_threads, kind, data, n_rows, n_columns, x, out):
    """out (n, n_rows) = tokens @ matrix.T, of a matrix packed by rows at address data; x: panels of the tokens."""
    share = (n_rows + ROWS * n_threads - 1) // (ROWS * n_threads) * ROWS
    for part in numba.prange(n_threads):
        rows, tile = np.zeros((ROWS, n_columns), np.float32), np.empty((2, ROWS, TOKENS), np.float32)
        for row in range(part * share, min((part + 1) * share, n_rows), ROWS):
            floats_of_rows(kind, data, n_rows, n_columns // 32, row, min(row + ROWS, n_rows), rows.ctypes.data)
            tiles(rows.ctypes.data, n_columns * 4, 4, n_columns, x, row, out, tile)


@numba.njit(cache=True, nogil=True, parallel=True)
def multiply_tokens_by_columns(n_threads, kind, data, n_rows, n_columns, x, out):
    """The same of a matrix packed by columns; n_rows is a multiple of 32."""
    share = (n_rows + _COLUMN_ROWS * n_threads - 1) // (_COLUMN_ROWS * n_threads) * _COLUMN_ROWS
    for part in numba.prange(n_threads):
        side, tile = np.empty((n_columns, _COLUMN_ROWS), np.float32), np.empty((2, ROWS, TOKENS), np.float32)
        for first in range(part * share, min((part + 1) * share, n_rows), _COLUMN_ROWS):
            floats_of_columns(kind, data, n_rows, n_columns, first, side.ctypes.data)
            for row in range(0, _COLUMN_ROWS, ROWS):
                tiles(side.ctypes.data + row * 4, 4, _COLUMN_ROWS * 4, n_columns, x, first + row, out, tile)
