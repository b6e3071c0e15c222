"""
The planner: does it reach the target, and which single changes would?

Every search below is over something monotone: more slots never mean more LRU misses, a faster part never a slower
token.  So the least change is found by bisection, to 1 % (RAM: to one expert).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from moeplan.errors import InputError
from moeplan.quantity import format_bytes, format_rate
from simulator.engine_fast import FastEngine
from simulator.memory import n_routed_experts
from simulator.policies import POLICIES
from simulator.prefetch import default_prefetch
from simulator.question import Question, available_ram_bytes, prepare, question_rates, question_steps
from simulator.result import Change, Decision, Interval, PlanResult, Result, SweepRow
from simulator.simulate import Engine, intervals, simulate, tokens_per_s
from simulator.sweep import N_SWEEP_SAMPLES, Grid, round_caps, round_rates, sweep

MAX_FACTOR = 64.0  # wishes beyond this are called out of reach
PRECISION_FRAC = 0.01
FREE, HARDWARE, LOSSY = 0, 1, 2  # the order in which changes are offered

Speed = Callable[[float], float]


def plan(
    question: Question,
    target_tokens_per_s: float,
    *,
    engine: Engine = "simpy",
    seed: int = 0,
    on_row: Callable[[SweepRow], None] = lambda row: None,
) -> PlanResult:
    """The decision for a target speed, the changes that reach it and a grid RAM cap x storage speed."""
    if not target_tokens_per_s > 0:
        raise InputError("--target-tokens-per-s", "must be above zero", target_tokens_per_s)
    result = simulate(question, engine=engine, seed=seed)
    changes = sorted(_changes(question, target_tokens_per_s, result, seed), key=_order)
    grid = sweep(question, default_grid(question), seed=seed, on_row=on_row)
    return PlanResult(
        target_tokens_per_s, _decision(result, target_tokens_per_s), result, tuple(c for _, c in changes), tuple(grid)
    )


def default_grid(question: Question) -> Grid:
    """Caps from the floor to all resident, speeds around the device's own, the policies of the question."""
    memory = prepare(question).plan.memory
    fixed = memory.dense_bytes + memory.kv_bytes + memory.activation_bytes
    current = question_rates(question).sequential_read_bytes_per_s
    caps = round_caps(fixed, fixed + memory.all_experts_bytes, question.cap_bytes)
    rates = round_rates(current) if question.model.experts is not None else (current,)
    return Grid(caps, rates, (question.cache_policy,), (question.prefetch,))


def _decision(result: Result, target: float) -> Decision:
    if result.tokens_per_s is None:
        return "cannot_run"
    if result.tokens_per_s.low >= target:
        return "yes"
    return "likely" if result.tokens_per_s.value >= target else "no"


def _order(ranked: tuple[int, Change]) -> tuple[bool, int, float]:
    kind, change = ranked
    return (not change.reaches, kind, change.ratio)


def _changes(question: Question, target: float, result: Result, seed: int) -> Iterator[tuple[int, Change]]:
    """Single changes with their kind; none where the target is met already."""
    if result.tokens_per_s is not None and result.tokens_per_s.value >= target:
        return
    yield from _setting_changes(question, target, seed)
    ram = _more_ram(question, target, seed)
    if ram is not None:
        yield HARDWARE, ram
    if result.verdict == "streams":
        yield HARDWARE, _faster_storage(question, target, seed)
    if result.tokens_per_s is not None:
        yield HARDWARE, _faster_compute(question, target, seed)


def _setting_changes(question: Question, target: float, seed: int) -> Iterator[tuple[int, Change]]:
    """Changes that cost no hardware: policies, layout, context; and the lossy ones, labelled."""
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


def _more_ram(question: Question, target: float, seed: int) -> Change | None:
    """The least RAM cap that reaches the target, by bisection over the slots of the cache."""
    steps = question_steps(question)
    current, layout = prepare(question, steps).plan, prepare(question, steps).layout
    memory = current.memory
    fixed = memory.dense_bytes + memory.kv_bytes + memory.activation_bytes
    top_k = 0 if question.model.experts is None else question.model.experts.top_k
    most = n_routed_experts(question.model)
    if current.verdict == "resident" or current.reason == "storage_capacity":
        return None

    def cap(n_slots: int) -> int:
        buffers = 0 if n_slots >= most else top_k * layout.padded_bytes
        return fixed + buffers + n_slots * layout.padded_bytes

    def speed(n_slots: int) -> float:
        changed = replace(question, ram_cap_bytes=cap(n_slots))
        scenario = prepare(changed, steps).scenario
        if scenario is None:
            return 0.0
        return tokens_per_s(FastEngine(scenario).timeline(scenario.rates), scenario.is_counted)

    low, high = (current.n_slots if current.verdict == "streams" else 0), most
    if speed(high) >= target:
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if speed(middle) >= target else (middle + 1, high)
    wanted = cap(high)
    available = available_ram_bytes(question.profile)
    note = "" if wanted <= available else f"more than the {format_bytes(available)} that this device leaves"
    changed = replace(question, ram_cap_bytes=wanted)
    ratio = wanted / question.cap_bytes
    return _one(
        changed, target, seed, "RAM cap", format_bytes(question.cap_bytes), format_bytes(wanted), max(1.0, ratio), note
    )


def _faster_storage(question: Question, target: float, seed: int) -> Change:
    """The least sequential read rate that reaches the target; the latencies stay."""
    current = question_rates(question).sequential_read_bytes_per_s
    scenario = prepare(question).scenario
    assert scenario is not None  # the caller has a result
    fast = FastEngine(scenario)

    def speed(factor: float) -> float:
        faster = question_rates(replace(question, storage_read_bytes_per_s=current * factor))
        return tokens_per_s(fast.timeline(faster), scenario.is_counted)

    factor = _least_factor(speed, target)
    changed = replace(question, storage_read_bytes_per_s=current * factor)
    note = "sequential read; latencies as they are"
    return _one(
        changed, target, seed, "storage read", format_rate(current), format_rate(current * factor), factor, note
    )


def _faster_compute(question: Question, target: float, seed: int) -> Change:
    """The least factor on CPU rates and RAM bandwidth together that reaches the target."""
    scenario = prepare(question).scenario
    assert scenario is not None  # the caller has a result
    fast = FastEngine(scenario)

    def speed(factor: float) -> float:
        faster = question_rates(replace(question, compute_factor=question.compute_factor * factor))
        return tokens_per_s(fast.timeline(faster), scenario.is_counted)

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
    speed, _ = intervals(fast, question, fast.timeline(prepared.scenario.rates), N_SWEEP_SAMPLES, seed)
    return speed
