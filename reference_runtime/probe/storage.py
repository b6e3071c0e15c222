"""
The disk: a file of noise that is gone when the probe ends, closed loops over request size and depth, and bursts.

Bursts go through the runtime's own readers, as the expert cache uses them: some requests at once on an idle device
after a moment of compute, from the issue of the first to the hand-over of the last.  On some machines traffic on the
memory bus just before makes a read slower, so the moment of compute is part of it.
"""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import mkstemp
from time import perf_counter
from typing import NamedTuple

import numpy as np

from moeplan.errors import InputError
from moeplan.quantity import format_bytes
from reference_runtime.probe.plan import MIB, Plan
from reference_runtime.probe.sampling import Samples
from reference_runtime.streaming.direct_reads import DirectFile, Read, Readers, page_aligned

SPARE_FRAC, SPARE_BYTES = 0.02, 256 * MIB  # what must stay free beside the file, the larger of the two
WRITE_BYTES = 8 * MIB
COMPUTE_S = 0.0015  # between bursts
BUFFERED_BYTES, BUFFERED_DEPTHS = (4096, MIB), (1, 4)  # closed loops through the page cache
_O_TMPFILE = getattr(os, "O_TMPFILE", 0)


class LoopKey(NamedTuple):
    """Bytes/s of a closed loop."""

    request_bytes: int
    depth: int
    mode: str


class LatencyKey(NamedTuple):
    """Seconds of a read alone."""

    request_bytes: int


class BurstKey(NamedTuple):
    """Seconds of n_requests that are issued at once."""

    request_bytes: int
    n_requests: int


@dataclass(frozen=True, eq=False)
class ProbeFile:
    """The file that is read: past the page cache, and through it."""

    direct: DirectFile
    buffered_fd: int
    n_bytes: int

    def offsets(self, request_bytes: int, rng: np.random.Generator) -> Iterator[int]:
        """Random places, aligned to 4 KiB, without end."""
        n_places = (self.n_bytes - request_bytes) // 4096 + 1
        while True:
            yield from (rng.integers(0, n_places, 256) * 4096).tolist()


def check_room(directory: Path, n_bytes: int) -> None:
    """Raises InputError where the directory is none or its disk has too little room for a file of n_bytes."""
    if not directory.is_dir():
        raise InputError(f"--directory {directory}", "must be a folder", "none")
    try:
        found = os.statvfs(directory)
    except OSError as error:
        raise InputError(f"--directory {directory}", "must be a folder that can be read", error.strerror) from error
    free, spare = found.f_bavail * found.f_frsize, int(max(SPARE_BYTES, SPARE_FRAC * found.f_blocks * found.f_frsize))
    if free < n_bytes + spare:
        must = f"must have {format_bytes(n_bytes)} free for the file that is read, and {format_bytes(spare)} to spare"
        raise InputError(f"--directory {directory}", must, format_bytes(free), "name a folder on a disk with more room")


@contextmanager
def probe_file(directory: Path, n_bytes: int, on_written: Callable[[int], object]) -> Iterator[ProbeFile]:
    """
    A file of n_bytes of noise, on the disk and not in the page cache; it has no name while it is read.

    Where the system can, it never has one, so that nothing stays behind whatever happens.  on_written is told the
    bytes of each piece.  Raises InputError.
    """
    check_room(directory, n_bytes)
    fd, name = _create(directory)
    direct = None
    try:
        _fill(fd, n_bytes, directory, on_written)
        direct = DirectFile(Path(name or f"/proc/self/fd/{fd}"))
        if name:
            os.unlink(name)
            name = ""
        yield ProbeFile(direct, fd, n_bytes)
    finally:
        if direct is not None:
            direct.close()
        os.close(fd)
        if name:
            os.unlink(name)


def _create(directory: Path) -> tuple[int, str]:
    """A descriptor, and a name where the file has to have one."""
    try:
        if _O_TMPFILE and Path("/proc/self/fd").is_dir():
            try:
                return os.open(directory, _O_TMPFILE | os.O_RDWR, 0o600), ""
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                    raise
        return mkstemp(prefix=".moeplan-probe-", dir=directory)
    except OSError as error:
        where = f"--directory {directory}"
        raise InputError(where, "must be a folder that can be written", error.strerror) from error


def _fill(fd: int, n_bytes: int, directory: Path, on_written: Callable[[int], object]) -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    try:
        for at in range(0, n_bytes, WRITE_BYTES):
            n = min(WRITE_BYTES, n_bytes - at)
            piece = rng.bytes(n)
            done = 0
            while done < n:
                done += os.write(fd, piece[done:])
            on_written(n)
        os.fsync(fd)
    except OSError as error:
        raise InputError(f"--directory {directory}", "must take the file that is read", error.strerror) from error
    drop_pages(fd)


def drop_pages(fd: int) -> None:
    """Take a file out of the page cache, where the system can."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def loop_cells(plan: Plan, file: ProbeFile) -> list[LoopKey]:
    """Every closed loop of the plan; the file must hold as much as is in flight."""
    direct = [
        LoopKey(size, depth, file.direct.mode)
        for size in plan.request_bytes
        for depth in plan.depths
        if size * depth <= file.n_bytes
    ]
    return direct + [LoopKey(size, depth, "buffered") for size in BUFFERED_BYTES for depth in BUFFERED_DEPTHS]


def closed_loop(cell: LoopKey, file: ProbeFile, seconds: float, seed: int, samples: Samples) -> None:
    """One sample of a closed loop's rate; a depth of 1 gives the latencies too."""
    if cell.mode == "buffered":
        drop_pages(file.buffered_fd)
    stop, latencies = perf_counter() + seconds, []
    n_done = [0] * cell.depth

    def serve(lane: int, target: np.ndarray) -> None:
        offsets = file.offsets(cell.request_bytes, np.random.default_rng([seed, lane]))
        while (began := perf_counter()) < stop or not n_done[lane]:
            _read(file, cell, next(offsets), target)
            n_done[lane] += 1
            if cell.depth == 1:
                latencies.append(perf_counter() - began)

    targets = [page_aligned(cell.request_bytes) for _ in range(cell.depth)]
    threads = [threading.Thread(target=serve, args=pair, daemon=True) for pair in enumerate(targets)]
    began = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    samples.add(cell, sum(n_done) * cell.request_bytes / (perf_counter() - began))
    if cell.mode != "buffered":
        for one in latencies:
            samples.add(LatencyKey(cell.request_bytes), one)


def _read(file: ProbeFile, cell: LoopKey, offset: int, target: np.ndarray) -> None:
    if cell.mode == "buffered":
        os.preadv(file.buffered_fd, [target.data], offset)
    else:
        file.direct.read(offset, target, len(target))


def burst_keys(plan: Plan) -> list[BurstKey]:
    """Every burst of the plan that fits into its file."""
    return [BurstKey(size, n) for size in plan.request_bytes for n in plan.bursts if size * n <= plan.file_bytes]


class Bursts:
    """Bursts on the runtime's readers."""

    def __init__(self, plan: Plan, file: ProbeFile) -> None:
        self._file, self._readers = file, Readers()
        self._targets = [page_aligned(max(plan.request_bytes)) for _ in range(max(plan.bursts))]
        rng = np.random.default_rng(1)
        self._offsets = {size: file.offsets(size, rng) for size in plan.request_bytes}

    def seconds(self, key: BurstKey, compute: Callable[[], object]) -> float:
        """Of one burst, after COMPUTE_S of compute. Raises InputError when a read failed."""
        size = key.request_bytes
        reads = [
            partial(Read, i, self._file.direct, next(self._offsets[size]), size, size, self._targets[i][:size], None)
            for i in range(key.n_requests)
        ]
        until = perf_counter() + COMPUTE_S
        while perf_counter() < until:
            compute()
        began = perf_counter()
        for read in reads:
            self._readers.issue(read(perf_counter()))
        failures = [self._readers.next_done().failure for _ in reads]
        seconds = perf_counter() - began
        for failure in failures:
            if failure is not None:
                raise failure
        return seconds

    def close(self) -> None:
        """Join the readers."""
        self._readers.close()
