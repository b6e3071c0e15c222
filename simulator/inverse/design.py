"""
Design for a device: where does t_attention >= t_prefetch begin to hold among the shapes of a hypothetical model?

It is said to hold where at least a share of the (token, layer) pairs with a miss meet it.  The storage speed from which
it holds is bisected: a faster storage shortens t_prefetch alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moeplan.errors import InputError
from moeplan.progress import OnProgress, ignore_progress
from simulator.cache_passes.rows import MAX_KEYS
from simulator.engine_fast import FastEngine, decide
from simulator.interval import N_SAMPLES
from simulator.inverse.proofs import faster_storage_never_slower
from simulator.inverse.routing import NO_LOCALITY, Locality, made_up, routing_for
from simulator.inverse.search import first_reaching
from simulator.inverse.shapes import MAX_DEVIATION_FRAC, Wish, active_params, shapes
from simulator.inverse.speeds import Speeds
from simulator.inverse.storage_grid import rate_grid
from simulator.miss_costs import read_table
from simulator.model import size as model_size
from simulator.model.spec import ModelSpec
from simulator.plan_result import Design, DesignResult
from simulator.prefetch import NONE, default_prefetch
from simulator.question import Prepared, Question
from simulator.result import MemoryResult, Verdict
from simulator.small_print import beyond_device, cap_above_device, small_print, storage_doubt
from simulator.sold import doubt_of_storage
from simulator.timeline import Timeline
from traces.routing_trace import RoutingTrace

HOLDS_FRAC = 0.9  # of the pairs with a miss; the rest waits, a little each

TOO_MANY_EXPERTS = f"more than {MAX_KEYS:,} experts over all layers, which a pass over a trace cannot tell apart"

# conditions that differ from shape to shape, or belong to one of them
NOT_COMMON = ("model", "cache", "expert_layout", "routing", "trace_source", "engine")


@dataclass(frozen=True)
class Routing:
    """trace: replayed where its shape fits, None for none; locality: of the made-up routing elsewhere."""

    trace: RoutingTrace | None
    locality: Locality

    def of(self, model: ModelSpec, seed: int) -> RoutingTrace:
        """The routing for a shape."""
        if self.trace is None:
            return made_up(model, self.locality, seed)
        return routing_for(model, self.trace, self.locality, seed)


def design(
    wish: Wish,
    question: Question,
    routing: Routing,
    *,
    holds_frac: float = HOLDS_FRAC,
    target_tokens_per_s: float | None = None,
    seed: int = 0,
    on_progress: OnProgress = ignore_progress,
) -> DesignResult:
    """
    Every shape of a wish on the question's device and settings; the question's own model and trace do not matter.

    on_progress watches: shapes done, in all.  Raises InputError.
    """
    if not 0 < holds_frac <= 1:
        raise InputError("--holds", "must be above 0 and at most 1", holds_frac)
    if target_tokens_per_s is not None and not 0 < target_tokens_per_s < np.inf:
        raise InputError("--target-tokens-per-s", "must be above zero and finite", target_tokens_per_s)
    models, designs = shapes(wish), []
    last: Prepared | None = None
    for done, model in enumerate(models, 1):
        asked = replace(question, model=model, trace=routing.of(model, seed))
        speeds = Speeds(asked, N_SAMPLES, seed)
        last = speeds.prepared(asked)
        designs.append(_design(speeds, holds_frac, seed))
        on_progress(done, len(models))
    assert last is not None
    return DesignResult(
        tuple(designs),
        holds_frac,
        wish.fixed,
        wish.n_params is not None,
        wish.n_active_params is not None,
        target_tokens_per_s,
        _print(wish, last, routing, seed),
        _warnings(last),
        last.question.prefetch != NONE,
        cap_above_device(last.question),
    )


def _design(speeds: Speeds, holds_frac: float, seed: int) -> Design:
    question, prepared = speeds.question, speeds.prepared(speeds.question)
    model = question.model
    assert model.experts is not None
    assert question.trace is not None
    shape: dict[str, Any] = {
        "n_experts": model.experts.n_experts,
        "top_k": model.experts.top_k,
        "ffn_size": model.experts.ffn_size,
        "n_params": model_size.n_params(model),
        "n_active_params": active_params(model),
        "expert_bytes": model_size.expert_bytes(model),
        "storage_bytes": prepared.plan.memory.storage_bytes,
        "n_slots": prepared.plan.n_slots,
        "all_in_ram_bytes": _all_in_ram_bytes(prepared.plan.memory),
        "is_beyond_device": prepared.scenario is not None and bool(beyond_device(prepared)),
        "is_recorded": "synthetic" not in question.trace.header.conditions,
    }
    verdict: Verdict = prepared.plan.verdict
    if _has_too_many_experts(prepared):
        return Design(**shape, verdict="failed", reason=TOO_MANY_EXPERTS)
    totals = speeds.totals(question)
    if totals is None:
        return Design(**shape, verdict=verdict, reason=prepared.plan.arithmetic)
    means, hidden = _means(prepared), speeds.hidden_frac(question)
    n_used = speeds.n_tokens(question) * model.n_moe_layers * model.experts.top_k
    return Design(
        **shape,
        verdict=verdict,
        hit_rate=1 - speeds.n_misses(question) / n_used,
        t_attention_s=means[0],
        t_prefetch_s=means[1],
        row_prefetch_s=_row_read_s(speeds),
        hidden_frac=None if hidden is None else hidden.value,
        hidden_low_frac=None if hidden is None else hidden.low,
        **({} if hidden is None else _least_storage(speeds, holds_frac)),
        tokens_per_s=speeds.interval(question),
        no_locality_tokens_per_s=_without_locality(question, seed),
    )


def _has_too_many_experts(prepared: Prepared) -> bool:
    """Whether misses can occur and a pass over the trace cannot tell all experts apart."""
    model, scenario = prepared.question.model, prepared.scenario
    assert model.experts is not None
    return scenario is not None and not scenario.preloaded and model.n_moe_layers * model.experts.n_experts > MAX_KEYS


def _means(prepared: Prepared) -> tuple[float, float]:
    """Mean t_attention and t_prefetch over the pairs with a miss; over all pairs, and 0, where nothing missed."""
    assert prepared.scenario is not None
    scenario = prepared.scenario
    timeline: Timeline = FastEngine(scenario, decide(scenario)).timeline(scenario.rates)
    counted = scenario.is_counted
    attention_s, prefetch_s = timeline.attention_s[counted], timeline.prefetch_s[counted]
    has_miss = timeline.n_misses[counted] > 0
    if not has_miss.any():
        return float(attention_s.mean()), 0.0
    return float(attention_s[has_miss].mean()), float(prefetch_s[has_miss].mean())


def _row_read_s(speeds: Speeds) -> float:
    """Seconds to read the experts of a whole row at once, when nothing else runs."""
    scenario = speeds.prepared(speeds.question).scenario
    assert scenario is not None
    experts = scenario.model.experts
    return float(read_table(scenario.rates, scenario.layout, 0 if experts is None else experts.top_k)[-1])


def _all_in_ram_bytes(memory: MemoryResult) -> int:
    """The RAM cap from which all experts fit beside the rest, with no buffers to read into."""
    return memory.dense_bytes + memory.kv_bytes + memory.activation_bytes + memory.all_experts_bytes


def _least_storage(speeds: Speeds, holds_frac: float) -> dict[str, Any]:
    """The least storage speeds with which it holds, as predicted and safely, and why nobody can have them."""

    def share(question: Question) -> float:
        totals = speeds.totals(question)
        assert totals is not None
        return totals.n_hidden / totals.n_missed

    def low_share(question: Question) -> float:
        hidden = speeds.hidden_frac(question)
        assert hidden is not None
        return hidden.low

    found: dict[str, Any] = {}
    for name, end in (("holds_from", share), ("holds_safely_from", low_share)):
        rate = _holds_from(speeds, holds_frac, end)
        found[f"{name}_bytes_per_s"] = rate
        found[f"{name}_doubt"] = "" if rate is None else doubt_of_storage(speeds.question.profile, rate)
    return found


def _holds_from(speeds: Speeds, holds_frac: float, share: Callable[[Question], float]) -> float | None:
    """The least storage speed of the grid, up to what the RAM sustains, with which the share is enough, or None."""
    question = speeds.question
    rates = rate_grid(question.profile.ram.gemv_bandwidth.value)
    return first_reaching(
        [rates],
        lambda rate: share(replace(question, storage_read_bytes_per_s=rate)) >= holds_frac,
        is_monotone=faster_storage_never_slower(speeds, question),
    )


def _without_locality(question: Question, seed: int) -> float:
    """Tokens/s if every token's experts were drawn anew, all alike: the worst that routing can do to a cache, about."""
    changed = replace(question, trace=made_up(question.model, NO_LOCALITY, seed))
    return Speeds(changed, 0, seed).speed(changed)


def _print(wish: Wish, last: Prepared, routing: Routing, seed: int) -> dict[str, str]:
    """What holds for all shapes."""
    like = wish.like
    conditions = {
        "model": f"hypothetical: {like.n_layers} layers, hidden size {like.hidden_size}, attention, vocabulary and "
        f"types of {like.title}",
        "sizes": (f"{wish.fixed}, within {MAX_DEVIATION_FRAC:.0%}; " if wish.fixed else "")
        + f"active is counted as {like.active_convention.replace('_', ' ')}",
    }
    conditions |= {
        name: text for name, text in small_print(last, "fast", N_SAMPLES, seed).items() if name not in NOT_COMMON
    }
    given = "" if routing.trace is None else f"the trace of {routing.trace.header.model} where its shape fits; else "
    conditions["routing"] = f"{given}made up for each shape: {routing.locality.text}"
    conditions["no locality"] = "uniform, independent routing: what a cache hits by its size alone"
    conditions["cache"] = f"{last.question.cache_policy}; slots as the RAM cap allows"
    conditions["start"] = "warm: all experts are loaded where they fit, else the trace's head fills the cache"
    return conditions


def _warnings(last: Prepared) -> tuple[str, ...]:
    """What must not be missed, but for what the small print says of the routing."""
    link = storage_doubt(last.question)
    unknown = "No such model exists: its routing, and what it can do, are not known; the interval covers neither."
    late = f"{_why_unhidden(last.question)}, so nothing is hidden: what holds is what a prefetch before it would hide."
    return (*([link] if link else ()), unknown, *([late] if last.question.prefetch == NONE else ()))


def _why_unhidden(question: Question) -> str:
    is_late = default_prefetch(question.model) == NONE
    return "The router runs after attention" if is_late else "Experts are read after attention"
