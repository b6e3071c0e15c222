"""A validated grid as it is written; and the command."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Outcome, assert_one_line
from validation_cells import CONDITIONS, made_cell
from validation_grids import add_run, slower, start_grid, unchanged, write_json

from moeplan.errors import InputError
from reports.validation_files import (
    as_csv,
    as_html,
    as_json,
    as_markdown,
    cell_rows,
    folder_name,
    layer_rows,
    markdown_table,
    write_validation,
)
from reports.validation_findings import findings
from reports.validation_tables import held_out_table
from reports.validation_text import TextTable
from simulator.validation.cell_result import CountPair
from simulator.validation.grid_cells import read_grid
from simulator.validation.group_rows import held_out_rows
from simulator.validation.result import HeldOutRow, ValidationResult
from simulator.validation.validate import validate

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
    assert answer["clear_balanced_frac"] == answer["verdicts"][0]["clear_verdicts"]["balanced_frac"]
    inside = {cell["cell"]: cell["in_interval"] for cell in answer["cells"]}
    assert inside["exact"]
    assert inside["limited"]
    assert answer["interval_coverage_frac"] == pytest.approx(sum(inside.values()) / 3, abs=1e-3)
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
    assert widths == {5, 7, 10}
    assert "errors of its runs" in text
    assert text.startswith("# 3 cells: decode speed predicted within 0.0 % (median); all within ")
    assert text.count(result.rules["classes"]) == 1


def test_the_box_is_never_green_and_tells_different_decisions(result: ValidationResult) -> None:
    """Equal counts are a check and no success, as both sides run the same code; different ones are a failure."""
    assert '<section class="answer "' in as_html(result)
    assert findings(result)[0].startswith("Consistency check: hits, misses and bytes are equal in all 6 runs.")
    first, *others = result.cells
    run = replace(first.runs[0], counts=CountPair((1, 2, 3), (1, 3, 3)))
    wrong = replace(result, cells=(replace(first, runs=(run,)), *others))
    assert '<section class="answer no"' in as_html(wrong)
    told = "Consistency check failed, so no error below means anything: hits and misses are DIFFERENT in 1 cell (exact)"
    assert findings(wrong)[0].startswith(told)
    assert not wrong.counts_equal
    assert wrong.bytes_equal


def test_ops_that_kept_the_models_own_rows_are_named(result: ValidationResult) -> None:
    """Beside the error without its shape; a model that cannot do without says so; without any there is no table."""
    held = made_cell("b", held_out_tokens_per_s=12.0, held_out_kept=("issue", "wake"))
    rows = held_out_rows([held, made_cell("c", replace(CONDITIONS, model="other"))])
    assert rows[0] == HeldOutRow("m", 1, ("issue", "wake"), 0.0, pytest.approx(0.2))
    assert rows[1] == HeldOutRow("other", 1, (), 0.0, None)
    table = held_out_table(replace(result, held_out=rows))
    assert table.rows[0][1:] == ("1", "0.0 %", "20.0 %", "issue, wake")
    assert table.rows[1][-2:] == ("cannot be", "–")
    assert held_out_table(result).rows == []


def test_layers_and_cells_as_csv(result: ValidationResult) -> None:
    """A column a layer, predicted and measured beside each other; the cells' numbers by name."""
    header, first, second = as_csv(layer_rows(result.cells)).splitlines()[:3]
    assert header == "cell,figure,side,0,1,2"
    assert first.split(",")[:3] == ["exact", "t_attention_us", "predicted"]
    assert second.replace("measured", "predicted") == first
    assert len(as_csv(cell_rows(result)).splitlines()) == 4


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
    for words in ("3 cells: decode speed", "Consistency check", "slow|er", "compute-bound", "Leave one"):
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
