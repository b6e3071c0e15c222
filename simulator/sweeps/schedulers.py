"""
Who computes the chunks of a sweep: threads of this process, processes of this machine, or an existing Dask cluster.

All run the same function on the same chunks and give the same rows; the order in which chunks are done may differ.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import groupby
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING, Protocol

from moeplan.errors import InputError
from simulator.sweeps.definition import SweepDefinition
from simulator.sweeps.scenarios import OUTER, Chunk, Inputs
from simulator.sweeps.shared_traces import SharedTrace, attached, shared
from traces.routing_trace import RoutingTrace

if TYPE_CHECKING:
    from simulator.sweeps.rows import ChunkRunner, IndexedRow

Done = Iterator[tuple[Chunk, "list[IndexedRow]"]]
Load = Callable[[], Inputs]
MANY_SCENARIOS = 20_000  # rows from which on a second process pays for its start, about a second
# seconds of a pass for ten capacities of 31 million accesses, where more than LRU's 0.3
SLOW_PASSES = {"belady": 1.5, "lfu": 1.5, "lfu-decay": 1.5, "s3-fifo": 3.5, "clock": 2.5, "sieve": 2.5, "fifo": 2.0}


class Scheduler(Protocol):
    """Computes chunks and gives each with its rows as soon as it is done."""

    def __call__(
        self, definition: SweepDefinition, load: Load, chunks: Sequence[Chunk], on_started: Callable[[], object]
    ) -> Done:
        """load reads the sweep's files, once; on_started is called when the work is handed out."""


def local(n_workers: int | None) -> Scheduler:
    """
    This many processes; None: all cores, as threads, or as processes where many scenarios make rows the most of it.

    The cache passes are compiled and hold no lock, so that threads run them side by side; they start at once and share
    the trace.  Rows are made in Python, by one thread at a time.
    """

    def run(definition: SweepDefinition, load: Load, chunks: Sequence[Chunk], on_started: Callable[[], object]) -> Done:
        wanted = min(len(chunks), _n_cores() if n_workers is None else n_workers)
        if wanted > 1 and (n_workers is not None or definition.n_scenarios > MANY_SCENARIOS):
            yield from _in_processes(definition, load, chunks, wanted, on_started)
        else:
            yield from _in_threads(definition, load, chunks, wanted, on_started)

    return run


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_threads(
    definition: SweepDefinition, load: Load, chunks: Sequence[Chunk], n_threads: int, on_started: Callable[[], object]
) -> Done:
    with ThreadPoolExecutor(max(1, n_threads)) as pool:
        loading = pool.submit(load)  # most of it is decompression, which holds no lock
        from simulator.closed_form.decisions import load_passes  # half a second of numba
        from simulator.sweeps.rows import ChunkRunner

        load_passes(sorted({str(name) for name in definition.axes["cache"]}))
        runner, ordered = ChunkRunner(definition, loading.result()), longest_first(chunks)
        if n_threads <= 1:
            on_started()
            yield from ((chunk, runner.rows(chunk)) for chunk in ordered)
            return
        futures = {pool.submit(runner.rows, chunk): chunk for chunk in ordered}
        try:
            on_started()
            for future in as_completed(list(futures)):
                yield futures.pop(future), future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def longest_first(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Chunks of one trace and model together; among them the slow passes first, so that all threads end together."""

    def outer(chunk: Chunk) -> list[object]:
        return [chunk.axes[name] for name in OUTER if name != "cache"]

    def pass_s(chunk: Chunk) -> float:
        return SLOW_PASSES.get(str(chunk.axes["cache"][0]), 0.0)

    ordered = (sorted(same, key=pass_s, reverse=True) for _, same in groupby(chunks, outer))
    return [chunk for same in ordered for chunk in same]


def _in_processes(
    definition: SweepDefinition, load: Load, chunks: Sequence[Chunk], n_workers: int, on_started: Callable[[], object]
) -> Done:
    pool = ProcessPoolExecutor(n_workers, get_context("spawn"), _start_worker)
    try:
        for _ in range(n_workers):
            pool.submit(_import_runner)  # the processes start and import while the files are read here
        inputs = load()
        with shared(inputs.traces) as traces:
            files = _Files(definition, replace(inputs, traces={}), traces)
            futures = {pool.submit(_worker_rows, files, chunk): chunk for chunk in chunks}
            on_started()
            for future in as_completed(list(futures)):
                yield futures.pop(future), future.result()
            pool.shutdown(wait=True)
    except BrokenProcessPool as error:
        advice = "start the same command again, it goes on; with fewer workers if memory was short"
        raise InputError("--workers", "workers must live to the end", "one that was killed", advice) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class _Files:
    """What a worker needs to know of a sweep: its traces lie in shared memory."""

    definition: SweepDefinition
    inputs: Inputs
    traces: dict[str | None, SharedTrace | None]


_runner: "ChunkRunner | None" = None  # of this worker process
_blocks: list[SharedMemory] = []  # must live as long as the traces that lie in them


def _start_worker() -> None:
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _worker_rows(files: _Files, chunk: Chunk) -> "list[IndexedRow]":
    global _runner
    from simulator.sweeps.rows import ChunkRunner

    if _runner is None:
        found: dict[str | None, RoutingTrace | None] = {}
        for name, trace in files.traces.items():
            found[name] = None
            if trace is not None:
                found[name], block = attached(trace)
                _blocks.append(block)
        _runner = ChunkRunner(files.definition, replace(files.inputs, traces=found))
    return _runner.rows(chunk)


def _import_runner() -> None:
    import simulator.sweeps.rows  # noqa: F401


def _leave_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
