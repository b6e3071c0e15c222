"""The runs of a validation grid: a kill loses nothing, and a folder holds one grid of one model."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forward_oracle import random_tokens
from validation_grid_files import (
    ARENA_BYTES,
    CONFIG,
    FROM_PROMPT,
    FROM_STATE,
    N_TEXT,
    NumberedChecks,
    write_grid,
    write_text,
)

from moeplan.errors import InputError
from reference_runtime.conditions import code_fingerprint
from reference_runtime.validation_grid.__main__ import run_grid
from reference_runtime.validation_grid.child import run_moeplan
from reference_runtime.validation_grid.grid import read_grid_file
from reference_runtime.validation_grid.prepared import prepare
from reference_runtime.validation_grid.run_order import planned_runs
from traces.routing_trace import DECODE
from traces.store import read_trace

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def grid_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cells on a small random model, and a text of token ids."""
    return write_grid(tmp_path_factory.mktemp("grid"))


@pytest.fixture(scope="module")
def finished(grid_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grid whose runner was killed when the first cell was done, and which was started again."""
    folder = tmp_path_factory.mktemp("finished") / "measured"
    call = f"run_grid(Path({str(folder)!r}), Path({str(grid_file)!r}), spot_arena_bytes={ARENA_BYTES})"
    command = [sys.executable, "-c", f"from pathlib import Path; from {run_grid.__module__} import run_grid; {call}"]
    runner = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    first = folder / "cells" / planned_runs(read_grid_file(grid_file))[0].name
    until, runs = time.monotonic() + 100, []
    while time.monotonic() < until and runner.poll() is None and not runs:
        time.sleep(0.02)
        runs = cell_processes(runner.pid) if first.is_dir() else []
    checks = child_processes(runner.pid)
    runner.kill()
    _, said = runner.communicate()
    assert first.is_dir(), said
    kept = identity(first / "cell.json")
    # a run that has just begun does not end by itself in half the time that the first one took
    until = time.monotonic() + json.loads((first / "cell.json").read_text())["seconds"] / 2
    while any(map(is_running, runs)) and time.monotonic() < until:
        time.sleep(0.02)
    assert runs or sys.platform != "linux"  # elsewhere a run goes on to its end
    assert not any(map(is_running, runs)), "a run goes on without its runner"
    until = time.monotonic() + 10
    while any(map(is_running, checks)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(map(is_running, checks)), "the spot checks go on without their runner"
    (folder / "cells" / ".half-a-run").mkdir(exist_ok=True)
    assert run_grid(folder, grid_file, spot_arena_bytes=ARENA_BYTES) == 1
    assert identity(first / "cell.json") == kept
    return folder


def identity(path: Path) -> tuple[int, int]:
    """Which file it is and when it was written; a file that was made again has another."""
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns


def child_processes(pid: int) -> list[Path]:
    """Folders in /proc of the processes that a process has started."""
    return [path for path in Path("/proc").glob("[0-9]*") if process_state(path)[1:2] == [str(pid)]]


def cell_processes(pid: int) -> list[Path]:
    """Those of a process's children that run a cell."""
    return [path for path in child_processes(pid) if b"validation_grid.child" in command_line(path)]


def command_line(process: Path) -> bytes:
    """Empty where the process is gone."""
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def is_running(process: Path) -> bool:
    """Whether a process is there and not only its exit status."""
    return process_state(process)[:1] not in ([], ["Z"])


def process_state(process: Path) -> list[str]:
    """State and parent, as proc(5) has them behind the name; empty where the process is gone."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return []


# The runs


def test_a_killed_grid_goes_on(finished: Path) -> None:
    """Both cells are whole, nothing temporary is left, the state is made once; a third start finds nothing to do."""
    assert sorted(path.name for path in (finished / "cells").iterdir()) == sorted([FROM_PROMPT, FROM_STATE])
    names = {"cell.json", "run.json", "trace.parquet", "ops.parquet"}
    assert all({file.name for file in cell.iterdir()} == names for cell in (finished / "cells").iterdir())
    own = {"cells", "grid.yaml", "models", "models.json", "states", "stores"}
    assert {path.name for path in finished.iterdir()} == own
    assert [path.name for path in (finished / "states").iterdir()] == ["small-40.state"]
    assert run_grid(finished, finished / "grid.yaml") == 0


def test_a_cell_says_how_it_was_run(finished: Path) -> None:
    """cell.json has the conditions as numbers, the place in the order and what the machine did meanwhile."""
    cell = json.loads((finished / "cells" / FROM_PROMPT / "cell.json").read_text())
    assert cell["ram_cap_bytes"] == 470_000
    assert cell["storage_limit_bytes_per_s"] == 20e6
    wanted = {"prefetch": "none", "context": 8, "n_prompt": 8, "threads": 1, "n_warm_up": 2, "n_counted": 9}
    wanted |= {"schema_version": 1, "repeat": 0, "model": "small.gguf", "model_class": "small", "routing": "own"}
    assert cell.items() >= wanted.items()
    assert 0 < cell["seconds"] < 100
    names = {"small_token_t1", "large_token_t1", "burst_64KiB", "burst_2MiB"}
    before, after = (cell["spot_checks"][end] for end in ("before", "after"))
    assert set(before) == set(after) == names
    assert all(0 < seconds < 1 for seconds in (*before.values(), *after.values()))
    assert before != after
    assert cell["code"] == code_fingerprint()
    assert cell["spin_count"] == os.environ["GOMP_SPINCOUNT"]
    assert cell["steal_frac"] is None or 0 <= cell["steal_frac"] <= 1
    assert {cell["order"], json.loads((finished / "cells" / FROM_STATE / "cell.json").read_text())["order"]} == {0, 1}


def test_a_cell_ran_as_it_says(finished: Path) -> None:
    """Cap, limit and prefetch are those of the run; counted tokens, trace and the text that was fed are the cell's."""
    run = json.loads((finished / "cells" / FROM_PROMPT / "run.json").read_text())
    assert (run["ram_cap_bytes"], run["n_prompt_tokens"], run["n_counted_tokens"]) == (470_000, 8, 9)
    assert run["conditions"]["storage_limit"].startswith("20000000 bytes/s")
    assert (run["conditions"]["prefetch"], run["conditions"]["decode"]) == ("none", "teacher-forced")
    assert run["misses"] > 0
    trace = read_trace(finished / "cells" / FROM_PROMPT / "trace.parquet")
    assert trace.token_id.tolist() == random_tokens(N_TEXT, CONFIG)[:19].tolist()


def test_a_cell_from_a_state_goes_on_behind_it(finished: Path) -> None:
    """Its trace holds decode tokens alone, at the positions and with the text behind the state."""
    trace = read_trace(finished / "cells" / FROM_STATE / "trace.parquet")
    assert trace.phase.tolist() == [DECODE] * 17
    assert trace.position.tolist() == list(range(40, 57))
    assert trace.token_id.tolist() == random_tokens(N_TEXT, CONFIG)[40:57].tolist()
    cell = json.loads((finished / "cells" / FROM_STATE / "cell.json").read_text())
    assert (cell["context"], cell["n_prompt"], cell["ram_cap_bytes"]) == (40, 0, None)


def test_another_grid_in_the_same_folder_is_refused(finished: Path, grid_file: Path, tmp_path: Path) -> None:
    """Runs of two grids would be mixed."""
    other = tmp_path / "other.yaml"
    other.write_text(grid_file.read_text().replace("seed: 3", "seed: 4"))
    with pytest.raises(InputError, match="must be run with the grid that it began with"):
        run_grid(finished, other)


def test_a_changed_model_is_refused(finished: Path, grid_file: Path, tmp_path: Path) -> None:
    """A model file that is not what the other runs were made on gives no run beside them."""
    folder, model = tmp_path / "copy", grid_file.with_name("small.gguf")
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "cells" / FROM_PROMPT)
    stat = model.stat()
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    try:
        with pytest.raises(InputError, match=r"must be the small of the runs in .*, got another file, or one changed"):
            run_grid(folder, grid_file)
    finally:
        os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert [path.name for path in (folder / "cells").iterdir()] == [FROM_STATE]


def test_a_state_of_another_routing_is_refused(
    finished: Path, grid_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and values that were fed with other experts are not those of the model's own router."""
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "cells" / FROM_STATE)
    state, text = folder / "states" / "small-40.state", grid_file.with_name("text.parquet")
    model = ["--model", str(grid_file.with_name("small.gguf")), "--replay-routing", str(text)]
    fed = ["--max-tokens", "0", "--threads", "1", "--save-state", str(state)]
    run_moeplan("other", [*model, *fed], random_tokens(N_TEXT, CONFIG)[:40].tolist(), tmp_path)
    monkeypatch.setattr("reference_runtime.validation_grid.__main__.SpotChecks", NumberedChecks)
    with pytest.raises(InputError, match=r"small-40\.state: must have been fed with routing the model's own, got rout"):
        run_grid(folder, grid_file)


def test_a_state_that_cannot_be_read_is_made_again(finished: Path, grid_file: Path, tmp_path: Path) -> None:
    """One that was cut short, or of an older format, is not used and stops nothing; the new one is as the old one."""
    folder, grid, told = tmp_path / "copy", read_grid_file(grid_file), list[str]()
    shutil.copytree(finished, folder)
    state = folder / "states" / "small-40.state"
    whole = state.read_bytes()
    prepare(folder, grid, grid.cells, {}, told.append)
    assert not [line for line in told if line.startswith("feeding")]
    state.write_bytes(whole[:-1])
    prepare(folder, grid, grid.cells, {}, told.append)
    assert told[-1] == "feeding 40 tokens to small"
    assert state.read_bytes() == whole


def test_a_state_of_another_text_is_refused(finished: Path, grid_file: Path, tmp_path: Path) -> None:
    """Before anything runs, in one line; it is left where it is."""
    other, grid_of_it = tmp_path / "other.parquet", tmp_path / "grid.yaml"
    write_text(other, random_tokens(N_TEXT, CONFIG).astype("int32")[::-1].copy())
    grid_of_it.write_text(grid_file.read_text().replace(str(grid_file.with_name("text.parquet")), str(other)))
    grid = read_grid_file(grid_of_it)
    with pytest.raises(InputError, match=r"small-40\.state: must be of the prompt that is given.*got token") as refusal:
        prepare(finished, grid, grid.cells, {}, lambda doing: None)
    assert "\n" not in str(refusal.value)
    assert (finished / "states" / "small-40.state").exists()
