"""Measured kernel times: between points, beyond them, and as the cost equations use them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from hardware_profiles.kernel_table import Call, KernelTable, KernelTimes
from simulator import costs
from simulator.engine_fast import FastEngine, simulate_fast
from simulator.engine_simpy import simulate_simpy
from simulator.expert_layout import ExpertLayout
from simulator.kernel_calls import even_loads
from simulator.miss_costs import MissCosts, costs_of_waits_rise, miss_costs
from simulator.model.size import expert_bytes
from simulator.prefetch import NONE, PRE_ATTENTION
from simulator.scenario import Scenario, steps_of
from tests.conftest import device_rates, make_trace, random_trace, tiny_model

MIB = 2**20
PAGES = ExpertLayout("bundle", 1, 8192)


def row(op: str, size: float, time: str, **changes: object) -> dict:
    """One row of a table, of one thread and a large working set."""
    fields = {"op": op, "type": "f32", "size": size, "working_set": "256 MiB", "threads": 1, "time": time}
    return fields | changes


def table_of(*rows: dict) -> KernelTable:
    """A table with the provenance that it needs."""
    head = {"kind": "measured", "source": "this test", "uncertainty": 0.1, "engine": "test", "ram_bandwidth": "1 GB/s"}
    return KernelTable.model_validate(head | {"rows": list(rows)})


def times_of(*rows: dict) -> KernelTimes:
    """The times of one thread."""
    return KernelTimes(table_of(*rows), 1)


def test_between_two_sizes_the_time_is_linear() -> None:
    """Halfway between 1,000 and 3,000 bytes it is the mean; below the first its own; above the slope goes on."""
    times = times_of(row("gemv", 1000, "10 us"), row("gemv", 3000, "20 us"))
    assert times.seconds(Call("gemv", "f32", 2000)) == pytest.approx(15e-6)
    assert times.seconds(Call("gemv", "f32", 10)) == pytest.approx(10e-6)
    assert times.seconds(Call("gemv", "f32", 5000)) == pytest.approx(30e-6)


def test_a_single_size_goes_on_in_proportion() -> None:
    """Nothing but the one point is known, so twice the bytes take twice the time."""
    assert times_of(row("gemv", 1000, "10 us")).seconds(Call("gemv", "f32", 2000)) == pytest.approx(20e-6)


@pytest.mark.parametrize("op", ["step", "attention_rest"])
def test_what_is_left_of_a_difference_goes_on_in_proportion_to_size(op: str) -> None:
    """Two leftovers that differ by chance have no slope to trust: 7,168 takes 2.8 times what 2,560 takes, no more."""
    times = times_of(row(op, 1536, "330 us"), row(op, 2560, "1770 us"))
    assert times.seconds(Call(op, "f32", 7168)) == pytest.approx(2.8 * 1770e-6)  # type: ignore[arg-type]
    assert times.seconds(Call(op, "f32", 2048)) == pytest.approx(1050e-6)  # type: ignore[arg-type]
    assert times.seconds(Call(op, "f32", 64)) == pytest.approx(330e-6)  # type: ignore[arg-type]


def test_count_and_zero_gates_are_linear() -> None:
    """Four experts cost what one costs and three times the difference per expert; zero gates lie on one line."""
    times = times_of(
        row("experts", 1000, "10 us"),
        row("experts", 1000, "4 us", zero_frac=0.8),
        row("experts", 1000, "40 us", count=5),
        row("experts", 1000, "16 us", count=5, zero_frac=0.8),
    )
    assert times.seconds(Call("experts", "f32", 1000, 3)) == pytest.approx(25e-6)
    assert times.seconds(Call("experts", "f32", 1000, 1, 0.4)) == pytest.approx(7e-6)
    assert times.seconds(Call("experts", "f32", 1000, 3, 0.4)) == pytest.approx(17.5e-6)


def test_the_working_set_counts_by_its_logarithm_and_its_ends_hold() -> None:
    """16 MiB lies halfway between 4 and 64 MiB; beyond the ends the ends' own times hold."""
    times = times_of(row("gemv", 1000, "10 us", working_set="4 MiB"), row("gemv", 1000, "20 us", working_set="64 MiB"))
    wanted = {MIB: 10e-6, 16 * MIB: 15e-6, math.inf: 20e-6}
    for working_set, seconds in wanted.items():
        assert times.seconds(Call("gemv", "f32", 1000, working_set=working_set)) == pytest.approx(seconds)


def test_a_row_twice_is_refused() -> None:
    """Two times for one call: which one would hold?"""
    with pytest.raises(ValidationError, match="each row once"):
        table_of(row("gemv", 1000, "10 us"), row("gemv", 1000, "12 us"))


FULL = (
    row("gemv", 100, "2 us", type="q8_0"), row("gemv", 100_000, "50 us", type="q8_0"),
    row("gemm", 100, "20 us", count=8, type="q8_0"), row("gemm", 100_000, "90 us", count=8, type="q8_0"),
    row("experts", 100, "5 us", type="q8_0"), row("experts", 100_000, "60 us", type="q8_0"),
    row("experts", 100, "9 us", count=4, type="q8_0"), row("experts", 100_000, "220 us", count=4, type="q8_0"),
    row("experts_chunk", 100, "6 us", type="q8_0"), row("experts_chunk", 100_000, "66 us", type="q8_0"),
    row("experts_chunk", 100, "7 us", count=3, type="q8_0"),
    row("experts_chunk", 100_000, "67 us", count=3, type="q8_0"),
    row("attend", 10, "1 us"), row("attend", 10_000, "30 us"),
    row("attend_chunk", 10, "3 us", count=8), row("attention_rest", 32, "7 us"),
    row("router", 64, "11 us"), row("row", 1, "2 us"), row("issue", 8192, "6 us"), row("issue", 8192, "9 us", count=2),
    row("wake", 8192, "40 us"), row("wake_on_demand", 8192, "50 us"), row("delay", 8192, "15 us"),
    row("step", 32, "13 us"),
)  # fmt: skip


def scenario_with(kernels: KernelTimes | None) -> Scenario:
    """A small streaming scenario on a device with measured kernels."""
    steps = steps_of(random_trace(0, 12, 3, 8, 2, 4), context=None)
    return Scenario(tiny_model(), replace(device_rates(), kernels=kernels), steps, 10)


def test_both_engines_take_the_measured_times() -> None:
    """They agree with one another, and differ from the roofline."""
    scenario = scenario_with(times_of(*FULL))
    simpy, fast = simulate_simpy(scenario), simulate_fast(scenario)
    for op, seconds in simpy.op_s.items():
        assert seconds == pytest.approx(fast.op_s[op], abs=1e-9), op
    assert simpy.step_s[-1] != pytest.approx(simulate_fast(scenario_with(None)).step_s[-1], rel=0.01)


def test_an_op_is_the_sum_of_its_calls() -> None:
    """The router of the test model has one call."""
    scenario = scenario_with(times_of(*FULL))
    work = costs.router_work(scenario.model)
    assert len(work.calls) == 1
    assert scenario.rates.kernels is not None
    assert costs.seconds(work, scenario.rates) == pytest.approx(scenario.rates.kernels.seconds(work.calls[0]))


def test_a_chunk_is_the_sum_over_its_experts_each_with_its_own_tokens() -> None:
    """Experts with 1, 2 and 3 tokens cost one of each load, and not three of two tokens; that is what no loads mean."""
    times, model = times_of(*FULL), tiny_model()
    rates = replace(device_rates(), kernels=times, ram_bytes_per_s=times.ram_bytes_per_s)
    n_bytes = expert_bytes(model)
    uneven, even = (
        costs.seconds(costs.expert_ffn_work(model, 3, 3, 0.0, loads), rates, 3) for loads in ((1, 2, 3), (2, 2, 2))
    )
    one, two, three = (times.seconds(Call("experts_chunk", "q8_0", n_bytes, n)) for n in (1, 2, 3))
    assert uneven - even == pytest.approx(one + three - 2 * two)
    assert costs.seconds(costs.expert_ffn_work(model, 3, 3, 0.0), rates, 3) == even


@pytest.mark.parametrize(("n_choices", "n_experts"), [(8, 3), (6, 6), (512, 32), (3, 1)])
def test_even_loads_hold_every_choice_and_differ_by_one(n_choices: int, n_experts: int) -> None:
    """All choices, one expert each at least, none with more than one beyond another."""
    loads = even_loads(n_choices, n_experts)
    assert (sum(loads), len(loads)) == (n_choices, n_experts)
    assert 1 <= loads[0] <= loads[-1] <= loads[0] + 1


def test_the_engines_take_a_chunks_own_loads() -> None:
    """
    A chunk in which one expert has most tokens costs another time than one in which all have as many, in both engines.
    """
    skewed, even = [[0, 1]] * 5 + [[0, 2], [1, 3]], [[0, 1], [2, 3]] * 3 + [[0, 1]]
    rows = [*(row("experts_chunk", 100, f"{us} us", count=n, type="q8_0") for n, us in ((1, 9), (2, 10), (7, 11)))]
    kernels = times_of(*(one for one in FULL if one["op"] != "experts_chunk"), *rows)
    spent = []
    for ids in (skewed, even):
        trace = make_trace([[one] for one in ids], 8, n_prefill=6)
        scenario = replace(
            scenario_with(kernels), model=tiny_model(n_layers=1), steps=steps_of(trace, context=None), preloaded=True
        )
        simpy, fast = simulate_simpy(scenario), simulate_fast(scenario)
        assert simpy.op_s["expert_ffn"][0] == pytest.approx(fast.op_s["expert_ffn"][0], abs=1e-12)
        spent.append(fast.op_s["expert_ffn"][0])
    n_bytes = expert_bytes(tiny_model())
    assert spent[0] - spent[1] == pytest.approx(
        sum(kernels.seconds(Call("experts_chunk", "q8_0", n_bytes, n)) for n in (6, 5, 1))
        - sum(kernels.seconds(Call("experts_chunk", "q8_0", n_bytes, n)) for n in (3, 3, 3, 3))
    )


def test_taking_a_row_from_the_cache_costs_what_was_measured_and_nothing_where_it_was_not() -> None:
    """Tables made before row_wait was measured have it in row."""
    work = costs.expert_ffn_work(tiny_model(), 2)

    def seconds(times: KernelTimes) -> float:
        return costs.seconds(work, replace(device_rates(), kernels=times, ram_bytes_per_s=times.ram_bytes_per_s))

    without, with_it = seconds(times_of(*FULL)), seconds(times_of(*FULL, row("row_wait", 1, "17 us")))
    assert with_it == pytest.approx(without + 17e-6)


def test_a_delay_of_the_reads_is_lost_within_what_a_limiter_adds() -> None:
    """Where the limiter gives a read more time than the device needs and the delay together, nothing is left of it."""
    rates = replace(device_rates(), kernels=times_of(*FULL))
    free, limited = (miss_costs(r, PAGES, 2, PRE_ATTENTION).delay_s for r in (rates, rates.limited(1e6, 8192)))
    assert free[1] > 0
    assert limited.tolist() == [0, 0, 0]
    own_s = rates.storage.burst_s(1, 8192)
    barely = miss_costs(rates.limited(8192 / (own_s + free[1] / 2), 8192), PAGES, 1, PRE_ATTENTION).delay_s
    assert barely[1] == pytest.approx(free[1] / 2, rel=1e-6)


def test_what_reads_cost_holds_beyond_the_measured_sizes_and_misses() -> None:
    """At 32 misses what 4 cost, for an expert of 99 MB what one of 2 MB costs; between the points linear."""
    small, large, huge = 20480, 1990656, 99_000_000
    at = {(small, 1): 10, (small, 4): 40, (large, 1): 30, (large, 4): 20}
    rows = [row(op, size, f"{us} us", count=n) for op in ("issue", "delay") for (size, n), us in at.items()]
    rows += [
        row(op, size, f"{us} us", count=n)
        for op in ("wake", "wake_on_demand", "wake_attention")
        for size, n, us in ((small, 400, 50), (small, 25600, 900), (large, 400, 60), (large, 25600, 70))
    ]
    times = times_of(*rows)
    for op in ("issue", "delay"):
        wanted = {(small, 2): 20, (small, 32): 40, (large, 32): 20, (huge, 1): 30, (huge, 32): 20, (4096, 4): 40}
        for (size, n), us in wanted.items():
            assert times.seconds(Call(op, "f32", size, n)) == pytest.approx(us * 1e-6), (op, size, n)  # type: ignore[arg-type]
    rates = replace(device_rates(), kernels=times)
    read_s = np.linspace(0, 1, 33)
    of_large, of_huge = (
        miss_costs(rates, ExpertLayout("bundle", 1, size), 32, PRE_ATTENTION, read_s) for size in (large, huge)
    )
    for name in ("issue_s", "delay_s", "wake_s"):
        assert getattr(of_huge, name).tolist() == pytest.approx(getattr(of_large, name).tolist()), name
    assert of_large.delay_s[[0, 1, 4, 32]].tolist() == pytest.approx([0, 30e-6, 20e-6, 20e-6])
    assert of_large.wake_s[32] == pytest.approx(70e-6)


def test_heads_that_share_a_key_are_interpolated_and_never_extrapolated() -> None:
    """The count of attend is a kind of model: beyond the measured ones the nearest holds, also for a single one."""
    both = times_of(row("attend", 1000, "30 us", count=2), row("attend", 1000, "10 us", count=6))
    for n_sharing, us in ((1, 30), (2, 30), (4, 20), (6, 10), (16, 10)):
        assert both.seconds(Call("attend", "f32", 1000, n_sharing)) == pytest.approx(us * 1e-6)
    single = times_of(row("attend", 1000, "30 us"))
    assert single.seconds(Call("attend", "f32", 1000, 6)) == pytest.approx(30e-6)


def test_what_a_wait_costs_follows_the_time_of_its_reads() -> None:
    """Beside attention and on demand have rows of their own; between points linear, beyond the ends that of the end."""
    waits = [
        row(op, 8192, f"{us * factor} us", count=count)
        for op, us in (("wake", 40), ("wake_on_demand", 70), ("wake_attention", 10))
        for count, factor in ((100, 1), (500, 5))
    ]
    others = [one for one in FULL if not one["op"].startswith("wake") and one["op"] != "delay"]
    rates = replace(device_rates(), kernels=times_of(*others, *waits))

    def of_one(policy: str, reads_us: float) -> MissCosts:
        return miss_costs(rates, PAGES, 1, policy, np.array([0.0, reads_us * 1e-6]))

    for reads_us, factor in ((20, 1), (100, 1), (300, 3), (500, 5), (9000, 5)):
        assert of_one(PRE_ATTENTION, reads_us).wake_s.tolist() == pytest.approx([0, 40e-6 * factor])
        assert of_one(PRE_ATTENTION, reads_us).issue_s.tolist() == pytest.approx([0, 6e-6 + 10e-6 * factor])
        on_demand = of_one(NONE, reads_us)
        assert on_demand.wake_s.tolist() == pytest.approx([0, 70e-6 * factor])
        assert not on_demand.issue_s.any()
        assert not on_demand.delay_s.any()


def test_waits_by_misses_are_refused() -> None:
    """Older probes wrote a wake-up by the number of misses; read as microseconds it would be wrong without a word."""
    with pytest.raises(ValidationError, match="probe the machine again"):
        table_of(row("wake", 8192, "40 us"), row("wake", 8192, "70 us", count=2))


def test_an_operation_of_an_older_probe_is_refused_with_advice() -> None:
    """Not with a list of all operations: nobody mends a measured table by hand."""
    with pytest.raises(
        ValidationError, match="got experts_rest, as older probes wrote it; probe the machine again"
    ) as e:
        table_of(*FULL, row("experts_rest", 100, "40 us", type="q8_0"))
    assert "wake_on_demand" not in str(e.value)


def test_chunks_are_measured_whole_or_not_at_all() -> None:
    """
    With its matrices measured and its experts not, a chunk would be half measured and half a roofline without a word;
    each type and number of threads on its own.  A table of decode alone is whole.
    """
    rows = [one for one in FULL if one["op"] != "experts_chunk"]
    must = r"must time the experts of a chunk \(experts_chunk\) .* got none of q8_0 on 1 thread; probe"
    with pytest.raises(ValidationError, match=must):
        table_of(*rows)
    table_of(*(one for one in rows if one["op"] != "gemm"))
    other = [one | {"threads": 2} for one in rows]
    with pytest.raises(ValidationError, match="none of q8_0 on 2 threads; probe"):
        table_of(*FULL, *other)


def test_longer_waits_that_cost_less_are_noticed() -> None:
    """So are waits that make attention so slow that it hides what became slower: a planner must not bisect there."""

    def rises(**seconds: tuple[int, int]) -> bool:
        both_of = {"wake": (1, 1), "wake_on_demand": (1, 1), **seconds}
        table = times_of(*(
            row(op, 8192, f"{us} us", count=count)
            for op, both in both_of.items() for us, count in zip(both, (100, 200), strict=True)
        ))  # fmt: skip
        return costs_of_waits_rise(replace(device_rates(), kernels=table), PAGES, PRE_ATTENTION)

    assert rises(wake=(5, 9), wake_attention=(1, 90))
    assert not rises(wake=(9, 5))
    assert not rises(wake=(5, 9), wake_attention=(1, 202))
    assert rises(wake_on_demand=(9, 5))  # has no part in it


def test_a_type_that_was_not_measured_takes_the_roofline() -> None:
    """A missing kernel must not be free."""
    kernels = times_of(row("router", 64, "11 us"))
    rates = replace(device_rates(), kernels=kernels)
    work = costs.attention_work(tiny_model(), 0, 5)
    assert costs.seconds(work, rates) == costs.roofline_seconds(work, rates)


def test_faster_ram_and_compute_shorten_their_parts() -> None:
    """With both doubled an op takes half the time; with either alone less than before and more than half."""
    rates = replace(device_rates(), kernels=times_of(*FULL))
    work = costs.router_work(tiny_model())
    before = costs.seconds(work, rates)
    faster_ram = replace(rates, ram_bytes_per_s=2 * rates.ram_bytes_per_s)
    both = replace(faster_ram, kernel_factor=0.5)
    assert costs.seconds(work, both) == pytest.approx(before / 2)
    assert before / 2 < costs.seconds(work, faster_ram) < before
    assert costs.seconds(work, rates.faster_compute(2)) < before


def test_a_draw_of_sparsity_is_timed_as_a_model_with_that_sparsity() -> None:
    """Mixing the works of the two ends equals the calls at the drawn share."""
    rows = [one for one in FULL if one["op"] != "wake"]  # a wait would add to the FFN
    for count, times in ((1, ("3 us", "30 us")), (4, ("6 us", "99 us"))):
        rows += [
            row("experts", 100 * 10 ** (3 * i), t, count=count, zero_frac=0.7, type="q8_0") for i, t in enumerate(times)
        ]
    scenario = scenario_with(times_of(*rows))
    timeline = FastEngine(scenario).timeline(scenario.rates, 0.4)
    work = costs.expert_ffn_work(scenario.model, 2, 1, 0.4)
    assert timeline.op_s["expert_ffn"][-1] == pytest.approx(3 * costs.seconds(work, scenario.rates), rel=0.05)
