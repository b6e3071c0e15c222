"""
Synthetic and adapted traces, for shapes of which no recording is at hand. Both say so in their header.

synthesize: Zipf-popular experts with a chance to repeat the previous token's ones. Independent uniform routing
(zipf 0, repeat 0) gives hit rate = capacity / n_experts, which no real model shows.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from moeplan.errors import InputError
from moeplan.progress import OnProgress, ignore_progress
from traces.routing_trace import DECODE, PREFILL, RoutingTrace, TraceHeader

MAX_EXPERTS = 2**15 - 1  # ids are int16
MAX_DRAWS = 10**9  # about a minute of random numbers


def synthesize(
    *, n_tokens: int, n_prefill: int, n_moe_layers: int, n_experts: int, top_k: int, zipf: float, repeat_frac: float,
    seed: int, model: str = "synthetic", on_progress: OnProgress = ignore_progress,
) -> RoutingTrace:  # fmt: skip
    """
    One request whose experts follow a Zipf law per layer (weights rank^-zipf) and repeat.

    Each slot keeps the previous token's expert with probability repeat_frac and is drawn afresh otherwise.  on_progress
    watches: tokens done, in all.
    """
    for name, value, holds, must in (
        ("n_moe_layers", n_moe_layers, n_moe_layers >= 1, "must be at least 1"),
        ("n_experts", n_experts, 1 <= n_experts <= MAX_EXPERTS, f"must be 1 to {MAX_EXPERTS}"),
        ("top_k", top_k, 1 <= top_k <= n_experts, f"must be 1 to {n_experts}, the experts of a layer"),
        ("n_tokens", n_tokens, n_tokens >= 1, "must be at least 1"),
        ("n_prefill", n_prefill, 0 <= n_prefill <= n_tokens, f"must be 0 to {n_tokens}, the tokens in all"),
        ("zipf", zipf, 0 <= zipf < 100, "must be at least 0 and below 100"),
        ("repeat", repeat_frac, 0 <= repeat_frac <= 1, "must be 0 to 1"),
    ):
        if not holds:
            raise InputError(f"synthesize: {name}", must, value)
    n_draws = n_tokens * n_moe_layers * n_experts
    if n_draws > MAX_DRAWS:
        must = f"must be at most {MAX_DRAWS:,} for tokens x layers x experts"
        raise InputError("synthesize", must, f"{n_draws:,}", "ask for fewer tokens")
    rng = np.random.default_rng(seed)
    log_weights = -zipf * np.log(np.arange(1, n_experts + 1))
    popularity = np.stack([rng.permutation(log_weights) for _ in range(n_moe_layers)])
    ids = np.empty((n_tokens, n_moe_layers, top_k), dtype=np.int16)
    for token in range(n_tokens):
        keys = popularity + rng.gumbel(size=popularity.shape)  # Gumbel top-k: sampling without replacement
        if token:
            kept = rng.random((n_moe_layers, top_k)) < repeat_frac
            layers, slots = np.nonzero(kept)
            keys[layers, ids[token - 1][layers, slots]] = np.inf
        ids[token] = np.argsort(-keys, axis=1)[:, :top_k]
        on_progress(token + 1, n_tokens)
    numbers = f"zipf {zipf}, repeat {repeat_frac}, seed {seed}"
    header = made_up_header(model, n_experts, range(n_moe_layers), "moeplan trace synthesize", numbers)
    return RoutingTrace(
        header=header,
        expert_ids=ids,
        phase=np.where(np.arange(n_tokens) < n_prefill, PREFILL, DECODE).astype(np.uint8),
        request_id=np.zeros(n_tokens, np.int32),
        position=np.arange(n_tokens, dtype=np.int32),
        domain=np.zeros(n_tokens, np.int16),
    )


def adapt(trace: RoutingTrace, *, layer_ids: tuple[int, ...], n_experts: int, top_k: int) -> RoutingTrace:
    """
    A labelled stand-in of a larger shape: blocks of experts take their choices from different recorded layers.

    The experts are cut into blocks of the trace's n_experts; block b of layer i follows recorded layer
    (i + b * n_layers / n_blocks) modulo the trace's layers and gives an equal part of the top-k.  What is left over of
    it goes to the blocks from one on that moves from token to token with the routing of another recorded layer: every
    block is used, with a recording's locality.  A trace that differs in its top-k alone is cut, see cut_rows.
    Raises InputError where the shape cannot be made so.
    """
    if (trace.n_moe_layers, trace.header.n_experts) == (len(layer_ids), n_experts) and top_k < trace.top_k:
        return cut_rows(trace, top_k, layer_ids)
    recorded, n_blocks = trace.header.n_experts, n_experts // trace.header.n_experts
    if not can_adapt(trace, n_experts=n_experts, top_k=top_k):
        raise InputError(
            "--adapt-trace",
            f"must have a multiple of {recorded} experts and at most {trace.top_k} of each {recorded} active",
            f"{n_experts} experts, top-{top_k}",
            "make a trace of this shape with `moeplan trace synthesize`",
        )
    ids = np.empty((trace.n_tokens, len(layer_ids), top_k), dtype=np.int16)
    blocks, ranks = np.arange(n_blocks), np.arange(-(-top_k // n_blocks))
    for index in range(len(layer_ids)):
        sources = (index + blocks * max(1, trace.n_moe_layers // n_blocks)) % trace.n_moe_layers
        found = trace.expert_ids[:, sources, : len(ranks)] + (blocks * recorded).astype(np.int16)[:, None]
        first = trace.expert_ids[:, (index + 1) % trace.n_moe_layers, 0, None] % n_blocks  # (n_tokens, 1)
        shares = top_k // n_blocks + ((blocks - first) % n_blocks < top_k % n_blocks)  # (n_tokens, n_blocks)
        ids[:, index] = found[ranks < shares[:, :, None]].reshape(trace.n_tokens, top_k)
    adapted = (
        f"from {trace.n_moe_layers} MoE layers x {recorded} experts, {trace.top_k} a token, to {len(layer_ids)} x "
        f"{n_experts}, {top_k} a token: blocks of experts follow different recorded layers"
    )
    header = replace(
        trace.header,
        n_experts=n_experts,
        layer_ids=layer_ids,
        conditions={**trace.header.conditions, "adapted": adapted},
    )
    return replace(trace, header=header, expert_ids=ids, weights=None, predicted={})


def can_adapt(trace: RoutingTrace, *, n_experts: int, top_k: int) -> bool:
    """Whether adapt can stretch the trace over so many experts a layer and a token."""
    return n_experts % trace.header.n_experts == 0 and top_k <= n_experts // trace.header.n_experts * trace.top_k


def cut_rows(trace: RoutingTrace, top_k: int, layer_ids: tuple[int, ...]) -> RoutingTrace:
    """The first top_k experts of each row, labelled: what a smaller top-k would take where rows begin with the best."""
    text = (
        f"each row of {trace.top_k} experts to its first {top_k}, the best ones where a runtime of ours recorded them; "
        "a model that runs so would route a little differently"
    )
    header = replace(trace.header, layer_ids=layer_ids, conditions={**trace.header.conditions, "cut": text})
    return replace(trace, header=header, expert_ids=trace.expert_ids[:, :, :top_k], weights=None, predicted={})


def made_up_header(model: str, n_experts: int, layer_ids: Iterable[int], engine: str, numbers: str) -> TraceHeader:
    """The header of a trace that no model produced; numbers: what the random ones were drawn with."""
    return TraceHeader(
        model=model,
        model_fingerprint="",
        n_experts=n_experts,
        layer_ids=tuple(layer_ids),
        engine=engine,
        source=f"random numbers: {numbers}",
        licence="CC0-1.0",
        conditions={"synthetic": "no model produced this routing"},
    )
