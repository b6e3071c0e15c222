"""The machine's state in the predictions: spot checks explain what is no error of the model; no run's time enters."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from validation_grids import SPOTS, add_run, spots, start_grid, without_spreads, write_json

from hardware_profiles.catalog import load_profile
from hardware_profiles.kernel_table import Call, KernelTable, KernelTimes
from hardware_profiles.schema import HardwareProfile
from reports.validation_files import as_json, as_markdown, write_validation
from simulator.expert_layout import expert_layout
from simulator.kernel_calls import attention_calls, expert_ffn_calls, lm_head_calls, router_calls, step_calls
from simulator.model.catalog import load_model_spec
from simulator.model.spec import ModelSpec
from simulator.validation.grid_cells import read_grid
from simulator.validation.held_out import without_shape
from simulator.validation.machine_state import (
    MachineState,
)
from simulator.validation.provenance import mixed_conditions
from simulator.validation.result import ValidationResult
from simulator.validation.validate import validate

SLOW = MachineState(compute=1.4, read=1.7)


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """A folder with profile and model, and no run yet."""
    start_grid(tmp_path)
    return tmp_path


def validated(folder: Path) -> ValidationResult:
    return validate(read_grid(folder), n_samples=20)


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
    """Noise is that of the speeds, whatever is predicted; at the state each run has the error of its cell."""
    for repeat, state in ((1, MachineState()), (2, MachineState(1.3, 1.3))):
        add_run(grid, repeat=repeat, state=state, spot_checks=spots(state.compute, state.read))
    result = validated(grid)
    assert result.at_state is not None
    speeds = [run.measured_tokens_per_s for run in result.cells[0].runs]
    assert result.cells[0].noise_frac == pytest.approx((max(speeds) - min(speeds)) / np.mean(speeds))
    assert result.cells[0].noise_frac > 0.2
    assert result.at_state.cells[0].noise_frac == result.cells[0].noise_frac
    assert [run.error_frac for run in result.at_state.cells[0].runs] == pytest.approx(
        [result.at_state.cells[0].error_frac] * 2, abs=1e-9
    )
    assert result.cells[0].error_frac == pytest.approx(math.sqrt(speeds[0] / speeds[1]) - 1)


def test_only_the_wide_interval_is_as_wide_as_the_machine_drifts(grid: Path) -> None:
    """
    Spot checks that went 20 % to and fro over the grid: the interval that a user of the profile is given does not know
    of it, the wide one does; at the state both are as narrow.
    """
    exact = without_spreads(load_profile(str(grid / "profile.yaml")))
    for cell, factor in (("a", 1.2), ("b", 1 / 1.2)):
        add_run(grid, cell, spot_checks=spots(factor, factor))
    measured = replace(read_grid(grid), profile=exact)
    result = validate(measured, n_samples=200)
    assert result.at_state is not None
    for forecast, here in zip(result.cells, result.at_state.cells, strict=True):
        assert math.log(forecast.predicted.high / forecast.predicted.low) < 1e-9
        wide = forecast.runs[0].wide_speed
        assert math.log(wide.high / wide.low) > 2 * 0.1
        assert forecast.in_interval_with_noise
        assert here.runs[0].wide_speed == here.runs[0].speed
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
    assert [row.split(" | ")[1] for row in rows] == ["forecast", "at state", "1"]  # the last one is of verdicts
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
    kernels = held.profile.cpu.kernels
    assert kernels is not None
    assert profile.cpu.kernels is not None
    own, others = KernelTimes(profile.cpu.kernels, 1), KernelTimes(kernels, 1)
    call, gone = expert_ffn_calls(middle, 1, 1, 0.0)[0], set(profile.cpu.kernels.rows) - set(kernels.rows)
    assert {row.op for row in gone} >= {"gemv", "experts", "router", "attention_rest", "step"}
    assert not [row for row in kernels.rows if (row.op, row.size) == ("experts", call.size)]
    assert others.seconds(call) == pytest.approx(own.seconds(call))
    assert own.seconds(Call("row", "f32", 1)) == others.seconds(Call("row", "f32", 1))


def test_an_op_of_two_shapes_keeps_its_rows_and_says_so() -> None:
    """Issuing reads was timed for the tiny and the 4B alone: no third shape lies above, so the 4B keeps its own."""
    names = ("tiny-smallthinker", "smallthinker-4b-a0.6b", "smallthinker-21b-a3b")
    specs = [_as_q4(load_model_spec(name)) for name in names]
    table = table_of(specs)
    sizes = [float(expert_layout(spec, "bundle").padded_bytes) for spec in specs[:2]]
    issue = [table.rows[0].model_copy(update={"op": "issue", "type": "f32", "size": size}) for size in sizes]
    profile = load_profile("intel-n100")
    found = without_shape(_with_kernels(profile, table.model_copy(update={"rows": (*table.rows, *issue)})), specs[1])
    assert found is not None
    assert "issue" in found.kept
    assert found.profile.cpu.kernels is not None
    assert set(issue) <= set(found.profile.cpu.kernels.rows)
    without = without_shape(_with_kernels(profile, table), specs[1])
    assert without is not None
    assert (found.kept, without.kept) == (("issue",), ())
    assert not {"gemv", "experts"} & set(found.kept)


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
