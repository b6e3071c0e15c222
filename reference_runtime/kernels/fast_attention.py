"""
Attention of one token over a float32 KV cache, in spans of keys that any thread may take.

Each span gives its maximum score, the sum of exp(score - maximum) and the values mixed with these weights; the spans
are joined in their order (as in FlashDecoding).  The spans do not depend on the threads, so neither does the result.
"""
# mypy: disable-error-code="no-untyped-def"

import math

import numba
import numpy as np

from reference_runtime.kernels.fast_vectors import (
    add,
    exponential,
    load,
    multiply_add,
    prefetch,
    spread,
    store,
    total,
)

SPAN = 128  # keys
_LINE = 64  # bytes: sixteen float32, and what a prefetch brings


@numba.njit(cache=True, nogil=True)
def _score_pairs(q, keys, values, start, stop, scores):
    """scores[head, key - start] = q[head] @ keys[key]; two heads by two keys at a time, each loaded once."""
    group, dim = q.shape
    line = dim * 4  # bytes
    for key in range(start, stop, 2):
        other = min(key + 1, stop - 1)
        a_at, b_at = keys + key * line, keys + other * line
        for i in range(0, line, _LINE):  # the values are next
            prefetch(values + key * line + i)
            prefetch(values + other * line + i)
        for head in range(0, group, 2):
            second = min(head + 1, group - 1)
            x_at, y_at = q.ctypes.data + head * line, q.ctypes.data + second * line
            zero = spread(np.float32(0))
            ax, ay, bx, by = zero, zero, zero, zero
            for i in range(0, line, _LINE):
                a, b, x, y = load(a_at + i), load(b_at + i), load(x_at + i), load(y_at + i)
                ax, ay = multiply_add(a, x, ax), multiply_add(a, y, ay)
                bx, by = multiply_add(b, x, bx), multiply_add(b, y, by)
            scores[head, key - start], scores[second, key - start] = total(ax), total(ay)
            scores[head, other - start], scores[second, other - start] = total(bx), total(by)


@numba.njit(cache=True, nogil=True)
def _weigh(scores, n):
    """The first n of scores (SPAN,) become exp(score - maximum), the others 0; the maximum and the sum."""
    peak = scores[0]
    for i in range(1, n):
        peak = max(peak, scores[i])
    at = scores.ctypes.data
    for i in range(0, SPAN * 4, _LINE):
        store(at + i, exponential(add(load(at + i), spread(-peak))))
    scores[n:] = 0
    part = spread(np.float32(0))
    for i in range(0, SPAN * 4, _LINE):
        part = add(part, load(at + i))
    return peak, total(part)


@numba.njit(cache=True, nogil=True)
def _mix(weights, values, start, n, mixed):
    """mixed[head] = weights[head, :n] @ values[start : start + n]; weights are zero behind n."""
    group, dim = mixed.shape
    line = dim * 4  # bytes
    zero = spread(np.float32(0))
    for i in range(0, line, 2 * _LINE):
        for head in range(0, group, 2):
            second = min(head + 1, group - 1)
            a, b, c, d = zero, zero, zero, zero
            at = values + start * line + i
            for key in range(n):
                x, y = spread(weights[head, key]), spread(weights[second, key])
                left, right = load(at), load(at + _LINE)
                a, b = multiply_add(x, left, a), multiply_add(x, right, b)
                c, d = multiply_add(y, left, c), multiply_add(y, right, d)
                at += line
            to, to_second = mixed.ctypes.data + head * line + i, mixed.ctypes.data + second * line + i
            store(to, a)
            store(to + _LINE, b)
            store(to_second, c)
            store(to_second + _LINE, d)


@numba.njit(cache=True, nogil=True)
def _spans(q, keys, values, strides, n_keys, first, last, peaks, sums, mixed):
    """Spans first to last - 1 of all groups laid end to end; mixed: (kv, n_spans, group, dim)."""
    n_spans = mixed.shape[1]
    scores = np.zeros((q.shape[1], SPAN), np.float32)
    for task in range(first, last):
        kv, span = task // n_spans, task % n_spans
        start = span * SPAN
        stop = min(start + SPAN, n_keys)
        kv_keys, kv_values = keys + kv * strides[0], values + kv * strides[1]
        _score_pairs(q[kv], kv_keys, kv_values, start, stop, scores)
        for head in range(q.shape[1]):
            peaks[kv, span, head], sums[kv, span, head] = _weigh(scores[head], stop - start)
        _mix(scores, kv_values, start, stop - start, mixed[kv, span])


@numba.njit(cache=True, nogil=True)
def _join(peaks, sums, mixed, out):
    """out[kv, head] = sum over spans of mixed * exp(peak - highest) / sum over spans of sums * the same."""
    n_kv, n_spans, group, dim = mixed.shape
    for kv in range(n_kv):
        for head in range(group):
            highest = peaks[kv, 0, head]
            for span in range(1, n_spans):
                highest = max(highest, peaks[kv, span, head])
            whole = np.float32(0)
            for span in range(n_spans):
                share = np.float32(math.exp(peaks[kv, span, head] - highest))
                whole += sums[kv, span, head] * share
                for i in range(dim):
                    out[kv, head, i] += mixed[kv, span, head, i] * share
            for i in range(dim):
                out[kv, head, i] /= whole


@numba.njit(cache=True, nogil=True, parallel=True)
def attend_one(n_threads, q, keys, values, strides, n_keys):
    """
    softmax(q @ keys.T) @ values of one token: (kv, group, dim).

    q: (kv, group, dim), scaled already.  keys, values: addresses of (kv, n_keys, dim), strides: their bytes from one kv
    to the next; a kv's part is contiguous, n_keys > 0, dim a multiple of 32.
    """
    n_kv, group, dim = q.shape
    n_spans = (n_keys + SPAN - 1) // SPAN
    peaks, sums = np.empty((n_kv, n_spans, group), np.float32), np.empty((n_kv, n_spans, group), np.float32)
    mixed = np.empty((n_kv, n_spans, group, dim), np.float32)
    n_tasks = n_kv * n_spans
    for part in numba.prange(n_threads):
        first, last = part * n_tasks // n_threads, (part + 1) * n_tasks // n_threads
        _spans(q, keys, values, strides, n_keys, first, last, peaks, sums, mixed)
    out = np.zeros((n_kv, group, dim), np.float32)
    _join(peaks, sums, mixed, out)
    return out
