"""The probe's file and its reads: nothing stays behind, a full disk is refused, times are times."""

import errno
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from time import perf_counter

import pytest

from moeplan.errors import InputError
from reference_runtime.probe import storage
from reference_runtime.probe.bursts import BurstKey, Bursts, PieceStore
from reference_runtime.probe.sampling import Samples
from reference_runtime.probe.sharing import LagKey, Reads, SharedKey, share, wake
from reference_runtime.probe.storage import LatencyKey, LoopKey, check_room, closed_loop, open_probe_file, probe_file
from reference_runtime.streaming.direct_reads import page_aligned

FILE_BYTES = 2**20


def ignore(_: object) -> None:
    """Progress that nobody watches."""


@pytest.mark.parametrize("has_tmpfile", [True, False])
def test_the_file_is_gone_when_the_reads_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tmpfile: bool
) -> None:
    """Also on systems where it must have a name while it is written: even a killed probe leaves nothing then."""
    if not has_tmpfile:
        monkeypatch.setattr(storage, "_O_TMPFILE", 0)
    with probe_file(tmp_path, FILE_BYTES, ignore) as file:
        assert list(tmp_path.iterdir()) == []
        assert file.direct.n_bytes == FILE_BYTES


@pytest.mark.parametrize("has_tmpfile", [True, False])
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tmpfile: bool) -> None:
    """Whether it comes while the file is written or while it is read."""
    if not has_tmpfile:
        monkeypatch.setattr(storage, "_O_TMPFILE", 0)
    n_open = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), probe_file(tmp_path, FILE_BYTES, stop):
        pass
    with pytest.raises(KeyboardInterrupt), probe_file(tmp_path, FILE_BYTES, ignore):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    if n_open:
        assert len(os.listdir("/proc/self/fd")) == n_open


def test_a_disk_with_too_little_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is never the last that was free; nothing is written before that is known."""
    found = namedtuple("found", "f_bavail f_frsize f_blocks")
    monkeypatch.setattr(os, "statvfs", lambda _: found(2**10, 4096, 2**20))
    with pytest.raises(InputError, match=r"must have .* free .* to spare, got 4\.00 MiB") as error:
        check_room(tmp_path, FILE_BYTES)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError), probe_file(tmp_path, FILE_BYTES, ignore):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    """In one line."""
    with pytest.raises(InputError, match="must be a folder"):
        check_room(tmp_path / "nowhere", 1)


def test_never_more_is_written_than_was_said(tmp_path: Path) -> None:
    """The pieces add up to the file."""
    written: list[int] = []
    with probe_file(tmp_path, FILE_BYTES + 4096, written.append) as file:
        assert sum(written) == FILE_BYTES + 4096 == file.direct.n_bytes


def test_a_closed_loop_counts_what_was_read(tmp_path: Path) -> None:
    """The latencies of single reads fit into the loop's time, which a thread that starts late makes longer."""
    samples = Samples()
    with probe_file(tmp_path, FILE_BYTES, ignore) as file:
        for depth, mode in ((1, file.direct.mode), (2, file.direct.mode), (2, "buffered")):
            closed_loop(LoopKey(4096, depth, mode), file, 0.02, 0, samples)
        rate, latencies = samples.median(LoopKey(4096, 1, file.direct.mode)), samples.values[LatencyKey(4096)]
    loop_s = len(latencies) * 4096 / rate
    assert 0 < sum(latencies) <= loop_s < sum(latencies) + 1


@pytest.mark.parametrize("mode", ["direct", "buffered"])
def test_a_read_that_fails_in_a_loop_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """As an InputError of the caller's thread, and no rate is kept: a loop that read nothing has none."""

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    samples = Samples()
    with probe_file(tmp_path, FILE_BYTES, ignore) as file:
        cell = LoopKey(4096, 2, "buffered" if mode == "buffered" else file.direct.mode)
        monkeypatch.setattr(os, "preadv", broken)
        with pytest.raises(InputError, match="must be readable, got Input/output error; is the drive healthy"):
            closed_loop(cell, file, 0.02, 0, samples)
    assert not samples.values


def test_offsets_stay_within_the_file(tmp_path: Path) -> None:
    """At page boundaries, the last request ends where the file ends."""
    import numpy as np

    with probe_file(tmp_path, FILE_BYTES, ignore) as file:
        offsets = file.offsets(65536, np.random.default_rng(0))
        some = [next(offsets) for _ in range(2000)]
    assert min(some) >= 0
    assert max(some) + 65536 <= FILE_BYTES
    assert all(at % 4096 == 0 for at in some)
    assert max(some) + 65536 == FILE_BYTES


def test_a_burst_takes_compute_first_and_then_all_its_reads(tmp_path: Path) -> None:
    """Compute runs for the idle time before every burst and never in it; a longer rest is more compute."""
    calls: list[float] = []
    with probe_file(tmp_path, FILE_BYTES, ignore) as file:
        bursts = Bursts(file.direct, page_aligned(2**18), lambda: calls.append(perf_counter()))
        for n, idle_s in ((1, 0.002), (3, 0.02)):
            calls.clear()
            began = perf_counter()
            seconds = bursts.seconds(BurstKey(65536, n, idle_s))
            ended = perf_counter()
            assert idle_s * 0.5 < calls[-1] - began
            assert 0 < seconds <= ended - calls[-1]
            assert bursts.seconds(BurstKey(4096, 8, 0.0)) > 0
        bursts.close()


def test_targets_lie_all_over_their_arena(tmp_path: Path) -> None:
    """At page boundaries and within it, as the slots of a large cache do."""
    arena = page_aligned(2**20)
    with probe_file(tmp_path, FILE_BYTES, ignore) as file:
        store = PieceStore(file.direct, 8192, arena)
        reads = [read for _ in range(200) for read in store.reads(0, 0, page_aligned(8192), 0, 0.0)]
    starts = [read.target.ctypes.data - arena.ctypes.data for read in reads if read.target is not None]
    assert all(at % 4096 == 0 and at + 8192 <= 2**20 for at in starts)
    assert len(set(starts)) > 64
    assert len({read.offset for read in reads}) > 64


def test_another_process_can_open_the_file(tmp_path: Path) -> None:
    """By its path, also where it has no name in any folder; it reads the same bytes."""
    with probe_file(tmp_path, FILE_BYTES, ignore) as file, open_probe_file(file.path) as other:
        assert other.n_bytes == FILE_BYTES
        command = [sys.executable, "-c", f"print(sum(open({str(file.path)!r}, 'rb').read()))"]
        said = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        assert int(said) == sum(os.pread(file.buffered_fd, FILE_BYTES, 0))


def test_shared_speeds_are_fractions(tmp_path: Path) -> None:
    """Of the speed alone, so above zero; a single short sample may go beyond 1; all reads have come back at the end."""
    samples = Samples()
    with probe_file(tmp_path, FILE_BYTES, ignore) as file:
        reads = Reads(file)
        share(reads, lambda: sum(range(1000)), samples, window_s=0.03)
        reads.close()
    for of in ("compute", "read"):
        assert 0 < samples.median(SharedKey(of)) < 10


def test_a_sleeper_wakes_late_and_not_early(tmp_path: Path) -> None:
    """The lag is positive and far less than a second."""
    samples = Samples()
    with probe_file(tmp_path, FILE_BYTES, ignore) as file:
        wake(file, 0.002, samples)
    assert 0 < samples.median(LagKey(0.002)) < 1
