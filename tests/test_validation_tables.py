"""From runs to figures: cells, classes, baselines, drift; what is written; and the command."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Outcome, assert_one_line, device_rates, random_trace, tiny_model
from validation_grids import add_run, slower, start_grid, unchanged, write_json

from hardware_profiles.catalog import load_profile
from moeplan.errors import InputError
from reports.validation_files import (
    as_csv,
    as_json,
    as_markdown,
    cell_rows,
    folder_name,
    layer_rows,
    markdown_table,
    write_validation,
)
from reports.validation_tables import TextTable
from simulator.result import Interval
from simulator.scenario import Scenario, steps_of
from simulator.validation.baselines import fit_law, law_errors, leave_one_out, naive_tokens_per_s
from simulator.validation.cell_result import CellComparison, Conditions, CountPair, Pair, RunComparison, Verdicts
from simulator.validation.drift import drift, reprobe
from simulator.validation.grid_cells import read_grid
from simulator.validation.result import ValidationResult
from simulator.validation.tables import cell_comparison, class_of, n_boundary_cells, spread_frac, summaries
from simulator.validation.validate import validate

CONDITIONS = Conditions("m", "tiny", 10_000_000, None, "none", 32, 1, "own")


def made_run(measured: float = 10.0, predicted: float = 10.0, wait_s: float = 0.0, **changes: object) -> RunComparison:
    """A run in round numbers: 10 tokens, 30 hits and 10 misses of 1 MB, read at 100 MB/s."""
    fields: dict = {
        "repeat": 1, "order": 0, "started_at": "2030-01-02", "n_counted": 10,
        "speed": Interval(predicted, 0.9 * predicted, 1.1 * predicted), "measured_tokens_per_s": measured,
        "wide_speed": Interval(predicted, 0.8 * predicted, 1.2 * predicted),
        "naive_tokens_per_s": 2 * measured, "slots": Pair(4, 4),
        "counts": CountPair((30, 10, 10_000_000), (30, 10, 10_000_000)), "read_s": 0.01,
        "ops": {"attention": Pair(0.5, 1 / measured - wait_s), "wait": Pair(wait_s, wait_s)},
        "reads_s": Pair(0.01, 0.01), "miss_wait_s": Pair(wait_s, wait_s), "attention_alone_s": None,
        "attention_reading_s": None, "layers": (), "verdicts": Verdicts(), "clear_verdicts": Verdicts(),
        "read_ratio": None, "n_prompt": 0, "prompt_s": None, "measured_prompt_s": None, "gate_sparsity": None,
    }  # fmt: skip
    return RunComparison(**(fields | changes))


def made_cell(name: str = "a", conditions: Conditions = CONDITIONS, **run: object) -> CellComparison:
    """A cell of one made-up run."""
    return cell_comparison(name, conditions, [made_run(**run)])  # type: ignore[arg-type]


def law_cell(name: str, x: float, seconds: float, **conditions: object) -> CellComparison:
    """A cell whose miss rate is x and whose token takes so many seconds; our prediction is 10 % too fast."""
    counts = (round(1000 * (1 - x)), round(1000 * x), round(1e9 * x))
    run = made_run(measured=1 / seconds, predicted=1.1 / seconds, counts=CountPair(counts, counts))
    return cell_comparison(name, replace(CONDITIONS, **conditions), [run])  # type: ignore[arg-type]


def test_a_cell_is_the_median_of_its_runs() -> None:
    """Speed, error and noise by hand; one run has no noise."""
    runs = [made_run(measured, 11.0) for measured in (9.0, 10.0, 12.0)]
    cell = cell_comparison("a", CONDITIONS, runs)
    assert cell.measured_tokens_per_s == 10.0
    assert cell.error_frac == pytest.approx(0.1)
    assert cell.noise_frac == pytest.approx(0.3)
    assert cell.in_interval
    drifted = made_cell(measured=13.2, predicted=11.0)
    assert (drifted.in_interval, drifted.in_interval_with_noise) == (False, True)
    assert cell.miss_rate == 0.25
    assert cell.bytes_per_token == 1e6
    assert made_cell().noise_frac is None
    assert not made_cell(measured=20.0, predicted=10.0).in_interval


def test_the_class_is_the_measured_share_of_waiting() -> None:
    """Below 5 % compute-bound, above 40 % storage-bound; waiting without a miss is not counted."""
    classes = [class_of(share) for share in (0.0, 0.049, 0.05, 0.4, 0.41)]
    assert classes == ["compute-bound"] * 2 + ["balanced"] * 2 + ["storage-bound"]
    assert made_cell(wait_s=0.05).cell_class == "storage-bound"
    assert made_cell(wait_s=0.05, miss_wait_s=Pair(0.0, 0.001)).cell_class == "compute-bound"


def test_summaries_by_hand() -> None:
    """All and quiet cells, by class; a cell that ran once is not quiet, since nobody knows."""
    noisy = cell_comparison("n", CONDITIONS, [made_run(9.0, 15.0), made_run(11.0, 15.0)])
    quiet = cell_comparison("q", CONDITIONS, [made_run(10.0, 10.5), made_run(10.1, 10.5), made_run(10.0, 10.5)])
    groups = {(group.group, group.quiet): group for group in summaries([noisy, quiet, made_cell("o", predicted=8.0)])}
    assert groups["all", False].n_cells == 3
    assert groups["all", False].median_abs_error_frac == pytest.approx(0.2)
    assert groups["all", False].interval_coverage_frac == pytest.approx(1 / 3)
    assert groups["all", False].naive_median_abs_error_frac == pytest.approx(1.0)
    assert groups["all", True].n_cells == 1
    assert groups["all", True].p90_abs_error_frac == pytest.approx(0.05)
    assert groups["storage-bound", False].median_abs_error_frac is None


def test_the_spread_and_the_boundary() -> None:
    """(max - min) / median; near the boundary from half to twice."""
    assert spread_frac([8.0, 10.0, 11.0]) == pytest.approx(0.3)
    ratios = (None, 0.49, 0.5, 1.0, 2.0, 2.1)
    assert n_boundary_cells([made_cell(read_ratio=ratio) for ratio in ratios]) == 3


def test_the_law_is_found_where_it_holds() -> None:
    """Data made by 1 / (a + b x) give a and b back, and no error on cells that were not fitted."""
    cells = [law_cell(str(i), x, 0.02 + 0.3 * x) for i, x in enumerate((0.1, 0.25, 0.5, 0.75))]
    a, b = fit_law(cells, lambda cell: cell.miss_rate)
    assert (a, b) == (pytest.approx(0.02), pytest.approx(0.3))
    held = [law_cell("h", 0.9, 0.02 + 0.3 * 0.9), law_cell("twice", 0.9, 0.5 * (0.02 + 0.3 * 0.9))]
    assert law_errors(cells, held, lambda cell: cell.miss_rate) == (pytest.approx(0.25), pytest.approx(0.45))
    assert law_errors(cells[:2], held, lambda cell: cell.miss_rate) is None


def test_a_law_never_has_a_negative_term() -> None:
    """Cells that get faster with misses are fitted by a constant."""
    cells = [law_cell(str(i), x, 0.1 - 0.05 * x) for i, x in enumerate((0.1, 0.5, 0.9))]
    a, b = fit_law(cells, lambda cell: cell.miss_rate)
    assert b == 0
    assert 0.05 < a < 0.1


def test_a_law_without_any_time_is_the_worst_and_still_a_number() -> None:
    """Cells that all miss, fitted on cells of which it takes no constant, and one without a miss: 1 / 0 tokens/s."""
    cells = [law_cell(str(i), x, 0.3 * x) for i, x in enumerate((0.25, 0.5, 0.75))]
    errors = law_errors(cells, [law_cell("all", 0.0, 0.1)] * 3, lambda cell: cell.miss_rate)
    assert errors is not None
    assert errors[0] > 1e3
    assert all(map(math.isfinite, errors))


def test_leave_one_out_fits_on_the_others_alone() -> None:
    """The held value's own cells have no part in the law; ours is the cells' error; what does not vary has no row."""
    slow = [law_cell(f"s{x}", x, 5 * (0.02 + 0.3 * x), prefetch="none") for x in (0.1, 0.4, 0.8)]
    fast = [law_cell(f"f{x}", x, 0.02 + 0.3 * x, prefetch="pre-attention") for x in (0.1, 0.4, 0.8)]
    rows = leave_one_out([*slow, *fast])
    assert [(row.condition, row.value) for row in rows] == [("prefetch", "none"), ("prefetch", "pre-attention")]
    assert rows[0].law_miss_rate == (pytest.approx(4.0), pytest.approx(4.0))
    assert rows[1].law_miss_rate == (pytest.approx(0.8), pytest.approx(0.8))
    assert all(row.ours == (pytest.approx(0.1), pytest.approx(0.1)) for row in rows)
    assert [(row.n_cells, row.n_fitted) for row in rows] == [(3, 3), (3, 3)]


def test_laws_are_fitted_by_model_class_where_they_can() -> None:
    """Two models that each follow a law of their own are no error; a class that is left out takes the others' law."""
    cells = [
        law_cell(f"{name}{x}{prefetch}", x, factor * (0.02 + 0.3 * x), model_class=name, prefetch=prefetch)
        for name, factor in (("tiny", 1.0), ("4b", 10.0))
        for x in (0.1, 0.4, 0.8)
        for prefetch in ("none", "pre-attention")
    ]
    rows = {(row.condition, row.value): row.law_miss_rate for row in leave_one_out(cells)}
    assert rows["prefetch", "none"] == (pytest.approx(0, abs=1e-9), pytest.approx(0, abs=1e-9))
    assert rows["model class", "4b"] == (pytest.approx(9.0), pytest.approx(9.0))


def test_the_naive_formula_by_hand() -> None:
    """The longer of all bytes over RAM bandwidth and the bytes read over the read rate."""
    model = tiny_model()
    steps = steps_of(random_trace(0, 10, 3, 8, 2), context=None)
    scenario = Scenario(model, device_rates(gemv_flop_per_s=1e15), steps, n_slots=4)
    weights = 3 * (8 * 64 * 4 + (64 * 128 * 2 + 64 * 64 * 2) * 34 / 32)  # router F32; q, o, k, v Q8_0
    keys_and_values = 3 * 6 * 2 * 64 * 2  # the middle one of ten tokens sees six, F16
    experts = 3 * 2 * 3 * 64 * 32 * 34 / 32 * (1 / 3 + 2 / 3 * (1 - 0.7))
    rows = (128 + 1) * 64 * 34 / 32  # LM head and one embedding
    about = (weights + keys_and_values + experts + rows) / 1e9
    assert 1 / naive_tokens_per_s(scenario, 0.0, 1e9) == pytest.approx(about, rel=0.02)  # norms
    assert naive_tokens_per_s(scenario, 5e6, 1e8) == pytest.approx(20.0)


def test_drift_is_seen_through_the_conditions() -> None:
    """Cells of other speeds that all lose 10 % from the first to the last run show this, and nothing else."""
    speeds = {"a": 10.0, "b": 100.0, "c": 50.0}
    cells = []
    for shift, (name, speed) in enumerate(speeds.items()):
        orders = (shift, 3 + shift, 6 + shift)
        runs = [made_run(speed * (1 - 0.1 * order / 8), repeat=i, order=order) for i, order in enumerate(orders)]
        cells.append(cell_comparison(name, CONDITIONS, runs))
    found = drift(cells)
    assert [point.order for point in found.points] == list(range(9))
    assert found.slope_frac == pytest.approx(-0.1, abs=0.015)
    assert found.slope_error_frac == pytest.approx(0, abs=0.02)
    assert drift([made_cell()]).slope_frac is None


def test_a_second_probe_is_compared_figure_by_figure() -> None:
    """After over before, for what was measured."""
    before = load_profile("intel-n100")
    cpu = before.cpu.model_copy(
        update={"op_overhead": before.cpu.op_overhead.model_copy(update={"kind": "measured", "value": 2e-6})}
    )
    first = before.model_copy(update={"cpu": cpu})
    twice = cpu.model_copy(update={"op_overhead": cpu.op_overhead.model_copy(update={"value": 3e-6})})
    changed = reprobe(first, first.model_copy(update={"cpu": twice}))
    assert changed["cpu.op_overhead"] == pytest.approx(1.5)
    assert all(ratio == 1 for key, ratio in changed.items() if key != "cpu.op_overhead")
    assert reprobe(first, None) == {}


# A whole grid


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three cells, two runs each; one of them has a slow attention, one run is not whole."""
    folder = tmp_path_factory.mktemp("grid")
    start_grid(folder)
    for cell, change, conditions in (
        ("exact", unchanged, {}),
        ("slow|er", slower("attention", 1.5), {"prefetch": "none"}),
        ("limited", unchanged, {"storage_limit_bytes_per_s": 50e6, "ram_cap_bytes": 300_000}),
    ):
        for repeat in (1, 2):
            add_run(folder, cell, repeat, change, **conditions)  # type: ignore[arg-type]
    (folder / "cells" / "stopped-r1").mkdir()
    (folder / "cells" / ".running").mkdir()
    return folder


@pytest.fixture(scope="module")
def result(grid: Path) -> ValidationResult:
    return validate(read_grid(grid), provenance={"command": "moeplan validate grid"}, n_samples=20)


def test_the_json_is_the_contracts(result: ValidationResult) -> None:
    """Field names, and numbers that are those of the cells."""
    answer = json.loads(as_json(result))
    assert answer["n_cells"] == len(answer["cells"]) == 3
    assert answer["counts_equal"] is True
    assert answer["bytes_equal"] is True
    errors = sorted(abs(cell["error"]) for cell in answer["cells"])
    assert answer["median_abs_error_frac"] == pytest.approx(errors[1], abs=1e-4)
    assert errors[1] < 1e-9 < 0.05 < errors[2]
    assert answer["verdict_agreement_frac"] == answer["verdicts"]["clear"]["balanced_frac"]
    inside = {cell["cell"]: cell["in_interval"] for cell in answer["cells"]}
    assert inside["exact"]
    assert inside["limited"]
    assert answer["interval_coverage_frac"] == pytest.approx(sum(inside.values()) / 3, abs=1e-3)
    assert answer["at_state"] is None
    for cell in answer["cells"]:
        assert {"conditions", "predicted", "measured", "error", "noise"} <= set(cell)
        assert cell["noise"] == 0
    assert {cell["cell"]: cell["worst_op"] for cell in answer["cells"]}["slow|er"] == "attention"
    assert answer["provenance"]["cpu"] == "Some CPU @ 3 GHz"
    assert [warning for warning in answer["warnings"] if "not whole" in warning] == [
        "stopped-r1 is not whole and was left out"
    ]


def test_the_files_are_whole_small_and_the_same_each_time(result: ValidationResult, tmp_path: Path) -> None:
    """The folder bears date and machine; a second writing gives the same bytes; nothing else is left."""
    folder = write_validation(result, tmp_path)
    assert folder == tmp_path / "2030-01-02-some-cpu-3-ghz"
    names = {path.name for path in folder.iterdir()}
    assert names == {"table.md", "table.html", "cells.csv", "layers.csv", "scatter.png", "drift.png"}
    files = [*folder.iterdir(), tmp_path / "latest.json"]
    first = {path: path.read_bytes() for path in files}
    assert sum(map(len, first.values())) < 100_000
    write_validation(result, tmp_path)
    assert {path: path.read_bytes() for path in files} == first
    assert (tmp_path / "latest.json").read_text() == as_json(result)
    assert all(first[folder / name].startswith(b"\x89PNG") for name in ("scatter.png", "drift.png"))


def test_tables_name_what_is_off_and_how_it_was_made(result: ValidationResult) -> None:
    """Markdown and HTML hold the worst cell with its reason, the rules, the command; a cell's name breaks nothing."""
    text = as_markdown(result)
    assert "attention -" in text
    assert "| slow\\|er |" in text
    assert "- command: moeplan validate grid" in text
    assert "compute-bound below 5 %" in text
    assert "## Leave one condition out" in text
    widths = {line.replace("\\|", "").count("|") for line in text.splitlines() if line.startswith("| slow")}
    assert widths == {6, 8, 18}


def test_layers_and_cells_as_csv(result: ValidationResult) -> None:
    """A column a layer, predicted and measured beside each other; the cells' numbers by name."""
    header, first, second = as_csv(layer_rows(result.cells)).splitlines()[:3]
    assert header == "cell,figure,side,0,1,2"
    assert first.split(",")[:3] == ["exact", "t_attention_us", "predicted"]
    assert second.replace("measured", "predicted") == first
    assert len(as_csv(cell_rows(result, "forecast")).splitlines()) == 4


def test_csv_and_markdown_of_nothing() -> None:
    """No rows make no table, and a bar in a cell is escaped."""
    assert as_csv([]) == ""
    table = markdown_table(TextTable("T", ("a", "b"), [("x|y", "1")]))
    assert table == "## T\n\n| a | b |\n| --- | ---: |\n| x\\|y | 1 |"


def test_the_folder_name_is_safe(result: ValidationResult) -> None:
    """Whatever the processor calls itself."""
    odd = replace(result, provenance={"cpu": "../A/B (R) \n", "measured_from": "soon"})
    assert folder_name(odd) == "undated-a-b-r"


def test_one_cell_must_have_one_set_of_conditions(grid: Path) -> None:
    """Repeats of a cell under another cap are refused by name."""
    path = grid / "cells" / "exact-r2" / "cell.json"
    before = path.read_text()
    try:
        write_json(path, json.loads(before) | {"ram_cap_bytes": 400_000})
        with pytest.raises(InputError, match="conditions"):
            validate(read_grid(grid), n_samples=0)
    finally:
        path.write_text(before)


# The command


def test_the_command_prints_and_writes(grid: Path, tmp_path: Path, moeplan: Callable[..., Outcome]) -> None:
    """--json prints what latest.json holds; without it the table names cells, errors and reasons."""
    outcome = moeplan("validate", str(grid), "--json", "--output-folder", str(tmp_path))
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out == (tmp_path / "latest.json").read_text()
    assert json.loads(outcome.out)["provenance"]["command"].startswith("moeplan validate")
    outcome = moeplan("validate", str(grid), "--output-folder", str(tmp_path))
    assert outcome.status == 0
    for words in ("3 cells, decode tokens/s", "Hits and misses: equal", "slow|er", "compute-bound", "Leave one"):
        assert words in outcome.out
    assert all(len(line) <= 100 for line in outcome.out.splitlines() if not line.startswith("written: "))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("cell.json", "{", ["cell.json", "JSON"]),
        ("cell.json", "[]", ["cell.json", "object"]),
        ("cell.json", '{"schema_version": 1, "ram_cap": 5}', ["cell.json", "'cell' must be given"]),
        ("run.json", "{}", ["run.json", "must be given"]),
        ("ops.parquet", "no parquet", ["ops.parquet"]),
        ("trace.parquet", "no parquet", ["trace.parquet"]),
    ],
)
def test_a_broken_file_is_named(
    tmp_path: Path, moeplan: Callable[..., Outcome], name: str, text: str, words: list[str]
) -> None:
    """One line with the file, exit status 2, nothing written."""
    start_grid(tmp_path)
    (add_run(tmp_path).folder / name).write_text(text)
    outcome = moeplan("validate", str(tmp_path), "--output-folder", str(tmp_path / "out"))
    assert_one_line(outcome, *words)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_grid_is_refused(tmp_path: Path, moeplan: Callable[..., Outcome]) -> None:
    """No profile, no runs, no folder at all, or both of DIR and --public."""
    assert_one_line(moeplan("validate", str(tmp_path)), "profile.yaml")
    start_grid(tmp_path)
    assert_one_line(moeplan("validate", str(tmp_path)), "cells")
    assert_one_line(moeplan("validate"), "DIR or --public")
    assert_one_line(moeplan("validate", str(tmp_path), "--public"), "both")


def test_counted_tokens_must_be_the_runs(tmp_path: Path) -> None:
    """cell.json and run.json that do not belong together are refused."""
    start_grid(tmp_path)
    path = add_run(tmp_path).folder / "cell.json"
    write_json(path, json.loads(path.read_text()) | {"n_counted": 3})
    with pytest.raises(InputError, match="n_counted 3"):
        read_grid(tmp_path)
