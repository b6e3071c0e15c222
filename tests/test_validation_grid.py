"""The measuring side of the validation: what a grid may say, in which order it runs, and that a kill loses nothing."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import make_trace
from forward_oracle import SMALL, random_tokens, random_weights, vocabulary

from moeplan.errors import InputError
from reference_runtime.conditions import code_fingerprint
from reference_runtime.training.export import Q8_0, write_gguf
from reference_runtime.validation_grid.__main__ import run_grid
from reference_runtime.validation_grid.child import run_moeplan
from reference_runtime.validation_grid.grid import SHIPPED_GRID, Cell, read_grid_file
from reference_runtime.validation_grid.machine_load import LoadMark, load_mark
from reference_runtime.validation_grid.prepared import ReadyModel
from reference_runtime.validation_grid.run_cell import cell_arguments
from reference_runtime.validation_grid.run_order import MIN_APART, planned_runs
from traces.routing_trace import DECODE
from traces.store import read_trace, write_trace

ROOT = Path(__file__).parent.parent
CONFIG = replace(SMALL, hidden_size=64, head_dim=32, expert_ffn_size=64, context_length=128)
N_TEXT = 60
ARENA_BYTES = 2**22  # of the spot checks here, whose times are compared with nothing
GRID = """
schema_version: 1
seed: 3
repeats: 1
models:
  small: {{path: {model}, text: [{text}]}}
cells:
  - {{model: small, prompt: 8, ram_cap: 470 kB, storage_limit: 20 MB/s, prefetch: none, threads: 1, n_warm_up: 2,
     n_counted: 9}}
  - {{model: small, state: 40, ram_cap: none, storage_limit: none, prefetch: pre-attention, threads: 1, n_warm_up: 1,
     n_counted: 16}}
"""
FROM_PROMPT, FROM_STATE = "small-p8-470kB-20MBs-none-t1-r0", "small-c40-all-free-pre-t1-r0"


@pytest.fixture(scope="module")
def grid_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cells on a small random model, and a text of token ids."""
    folder = tmp_path_factory.mktemp("grid")
    write_gguf(random_weights(CONFIG), vocabulary(CONFIG.vocab_size), folder / "small.gguf", Q8_0)
    tokens = random_tokens(N_TEXT, CONFIG).astype("int32")
    ids = [[[0, 1]] * CONFIG.n_layers] * N_TEXT
    write_trace(make_trace(ids, CONFIG.n_experts, token_id=tokens), folder / "text.parquet")
    file = folder / "grid.yaml"
    file.write_text(GRID.format(model=folder / "small.gguf", text=folder / "text.parquet"))
    return file


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


# What a grid says


def test_the_shipped_grid_covers_what_it_must() -> None:
    """
    40 cells and more, half on the 4B, a quarter from 2048 tokens, 6 caps of each model, every limit and prefetch; the
    bare disk in 8 cells of the 4B and more, but in fewer than half of those that read.
    """
    grid = read_grid_file(SHIPPED_GRID)
    cells = grid.cells
    assert len(cells) >= 40
    assert grid.repeats >= 2
    assert 2 * sum(cell.model == "4b" for cell in cells) >= len(cells)
    assert 4 * sum(cell.context == 2048 for cell in cells) >= len(cells)
    for model in ("tiny", "4b"):
        own = [cell for cell in cells if cell.model == model]
        assert len({cell.ram_cap for cell in own}) >= 6
        assert {cell.storage_limit for cell in own} >= {"none", "500 MB/s", "200 MB/s", "80 MB/s"}
        assert {cell.prefetch for cell in own} == {"none", "pre-attention"}
        assert {cell.threads for cell in own} == {1, 2}
        assert any(cell.ram_cap_bytes is None for cell in own)
    assert all(cell.n_counted >= 16 for cell in cells)
    reading = [cell for cell in cells if cell.model == "4b" and cell.ram_cap_bytes is not None]
    n_bare = sum(cell.storage_limit_bytes_per_s is None for cell in reading)
    assert 8 <= n_bare < len(reading) / 2


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("threads: 1", "thread: 1", r"grid\.yaml:8: every key must be known, got 'cells\.0\.thread'"),
        ("prompt: 8", "prompt: 8, state: 8", "must have a prompt or a state"),
        ("470 kB", "470 kb", "bits are not accepted"),
        ("20 MB/s", "20 MB", "must be a quantity like .* or none"),
        ("model: small, prompt", "model: big, prompt", "must be one of small, got 'big'"),
        ("pre-attention", "early", "prefetch"),
        ("n_counted: 9", "n_counted: 0", "n_counted"),
        ("repeats: 1", "repeats: 0", "repeats"),
        ("{path: ", "{random: {shape: x, quantisation: Q4_0}, path: ", "must have a path or random weights"),
    ],
)
def test_a_wrong_grid_is_refused(grid_file: Path, tmp_path: Path, old: str, new: str, words: str) -> None:
    """One line that names the file and what must hold."""
    text = grid_file.read_text()
    assert old in text
    bad = tmp_path / "grid.yaml"
    bad.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=words) as refusal:
        read_grid_file(bad)
    assert str(bad) in str(refusal.value)


def test_a_cell_stands_once(grid_file: Path, tmp_path: Path) -> None:
    """Two cells of the same conditions would share a folder."""
    bad = tmp_path / "grid.yaml"
    text = grid_file.read_text()
    bad.write_text(text + text[text.rindex("  - {model") :])
    with pytest.raises(InputError, match="must stand once each, got small-c40-all-free-pre-t1 2 times"):
        read_grid_file(bad)


def test_a_cell_becomes_the_options_of_a_run() -> None:
    """From a state the chunk is one token; without cap and limit neither is given."""
    cells = read_grid_file(SHIPPED_GRID).cells
    model = ReadyModel("4b", "/m.gguf", Path("/m.gguf"), Path("/m.bundle"), (), "a-trace")
    capped = next(cell for cell in cells if cell.name == "4b-c2048-1.9GB-200MBs-pre-t1")
    text = " ".join(cell_arguments(Path("/d"), capped, model))
    assert text == (
        "--model /m.gguf --store /m.bundle --layout bundle --replay-routing a-trace --forced --max-tokens 28 "
        "--warm-up 8 --prefetch pre-attention --threads 1 --prefill-chunk 1 --ram-cap 1.9 GB --storage-limit 200 MB/s "
        "--load-state /d/states/4b-2048.state"
    )
    free = next(cell for cell in cells if cell.name == "4b-p512-all-free-pre-t1")
    text = " ".join(cell_arguments(Path("/d"), free, model))
    assert "--prefill-chunk 512" in text
    assert not any(word in text for word in ("--ram-cap", "--storage-limit", "--load-state"))


# The order


def test_every_round_runs_every_cell_once_and_repeats_stand_apart() -> None:
    """Shuffled: not the grid's order, and no two rounds alike; a cell's runs are at least MIN_APART apart."""
    grid = read_grid_file(SHIPPED_GRID)
    n_cells, runs = len(grid.cells), planned_runs(grid, repeats=4)
    names = [run.cell.name for run in runs]
    rounds = [names[i : i + n_cells] for i in range(0, len(names), n_cells)]
    assert [run.order for run in runs] == list(range(4 * n_cells))
    assert all(sorted(order) == sorted(cell.name for cell in grid.cells) for order in rounds)
    assert len({tuple(order) for order in [*rounds, [cell.name for cell in grid.cells]]}) == 5
    for name in rounds[0]:
        places = [place for place, other in enumerate(names) if other == name]
        assert min(later - sooner for sooner, later in pairwise(places)) >= MIN_APART


def test_a_cell_may_have_repeats_of_its_own() -> None:
    """Two runs of most cells, three of those that say so, in the order that all would have with three, still apart."""
    grid = read_grid_file(SHIPPED_GRID)
    runs, all_thrice = planned_runs(grid), planned_runs(grid, repeats=3)
    assert all(run in all_thrice for run in runs)
    counts = {cell.name: sum(run.cell is cell for run in runs) for cell in grid.cells}
    assert counts == {cell.name: cell.repeats or grid.repeats for cell in grid.cells}
    assert set(counts.values()) == {2, 3}
    names = [run.cell.name for run in runs]
    for name in counts:
        places = [place for place, other in enumerate(names) if other == name]
        assert min(later - sooner for sooner, later in pairwise(places)) >= MIN_APART


def test_a_part_of_the_grid_keeps_its_order() -> None:
    """A pattern or another number of repeats leaves every run's place as it is, so a grid can be run in parts."""
    grid = read_grid_file(SHIPPED_GRID)
    whole = planned_runs(grid, repeats=3)
    assert planned_runs(grid, repeats=2) == whole[: 2 * len(grid.cells)]
    assert planned_runs(grid, 3, "tiny-c*") == tuple(run for run in whole if run.cell.name.startswith("tiny-c"))
    with pytest.raises(InputError, match=r"must be a pattern that meets a cell, got 'x\*'"):
        planned_runs(grid, pattern="x*")


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


def test_checks_after_a_run_are_those_before_the_next(
    grid_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One take before the first run and one after each: nothing lies between two runs."""
    monkeypatch.setattr("reference_runtime.validation_grid.__main__.SpotChecks", NumberedChecks)
    assert run_grid(tmp_path / "m", grid_file, pattern="small-p8*", repeats=2) == 2
    first, second = (
        json.loads((tmp_path / "m" / "cells" / f"{FROM_PROMPT[:-1]}{repeat}" / "cell.json").read_text())["spot_checks"]
        for repeat in (0, 1)
    )
    assert (first, second) == ({"before": {"1": 1}, "after": {"1": 2}}, {"before": {"1": 2}, "after": {"1": 3}})


class NumberedChecks:
    """Spot checks that count how often they were taken, by the number of threads."""

    def __init__(self, file: Path | None, directory: Path, threads: Sequence[int], arena_bytes: int | None) -> None:
        self._threads, self._n_takes = threads, 0
        assert file is None  # the store is far too small to be read
        assert arena_bytes is None  # as many as the probe's

    def __enter__(self) -> "NumberedChecks":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def take(self) -> dict[str, float]:
        self._n_takes += 1
        return {str(n): self._n_takes for n in self._threads}


@pytest.mark.parametrize(("text", "words"), [("{", "must be a JSON document"), ("[1]", "must be a JSON object")])
def test_damaged_models_are_one_line(grid_file: Path, tmp_path: Path, text: str, words: str) -> None:
    """A models.json that was cut short is named."""
    (tmp_path / "models.json").write_text(text)
    with pytest.raises(InputError, match=rf"models\.json: {words}.*give a new folder") as refusal:
        run_grid(tmp_path, grid_file)
    assert "\n" not in str(refusal.value)


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


def test_a_cell_that_cannot_run_leaves_nothing(
    grid_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command's own line comes with the cell's name; no folder of that name and nothing half made is there."""
    monkeypatch.setattr("reference_runtime.validation_grid.__main__.SpotChecks", NumberedChecks)
    bad, folder = tmp_path / "grid.yaml", tmp_path / "measured"
    bad.write_text(grid_file.read_text().replace("470 kB", "47 kB"))
    with pytest.raises(InputError, match=r"small-p8-47kB.*exit status 2: moeplan: --ram-cap: must hold"):
        run_grid(folder, bad, pattern="small-p8*")
    assert list((folder / "cells").iterdir()) == []
    assert not list(folder.glob(".*"))


def test_too_little_room_is_told_first(grid_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is made where the disk cannot hold all of it."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("reference_runtime.validation_grid.prepared.shutil.disk_usage", lambda _: usage(9, 0, 10**6))
    with pytest.raises(InputError, match=r"must have .* free for models, stores, states and records, got 977 KiB"):
        run_grid(tmp_path / "m", grid_file)
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["grid.yaml"]


def test_a_text_too_short_is_refused(grid_file: Path, tmp_path: Path) -> None:
    """Before anything runs."""
    bad = tmp_path / "grid.yaml"
    bad.write_text(grid_file.read_text().replace("state: 40", "state: 45"))
    with pytest.raises(InputError, match=r"models\.small\.text: must have 62 tokens for its longest cell, got 60"):
        run_grid(tmp_path / "m", bad)


def test_two_runners_do_not_share_a_folder(grid_file: Path, tmp_path: Path) -> None:
    """The second is refused while the first runs."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="must be used by one run at a time"):
            run_grid(tmp_path, grid_file)
    finally:
        os.close(descriptor)


def test_wrong_options_are_one_line(tmp_path: Path) -> None:
    """Exit status 2, nothing on standard output."""
    command = [sys.executable, "-m", "reference_runtime.validation_grid", str(tmp_path), "--cells", "nothing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_steal_is_a_share_of_all_time() -> None:
    """Ticks: 30 more of 120 went to others; without counts there is no share; no time passed is no steal."""
    before, after = LoadMark((100, 0, 50, 800, 0, 0, 0, 10)), LoadMark((150, 0, 60, 830, 0, 0, 0, 40))
    assert after.steal_frac_since(before) == pytest.approx(30 / 120)
    assert after.steal_frac_since(after) == 0
    assert after.steal_frac_since(LoadMark(None)) is None
    mark = load_mark()
    assert mark.times is None or (len(mark.times) == 8 and sum(mark.times) > 0)


def test_a_cell_names_its_conditions() -> None:
    """The name is the folder's: no blanks and no slashes."""
    conditions = {"ram_cap": "1.9 GB", "storage_limit": "500 MB/s", "prefetch": "none", "threads": 2}
    cell = Cell(model="4b", state=2048, n_warm_up=8, n_counted=16, **conditions)
    assert cell.name == "4b-c2048-1.9GB-500MBs-none-t2"
    assert (cell.context, cell.chunk_tokens, cell.n_tokens) == (2048, 1, 2072)
