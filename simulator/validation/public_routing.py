"""
Routing for rows of which no trace is published: made up, and labelled so in its header.

Two kinds: with a hit rate that the row itself gives, and with the expert hotness that the SmallThinker paper counts.
"""

from collections.abc import Callable

import numpy as np

from simulator.model.spec import Experts, ModelSpec
from traces.routing_trace import DECODE, PREFILL, RoutingTrace
from traces.synthetic import made_up_header, synthesize

# arXiv:2507.20984, on four data sets: 20 to 30 % of the experts are used by 0.4 to 0.6 of the tokens each, the other
# 70 to 80 % by less than 0.14.  The low end of the share is taken: a higher one would leave nothing to the others.
HOT_SHARE, HOT_FREQUENCIES = 0.2, (0.4, 0.6)
MOST_HOT_USES = 0.97  # of all uses; the other experts are used too
HIT_RATE_STEPS = 8  # bisections, to 1 / 256 of the repeat probability


def made_up(model: ModelSpec, repeat_frac: float, n_decode: int, *, seed: int = 0) -> RoutingTrace:
    """Uniform routing without a prompt; every slot keeps its expert with probability repeat_frac."""
    experts = _experts(model)
    return synthesize(
        n_tokens=n_decode, n_prefill=0, n_moe_layers=model.n_moe_layers, n_experts=experts.n_experts,
        top_k=experts.top_k, zipf=0.0, repeat_frac=repeat_frac, seed=seed,
    )  # fmt: skip


def repeat_for_hit_rate(
    model: ModelSpec, n_decode: int, hit_rate: float, measure: Callable[[RoutingTrace], float]
) -> float:
    """The repeat probability whose routing hits at a rate, by bisection; measure: the hit rate of a trace."""
    low, high = 0.0, 1.0
    for _ in range(HIT_RATE_STEPS):
        middle = (low + high) / 2
        if measure(made_up(model, middle, n_decode)) < hit_rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def hot_frequency(stratum: int, n_strata: int) -> float:
    """Share of the tokens that use a hot expert, at the middle of a stratum."""
    low, high = HOT_FREQUENCIES
    return low + (high - low) * (stratum + 0.5) / n_strata


def hot_uses_frac(experts: Experts, frequency: float) -> float:
    """Share of all uses that fall on hot experts: n_hot x frequency of the top_k uses of a token and layer."""
    return min(MOST_HOT_USES, n_hot(experts) * frequency / experts.top_k)


def n_hot(experts: Experts) -> int:
    """Hot experts of a layer, at least top_k."""
    return max(experts.top_k, round(HOT_SHARE * experts.n_experts))


def with_hot_experts(model: ModelSpec, frequency: float, *, n_prefill: int, n_decode: int, seed: int) -> RoutingTrace:
    """
    Routing in which a fixed fifth of each layer's experts is hot: each slot goes to one of them with probability
    hot_uses_frac and to another expert otherwise, all alike among themselves; tokens are independent.
    """
    experts, n_tokens = _experts(model), n_prefill + n_decode
    rng, hot = np.random.default_rng(seed), n_hot(experts)
    shape, n_cold = (n_tokens, model.n_moe_layers), experts.n_experts - hot
    n_used_hot = rng.binomial(experts.top_k, hot_uses_frac(experts, frequency), size=shape)
    n_used_hot = np.maximum(n_used_hot, experts.top_k - n_cold)
    hot_order, cold_order = (rng.random((*shape, n)).argsort(axis=-1).argsort(axis=-1) for n in (hot, n_cold))
    is_used = np.concatenate(  # (n_tokens, n_moe_layers, n_experts), exactly top_k a row, hot ones first
        [hot_order < n_used_hot[..., None], cold_order < (experts.top_k - n_used_hot)[..., None]], axis=-1
    )
    ids = np.nonzero(is_used)[2].reshape(*shape, experts.top_k)
    places = np.stack([rng.permutation(experts.n_experts) for _ in range(model.n_moe_layers)])
    numbers = f"{hot} of {experts.n_experts} experts hot, frequency {frequency:.2f}, seed {seed}"
    header = made_up_header("hot experts", experts.n_experts, model.moe_layer_ids, "moeplan validate", numbers)
    return RoutingTrace(
        header=header,
        expert_ids=places[np.arange(model.n_moe_layers)[:, None], ids].astype(np.int16),
        phase=np.where(np.arange(n_tokens) < n_prefill, PREFILL, DECODE).astype(np.uint8),
        request_id=np.zeros(n_tokens, np.int32),
        position=np.arange(n_tokens, dtype=np.int32),
        domain=np.zeros(n_tokens, np.int16),
    )


def _experts(model: ModelSpec) -> Experts:
    assert model.experts is not None
    return model.experts
