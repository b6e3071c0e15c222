"""What simulate and plan print and write at their edges: padded experts, mapped files, folders that are not there."""

from pathlib import Path

import pytest
from conftest import assert_one_line

from traces.store import write_trace
from traces.synthetic import synthesize

DEVICE = ["--hardware", "raspberry-pi-5-nvme"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The tiny model with a small trace of its shape."""
    path = tmp_path_factory.mktemp("traces") / "small.parquet"
    trace = synthesize(
        n_tokens=40, n_prefill=8, n_moe_layers=32, n_experts=32, top_k=4, zipf=0.8, repeat_frac=0.4, seed=1
    )
    write_trace(trace, path)
    return ["--model", "tiny-smallthinker", *DEVICE, "--trace", str(path)]


def test_a_padded_layout_leaves_the_file_as_it_is(moeplan, base: list[str]) -> None:
    """Three padded reads an expert are no larger file: its dense part stands there, and no line is too wide."""
    told = moeplan("simulate", *base, "--layout", "split", "--ram-cap", "20MiB", "--engine", "fast")
    assert told.status == 0
    dense = next(line for line in told.out.splitlines() if line.startswith("dense part"))
    assert "0 B" not in dense
    assert all(len(line.rstrip()) <= 100 for line in told.out.splitlines())


def test_a_mapped_file_counts_pages(moeplan, base: list[str]) -> None:
    """What is found and what faults are pages, and they say so; no part of the file has RAM of its own."""
    told = moeplan("simulate", *base, "--layout", "mmap", "--ram-cap", "14MiB")
    assert told.status == 0
    words = " ".join(told.out.split())
    assert "page faults" in words
    assert "pages found in RAM" in words
    assert "dense part" not in words
    assert "experts;" not in words


def test_the_answer_names_the_engine_that_ran(moeplan, base: list[str]) -> None:
    """The one asked for, or the mapped file's own; another one for a mapped file is refused by name."""
    asked = ["simulate", *base, "--ram-cap", "14MiB"]
    for more, name in (([], "simpy"), (["--engine", "fast"], "fast"), (["--layout", "mmap"], "mapped")):
        assert f"engine: {name} (" in moeplan(*asked, *more).out
    for engine in ("fast", "simpy"):
        refused = moeplan(*asked, "--layout", "mmap", "--engine", engine)
        assert_one_line(refused, "--engine: must be left out with --layout mmap", repr(engine), "mapped")


def test_the_first_token_and_a_warm_start_do_not_contradict(moeplan, base: list[str]) -> None:
    """The prompt is timed on an empty cache; the warm start is about tokens/s."""
    told = moeplan("simulate", *base, "--ram-cap", "20MiB", "--engine", "fast")
    words = " ".join(told.out.split())
    assert "8 prompt tokens on an empty cache" in words
    assert "fill the cache and do not count in tokens/s" in words
    assert "cache cold" not in words


def test_a_folder_that_is_no_recorded_run_is_one_line(moeplan, tmp_path: Path) -> None:
    """It says what was looked for, in our words."""
    wrong = moeplan("simulate", "--model", "tiny-smallthinker", *DEVICE, "--trace", str(tmp_path))
    assert_one_line(wrong, str(tmp_path), "the folder of a recorded run", "a folder without trace.parquet")


def test_missing_folders_of_a_report_are_made_and_the_help_says_so(moeplan, base: list[str], tmp_path: Path) -> None:
    """One rule for every report."""
    report = tmp_path / "new" / "folder" / "report.html"
    told = moeplan("simulate", *base, "--ram-cap", "20MiB", "--engine", "fast", "--output", str(report))
    assert told.status == 0
    assert report.is_file()
    for command in ("simulate", "plan", "design"):
        assert "missing folders are made" in " ".join(moeplan(command, "--help").out.split())
