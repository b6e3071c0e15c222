"""The two engines: hand-computed cases, closed forms, equality of one with the other, and metamorphic properties."""

from dataclasses import replace

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles.rates import contended_frac
from simulator import costs
from simulator.engine_fast import simulate_fast
from simulator.engine_simpy import simulate_simpy, simulate_with_records
from simulator.expert_layout import ExpertLayout
from simulator.model.size import expert_bytes
from simulator.policies import OFFLINE_POLICIES, POLICIES
from simulator.scenario import Scenario, steps_of
from tests.conftest import device_rates, make_trace, random_trace, storage_model, tiny_model
from tests.random_scenarios import RandomSweep, assert_equal, check_fast_engine, check_sweep, scenarios, sweeps
from traces.op_record import records_frame


def scenario_of(seed: int = 0, n_tokens: int = 24, n_prefill: int = 6, **changes: object) -> Scenario:
    """A small streaming scenario: 3 layers x 8 experts, top-2."""
    model = tiny_model()
    fields: dict = {
        "model": model,
        "rates": device_rates(),
        "steps": steps_of(random_trace(seed, n_tokens, 3, 8, 2, n_prefill), context=None),
        "n_slots": 10,
        "layout": ExpertLayout("bundle", 1, 8192),
    }
    return Scenario(**(fields | changes))


@settings(max_examples=300, deadline=None)
@given(scenario=scenarios(), compiled=st.booleans())
def test_the_engines_agree(scenario: Scenario, compiled: bool) -> None:
    """Event by event or in closed form: the same times to 1e-9 s and the same counts."""
    check_fast_engine(scenario, compiled)


@settings(max_examples=60, deadline=None)
@given(sweep=sweeps())
def test_a_sweep_agrees_with_the_simpy_engine(sweep: RandomSweep) -> None:
    """Every row of a sweep: seconds a token and waits to 1e-9 s, the same hits, misses and bytes."""
    check_sweep(sweep)


@pytest.mark.parametrize(("n_bytes", "n_hidden", "bubble_ms"), [(2_000_000, 5, 1.2), (2_250_000, 4, 1.6)])
def test_the_worked_example(n_bytes: int, n_hidden: int, bubble_ms: float) -> None:
    """
    5 GB/s, no latency, attention 2 ms, 8 missing experts: of 2.0 MB each 5 are hidden and the bubble is 1.2 ms;
    at true Q4_0 (18 bytes per 32 weights, 2.25 MB) 4 are hidden and the bubble is 1.6 ms.
    """
    model = tiny_model(n_layers=1, n_experts=8, top_k=8)
    trace = make_trace([[list(range(8))]], n_experts=8)
    storage = storage_model(latency_s=0.0, bus_s_per_byte=1 / 5e9, queue_depth=8)
    rates = device_rates(
        storage, ram_bytes_per_s=1e15, gemv_flop_per_s=1e18, op_overhead_s=2e-3 / costs.ATTENTION_KERNELS
    )
    scenario = Scenario(
        model=model,
        rates=rates,
        steps=steps_of(trace, context=None),
        n_slots=0,
        layout=ExpertLayout("bundle", 1, n_bytes),
    )
    for timeline in (simulate_simpy(scenario), simulate_fast(scenario)):
        attention_s = timeline.attention_s[0, 0]
        assert attention_s == pytest.approx(2e-3, rel=1e-6)
        assert int(attention_s / storage.burst_s(1, n_bytes) + 1e-6) == n_hidden
        assert timeline.bubble_s[0, 0] == pytest.approx(bubble_ms * 1e-3, rel=1e-5)


def test_a_layer_by_hand() -> None:
    """
    One layer, one token, two missing experts of 8192 bytes, half overlap (e = 0.5, both at 1 / 1.5 of their speed).

    Reads alone: 100 us + 2 x 8.192 us = 116.384 us, shorter than the attention A; so reads take 1.5 times that,
    attention A + 0.5 x 116.384 us, and there is no bubble.
    """
    scenario = scenario_of(
        model=tiny_model(n_layers=1),
        steps=steps_of(make_trace([[[0, 1]]], 8), context=None),
        rates=device_rates(
            contended_compute_frac=contended_frac(0.5), contended_read_frac=contended_frac(0.5), op_overhead_s=1e-4
        ),
    )
    timeline = simulate_simpy(scenario)
    attention = costs.seconds(costs.attention_work(scenario.model, 0, 1), scenario.rates)
    assert attention > 116.384e-6
    assert timeline.prefetch_s[0, 0] == pytest.approx(1.5 * 116.384e-6)
    assert timeline.attention_s[0, 0] == pytest.approx(attention + 0.5 * 116.384e-6)
    assert timeline.bubble_s[0, 0] == 0


def test_everything_resident_reads_nothing_and_runs_at_the_compute_bound() -> None:
    """Preloaded experts: no read, no bubble, and a step takes the sum of its compute ops."""
    scenario = scenario_of(n_slots=24, preloaded=True)
    timeline = simulate_simpy(scenario)
    assert timeline.n_misses.sum() == 0
    assert timeline.op_s["wait"].sum() == 0
    model, rates = scenario.model, scenario.rates
    decode = scenario.steps[-1]
    bound = costs.seconds(costs.embedding_work(model), rates) + costs.seconds(costs.lm_head_work(model, False), rates)
    for layer in range(3):
        bound += costs.seconds(costs.attention_work(model, layer, decode.context), rates)
        bound += costs.seconds(costs.router_work(model), rates) + costs.seconds(costs.expert_ffn_work(model, 2), rates)
    assert timeline.step_s[-1] == pytest.approx(bound, rel=1e-12)


def test_without_a_cache_every_token_reads_its_whole_lap() -> None:
    """Zero slots: bytes per token = n_layers x top_k x expert bytes, by the records themselves."""
    scenario = scenario_of(n_slots=0, n_prefill=0)
    _, records = simulate_with_records(scenario)
    frame = records_frame(records)
    read = frame[frame.op == "read"].groupby("token").n_bytes.sum()
    assert (read == 3 * 2 * 8192).all()
    assert len(read) == 24


def test_records_tell_the_timeline() -> None:
    """Sums over OpRecords equal the timeline, ops of a token do not overlap but for reads, bytes = misses x size."""
    scenario = scenario_of()
    timeline, records = simulate_with_records(scenario)
    frame = records_frame(records)
    frame["seconds"] = frame.end_s - frame.start_s
    sums = frame.groupby("op", observed=True).seconds.sum()
    for op in ("attention", "expert_ffn", "router", "wait", "lm_head"):
        assert sums.get(op, 0.0) == pytest.approx(timeline.op_s[op].sum(), abs=1e-12)
    compute = frame[frame.op != "read"].sort_values("start_s", kind="stable")
    assert (compute.start_s.to_numpy()[1:] >= compute.end_s.to_numpy()[:-1] - 1e-12).all()
    reads = frame[frame.op == "read"]
    assert (reads.n_bytes == reads.n_misses * 8192).all()
    assert reads.n_misses.sum() == timeline.n_misses.sum()
    assert reads.n_hits.sum() == (timeline.n_used - timeline.n_misses).sum()
    assert len(reads) == timeline.n_misses.size


@settings(max_examples=60, deadline=None)
@given(scenario=scenarios())
def test_twice_the_device_takes_half_the_time(scenario: Scenario) -> None:
    """Doubling every rate and halving every latency and overhead halves every time."""
    rates, storage = scenario.rates, scenario.rates.storage
    twice = replace(
        rates,
        gemv_flop_per_s=2 * rates.gemv_flop_per_s,
        gemm_flop_per_s=2 * rates.gemm_flop_per_s,
        ram_bytes_per_s=2 * rates.ram_bytes_per_s,
        op_overhead_s=rates.op_overhead_s / 2,
        sequential_read_bytes_per_s=2 * rates.sequential_read_bytes_per_s,
        storage=replace(
            storage,
            latency_s=storage.latency_s / 2,
            lane_s_per_byte=storage.lane_s_per_byte / 2,
            request_overhead_s=storage.request_overhead_s / 2,
            bus_s_per_byte=storage.bus_s_per_byte / 2,
            limit_bytes_per_s=storage.limit_bytes_per_s and 2 * storage.limit_bytes_per_s,
            limit_lag_s=storage.limit_lag_s / 2,
        ),
        kernel_factor=rates.kernel_factor / 2,
    )
    slow, fast = simulate_simpy(scenario), simulate_simpy(replace(scenario, rates=twice))
    np.testing.assert_allclose(fast.step_s * 2, slow.step_s, rtol=1e-9)
    np.testing.assert_allclose(fast.bubble_s * 2, slow.bubble_s, rtol=1e-9, atol=1e-15)


PLAIN_SCENARIOS = scenarios().map(
    lambda scenario: replace(scenario, cache_policy="lru", rates=replace(scenario.rates, kernels=None))
)


@settings(max_examples=100, deadline=None)
@given(scenario=PLAIN_SCENARIOS, factor=st.floats(1, 20), more_slots=st.integers(0, 8))
def test_more_is_never_slower(scenario: Scenario, factor: float, more_slots: int) -> None:
    """
    A faster SSD, a larger LRU cache and prefetch beside attention never give fewer tokens/s; the last where compute
    and reads together get at least as much done as one of them alone (their speeds sum to 1 or more).
    """
    before = simulate_fast(scenario).step_s.sum() * (1 + 1e-12)
    storage = scenario.rates.storage.at_read_rate(factor * 1e9, 1e9)
    if storage.limit_bytes_per_s is None:  # a device that overtakes its limiter sleeps, and wakes late
        assert simulate_fast(replace(scenario, rates=replace(scenario.rates, storage=storage))).step_s.sum() <= before
    assert simulate_fast(replace(scenario, n_slots=scenario.n_slots + more_slots)).step_s.sum() <= before
    if scenario.rates.contended_compute_frac + scenario.rates.contended_read_frac < 1:
        return
    on_demand = simulate_fast(replace(scenario, prefetch_policy="none")).step_s.sum()
    beside = simulate_fast(replace(scenario, prefetch_policy="pre-attention")).step_s.sum()
    assert beside <= on_demand * (1 + 1e-12)


def test_attention_time_grows_with_the_context_up_to_the_window() -> None:
    """A full layer reads ever more keys, a sliding one no more than its window."""
    model, rates = tiny_model(n_layers=4), device_rates()
    full = [costs.seconds(costs.attention_work(model, 0, c), rates) for c in (100, 4096, 8192)]
    sliding = [costs.seconds(costs.attention_work(model, 1, c), rates) for c in (100, 4096, 8192)]
    assert full[0] < full[1] < full[2]
    assert sliding[0] < sliding[1] == sliding[2]


def test_a_chunk_reads_the_union_of_its_experts_once() -> None:
    """Prefill tokens that share experts miss them once a chunk."""
    trace = make_trace([[[0, 1]], [[1, 2]], [[0, 2]], [[0, 3]]], n_experts=8, n_prefill=3)
    scenario = scenario_of(model=tiny_model(n_layers=1), steps=steps_of(trace, context=None))
    timeline = simulate_simpy(scenario)
    assert timeline.n_misses[:, 0].tolist() == [3, 1]
    assert timeline.n_used[:, 0].tolist() == [3, 2]


def test_relu_sparsity_scales_the_bytes_of_up_and_down() -> None:
    """bytes = (1/3 + 2/3 (1 - s)) x expert bytes; with s = 0.6 that is 0.6 of them."""
    sparsity = tiny_model().experts.gate_sparsity.model_copy(update={"value": 0.6})  # type: ignore[union-attr]
    model = tiny_model(experts={"gate_sparsity": sparsity})
    work = costs.expert_ffn_work(model, 2)
    assert work.n_bytes == pytest.approx(2 * 0.6 * expert_bytes(model))


@pytest.mark.parametrize("policy", [*POLICIES, *OFFLINE_POLICIES])
def test_both_engines_agree_for_every_policy(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the fast engine takes its decisions in a compiled pass."""
    scenario = scenario_of(seed=3, n_tokens=60, cache_policy=policy)
    expected = simulate_simpy(scenario)
    assert_equal(simulate_fast(scenario), expected)
    monkeypatch.setattr("simulator.engine_fast.MANY_ACCESSES", 0)
    assert_equal(simulate_fast(scenario), expected)


def test_one_read_a_layer_costs_seven_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Router, attention, FFN; lane, bus, arrival; and one that is moved when a speed changes: what the engine's speed
    hangs on.  A token has two more, for embedding and LM head.
    """
    n_events, schedule = 0, simpy.Environment.schedule

    def count(*arguments: object, **named: object) -> None:
        nonlocal n_events
        n_events += 1
        schedule(*arguments, **named)  # type: ignore[arg-type]

    model, n_tokens = tiny_model(n_layers=5, top_k=1), 40
    scenario = scenario_of(
        model=model,
        steps=steps_of(random_trace(0, n_tokens, 5, 8, 1), context=None),
        rates=device_rates(contended_compute_frac=0.7, contended_read_frac=0.7),
        n_slots=0,
    )
    monkeypatch.setattr(simpy.Environment, "schedule", count)
    timeline = simulate_simpy(scenario)
    assert (timeline.n_misses == 1).all()
    assert n_events <= n_tokens * (5 * 7 + 2) + 3  # and a process that starts, ends and stops the clock


def test_a_timeline_in_blocks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast engine times a long trace some steps at a time: bit for bit what it says of all at once."""
    scenario = scenario_of(n_tokens=40, n_prefill=9)
    whole = simulate_fast(scenario)
    monkeypatch.setattr("simulator.engine_fast.BLOCK_STEPS", 7)
    blocks = simulate_fast(scenario)
    for name in ("step_s", "attention_s", "prefetch_s", "bubble_s", "read_busy_s"):
        assert (getattr(whole, name) == getattr(blocks, name)).all()
    assert all((whole.op_s[op] == blocks.op_s[op]).all() for op in whole.op_s)
