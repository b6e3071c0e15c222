"""
The planner: does it reach the target, which changes would, and what does the target ask at least?

What a change needs is searched as simulator.inverse.limits says; every speed comes from one simulator.inverse.Speeds.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from moeplan.errors import InputError
from moeplan.quantity import format_bytes, format_rate
from simulator.engine_simpy import OnStep, ignore_steps
from simulator.inverse.caps import CapGrid
from simulator.inverse.front import pareto_front
from simulator.inverse.limits import N_LIMITS, limits
from simulator.inverse.prices import Prices
from simulator.inverse.search import first_reaching
from simulator.inverse.shopping import shopping
from simulator.inverse.speeds import Speeds, faster_compute_never_slower, faster_storage_never_slower
from simulator.inverse.storage_grid import rate_grid
from simulator.plan_result import Change, Decision, Front, Limit, PlanResult
from simulator.policies import POLICIES
from simulator.prefetch import default_prefetch
from simulator.question import Question, available_ram_bytes, prepare, question_rates
from simulator.result import Result, SweepRow
from simulator.simulate import Engine, simulate
from simulator.small_print import is_stand_in
from simulator.sweep import N_SWEEP_SAMPLES, Grid, round_caps, round_rates, sweep
from simulator.sweeps.replay import lean_replay

COMPUTE_FACTORS = tuple(min(64.0, 1.01**power) for power in range(419))  # steps of 1 %; beyond is out of reach
FREE, HARDWARE, LOSSY, OTHER_DEVICE = 0, 1, 2, 3  # the order in which changes are offered
STORAGE_STEPS = (1.5, 2.0, 3.0, 4.0, 6.0)  # factors on the storage's speed that are tried together with more RAM


def plan(
    question: Question,
    target_tokens_per_s: float,
    *,
    prices: Prices | None = None,
    engine: Engine = "simpy",
    seed: int = 0,
    on_step: OnStep = ignore_steps,
    on_part: Callable[[int, int], None] = lambda done, total: None,
) -> PlanResult:
    """
    The decision for a target speed, the changes that reach it, its limits, and a grid RAM cap x storage speed.

    on_step watches the engine, on_part the searches after it: parts done, in all.
    """
    if not 0 < target_tokens_per_s < math.inf:
        raise InputError("--target-tokens-per-s", "must be above zero and finite", target_tokens_per_s)
    result = simulate(question, engine=engine, seed=seed, on_step=on_step)
    speeds = Speeds(question, N_SWEEP_SAMPLES, seed)
    n_parts = 4 + N_LIMITS

    def done(n_done: int) -> None:
        on_part(n_done, n_parts)

    rows = sweep(question, default_grid(question), seed=seed)
    done(1)
    changes = sorted(_changes(speeds, target_tokens_per_s, result), key=_order)
    done(2)
    front, bought = _front(speeds, result, target_tokens_per_s), None
    done(3)
    if prices is not None and result.reason != "storage_capacity":
        bought = shopping(speeds, prices, target_tokens_per_s)
    done(4)
    found: list[Limit] = []
    if result.reason != "storage_capacity":
        for limit in limits(speeds, target_tokens_per_s):
            found.append(limit)
            done(4 + len(found))
    done(n_parts)
    return PlanResult(
        target_tokens_per_s,
        _decision(question, result, target_tokens_per_s),
        result,
        tuple(change for _, change in changes),
        tuple(_with_headline(row, result) for row in rows),
        tuple(found),
        front,
        bought,
    )


def _front(speeds: Speeds, result: Result, target: float) -> Front | None:
    """None for a dense model, which has nothing to stream, and where the storage cannot hold the model."""
    if result.reason == "storage_capacity" or speeds.question.model.experts is None:
        return None
    return pareto_front(speeds, target)


def _with_headline(row: SweepRow, result: Result) -> SweepRow:
    """The row of the result's own scenario has the result's interval, which has more draws than the grid's."""
    speed = result.tokens_per_s
    same_cap = row.ram_cap_bytes == result.memory.ram_cap_bytes
    if speed is None or not same_cap or row.storage_read_bytes_per_s != result.storage_read_bytes_per_s:
        return row
    return replace(row, tokens_per_s_low=speed.low, tokens_per_s_high=speed.high)


def default_grid(question: Question) -> Grid:
    """Caps from the floor to all resident, speeds around the device's own, the policies of the question."""
    memory = prepare(question, lean_replay(question)).plan.memory
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


def _changes(speeds: Speeds, target: float, result: Result) -> Iterator[tuple[int, Change]]:
    """Single changes with their kind, and RAM and storage together; none where the target is met already."""
    if result.tokens_per_s is not None and result.tokens_per_s.value >= target:
        return
    if result.reason == "storage_capacity":
        yield HARDWARE, _more_storage_space(speeds, target)
        return
    yield from _setting_changes(speeds, target)
    runs = speeds.prepared(speeds.question).scenario is not None
    if result.verdict != "resident":
        search = _RamSearch(speeds)
        yield search.change(target)
        if runs:
            yield HARDWARE, _faster_storage(speeds, target)
            both = _ram_and_storage(search, target)
            if both is not None:
                yield both
    if runs:
        yield HARDWARE, _faster_compute(speeds, target)


def _setting_changes(speeds: Speeds, target: float) -> Iterator[tuple[int, Change]]:
    """Changes that cost no hardware: policies and layout; and the LM-head predictor, which is labelled lossy."""
    question = speeds.question
    if question.model.experts is not None:
        for policy in sorted(set(POLICIES) - {question.cache_policy}):
            changed = replace(question, cache_policy=policy)
            yield FREE, _one(speeds, changed, target, "cache policy", question.cache_policy, policy)
        best = default_prefetch(question.model)
        if question.prefetch != best:
            changed = replace(question, prefetch_policy=best)
            yield FREE, _one(speeds, changed, target, "prefetch", question.prefetch, best)
        if question.layout != "bundle":
            changed = replace(question, layout="bundle")
            yield FREE, _one(speeds, changed, target, "expert layout", question.layout, "bundle")
    if question.model.lm_head_predictor is not None and not question.lm_head_predictor:
        changed = replace(question, lm_head_predictor=True)
        note = "lossy: changes the model's output now and then"
        yield LOSSY, _one(speeds, changed, target, "LM-head predictor", "off", "on", note=note)


def _one(
    speeds: Speeds, question: Question, target: float, what: str, before: str, after: str, ratio: float = 1.0,
    note: str = "",
) -> Change:  # fmt: skip
    """The change that turns the question into this one."""
    speed = speeds.interval(question)
    reaches = speed is not None and speed.value >= target
    return Change(what, before, after, ratio, reaches, speed, note)


class _RamSearch:
    """The least RAM cap of at least today's for a target, over the sizes of the expert cache."""

    def __init__(self, speeds: Speeds) -> None:
        self.speeds, self.question = speeds, speeds.question
        self._grid = CapGrid(speeds, self.question, least_bytes=self.question.cap_bytes)

    def least_bytes(self, question: Question, target: float) -> int | None:
        """The least cap that reaches the target with the question's speeds, None where all experts in RAM do not."""
        return first_reaching(
            self._grid.runs,
            lambda cap: self.speeds.speed(replace(question, ram_cap_bytes=cap)) >= target,
            is_monotone=self._grid.is_monotone,
        )

    def change(self, target: float) -> tuple[int, Change]:
        """The least RAM cap that reaches the target, or all experts in RAM where that does not."""
        found = self.least_bytes(self.question, target)
        wanted = self._grid.caps[-1] if found is None else found
        before, after = format_bytes(self.question.cap_bytes), format_bytes(wanted)
        changed = replace(self.question, ram_cap_bytes=wanted)
        note = _beyond_device(self.question, wanted)
        kind = OTHER_DEVICE if note else HARDWARE
        ratio = wanted / self.question.cap_bytes
        return kind, _one(self.speeds, changed, target, "RAM cap", before, after, ratio, note)


def _beyond_device(question: Question, wanted_bytes: int) -> str:
    """A note where a RAM cap is more than the device leaves to a program."""
    available = available_ram_bytes(question.profile)
    return "" if wanted_bytes <= available else f"more than the {format_bytes(available)} that this device leaves"


def _ram_and_storage(search: _RamSearch, target: float) -> tuple[int, Change] | None:
    """The smallest product of a larger RAM cap and a faster storage that reaches the target together, if any does."""
    question, now = search.question, search.question.cap_bytes
    current = question_rates(question).sequential_read_bytes_per_s
    found = []
    fastest = question.profile.ram.peak_bandwidth.value  # no storage outruns the RAM that it reads into
    for factor in (step for step in STORAGE_STEPS if step * current <= fastest):
        cap = search.least_bytes(replace(question, storage_read_bytes_per_s=factor * current), target)
        if cap is not None and format_bytes(cap) != format_bytes(now):
            found.append((cap / now * factor, factor, cap))
    if not found:
        return None
    ratio, factor, cap = min(found)
    changed = replace(question, ram_cap_bytes=cap, storage_read_bytes_per_s=factor * current)
    before = f"{format_bytes(now)}, {format_rate(current)}"
    after = f"{format_bytes(cap)}, {format_rate(factor * current)}"
    note = _beyond_device(question, cap)
    kind = OTHER_DEVICE if note else HARDWARE
    return kind, _one(search.speeds, changed, target, "RAM cap and storage read", before, after, ratio, note)


def _more_storage_space(speeds: Speeds, target: float) -> Change:
    """Room for the model file."""
    question = speeds.question
    storage = question.profile.storage
    wanted, free = speeds.prepared(question).plan.memory.storage_bytes, storage.free_space
    room = storage.model_copy(update={"free_space": free.model_copy(update={"value": float(wanted)})})
    changed = replace(question, profile=question.profile.model_copy(update={"storage": room}))
    before, after, ratio = format_bytes(free.value), format_bytes(wanted), wanted / max(1.0, free.value)
    note = "without it the model cannot run at all"
    roomy = Speeds(changed, speeds.n_samples, speeds.seed)
    return _one(roomy, changed, target, "free storage", before, after, ratio, note)


def _faster_storage(speeds: Speeds, target: float) -> Change:
    """The least sequential read rate above today's that reaches the target; the latencies stay."""
    question = speeds.question
    current = question_rates(question).sequential_read_bytes_per_s
    rates = [rate for rate in rate_grid(question.profile.ram.peak_bandwidth.value) if rate > current] or [current]
    rate = first_reaching(
        [rates],
        lambda rate: speeds.speed(replace(question, storage_read_bytes_per_s=rate)) >= target,
        is_monotone=faster_storage_never_slower(question),
    )
    wanted, note = (rates[-1] if rate is None else rate), "sequential read; latencies as they are"
    changed, before, after = (
        replace(question, storage_read_bytes_per_s=wanted),
        format_rate(current),
        format_rate(wanted),
    )
    return _one(speeds, changed, target, "storage read", before, after, wanted / current, note)


def _faster_compute(speeds: Speeds, target: float) -> Change:
    """The least factor on CPU rates and RAM bandwidth together that reaches the target."""
    question = speeds.question

    def faster(factor: float) -> Question:
        return replace(question, compute_factor=question.compute_factor * factor)

    found = first_reaching(
        [COMPUTE_FACTORS],
        lambda factor: speeds.speed(faster(factor)) >= target,
        is_monotone=faster_compute_never_slower(question),
    )
    factor = COMPUTE_FACTORS[-1] if found is None else found
    note = "FLOP/s and RAM bandwidth together"
    return _one(speeds, faster(factor), target, "CPU and RAM speed", "1.00 x", f"{factor:.2f} x", factor, note)
