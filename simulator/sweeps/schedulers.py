"""
Who computes the chunks of a sweep: this process, processes of this machine, or an existing Dask cluster.

All run the same function on the same chunks and give the same rows; the order in which chunks are done may differ.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from multiprocessing.shared_memory import SharedMemory
from typing import Protocol

from moeplan.errors import InputError
from simulator.sweeps.definition import SweepDefinition
from simulator.sweeps.rows import ChunkRunner, IndexedRow
from simulator.sweeps.scenarios import Chunk, Inputs
from simulator.sweeps.shared_traces import SharedTrace, attached, shared
from traces.catalog import trace_file
from traces.routing_trace import RoutingTrace

Done = Iterator[tuple[Chunk, list[IndexedRow]]]
Load = Callable[[], Inputs]
SMALL_TRACE_BYTES = 1_000_000  # on disk; with few scenarios it is done before another process has started
FEW_SCENARIOS = 200


class Scheduler(Protocol):
    """Computes chunks and gives each with its rows as soon as it is done."""

    def __call__(
        self, definition: SweepDefinition, load: Load, chunks: Sequence[Chunk], on_started: Callable[[], object]
    ) -> Done:
        """load reads the sweep's files, once; on_started is called when the work is handed out."""


def local(n_workers: int | None) -> Scheduler:
    """This many processes; None: as many as there are cores, or this one alone for a small sweep."""

    def run(definition: SweepDefinition, load: Load, chunks: Sequence[Chunk], on_started: Callable[[], object]) -> Done:
        wanted = min(len(chunks), _default_workers(definition) if n_workers is None else n_workers)
        if wanted <= 1:
            runner = ChunkRunner(definition, load())
            on_started()
            yield from ((chunk, runner.rows(chunk)) for chunk in chunks)
            return
        yield from _in_processes(definition, load, chunks, wanted, on_started)

    return run


def _default_workers(definition: SweepDefinition) -> int:
    traces = [trace_file(str(name)) for name in definition.axes["trace"] if name is not None]
    if definition.n_scenarios < FEW_SCENARIOS and all(path.stat().st_size < SMALL_TRACE_BYTES for path in traces):
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_processes(
    definition: SweepDefinition, load: Load, chunks: Sequence[Chunk], n_workers: int, on_started: Callable[[], object]
) -> Done:
    pool = ProcessPoolExecutor(n_workers, get_context("spawn"), _start_worker)
    try:
        for _ in range(n_workers):
            pool.submit(os.getpid)  # the processes start and import while the files are read here
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


_runner: ChunkRunner | None = None  # of this worker process
_blocks: list[SharedMemory] = []  # must live as long as the traces that lie in them


def _start_worker() -> None:
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _worker_rows(files: _Files, chunk: Chunk) -> list[IndexedRow]:
    global _runner
    if _runner is None:
        found: dict[str | None, RoutingTrace | None] = {}
        for name, trace in files.traces.items():
            found[name] = None
            if trace is not None:
                found[name], block = attached(trace)
                _blocks.append(block)
        _runner = ChunkRunner(files.definition, replace(files.inputs, traces=found))
    return _runner.rows(chunk)


def _leave_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
