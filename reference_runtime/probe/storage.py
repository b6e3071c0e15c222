"""The disk: a file of noise that is gone when the probe ends, and closed loops over request size and depth."""

import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp
from time import perf_counter
from typing import NamedTuple

import numpy as np

from moeplan.errors import InputError
from moeplan.quantity import format_bytes
from reference_runtime.core_affinity import free_this_thread
from reference_runtime.probe.plan import MIB, Plan
from reference_runtime.probe.sampling import Samples
from reference_runtime.streaming.direct_reads import DirectFile, page_aligned_targets

SPARE_FRAC, SPARE_BYTES = 0.02, 256 * MIB  # what must stay free beside the file, the larger of the two
WRITE_BYTES = 8 * MIB
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


@dataclass(frozen=True, eq=False)
class ProbeFile:
    """The file that is read: past the page cache, and through it; path: where other processes can open it."""

    direct: DirectFile
    buffered_fd: int
    path: Path

    @property
    def n_bytes(self) -> int:
        """Its size."""
        return self.direct.n_bytes

    def offsets(self, request_bytes: int, rng: np.random.Generator) -> Iterator[int]:
        """Random places, aligned to 4 KiB, without end."""
        return offsets_in(self.n_bytes, request_bytes, rng)


def offsets_in(n_bytes: int, request_bytes: int, rng: np.random.Generator) -> Iterator[int]:
    """Random places of a request in a file of n_bytes, aligned to 4 KiB, without end."""
    n_places = (n_bytes - request_bytes) // 4096 + 1
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
    A file of n_bytes of noise, on the disk and not in the page cache.

    Where the system can, it never has a name, so that nothing stays behind whatever happens; where it must have one to
    be written it loses it before it is read, where open files can be opened again without one.  on_written is told the
    bytes of each piece.  Raises InputError.
    """
    check_room(directory, n_bytes)
    fd, name = _create(directory)
    try:
        _fill(fd, n_bytes, directory, on_written)
        path = Path(f"/proc/{os.getpid()}/fd/{fd}")
        if name and path.exists():
            os.unlink(name)
            name = ""
        with open_probe_file(Path(name) if name else path) as file:
            yield file
    finally:
        os.close(fd)
        if name:
            os.unlink(name)


@contextmanager
def open_probe_file(path: Path) -> Iterator[ProbeFile]:
    """The file of another process that made it, or of this one.  Raises InputError where it cannot be opened."""
    direct = DirectFile(path)
    try:
        buffered_fd = os.open(path, os.O_RDONLY)
        try:
            yield ProbeFile(direct, buffered_fd, path)
        finally:
            os.close(buffered_fd)
    finally:
        direct.close()


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
    """One sample of a closed loop's rate; a depth of 1 gives the latencies too.  Raises InputError."""
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

    targets = page_aligned_targets(cell.request_bytes, cell.depth)
    with ThreadPoolExecutor(cell.depth, initializer=free_this_thread) as lanes:
        began = perf_counter()
        for lane in [lanes.submit(serve, *pair) for pair in enumerate(targets)]:
            lane.result()
        ended = perf_counter()
    samples.add(cell, sum(n_done) * cell.request_bytes / (ended - began))
    if cell.mode != "buffered":
        for one in latencies:
            samples.add(LatencyKey(cell.request_bytes), one)


def _read(file: ProbeFile, cell: LoopKey, offset: int, target: np.ndarray) -> None:
    if cell.mode != "buffered":
        file.direct.read(offset, target, len(target))
        return
    try:
        os.preadv(file.buffered_fd, [target.data], offset)
    except OSError as error:
        where = f"{file.path}: byte {offset}"
        raise InputError(where, "must be readable", error.strerror or error, "is the drive healthy?") from error
