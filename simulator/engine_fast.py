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
from simulator.prefetch import PRE_ATTENTION
from simulator.scenario import Scenario, first_cache
from simulator.timeline import COMPUTE_OPS, Timeline


@dataclass(frozen=True, eq=False)
class Decisions:
    """n_misses, n_used: int32 (n_steps, n_moe_layers): what the cache did; independent of every speed."""

    n_misses: np.ndarray
    n_used: np.ndarray


MANY_ACCESSES = 200_000  # from here on a compiled pass is faster than a policy in Python, its loading (0.6 s) included


def decide(scenario: Scenario) -> Decisions:
    """Run the cache policy over the steps; over many of them as a compiled pass, which decides the same."""
    n_accesses = sum(len(row) for step in scenario.steps for row in step.rows)
    if n_accesses >= MANY_ACCESSES and not scenario.preloaded:
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


def _counted_pass(scenario: Scenario) -> Decisions | None:
    """None for a policy that has no pass."""
    from simulator.cache_passes.miss_counts import PASSES, miss_counts
    from simulator.cache_passes.rows import rows_of_steps

    experts = scenario.model.experts
    if experts is None or scenario.cache_policy not in PASSES:
        return None
    shape = (len(scenario.steps), scenario.model.n_moe_layers)
    rows = rows_of_steps(scenario.steps, scenario.model.n_moe_layers, experts.n_experts)
    n_misses = miss_counts(rows, scenario.cache_policy, [scenario.n_slots])[:, 0]
    return Decisions(n_misses.reshape(shape).astype(np.int32), rows.n_used.reshape(shape).astype(np.int32))


class FastEngine:
    """A scenario prepared for many devices: what does not depend on speeds is worked out once."""

    def __init__(self, scenario: Scenario, decisions: Decisions | None = None) -> None:
        self.scenario, model, steps = scenario, scenario.model, scenario.steps
        self.decisions = decide(scenario) if decisions is None else decisions
        n_tokens = [step.n_tokens for step in steps]
        representatives = costs.representative_layers(model)
        self._attention = {
            layer: costs.Works.of(
                [costs.attention_work(model, layer, s.context, s.n_tokens) for s in steps], n_tokens, scenario.rates
            )
            for layer in sorted(set(representatives))
        }
        self._moe = [representatives[i] for i in range(model.n_layers) if model.is_moe_layer(i)]
        self._dense = [representatives[i] for i in range(model.n_layers) if not model.is_moe_layer(i)]
        per_step = {
            "embedding": costs.embedding_work,
            "router": costs.router_work,
            "dense_ffn": costs.dense_ffn_work,
        }
        self._per_step = {
            op: costs.Works.of([work(model, n) for n in n_tokens], n_tokens, scenario.rates)
            for op, work in per_step.items()
        }
        self._lm_head = costs.lm_head_work(model, scenario.lm_head_predictor)
        self._has_logits = np.array([step.has_logits for step in steps], dtype=float)
        used, self._used_index = _distinct_pairs(self.decisions.n_used, n_tokens)
        self._own_sparsity = 0.0 if model.experts is None else model.experts.gate_sparsity.value
        self._expert_ffn_dense, self._expert_ffn_sparse = (
            costs.Works.of(
                [costs.expert_ffn_work(model, e, n, sparsity) for e, n in used], [n for _, n in used], scenario.rates
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
        n_misses, n_steps = self.decisions.n_misses, len(self.scenario.steps)
        alone = {layer: works.seconds(rates) for layer, works in self._attention.items()}
        alone_s = _columns([alone[layer] for layer in self._moe], n_steps)
        layout, most = self.scenario.layout, int(n_misses.max(initial=0))
        read_s = costs.read_table(rates, layout, most)[n_misses]
        beside = costs.miss_costs(rates, layout.padded_bytes, most)
        if self.scenario.prefetch_policy == PRE_ATTENTION:
            alone_s, read_s = alone_s + beside.issue_s[n_misses], read_s + beside.delay_s[n_misses]
            v, w = rates.contended_compute_frac, rates.contended_read_frac
            shared_s = np.minimum(alone_s / v, read_s / w)  # while both run
            attention_s, prefetch_s = alone_s + (1 - v) * shared_s, read_s + (1 - w) * shared_s
            bubble_s = np.maximum(0.0, prefetch_s - attention_s)
        else:
            attention_s, prefetch_s, bubble_s = alone_s, read_s, read_s
        wake_s = np.where(bubble_s > 0, beside.wake_s[n_misses], 0.0)
        dense_s = _columns([alone[layer] for layer in self._dense], n_steps)
        sparsity = self._own_sparsity if gate_sparsity is None else gate_sparsity
        expert_ffn = self._expert_ffn_dense.mixed(self._expert_ffn_sparse, sparsity)
        per_step = {op: works.seconds(rates) for op, works in self._per_step.items()}
        op_s = {
            "embedding": per_step["embedding"],
            "router": per_step["router"] * len(self._moe),
            "attention": attention_s.sum(axis=1) + dense_s.sum(axis=1),
            "wait": bubble_s.sum(axis=1),
            "dense_ffn": per_step["dense_ffn"] * len(self._dense),
            "expert_ffn": (expert_ffn.seconds(rates)[self._used_index] + wake_s).sum(axis=1),
            "lm_head": self._has_logits * costs.seconds(self._lm_head, rates),
        }
        step_s = np.sum([op_s[op] for op in COMPUTE_OPS], axis=0)
        busy_s = prefetch_s.sum(axis=1)
        return Timeline(step_s, op_s, attention_s, prefetch_s, bubble_s, n_misses, self.decisions.n_used, busy_s)


def simulate_fast(scenario: Scenario, decisions: Decisions | None = None) -> Timeline:
    """The timeline of a scenario; decisions may be those of another scenario that differs in speeds alone."""
    return FastEngine(scenario, decisions).timeline(scenario.rates)


def _columns(columns: list[np.ndarray], n_rows: int) -> np.ndarray:
    """(n_rows, len(columns)), also when there are none."""
    return np.stack(columns, axis=1) if columns else np.zeros((n_rows, 0))


def _distinct_pairs(n_used: np.ndarray, n_tokens: list[int]) -> tuple[list[tuple[int, int]], np.ndarray]:
    """The distinct (experts used, tokens) pairs, and for every step and layer the index of its pair."""
    stride = int(n_used.max(initial=0)) + 1
    codes, index = np.unique(np.array(n_tokens)[:, None] * stride + n_used, return_inverse=True)
    return [(int(code % stride), int(code // stride)) for code in codes], index.reshape(n_used.shape)
