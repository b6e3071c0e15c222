"""Reads past the page cache: O_DIRECT into page-aligned memory, on threads of their own."""

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import NamedTuple

import numpy as np

from moeplan.errors import InputError
from moeplan.quantity import format_bytes
from reference_runtime.core_affinity import free_this_thread
from reference_runtime.streaming.storage_limiter import StorageLimiter
from simulator.expert_layout import ALIGNMENT_BYTES, padded

N_READERS = 4  # 2 MB reads gain nothing from more on the drives that were tried

_O_DIRECT = getattr(os, "O_DIRECT", 0)  # absent on macOS
_F_NOCACHE = getattr(fcntl, "F_NOCACHE", None)  # macOS only
_MADV_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux only
HUGE_FROM_BYTES = 2**22  # two huge pages of x86-64 and arm64 with 4 KiB pages: less would gain nothing


def page_aligned(n_bytes: int, *, huge: bool = True) -> np.ndarray:
    """
    uint8 (n_bytes,) of private memory at a page's start, every page touched: a fresh page costs some 3 us.

    In huge pages where the system gives them, unless huge is False: a direct read into pages that lie scattered in
    physical memory is a list of small pieces, and on some machines takes half as long again.  Raises InputError where
    the system has not so much.
    """
    size = max(padded(n_bytes), ALIGNMENT_BYTES)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise InputError("memory", f"must have {format_bytes(size)} free", error, "give a lower --ram-cap") from error
    if huge and _MADV_HUGEPAGE is not None and size >= HUGE_FROM_BYTES:
        with suppress(OSError):  # a kernel without them
            memory.madvise(_MADV_HUGEPAGE)
    array = np.frombuffer(memory, dtype=np.uint8)
    array[::ALIGNMENT_BYTES] = 0
    return array[:n_bytes]


def page_aligned_targets(n_bytes: int, n: int) -> list[np.ndarray]:
    """n targets of n_bytes each, in one piece of memory, as the slots of a cache lie."""
    step = padded(n_bytes)
    arena = page_aligned(max(step * n, HUGE_FROM_BYTES))
    return [arena[i * step : i * step + n_bytes] for i in range(n)]


class DirectFile:
    """
    A file read in whole pages without leaving them in the page cache.

    mode: "direct" (O_DIRECT), or where the file system refuses that "buffered+dontneed" (a buffered read, then the
    pages are given back) or "nocache" (macOS).  The file is held open, so a path that is replaced changes nothing;
    a file that is written to is noticed at the next read.
    """

    def __init__(self, path: Path) -> None:
        """Raises InputError when the file cannot be opened."""
        self.path = path
        try:
            self._fd, self.mode = _open(path)
            self._identity = _identity(self._fd)
        except OSError as error:
            raise InputError(str(path), "must be a file that can be read", error.strerror or error) from error

    @property
    def n_bytes(self) -> int:
        """Size of the file when it was opened."""
        return self._identity[0]

    @property
    def mtime_ns(self) -> int:
        """Its modification time when it was opened."""
        return self._identity[1]

    def read(self, offset: int, target: np.ndarray, n_needed: int) -> None:
        """
        Fill target, uint8 of whole pages, from an offset that is a multiple of the page.

        The first n_needed bytes must arrive; behind them the file may end.  Raises InputError for a read error, a
        short read and a file that changed since it was opened: target then holds nothing of use.
        """
        n_read = 0
        try:
            while n_read < n_needed:
                n = os.preadv(self._fd, [target[n_read:].data], offset + n_read)
                n_read += n
                if n == 0 or n % ALIGNMENT_BYTES:  # the end of the file
                    break
            if self.mode == "buffered+dontneed":
                os.posix_fadvise(self._fd, offset, len(target), os.POSIX_FADV_DONTNEED)
            identity = _identity(self._fd)
        except OSError as error:
            where = f"{self.path}: byte {offset}"
            raise InputError(where, "must be readable", error.strerror or error, "is the drive healthy?") from error
        if identity != self._identity:
            raise InputError(str(self.path), "must not change while it is in use", "a write to it", "start again")
        if n_read < n_needed:
            raise InputError(f"{self.path}: byte {offset}", f"must have {n_needed} bytes", n_read, "it is cut short")

    def close(self) -> None:
        """Give the file back."""
        os.close(self._fd)


def _identity(fd: int) -> tuple[int, int, int]:
    stat = os.fstat(fd)
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def _open(path: Path) -> tuple[int, str]:
    if _O_DIRECT:
        fd = _open_direct(path)
        if fd is not None:
            return fd, "direct"
    fd = os.open(path, os.O_RDONLY)
    if _F_NOCACHE is not None:
        fcntl.fcntl(fd, _F_NOCACHE, 1)
        return fd, "nocache"
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead: it would read what is thrown away
    return fd, "buffered+dontneed"


def _open_direct(path: Path) -> int | None:
    """A descriptor that has proved to read directly, None where the file system answers EINVAL."""
    fd = -1
    try:
        fd = os.open(path, os.O_RDONLY | _O_DIRECT)
        os.preadv(fd, [page_aligned(ALIGNMENT_BYTES).data], 0)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        if error.errno != errno.EINVAL:
            raise
        return None
    return fd


class Read(NamedTuple):
    """
    One request: n_bytes of a file from a page's start, of which n_needed must arrive, for the asker's own `tag`.

    target: page-aligned uint8 (n_bytes,), None for the reader's own buffer.  then: called with what was read, on
    the reader's thread; it may raise InputError.
    """

    tag: int
    file: DirectFile
    offset: int
    n_bytes: int
    n_needed: int
    target: np.ndarray | None
    then: Callable[[np.ndarray], None] | None
    issued_s: float


class Done(NamedTuple):
    """A request that came to its end at arrived_s (time.perf_counter), well or with a failure."""

    tag: int
    arrived_s: float
    failure: InputError | None


class Readers:
    """
    Threads that serve reads in the order of issue; each has one request at the device.

    At the device are at most n_threads requests.  The queue before it is bounded by the asker's memory: a read brings
    its target, so an arena of n slots has at most n experts waiting, a decode row at most top_k.
    Every issued read comes back from `next_done` exactly once, whatever happens, until the readers are closed.
    """

    def __init__(
        self, n_threads: int = N_READERS, buffer_bytes: int = 0, limiter: StorageLimiter | None = None
    ) -> None:
        """buffer_bytes: each thread's own buffer, for reads without a target."""
        if n_threads < 1:
            raise InputError("reader threads", "must be at least 1", n_threads)
        self._limiter = limiter
        self._reads: SimpleQueue[Read | None] = SimpleQueue()
        self._done: SimpleQueue[Done] = SimpleQueue()
        self._closing = threading.Event()
        buffers = [page_aligned(buffer_bytes) for _ in range(n_threads)]
        self._threads = [
            threading.Thread(target=self._serve, args=(lane, buffer), name=f"expert-reader-{lane}", daemon=True)
            for lane, buffer in enumerate(buffers)
        ]
        for thread in self._threads:
            thread.start()

    def issue(self, read: Read) -> None:
        """Ask for a read; never waits."""
        self._reads.put(read)

    def next_done(self) -> Done:
        """The next request that came to its end; waits for it."""
        return self._done.get()

    def close(self) -> None:
        """Drop what waits, let running reads end, join the threads.  May be called twice."""
        self._closing.set()
        try:
            while True:
                self._reads.get_nowait()
        except Empty:
            pass
        for _ in self._threads:
            self._reads.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self, lane: int, buffer: np.ndarray) -> None:
        free_this_thread()
        while (read := self._reads.get()) is not None:
            failure: InputError | None = InputError("reader thread", "must not fail", "an error of its own")
            try:
                self._perform(read, lane, buffer)
                failure = None
            except InputError as error:
                failure = error
            finally:  # whatever else was raised ends this thread loudly, and its asker does not wait for ever
                self._done.put(Done(read.tag, perf_counter(), failure))

    def _perform(self, read: Read, lane: int, buffer: np.ndarray) -> None:
        target = buffer[: read.n_bytes] if read.target is None else read.target
        due_s = self._limiter.due_s(lane, read.issued_s, read.n_bytes) if self._limiter else 0.0
        read.file.read(read.offset, target, read.n_needed)
        if self._limiter:
            self._limiter.finish(lane, due_s, self._closing)
        if read.then is not None:
            read.then(target)
