"""
The clock of a run: when each operation ended, and what was read meanwhile; turned into OpRecords afterwards.

During the run a mark is one append, so recording costs next to nothing; the table is made at the end.
"""

from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from traces.op_record import OpRecord, records_frame

if TYPE_CHECKING:
    import pandas as pd


class RowReads(NamedTuple):
    """
    What a layer's row asked of the expert cache: experts found and missing, bytes requested from storage.

    issued_s: when the reads were asked for; arrived_s: when the last missing expert was there (issued_s without a
    miss), stamped by the thread that read it.  Seconds of time.perf_counter.
    """

    layer: int
    n_hits: int
    n_misses: int
    n_bytes: int
    issued_s: float
    arrived_s: float


class OpClock:
    """A Watch (see forward.py) that keeps every mark; `row_read` is the hook of a streaming expert source."""

    def __init__(self) -> None:
        self.marks: list[tuple[str, int, float]] = []  # ("start", n_tokens, s) or (op, layer, s)
        self.reads: list[RowReads] = []

    def start(self, n_tokens: int) -> None:
        """A chunk begins."""
        self.marks.append(("start", n_tokens, perf_counter()))

    def done(self, op: str, layer: int) -> None:
        """An operation has ended."""
        self.marks.append((op, layer, perf_counter()))

    def row_read(self, reads: RowReads) -> None:
        """A row has been served; rows come in the order of the layers."""
        self.reads.append(reads)

    def chunk_spans(self) -> list[tuple[int, float, float]]:
        """(n_tokens, start, end) of each chunk, in seconds of time.perf_counter."""
        starts = [i for i, mark in enumerate(self.marks) if mark[0] == "start"]
        ends = [*starts[1:], len(self.marks)]
        return [
            (self.marks[i][1], self.marks[i][2], self.marks[end - 1][2]) for i, end in zip(starts, ends, strict=True)
        ]

    def records(self) -> "pd.DataFrame":
        """All OpRecords; a chunk's operations carry the index of its last token, times count from the first start."""
        return records_frame(list(self._records()))

    def _records(self) -> Iterator[OpRecord]:
        zero, last = (self.marks[0][2] if self.marks else 0.0), 0.0
        token, reads = -1, iter(self.reads)
        topk_s: float | None = None
        for op, layer, end in self.marks:
            if op == "start":
                token += layer
            elif op == "wait":
                if topk_s is not None:  # a later wave of the same row has no reads of its own
                    row = next(reads, None)
                    if row is not None:
                        span = (row.issued_s - zero, row.arrived_s - zero)
                        yield OpRecord(token, layer, "read", *span, row.n_bytes, row.n_hits, row.n_misses)
                    topk_s = None
                yield OpRecord(token, layer, "wait", last - zero, end - zero)
            else:
                yield OpRecord(token, layer, op, last - zero, end - zero)
                if op == "router":
                    topk_s = end
            last = end
