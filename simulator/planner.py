"""
The planner: does it reach the target, and which changes would?

Every search below is over something monotone: more slots never mean more LRU misses, a faster part never a slower
token.  So the least change is found by bisection, to 1 % (RAM: to one expert).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from hardware_profiles.rates import DeviceRates
from moeplan.errors import InputError
from moeplan.quantity import format_bytes, format_rate
from simulator.engine_fast import FastEngine
from simulator.engine_simpy import OnStep, ignore_steps
from simulator.memory import n_routed_experts
from simulator.policies import POLICIES
from simulator.prefetch import default_prefetch
from simulator.question import Question, available_ram_bytes, prepare, question_rates, question_replay
from simulator.result import Change, Decision, Interval, PlanResult, Result, SweepRow
from simulator.simulate import Engine, intervals, simulate, tokens_per_s
from simulator.small_print import is_stand_in
from simulator.sweep import N_SWEEP_SAMPLES, Grid, round_caps, round_rates, sweep

MAX_FACTOR = 64.0  # wishes beyond this are called out of reach
PRECISION_FRAC = 0.01
FREE, HARDWARE, LOSSY, OTHER_DEVICE = 0, 1, 2, 3  # the order in which changes are offered

STORAGE_STEPS = (1.5, 2.0, 3.0, 4.0, 6.0)  # factors on the storage's speed that are tried together with more RAM

Speed = Callable[[float], float]


def plan(
    question: Question,
    target_tokens_per_s: float,
    *,
    engine: Engine = "simpy",
    seed: int = 0,
    on_row: Callable[[SweepRow], None] = lambda row: None,
    on_step: OnStep = ignore_steps,
) -> PlanResult:
    """The decision for a target speed, the changes that reach it and a grid RAM cap x storage speed."""
    if not 0 < target_tokens_per_s < math.inf:
        raise InputError("--target-tokens-per-s", "must be above zero and finite", target_tokens_per_s)
    result = simulate(question, engine=engine, seed=seed, on_step=on_step)
    changes = sorted(_changes(question, target_tokens_per_s, result, seed), key=_order)
    grid = [_with_headline(row, result) for row in sweep(question, default_grid(question), seed=seed, on_row=on_row)]
    decision = _decision(question, result, target_tokens_per_s)
    return PlanResult(target_tokens_per_s, decision, result, tuple(change for _, change in changes), tuple(grid))


def _with_headline(row: SweepRow, result: Result) -> SweepRow:
    """The row of the result's own scenario has the result's interval, which has more draws than the grid's."""
    speed = result.tokens_per_s
    same_cap = row.ram_cap_bytes == result.memory.ram_cap_bytes
    if speed is None or not same_cap or row.storage_read_bytes_per_s != result.storage_read_bytes_per_s:
        return row
    return replace(row, tokens_per_s_low=speed.low, tokens_per_s_high=speed.high)


def default_grid(question: Question) -> Grid:
    """Caps from the floor to all resident, speeds around the device's own, the policies of the question."""
    memory = prepare(question).plan.memory
    fixed = memory.dense_bytes + memory.kv_bytes + memory.activation_bytes
    current = question_rates(question).sequential_read_bytes_per_s
    caps = round_caps(fixed, fixed + memory.all_experts_bytes, question.cap_bytes)
    rates = round_rates(current) if question.model.experts is not None else (current,)
    return Grid(caps, rates, (question.cache_policy,), (question.prefetch,))


def _decision(question: Question, result: Result, target: float) -> Decision:
    """A plain yes needs the low end of the interval, and hit rates of the model's own routing where hits matter."""
    if result.tokens_per_s is None:
        return "cannot_run"
    if result.tokens_per_s.low >= target and (result.verdict == "resident" or not is_stand_in(question)):
        return "yes"
    return "likely" if result.tokens_per_s.value >= target else "no"


def _order(ranked: tuple[int, Change]) -> tuple[bool, int, float]:
    kind, change = ranked
    return (not change.reaches, kind, change.ratio)


def _changes(question: Question, target: float, result: Result, seed: int) -> Iterator[tuple[int, Change]]:
    """Single changes with their kind, and RAM and storage together; none where the target is met already."""
    if result.tokens_per_s is not None and result.tokens_per_s.value >= target:
        return
    if result.reason == "storage_capacity":
        yield HARDWARE, _more_storage_space(question, target, seed)
        return
    yield from _setting_changes(question, target, seed)
    scenario = prepare(question).scenario
    fast = None if scenario is None else FastEngine(scenario)
    if result.verdict != "resident":
        search = _RamSearch(question)
        yield search.change(target, seed)
        if fast is not None:
            yield HARDWARE, _faster_storage(question, fast, target, seed)
            both = _ram_and_storage(search, target, seed)
            if both is not None:
                yield both
    if fast is not None:
        yield HARDWARE, _faster_compute(question, fast, target, seed)


def _setting_changes(question: Question, target: float, seed: int) -> Iterator[tuple[int, Change]]:
    """Changes that cost no hardware: policies and layout; and the LM-head predictor, which is labelled lossy."""
    if question.model.experts is not None:
        for policy in sorted(set(POLICIES) - {question.cache_policy}):
            changed = replace(question, cache_policy=policy)
            yield FREE, _one(changed, target, seed, "cache policy", question.cache_policy, policy)
        if question.prefetch != default_prefetch(question.model):
            best = default_prefetch(question.model)
            yield FREE, _one(replace(question, prefetch_policy=best), target, seed, "prefetch", question.prefetch, best)
        if question.layout != "bundle":
            yield (
                FREE,
                _one(replace(question, layout="bundle"), target, seed, "expert layout", question.layout, "bundle"),
            )
    if question.model.lm_head_predictor is not None and not question.lm_head_predictor:
        changed = replace(question, lm_head_predictor=True)
        note = "lossy: changes the model's output now and then"
        yield LOSSY, _one(changed, target, seed, "LM-head predictor", "off", "on", note=note)


def _one(
    question: Question, target: float, seed: int, what: str, before: str, after: str, ratio: float = 1.0, note: str = ""
) -> Change:
    """The change that turns the question into this one."""
    speed = _speed_interval(question, seed)
    reaches = speed is not None and speed.value >= target
    return Change(what, before, after, ratio, reaches, speed, note)


class _RamSearch:
    """The least RAM cap for a target, by bisection over the slots of the cache; decisions are taken once a size."""

    def __init__(self, question: Question) -> None:
        self.question, self.replay = question, question_replay(question)
        prepared = prepare(question, self.replay)
        memory = prepared.plan.memory
        self.fixed_bytes = memory.dense_bytes + memory.kv_bytes + memory.activation_bytes
        self.expert_bytes = prepared.layout.padded_bytes
        self.most_slots = n_routed_experts(question.model)
        self.current_slots = prepared.plan.n_slots if prepared.scenario is not None else 0
        self._engines: dict[int, FastEngine | None] = {}

    def cap_bytes(self, n_slots: int) -> int:
        """The RAM cap that gives the cache so many slots."""
        top_k = 0 if self.question.model.experts is None else self.question.model.experts.top_k
        n_buffers = 0 if n_slots >= self.most_slots else top_k
        return self.fixed_bytes + (n_slots + n_buffers) * self.expert_bytes

    def speed(self, n_slots: int, rates: DeviceRates) -> float:
        """Central tokens/s with so many slots, 0 where the model cannot run."""
        if n_slots not in self._engines:
            scenario = prepare(replace(self.question, ram_cap_bytes=self.cap_bytes(n_slots)), self.replay).scenario
            self._engines[n_slots] = None if scenario is None else FastEngine(scenario)
        engine = self._engines[n_slots]
        return 0.0 if engine is None else tokens_per_s(engine.timeline(rates), engine.scenario.is_counted)

    def least_slots(self, target: float, rates: DeviceRates) -> int | None:
        """The fewest slots from today's on that reach the target, None where all experts in RAM do not."""
        low, high = self.current_slots, self.most_slots
        if self.speed(high, rates) < target:
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.speed(middle, rates) >= target else (middle + 1, high)
        return high

    def change(self, target: float, seed: int) -> tuple[int, Change]:
        """The least RAM cap that reaches the target, or all experts in RAM where that does not."""
        slots = self.least_slots(target, question_rates(self.question))
        wanted = self.cap_bytes(self.most_slots if slots is None else slots)
        before, after = format_bytes(self.question.cap_bytes), format_bytes(wanted)
        ratio = max(1.0, wanted / self.question.cap_bytes)
        changed = replace(self.question, ram_cap_bytes=wanted)
        note = _beyond_device(self.question, wanted)
        kind = OTHER_DEVICE if note else HARDWARE
        return kind, _one(changed, target, seed, "RAM cap", before, after, ratio, note)


def _beyond_device(question: Question, wanted_bytes: int) -> str:
    """A note where a RAM cap is more than the device leaves to a program."""
    available = available_ram_bytes(question.profile)
    return "" if wanted_bytes <= available else f"more than the {format_bytes(available)} that this device leaves"


def _ram_and_storage(search: _RamSearch, target: float, seed: int) -> tuple[int, Change] | None:
    """The smallest product of a larger RAM cap and a faster storage that reaches the target together, if any does."""
    question, rates = search.question, question_rates(search.question)
    current = rates.sequential_read_bytes_per_s
    found = []
    for factor in STORAGE_STEPS:
        faster = question_rates(replace(question, storage_read_bytes_per_s=factor * current))
        slots = search.least_slots(target, faster)
        if slots is not None and slots > search.current_slots:
            found.append((search.cap_bytes(slots) / question.cap_bytes * factor, factor, search.cap_bytes(slots)))
    if not found:
        return None
    ratio, factor, cap = min(found)
    changed = replace(question, ram_cap_bytes=cap, storage_read_bytes_per_s=factor * current)
    before = f"{format_bytes(question.cap_bytes)}, {format_rate(current)}"
    after = f"{format_bytes(cap)}, {format_rate(factor * current)}"
    note = _beyond_device(question, cap)
    kind = OTHER_DEVICE if note else HARDWARE
    return kind, _one(changed, target, seed, "RAM cap and storage read", before, after, ratio, note)


def _more_storage_space(question: Question, target: float, seed: int) -> Change:
    """Room for the model file."""
    wanted, free = prepare(question).plan.memory.storage_bytes, question.profile.storage.free_space
    storage = question.profile.storage
    room = storage.model_copy(update={"free_space": free.model_copy(update={"value": float(wanted)})})
    changed = replace(question, profile=question.profile.model_copy(update={"storage": room}))
    ratio = wanted / max(1.0, free.value)
    note = "without it the model cannot run at all"
    return _one(changed, target, seed, "free storage", format_bytes(free.value), format_bytes(wanted), ratio, note)


def _faster_storage(question: Question, fast: FastEngine, target: float, seed: int) -> Change:
    """The least sequential read rate that reaches the target; the latencies stay."""
    current = question_rates(question).sequential_read_bytes_per_s

    def speed(factor: float) -> float:
        faster = question_rates(replace(question, storage_read_bytes_per_s=current * factor))
        return tokens_per_s(fast.timeline(faster), fast.scenario.is_counted)

    factor = _least_factor(speed, target)
    changed = replace(question, storage_read_bytes_per_s=current * factor)
    note = "sequential read; latencies as they are"
    return _one(
        changed, target, seed, "storage read", format_rate(current), format_rate(current * factor), factor, note
    )


def _faster_compute(question: Question, fast: FastEngine, target: float, seed: int) -> Change:
    """The least factor on CPU rates and RAM bandwidth together that reaches the target."""

    def speed(factor: float) -> float:
        faster = question_rates(replace(question, compute_factor=question.compute_factor * factor))
        return tokens_per_s(fast.timeline(faster), fast.scenario.is_counted)

    factor = _least_factor(speed, target)
    changed = replace(question, compute_factor=question.compute_factor * factor)
    note = "FLOP/s and RAM bandwidth together"
    return _one(changed, target, seed, "CPU and RAM speed", "1.00 x", f"{factor:.2f} x", factor, note)


def _least_factor(speed: Speed, target: float) -> float:
    """The least factor of at least 1 with speed(factor) >= target to PRECISION_FRAC, MAX_FACTOR where none is."""
    if speed(MAX_FACTOR) < target:
        return MAX_FACTOR
    low, high = 1.0, MAX_FACTOR
    while high / low > 1 + PRECISION_FRAC:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if speed(middle) >= target else (middle, high)
    return high


def _speed_interval(question: Question, seed: int) -> Interval | None:
    prepared = prepare(question)
    if prepared.scenario is None:
        return None
    fast = FastEngine(prepared.scenario)
    speed, _ = intervals(fast, question, N_SWEEP_SAMPLES, seed)
    return speed
