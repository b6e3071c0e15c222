"""What reads cost beside their own time: rows with known misses, parts of a layer, the rows of the table."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reference_runtime.op_clock import OpClock, RowReads
from reference_runtime.probe.in_situ import OpKey
from reference_runtime.probe.plan import FEWEST_SECONDS, make_plan
from reference_runtime.probe.products import RowKey
from reference_runtime.probe.rows import miss_times, product_times, table_uncertainty
from reference_runtime.probe.sampling import Samples
from reference_runtime.probe.with_reads import ReadsKey, RowsWithMisses, layer_parts
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
    """Busy is router, attention and expert FFN; a wait ends some time after the last arrival; other counts are out."""
    clock = OpClock()
    clock.marks = [
        ("start", 1, 0.0), ("embedding", -1, 1.0),
        ("router", 0, 2.0), ("attention", 0, 5.0), ("wait", 0, 9.0), ("expert_ffn", 0, 10.0),
        ("router", 1, 12.0), ("attention", 1, 15.0), ("wait", 1, 15.5), ("expert_ffn", 1, 17.0), ("lm_head", -1, 20.0),
    ]  # fmt: skip
    clock.reads = [RowReads(0, 2, 2, 8192, 2.5, 8.5), RowReads(1, 4, 0, 0, 12.5, 12.5)]
    assert layer_parts(clock, 2, 0) == {"busy": [5.0], "span": [6.0], "hand_over": [0.5]}
    assert layer_parts(clock, 0, 0) == {"busy": [6.5], "span": [0.0], "hand_over": [0.5]}
    assert layer_parts(clock, 2, 1) == {"busy": [], "span": [], "hand_over": []}


def test_costs_of_reads_come_from_differences_within_a_round() -> None:
    """Two rounds on a machine that became twice as slow: issue, delay and wake by hand; contention is taken off."""
    plan = make_plan(Path(), FEWEST_SECONDS, [1])
    plan = replace(plan, shapes=plan.shapes[:1])
    name, samples = plan.shapes[0].name, Samples()
    for slow in (1.0, 2.0):
        parts = {(0, True): (4.0, 0.0, 0.5), (1, False): (6.0, 3.5, 0.75), (1, True): (9.0, 8.0, 1.0)}
        for (n, is_prefetch), values in parts.items():
            for part, seconds in zip(("busy", "span", "hand_over"), values, strict=True):
                samples.add(ReadsKey(name, part, n, is_prefetch, 1), slow * seconds)
    found = miss_times(plan, samples, 0.9, 0.8)
    assert {(key.size, key.count, key.threads) for key in found} == {(20480, 1, 1)}
    times = {key.op: seconds for key, seconds in found.items()}
    assert times["issue"] == pytest.approx(1.5 * (9.0 - 6.0 - 0.1 * 8.0))
    assert times["wake"] == pytest.approx(1.5 * (6.0 - 4.0 + 1.0 - 0.5))
    assert times["delay"] == pytest.approx(1.5 * (8.0 - 3.5 - 0.2 * 8.0))


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
