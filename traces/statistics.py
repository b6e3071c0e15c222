"""
What a trace says about locality: overlap of adjacent tokens, hit-rate curve, load, divergence between domains.

The hit-rate curve replays LRU in one pass per scope from stack distances: a row is one access, hits count against the
state before the row, the cache is cold at the start of each request (unless carried over).
"""

from dataclasses import dataclass

import numpy as np

from moeplan.progress import OnProgress, ignore_progress
from traces.routing_trace import RoutingTrace


@dataclass(frozen=True)
class HitRate:
    """LRU hit rate at a capacity; scope "per-layer" counts experts a layer, "global" experts in all."""

    policy: str
    scope: str
    capacity_experts: int
    hit_rate: float


def adjacent_overlap(trace: RoutingTrace) -> float:
    """Mean share of a row's experts that the previous token of the same request used in the same layer."""
    same = trace.request_id[1:] == trace.request_id[:-1]
    before, after = trace.expert_ids[:-1][same], trace.expert_ids[1:][same]
    if not len(after):
        return 0.0
    shared = (after[..., :, None] == before[..., None, :]).any(axis=-1)
    return float(shared.mean())


def stack_distances(
    trace: RoutingTrace, scope: str, *, carry_over: bool = False, on_progress: OnProgress = ignore_progress
) -> np.ndarray:
    """
    LRU stack distance of every access in token order: int64 (n_tokens, n_moe_layers, top_k).

    The number of distinct experts used more recently, before the row: it hits in a cache of more slots than this.
    First uses have the largest int64. scope is "per-layer" or "global".  on_progress watches: tokens done, in all.
    """
    later = _later_in_layer if scope == "per-layer" else _later_in_all
    result = np.empty(trace.expert_ids.shape, dtype=np.int64)
    times = np.arange(trace.n_moe_layers * trace.top_k).reshape(trace.expert_ids.shape[1:])
    last_use = np.full((trace.n_moe_layers, trace.header.n_experts), -1, dtype=np.int64)
    for token in range(trace.n_tokens):
        if token and not carry_over and trace.request_id[token] != trace.request_id[token - 1]:
            last_use[:] = -1
        keys = trace.expert_ids[token].astype(np.int64)
        since = np.take_along_axis(last_use, keys, axis=1)
        result[token] = np.where(since < 0, np.iinfo(np.int64).max, later(last_use, since))
        np.put_along_axis(last_use, keys, times + token * times.size, axis=1)
        on_progress(token + 1, trace.n_tokens)
    return result


def _later_in_layer(last_use: np.ndarray, since: np.ndarray) -> np.ndarray:
    """(n_layers, top_k): experts of the layer that were used after the last use of each of a token's experts."""
    return (last_use[:, None, :] > since[:, :, None]).sum(axis=2)


def _later_in_all(last_use: np.ndarray, since: np.ndarray) -> np.ndarray:
    """
    The same over all layers, when a token's rows follow one another.

    The rows of the layers above are the last uses by then: all top_k of each count, whenever they were used before.
    """
    flat, (n_layers, top_k) = since.reshape(-1), since.shape
    before = last_use.size - np.searchsorted(np.sort(last_use, axis=None), flat, side="right")
    layers = np.repeat(np.arange(n_layers), top_k)
    told_twice = ((flat[None, :] > flat[:, None]) & (layers[None, :] < layers[:, None])).sum(axis=1)
    return (before - told_twice + layers * top_k).reshape(since.shape)


def hit_rate_curve(
    trace: RoutingTrace, *, carry_over: bool = False, on_progress: OnProgress = ignore_progress
) -> list[HitRate]:
    """
    LRU hit rates per layer at 1/8 to all of the experts, and global at the same shares of all experts.

    on_progress watches: tokens done and in all, over both scopes.
    """
    curve = []
    for index, (scope, n_all) in enumerate(
        (("per-layer", trace.header.n_experts), ("global", trace.header.n_experts * trace.n_moe_layers))
    ):
        watch = _part(on_progress, index * trace.n_tokens, 2 * trace.n_tokens)
        distances = stack_distances(trace, scope, carry_over=carry_over, on_progress=watch)
        for eighths in range(1, 9):
            capacity = n_all * eighths // 8
            if capacity:
                curve.append(HitRate("lru", scope, capacity, float((distances < capacity).mean())))
    return curve


def _part(on_progress: OnProgress, n_before: int, n_tokens: int) -> OnProgress:
    """Tells a part of the work as such."""
    return lambda done, _: on_progress(n_before + done, n_tokens)


def expert_load(trace: RoutingTrace) -> np.ndarray:
    """Share of the assignments that each expert takes: float64 (n_moe_layers, n_experts), rows sum to 1."""
    counts = [
        np.bincount(ids.reshape(-1), minlength=trace.header.n_experts) for ids in np.moveaxis(trace.expert_ids, 1, 0)
    ]
    return np.array(counts) / (trace.n_tokens * trace.top_k)


def load_entropy_frac(trace: RoutingTrace) -> float:
    """Entropy of the experts' load over that of a uniform load, mean over layers; 1 is uniform."""
    load = expert_load(trace)
    logs = np.log(load, out=np.zeros_like(load), where=load > 0)
    return float((-(load * logs).sum(axis=1) / np.log(trace.header.n_experts)).mean())


def routing_divergence(first: np.ndarray, second: np.ndarray) -> float:
    """Jensen-Shannon divergence in bit (0 to 1) between two loads (n_moe_layers, n_experts), mean over layers."""
    middle = (first + second) / 2

    def relative(load: np.ndarray) -> np.ndarray:
        share = np.divide(load, middle, out=np.ones_like(load), where=load > 0)
        ratio = np.log2(share)
        return (load * ratio).sum(axis=1)

    return float(((relative(first) + relative(second)) / 2).mean())


def looks_uniform(trace: RoutingTrace) -> bool:
    """Whether adjacent tokens share no more experts than independent uniform choices would (top_k / n_experts)."""
    chance = trace.top_k / trace.header.n_experts
    return adjacent_overlap(trace) < 1.1 * chance
