"""
Attention of several tokens over a float32 KV cache: one head and 32 tokens at a time, a lane of a vector is a token.

The tiles of fast_tiles give scores[key, token] with the keys as weights, and out[number of the head, token] with the
values as weights and the scores' exponentials as activations.  Keys that no token of the 32 sees are not touched.
"""
# mypy: disable-error-code="no-untyped-def"

import numba
import numpy as np

from reference_runtime.kernels.fast_tiles import PANEL_STEP, ROWS, SPAN, TOKENS, add_products
from reference_runtime.kernels.fast_vectors import add, exponential, larger, load, multiply, spread, store

_HIDDEN = np.float32(-1e30)  # a score whose exponential is as good as nothing


@numba.njit(cache=True, nogil=True)
def _score(q, keys, dim, first, n, scores):
    """scores[panel, key - first, lane] = key @ q[panel, :, lane] for n keys; keys: address of (., dim)."""
    line, last_keys = dim * 4, np.zeros((ROWS, dim), np.float32)  # bytes
    panel, other = q[0].ctypes.data, q[-1].ctypes.data
    scores[:, :n] = 0
    for at in range(0, n, ROWS):
        weights = keys + (first + at) * line
        if at + ROWS > n:  # what lies behind the last key is not read
            for i in range(n - at):
                for j in range(0, line, PANEL_STEP):
                    store(last_keys[i].ctypes.data + j, load(weights + i * line + j))
            weights = last_keys.ctypes.data
        to, other_to = scores[0, at].ctypes.data, scores[-1, at].ctypes.data
        add_products(weights, line, 4, dim, panel, other, to, other_to)


@numba.njit(cache=True, nogil=True)
def _hide(scores, first, n, position, window):
    """Scores of keys first to first + n - 1 that a token does not see; the first token stands at the key `position`."""
    for panel in range(len(scores)):
        for lane in range(TOKENS):
            own = position + panel * TOKENS + lane
            for key in range(own + 1, first + n):
                scores[panel, key - first, lane] = _HIDDEN
            for key in range(first, min(own - window + 1, first + n)):
                scores[panel, key - first, lane] = _HIDDEN


@numba.njit(cache=True, nogil=True)
def _weigh(scores, n, sums):
    """The first n scores of each token become exp(score - their maximum); sums (panels, TOKENS)."""
    for panel in range(len(scores)):
        start = scores[panel].ctypes.data
        peak, whole = spread(_HIDDEN), spread(np.float32(0))
        for key in range(n):
            peak = larger(load(start + key * PANEL_STEP), peak)
        minus = multiply(peak, spread(np.float32(-1)))
        for span in range(0, n, SPAN):
            part = spread(np.float32(0))
            for key in range(span, min(span + SPAN, n)):
                at = start + key * PANEL_STEP
                weight = exponential(add(load(at), minus))
                part = add(part, weight)
                store(at, weight)
            whole = add(whole, part)
        store(sums[panel].ctypes.data, whole)


@numba.njit(cache=True, nogil=True)
def _mix(scores, sums, values, dim, first, n, n_tokens, out):
    """out[token, :dim] = scores[:n, token] @ values / sum of the token; values: address of (., dim)."""
    tile = np.empty((2, ROWS, TOKENS), np.float32)
    to, start = tile.ctypes.data, values + first * dim * 4
    panel, other = scores[0].ctypes.data, scores[-1].ctypes.data
    for number in range(0, dim, ROWS):
        tile[:] = 0
        add_products(start + number * 4, 4, dim * 4, n, panel, other, to, to + ROWS * PANEL_STEP)
        for token in range(n_tokens):
            which, lane = token // TOKENS, token % TOKENS
            for i in range(ROWS):
                out[token, number + i] = tile[which, i, lane] / sums[which, lane]


@numba.njit(cache=True, nogil=True, parallel=True)
def attend_chunk(n_threads, q, keys, values, strides, group, n_keys, window, n_tokens, out):
    """
    softmax(q @ keys.T) @ values of the last n_tokens of n_keys positions: out float32 (n_tokens, heads, dim).

    q: scaled, as fast_tiles.panels_of_heads gives it; keys, values: addresses of (kv, n_keys, dim), strides: bytes from
    one kv to the next; a kv's part is contiguous, dim a multiple of 32; group: heads that share keys.  A token sees
    itself and the window - 1 keys before it.
    """
    n_heads, n_panels, dim, _ = q.shape
    n_pairs = (n_panels + 1) // 2
    for part in numba.prange(n_threads):
        scores, sums = np.empty((2, n_keys + ROWS, TOKENS), np.float32), np.empty((2, TOKENS), np.float32)
        for task in range(part, n_heads * n_pairs, n_threads):
            head, start = task % n_heads, task // n_heads * 2
            stop = min(start + 2, n_panels)
            kv, n_some = head // group, min(stop * TOKENS, n_tokens) - start * TOKENS
            position = n_keys - n_tokens + start * TOKENS  # of the first of these tokens
            first = max(0, position - window + 1)
            n = position + n_some - first
            some = scores[: stop - start]
            _score(q[head, start:stop], keys + kv * strides[0], dim, first, n, some)
            _hide(some, first, n, position, window)
            _weigh(some, n, sums)
            _mix(some, sums, values + kv * strides[1], dim, first, n, n_some, out[start * TOKENS :, head])
