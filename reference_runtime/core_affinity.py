"""
Each computing thread on a core of its own.

A thread of OpenMP that slept is woken on the core of the one that woke it, and there the two take turns until the
system moves one of them, up to 0.1 s later: after a wait for a read an operation on two threads took 140 us where it
takes 10 to 30.  So where there are as many computing threads as cores, each is bound to one.  Threads that read are
bound to none.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")  # Linux: a folder for each thread of this process
_lock = threading.Lock()
_workers: list[int] = []  # native ids of the threads that compute beside the caller's
_all_cores: set[int] = set()  # that the process may use; empty while nothing is bound


def all_cores() -> set[int]:
    """The cores that this process may use, also while its threads are bound. Empty where the system does not tell."""
    if _all_cores:
        return set(_all_cores)
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


@contextmanager
def noting_workers() -> Iterator[None]:
    """Threads that begin within are computing threads."""
    before = _threads()
    yield
    with _lock:
        _workers.extend(sorted(_threads() - before - set(_workers)))


@contextmanager
def bound_threads(n_threads: int) -> Iterator[bool]:
    """
    The calling thread and the noted ones, each on one core, if n_threads are as many as there are cores; whether.

    Not twice at a time in one process: the inner one binds nothing.
    """
    with _lock:
        cores = sorted(all_cores())
        alive = [worker for worker in _workers if worker in _threads()]
        binds = not _all_cores and n_threads > 1 and n_threads == len(cores) and bool(alive)
        if binds:
            _all_cores.update(cores)
    if not binds:
        yield False
        return
    caller = threading.get_native_id()
    try:
        _bind(caller, {cores[0]})
        for index, worker in enumerate(alive):
            _bind(worker, {cores[1 + index % (n_threads - 1)]})
        yield True
    finally:
        for thread in (caller, *alive):
            _bind(thread, set(cores))
        _all_cores.clear()


def free_this_thread() -> None:
    """Let the calling thread run anywhere: it inherits the core of the thread that started it."""
    if _all_cores:
        os.sched_setaffinity(0, all_cores())


def _bind(thread: int, cores: set[int]) -> None:
    with suppress(OSError):  # it has ended, or a container forbids it
        os.sched_setaffinity(thread, cores)


def _threads() -> set[int]:
    """Native ids of this process's threads; none where the system does not tell."""
    try:
        return {int(name) for name in os.listdir(_TASKS)}
    except OSError:
        return set()
