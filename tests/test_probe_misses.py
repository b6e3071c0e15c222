"""What reads cost beside their own time: rows with known misses, parts of a layer, the rows of the table."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reference_runtime.op_clock import OpClock, RowReads
from reference_runtime.probe.in_situ import ContextKey, OpKey
from reference_runtime.probe.miss_rows import WAKE_US, miss_times
from reference_runtime.probe.plan import FEWEST_SECONDS, make_plan
from reference_runtime.probe.products import RowKey
from reference_runtime.probe.rows import product_times, table_uncertainty
from reference_runtime.probe.sampling import Samples
from reference_runtime.probe.with_reads import AT_LEAST_S, MISSES, PARTS, ReadsKey, RowsWithMisses, layer_parts, takes
from simulator import kernel_calls
from simulator.policies import make_policy


@pytest.mark.parametrize(("n_layers", "n_slots"), [(4, 64), (1, 12), (8, 101)])
def test_rows_have_just_the_misses_that_are_asked_for(n_layers: int, n_slots: int) -> None:
    """In the simulator's own least-recently-used cache, whatever the order of the numbers of misses."""
    top_k = 4
    router, cache = RowsWithMisses(n_layers, n_slots, top_k), make_policy("lru", n_slots, n_layers)
    for expert in range(router.n_experts):
        for layer in range(n_layers):
            cache.access_row(layer, [expert])
    for n_misses in (0, 1, 4, 2, 0, 4, 4, 4, 1, 2, 2, 0, 1) * 4:
        for layer in range(n_layers):
            row = router.row(layer, n_misses)
            assert len(set(row)) == top_k
            assert len(cache.access_row(layer, row)[0]) == n_misses


def test_parts_of_a_layer_add_up() -> None:
    """Operations from mark to mark; a wait ends some time after the last arrival; other counts are out."""
    clock = OpClock()
    clock.marks = [
        ("start", 1, 0.0), ("embedding", -1, 1.0),
        ("router", 0, 2.0), ("attention", 0, 5.0), ("wait", 0, 9.0), ("expert_ffn", 0, 10.0),
        ("router", 1, 12.0), ("attention", 1, 15.0), ("wait", 1, 15.5), ("expert_ffn", 1, 17.0), ("lm_head", -1, 20.0),
    ]  # fmt: skip
    clock.reads = [RowReads(0, 2, 2, 8192, 2.5, 8.5), RowReads(1, 4, 0, 0, 12.5, 12.5)]
    first, second = (1.0, 3.0, 1.0, 6.0, 0.5), (2.0, 3.0, 1.5, 0.0, 0.5)
    assert layer_parts(clock, 2, 0) == {part: [seconds] for part, seconds in zip(PARTS, first, strict=True)}
    assert layer_parts(clock, 0, 0) == {part: [seconds] for part, seconds in zip(PARTS, second, strict=True)}
    assert layer_parts(clock, 2, 1) == {part: [] for part in PARTS}


COMPUTE, READ = 0.9, 0.8  # speeds beside each other
STILL = {"router": 50e-6, "attention": 400e-6, "expert_ffn": 300e-6, "span": 0.0, "hand_over": 20e-6}


def parts_of(n_misses: int, is_prefetch: bool, at_least_s: float) -> dict[str, float]:
    """
    A machine by hand: reads of 0.5 ms an expert, 0.04 ms more beside attention; issuing takes 15 us an expert; each
    millisecond of reads makes attention 30 us slower, router and FFN 10 and 50 us.
    """
    own_span = max(at_least_s, 0.5e-3 * n_misses + (0.04e-3 * n_misses if is_prefetch else 0.0))
    attention, span = STILL["attention"] + 0.03 * own_span, own_span
    if is_prefetch:  # both while the shorter of them runs: the longer one is the reads
        attention = (attention + 15e-6 * n_misses) / COMPUTE
        span = own_span + (1 - READ) * attention
    router, expert_ffn = STILL["router"] + 0.01 * own_span, STILL["expert_ffn"] + 0.05 * own_span
    return {"router": router, "attention": attention, "expert_ffn": expert_ffn, "span": span, "hand_over": 25e-6}


def samples_of(name: str, slow: tuple[float, ...]) -> Samples:
    """A round for each factor of the machine's slowness."""
    samples = Samples()
    for factor in slow:
        for n_misses, at_least_s in ((0, 0.0), *takes(4)):
            for is_prefetch in (True, False) if n_misses else (True,):
                parts = parts_of(n_misses, is_prefetch, at_least_s) if n_misses else STILL
                for part, seconds in parts.items():
                    samples.add(ReadsKey(name, part, n_misses, is_prefetch, 1, at_least_s), factor * seconds)
    return samples


def test_what_reads_cost_comes_out_of_a_known_machine() -> None:
    """Attention beside reads is the sum of issue and slowness, whatever the misses; each is counted once."""
    plan = make_plan(Path(), FEWEST_SECONDS, [1])
    plan = replace(plan, shapes=plan.shapes[:1])
    found = miss_times(plan, samples_of(plan.shapes[0].name, (1.0,)), COMPUTE, READ)
    assert {(key.size, key.threads) for key in found} == {(20480, 1)}
    times = {(key.op, key.count): seconds for key, seconds in found.items()}
    for n in MISSES:
        assert times["delay", n] == pytest.approx(0.04e-3 * n)
    for us in (one for one in WAKE_US if 1200 < one < 18_000):  # spans that were measured
        for n in (2, 4):
            slower_s = times["issue", n] + times["wake_attention", us]
            assert slower_s == pytest.approx(15e-6 * n + 0.03 * us * 1e-6, rel=0.02), (n, us)
        assert times["wake", us] == pytest.approx((0.01 + 0.05) * us * 1e-6 + 5e-6, rel=0.02)
        assert times["wake_on_demand", us] == pytest.approx((0.01 + 0.05 + 0.03) * us * 1e-6 + 5e-6, rel=0.02)
    assert times["wake", WAKE_US[-1]] == pytest.approx(0.06 * 18e-3 + 5e-6)  # beyond what was measured: its end


def test_differences_are_taken_within_a_round() -> None:
    """On a machine that is twice as slow in a second round everything costs 1.5 times as much."""
    plan = make_plan(Path(), FEWEST_SECONDS, [1])
    plan, name = replace(plan, shapes=plan.shapes[:1]), plan.shapes[0].name
    once, twice = (miss_times(plan, samples_of(name, slow), COMPUTE, READ) for slow in ((1.0,), (1.0, 2.0)))
    for key, seconds in once.items():
        if not key.op.startswith("wake"):
            assert twice[key] == pytest.approx(1.5 * seconds), key


def test_longer_reads_never_cost_less() -> None:
    """Where a longer wait was measured to cost less, both have what they cost in the mean."""
    plan = make_plan(Path(), FEWEST_SECONDS, [1])
    plan, samples = replace(plan, shapes=plan.shapes[:1]), samples_of(plan.shapes[0].name, (1.0,))
    key = ReadsKey(plan.shapes[0].name, "expert_ffn", 2, True, 1, AT_LEAST_S[-1])
    samples.values[key] = [STILL["expert_ffn"]]
    found = miss_times(plan, samples, COMPUTE, READ)
    costs = [seconds for key, seconds in sorted(found.items(), key=lambda row: row[0].count) if key.op == "wake"]
    assert costs == sorted(costs)
    assert costs[-1] == costs[-2] > 0.01 * AT_LEAST_S[-1]


def test_more_misses_never_cost_less() -> None:
    """Where two misses were measured to be delayed less than one, both have what they have in the mean."""
    plan = make_plan(Path(), FEWEST_SECONDS, [1])
    plan, samples = replace(plan, shapes=plan.shapes[:1]), samples_of(plan.shapes[0].name, (1.0,))
    key = ReadsKey(plan.shapes[0].name, "span", 2, False, 1)
    samples.values[key][0] += 0.07e-3  # of 0.08 ms that two are delayed
    found = miss_times(plan, samples, COMPUTE, READ)
    times = {(key.op, key.count): seconds for key, seconds in found.items()}
    assert times["delay", 1] == times["delay", 2] == pytest.approx((0.04e-3 + 0.01e-3) / 2)
    assert times["delay", 4] == pytest.approx(0.16e-3)
    assert times["issue", 1] <= times["issue", 2] <= times["issue", 4]


def test_a_rows_own_noise_is_no_doubt_of_the_table() -> None:
    """Rows that jump by a fifth, each in its own rounds, leave their sum as it is; all in the same rounds do not."""
    spots, rng = Samples(), np.random.default_rng(0)
    spots.values["small_token_t1"] = [1.0, 1.001, 1.0, 1.001]
    own, common = Samples(), Samples()
    for size in range(1000, 1400):
        key = RowKey("gemv", "q8_0", size, 1, 0.0, 2**20, 1)
        own.values[key] = np.exp(rng.normal(0, 0.2, 4)).tolist()
        common.values[key] = [1.0, 1.2, 1.0, 1.2]
    assert table_uncertainty(own, spots) < 0.05
    assert np.log1p(table_uncertainty(common, spots)) == pytest.approx(1.2816 * np.log(1.2) / 3**0.5, abs=1e-3)


def test_the_table_is_no_surer_than_the_spot_checks() -> None:
    """Rows that agree from round to round do not hide that whole tokens did not."""
    samples, spots = Samples(), Samples()
    for value in (1.0, 1.0, 1.0, 1.0):
        samples.add(RowKey("gemv", "q8_0", 1000, 1, 0.0, 2**20, 1), value)
    for value in (1.0, 1.5, 1.0, 1.5):
        spots.add("small_token_t1", value)
    sigma = float(np.log(1.5) / 3**0.5)
    assert np.log1p(table_uncertainty(samples, spots)) == pytest.approx(1.2816 * sigma, abs=1e-3)  # 80 % inside


def test_an_lm_head_takes_no_longer_alone_than_in_its_place() -> None:
    """What a forward pass needs less is the row of a head from RAM; a head that is quicker alone keeps its own."""
    plan = make_plan(Path(), FEWEST_SECONDS, [1])
    (tiny, middle), samples = plan.shapes, Samples()
    rows = {
        spec.name: RowKey("gemv", call.type, int(call.size), 1, 0.0, plan.arena_bytes, 1)
        for spec in (tiny, middle)
        for call in kernel_calls.lm_head_calls(spec)
    }
    for name, alone, whole in ((tiny.name, 2.0, 1.0), (middle.name, 4.0, 3.0)):
        samples.add(rows[name], alone)
        samples.add(OpKey(name, "lm_head", 1, 1), whole)
    times = product_times(plan, samples)
    assert times[rows[middle.name]] == 3.0
    assert times[rows[tiny.name]] == 2.0  # it runs in the caches, where its row has another working set


def test_attention_over_many_keys_is_taken_as_it_stands() -> None:
    """What attention grew by counts where it is more than alone, in the working sets that stand for the model's own."""
    plan = make_plan(Path(), FEWEST_SECONDS, [1])
    tiny, samples = plan.shapes[0], Samples()
    few, many = plan.contexts[0], plan.contexts[-1]
    calls = {n: next(c for c in kernel_calls.attention_calls(tiny, n) if c.op == "attend") for n in (few, many)}

    def key(n_keys: int, working_set: int) -> RowKey:
        return RowKey("attend", "f32", int(calls[n_keys].size), calls[n_keys].count, 0.0, working_set, 1)

    small, large = int(calls[many].working_set / 3), int(calls[many].working_set / 1.5)
    for working_set in (small, large):
        samples.add(key(few, working_set), 1.0)
        samples.add(key(many, working_set), 5.0)
    samples.add(OpKey(tiny.name, "attention", 1, 1), 10.0)
    samples.add(ContextKey(tiny.name, many, 1), 18.0)
    times = product_times(plan, samples)
    assert times[key(many, large)] == 1.0 + 8.0
    assert times[key(many, small)] == 5.0
    assert times[key(few, large)] == 1.0
    samples.values[ContextKey(tiny.name, many, 1)] = [12.0]
    assert product_times(plan, samples)[key(many, large)] == 5.0
