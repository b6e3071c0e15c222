"""The machine's state in the predictions: spot checks explain what is no error of the model; no run's time enters."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import device_rates
from test_validation_compare import without_spreads
from validation_grids import SPOTS, add_run, spots, start_grid, write_json

from hardware_profiles.catalog import load_profile
from hardware_profiles.kernel_table import Call, KernelTable, KernelTimes
from hardware_profiles.schema import HardwareProfile, SpotCheck
from reports.validation_files import as_json, as_markdown, write_validation
from simulator.kernel_calls import attention_calls, expert_ffn_calls, lm_head_calls, router_calls, step_calls
from simulator.model.catalog import load_model_spec
from simulator.model.spec import ModelSpec
from simulator.result import Interval
from simulator.validation.grid_cells import read_grid
from simulator.validation.held_out import without_shape
from simulator.validation.machine_state import (
    COMPUTE,
    READ,
    MachineState,
    SpotPair,
    check_names,
    forecast_state,
    grid_states,
    without_drift,
)
from simulator.validation.provenance import mixed_conditions
from simulator.validation.result import ValidationResult
from simulator.validation.run_noise import CLEAR_Z, boundary_margin, standard_error_frac
from simulator.validation.spot_series import states
from simulator.validation.tables import log_median, widened
from simulator.validation.validate import validate

NAMES = {COMPUTE: "small_token_t1", READ: "burst_64KiB"}
SLOW = MachineState(compute=1.4, read=1.7)


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """A folder with profile and model, and no run yet."""
    start_grid(tmp_path)
    return tmp_path


@pytest.fixture
def profile(grid: Path) -> HardwareProfile:
    return load_profile(str(grid / "profile.yaml"))


def validated(folder: Path) -> ValidationResult:
    return validate(read_grid(folder), n_samples=20)


# The state


def test_a_state_multiplies_every_time_and_no_limit() -> None:
    """Compute and RAM by one factor, all of the storage's own times by the other; a share of speed stays."""
    rates = device_rates(kernel_factor=1.5)
    slow = SLOW.on(rates)
    assert slow.kernel_factor == pytest.approx(1.5 * 1.4)
    for name in ("gemv_flop_per_s", "gemm_flop_per_s", "ram_bytes_per_s"):
        assert getattr(slow, name) == pytest.approx(getattr(rates, name) / 1.4)
    assert slow.op_overhead_s == pytest.approx(rates.op_overhead_s * 1.4)
    assert slow.sequential_read_bytes_per_s == pytest.approx(rates.sequential_read_bytes_per_s / 1.7)
    for n in (1, 3):
        assert slow.storage.burst_s(n, 65536) == pytest.approx(1.7 * rates.storage.burst_s(n, 65536))
    assert slow.contended_compute_frac == rates.contended_compute_frac


@pytest.mark.parametrize(
    ("n_bytes", "threads", "token", "burst"),
    [
        (20_480, 1, "small_token_t1", "burst_64KiB"),
        (1_990_656, 2, "large_token_t2", "burst_2MiB"),
        (362_000, 1, "small_token_t1", "burst_64KiB"),
        (363_000, 1, "large_token_t1", "burst_2MiB"),
    ],
)
def test_a_model_takes_the_checks_of_its_size(n_bytes: int, threads: int, token: str, burst: str) -> None:
    """Experts of some KB are small, of some MB large; the token is that of the run's threads."""
    assert check_names(n_bytes, threads) == {COMPUTE: token, READ: burst}


def test_the_state_by_hand(profile: HardwareProfile) -> None:
    """Geometric mean of before and after over the probe's; half the difference of the logarithms is the spread."""
    before = {name: 1.2 * seconds for name, seconds in SPOTS.items()}
    after = {name: 2.7 * seconds for name, seconds in SPOTS.items()}
    around = SpotPair(before, after)
    state = grid_states([around], profile).around(around, NAMES)
    assert state is not None
    assert (state.compute, state.read) == (pytest.approx(1.8), pytest.approx(1.8))
    assert state.compute_sigma == pytest.approx(math.log(2.7 / 1.2) / 2)
    assert grid_states([around], profile).around(around, NAMES | {READ: "burst_2MiB"}) is None
    without = SpotPair(before, {"small_token_t1": 1.0})
    assert grid_states([without], profile).around(without, NAMES) is None


def test_a_check_between_two_runs_is_one_take(profile: HardwareProfile) -> None:
    """After a run and before the next is the same take; where a grid was stopped in between there are two."""
    first, second, third, fourth = ({name: float(i) for name in SPOTS} for i in range(1, 5))
    pairs = [SpotPair(first, second), SpotPair(second, third), SpotPair(fourth, first)]
    found = grid_states(pairs, profile)
    assert found.takes == (first, second, third, fourth, first)
    states = [found.around(pair, NAMES) for pair in pairs]
    factors = [state.compute * SPOTS["small_token_t1"] for state in states if state is not None]
    assert factors == pytest.approx([math.sqrt(2), math.sqrt(6), math.sqrt(4)])


def test_drift_is_the_distance_from_the_probe(profile: HardwareProfile) -> None:
    """Always 10 % slower counts as much as to and fro by 10 %: the forecast knows of neither."""

    def drift(factors: list[float]) -> dict[str, float]:
        takes = [{name: seconds * factor for name, seconds in SPOTS.items()} for factor in factors]
        return grid_states([SpotPair(*pair) for pair in pairwise(takes)], profile).drift

    steady = drift([1.1] * 4)
    assert steady == pytest.approx(dict.fromkeys(SPOTS, math.log(1.1)))
    assert drift([1.1, 1 / 1.1, 1.1, 1 / 1.1]) == pytest.approx(steady)
    sigma = pytest.approx(math.log(1.1))
    assert forecast_state(steady, NAMES) == MachineState(compute_sigma=sigma, read_sigma=sigma)


@pytest.mark.parametrize("walk", [0.0, 0.002, 0.03])
def test_noise_of_the_checks_is_told_from_the_machine(walk: float) -> None:
    """
    A machine that walks, under checks that scatter by 4 %: the states found are nearer to the truth than the means of
    two takes, much so where the machine is steady; their standard deviation is that of their error.
    """
    rng = np.random.default_rng(3)
    truth = np.cumsum(walk * rng.standard_normal(160))
    takes = truth + 0.04 * rng.standard_normal(160)
    found, between = states(takes), (truth[1:] + truth[:-1]) / 2
    error, naive = (float(np.sqrt(np.mean(np.square(x - between)))) for x in (found.mean, (takes[1:] + takes[:-1]) / 2))
    assert error < (0.3 if walk < 0.01 else 0.95) * naive
    assert 0.5 < error / float(np.sqrt(np.mean(np.square(found.sigma)))) < 2


def test_without_noise_a_state_is_the_mean_of_its_two_takes() -> None:
    """A machine that walks far between checks which do not scatter: nothing is smoothed away."""
    takes = np.cumsum(np.random.default_rng(4).standard_normal(120))
    assert states(takes).mean == pytest.approx((takes[1:] + takes[:-1]) / 2, abs=0.05)


def test_a_spoiled_check_moves_no_state() -> None:
    """One take of three times the others is left out; a step that stays is followed."""
    takes = 0.02 * np.random.default_rng(5).standard_normal(80)
    spoiled = takes.copy()
    spoiled[40] += math.log(3)
    assert states(spoiled).mean == pytest.approx(states(takes).mean, abs=0.01)
    step = takes + np.where(np.arange(80) < 40, 0.0, 0.5)
    assert states(step).mean[[35, 45]] == pytest.approx([0.0, 0.5], abs=0.1)


def test_the_probes_own_drift_is_taken_out_in_quadrature() -> None:
    """Spreads of bursts and kernels lose the spot checks' spread; they never go below zero, and nothing else moves."""
    text = _with_bursts(load_profile("intel-n100"), uncertainty=0.10)
    checks = tuple(SpotCheck(name=n, time="1 ms", spread=0.03) for n in NAMES.values())  # type: ignore[arg-type]
    with_checks = text.model_copy(update={"spot_checks": checks})
    left = without_drift(with_checks, NAMES)
    assert left.storage.bursts is not None
    assert text.storage.bursts is not None
    assert left.storage.bursts.sigma == pytest.approx(math.sqrt(text.storage.bursts.sigma**2 - 0.03**2))
    assert left.cpu == with_checks.cpu
    wild = tuple(check.model_copy(update={"spread": 1.0}) for check in checks)
    none = without_drift(with_checks.model_copy(update={"spot_checks": wild}), NAMES).storage.bursts
    assert none is not None
    assert none.uncertainty == 0


def _with_bursts(profile: HardwareProfile, uncertainty: float) -> HardwareProfile:
    row = {"request": "64 KiB", "time": "1 ms"}
    rows = [row | {"n_requests": n} for n in (1, 2)]
    bursts = {"kind": "measured", "source": "made up", "uncertainty": uncertainty, "rows": rows}
    storage = type(profile.storage).model_fields["bursts"].annotation.__args__[0]  # type: ignore[union-attr]
    made = storage.model_validate(bursts)
    return profile.model_copy(update={"storage": profile.storage.model_copy(update={"bursts": made})})


# A grid with spot checks


def test_a_machine_that_became_slower_is_no_error_at_its_state(grid: Path) -> None:
    """
    Compute 1.4 x and reads 1.7 x slower than in the probe, and spot checks that say so: the forecast is off by as much,
    the prediction at the state by nothing, op by op; the spot checks' size alone decides, no time of the run.
    """
    add_run(grid, state=SLOW, spot_checks=spots(1.4, 1.7))
    result = validated(grid)
    assert result.at_state is not None
    (forecast,), (here,) = result.cells, result.at_state.cells
    assert forecast.error_frac > 0.3
    assert here.error_frac == pytest.approx(0, abs=1e-9)
    assert all(pair.difference == pytest.approx(0, abs=1e-12) for pair in [*here.ops.values(), here.reads_s])
    assert forecast.ops["attention"].measured == pytest.approx(1.4 * forecast.ops["attention"].predicted)
    assert result.sharpest is result.at_state


def test_what_a_spot_check_does_not_explain_stays_an_error(grid: Path) -> None:
    """A run as probed beside spot checks that are 1.4 x slower is predicted too slow: the checks enter, the run not."""
    add_run(grid, spot_checks=spots(1.4, 1.4))
    result = validated(grid)
    assert result.at_state is not None
    assert result.cells[0].error_frac == pytest.approx(0, abs=1e-9)
    assert -0.29 < result.at_state.cells[0].error_frac < -0.2


def test_repeats_at_different_states_are_quiet_at_their_state(grid: Path) -> None:
    """Noise of the forecast is that of the speeds; at the state it is what the spot checks leave of it."""
    for repeat, state in ((1, MachineState()), (2, MachineState(1.3, 1.3))):
        add_run(grid, repeat=repeat, state=state, spot_checks=spots(state.compute, state.read))
    result = validated(grid)
    assert result.at_state is not None
    speeds = [run.measured_tokens_per_s for run in result.cells[0].runs]
    assert result.cells[0].noise_frac == pytest.approx((max(speeds) - min(speeds)) / np.mean(speeds))
    assert result.cells[0].noise_frac > 0.2
    assert result.at_state.cells[0].noise_frac == pytest.approx(0, abs=1e-9)
    assert result.cells[0].error_frac == pytest.approx(math.sqrt(speeds[0] / speeds[1]) - 1)


def test_the_forecasts_interval_is_as_wide_as_the_machine_drifts(grid: Path) -> None:
    """Spot checks that went 20 % to and fro over the grid widen the forecast of each cell; those of one run do not."""
    exact = without_spreads(load_profile(str(grid / "profile.yaml")))
    for cell, factor in (("a", 1.2), ("b", 1 / 1.2)):
        add_run(grid, cell, spot_checks=spots(factor, factor))
    measured = replace(read_grid(grid), profile=exact)
    result = validate(measured, n_samples=200)
    assert result.at_state is not None
    for forecast, here in zip(result.cells, result.at_state.cells, strict=True):
        assert math.log(forecast.predicted.high / forecast.predicted.low) > 2 * 0.1
        assert forecast.in_interval
        assert math.log(here.predicted.high / here.predicted.low) < 1e-9
        assert not here.in_interval
    assert result.drift.spots == {name: pytest.approx(math.log(1.2)) for name in SPOTS}


def test_a_state_that_changed_meanwhile_is_less_sure(grid: Path) -> None:
    """The interval at the state holds the difference between before and after."""
    exact = without_spreads(load_profile(str(grid / "profile.yaml")))
    add_run(grid, "same", spot_checks=spots())
    add_run(grid, "moved", spot_checks=spots(apart=1.5))
    result = validate(replace(read_grid(grid), profile=exact), n_samples=200)
    assert result.at_state is not None
    moved, same = result.at_state.cells
    assert moved.predicted.value == pytest.approx(same.predicted.value)
    assert math.log(same.predicted.high / same.predicted.low) < 1e-9
    assert math.log(moved.predicted.high / moved.predicted.low) > 0.3


def test_cells_without_spot_checks_are_told(grid: Path) -> None:
    """They have a forecast and no prediction at a state; a grid without any has none at all."""
    add_run(grid, "with", spot_checks=spots(1.1, 1.1))
    add_run(grid, "without")
    result = validated(grid)
    assert result.at_state is not None
    assert [cell.cell for cell in result.cells] == ["with", "without"]
    assert [cell.cell for cell in result.at_state.cells] == ["with"]
    assert "1 of 2 cells have no spot checks, so the machine's state is not known" in result.warnings
    (grid / "cells" / "with-r1" / "cell.json").write_text((grid / "cells" / "without-r1" / "cell.json").read_text())
    assert validated(grid).at_state is None


def test_both_predictions_stand_in_every_table(grid: Path, tmp_path: Path) -> None:
    """JSON, Markdown, CSV and figures; the rules say that micro-benchmarks alone enter."""
    add_run(grid, state=SLOW, spot_checks=spots(1.4, 1.7))
    add_run(grid, "b", state=SLOW, spot_checks=spots(1.4, 1.7), prefetch="none")
    result = validated(grid)
    answer = json.loads(as_json(result))
    assert answer["median_abs_error_frac"] > 0.3
    assert answer["at_state"]["median_abs_error_frac"] < 1e-6
    assert answer["cells"][0]["error"] > 0.3
    assert abs(answer["cells"][0]["at_state"]["error"]) < 1e-6
    assert "no time of any run" in answer["rules"]["at_state"]
    text = as_markdown(result)
    for words in ("forecast within", "at the machine's state within 0.0 %", "Spot checks went from the probe by"):
        assert words in text
    rows = [line for line in text.splitlines() if line.startswith("| all |")]
    assert [row.split(" | ")[1] for row in rows] == ["forecast", "at state"]
    folder = write_validation(result, tmp_path / "out")
    predictions = [line.split(",")[1] for line in (folder / "cells.csv").read_text().splitlines()]
    assert predictions == ["prediction", *["forecast"] * 2, *["at state"] * 2]


# Conditions that must be the same


@pytest.mark.parametrize("name", ["code", "spin_count"])
def test_runs_of_different_code_are_told(grid: Path, name: str) -> None:
    """One warning with both values; runs that agree have none, and the table says which it was."""
    add_run(grid, "a", **{name: "one"})
    add_run(grid, "b", **{name: "one"})
    title = {"code": "code", "spin_count": "GOMP_SPINCOUNT"}[name]
    same = validated(grid)
    assert not [line for line in same.warnings if "NOT COMPARABLE" in line]
    assert same.provenance[title] == "one"
    path = grid / "cells" / "b-r1" / "cell.json"
    write_json(path, json.loads(path.read_text()) | {name: "two"})
    (warning,) = [line for line in validated(grid).warnings if "NOT COMPARABLE" in line]
    assert f"differ in {title}: one, two" in warning


@pytest.mark.parametrize(
    ("notes", "words"),
    [
        ("moeplan 1, kernels and forward pass abc1, numba, GOMP_SPINCOUNT=7", None),
        (
            "moeplan 1, kernels and forward pass abc2, numba, GOMP_SPINCOUNT=7",
            "code is abc2 in the profile and abc1 in",
        ),
        (
            "moeplan 1, kernels and forward pass abc1, numba, GOMP_SPINCOUNT=8",
            "GOMP_SPINCOUNT is 8 in the profile and 7",
        ),
        ("by hand", None),
    ],
)
def test_a_profile_of_other_code_is_told(grid: Path, notes: str, words: str | None) -> None:
    """What the probe wrote into its notes is compared with the runs; a profile that tells nothing is not."""
    add_run(grid, code="abc1", spin_count="7")
    measured = read_grid(grid)
    measured = replace(measured, profile=measured.profile.model_copy(update={"notes": notes}))
    found = [line for line in mixed_conditions(measured) if "NOT COMPARABLE" in line]
    assert len(found) == (words is not None)
    assert all(words in line for line in found if words)


# Without the model's own shape


def table_of(specs: list[ModelSpec]) -> KernelTable:
    """A table of the calls of some models, each taking 1 ns a unit of size, of the first model's types."""
    rows, seen = [], set()
    for spec in specs:
        calls = [*router_calls(spec), *attention_calls(spec, 16.0), *expert_ffn_calls(spec, 1, 1, 0.0)]
        for call in [*calls, *lm_head_calls(spec), *step_calls(spec)]:
            if (key := (call.op, call.type, float(call.size))) not in seen:
                seen.add(key)
                rows.append({"op": call.op, "type": call.type, "size": call.size, "count": 1, "working_set": "1 GB",
                             "threads": 1, "time": f"{max(1.0, call.size)} ns"})  # fmt: skip
    head = {"engine": "made up", "ram_bandwidth": "1 GB/s", "kind": "measured", "source": "made up", "uncertainty": 0.1}
    return KernelTable.model_validate({**head, "rows": rows})


def test_a_shape_between_others_is_predicted_from_them() -> None:
    """The 4B's own rows go; its times come from the line between the tiny and the 21B, and hold where that is true."""
    names = ("tiny-smallthinker", "smallthinker-4b-a0.6b", "smallthinker-21b-a3b")
    small, middle, large = (_as_q4(load_model_spec(name)) for name in names)
    profile = _with_kernels(load_profile("intel-n100"), table_of([small, middle, large]))
    held = without_shape(profile, middle)
    assert held is not None
    assert held.cpu.kernels is not None
    assert profile.cpu.kernels is not None
    own, others = KernelTimes(profile.cpu.kernels, 1), KernelTimes(held.cpu.kernels, 1)
    call, gone = expert_ffn_calls(middle, 1, 1, 0.0)[0], set(profile.cpu.kernels.rows) - set(held.cpu.kernels.rows)
    assert {row.op for row in gone} >= {"gemv", "experts", "router", "attention_rest", "step"}
    assert not [row for row in held.cpu.kernels.rows if (row.op, row.size) == ("experts", call.size)]
    assert others.seconds(call) == pytest.approx(own.seconds(call))
    assert own.seconds(Call("row", "f32", 1)) == others.seconds(Call("row", "f32", 1))


def test_a_shape_at_an_end_keeps_its_rows() -> None:
    """No shape lies below the tiny one, so nothing is extrapolated and no error is told; nor without a kernel table."""
    specs = [_as_q4(load_model_spec(name)) for name in ("tiny-smallthinker", "smallthinker-4b-a0.6b")]
    profile = _with_kernels(load_profile("intel-n100"), table_of(specs))
    assert [without_shape(profile, spec) for spec in specs] == [None, None]
    assert without_shape(load_profile("intel-n100"), specs[0]) is None


def _as_q4(spec: ModelSpec) -> ModelSpec:
    types = spec.tensor_types.model_copy(
        update=dict.fromkeys(("embedding", "attention", "experts", "dense_ffn", "lm_head"), "q4_0")
    )
    return spec.model_copy(update={"tensor_types": types})


def _with_kernels(profile: HardwareProfile, table: KernelTable) -> HardwareProfile:
    return profile.model_copy(update={"cpu": profile.cpu.model_copy(update={"kernels": table, "threads": 1})})


# The noise of a run


def test_the_standard_error_by_hand() -> None:
    """Independent residuals: standard deviation over sqrt(n); what the prediction knows is no noise."""
    rng = np.random.default_rng(0)
    pattern = np.where(np.arange(4000) % 7 == 0, 3.0, 1.0)  # tokens with many misses
    noise = 1 + 0.05 * rng.standard_normal(4000)
    assert standard_error_frac(pattern, 2 * pattern) == pytest.approx(0, abs=1e-12)
    assert standard_error_frac(noise, np.ones(4000)) == pytest.approx(0.05 / math.sqrt(4000), rel=0.1)
    assert standard_error_frac(np.ones(1), np.ones(1)) == 0


def test_slow_waves_make_a_mean_less_sure() -> None:
    """Token times in blocks of 20 alike tell as much as one time each: the standard error is that of the blocks."""
    rng = np.random.default_rng(1)
    single = 1 + 0.05 * rng.standard_normal(200)
    blocks = np.repeat(single, 20)
    once, waves = standard_error_frac(single, np.ones(200)), standard_error_frac(blocks, np.ones(4000))
    assert waves == pytest.approx(once, rel=0.25)


def test_the_margin_is_the_noise_of_its_own_rows() -> None:
    """Attention about its layer's median, reads about those with as many misses; between such groups nothing counts."""
    rng = np.random.default_rng(2)
    n = 4000
    layer, misses = rng.integers(0, 4, n), rng.integers(1, 4, n)
    attention = (1.0 + layer) * np.exp(0.03 * rng.standard_normal(n))
    read = 1.0 * misses * np.exp(0.04 * rng.standard_normal(n))
    index = pd.MultiIndex.from_arrays([np.arange(n), layer], names=["token", "layer"])
    rows = pd.DataFrame({"attention": attention, "read": read, "n_misses": misses}, index=index)
    assert boundary_margin(rows) == pytest.approx(CLEAR_Z * 0.05, rel=0.1)
    assert boundary_margin(rows.iloc[:1]) == 0
    assert boundary_margin(rows.assign(n_misses=0)) == 0


def test_an_interval_is_widened_in_quadrature() -> None:
    """3 and 4 give 5, on a logarithmic scale; without noise it is what it was."""
    interval = Interval(10.0, 10.0 / math.exp(0.3), 10.0 * math.exp(0.3))
    wider = widened(interval, 0.4 / 1.2815515655446004)
    assert (wider.low, wider.high) == (pytest.approx(10 / math.exp(0.5)), pytest.approx(10 * math.exp(0.5)))
    assert widened(interval, 0.0) == Interval(10.0, pytest.approx(interval.low), pytest.approx(interval.high))


def test_a_median_of_ratios_is_the_ratio_of_medians() -> None:
    """Of an even number too, so that a prediction that is the same for each run is shown as it is."""
    values = [3.0, 8.0, 4.0, 16.0]
    assert log_median(values) == pytest.approx(math.sqrt(32))
    assert log_median(12 / value for value in values) == pytest.approx(12 / log_median(values))
    assert log_median([5.0, 5.0]) == 5.0
