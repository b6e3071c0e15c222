"""A row of a sweep equals the simulation of its inputs; a scenario that fails is a row, and the others go on."""

from dataclasses import fields, replace

import numpy as np
import pytest
from conftest import make_trace
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles.catalog import load_profile
from hardware_profiles.kernel_table import KernelTable
from hardware_profiles.schema import HardwareProfile
from moeplan.errors import InputError
from simulator.closed_form.replay import LeanReplay
from simulator.model.catalog import load_model_spec
from simulator.model.spec import with_quantisation, with_top_k
from simulator.question import Question
from simulator.result import SweepRow
from simulator.scenario import steps_of
from simulator.simulate import hidden_frac, simulate
from simulator.sweeps.definition import SweepDefinition
from simulator.sweeps.in_memory import Grid, sweep
from simulator.sweeps.rows import ChunkRunner
from simulator.sweeps.scenarios import Inputs, chunks
from traces.routing_trace import DECODE, PREFILL, RoutingTrace
from traces.synthetic import synthesize

GIB = 2**30
MODEL, DEVICES = "smallthinker-4b-a0.6b", ("raspberry-pi-5-nvme", "rk3588")
N_SAMPLES = 5


def routing(top_k: int, seed: int) -> RoutingTrace:
    """60 tokens of the 4B's shape in two requests, with prompts."""
    trace = synthesize(
        n_tokens=60, n_prefill=0, n_moe_layers=32, n_experts=32, top_k=top_k, zipf=0.8, repeat_frac=0.4, seed=seed,
        model=MODEL,
    )  # fmt: skip
    phase = np.full(60, DECODE, np.uint8)
    phase[:10] = phase[30:45] = PREFILL
    request = np.repeat(np.array([3, 1], np.int32), 30)
    return replace(trace, phase=phase, request_id=request, position=np.tile(np.arange(30, dtype=np.int32), 2))


def measured_device() -> HardwareProfile:
    """The second device as a probe would have left it: kernel times, also of what reads cost beside compute."""
    profile = load_profile(DEVICES[1])
    times = {("router", 65536): 60, ("row", 1): 3, ("step", 1536): 20}
    of_reads = {"issue": 150, "delay": 90, "wake": 70, "wake_on_demand": 80}
    times |= {(op, size): us for op, us in of_reads.items() for size in (4096, 2**21)}
    rows = [
        {"op": op, "type": "f32", "size": size, "count": count, "working_set": "256 MiB", "threads": threads,
         "time": f"{us * (1 + 0.2 * (count - 1))} us"}
        for (op, size), us in times.items() for count in (1, 4) for threads in (4,)
    ]  # fmt: skip
    head = {"kind": "measured", "source": "this test", "uncertainty": 0.2, "engine": "test", "ram_bandwidth": "9 GB/s"}
    table = KernelTable.model_validate(head | {"rows": rows})
    return profile.model_copy(update={"cpu": profile.cpu.model_copy(update={"kernels": table})})


TRACES = {"four": routing(4, 1), "two": routing(2, 2)}
PROFILES = {name: load_profile(name) for name in DEVICES} | {"measured": measured_device()}
PROFILES["2 GiB"] = PROFILES[DEVICES[0]].model_copy(
    update={"ram": PROFILES[DEVICES[0]].ram.model_copy(update={"size": 2 * GIB})}
)
INPUTS = Inputs({MODEL: load_model_spec(MODEL)}, PROFILES, TRACES)


def sweep_rows(**axes: tuple[object, ...]) -> list[tuple[dict[str, object], SweepRow]]:
    """The cells of a sweep with their rows, in order."""
    whole = {"model": (MODEL,), "hardware": DEVICES[:1], "trace": ("four",), **axes}
    definition = SweepDefinition(whole, n_samples=N_SAMPLES, seed=3)  # type: ignore[arg-type]
    runner, found = ChunkRunner(definition, INPUTS), {}
    for chunk in chunks(definition):
        cells = dict(chunk.cells(definition))
        found |= {item.scenario: (cells[item.scenario], item.row) for item in runner.rows(chunk)}
    return [found[index] for index in range(definition.n_scenarios)]


def question_of(cell: dict) -> Question:
    """The question that a cell asks."""
    model = INPUTS.models[MODEL]
    model = model if cell["quantisation"] is None else with_quantisation(model, cell["quantisation"])
    model = model if cell["top_k"] is None else with_top_k(model, cell["top_k"])
    return Question(
        model, INPUTS.profiles[cell["hardware"]], TRACES[cell["trace"]], ram_cap_bytes=cell["ram_cap"],
        storage_read_bytes_per_s=cell["storage_read"], cache_policy=cell["cache"], prefetch_policy=cell["prefetch"],
        layout=cell["layout"], context=cell["context"], n_threads=cell["threads"],
        storage_latency_s=cell["storage_latency"], ram_bytes_per_s=cell["ram_bandwidth"], gemv_flop_per_s=cell["flops"],
    )  # fmt: skip


def some(*values: object, most: int = 1) -> st.SearchStrategy[tuple[object, ...]]:
    """Different values of an axis, at most so many."""
    return st.lists(st.sampled_from(values), min_size=1, max_size=most, unique=True).map(tuple)


@settings(max_examples=20, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "hardware": some(*PROFILES), "ram_cap": some(250 * 2**20, 2**29, GIB, 2 * GIB, None, most=3),
            "storage_read": some(5e7, 1e9, 1.5e10, None, most=2), "cache": some("lru", "lru-per-layer"),
            "prefetch": some("none", "pre-attention", None, most=2), "layout": some("bundle", "split"),
            "context": some(None, 0, 300, 20_000), "quantisation": some(None, "q8_0"),
            "ram_bandwidth": some(None, 2e9), "flops": some(None, 1e10), "storage_latency": some(None, 1e-3),
        }
    )
)  # fmt: skip
def test_a_row_is_the_simulation_of_its_inputs(axes: dict[str, tuple[object, ...]]) -> None:
    """Speed, interval, waits, hits, bytes and bound of every row are those of simulate, to rounding."""
    for cell, row in sweep_rows(**axes):
        result = simulate(question_of(cell), engine="fast", n_samples=N_SAMPLES, seed=3)
        assert row.verdict == result.verdict
        if result.tokens_per_s is None or result.cache is None:
            assert (row.reason, row.tokens_per_s) == (result.arithmetic, 0.0)
            continue
        speed = result.tokens_per_s
        found = (row.tokens_per_s, row.tokens_per_s_low, row.tokens_per_s_high)
        assert found == pytest.approx((speed.value, speed.low, speed.high), rel=1e-11)
        assert row.wait_s_per_token == pytest.approx(result.seconds_per_token["wait"], rel=1e-9, abs=1e-15)
        assert (row.hits, row.misses, row.n_slots) == (result.cache.hits, result.cache.misses, result.cache.slots)
        assert (row.hit_rate, row.bytes_read_per_token) == (result.cache.hit_rate, result.cache.bytes_read_per_token)
        assert row.bound_by == result.bound_by
        assert row.hidden_frac == pytest.approx(_hidden_frac(question_of(cell)), abs=1e-12)
        assert row.resident_bytes == result.memory.resident_bytes


def _hidden_frac(question: Question) -> float:
    from simulator.engine_fast import FastEngine
    from simulator.question import prepare

    scenario = prepare(question).scenario
    assert scenario is not None
    return hidden_frac(FastEngine(scenario).timeline(scenario.rates), scenario.is_counted)


def test_what_fails_is_a_row_and_the_others_go_on() -> None:
    """A top-k that the trace has not, threads without figures and a context beyond the model's become reasons."""
    rows = [row for _, row in sweep_rows(top_k=(None, 6), threads=(None, 3), context=(None, 10**6), ram_cap=(GIB,))]
    assert [row.verdict for row in rows] == ["streams", "failed", "failed", "failed"] + ["failed"] * 4
    assert "--threads: must be 4" in rows[1].reason
    assert "--context: must be 0 to 32767" in rows[2].reason
    assert "--trace: must have the routing shape" in rows[4].reason
    assert all(row.tokens_per_s == 0 and row.model == MODEL for row in rows[1:])


def test_what_a_cache_pass_refuses_is_a_row_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """More experts than a pass can tell apart: rows with the reason, but not where all experts are in RAM."""
    monkeypatch.setattr("simulator.cache_passes.rows.MAX_KEYS", 100)
    rows = [row for _, row in sweep_rows(ram_cap=(GIB, 64 * GIB), hardware=DEVICES[:2])]
    found = {(row.device, row.ram_cap_bytes): row for row in rows}
    assert [found[device, GIB].verdict for device in DEVICES[:2]] == ["failed", "failed"]
    assert all("must have at most 100 (layer, expert) keys" in found[device, GIB].reason for device in DEVICES[:2])
    assert all(found[device, GIB].model == MODEL for device in DEVICES[:2])
    assert all(found[device, 64 * GIB].verdict == "resident" for device in DEVICES[:2])
    assert all(found[device, 64 * GIB].tokens_per_s > 0 for device in DEVICES[:2])
    question = Question(INPUTS.models[MODEL], PROFILES[DEVICES[0]], TRACES["four"])
    with pytest.raises(InputError, match="must have at most 100"):
        sweep(question, Grid((GIB,), (1e9,), ("lru",), ("none",)), n_samples=1)


def test_every_input_stands_beside_every_output() -> None:
    """What was left to the device, model and trace is filled in with what was in force."""
    (_, row), (_, other) = sweep_rows(trace=("four",), ram_cap=(None, GIB), storage_latency=(None,))
    profile = INPUTS.profiles[DEVICES[0]]
    assert row.ram_cap_bytes > other.ram_cap_bytes == GIB
    assert (row.model, row.device, row.trace, row.top_k, row.n_threads) == (MODEL, DEVICES[0], "four", 4, 4)
    assert row.storage_read_bytes_per_s == profile.storage.sequential_read.value
    assert row.ram_bytes_per_s == profile.ram.gemv_bandwidth.value
    assert row.gemv_flop_per_s == profile.cpu.gemv_flop_per_s.value
    assert row.storage_latency_s > 0
    assert (row.quantisation, row.layout, row.context) == ("q4_0", "bundle", None)
    assert {type(getattr(row, item.name)) for item in fields(row)} <= {int, float, str, bool, type(None)}


def test_a_row_has_its_own_warnings_and_says_whether_it_is_a_bound() -> None:
    """Those of its simulation; what cannot run has none; more RAM than the device has is its reason, not its end."""
    axes = {"ram_cap": (100 * 2**20, 2**29, 64 * GIB), "cache": ("lru", "belady"), "context": (None, 32_000)}
    for cell, row in sweep_rows(**axes):
        result = simulate(question_of(cell), engine="fast", n_samples=0)
        told = [text for text in result.warnings if "twice the stand-in's misses" not in text]
        told = [result.larger_cap, *told] if result.larger_cap else told
        assert row.is_upper_bound == (cell["cache"] == "belady")
        if row.verdict == "cannot_run":
            assert (row.warnings, row.reason) == ("", result.arithmetic)
            continue
        assert row.warnings.splitlines() == told
        assert row.reason == result.beyond_device
        assert ("is told the future" in row.warnings) == row.is_upper_bound
        assert ("a bound" in result.small_print["cache"]) == row.is_upper_bound


def test_what_takes_more_ram_than_the_device_has_is_a_what_if() -> None:
    """It has its speed, and the reason why this device does not reach it."""
    rows = [row for _, row in sweep_rows(hardware=("2 GiB",), ram_cap=(GIB, 4 * GIB))]
    assert [row.verdict for row in rows] == ["streams", "resident"]
    assert rows[0].reason == ""
    assert "has 2.00 GiB of RAM" in rows[1].reason
    assert rows[1].tokens_per_s > rows[0].tokens_per_s


def test_rows_cut_when_asked_for_are_the_same() -> None:
    """LeanReplay's steps are those of steps_of, row by row."""
    for trace in (TRACES["four"], make_trace([[[0, 1]], [[1, 2]], [[2, 0]]], 3, 2)):
        for chunk_tokens in (512, 4):
            lean = LeanReplay(trace, 7).steps(chunk_tokens)
            plain = steps_of(trace, context=7, chunk_tokens=chunk_tokens)
            assert [replace(step, rows=()) for step in lean] == [replace(step, rows=()) for step in plain]
            assert [tuple(map(list, step.rows)) for step in lean] == [tuple(map(list, step.rows)) for step in plain]
            assert lean[0].rows[-1] == list(plain[0].rows[-1])
            assert list(lean[0].rows[:1]) == [list(plain[0].rows[0])]
