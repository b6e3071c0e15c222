"""
simulate(question) -> Result: the answer with its interval, its bound, its warnings and its small print.
"""

from dataclasses import replace
from typing import Literal

import numpy as np

from hardware_profiles.rates import DeviceRates
from moeplan.errors import InputError
from moeplan.progress import OnProgress, ignore_progress
from moeplan.quantity import format_rate
from simulator.closed_form.counted_time import CountedTime
from simulator.closed_form.replay import lean_replay
from simulator.engine_fast import FastEngine
from simulator.engine_simpy import simulate_simpy
from simulator.interval import N_SAMPLES, interval_of
from simulator.mapped import MappedEngine, mapping_of
from simulator.prefetch import check_prefetch
from simulator.question import Prepared, Question, drawn_devices, prepare, question_rates, with_what_ifs
from simulator.result import CacheResult, Interval, LayerResult, Result
from simulator.scenario import Scenario
from simulator.small_print import (
    beyond_device,
    is_stand_in,
    is_upper_bound,
    larger_cap,
    mapped_small_print,
    small_print,
    warnings_of,
)
from simulator.timeline import COMPUTE_OPS, Timeline
from simulator.what_bounds import Seconds, bound_by

Engine = Literal["simpy", "fast"]
FIRST_TOKENS = 16


def simulate(
    question: Question,
    *,
    engine: Engine | None = None,
    n_samples: int = N_SAMPLES,
    seed: int = 0,
    on_progress: OnProgress = ignore_progress,
    read_ahead_bytes: int | None = None,
) -> Result:
    """
    The answer to a question; an infeasible one is answered too, with its arithmetic.

    The engine computes the central timeline; the intervals come from n_samples draws of the stated uncertainties,
    timed in closed form with the same decisions.  on_progress watches the SimPy engine, and the replay of a mapped
    file.  The layout `mmap` has an engine of its own and takes no other (engine must be None, else InputError; None is
    simpy elsewhere); read_ahead_bytes: for that one, None takes the profile's.
    """
    if question.layout == "mmap" and engine is not None:
        advice = "page faults have an engine of their own, mapped"
        raise InputError("--engine", "must be left out with --layout mmap", repr(engine), advice)
    if question.layout == "mmap" and question.storage_limit_bytes_per_s is not None:
        got, advice = format_rate(question.storage_limit_bytes_per_s), "give --storage-read for slower storage"
        raise InputError("--storage-limit", "must be left out with --layout mmap", got, advice)
    check_prefetch(question.model, question.prefetch)
    prepared = prepare(question, lean_replay(question))
    if prepared.scenario is None:
        return cannot_run(prepared)
    if question.layout == "mmap":
        mapping = mapping_of(question, read_ahead_bytes)
        return simulate_mapped(MappedEngine(prepared, mapping, on_progress), n_samples, seed)
    engine = engine or "simpy"
    scenario = prepared.scenario
    if engine == "simpy":
        timeline = simulate_simpy(scenario, on_progress)
    else:
        timeline = FastEngine(scenario).timeline(scenario.rates)
    decode, n_tokens = CountedTime(scenario, timeline.n_misses), int(scenario.is_counted.sum())
    speed, ttft = intervals(decode.seconds, n_tokens, question, n_samples, seed, prefill_seconds(scenario))
    return replace(
        _summary(prepared, scenario, timeline),
        tokens_per_s=replace(speed, value=tokens_per_s(timeline, scenario.is_counted)),
        ttft_s=ttft,
        bound_by=bound_by(decode.seconds, question),
        small_print=small_print(prepared, engine, n_samples, seed),
        warnings=(*warnings_of(prepared), *_if_misses_double(timeline, prepared)),
        beyond_device=beyond_device(prepared),
        larger_cap=larger_cap(prepared),
    )


def simulate_mapped(mapped: MappedEngine, n_samples: int = N_SAMPLES, seed: int = 0) -> Result:
    """The answer for a mapped model file: reads are page faults, and nothing hides them."""
    prepared, scenario = mapped.prepared, mapped.scenario
    timeline = mapped.timeline(scenario.rates)
    first_decode = next(i for i, step in enumerate(scenario.steps) if step.is_decode)
    prompt = replace(scenario, steps=scenario.steps[:first_decode], n_warm_up_tokens=0)
    prefill = MappedEngine(replace(prepared, scenario=prompt), mapped.mapping) if first_decode else None

    def seconds(rates: DeviceRates, gate_sparsity: float | None) -> float:
        return float(mapped.timeline(rates, gate_sparsity).step_s[scenario.is_counted].sum())

    speed, ttft = intervals(
        seconds, int(scenario.is_counted.sum()), prepared.question, n_samples, seed,
        None if prefill is None else lambda *drawn: float(prefill.timeline(*drawn).step_s.sum()),
    )  # fmt: skip
    page_cache = mapped.page_cache_result()
    return replace(
        _summary(prepared, scenario, timeline),
        tokens_per_s=replace(speed, value=tokens_per_s(timeline, scenario.is_counted)),
        ttft_s=ttft,
        bound_by=bound_by(seconds, prepared.question),
        cache=mapped.cache_result(),
        layers=(),
        page_cache=page_cache,
        small_print=small_print(prepared, "mapped", n_samples, seed) | mapped_small_print(page_cache, scenario.model),
        warnings=tuple(warnings_of(prepared)),
        beyond_device=beyond_device(prepared),
        larger_cap=larger_cap(prepared),
    )


def _if_misses_double(timeline: Timeline, prepared: Prepared) -> tuple[str, ...]:
    """With routing that is a stand-in: the speed if twice as many experts missed, a measure of what hangs on it."""
    scenario = prepared.scenario
    if scenario is None or not is_stand_in(prepared.question) or not timeline.n_misses.any():
        return ()
    worse = CountedTime(scenario, np.minimum(2 * timeline.n_misses, timeline.n_used))
    speed = worse.n_tokens / worse.seconds(scenario.rates)
    return (f"With twice the stand-in's misses in each layer (at most all of its experts): {speed:.3g} tokens/s.",)


def checked_engine(name: str) -> Engine:
    """The engine of a name. Raises InputError for an unknown one."""
    engines: dict[str, Engine] = {"simpy": "simpy", "fast": "fast"}
    if name in engines:
        return engines[name]
    raise InputError("--engine", "must be simpy or fast", repr(name))


def cannot_run(prepared: Prepared) -> Result:
    """The result of a question whose model does not fit."""
    return Result(
        verdict="cannot_run",
        reason=prepared.plan.reason,
        arithmetic=prepared.plan.arithmetic,
        memory=prepared.plan.memory,
        storage_read_bytes_per_s=question_rates(prepared.question).sequential_read_bytes_per_s,
        small_print=small_print(prepared, "none", 0, 0),
        warnings=tuple(warnings_of(prepared)),
        larger_cap=larger_cap(prepared),
    )


def tokens_per_s(timeline: Timeline, is_counted: np.ndarray) -> float:
    """Counted decode tokens over their seconds."""
    return float(is_counted.sum() / timeline.step_s[is_counted].sum())


def prefill_seconds(scenario: Scenario) -> Seconds | None:
    """
    The first request's prompt alone on a cold cache, also where the rest of the run is preloaded; None without one.

    Its total is the time to first token, cold cache fill included; the dense part is taken as loaded.
    """
    first_decode = next(i for i, step in enumerate(scenario.steps) if step.is_decode)
    if not first_decode:
        return None
    prompt = replace(scenario, steps=scenario.steps[:first_decode], preloaded=False, n_warm_up_tokens=0)
    engine = FastEngine(prompt)
    return lambda rates, gate_sparsity: float(engine.timeline(rates, gate_sparsity).step_s.sum())


def intervals(
    decode: Seconds, n_tokens: int, question: Question, n_samples: int, seed: int, prompt: Seconds | None
) -> tuple[Interval, Interval | None]:
    """
    Central tokens/s and TTFT, each with the 10th and 90th percentile over draws of the stated uncertainties.

    decode: seconds of the n_tokens counted tokens; prompt: of the first prompt.  Drawn are the profile's figures and
    the model's gate sparsity; the interval always holds the central value.
    """
    central = question_rates(question), None
    speeds, firsts = [], []
    for device, sparsity in drawn_devices(question, n_samples, seed)[1:]:
        drawn = with_what_ifs(question, device)
        speeds.append(n_tokens / decode(drawn, sparsity))
        if prompt is not None:
            firsts.append(prompt(drawn, sparsity))
    speed = interval_of(n_tokens / decode(*central), speeds)
    return speed, None if prompt is None else interval_of(prompt(*central), firsts)


def _summary(prepared: Prepared, scenario: Scenario, timeline: Timeline) -> Result:
    """Everything that one timeline tells; intervals and texts are added by the caller."""
    counted = scenario.is_counted
    decode = np.array([step.is_decode for step in scenario.steps])
    first = np.flatnonzero(decode)[:FIRST_TOKENS]
    seconds_per_token = {op: float(timeline.op_s[op][counted].mean()) for op in COMPUTE_OPS}
    return Result(
        verdict=prepared.plan.verdict,
        small_print={},
        memory=prepared.plan.memory,
        first_decode_tokens_per_s=float(len(first) / timeline.step_s[first].sum()),
        cache=cache_result(prepared, timeline, counted),
        layers=tuple(_layers(scenario, timeline, counted)),
        seconds_per_token=seconds_per_token,
        energy_j_per_token=_energy_j(prepared.question, timeline, counted),
        storage_read_bytes_per_s=scenario.rates.sequential_read_bytes_per_s,
        prefetch_policy=scenario.prefetch_policy,
        n_prompt_tokens=prepared.steps[int(first[0])].tokens.start - prepared.steps[0].tokens.start,
    )


def cache_result(prepared: Prepared, timeline: Timeline, counted: np.ndarray) -> CacheResult | None:
    """Hits, misses and bytes of the counted decode steps, None for a dense model. Exact prefetch wastes nothing."""
    if prepared.question.model.experts is None:
        return None
    n_misses = int(timeline.n_misses[counted].sum())
    n_used = int(timeline.n_used[counted].sum())
    return CacheResult(
        policy=prepared.question.cache_policy,
        capacity_bytes=prepared.plan.memory.cache_bytes,
        slots=prepared.plan.n_slots,
        hits=n_used - n_misses,
        misses=n_misses,
        hit_rate=(n_used - n_misses) / n_used if n_used else 1.0,
        bytes_read=n_misses * prepared.layout.padded_bytes,
        bytes_wasted=0,
        bytes_read_per_token=n_misses * prepared.layout.padded_bytes / int(counted.sum()),
        is_upper_bound=is_upper_bound(prepared.question),
    )


def _layers(scenario: Scenario, timeline: Timeline, counted: np.ndarray) -> list[LayerResult]:
    layers = []
    for index, layer in enumerate(scenario.model.moe_layer_ids):
        attention_s, prefetch_s = timeline.attention_s[counted, index], timeline.prefetch_s[counted, index]
        has_miss = timeline.n_misses[counted, index] > 0
        hidden = float((attention_s >= prefetch_s)[has_miss].mean()) if has_miss.any() else None
        layers.append(
            LayerResult(
                layer=layer,
                t_attention_s=float(attention_s.mean()),
                t_prefetch_s=float(prefetch_s.mean()),
                bubble_s=float(timeline.bubble_s[counted, index].mean()),
                hidden_frac=hidden,
                no_miss_frac=float(1 - has_miss.mean()),
            )
        )
    return layers


def hidden_frac(timeline: Timeline, counted: np.ndarray) -> float:
    """Share of the counted (token, layer) pairs with a miss for which t_attention >= t_prefetch; 1 without misses."""
    has_miss = timeline.n_misses[counted] > 0
    holds = (timeline.attention_s[counted] >= timeline.prefetch_s[counted])[has_miss]
    return float(holds.mean()) if holds.size else 1.0


def _energy_j(question: Question, timeline: Timeline, counted: np.ndarray) -> float | None:
    """Mean joule per decode token: idle power all the time, compute and storage power on top while they are busy."""
    power = question.profile.power
    if power is None:
        return None
    step_s, wait_s = timeline.step_s[counted], timeline.op_s["wait"][counted]
    joule = (
        power.idle_w * step_s + power.compute_w * (step_s - wait_s) + power.storage_w * timeline.read_busy_s[counted]
    )
    return float(joule.mean())
