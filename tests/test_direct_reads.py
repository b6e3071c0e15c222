"""Reads past the page cache: the right bytes or one clear error, whatever file system and device do."""

import errno
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from hardware_profiles.storage import StorageModel
from moeplan.errors import InputError
from reference_runtime.streaming import direct_reads
from reference_runtime.streaming.direct_reads import DirectFile, Read, Readers, page_aligned
from reference_runtime.streaming.storage_limiter import StorageLimiter

PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Eight pages and 100 bytes, all random."""
    path = tmp_path / "file"
    path.write_bytes(np.random.default_rng(0).bytes(8 * PAGE + 100))
    return path


def refuse_direct(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """A file system that answers EINVAL to O_DIRECT, when it is opened or when it is read."""
    real_open, real_preadv, direct = os.open, os.preadv, set()

    def fake_open(path: object, flags: int, *rest: object) -> int:
        if flags & os.O_DIRECT and at == "open":
            raise OSError(errno.EINVAL, "Invalid argument")
        fd = real_open(path, flags, *rest)  # type: ignore[arg-type]
        (direct.add if flags & os.O_DIRECT else direct.discard)(fd)
        return fd

    def fake_preadv(fd: int, *rest: object) -> int:
        if fd in direct:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_preadv(fd, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(direct_reads.os, "open", fake_open)
    monkeypatch.setattr(direct_reads.os, "preadv", fake_preadv)


def check_reads(path: Path, file: DirectFile) -> None:
    """Every window of two pages holds the file's bytes, the one over its end as far as it goes."""
    content, target = path.read_bytes(), page_aligned(2 * PAGE)
    for offset in range(0, len(content), PAGE):
        wanted = content[offset : offset + 2 * PAGE]
        file.read(offset, target, len(wanted))
        assert target[: len(wanted)].tobytes() == wanted


def test_memory_is_aligned_and_of_the_size() -> None:
    """O_DIRECT wants page-aligned memory; a size that is no multiple of the page is kept."""
    for n_bytes in (0, 1, PAGE, 3 * PAGE + 5):
        array = page_aligned(n_bytes)
        assert array.ctypes.data % PAGE == 0
        assert array.shape == (n_bytes,)
        assert not array.any()


def test_direct_reads_bring_the_bytes_of_the_file(path: Path) -> None:
    """Also at the end of the file, which is no multiple of the page."""
    file = DirectFile(path)
    check_reads(path, file)
    assert file.mode in ("direct", "buffered+dontneed", "nocache")
    file.close()


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="no O_DIRECT here")
@pytest.mark.parametrize("at", ["open", "read"])
def test_where_direct_reads_are_refused_pages_are_given_back(
    path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """EINVAL when opened or at the first read: buffered reads, DONTNEED after each, and the mode says so."""
    refuse_direct(monkeypatch, at)
    advice = []
    monkeypatch.setattr(direct_reads.os, "posix_fadvise", lambda fd, *rest: advice.append(rest))
    file = DirectFile(path)
    assert file.mode == "buffered+dontneed"
    check_reads(path, file)
    assert advice[0] == (0, 0, os.POSIX_FADV_RANDOM)
    assert advice[1:] == [(offset, 2 * PAGE, os.POSIX_FADV_DONTNEED) for offset in range(0, 9 * PAGE, PAGE)]
    file.close()


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no tmpfs here")
def test_a_memory_file_system_is_read_too() -> None:
    """tmpfs refuses O_DIRECT on older kernels and takes it on newer ones; the bytes are right with both."""
    path = Path("/dev/shm") / f"moeplan-test-{os.getpid()}"
    try:
        path.write_bytes(np.random.default_rng(1).bytes(5 * PAGE))
        file = DirectFile(path)
        check_reads(path, file)
        file.close()
    finally:
        path.unlink(missing_ok=True)


def test_another_error_at_opening_is_no_reason_for_the_fallback(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EIO of the first read is reported, and no descriptor stays open."""
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else None

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(direct_reads.os, "preadv", fail)
    if direct_reads._O_DIRECT:
        with pytest.raises(InputError, match="Input/output error"):
            DirectFile(path)
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    """The message names the file."""
    with pytest.raises(InputError, match=r"nothing.*No such file"):
        DirectFile(tmp_path / "nothing")


def test_a_short_read_is_an_error(path: Path) -> None:
    """Bytes that the file does not have."""
    file = DirectFile(path)
    with pytest.raises(InputError, match=r"byte 32768: must have 101 bytes, got 100"):
        file.read(8 * PAGE, page_aligned(PAGE), 101)
    file.close()


@pytest.mark.parametrize("change", ["write", "truncate", "append"])
def test_a_file_that_is_written_to_is_noticed_at_the_next_read(path: Path, change: str) -> None:
    """Size or modification time differ from when it was opened."""
    file = DirectFile(path)
    if change == "write":
        path.write_bytes(bytes(file.n_bytes))
        os.utime(path, ns=(0, file.mtime_ns + 1))  # clocks of file systems tick every few milliseconds
    if change == "truncate":
        os.truncate(path, 3 * PAGE)
    if change == "append":
        with path.open("ab") as more:
            more.write(b"more")
    with pytest.raises(InputError, match="must not change while it is in use"):
        file.read(0, page_aligned(2 * PAGE), 2 * PAGE)
    file.close()


def test_a_path_that_is_replaced_changes_nothing(path: Path, tmp_path: Path) -> None:
    """The file that was opened is held."""
    content = path.read_bytes()
    file = DirectFile(path)
    (tmp_path / "other").write_bytes(bytes(len(content)))
    os.replace(tmp_path / "other", path)
    target = page_aligned(PAGE)
    file.read(0, target, PAGE)
    assert target.tobytes() == content[:PAGE]
    file.close()


def read_of(file: DirectFile, page: int, **changes: object) -> Read:
    """One page of a file, into memory of its own."""
    fields = {"n_bytes": PAGE, "n_needed": PAGE, "target": page_aligned(PAGE), "then": None, "issued_s": 0.0}
    return Read(page, file, page * PAGE, **(fields | {"issued_s": time.perf_counter()} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("n_threads", [1, 4])
def test_every_read_comes_back_once_with_its_bytes(path: Path, n_threads: int) -> None:
    """Many more reads than threads; each `then` sees its own page, in the reader's buffer or in the target."""
    content, file, seen = path.read_bytes(), DirectFile(path), {}
    readers = Readers(n_threads, buffer_bytes=PAGE)
    start = time.perf_counter()
    for i in range(200):
        page = i % 8

        def then(data: np.ndarray, i: int = i) -> None:
            seen[i] = data.tobytes()

        target = None if i % 2 else page_aligned(PAGE)
        readers.issue(read_of(file, page, target=target, then=then)._replace(tag=i))
    done = [readers.next_done() for _ in range(200)]
    assert sorted(d.tag for d in done) == list(range(200))
    assert all(d.failure is None and start < d.arrived_s < time.perf_counter() for d in done)
    assert all(seen[i] == content[i % 8 * PAGE : (i % 8 + 1) * PAGE] for i in range(200))
    readers.close()
    file.close()


def test_a_failure_comes_back_and_the_readers_go_on(path: Path) -> None:
    """A read beyond the end fails alone; `then` is not called for it."""
    file, readers, called = DirectFile(path), Readers(2), []
    readers.issue(read_of(file, 20, then=called.append))
    failure = readers.next_done().failure
    assert isinstance(failure, InputError)
    assert called == []
    readers.issue(read_of(file, 1))
    assert readers.next_done().failure is None
    readers.close()
    file.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_that_nobody_foresaw_does_not_leave_the_asker_waiting(path: Path) -> None:
    """The reader's own mistake ends its thread loudly, comes back as a failure, and close() still returns."""
    file, readers = DirectFile(path), Readers(2)
    readers.issue(read_of(file, 0, then=lambda data: 1 / 0))
    assert readers.next_done().failure is not None
    readers.close()
    file.close()


def test_close_ends_the_threads_and_drops_what_waits(path: Path) -> None:
    """A device of 10 s a read does not hold the end up; closing twice is allowed."""
    before = threading.active_count()
    file, readers = DirectFile(path), Readers(3, limiter=StorageLimiter(latency_s=10.0))
    for page in range(8):
        readers.issue(read_of(file, page))
    start = time.perf_counter()
    readers.close()
    readers.close()
    assert time.perf_counter() - start < 5.0
    assert threading.active_count() == before
    file.close()


def test_no_readers_are_refused() -> None:
    """At least one thread."""
    with pytest.raises(InputError, match="at least 1"):
        Readers(0)


def test_due_times_are_those_of_lanes_and_one_bus() -> None:
    """By hand: 1 s latency, 10 bytes/s; 20 bytes on two lanes at time 100, then 20 more on the first."""
    limiter = StorageLimiter(10.0, 1.0)
    assert limiter.due_s(0, 100.0, 20) == 103.0  # at the bus at 101
    assert limiter.due_s(1, 100.0, 20) == 105.0  # at the bus at 101 too, which is free at 103
    limiter._lane_free_s = {0: 103.0, 1: 105.0}
    assert limiter.due_s(0, 100.0, 20) == 107.0  # at the bus at 104, which is free at 105
    assert limiter.due_s(1, 120.0, 20) == 123.0  # an idle device again


@pytest.mark.parametrize("n_lanes", [1, 2, 4])
@pytest.mark.parametrize("n_requests", [1, 3, 8])
def test_a_burst_takes_what_the_simulator_says(n_lanes: int, n_requests: int) -> None:
    """Each request takes the lane that is free first: the last one is due when the storage model's burst ends."""
    limiter, device = StorageLimiter(3e8, 2e-4), StorageModel(2e-4, 0.0, 0.0, 1 / 3e8, n_lanes)
    due_s, n_bytes = dict.fromkeys(range(n_lanes), 0.0), 1_990_656
    for _ in range(n_requests):
        lane = min(due_s, key=lambda lane: due_s[lane])
        due_s[lane] = limiter._lane_free_s[lane] = limiter.due_s(lane, 0.0, n_bytes)
    assert max(due_s.values()) == pytest.approx(device.burst_s(n_requests, n_bytes), rel=1e-12)


def test_without_a_rate_only_the_latency_counts() -> None:
    """Requests of different lanes do not wait for one another."""
    limiter = StorageLimiter(latency_s=0.5)
    assert [limiter.due_s(lane, 7.0, 10**9) for lane in (0, 1)] == [7.5, 7.5]


@pytest.mark.parametrize("fields", [(0.0, 0.0), (-1.0, 0.0), (float("nan"), 0.0), (None, -1.0), (1.0, float("inf"))])
def test_a_limiter_that_means_nothing_is_refused(fields: tuple) -> None:
    """Rates above 0, latencies of 0 or more."""
    with pytest.raises(InputError, match="storage limiter"):
        StorageLimiter(*fields)


@pytest.mark.parametrize("n_threads", [1, 4])
def test_the_rate_holds_over_a_run(path: Path, n_threads: int) -> None:
    """40 pages at 2.5 ms each take 0.1 s on paper: never less, and sleeps that end late do not add up."""
    file, readers = DirectFile(path), Readers(n_threads, limiter=StorageLimiter(PAGE / 2.5e-3))
    start = time.perf_counter()
    for i in range(40):
        readers.issue(read_of(file, i % 8, issued_s=start))
    took_s = max(readers.next_done().arrived_s for _ in range(40)) - start
    readers.close()
    file.close()
    assert 0.0999 < took_s < 0.25  # a busy machine may be late once


def test_a_slow_device_keeps_its_lane() -> None:
    """A real read that ends after `due` frees the lane when it ends, one that ends before it at `due`."""
    limiter, closing = StorageLimiter(), threading.Event()
    closing.set()
    now = time.perf_counter()
    limiter.finish(0, now - 1.0, closing)
    assert limiter._lane_free_s[0] >= now
    limiter.finish(0, now + 100.0, closing)
    assert limiter._lane_free_s[0] == now + 100.0
