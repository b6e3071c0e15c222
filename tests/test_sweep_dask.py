"""The same sweep on a real Dask cluster: a scheduler and two workers on loopback, one of which dies."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sweep_kills
from conftest import assert_one_line

pytest.importorskip("distributed")

PATIENCE_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen]]]:
    """The scheduler's address; the scheduler and its two workers."""
    note = tmp_path / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    start = [sys.executable, "-m", "dask"]
    options = ["--scheduler-file", str(note), "--no-dashboard"]
    processes = [subprocess.Popen([*start, "scheduler", "--host", "127.0.0.1", "--port", "0", *options], **quiet)]
    worker = [*start, "worker", *options, "--nthreads", "1", "--no-nanny", "--host", "127.0.0.1"]
    processes += [subprocess.Popen([*worker, "--local-directory", str(tmp_path)], **quiet) for _ in range(2)]
    try:
        yield _address(note), processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _address(note: Path) -> str:
    end = time.monotonic() + PATIENCE_S
    while True:
        assert time.monotonic() < end, "no scheduler"
        try:
            return str(json.loads(note.read_text())["address"])
        except (FileNotFoundError, json.JSONDecodeError):
            time.sleep(0.05)


def test_a_cluster_gives_the_same_bytes_though_a_worker_dies(cluster, tmp_path: Path) -> None:
    """A worker is killed after the first part: the sweep ends all the same, byte for byte as on this machine alone."""
    address, (_, worker, _) = cluster
    trace = sweep_kills.small_trace(tmp_path / "trace.parquet")
    local, remote = tmp_path / "local", tmp_path / "remote"
    running = _started(trace, remote, address)
    worker.kill()
    n_parts = len(sweep_kills.parts(remote))
    _, errors = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, errors
    assert 0 < n_parts < sweep_kills.N_CONTEXTS, "the worker died too late to tell anything"
    sweep_kills.finish(sweep_kills.command(trace, local, "--workers", "1"))
    assert (remote / "sweep.parquet").read_bytes() == (local / "sweep.parquet").read_bytes()


def test_a_scheduler_that_goes_away_is_one_line(cluster, tmp_path: Path) -> None:
    """What is on disk stays, and the sweep can go on without the cluster."""
    address, (scheduler, _, _) = cluster
    trace = sweep_kills.small_trace(tmp_path / "trace.parquet")
    running = _started(trace, tmp_path / "sweep", address)
    scheduler.kill()
    _, errors = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 2, errors
    assert errors.count(b"\n") == 1, errors
    assert b"--scheduler: must live to the end" in errors
    assert sweep_kills.parts(tmp_path / "sweep")


def _started(trace: Path, folder: Path, address: str) -> subprocess.Popen:
    """A sweep on the cluster that has its first part."""
    arguments = sweep_kills.command(trace, folder, "--scheduler", address)
    running = subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    end = time.monotonic() + PATIENCE_S
    while running.poll() is None and not sweep_kills.parts(folder):
        assert time.monotonic() < end, "no part"
        time.sleep(0.002)
    return running


def test_a_scheduler_that_does_not_answer_is_one_line(moeplan, monkeypatch, tmp_path: Path) -> None:
    """No traceback, and nothing but the manifest is left behind."""
    monkeypatch.setattr("simulator.sweeps.dask_scheduler.CONNECT_S", 0.2)
    trace = sweep_kills.small_trace(tmp_path / "trace.parquet")
    arguments = sweep_kills.command(trace, tmp_path / "sweep", "--scheduler", "tcp://127.0.0.1:9")
    assert_one_line(moeplan(*arguments[3:]), "--scheduler", "must be the address of a running Dask scheduler")
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir()) == [".lock", "sweep.json"]
