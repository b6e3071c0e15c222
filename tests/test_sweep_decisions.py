"""Histograms and sums for many scenarios at once are those of one scenario at a time."""

import numpy as np
import pytest
from conftest import device_rates, random_trace, storage_model, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles.rates import DeviceRates
from simulator.cache_passes import miss_counts as passes
from simulator.cache_passes.rows import rows_of_trace
from simulator.closed_form.decisions import counted_misses, miss_histograms
from simulator.closed_form.replay import LeanReplay
from simulator.closed_form.totals import ComputeWorks, CountedTokens, MissSums, StackedTimes, Variants, cost_table
from simulator.engine_fast import FastEngine
from simulator.expert_layout import ExpertLayout
from simulator.miss_costs import miss_costs
from simulator.scenario import Scenario, steps_of

MODEL = tiny_model(n_layers=4, n_experts=8, top_k=2)
N_LAYERS, TOP_K = 4, 2


def scenarios_of(policy: str, slots: list[int], prefetch: str = "pre-attention") -> tuple[list[Scenario], LeanReplay]:
    """A trace of 60 tokens with a prompt, replayed at several capacities; the last one holds all from the start."""
    replay = LeanReplay(random_trace(5, 60, N_LAYERS, 8, TOP_K, n_prefill=9), 100)
    common = {"cache_policy": policy, "prefetch_policy": prefetch, "n_warm_up_tokens": 7}
    made = [Scenario(MODEL, device_rates(), replay.steps(4), n_slots, **common) for n_slots in slots]  # type: ignore
    return [*made, Scenario(MODEL, device_rates(), replay.steps(4), 32, preloaded=True, **common)], replay  # type: ignore


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(passes.PASSES),
    st.lists(st.integers(0, 40), min_size=1, max_size=5),
    st.integers(1, 200),
    st.integers(0, 20),
)
def test_blocks_are_the_whole_cut_up(policy: str, capacities: list[int], block_rows: int, n_prefill: int) -> None:
    """A pass that stops after every few rows and goes on counts what a pass without stops does."""
    rows = rows_of_trace(random_trace(3, 40, 3, 8, 2, n_prefill), 7)
    whole, end = passes.miss_counts(rows, policy, capacities), 0
    for first, block in passes.miss_count_blocks(rows, policy, capacities, block_rows):
        assert first == end
        np.testing.assert_array_equal(block, whole[first : first + block_rows])
        end += len(block)
    assert end == rows.n_rows


@pytest.mark.parametrize("has_pass", [True, False])
@pytest.mark.parametrize("policy", ["lru", "belady", "s3-fifo"])
def test_histograms_count_what_the_cache_missed(policy: str, has_pass: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By layer kind, context and misses; the same for a policy that has no compiled pass."""
    if not has_pass:
        monkeypatch.setattr(passes, "PASSES", ())
    scenarios, replay = scenarios_of(policy, [3, 9, 14])
    tokens = CountedTokens(MODEL, scenarios[0].steps, scenarios[0].is_counted, lm_head_predictor=False)
    found = miss_histograms(scenarios, tokens, replay)
    for scenario, histograms in zip(scenarios, found, strict=True):
        (n_misses,) = counted_misses([scenario], replay)
        expected = np.zeros_like(histograms)
        for token, row in enumerate(n_misses):
            for layer, misses in enumerate(row):
                kind = next(i for i, kind in enumerate(tokens.kinds) if layer in tokens.moe_layers[kind])
                expected[kind, tokens.context_index[token], misses] += 1
        np.testing.assert_array_equal(histograms, expected)
        assert histograms.sum() == tokens.n_tokens * N_LAYERS


@pytest.mark.parametrize("prefetch", ["pre-attention", "none"])
def test_many_totals_are_the_engine_s(prefetch: str) -> None:
    """Every capacity, device and storage at once: seconds, waits and hidden pairs of the fast engine, one by one."""
    scenarios, replay = scenarios_of("lru", [3, 9, 14], prefetch)
    tokens = CountedTokens(MODEL, scenarios[0].steps, scenarios[0].is_counted, lm_head_predictor=False)
    histograms = miss_histograms(scenarios, tokens, replay)
    devices = [{}, {"ram_bytes_per_s": 3e8, "contended_compute_frac": 0.8, "contended_read_frac": 0.6}]
    storages = [storage_model(latency_s=latency_s) for latency_s in (1e-6, 3e-5, 1e-3)]
    rates = [[device_rates(storage, **device) for storage in storages] for device in devices]
    layout = scenarios[0].layout
    works = ComputeWorks(tokens, rates[0][0])
    tables = [[_table(one, layout, prefetch) for one in row] for row in rates]
    speeds = [[(one.contended_compute_frac, one.contended_read_frac) for one in row] for row in rates]
    times, places = [works.times(row[0]) for row in rates], np.array([0, 1])
    prefetched = np.full(3, prefetch == "pre-attention")
    found = Variants(StackedTimes.of(times), places, np.array(speeds), np.array(tables), prefetched).totals(histograms)
    assert found.step_s.shape == (4, 2, 3)
    for capacity, scenario in enumerate(scenarios):
        engine, is_counted = FastEngine(scenario), scenario.is_counted
        for device, row in enumerate(rates):
            sums = MissSums(times[device], dict(zip(tokens.kinds, histograms[capacity], strict=True)))
            for storage, one in enumerate(row):
                at, timeline = (capacity, device, storage), engine.timeline(one)
                assert found.step_s[at] == pytest.approx(timeline.step_s[is_counted].sum(), abs=1e-9)
                assert found.wait_s[at] == pytest.approx(timeline.op_s["wait"][is_counted].sum(), abs=1e-9)
                hidden = timeline.attention_s[is_counted] >= timeline.prefetch_s[is_counted]
                assert found.n_hidden[at] == (hidden & (timeline.n_misses[is_counted] > 0)).sum()
                alone = sums.totals(miss_costs(one, layout, TOP_K, prefetch), one, prefetch)
                assert (alone.step_s, alone.n_hidden) == (found.step_s[at], found.n_hidden[at])
    assert found.wait_s.max() > 0


def _table(rates: DeviceRates, layout: ExpertLayout, prefetch: str) -> np.ndarray:
    return cost_table(miss_costs(rates, layout, TOP_K, prefetch))


def test_steps_as_columns_are_a_sequence_of_steps() -> None:
    """By number, from the end, by slice and in a loop; extent and counted steps are those of a plain replay."""
    trace = random_trace(5, 30, N_LAYERS, 8, TOP_K, n_prefill=9)
    lean, plain = LeanReplay(trace, None), steps_of(trace, context=None, chunk_tokens=4)
    steps = lean.steps(4)
    assert len(steps) == len(plain) == 24
    for index in (0, 2, 5, -1):
        assert (steps[index].tokens, steps[index].context) == (plain[index].tokens, plain[index].context)
    assert [step.tokens for step in steps[3:9]] == [step.tokens for step in plain[3:9]]
    assert lean.extent(4) == (30, 4, 21)
    with pytest.raises(IndexError):
        steps[24]
    scenario = Scenario(MODEL, device_rates(), steps, 9, n_warm_up_tokens=3)
    np.testing.assert_array_equal(scenario.is_counted, np.arange(24) >= 6)  # 3 prompt chunks, 3 to warm up
