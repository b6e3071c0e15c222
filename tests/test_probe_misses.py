"""What reads cost beside their own time: rows with known misses, parts of a layer, the rows of the table."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reference_runtime.op_clock import OpClock, RowReads
from reference_runtime.probe.in_situ import OpKey
from reference_runtime.probe.plan import FEWEST_SECONDS, make_plan
from reference_runtime.probe.products import RowKey
from reference_runtime.probe.rows import WAKE_US, miss_times, product_times, table_uncertainty
from reference_runtime.probe.sampling import Samples
from reference_runtime.probe.with_reads import PARTS, ReadsKey, RowsWithMisses, layer_parts
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


# (misses, prefetch, slower reads): router, attention, expert FFN, span, hand-over, in units of 100 us
MEASURED = {
    (0, True, 0.0): (1.0, 4.0, 2.0, 0.0, 0.5),
    (2, False, 0.0): (1.5, 5.0, 3.5, 3.5, 0.75),
    (2, True, 0.0): (2.0, 9.0, 4.0, 8.0, 1.0),
    (2, False, 0.002): (1.25, 4.5, 3.5, 30.0, 0.75),
    (2, True, 0.002): (5.0, 16.0, 7.0, 32.0, 0.75),
}


def test_costs_of_reads_come_from_differences_within_a_round() -> None:
    """Two rounds on a machine that became twice as slow: every row by hand; contention is taken off."""
    plan = make_plan(Path(), FEWEST_SECONDS, [1])
    plan = replace(plan, shapes=plan.shapes[:1])
    name, samples = plan.shapes[0].name, Samples()
    for slow in (1.0, 2.0):
        for (n, is_prefetch, slower_s), values in MEASURED.items():
            for part, value in zip(PARTS, values, strict=True):
                samples.add(ReadsKey(name, part, n, is_prefetch, 1, slower_s), slow * value * 1e-4)
    found = miss_times(plan, samples, 0.9, 0.8)
    assert {(key.size, key.threads) for key in found} == {(20480, 1)}
    times = {(key.op, key.count): seconds / 1.5e-4 for key, seconds in found.items()}
    assert times["issue", 2] == pytest.approx(9.0 - 4.0 - 0.1 * 8.0)
    assert times["delay", 2] == pytest.approx(8.0 - 3.5 - 0.2 * 8.0)
    by_op = {op: [times[op, microseconds] for microseconds in WAKE_US] for op, _ in times if op.startswith("wake")}
    assert all(values == sorted(values) for values in by_op.values())
    fast, slow_reads = 1.0 + 2.0 + 0.5, 4.0 + 5.0 + 0.25
    assert by_op["wake"][0] == pytest.approx(fast)
    assert by_op["wake"][-1] == pytest.approx(slow_reads)
    between = np.interp(1600, [1200, 4800], [fast, slow_reads])  # spans of 8 and 32, 1.5 times as long in the mean
    assert times["wake", 1600] == pytest.approx(between)
    assert by_op["wake_attention"][-1] == pytest.approx(16.0 - 9.0)
    assert times["wake_attention", 800] == pytest.approx(1e-4, abs=1e-3)
    assert by_op["wake_on_demand"][0] == by_op["wake_on_demand"][-1]  # less after slower reads: one mean for both
    assert by_op["wake_on_demand"][0] == pytest.approx((0.5 + 1.0 + 1.5 + 0.25 + 0.25 + 0.5 + 1.5 + 0.25) / 2)


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
