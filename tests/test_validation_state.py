"""Whether profile and runs belong together: drift, order of events, machine; and a model without its own rows."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from validation_grids import SPOTS, add_run, spots, start_grid, without_spreads, write_json

from hardware_profiles.catalog import load_profile
from hardware_profiles.kernel_table import Call, KernelTable, KernelTimes
from hardware_profiles.schema import HardwareProfile
from moeplan.errors import InputError
from reports.validation_findings import check_text, findings
from reports.validation_tables import machine_table
from simulator.expert_layout import expert_layout
from simulator.kernel_calls import attention_calls, expert_ffn_calls, lm_head_calls, router_calls, step_calls
from simulator.model.catalog import load_model_spec
from simulator.model.spec import ModelSpec
from simulator.validation.grid_cells import MeasuredGrid, read_grid
from simulator.validation.held_out import without_shape
from simulator.validation.provenance import mixed_conditions, order_of_events, order_warnings
from simulator.validation.result import ValidationResult
from simulator.validation.validate import validate


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """A folder with profile and model, and no run yet."""
    start_grid(tmp_path)
    return tmp_path


def validated(folder: Path) -> ValidationResult:
    return validate(read_grid(folder), n_samples=20)


# A grid with spot checks


def test_only_the_wide_interval_is_as_wide_as_the_machine_drifts(grid: Path) -> None:
    """
    Spot checks that went 20 % to and fro over the grid: the interval that a user of the profile is given does not know
    of it, the wide one does; the prediction itself stays.
    """
    exact = without_spreads(load_profile(str(grid / "profile.yaml")))
    for cell, factor in (("a", 1.2), ("b", 1 / 1.2)):
        add_run(grid, cell, spot_checks=spots(factor, factor))
    result = validate(replace(read_grid(grid), profile=exact), n_samples=200)
    for cell in result.cells:
        assert cell.error_frac == pytest.approx(0, abs=1e-9)
        assert math.log(cell.predicted.high / cell.predicted.low) < 1e-9
        wide = cell.runs[0].wide_speed
        assert wide.value == cell.predicted.value
        assert 2 * 0.1 < math.log(wide.high / wide.low) < 2 * 0.3
        assert cell.in_interval_with_noise
    assert result.drift.spots == {name: pytest.approx(math.log(1.2)) for name in SPOTS}


def test_runs_without_spot_checks_are_told(grid: Path) -> None:
    """How many of them; where all have some there is no warning."""
    add_run(grid, "with", spot_checks=spots(1.1, 1.1))
    assert not [line for line in validated(grid).warnings if "spot checks" in line]
    add_run(grid, "without")
    assert "1 of 2 runs have no spot checks, so the interval with drift knows less" in validated(grid).warnings


def test_spot_checks_are_explained_and_told(grid: Path) -> None:
    """The page says what each check does, and how far it lay from the probe."""
    add_run(grid, spot_checks=spots(1.1, 1.3))
    rows = dict(machine_table(validated(grid)).rows)
    assert rows == {
        "a decode token of a model with experts of 20 KB, on 1 thread (small_token_t1)": "9.5 % from the probe's",
        "a burst of reads of 64 KiB each (burst_64KiB)": "26.2 % from the probe's",
    }
    assert check_text("large_token_t2").startswith("a decode token of a model with experts of 2 MB, on 2 threads")
    assert check_text("new") == "new"


# The order of events

NOTES = "{} UTC; Some CPU, 4 cores, 15.5 GiB; Linux 6.1 x86_64, Python 3.11.7, numpy 2.4.6 with blas"


def noted(folder: Path, before: str, after: str | None = None) -> MeasuredGrid:
    """A grid of runs from 03:04:01 on whose profiles say that they were probed at these times of the same day."""
    measured = read_grid(folder)

    def at(when: str) -> HardwareProfile:
        return measured.profile.model_copy(update={"notes": NOTES.format(f"2030-01-02 {when}")})

    return replace(measured, profile=at(before), profile_after=None if after is None else at(after))


def test_the_order_of_probe_and_runs_is_told_by_their_times(grid: Path) -> None:
    """In time there is no warning; a profile of after the first run is not a prediction, and a text says so."""
    for repeat in (1, 2):
        add_run(grid, repeat=repeat)
    in_time = noted(grid, "03:01", "03:05")
    assert order_warnings(in_time) == []
    assert order_of_events(in_time) == (
        "the profile was probed 2030-01-02 03:01 UTC, before the first run; the runs began 2030-01-02 03:04 UTC to "
        "2030-01-02 03:04 UTC; it was probed again 2030-01-02 03:05 UTC, after the last run began"
    )
    late = noted(grid, "04:10", "03:02")
    told = order_warnings(late)
    assert told[0].startswith(
        "NOT PREDICTED BEFOREHAND: the profile was probed 2030-01-02 04:10 UTC, after the first run"
    )
    assert told[1].startswith("the second probe (2030-01-02 03:02 UTC) was before the last run began")
    assert "AFTER the first run" in order_of_events(late)
    assert "BEFORE the last run began" in order_of_events(late)
    result = validate(late, n_samples=0)
    assert set(told) <= set(result.warnings)
    assert result.provenance["probed_at"] == "2030-01-02 04:10 UTC"
    assert f"Order: {order_of_events(late)}." in findings(result)
    assert "Probed again (2030-01-02 03:02 UTC)" in machine_table(result).note


def test_a_profile_that_tells_no_time_says_so(grid: Path) -> None:
    """One made by hand has no order to check, and none is claimed."""
    add_run(grid)
    measured = read_grid(grid)
    assert order_of_events(measured).startswith("the profile does not tell when it was probed; ")
    assert order_warnings(measured) == []
    assert "probed_at" not in validated(grid).provenance


# Conditions that must be the same


@pytest.mark.parametrize(
    ("condition", "other", "words"),
    [
        ("cpu", "Other CPU", "cpu is Some CPU in the profile and Other CPU in the runs"),
        ("cores", "8", "cores is 4 in the profile and 8 in the runs"),
        ("ram_bytes", str(8 * 2**30), "RAM is 15.5 GiB in the profile and 8.00 GiB in the runs"),
        ("system", "Linux 5.0 x86_64", "system is Linux 6.1 x86_64 in the profile and Linux 5.0 x86_64 in the runs"),
        ("numpy", "1.0", "numpy is 2.4.6 in the profile and 1.0 in the runs"),
    ],
)
def test_another_machine_is_told(grid: Path, condition: str, other: str, words: str) -> None:
    """Processor, cores, RAM, system and numpy of the probe's notes against the runs'; the same ones are no warning."""
    path = add_run(grid).folder / "run.json"
    run = json.loads(path.read_text())
    same = {"cpu": "Some CPU", "cores": "4", "ram_bytes": str(int(15.5 * 2**30)), "system": "Linux 6.1 x86_64"}
    for change, expected in (({}, []), ({condition: other}, [words])):
        write_json(path, run | {"conditions": run["conditions"] | same | {"numpy": "2.4.6"} | change})
        found = mixed_conditions(noted(grid, "03:01", "03:05"))
        assert found == [f"NOT COMPARABLE: {text}; probe and run again" for text in expected]


def test_threads_that_were_not_probed_are_named(grid: Path) -> None:
    """The run's file and the profile's threads, and no option of another command."""
    path = add_run(grid).folder / "cell.json"
    write_json(path, json.loads(path.read_text()) | {"threads": 2})
    with pytest.raises(InputError, match=r"cell\.json: threads must be 1, for which profile\.yaml was probed, got 2"):
        read_grid(grid)


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
