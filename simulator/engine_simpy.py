"""
The SimPy engine: the authority on times.

The steps of the model are a process on the machine's clock, operation by operation and read by read.
"""

import numpy as np
import simpy

from moeplan.progress import OnProgress, ignore_progress
from simulator.costs import StepCosts
from simulator.machine import Burst, Machine, Process
from simulator.miss_costs import miss_costs
from simulator.prefetch import PRE_ATTENTION
from simulator.scenario import Scenario, Step, first_cache
from simulator.timeline import COMPUTE_OPS, Timeline
from traces.op_record import NO_LAYER, OpRecord

STEPS_PER_CALL = 16


class _Run:
    """One simulation: the state that the step process writes."""

    def __init__(self, scenario: Scenario, with_records: bool, on_progress: OnProgress = ignore_progress) -> None:
        self.scenario, self.model = scenario, scenario.model
        self.on_progress = on_progress
        self.env = simpy.Environment()
        self.machine = Machine(self.env, scenario)
        self.costs = StepCosts(scenario.model, scenario.rates, scenario.lm_head_predictor)
        n_experts = 0 if scenario.model.experts is None else scenario.model.experts.n_experts
        beside = miss_costs(scenario.rates, scenario.layout, n_experts, scenario.prefetch_policy)
        self.issue_s, self.delay_s, self.wake_s = (
            table.tolist() for table in (beside.issue_s, beside.delay_s, beside.wake_s)
        )
        self.cache = first_cache(scenario)
        self.moe_layers = {layer: moe_index for moe_index, layer in enumerate(scenario.model.moe_layer_ids)}
        self.records: list[OpRecord] | None = [] if with_records else None
        self.spent_s: dict[str, float] = {}  # of the step so far
        self.layers: list[tuple[float, float, float, int, int]] = []  # of its MoE layers, in the order of _keep
        self.booked_s = 0.0  # up to here the time of the compute threads is accounted for
        n_steps, shape = len(scenario.steps), (len(scenario.steps), self.model.n_moe_layers)
        self.step_s, self.read_busy_s = np.zeros(n_steps), np.zeros(n_steps)
        self.op_s = {op: np.zeros(n_steps) for op in COMPUTE_OPS}
        self.attention_s, self.prefetch_s, self.bubble_s = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.n_misses, self.n_used = np.zeros(shape, np.int32), np.zeros(shape, np.int32)

    def run(self) -> Timeline:
        self.env.run(self.env.process(self._all_steps()))
        return Timeline(
            self.step_s, self.op_s, self.attention_s, self.prefetch_s, self.bubble_s, self.n_misses, self.n_used,
            self.read_busy_s,
        )  # fmt: skip

    def _all_steps(self) -> Process:
        for index, step in enumerate(self.scenario.steps):
            began, busy = self.env.now, self.machine.read_busy_s
            self.spent_s, self.layers = dict.fromkeys(COMPUTE_OPS, 0.0), []
            yield from self._step(step)
            self.step_s[index] = self.env.now - began
            self.read_busy_s[index] = self.machine.read_busy_s - busy
            self._keep(index)
            if index % STEPS_PER_CALL == 0:
                self.on_progress(index + 1, len(self.scenario.steps))

    def _keep(self, index: int) -> None:
        """What a step took, into the arrays; kept in lists until then, which are faster to write to."""
        for op, spent_s in self.spent_s.items():
            self.op_s[op][index] = spent_s
        if self.layers:
            arrays: tuple[np.ndarray, ...] = (
                self.attention_s,
                self.prefetch_s,
                self.bubble_s,
                self.n_misses,
                self.n_used,
            )
            for array, values in zip(arrays, zip(*self.layers, strict=True), strict=True):
                array[index] = values

    def _step(self, step: Step) -> Process:
        costs, machine, n_tokens = self.costs, self.machine, step.n_tokens
        yield machine.compute(costs.embedding_s(n_tokens))
        self._book(step, "embedding", NO_LAYER)
        router_s = costs.router_s(n_tokens)
        for layer in range(self.model.n_layers):
            attention_s = costs.attention_of(layer, step.context, n_tokens)
            if layer in self.moe_layers:
                yield from self._moe_layer(step, layer, attention_s, router_s)
            else:
                yield machine.compute(attention_s)
                self._book(step, "attention", layer)
                yield machine.compute(costs.dense_ffn_s(n_tokens))
                self._book(step, "dense_ffn", layer)
        if step.has_logits:
            yield machine.compute(costs.lm_head_s)
            self._book(step, "lm_head", NO_LAYER)

    def _moe_layer(self, step: Step, layer: int, attention_s: float, router_s: float) -> Process:
        """Router, then reads beside attention (or after it), the bubble, the expert FFN."""
        env, machine = self.env, self.machine
        row = step.rows[self.moe_layers[layer]]
        if self.scenario.prefetch_policy == PRE_ATTENTION:
            yield machine.compute(router_s)
            self._book(step, "router", layer)
            top_k_known = env.now
            missing, _ = self.cache.access_row(self.moe_layers[layer], row)
            burst = self._read(len(missing), self.delay_s[len(missing)], is_beside_compute=True)
            yield machine.compute(attention_s + self.issue_s[len(missing)])
            self._book(step, "attention", layer)
            attention_s = env.now - top_k_known
        else:  # t_attention is the attention alone: the time that a prefetch would have had
            yield machine.compute(attention_s)
            self._book(step, "attention", layer)
            yield machine.compute(router_s)
            self._book(step, "router", layer)
            top_k_known = env.now
            missing, _ = self.cache.access_row(self.moe_layers[layer], row)
            burst = self._read(len(missing))
        ready, prefetch_s = env.now, 0.0
        if burst is not None:
            yield burst.arrived
            prefetch_s = burst.last_s - top_k_known
        wait_s = env.now - ready
        self.layers.append((attention_s, prefetch_s, wait_s, len(missing), len(row)))
        self._book_reads(step, layer, top_k_known, prefetch_s, len(row), len(missing))
        wake_s = self.wake_s[len(missing)] if wait_s > 0 else 0.0
        loads = step.loads_of(self.moe_layers[layer]) if self.costs.rates.kernels is not None else ()
        yield machine.compute(self.costs.expert_ffn_s(len(row), step.n_tokens, loads) + wake_s)
        self._book(step, "expert_ffn", layer)

    def _read(self, n_missing: int, delay_s: float = 0.0, is_beside_compute: bool = False) -> Burst | None:
        """Issue the reads of all missing experts at once."""
        if not n_missing:
            return None
        n_requests = n_missing * self.scenario.layout.n_requests
        return self.machine.read(n_requests, delay_s, is_beside_compute=is_beside_compute)

    def _book_reads(
        self, step: Step, layer: int, top_k_known: float, prefetch_s: float, n_used: int, n_missing: int
    ) -> None:
        if self.records is not None:
            n_bytes = n_missing * self.scenario.layout.padded_bytes
            last = top_k_known + prefetch_s
            self.records.append(
                OpRecord(step.tokens[-1], layer, "read", top_k_known, last, n_bytes, n_used - n_missing, n_missing)
            )
        if self.env.now > self.booked_s:
            self._book(step, "wait", layer)

    def _book(self, step: Step, op: str, layer: int) -> None:
        """The compute threads did this op, or waited, from where the last one ended until now."""
        now = self.env.now
        self.spent_s[op] += now - self.booked_s
        if self.records is not None:
            self.records.append(OpRecord(step.tokens[-1], layer, op, self.booked_s, now))
        self.booked_s = now


def simulate_simpy(scenario: Scenario, on_progress: OnProgress = ignore_progress) -> Timeline:
    """The timeline of a scenario, event by event; on_progress watches its steps."""
    return _Run(scenario, with_records=False, on_progress=on_progress).run()


def simulate_with_records(
    scenario: Scenario, on_progress: OnProgress = ignore_progress
) -> tuple[Timeline, list[OpRecord]]:
    """The timeline, and one OpRecord for every operation."""
    run = _Run(scenario, with_records=True, on_progress=on_progress)
    timeline = run.run()
    return timeline, run.records or []
