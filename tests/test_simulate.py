"""simulate: verdicts with their arithmetic, the interval, the bound, the cliffs, and what stands in the small print."""

from dataclasses import replace

import numpy as np
import pytest
from pydantic import BaseModel

from hardware_profiles.catalog import load_profile
from hardware_profiles.schema import HardwareProfile, Power
from hardware_profiles.schema_figures import Figure
from moeplan.errors import InputError
from reports.wording import cache_line, headline
from simulator.memory import lap_slots
from simulator.model.catalog import load_model_spec
from simulator.question import Question, available_ram_bytes, prepare
from simulator.result import Result
from simulator.simulate import simulate
from traces.routing_trace import RoutingTrace
from traces.synthetic import synthesize

GIB = 2**30


@pytest.fixture(scope="module")
def routing() -> RoutingTrace:
    """A local synthetic trace of the 4B's shape: 20 prompt and 60 decode tokens."""
    return synthesize(
        n_tokens=80, n_prefill=20, n_moe_layers=32, n_experts=32, top_k=4, zipf=0.8, repeat_frac=0.4, seed=1
    )


@pytest.fixture(scope="module")
def question(routing: RoutingTrace) -> Question:
    """The 4B on a Raspberry Pi 5 with NVMe at 1 GiB."""
    model, profile = load_model_spec("smallthinker-4b-a0.6b"), load_profile("raspberry-pi-5-nvme")
    return Question(model, profile, routing, ram_cap_bytes=GIB)


def with_free_storage(profile: HardwareProfile, n_bytes: float) -> HardwareProfile:
    """The device with so much free space."""
    free = profile.storage.free_space.model_copy(update={"value": n_bytes})
    storage = profile.storage.model_copy(update={"free_space": free})
    return profile.model_copy(update={"storage": storage})


def fast(question: Question) -> Result:
    """The fast engine with few draws: the numbers are the same, the interval is rough."""
    return simulate(question, engine="fast", n_samples=20)


def test_both_engines_give_one_answer(question: Question) -> None:
    """The whole result is equal but for the engine's name and rounding in the last digits."""
    one, other = simulate(question, engine="simpy", n_samples=20), fast(question)
    assert one.tokens_per_s is not None
    assert other.tokens_per_s is not None
    assert one.tokens_per_s.value == pytest.approx(other.tokens_per_s.value, rel=1e-9)
    assert one.cache == other.cache
    assert one.bound_by == other.bound_by
    for mine, its in zip(one.layers, other.layers, strict=True):
        assert mine.t_attention_s == pytest.approx(its.t_attention_s, rel=1e-9)
        assert mine.t_prefetch_s == pytest.approx(its.t_prefetch_s, rel=1e-9)
        assert mine.hidden_frac == its.hidden_frac


def test_the_same_seed_gives_the_same_bytes(question: Question) -> None:
    """Deterministic, interval included; another seed moves the interval only."""
    assert fast(question) == fast(question)
    other = simulate(question, engine="fast", n_samples=20, seed=7)
    assert other.tokens_per_s != fast(question).tokens_per_s
    assert other.cache == fast(question).cache


def test_too_little_free_storage_cannot_run_and_says_the_sum(question: Question) -> None:
    """2.119 GiB of Q4_0 file on 2 GB of free storage: reason storage_capacity, both numbers in the arithmetic."""
    result = fast(replace(question, profile=with_free_storage(question.profile, 2e9)))
    assert (result.verdict, result.reason) == ("cannot_run", "storage_capacity")
    assert "2.12 GiB" in result.arithmetic
    assert "1.86 GiB are free" in result.arithmetic
    assert result.tokens_per_s is None


def test_a_cap_below_the_dense_part_cannot_run_and_says_the_sum(question: Question) -> None:
    """A RAM cap below the floor is an answer: ram_floor with its parts."""
    result = fast(replace(question, ram_cap_bytes=200 * 2**20))
    assert (result.verdict, result.reason) == ("cannot_run", "ram_floor")
    assert "dense part 226 MiB" in result.arithmetic
    assert "the RAM cap is 200 MiB" in result.arithmetic


def test_resident_is_the_sum_of_its_parts_and_within_the_cap(question: Question) -> None:
    """Storage and resident stand side by side; nothing is left out of the sum."""
    memory = fast(question).memory
    parts = memory.dense_bytes + memory.kv_bytes + memory.cache_bytes + memory.buffer_bytes + memory.activation_bytes
    assert memory.resident_bytes == parts <= memory.ram_cap_bytes == GIB
    assert memory.storage_bytes == pytest.approx(2.119 * GIB, rel=1e-3)


def test_with_enough_ram_nothing_is_read(question: Question) -> None:
    """Resident: no misses, no bubbles, hidden_frac has nothing to count, the bound is not storage."""
    result = fast(replace(question, ram_cap_bytes=4 * GIB))
    assert result.verdict == "resident"
    assert result.cache is not None
    assert result.cache.misses == result.cache.bytes_read == 0
    assert all(layer.hidden_frac is None and layer.no_miss_frac == 1 for layer in result.layers)
    assert result.seconds_per_token["wait"] == 0
    assert result.bound_by in ("compute", "ram_bandwidth")


def test_zero_slots_read_a_lap_per_token(question: Question) -> None:
    """A cap that leaves no slot: bytes per token = n_layers x top_k x padded expert bytes."""
    floor = prepare(question).plan.memory
    cap = floor.dense_bytes + floor.kv_bytes + floor.activation_bytes + floor.buffer_bytes
    result = fast(replace(question, ram_cap_bytes=cap))
    assert result.cache is not None
    assert result.cache.slots == 0
    assert result.cache.bytes_read_per_token == 32 * 4 * 1_990_656
    assert result.cache.hit_rate == 0


def test_bytes_read_are_misses_times_the_expert(question: Question) -> None:
    """1,990,656 bytes are 486 pages of 4096: no padding."""
    cache = fast(replace(question, start="cold")).cache
    assert cache is not None
    assert cache.bytes_read == cache.misses * 1_990_656
    assert cache.hits + cache.misses == 60 * 32 * 4


def test_a_warm_start_leaves_the_first_quarter_out(question: Question) -> None:
    """Cold counts all 60 decode tokens and warm the last 45, so cold has a lower hit rate."""
    warm, cold = fast(question), fast(replace(question, start="cold"))
    assert warm.cache is not None
    assert cold.cache is not None
    assert cold.cache.hits + cold.cache.misses == 60 * 32 * 4
    assert warm.cache.hits + warm.cache.misses == 45 * 32 * 4
    assert cold.cache.hit_rate < warm.cache.hit_rate
    assert cold.first_decode_tokens_per_s == warm.first_decode_tokens_per_s
    assert warm.first_decode_tokens_per_s < warm.tokens_per_s.value  # type: ignore[operator, union-attr]


def test_the_first_token_waits_for_a_cold_cache_also_when_all_fits(question: Question) -> None:
    """One byte less than resident changes the time to first token by little: both fill the cache."""
    memory = fast(replace(question, ram_cap_bytes=4 * GIB)).memory
    whole = memory.dense_bytes + memory.kv_bytes + memory.activation_bytes + memory.all_experts_bytes
    resident = fast(replace(question, ram_cap_bytes=whole))
    streams = fast(replace(question, ram_cap_bytes=whole - 1))
    assert (resident.verdict, streams.verdict) == ("resident", "streams")
    assert resident.ttft_s is not None
    assert streams.ttft_s is not None
    assert resident.ttft_s.value == pytest.approx(streams.ttft_s.value, rel=1e-9)


def test_a_trailing_prompt_does_not_empty_the_count(question: Question, routing: RoutingTrace) -> None:
    """A request that is prefill only at the end of a trace leaves the decode tokens before it counted."""
    phase = np.r_[routing.phase[:40], np.zeros(40, np.uint8)]
    request = np.r_[np.zeros(40, np.int32), np.ones(40, np.int32)]
    position = np.r_[np.arange(40), np.arange(40)].astype(np.int32)
    trace = replace(routing, phase=phase, request_id=request, position=position)
    result = fast(replace(question, trace=trace))
    assert result.cache is not None
    assert result.cache.hits + result.cache.misses == 15 * 32 * 4


def test_a_small_cap_cuts_smaller_prefill_chunks_for_activations_alone(question: Question) -> None:
    """A chunk halves until its activations fit; its experts need not fit at once, they pass through in waves."""
    floor = prepare(question).plan.memory
    cap = floor.dense_bytes + floor.kv_bytes + floor.activation_bytes + floor.buffer_bytes + 2 * 1_990_656
    large = prepare(replace(question, ram_cap_bytes=cap))
    assert max(step.n_tokens for step in large.steps) == 20
    assert max(len(row) for step in large.steps for row in step.rows) > large.plan.n_slots + 4
    tight = prepare(replace(question, ram_cap_bytes=cap - 2 * 1_990_656 - floor.activation_bytes // 4))
    assert max(step.n_tokens for step in tight.steps) < 20
    assert sum(step.has_logits for step in tight.steps) == 60 + 1


def test_without_prefetch_the_whole_read_is_the_bubble(question: Question) -> None:
    """On demand nothing is hidden, however short the read is, and the small print says so."""
    result = fast(replace(question, prefetch_policy="none", storage_read_bytes_per_s=7e9))
    assert result.layers[0].bubble_s == pytest.approx(result.layers[0].t_prefetch_s)
    assert "on demand" in result.small_print["prefetch"]


def without_uncertainty(profile: HardwareProfile) -> HardwareProfile:
    """The same figures, all exact."""

    def exact(part: object) -> object:
        if isinstance(part, Figure):
            return part.model_copy(update={"uncertainty": 0.0})
        if isinstance(part, BaseModel):
            return part.model_copy(update={name: exact(getattr(part, name)) for name in type(part).model_fields})
        return part

    return exact(profile)  # type: ignore[return-value]


def test_the_gate_sparsity_widens_the_interval(question: Question) -> None:
    """With everything in RAM the expert FFN counts, and with it how sure its sparsity is."""
    spec = question.model
    assert spec.experts is not None
    sure = spec.experts.gate_sparsity.model_copy(update={"uncertainty": 0.0})
    exact = spec.model_copy(update={"experts": spec.experts.model_copy(update={"gate_sparsity": sure})})
    resident = replace(question, ram_cap_bytes=4 * GIB, profile=without_uncertainty(question.profile))
    narrow = simulate(replace(resident, model=exact), engine="fast").tokens_per_s
    wide = simulate(resident, engine="fast").tokens_per_s
    assert narrow is not None
    assert wide is not None
    assert narrow.high - narrow.low < 1e-9 < wide.high - wide.low


def test_energy_is_power_times_time(question: Question) -> None:
    """Idle power all the time, compute power outside the waits, storage power while it reads."""

    def watt(value: float) -> dict:
        return {"value": f"{value} W", "kind": "assumed", "source": "a round number", "uncertainty": 0.1}

    power = Power(idle=watt(2), compute=watt(4), storage=watt(1))  # type: ignore[arg-type]
    result = fast(replace(question, profile=question.profile.model_copy(update={"power": power})))
    token_s = sum(result.seconds_per_token.values())
    reading_s = sum(layer.t_prefetch_s for layer in result.layers)
    expected = 2 * token_s + 4 * (token_s - result.seconds_per_token["wait"]) + reading_s
    assert result.energy_j_per_token == pytest.approx(expected)
    assert fast(question).energy_j_per_token is None


@pytest.mark.parametrize(
    ("policy", "slots", "words"),
    [
        ("lru", 124, "Below the cliff"),
        ("lru", 130, "Near the cliff"),
        ("lru-per-layer", 127, "Below the cliff"),
        ("lru-per-layer", 130, "Near the cliff"),
    ],
)
def test_the_cliff_is_named(question: Question, policy: str, slots: int, words: str) -> None:
    """One lap of the 4B is 128 experts; at 124 = 31 x 4 a global LRU has no hits at all."""
    memory = prepare(question).plan.memory
    fixed = memory.dense_bytes + memory.kv_bytes + memory.activation_bytes + memory.buffer_bytes
    cap = fixed + slots * 1_990_656
    result = fast(replace(question, ram_cap_bytes=cap, cache_policy=policy))
    assert result.cache is not None
    assert result.cache.slots == slots
    assert any(words in warning for warning in result.warnings)
    if slots <= 124:
        assert result.cache.hits == 0


@pytest.mark.parametrize("policy", ["lfu", "s3-fifo", "belady"])
def test_a_cliff_of_lru_is_not_said_of_others(question: Question, policy: str) -> None:
    """Policies that evict otherwise have no cliff at a lap, and evict no row of their own."""
    memory = prepare(question).plan.memory
    cap = memory.dense_bytes + memory.kv_bytes + memory.activation_bytes + memory.buffer_bytes + 124 * 1_990_656
    assert not any("cliff" in text for text in fast(replace(question, ram_cap_bytes=cap, cache_policy=policy)).warnings)


def test_a_bound_is_called_one(question: Question) -> None:
    """Belady's policy is told the future: the result, its warnings, its small print and its headline say so."""
    result = fast(replace(question, cache_policy="belady"))
    assert result.cache is not None
    assert result.cache.is_upper_bound
    assert any("belady is told the future" in warning for warning in result.warnings)
    assert "a bound that no runtime reaches" in result.small_print["cache"]
    assert headline(result) == "Upper bound"
    assert cache_line(result).startswith("belady (a bound: told the future), ")
    real = fast(question)
    assert real.cache is not None
    assert not real.cache.is_upper_bound
    assert not any("future" in warning for warning in real.warnings)


def test_far_from_the_cliff_nothing_is_said(question: Question) -> None:
    """A warning that is always there warns of nothing."""
    assert lap_slots(question.model) == 128
    assert not any("cliff" in warning for warning in fast(question).warnings)


def test_a_stand_in_is_called_a_stand_in(question: Question) -> None:
    """Routing of another model: in the warnings and in the small print."""
    result = fast(question)
    assert any("stand-in" in warning for warning in result.warnings)
    assert any("twice the stand-in's misses" in warning for warning in result.warnings)
    assert "stand-in for smallthinker-4b-a0.6b" in result.small_print["routing"]


def test_the_interval_widens_with_the_uncertainty(question: Question) -> None:
    """Twice the uncertainty of the storage gives a wider interval around the same value."""
    storage = question.profile.storage
    wide = storage.sequential_read.model_copy(update={"uncertainty": 1.0})
    unsure = question.profile.model_copy(update={"storage": storage.model_copy(update={"sequential_read": wide})})
    one = simulate(question, engine="fast").tokens_per_s
    other = simulate(replace(question, profile=unsure), engine="fast").tokens_per_s
    assert one is not None
    assert other is not None
    assert other.value == one.value
    assert other.high - other.low > 1.3 * (one.high - one.low)
    assert one.low < one.value < one.high


def test_a_storage_bound_is_called_so(question: Question) -> None:
    """Slow storage bounds by bandwidth; a huge latency by latency."""
    assert fast(question).bound_by == "storage_bandwidth"
    latency = question.profile.storage.random_4k_read.model_copy(update={"value": 4096 / 0.2})
    storage = question.profile.storage.model_copy(update={"table": None, "latency": None, "random_4k_read": latency})
    slow = question.profile.model_copy(update={"storage": storage})
    assert fast(replace(question, profile=slow)).bound_by == "storage_latency"


def test_context_makes_attention_slower_and_the_cache_smaller(question: Question) -> None:
    """KV bytes come off the cache, and attention reads them."""
    short, long = fast(replace(question, context=0)), fast(replace(question, context=8000))
    assert short.cache is not None
    assert long.cache is not None
    assert long.memory.kv_bytes == 32_768 * 8_060
    assert long.cache.slots < short.cache.slots
    assert long.layers[0].t_attention_s > short.layers[0].t_attention_s


def test_a_cap_above_what_the_device_leaves_is_said_once(question: Question) -> None:
    """Whether the model takes less and fits, or cannot run with that cap either; never as a warning too."""
    too_much = available_ram_bytes(question.profile) + GIB
    result = fast(replace(question, ram_cap_bytes=too_much))
    assert "more than the 7.20 GiB that this device leaves to a program; the model takes" in result.larger_cap
    assert (result.beyond_device, [text for text in result.warnings if "RAM cap" in text]) == ("", [])
    assert not fast(replace(question, ram_cap_bytes=too_much - 2 * GIB)).larger_cap
    ram = question.profile.ram.model_copy(update={"size": GIB})
    little = replace(question, profile=question.profile.model_copy(update={"ram": ram}), ram_cap_bytes=220 * 2**20)
    result = fast(little)
    assert (result.verdict, result.reason) == ("cannot_run", "ram_floor")
    assert result.larger_cap.endswith("that this device leaves to a program.")


def test_a_dense_model_needs_no_trace() -> None:
    """Qwen3-0.6B: resident, no cache lines, bounded by RAM or compute."""
    dense = Question(load_model_spec("qwen3-0.6b"), load_profile("raspberry-pi-5-nvme"))
    result = simulate(dense, n_samples=20)
    assert result.verdict == "resident"
    assert result.layers == ()
    assert result.tokens_per_s is not None
    assert result.tokens_per_s.value > 1


def test_refusals(question: Question, routing: RoutingTrace) -> None:
    """A trace of another shape, a prefetch that the router cannot serve, a context beyond the model's."""
    other = load_model_spec("smallthinker-21b-a3b")
    with pytest.raises(InputError, match=r"must have the routing shape of smallthinker-21b-a3b: 52 MoE layers x 64"):
        fast(replace(question, model=other))
    qwen = replace(question, model=load_model_spec("qwen3-30b-a3b"), prefetch_policy="pre-attention")
    with pytest.raises(InputError, match="router of qwen3-30b-a3b runs after attention"):
        fast(qwen)
    with pytest.raises(InputError, match=r"--context: must be 0 to 32767"):
        fast(replace(question, context=40_000))
    with pytest.raises(InputError, match=r"--context: must leave room for the trace's tokens within the 32768"):
        fast(replace(question, context=32_767))
    prefill_only = routing.select(np.arange(20))
    with pytest.raises(InputError, match="must have decode tokens, got prefill only"):
        fast(replace(question, trace=prefill_only))


def test_the_lm_head_predictor_saves_time_and_is_called_lossy(question: Question) -> None:
    """Fewer LM-head rows are read; the small print says what that costs."""
    with_it = fast(replace(question, lm_head_predictor=True))
    assert with_it.seconds_per_token["lm_head"] < fast(question).seconds_per_token["lm_head"]
    assert "lossy" in with_it.small_print["lm_head"]
