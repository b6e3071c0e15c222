"""A sweep that is killed goes on: nothing lost, nothing computed twice, no file unreadable."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sweep_kills


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trace on disk."""
    return sweep_kills.small_trace(tmp_path_factory.mktemp("trace") / "trace.parquet")


@pytest.fixture(scope="module")
def table(trace: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """sweep.parquet of the sweep left in peace."""
    folder = tmp_path_factory.mktemp("peace")
    sweep_kills.finish(sweep_kills.command(trace, folder, "--workers", "1"))
    return (folder / "sweep.parquet").read_bytes()


def test_a_killed_sweep_goes_on(trace: Path, table: bytes, tmp_path: Path) -> None:
    """Kill -9 at random moments: parts stay as they are, and the end is the table of the sweep left in peace."""
    rng, folder = random.Random(7), tmp_path / "sweep"
    for workers in ("1", "2", "2"):
        sweep_kills.kill_once(sweep_kills.command(trace, folder, "--workers", workers), folder, rng)
    sweep_kills.finish([*sweep_kills.command(trace, folder)[:4], "--resume", "--no-report", "--output", str(folder)])
    assert (folder / "sweep.parquet").read_bytes() == table
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "sweep.json", "sweep.parquet"]


def test_a_killed_sweep_leaves_no_process_behind(trace: Path, tmp_path: Path) -> None:
    """Workers go when their parent is killed."""
    folder = tmp_path / "sweep"
    arguments = sweep_kills.command(trace, folder, "--workers", "2")
    running = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        children = _wait_for(lambda: sweep_kills.parts(folder) and _children(running.pid))
    finally:
        running.kill()
        running.wait()
    assert len(children) >= 2
    _wait_for(lambda: not [child for child in children if _is_alive(child)])


def test_disk_full_is_one_line_and_loses_nothing(trace: Path, table: bytes, tmp_path: Path) -> None:
    """Where a part cannot be written the sweep ends with one line; with room again it goes on."""
    folder = tmp_path / "sweep"
    arguments = sweep_kills.command(trace, folder, "--workers", "1")
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000)); "
    code = f"{limit}from command_line import app; sys.argv = {['moeplan', *arguments[3:]]!r}; app.main()"
    full = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert full.returncode == 2, full.stderr
    assert full.stderr.count("\n") == 1
    assert "must be a place that can be written" in full.stderr
    assert not (folder / "sweep.parquet").exists()
    sweep_kills.finish(arguments)
    assert (folder / "sweep.parquet").read_bytes() == table


def _wait_for(condition, patience_s: float = 60.0):  # type: ignore[no-untyped-def]
    end = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)
    return found


def _children(pid: int) -> list[int]:
    if not Path("/proc/self/task").is_dir():
        pytest.skip("no /proc")
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
