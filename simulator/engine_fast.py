"""
The fast engine: the same times in closed form, in numpy.

It covers one stream in which the expert FFN waits for its own layer's reads: nothing then carries over from layer to
layer, and decisions (hits and misses) do not depend on time.  They are taken once for a trace, capacity and policy,
and serve every device.  A property test holds the engine equal to the SimPy engine.
"""

from dataclasses import dataclass

import numpy as np

from hardware_profiles.rates import DeviceRates
from simulator import costs
from simulator.miss_costs import miss_costs
from simulator.prefetch import PRE_ATTENTION
from simulator.scenario import Scenario, first_cache
from simulator.timeline import COMPUTE_OPS, Timeline
from simulator.trace_steps import StepColumns, TraceSteps


@dataclass(frozen=True, eq=False)
class Decisions:
    """n_misses, n_used: int32 (n_steps, n_moe_layers): what the cache did; independent of every speed."""

    n_misses: np.ndarray
    n_used: np.ndarray


MANY_ACCESSES = 200_000  # from here on a compiled pass is faster than a policy in Python, its loading (0.6 s) included
BLOCK_STEPS = 2048  # steps timed at once: what is worked out on the way takes a MB an array, not one for all the trace


def decide(scenario: Scenario) -> Decisions:
    """Run the cache policy over the steps; over many of them as a compiled pass, which decides the same."""
    if not scenario.preloaded and _n_accesses(scenario) >= MANY_ACCESSES:
        counted = _counted_pass(scenario)
        if counted is not None:
            return counted
    cache = first_cache(scenario)
    shape = (len(scenario.steps), scenario.model.n_moe_layers)
    n_misses, n_used = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for index, step in enumerate(scenario.steps):
        for layer, row in enumerate(step.rows):
            missing, _ = cache.access_row(layer, row)
            n_misses[index, layer] = len(missing)
            n_used[index, layer] = len(row)
    return Decisions(n_misses, n_used)


def _n_accesses(scenario: Scenario) -> int:
    """Experts of all rows; of a trace in columns about."""
    steps = scenario.steps
    if isinstance(steps, TraceSteps):
        return int(steps.trace.expert_ids.size)
    return sum(len(row) for step in steps for row in step.rows)


def _counted_pass(scenario: Scenario) -> Decisions | None:
    """None for a policy that has no pass."""
    from simulator.cache_passes.miss_counts import PASSES, miss_counts
    from simulator.cache_passes.rows import rows_of_steps, rows_of_trace

    experts = scenario.model.experts
    if experts is None or scenario.cache_policy not in PASSES:
        return None
    steps, n_layers = scenario.steps, scenario.model.n_moe_layers
    shape = (len(steps), n_layers)
    if isinstance(steps, TraceSteps):
        rows = rows_of_trace(steps.trace, steps.chunk_tokens)
    else:
        rows = rows_of_steps(steps, n_layers, experts.n_experts)
    n_misses = miss_counts(rows, scenario.cache_policy, [scenario.n_slots])[:, 0]
    return Decisions(n_misses.reshape(shape).astype(np.int32), rows.n_used.reshape(shape).astype(np.int32))


class FastEngine:
    """A scenario prepared for many devices: what does not depend on speeds is worked out once."""

    def __init__(self, scenario: Scenario, decisions: Decisions | None = None) -> None:
        self.scenario, model = scenario, scenario.model
        self.decisions = decide(scenario) if decisions is None else decisions
        columns = StepColumns.of(scenario.steps)
        n_tokens = columns.stops - columns.firsts
        kinds, kind_of = np.unique(np.stack([columns.contexts, n_tokens]), axis=1, return_inverse=True)
        self.kind_of = kind_of.reshape(-1)  # numpy 2.0 gives another shape
        contexts, tokens = kinds.tolist()  # what the steps' compute depends on: many steps are alike
        representatives = costs.representative_layers(model)
        self.attention = {
            layer: costs.Works.of(
                [costs.attention_work(model, layer, c, n) for c, n in zip(contexts, tokens, strict=True)],
                tokens,
                scenario.rates,
            )
            for layer in sorted(set(representatives))
        }
        self.moe = [representatives[i] for i in range(model.n_layers) if model.is_moe_layer(i)]
        self.dense = [representatives[i] for i in range(model.n_layers) if not model.is_moe_layer(i)]
        per_step = {
            "embedding": costs.embedding_work,
            "router": costs.router_work,
            "dense_ffn": costs.dense_ffn_work,
        }
        self.per_step = {
            op: costs.Works.of([work(model, n) for n in tokens], tokens, scenario.rates)
            for op, work in per_step.items()
        }
        self.lm_head = costs.lm_head_work(model, scenario.lm_head_predictor)
        self.has_logits = columns.has_logits.astype(float)
        used, self.used_index = _distinct_rows(scenario, self.decisions.n_used, n_tokens)
        self.own_sparsity = 0.0 if model.experts is None else model.experts.gate_sparsity.value
        self.expert_ffn_dense, self.expert_ffn_sparse = (
            costs.Works.of(
                [costs.expert_ffn_work(model, n_used, n, sparsity, loads) for n_used, n, loads in used],
                [n for _, n, _ in used],
                scenario.rates,
            )
            for sparsity in (0.0, 1.0)
        )

    def timeline(self, rates: DeviceRates, gate_sparsity: float | None = None) -> Timeline:
        """
        The timeline on a device, and with a gate sparsity other than the model's own where one is given.

            overlapped: attention A at its speed v and reads R at theirs, w, until the first of A / v and R / w; then
                        the other goes on alone with what is left of it
            bubble    = max(0, t_prefetch - t_attention)
        """
        shape, device = self.decisions.n_misses.shape, _Device(self, rates, gate_sparsity)
        attention_s, prefetch_s, bubble_s = np.empty(shape), np.empty(shape), np.empty(shape)
        op_s = {op: np.empty(shape[0]) for op in COMPUTE_OPS}
        for start in range(0, shape[0], BLOCK_STEPS):
            block = slice(start, start + BLOCK_STEPS)
            attention_s[block], prefetch_s[block], bubble_s[block] = device.layers(block)
            for op, spent_s in device.ops(block, attention_s[block], bubble_s[block]).items():
                op_s[op][block] = spent_s
        step_s = np.sum([op_s[op] for op in COMPUTE_OPS], axis=0)
        busy_s = prefetch_s.sum(axis=1)
        found = self.decisions
        return Timeline(step_s, op_s, attention_s, prefetch_s, bubble_s, found.n_misses, found.n_used, busy_s)


class _Device:
    """A scenario on one device: the seconds of any of its steps."""

    def __init__(self, engine: FastEngine, rates: DeviceRates, gate_sparsity: float | None) -> None:
        self._engine, self._rates, scenario = engine, rates, engine.scenario
        self._alone_s = {layer: works.seconds(rates) for layer, works in engine.attention.items()}  # by kind of step
        most = int(engine.decisions.n_misses.max(initial=0))
        self._beside = miss_costs(rates, scenario.layout, most, scenario.prefetch_policy)
        sparsity = engine.own_sparsity if gate_sparsity is None else gate_sparsity
        self._expert_ffn_s = engine.expert_ffn_dense.mixed(engine.expert_ffn_sparse, sparsity).seconds(rates)
        self._per_step_s = {op: works.seconds(rates) for op, works in engine.per_step.items()}
        self._lm_head_s = costs.seconds(engine.lm_head, rates)

    def layers(self, block: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(attention_s, prefetch_s, bubble_s) of a block of steps, (n, n_moe_layers) each; see FastEngine.timeline."""
        n_misses, beside = self._engine.decisions.n_misses[block], self._beside
        alone_s, read_s = self._alone(self._engine.moe, block), beside.read_s[n_misses]
        if self._engine.scenario.prefetch_policy != PRE_ATTENTION:
            return alone_s, read_s, read_s
        alone_s, read_s = alone_s + beside.issue_s[n_misses], read_s + beside.delay_s[n_misses]
        v, w = self._rates.contended_compute_frac, self._rates.contended_read_frac
        shared_s = np.minimum(alone_s / v, read_s / w)  # while both run
        attention_s, prefetch_s = alone_s + (1 - v) * shared_s, read_s + (1 - w) * shared_s
        return attention_s, prefetch_s, np.maximum(0.0, prefetch_s - attention_s)

    def ops(self, block: slice, attention_s: np.ndarray, bubble_s: np.ndarray) -> dict[str, np.ndarray]:
        """Seconds of each op in a block of steps, (n,) each, given those of its layers."""
        engine = self._engine
        kinds, n_misses = engine.kind_of[block], engine.decisions.n_misses[block]
        wake_s = np.where(bubble_s > 0, self._beside.wake_s[n_misses], 0.0)
        per_step = {op: seconds[kinds] for op, seconds in self._per_step_s.items()}
        return {
            "embedding": per_step["embedding"],
            "router": per_step["router"] * len(engine.moe),
            "attention": attention_s.sum(axis=1) + self._alone(engine.dense, block).sum(axis=1),
            "wait": bubble_s.sum(axis=1),
            "dense_ffn": per_step["dense_ffn"] * len(engine.dense),
            "expert_ffn": (self._expert_ffn_s[engine.used_index[block]] + wake_s).sum(axis=1),
            "lm_head": engine.has_logits[block] * self._lm_head_s,
        }

    def _alone(self, layers: list[int], block: slice) -> np.ndarray:
        """Attention that shares the machine with nothing, (n, len(layers))."""
        kinds = self._engine.kind_of[block]
        return _columns([self._alone_s[layer][kinds] for layer in layers], len(kinds))


def simulate_fast(scenario: Scenario, decisions: Decisions | None = None) -> Timeline:
    """The timeline of a scenario; decisions may be those of another scenario that differs in speeds alone."""
    return FastEngine(scenario, decisions).timeline(scenario.rates)


def _columns(columns: list[np.ndarray], n_rows: int) -> np.ndarray:
    """(n_rows, len(columns)), also when there are none."""
    return np.stack(columns, axis=1) if columns else np.zeros((n_rows, 0))


def _distinct_rows(
    scenario: Scenario, n_used: np.ndarray, n_tokens: np.ndarray
) -> tuple[list[tuple[int, int, tuple[int, ...]]], np.ndarray]:
    """
    What the time of an expert FFN follows from, (experts used, tokens, loads), the distinct ones, and for every step
    and layer its index; loads, see Step, of chunks on a device with measured kernels, where they matter.
    """
    pairs, index = _distinct_pairs(n_used, n_tokens)
    known: dict[tuple[int, int, tuple[int, ...]], int] = {(used, n, ()): i for i, (used, n) in enumerate(pairs)}
    if scenario.rates.kernels is None:
        return list(known), index
    for at_step in np.flatnonzero(n_tokens > 1).tolist():
        step = scenario.steps[at_step]
        for layer, used in enumerate(n_used[at_step].tolist()):
            key = used, step.n_tokens, step.loads_of(layer)
            index[at_step, layer] = known.setdefault(key, len(known))
    return list(known), index


def _distinct_pairs(n_used: np.ndarray, n_tokens: np.ndarray) -> tuple[list[tuple[int, int]], np.ndarray]:
    """The distinct (experts used, tokens) pairs, ascending by tokens, and for every step and layer its pair's index."""
    stride = int(n_used.max(initial=0)) + 1
    codes = n_tokens.astype(np.int32)[:, None] * stride + n_used
    is_there = np.zeros(int(codes.max(initial=0)) + 1, bool)
    is_there[codes] = True
    index = (np.cumsum(is_there, dtype=np.int32) - 1)[codes]
    return [(code % stride, code // stride) for code in np.flatnonzero(is_there).tolist()], index
