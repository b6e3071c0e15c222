"""
The SimPy engine: the authority on times.

Compute, the storage lanes and the expert cache are processes and resources on one clock.  Compute and reads
share the machine: while both run, each progresses at its contended fraction of its speed alone.
"""

from collections.abc import Callable, Generator

import numpy as np
import simpy

from simulator.costs import StepCosts, miss_costs
from simulator.prefetch import PRE_ATTENTION
from simulator.scenario import Scenario, Step, first_cache
from simulator.timeline import COMPUTE_OPS, Timeline
from traces.op_record import NO_LAYER, OpRecord

Process = Generator[simpy.Event, object, None]
OnStep = Callable[[int, int], None]  # (steps done, steps in all), called now and then
STEPS_PER_CALL = 16


def ignore_steps(n_done: int, n_steps: int) -> None:
    """The OnStep of a caller who does not watch."""


class WorkClock:
    """
    Counts the seconds of work that an activity has done; it runs at a speed that can change at any moment.

    Waiting for an amount of work survives every change of speed.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.speed = 1.0
        self._work_s = 0.0
        self._updated_s = 0.0
        self._waiting: list[tuple[float, simpy.Event]] = []
        self._alarm_version = 0

    def now(self) -> float:
        """Seconds of work done so far."""
        return self._work_s + (self.env.now - self._updated_s) * self.speed

    def reached(self, work_s: float) -> simpy.Event:
        """An event that fires when the clock has done work_s in all."""
        event = self.env.event()
        self._waiting.append((work_s, event))
        self._set_alarm()
        return event

    def set_speed(self, speed: float) -> None:
        """From now on the work progresses at this speed."""
        if speed != self.speed:
            self._work_s, self._updated_s = self.now(), self.env.now
            self.speed = speed
            self._set_alarm()

    def _set_alarm(self) -> None:
        """Wake at the earliest target; an alarm that was overtaken by a change is ignored by its version."""
        self._alarm_version += 1
        if not self._waiting:
            return
        version, (target, _) = self._alarm_version, min(self._waiting, key=lambda pair: pair[0])
        delay = max(0.0, (target - self.now()) / self.speed)
        self.env.timeout(delay).callbacks.append(lambda _: self._ring(version, target))

    def _ring(self, version: int, target: float) -> None:
        if version != self._alarm_version:
            return
        self._work_s, self._updated_s = target, self.env.now  # exactly, so that no rounding keeps an alarm alive
        due = [event for work_s, event in self._waiting if work_s <= target]
        self._waiting = [pair for pair in self._waiting if pair[0] > target]
        for event in due:
            event.succeed()
        self._set_alarm()


class Machine:
    """The two activities of a device, compute and storage, and the contention between them."""

    def __init__(self, env: simpy.Environment, scenario: Scenario) -> None:
        self.env = env
        self.compute_clock, self.storage_clock = WorkClock(env), WorkClock(env)
        rates = scenario.rates
        self.contended = rates.contended_compute_frac, rates.contended_read_frac
        self.storage = rates.storage
        self.lanes = simpy.Resource(env, capacity=self.storage.queue_depth)
        self.bus = simpy.Resource(env, capacity=1)
        self.n_computing = self.n_reading = 0
        self.read_busy_s = 0.0
        self._reading_since = 0.0

    def compute(self, work_s: float) -> Process:
        """Occupy the compute threads with work that takes work_s alone."""
        self._count(n_computing=1)
        yield self.compute_clock.reached(self.compute_clock.now() + work_s)
        self._count(n_computing=-1)

    def read(self, request_bytes: int, delay_s: float = 0.0) -> Process:
        """One read request: a lane, then the bus."""
        self._count(n_reading=1)
        lane_s, bus_s = self.storage.service_s(request_bytes)
        clock = self.storage_clock
        if delay_s > 0:
            yield clock.reached(clock.now() + delay_s)
        with self.lanes.request() as lane:
            yield lane
            if lane_s > 0:
                yield clock.reached(clock.now() + lane_s)
            with self.bus.request() as bus:
                yield bus
                yield clock.reached(clock.now() + bus_s)
        lag_s = self.storage.lag_s(request_bytes)
        if lag_s > 0:
            yield clock.reached(clock.now() + lag_s)
        self._count(n_reading=-1)

    def _count(self, n_computing: int = 0, n_reading: int = 0) -> None:
        was_reading = self.n_reading > 0
        self.n_computing += n_computing
        self.n_reading += n_reading
        if not was_reading and self.n_reading:
            self._reading_since = self.env.now
        elif was_reading and not self.n_reading:
            self.read_busy_s += self.env.now - self._reading_since
        compute_speed, read_speed = self.contended if self.n_computing and self.n_reading else (1.0, 1.0)
        self.compute_clock.set_speed(compute_speed)
        self.storage_clock.set_speed(read_speed)


class _Run:
    """One simulation: the state that the step process writes."""

    def __init__(self, scenario: Scenario, with_records: bool, on_step: OnStep = ignore_steps) -> None:
        self.scenario, self.model = scenario, scenario.model
        self.on_step = on_step
        self.env = simpy.Environment()
        self.machine = Machine(self.env, scenario)
        self.costs = StepCosts(scenario.model, scenario.rates, scenario.lm_head_predictor)
        n_experts = 0 if scenario.model.experts is None else scenario.model.experts.n_experts
        self.miss_costs = miss_costs(scenario.rates, scenario.layout.padded_bytes, n_experts)
        self.cache = first_cache(scenario)
        n_steps, shape = len(scenario.steps), (len(scenario.steps), self.model.n_moe_layers)
        self.records: list[OpRecord] | None = [] if with_records else None
        self._last_arrival = 0.0
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
            yield from self._compute(index, step, "embedding", NO_LAYER, self.costs.embedding_s(step.n_tokens))
            moe_index = 0
            for layer in range(self.model.n_layers):
                if self.model.is_moe_layer(layer):
                    yield from self._moe_layer(index, step, layer, moe_index)
                    moe_index += 1
                else:
                    attention_s = self.costs.attention_of(layer, step.context, step.n_tokens)
                    yield from self._compute(index, step, "attention", layer, attention_s)
                    yield from self._compute(index, step, "dense_ffn", layer, self.costs.dense_ffn_s(step.n_tokens))
            if step.has_logits:
                yield from self._compute(index, step, "lm_head", NO_LAYER, self.costs.lm_head_s)
            self.step_s[index] = self.env.now - began
            self.read_busy_s[index] = self.machine.read_busy_s - busy
            if index % STEPS_PER_CALL == 0:
                self.on_step(index + 1, len(self.scenario.steps))

    def _moe_layer(self, index: int, step: Step, layer: int, moe_index: int) -> Process:
        """Router, then reads beside attention (or after it), the bubble, the expert FFN."""
        costs, row = self.costs, step.rows[moe_index]
        router_s = costs.router_s(step.n_tokens)
        attention_s = costs.attention_of(layer, step.context, step.n_tokens)
        if self.scenario.prefetch_policy == PRE_ATTENTION:
            yield from self._compute(index, step, "router", layer, router_s)
            top_k_known = self.env.now
            missing = self._look_up(index, moe_index, row)
            arrival = self._issue(missing, float(self.miss_costs.delay_s[len(missing)]))
            attention_s += float(self.miss_costs.issue_s[len(missing)])
            yield from self._compute(index, step, "attention", layer, attention_s)
        else:
            yield from self._compute(index, step, "attention", layer, attention_s)
            yield from self._compute(index, step, "router", layer, router_s)
            top_k_known = self.env.now
            missing = self._look_up(index, moe_index, row)
            arrival = self._issue(missing)
        ready = self.env.now
        yield arrival
        self._account_reads(index, step, layer, moe_index, top_k_known, ready, attention_s, len(row), len(missing))
        ffn_s = costs.expert_ffn_s(len(row), step.n_tokens)
        if self.env.now > ready:
            ffn_s += float(self.miss_costs.wake_s[len(missing)])
        yield from self._compute(index, step, "expert_ffn", layer, ffn_s)

    def _look_up(self, index: int, moe_index: int, row: object) -> list[int]:
        missing, _ = self.cache.access_row(moe_index, row)  # type: ignore[arg-type]
        self.n_misses[index, moe_index] = len(missing)
        self.n_used[index, moe_index] = len(row)  # type: ignore[arg-type]
        return missing

    def _issue(self, missing: list[int], delay_s: float = 0.0) -> simpy.Event:
        """Issue the reads of all missing experts at once, which start late; the event is the last one's arrival."""
        if not missing:
            return self.env.timeout(0, self.env.now)
        layout = self.scenario.layout
        n_pieces, piece_bytes = self.machine.storage.pieces(layout.request_bytes)
        n_reads = len(missing) * layout.n_requests * n_pieces
        reads = [self.env.process(self.machine.read(piece_bytes, delay_s)) for _ in range(n_reads)]
        arrived = self.env.event()

        def one_down(_: simpy.Event) -> None:
            nonlocal n_reads
            n_reads -= 1
            if not n_reads:
                self._last_arrival = self.env.now
                arrived.succeed()

        for read in reads:
            read.callbacks.append(one_down)
        return arrived

    def _account_reads(
        self, index: int, step: Step, layer: int, moe_index: int, top_k_known: float, ready: float, attention_s: float,
        n_used: int, n_missing: int,
    ) -> None:  # fmt: skip
        overlapped = self.scenario.prefetch_policy == PRE_ATTENTION
        # without prefetch t_attention is the attention alone: the time that a prefetch would have had
        self.attention_s[index, moe_index] = ready - top_k_known if overlapped else attention_s
        wait_s = self.env.now - ready
        self.bubble_s[index, moe_index] = wait_s
        self.op_s["wait"][index] += wait_s
        if n_missing:
            self.prefetch_s[index, moe_index] = self._last_arrival - top_k_known
        if self.records is not None:
            token, last = step.tokens[-1], self._last_arrival if n_missing else top_k_known
            n_bytes = n_missing * self.scenario.layout.padded_bytes
            self.records.append(
                OpRecord(token, layer, "read", top_k_known, last, n_bytes, n_used - n_missing, n_missing)
            )
            if wait_s > 0:
                self.records.append(OpRecord(token, layer, "wait", ready, self.env.now))

    def _compute(self, index: int, step: Step, op: str, layer: int, work_s: float) -> Process:
        began = self.env.now
        yield from self.machine.compute(work_s)
        self.op_s[op][index] += self.env.now - began
        if self.records is not None:
            self.records.append(OpRecord(step.tokens[-1], layer, op, began, self.env.now))


def simulate_simpy(scenario: Scenario, on_step: OnStep = ignore_steps) -> Timeline:
    """The timeline of a scenario, event by event; on_step watches its progress."""
    return _Run(scenario, with_records=False, on_step=on_step).run()


def simulate_with_records(scenario: Scenario, on_step: OnStep = ignore_steps) -> tuple[Timeline, list[OpRecord]]:
    """The timeline, and one OpRecord for every operation."""
    run = _Run(scenario, with_records=True, on_step=on_step)
    timeline = run.run()
    return timeline, run.records or []
