"""`moeplan hardware`: list, show, check."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from command_line.hardware import app
from hardware_profiles.catalog import DEVICES, load_profile, profile_names
from hardware_profiles.schema import figures
from moeplan.errors import InputError


def output(*arguments: str) -> str:
    """What the command prints at a width of 200; it must succeed."""
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_list_names_every_device() -> None:
    """One line each, whole names also on a narrow terminal; JSON has the same names."""
    narrow = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["list"]).output
    for name in profile_names():
        assert f"{name} " in narrow
    assert [row["name"] for row in json.loads(output("list", "--json"))] == profile_names()


def test_show_prints_every_figure_with_kind_uncertainty_and_source() -> None:
    """Plus the fitted constants, the residuals and the bandwidth over size and depth."""
    text = output("show", "oneplus-13")
    words = " ".join(text.split())
    for key, figure in figures(load_profile("oneplus-13")):
        line = next(line for line in text.splitlines() if line.startswith(f"{key} "))
        assert figure.kind in line
        assert figure.source.split()[0] in line
    assert "error of the fit: mean 3.1%, largest 5.4%" in words
    assert "576 KiB 2 1.87 GB/s" in words
    assert "request 1 2 4 8 16 32" in words


def test_show_as_json_is_one_document_in_si_units() -> None:
    """Values are numbers, and the matrix is complete."""
    document = json.loads(output("show", "raspberry-pi-5-nvme", "--json"))
    assert document["profile"]["storage"]["sequential_read"]["value"] == 419e6
    assert document["profile"]["ram"]["size"] == 8 * 2**30
    assert document["storage_model"]["queue_depth"] == 8
    assert document["storage_residuals"] == []
    cell = {(c["request_bytes"], c["queue_depth"]): c["bytes_per_s"] for c in document["effective_bandwidth"]}
    assert cell[4096, 1] == pytest.approx(57.3e6)
    assert len(cell) == 5 * 6


def test_check_says_ok_and_what_is_assumed(tmp_path: Path) -> None:
    """Every assumed figure is a line; a copy with its own name is fine."""
    path = tmp_path / "mine.yaml"
    path.write_text((DEVICES / "rk3566.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    lines = output("check", str(path)).splitlines()
    assert lines[0] == f"ok: {path}: RK3566 board (4 GB LPDDR4), eMMC"
    assumed = [key for key, figure in figures(load_profile("rk3566")) if figure.kind == "assumed"]
    assert [line.split(":")[0].strip() for line in lines[2:]] == [*assumed, "storage.table"]
    assert lines[1] == f"{len(assumed)} of 13 figures are assumed:"


def test_check_refuses_a_bad_file(tmp_path: Path) -> None:
    """The error is the schema's."""
    path = tmp_path / "mine.yaml"
    path.write_text("cpu: 3\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"mine\.yaml:1: "):
        CliRunner().invoke(app, ["check", str(path)], catch_exceptions=False)


def test_the_command_imports_nothing_heavy() -> None:
    """`moeplan hardware --help` starts without numpy, scipy, pydantic and pint."""
    heavy = ("numpy", "scipy", "pydantic", "pint", "yaml", "hardware_profiles.schema")
    code = f"import sys, command_line.hardware; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
