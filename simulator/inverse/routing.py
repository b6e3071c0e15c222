"""
Routing for shapes that nobody recorded: the trace where it fits, the head of its rows, or a stated made-up one.
"""

from dataclasses import dataclass, replace

import numpy as np

from simulator.model.spec import ModelSpec
from traces.routing_trace import RoutingTrace
from traces.statistics import adjacent_overlap
from traces.synthetic import adapt, can_adapt, cut_rows, synthesize

N_PREFILL, N_DECODE = 64, 320  # tokens of made-up routing: the mean of 320 x the layers is what counts
MAX_MADE_UP = 4096  # tokens, which then repeat: random numbers for more take longer than all the rest
MAX_ZIPF = 3.0  # beyond this a few experts take everything
AS_IS, CUT, ADAPTED, MADE_UP = (
    "the trace as it is", "the first experts of each recorded row", "the recorded trace, adapted for that top-k",
    "made up",
)  # fmt: skip


@dataclass(frozen=True)
class Locality:
    """zipf: skew of the experts' popularity, rank^-zipf; repeat_frac: chance to keep the previous token's expert."""

    zipf: float
    repeat_frac: float
    source: str

    @property
    def text(self) -> str:
        """In words."""
        return f"zipf {self.zipf:.2f}, repeat {self.repeat_frac:.2f} ({self.source})"


NO_LOCALITY = Locality(0.0, 0.0, "uniform and independent")


def locality_of(trace: RoutingTrace) -> Locality:
    """
    The synthesizer's two figures for a recorded trace.

    Popularity: the slope of the mean share of the experts over their rank, both as logarithms.  Repetition: the overlap
    of adjacent tokens is repeat + (1 - repeat) chance, with the chance of two independent tokens of that popularity.
    """
    ids, n_experts = trace.expert_ids, trace.header.n_experts
    counts = np.stack([np.bincount(ids[:, layer].ravel(), minlength=n_experts) for layer in range(ids.shape[1])])
    share = counts / len(ids)  # (n_layers, n_experts), of the tokens
    ranked = np.sort(share, axis=1)[:, ::-1].mean(axis=0)
    used = ranked > 0
    zipf = 0.0
    if used.sum() > 1:
        slope, _ = np.polyfit(np.log(np.arange(1, n_experts + 1)[used]), np.log(ranked[used]), 1)
        zipf = float(np.clip(-slope, 0.0, MAX_ZIPF))
    chance = float((share**2).sum(axis=1).mean() / trace.top_k)
    repeat = 1.0 if chance >= 1 else (adjacent_overlap(trace) - chance) / (1 - chance)
    return Locality(zipf, float(np.clip(repeat, 0.0, 1.0)), f"as measured on the trace of {trace.header.model}")


def made_up(model: ModelSpec, locality: Locality, seed: int = 0, n_tokens: int = N_PREFILL + N_DECODE) -> RoutingTrace:
    """A synthetic trace of the model's shape, N_PREFILL of its tokens a prompt. Raises InputError for a dense model."""
    experts = model.experts
    trace = synthesize(
        n_tokens=n_tokens,
        n_prefill=N_PREFILL,
        n_moe_layers=model.n_moe_layers,
        n_experts=0 if experts is None else experts.n_experts,
        top_k=0 if experts is None else experts.top_k,
        zipf=locality.zipf,
        repeat_frac=locality.repeat_frac,
        seed=seed,
    )
    return replace(trace, header=replace(trace.header, layer_ids=model.moe_layer_ids))


def routing_text(
    model: ModelSpec, trace: RoutingTrace, locality: Locality, recorded: RoutingTrace | None = None
) -> str:
    """Where the routing for a model of some shape comes from."""
    source = _source(model, trace, recorded)
    return f"made up, {locality.text}" if source == MADE_UP else source


def _source(model: ModelSpec, trace: RoutingTrace, recorded: RoutingTrace | None) -> str:
    assert model.experts is not None
    fits = (model.n_moe_layers, model.experts.n_experts) == (trace.n_moe_layers, trace.header.n_experts)
    if fits and model.experts.top_k == trace.top_k:
        return AS_IS
    if recorded is not None:  # rows that were put together from several layers are not cut, but made anew
        can = can_adapt(recorded, n_experts=model.experts.n_experts, top_k=model.experts.top_k)
        return ADAPTED if can else MADE_UP
    return CUT if fits and model.experts.top_k < trace.top_k else MADE_UP


def routing_for(
    model: ModelSpec, trace: RoutingTrace, locality: Locality, seed: int = 0, recorded: RoutingTrace | None = None
) -> RoutingTrace:
    """
    The routing for a model of some shape: the trace, the first experts of its rows (the best ones, where a runtime of
    ours recorded them), or made up with the stated locality. The prompts and positions are the trace's.

    recorded: what the trace was adapted from, None where it is as recorded; it is adapted anew where it can be.
    """
    assert model.experts is not None
    source = _source(model, trace, recorded)
    if source == AS_IS:
        return trace
    if source == CUT:
        return cut_rows(trace, model.experts.top_k, model.moe_layer_ids)
    if source == ADAPTED:
        assert recorded is not None
        shape = {"n_experts": model.experts.n_experts, "top_k": model.experts.top_k}
        return adapt(recorded, layer_ids=model.moe_layer_ids, **shape)
    made = made_up(model, locality, seed, min(MAX_MADE_UP, max(trace.n_tokens, N_PREFILL)))
    ids = np.resize(made.expert_ids, (trace.n_tokens, *made.expert_ids.shape[1:]))  # cut, or repeated to the length
    header = replace(made.header, domains=trace.header.domains)
    return replace(trace, header=header, expert_ids=ids, weights=None, predicted={})


def same_every_token(model: ModelSpec, trace: RoutingTrace) -> RoutingTrace:
    """The trace's prompts and positions with the same experts for every token: no cache of a lap ever misses twice."""
    assert model.experts is not None
    row = np.arange(model.experts.top_k, dtype=np.int16)
    ids = np.broadcast_to(row, (trace.n_tokens, model.n_moe_layers, len(row)))
    header = replace(trace.header, n_experts=model.experts.n_experts, layer_ids=model.moe_layer_ids)
    return replace(trace, header=header, expert_ids=ids, weights=None, predicted={})  # one row in memory, seen as all
