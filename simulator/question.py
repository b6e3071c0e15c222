"""
Question: what a person asks, in names and SI numbers; and how it becomes a Scenario.

A question holds a whole hardware profile with its uncertainties, a scenario only the rates of one draw.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from hardware_profiles.rates import DeviceRates, rates, sample_rates
from hardware_profiles.schema import HardwareProfile
from hardware_profiles.schema_base import Z_80
from hardware_profiles.storage import StorageModel
from moeplan.errors import InputError
from moeplan.quantity import format_rate
from simulator.costs import decode_layer_s
from simulator.expert_layout import ExpertLayout, expert_layout
from simulator.memory import MemoryPlan, plan_memory
from simulator.model.spec import ModelSpec
from simulator.prefetch import check_prefetch, default_prefetch
from simulator.scenario import (
    PREFILL_CHUNK_TOKENS,
    WARM_UP_FRAC,
    Replay,
    Scenario,
    Start,
    Step,
    check_trace_fits,
)
from traces.catalog import trace_names
from traces.routing_trace import RoutingTrace

DENSE_TOKENS = (128, 64)  # prompt and decode tokens of a model without experts, which needs no trace


@dataclass(frozen=True)
class Question:
    """
    Will this model run well on this device?

    ram_cap_bytes: None takes all that the device leaves to a program; storage_read_bytes_per_s: None takes the
    profile's; context: keys in the cache when decode begins, None takes the trace's positions; prefetch_policy: None
    takes what the model's router allows; compute_factor: multiplies CPU rates and RAM bandwidth (a what-if).

    storage_latency_s, ram_bytes_per_s, gemv_flop_per_s: what-ifs, None takes the profile's; GEMM rate, kernel overheads
    and measured kernel times go along with gemv_flop_per_s.

    storage_limit_bytes_per_s: a limiter before the device, as `moeplan run` has; n_threads: None takes the profile's;
    warm_up_tokens: decode tokens that run and do not count, None for what `start` says; chunk_tokens: prompt tokens
    that run together at most; recorded: what `trace` was adapted from, None where it is as it was recorded.
    """

    model: ModelSpec
    profile: HardwareProfile
    trace: RoutingTrace | None = None
    ram_cap_bytes: int | None = None
    storage_read_bytes_per_s: float | None = None
    cache_policy: str = "lru"
    prefetch_policy: str | None = None
    layout: str = "bundle"
    context: int | None = None
    start: Start = "warm"
    lm_head_predictor: bool = False
    compute_factor: float = 1.0
    storage_limit_bytes_per_s: float | None = None
    n_threads: int | None = None
    warm_up_tokens: int | None = None
    chunk_tokens: int = PREFILL_CHUNK_TOKENS
    storage_latency_s: float | None = None
    ram_bytes_per_s: float | None = None
    gemv_flop_per_s: float | None = None
    recorded: RoutingTrace | None = None

    @property
    def prefetch(self) -> str:
        """The prefetch policy asked for, or the model's own."""
        return self.prefetch_policy or default_prefetch(self.model)

    @property
    def cap_bytes(self) -> int:
        """The RAM cap asked for, or what the device leaves."""
        return available_ram_bytes(self.profile) if self.ram_cap_bytes is None else self.ram_cap_bytes


@dataclass(frozen=True)
class Prepared:
    """A question with its memory plan and, where the model can run, its scenario at the profile's central rates."""

    question: Question
    plan: MemoryPlan
    layout: ExpertLayout
    steps: tuple[Step, ...]
    scenario: Scenario | None


def available_ram_bytes(profile: HardwareProfile) -> int:
    """RAM that the operating system and an app limit leave to one program."""
    left = profile.ram.size_bytes - profile.ram.os_reserved_bytes
    limit = profile.ram.app_memory_limit_bytes
    return int(left if limit is None else min(left, limit))


def question_replay(question: Question) -> Replay:
    """What the question replays. Raises InputError where trace and model do not fit."""
    if question.model.experts is None:
        if question.trace is not None:
            check_trace_fits(question.model, question.trace)
        return Replay(None, question.context, DENSE_TOKENS)
    if question.trace is None:
        advice = f"shipped: {', '.join(trace_names())}; or record one with moeplan run --record"
        raise InputError("--trace", f"must be given for the MoE model {question.model.name}", "nothing", advice)
    check_trace_fits(question.model, question.trace)
    return Replay(question.trace, question.context)


def prepare(question: Question, replay: Replay | None = None) -> Prepared:
    """
    The memory plan and the scenario. A Replay of an equal trace and context may be passed on.

    Prompts run in chunks of the question's chunk_tokens, or of half of that and so on where the activations of a
    chunk would not fit into the RAM cap.
    """
    check_prefetch(question.model, question.prefetch)
    _check_options(question)
    replay = question_replay(question) if replay is None else replay
    layout = expert_layout(question.model, question.layout)
    chunk_tokens = question.chunk_tokens
    while True:
        steps, extent = replay.steps(chunk_tokens), replay.extent(chunk_tokens)
        plan = plan_memory(
            question.model,
            layout,
            ram_cap_bytes=question.cap_bytes,
            free_storage_bytes=int(question.profile.storage.free_bytes),
            context=extent.longest_context,
            chunk_tokens=extent.largest_step,
            lm_head_predictor=question.lm_head_predictor,
        )
        if chunk_tokens == 1 or plan.reason != "ram_floor":
            break
        chunk_tokens //= 2
    _check_longest_context(question, extent.longest_context)
    if plan.verdict == "cannot_run":
        return Prepared(question, plan, layout, steps, None)
    scenario = Scenario(
        model=question.model,
        rates=question_rates(question),
        steps=steps,
        n_slots=plan.n_slots,
        cache_policy=question.cache_policy,
        prefetch_policy=question.prefetch,
        layout=layout,
        preloaded=plan.verdict == "resident" and question.start == "warm",
        lm_head_predictor=question.lm_head_predictor,
        n_warm_up_tokens=_warm_up_tokens(question, extent.n_decode),
    )
    return Prepared(question, plan, layout, steps, scenario)


def _warm_up_tokens(question: Question, n_decode: int) -> int:
    if question.warm_up_tokens is None:
        return int(WARM_UP_FRAC * n_decode) if question.start == "warm" else 0
    if not 0 <= question.warm_up_tokens < n_decode:
        raise InputError("warm-up", f"must be 0 to {n_decode - 1} of the decode tokens", question.warm_up_tokens)
    return question.warm_up_tokens


def question_rates(question: Question, rng: np.random.Generator | None = None) -> DeviceRates:
    """The device's central rates, or one Monte Carlo draw, with the question's what-ifs applied."""
    return with_what_ifs(question, device_rates(question, rng))


def device_rates(question: Question, rng: np.random.Generator | None = None) -> DeviceRates:
    """The device's central rates, or one Monte Carlo draw, without the question's what-ifs."""
    request_bytes = expert_layout(question.model, question.layout).request_bytes or None
    idle_s = storage_idle_s(question)
    if rng is None:
        return rates(question.profile, request_bytes=request_bytes, n_threads=question.n_threads, idle_s=idle_s)
    return sample_rates(question.profile, rng, request_bytes=request_bytes, n_threads=question.n_threads, idle_s=idle_s)


def _last_context(question: Question) -> int:
    """Keys that the last token sees, about."""
    if question.context is not None or question.trace is None:
        return question.context or 0
    return int(question.trace.position[-1])


def storage_idle_s(question: Question) -> float | None:
    """
    Seconds of compute between the reads of two layers of decode, where each layer misses something: how long the
    storage rests before a burst.  None where the profile's bursts do not depend on it.

    Left out: that it rests longer where some layers find all their experts.
    """
    bursts = question.profile.storage.bursts
    if bursts is None or bursts.rows[0].idle is None:
        return None
    return _layer_s(question.model, question.profile, question.n_threads, _last_context(question))


@lru_cache(maxsize=256)
def _layer_s(model: ModelSpec, profile: HardwareProfile, n_threads: int | None, context: int) -> float:
    return decode_layer_s(model, rates(profile, n_threads=n_threads), context)


def drawn_devices(question: Question, n_samples: int, seed: int) -> list[tuple[DeviceRates, float | None]]:
    """
    The device and so many Monte Carlo draws of it, each with a gate sparsity (None: the model's own), without what-ifs.

    The first is the central one.  The same seed gives the draws behind every interval of the question.
    """
    rng = np.random.default_rng(seed)
    draws = ((device_rates(question, rng), draw_gate_sparsity(question, rng)) for _ in range(n_samples))
    return [(device_rates(question), None), *draws]


def with_what_ifs(question: Question, drawn: DeviceRates) -> DeviceRates:
    """The central rates or a draw of them, changed as the question asks: as uncertain as the profile's own."""
    if question.storage_read_bytes_per_s is not None:
        factor = question.storage_read_bytes_per_s / question.profile.storage.sequential_read.value
        wanted = drawn.sequential_read_bytes_per_s * factor
        storage = drawn.storage.at_read_rate(wanted, drawn.sequential_read_bytes_per_s)
        drawn = replace(drawn, storage=storage, sequential_read_bytes_per_s=wanted)
    if question.compute_factor != 1.0:
        faster = drawn.faster_compute(question.compute_factor)
        drawn = replace(faster, ram_bytes_per_s=faster.ram_bytes_per_s * question.compute_factor)
    if question.ram_bytes_per_s is not None:
        factor = question.ram_bytes_per_s / question.profile.ram.gemv_bandwidth.value
        drawn = replace(drawn, ram_bytes_per_s=drawn.ram_bytes_per_s * factor)
    if question.gemv_flop_per_s is not None:
        drawn = drawn.faster_compute(question.gemv_flop_per_s / question.profile.cpu.gemv_flop_per_s.value)
    if question.storage_latency_s is not None:
        drawn = replace(drawn, storage=_with_latency(question, drawn.storage, question.storage_latency_s))
    if question.storage_limit_bytes_per_s is not None:
        request_bytes = expert_layout(question.model, question.layout).request_bytes
        drawn = drawn.limited(question.storage_limit_bytes_per_s, request_bytes)
    return drawn


def _with_latency(question: Question, storage: StorageModel, latency_s: float) -> StorageModel:
    """The storage with another central latency; a draw keeps its distance from the centre."""
    central_s = device_rates(question).storage.latency_s
    return replace(storage, latency_s=latency_s * (storage.latency_s / central_s if central_s else 1.0))


def draw_gate_sparsity(question: Question, rng: np.random.Generator) -> float | None:
    """One Monte Carlo draw of the model's gate sparsity (normal, clipped to 0..1), None for a dense model."""
    experts = question.model.experts
    if experts is None:
        return None
    sigma = experts.gate_sparsity.uncertainty / Z_80
    return float(np.clip(experts.gate_sparsity.value + sigma * rng.standard_normal(), 0.0, 1.0))


def check_storage_read(question: Question) -> None:
    """Raises InputError for a storage that would outrun the RAM which it is read into."""
    rate, profile = question.storage_read_bytes_per_s, question.profile
    faster = 1.0 if question.ram_bytes_per_s is None else question.ram_bytes_per_s / profile.ram.gemv_bandwidth.value
    peak = profile.ram.peak_bandwidth.value * max(1.0, faster)
    if rate is not None and rate > peak:
        must = f"must be at most the {format_rate(peak)} of the RAM which it is read into"
        raise InputError("--storage-read", must, format_rate(rate))


def _check_options(question: Question) -> None:
    if question.context is not None and not 0 <= question.context < question.model.context_length:
        raise InputError(
            "--context", f"must be 0 to {question.model.context_length - 1} for {question.model.name}", question.context
        )
    if question.ram_cap_bytes is not None and question.ram_cap_bytes <= 0:
        raise InputError("--ram-cap", "must be above zero", question.ram_cap_bytes)
    if question.lm_head_predictor and question.model.lm_head_predictor is None:
        raise InputError("--lm-head-predictor", "must be left out", f"{question.model.name}, which has none")


def _check_longest_context(question: Question, longest: int) -> None:
    model = question.model
    if longest > question.model.context_length:
        raise InputError(
            "--context",
            f"must leave room for the trace's tokens within the {model.context_length} of {model.name}",
            f"{longest} at the last token",
            "take a shorter trace or a smaller --context",
        )
