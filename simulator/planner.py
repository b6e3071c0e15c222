"""
The planner: does it reach the target, which changes would, and what does the target ask at least?

What a change needs is searched as simulator.inverse.limits says; every speed, and so every interval, comes from the
same draws: a scenario has one interval wherever it stands.
"""

import math

from moeplan.errors import InputError
from moeplan.progress import OnProgress, ignore_progress
from simulator.closed_form.replay import lean_replay
from simulator.interval import N_SAMPLES
from simulator.inverse.changes import changes
from simulator.inverse.front import pareto_front
from simulator.inverse.limits import N_LIMITS, limits
from simulator.inverse.prices import Prices
from simulator.inverse.shopping import shopping
from simulator.inverse.speeds import Speeds
from simulator.plan_result import Decision, Front, Limit, PlanResult
from simulator.question import Question, available_ram_bytes, prepare, question_rates
from simulator.result import Result
from simulator.simulate import Engine, simulate
from simulator.small_print import is_stand_in, is_upper_bound
from simulator.sold import storage_ceiling
from simulator.sweeps.in_memory import Grid, round_caps, round_rates, sweep


def plan(
    question: Question,
    target_tokens_per_s: float,
    *,
    prices: Prices | None = None,
    engine: Engine = "simpy",
    n_samples: int = N_SAMPLES,
    seed: int = 0,
    on_progress: OnProgress = ignore_progress,
    on_search: OnProgress = ignore_progress,
) -> PlanResult:
    """
    The decision for a target speed, the changes that reach it, its limits, and a grid RAM cap x storage speed.

    n_samples: Monte Carlo draws behind every interval; on_progress watches the engine, on_search the searches after it:
    parts done, in all.  Raises InputError.
    """
    if not 0 < target_tokens_per_s < math.inf:
        raise InputError("--target-tokens-per-s", "must be above zero and finite", target_tokens_per_s)
    result = simulate(question, engine=engine, n_samples=n_samples, seed=seed, on_progress=on_progress)
    speeds = Speeds(question, n_samples, seed)
    n_parts = 4 + N_LIMITS

    def done(n_done: int) -> None:
        on_search(n_done, n_parts)

    rows = sweep(question, default_grid(question), n_samples=n_samples, seed=seed)
    done(1)
    fits = result.reason != "storage_capacity"
    found: list[Limit] = []
    for limit in limits(speeds, target_tokens_per_s) if fits else ():
        found.append(limit)
        done(1 + len(found))
    changed = changes(speeds, target_tokens_per_s, result, tuple(found), prices)
    done(2 + N_LIMITS)
    front = _front(speeds, result, target_tokens_per_s, tuple(found))
    done(3 + N_LIMITS)
    bought = shopping(speeds, prices, target_tokens_per_s) if prices is not None and fits else None
    done(n_parts)
    return PlanResult(
        target_tokens_per_s,
        _decision(question, result, target_tokens_per_s),
        result,
        changed,
        tuple(rows),
        tuple(found),
        front,
        bought,
        "" if prices is None else prices.currency,
        available_ram_bytes(question.profile),
        storage_ceiling(question.profile.storage.kind),
    )


def _front(speeds: Speeds, result: Result, target: float, found: tuple[Limit, ...]) -> Front | None:
    """None for a dense model, which has nothing to stream, and where the storage cannot hold the model."""
    if result.reason == "storage_capacity" or speeds.question.model.experts is None:
        return None
    least = next(limit for limit in found if limit.what == "ram_cap")
    values: tuple[object, ...] = (least.value, least.cautious_value)
    return pareto_front(speeds, target, [cap for cap in values if isinstance(cap, int)])


def default_grid(question: Question) -> Grid:
    """Caps from the floor to all resident, speeds around the device's own, the policies of the question."""
    memory = prepare(question, lean_replay(question)).plan.memory
    fixed = memory.dense_bytes + memory.kv_bytes + memory.activation_bytes
    current = question_rates(question).sequential_read_bytes_per_s
    caps = round_caps(fixed, fixed + memory.all_experts_bytes, question.cap_bytes)
    fastest = max(current, question.profile.ram.peak_bandwidth.value)  # no storage outruns the RAM that it reads into
    rates = tuple(rate for rate in round_rates(current) if rate <= fastest)
    if question.model.experts is None:
        rates = (current,)
    return Grid(caps, rates, (question.cache_policy,), (question.prefetch,))


def _decision(question: Question, result: Result, target: float) -> Decision:
    """
    A plain yes needs the low end of the interval, and hit rates of the model's own routing where hits matter, under a
    policy that a runtime can follow.

    What needs more RAM than the device has cannot run on it as bought, whatever the RAM cap says.
    """
    if result.tokens_per_s is None or result.beyond_device:
        return "cannot_run"
    is_real = not is_stand_in(question) and not is_upper_bound(question)
    if result.tokens_per_s.low >= target and (result.verdict == "resident" or is_real):
        return "yes"
    return "likely" if result.tokens_per_s.value >= target else "no"
