"""One copy of every trace for all local processes: the arrays lie in shared memory, each process maps them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from traces.routing_trace import RoutingTrace, TraceHeader

ARRAYS = ("expert_ids", "phase", "request_id", "position", "domain")  # what a replay reads


@dataclass(frozen=True)
class SharedTrace:
    """The name of a block of shared memory, and where each array lies in it: (offset, shape, dtype)."""

    block: str
    header: TraceHeader
    places: dict[str, tuple[int, tuple[int, ...], str]]


@contextmanager
def shared(traces: Mapping[str | None, RoutingTrace | None]) -> Iterator[dict[str | None, SharedTrace | None]]:
    """The traces in shared memory, until the block ends; it also goes when this process is killed."""
    blocks: list[SharedMemory] = []
    try:
        found: dict[str | None, SharedTrace | None] = {}
        for name, trace in traces.items():
            if trace is None:
                found[name] = None
                continue
            blocks.append(SharedMemory(create=True, size=_places(trace)[1]))
            found[name] = _copy(trace, blocks[-1])
        yield found
    finally:
        for block in blocks:
            block.close()
            block.unlink()


def _places(trace: RoutingTrace) -> tuple[dict[str, tuple[int, tuple[int, ...], str]], int]:
    places, end = {}, 0
    for name in ARRAYS:
        array = getattr(trace, name)
        places[name] = (end, array.shape, array.dtype.str)
        end += -(-array.nbytes // 64) * 64  # every array begins on a cache line
    return places, end


def _copy(trace: RoutingTrace, block: SharedMemory) -> SharedTrace:
    places, _ = _places(trace)
    for name, (offset, shape, dtype) in places.items():
        np.ndarray(shape, dtype, block.buf, offset)[...] = getattr(trace, name)
    return SharedTrace(block.name, trace.header, places)


def attached(trace: SharedTrace) -> tuple[RoutingTrace, SharedMemory]:
    """The trace in another process, and the block that must live as long; it was checked where it was read."""
    block = SharedMemory(name=trace.block)
    found = object.__new__(RoutingTrace)
    arrays = {
        name: np.ndarray(shape, dtype, block.buf, offset) for name, (offset, shape, dtype) in trace.places.items()
    }
    for array in arrays.values():
        array.setflags(write=False)
    values: dict[str, object] = {"header": trace.header, "token_id": None, "weights": None, "predicted": {}, **arrays}
    for name, value in values.items():
        object.__setattr__(found, name, value)
    return found, block
