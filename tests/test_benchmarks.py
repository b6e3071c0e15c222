"""What the benchmarks measure with, and that the whole command goes through at small sizes."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks.cache_passes import policies_section, python_lru
from benchmarks.made_up import REQUEST_TOKENS, SHAPES, Shape, capacities_of, made_up_rows, made_up_trace
from benchmarks.measure import exponent, medians, run_process
from benchmarks.peer import PEER_POLICIES, REQUEST, has_libcachesim, next_uses, write_requests
from benchmarks.report import Section, as_markdown
from benchmarks.sweeps import Sweep, sweeps_section
from benchmarks.times import ClosedForm, streaming_scenario
from moeplan.errors import InputError
from simulator.cache_passes.miss_counts import miss_counts
from simulator.cache_passes.rows import rows_of_trace
from simulator.engine_simpy import simulate_simpy

SMALL = Shape(6, 16, 3)


def test_works_take_turns_and_the_middle_one_counts() -> None:
    """Round by round, so that a machine that changes its speed changes it for all."""
    order: list[str] = []
    found = medians({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3)
    assert order == ["a", "b"] * 3
    assert all(seconds >= 0 for seconds in found.values())


def test_the_exponent_of_a_power_is_found_and_a_fixed_cost_is_left_behind() -> None:
    """5 n^1.5 has 1.5; n + 100 is linear in the end, though its first sizes look flat."""
    sizes = [10.0, 100.0, 1e4, 1e5, 1e6]
    assert exponent(sizes, [5 * n**1.5 for n in sizes]) == pytest.approx(1.5)
    assert exponent(sizes, [n + 100 for n in sizes]) == pytest.approx(1.0, abs=0.01)


def test_a_process_tree_is_weighed_whole() -> None:
    """Memory that a child of the child holds counts; 64 MB of it is seen."""
    child = "import time; held = bytearray(64 * 10**6); held[::4096] = b'x' * len(held[::4096]); time.sleep(0.6)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    run = run_process([sys.executable, "-c", parent], Path.cwd())
    assert run.wall_s > 0.6
    if run.peak_bytes is None:
        pytest.skip("this system does not tell what a process holds")
    assert 64e6 < run.peak_bytes < 200e6


def test_a_command_that_fails_is_no_figure() -> None:
    """Its last line is the complaint."""
    with pytest.raises(InputError, match="nothing works"):
        run_process([sys.executable, "-c", "import sys; sys.exit('nothing works')"], Path.cwd())


def test_plain_python_replays_the_same_trace() -> None:
    """Key by key, which for rows below the capacity differs only inside a row: totals lie within a per cent."""
    rows = made_up_rows(200, SMALL)
    assert python_lru(rows, 48) == pytest.approx(int(miss_counts(rows, "lru", [48]).sum()), rel=0.01)


def test_rows_and_trace_of_a_seed_are_the_same_routing() -> None:
    """Distinct experts in every row, requests that fit a context, and the rows that the trace has."""
    rows, trace = made_up_rows(30, SMALL, seed=3), made_up_trace(30, SMALL, seed=3)
    np.testing.assert_array_equal(rows.keys, rows_of_trace(trace, 512).keys)
    ordered = np.sort(trace.expert_ids, axis=2)
    assert (ordered[:, :, 1:] > ordered[:, :, :-1]).all()
    assert made_up_trace(REQUEST_TOKENS + 1, Shape(1, 4, 1)).position.max() == REQUEST_TOKENS - 1
    capacities = capacities_of(rows, 20)
    assert SMALL.accesses_per_token < capacities[0] < capacities[-1] < rows.n_keys


def test_the_peer_gets_the_same_keys_with_their_next_uses(tmp_path: Path) -> None:
    """24 bytes a request: object and its next position, -1 where there is none."""
    assert next_uses(np.array([3, 5, 3, 3, 5, 1])).tolist() == [2, 4, 3, -1, -1, -1]
    rows = made_up_rows(5, SMALL)
    write_requests(rows, tmp_path / "requests")
    found = np.fromfile(tmp_path / "requests", REQUEST)
    assert REQUEST.itemsize == 24
    np.testing.assert_array_equal(found["object"], rows.keys)
    assert found["second"].tolist() == np.repeat(np.arange(5), SMALL.accesses_per_token).tolist()
    assert (found["n_bytes"] == 1).all()


def executable(path: Path, text: str) -> Path:
    """A shell script that stands in for a Python with (or without) libcachesim."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_without_the_peer_its_columns_are_left_out_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No environment, or one in which it cannot be loaded."""
    assert not has_libcachesim(None)
    assert not has_libcachesim(executable(tmp_path / "python", "echo ModuleNotFoundError >&2; exit 1"))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "ModuleNotFoundError" in said[1]
    assert len(policies_section(4, 1, None).head) == 4


@pytest.mark.parametrize(
    ("script", "words"),
    [("echo no such cache >&2; exit 3", "exit status 3: no such cache"), ("echo done", "'done'"), ("true", "nothing")],
)
def test_a_peer_that_fails_costs_only_its_own_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], script: str, words: str
) -> None:
    """Our rates of every policy stand there; note and standard error have its last line."""
    section = policies_section(4, 1, executable(tmp_path / "python", script))
    assert [row[0] for row in section.rows] == list(PEER_POLICIES)
    assert {len(section.head), *map(len, section.rows)} == {4}
    assert words in section.note
    assert words in capsys.readouterr().err


def test_the_peer_s_rates_stand_beside_ours(tmp_path: Path) -> None:
    """A replay of one second is n accesses a second; ours over its rate is the ratio shown."""
    answer = json.dumps({name: {"s": 1.0, "miss_ratio": 0.25} for name in PEER_POLICIES})
    section = policies_section(4, 1, executable(tmp_path / "python", f"echo '{answer}'"))
    n_accesses = 4 * SHAPES["21B"].accesses_per_token
    for row in section.rows:
        figures = section.figures[row[0]]
        assert figures["libcachesim"] == figures["libcachesim, table fitted"] == n_accesses
        assert row[-1] == "0.2500"
        assert f"({figures['one'] / n_accesses:.1f} x)" in row[4]


def test_the_closed_form_counts_every_pair_of_every_scenario() -> None:
    """20 caches x 20 speeds x tokens x layers, and seconds that fall with the speed and with the cache."""
    closed = ClosedForm(30)
    seconds = np.array(closed.seconds(closed.sums())).reshape(20, 20)
    assert closed.n_steps == 400 * 30 * SHAPES["21B"].n_layers
    assert (np.diff(seconds, axis=1) <= 0).all()
    assert (np.diff(seconds, axis=0) <= 1e-9).all()
    assert seconds[0, 0] > 1.5 * seconds[-1, -1]


def test_the_scenario_of_one_read_a_layer_reads_once_a_layer() -> None:
    """Top-1 without a cache."""
    timeline = simulate_simpy(streaming_scenario(2, 1, 0.0))
    assert (timeline.n_misses == 1).all()


def test_a_refused_sweep_is_a_row_with_its_reason(tmp_path: Path) -> None:
    """The other sweeps go on."""
    section = sweeps_section([(Sweep(2, 2, 2, ("lru", "no-such-policy")), 1)], tmp_path)
    assert section.rows[0][2] == "refused"
    assert "no-such-policy" in section.rows[0][3]
    assert not section.figures


def test_tables_are_markdown_whose_columns_align() -> None:
    """All lines of a table are equally long."""
    lines = as_markdown(Section("T", ("name", "s"), [("a", "1.25"), ("longer", "3")], "note")).splitlines()
    assert lines[0] == "## T"
    assert len({len(line) for line in lines[2:6]}) == 1
    assert lines[3] == "|--------|-----:|"


def test_the_whole_command_goes_through_at_small_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables on standard output, progress on standard error, report, numbers and picture on disk."""
    folder = tmp_path / "report"
    arguments = ["--quick", "--output", str(folder), "--traces", str(tmp_path / "traces")]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    command.main()
    printed = capsys.readouterr()
    text = (folder / "latest.md").read_text(encoding="utf-8")
    assert printed.err.count(" of 5: ") == 5
    assert text.count("## ") == printed.out.count("## ") == 5
    assert f"- command: python -m benchmarks {' '.join(arguments)}" in text
    numbers = json.loads((folder / "latest.json").read_text(encoding="utf-8"))
    assert all(rate > 0 for found in numbers["LRU, M accesses/s (x plain Python)"].values() for rate in found.values())
    assert [found["peak_bytes"] > 0 for found in numbers["Whole sweeps"].values()] == [sys.platform == "linux"]
    assert (folder / "latest.png").read_bytes().startswith(b"\x89PNG")


def test_it_starts_from_the_checkout_alone() -> None:
    """`python -m benchmarks --help` says what can be chosen."""
    root = Path(command.__file__).parent.parent
    asked = [sys.executable, "-m", "benchmarks", "--help"]
    done = subprocess.run(asked, cwd=root, capture_output=True, text=True, check=True)
    assert "--quick" in done.stdout
