"""Kills, full disks, failing drives and files that change: one clear error, nothing half written, no wrong weights."""

import errno
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from moeplan.errors import InputError
from reference_runtime.loading.model_file import ModelFile
from reference_runtime.streaming import direct_reads, prepare_store
from reference_runtime.streaming.expert_cache import StreamedExperts
from reference_runtime.streaming.expert_store import ExpertStore, SplitSource, default_store_path, open_store, verify
from reference_runtime.streaming.prepare_store import prepare
from simulator.policies import make_policy
from tests.expert_files import Q4_0, expected, is_expert, make_model

ROOT = Path(__file__).parent.parent
LAYOUTS = ("bundle", "split")

# Prepares a store and stops in the middle for ever.
SLOW_PREPARE = """
import sys, time
from pathlib import Path
from reference_runtime.streaming.prepare_store import prepare
from tests.expert_files import Q4_0, make_model

def progress(done, total):
    if done > total // 2:
        print("half", flush=True)
        time.sleep(600)

prepare(make_model(Path(sys.argv[1]), (Q4_0, Q4_0)), progress=progress)
"""


@pytest.fixture
def model(tmp_path: Path) -> ModelFile:
    """Two layers of four experts."""
    return make_model(tmp_path / "model.gguf", (Q4_0, Q4_0))


def temporaries(model: ModelFile) -> list[str]:
    """Names of unfinished files beside the store."""
    return [path.name for path in default_store_path(model.path).parent.iterdir() if path.name.endswith(".part")]


def verify_store(model: ModelFile) -> None:
    """The store is there, whole and the model's."""
    store = open_store(default_store_path(model.path), model)
    verify(store)
    store.close()


def check_whole(model: ModelFile) -> None:
    """The same, and nothing else lies beside it."""
    verify_store(model)
    assert os.listdir(default_store_path(model.path).parent) == ["experts.bundle"]


def test_after_a_kill_preparing_starts_over(model: ModelFile) -> None:
    """kill -9 in the middle leaves no store, only a leftover that the next call removes."""
    arguments = [sys.executable, "-c", SLOW_PREPARE, str(model.path)]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        process.kill()
    assert not default_store_path(model.path).exists()
    assert len(temporaries(model)) == 1
    prepare(model)
    check_whole(model)


def test_two_at_once_do_not_harm_each_other(model: ModelFile) -> None:
    """A second call in the middle of the first leaves its unfinished file alone; the store is whole at each moment."""

    def prepare_too(done: int, total: int) -> None:
        prepare(model)
        assert len(temporaries(model)) == 1
        verify_store(model)

    prepare(model, progress=prepare_too)
    check_whole(model)


def fail_to_reserve(fd: int, offset: int, n_bytes: int) -> None:
    """A disk whose last room went to someone else."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_with_too_little_room_is_refused_before_anything_is_read(
    model: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line with both numbers; an older store stays as it was."""
    before = prepare(model).read_bytes()
    usage = shutil.disk_usage(model.path.parent)
    monkeypatch.setattr(prepare_store.shutil, "disk_usage", lambda path: usage._replace(free=1024))
    with pytest.raises(InputError, match=r"must have .* free on its disk, got 1\.00 KiB"):
        prepare(model)
    assert default_store_path(model.path).read_bytes() == before
    monkeypatch.undo()
    check_whole(model)


@pytest.mark.parametrize("when", ["reserve", "write"])
def test_a_disk_that_is_full_leaves_nothing_behind(
    model: ModelFile, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """When the room is reserved, or in the middle of writing where it cannot be: a quota of 40 kB."""
    if when == "reserve":
        monkeypatch.setattr(prepare_store.os, "posix_fallocate", fail_to_reserve, raising=False)
    else:
        monkeypatch.delattr(prepare_store.os, "posix_fallocate", raising=False)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        if when == "write":
            resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, hard))
        with pytest.raises(InputError, match=r"must be a place that can be written, got (No space|File too large)"):
            prepare(model)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(default_store_path(model.path).parent) == []


def test_a_source_that_changes_while_the_store_is_made_makes_no_store(model: ModelFile) -> None:
    """Edited in the middle, or replaced by another model of the same shape."""

    def edit(done: int, total: int) -> None:
        os.utime(model.path, ns=(0, 0))

    def replace(done: int, total: int) -> None:
        make_model(model.path.with_name("other"), (Q4_0, Q4_0), seed=5)
        os.replace(model.path.with_name("other"), model.path)

    for change, says in ((edit, "must not change while it is in use"), (replace, "as it is now")):
        with pytest.raises(InputError, match=says):
            prepare(model, progress=change)
        assert os.listdir(default_store_path(model.path).parent) == []


def streamed(model: ModelFile, layout: str) -> StreamedExperts:
    """Streaming experts with room for two of them beside a row of two."""
    store: ExpertStore = SplitSource(model)
    if layout == "bundle":
        store.close()
        store = open_store(prepare(model), model)
    return StreamedExperts(store, make_policy("lru", 2, 2), n_slots=2, top_k=2)


def check_fails(experts: StreamedExperts, says: str) -> None:
    """The next row raises from waves() before anything of it is given out, and so does every later call."""
    experts.request(1, [2, 3])
    given_out = []
    with pytest.raises(InputError, match=says):
        given_out += list(experts.waves(1, [2, 3]))
    assert given_out == []
    with pytest.raises(InputError, match=says):
        experts.request(0, [0, 1])


def edit_file(path: Path) -> None:
    """Write one byte in place, much later than the file was made."""
    with path.open("r+b") as file:
        file.write(b"!")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "change", [edit_file, lambda path: os.truncate(path, path.stat().st_size // 2)], ids=["edited", "truncated"]
)
def test_a_file_that_changes_during_a_run_ends_it(
    model: ModelFile, layout: str, change: Callable[[Path], object]
) -> None:
    """What was read before is right; what is missing afterwards is never guessed; threads end."""
    n_threads = threading.active_count()
    with streamed(model, layout) as experts:
        (wave,) = experts.waves(0, [0, 1])
        assert all(is_expert(found, expected(model, 0, expert)) for expert, found in wave)
        change(experts.store.files[0].path)
        check_fails(experts, "must not change while it is in use")
    assert threading.active_count() == n_threads


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_path_that_is_replaced_during_a_run_changes_nothing(model: ModelFile, layout: str) -> None:
    """The file that was opened is held, so the weights stay those of the model that was loaded."""
    wanted = [expected(model, 1, expert) for expert in (2, 3)]
    with streamed(model, layout) as experts:
        path = experts.store.files[0].path
        path.with_name("other").write_bytes(bytes(path.stat().st_size))
        os.replace(path.with_name("other"), path)
        (wave,) = experts.waves(1, [2, 3])
        assert all(is_expert(found, array) for (_, found), array in zip(wave, wanted, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_io_error_ends_the_run(model: ModelFile, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """EIO of the drive, also when only one of several reads of a row fails."""
    real, calls = os.preadv, []

    def failing(*arguments: object) -> int:
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        return real(*arguments)  # type: ignore[arg-type]

    n_threads = threading.active_count()
    with streamed(model, layout) as experts:
        monkeypatch.setattr(direct_reads.os, "preadv", failing)
        check_fails(experts, "must be readable, got Input/output error")
    assert len(calls) >= 2
    assert threading.active_count() == n_threads


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_read_that_comes_back_short_ends_the_run(
    model: ModelFile, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drive that stops in the middle of an expert without an error: half of it is not taken for the whole."""
    real = os.preadv

    def half(fd: int, buffers: list, offset: int) -> int:
        return real(fd, buffers, offset) // 2 + 1

    with streamed(model, layout) as experts:
        monkeypatch.setattr(direct_reads.os, "preadv", half)
        check_fails(experts, "it is cut short")


def test_a_row_that_is_never_served_leaves_no_thread(model: ModelFile) -> None:
    """Whoever computes fails after the request: the context manager ends the readers with reads under way."""
    n_threads = threading.active_count()
    with streamed(model, "bundle") as experts:
        experts.request(0, [0, 1, 2, 3])
    assert threading.active_count() == n_threads
