"""
What reads cost the computing thread: asking for a row of experts that are not there and computing while they come, less
the same with the row there.  It holds issuing, the readers' turns at the interpreter's lock, and their wake-ups.
What the reads take longer than without that compute.  And what the first work after the wait takes longer than the same
work at once again: a processor that slept is slow.
"""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import numpy as np
from gguf import GGMLQuantizationType

from reference_runtime.probe.memory import places_of
from reference_runtime.probe.plan import Plan
from reference_runtime.probe.products import RowKey
from reference_runtime.probe.sampling import Samples
from reference_runtime.probe.storage import ProbeFile
from reference_runtime.streaming.direct_reads import DirectFile, Read
from reference_runtime.streaming.expert_cache import StreamedExperts
from reference_runtime.streaming.expert_store import Places, expert_n_bytes
from simulator.expert_layout import layout_of_bytes
from simulator.policies import make_policy

MISSES = (1, 2, 4)
N_SLOTS, N_EXPERTS = 2 * MISSES[-1], 64
N_ROWS = 12  # a sample is the median of so many
COMPUTE_S = 6e-4  # about the attention of a layer, in which the reads run
LEAST_S = 1e-8


class FileStore:
    """An ExpertStore (see expert_store.py) of one layer whose experts are pieces of the probe's file."""

    def __init__(self, file: ProbeFile, places: Places) -> None:
        self.layout = layout_of_bytes(expert_n_bytes(places), "bundle")
        self.places: tuple[Places, ...] = (places,)
        self.n_experts, self.buffer_bytes = N_EXPERTS, 0
        self.files: tuple[DirectFile, ...] = (file.direct,)
        self._offsets = file.offsets(self.layout.padded_bytes, np.random.default_rng(3))

    def reads(self, layer: int, expert: int, slot: np.ndarray, tag: int, issued_s: float) -> list[Read]:
        """See ExpertStore."""
        return [Read(tag, self.files[0], next(self._offsets), len(slot), len(slot), slot, None, issued_s)]

    def close(self) -> None:
        """The file is its owner's."""


class Issues:
    """Rows with misses of experts of one size."""

    def __init__(self, file: ProbeFile, plan: Plan, places: Places) -> None:
        """Raises InputError where the system has too little memory."""
        store = FileStore(file, places)
        policy = make_policy("lru", N_SLOTS, 1)
        self.expert_bytes = store.layout.padded_bytes
        self._arena_bytes, self._next = plan.arena_bytes, 0
        self._arrivals_s: list[float] = []
        self._experts = StreamedExperts(store, policy, n_slots=N_SLOTS, top_k=MISSES[-1])

    def measure(self, compute: Callable[[], object], n_threads: int, samples: Samples) -> None:
        """One sample for each number of misses; compute: some tens of microseconds of products on n_threads."""
        n_calls = _calls_in(compute, COMPUTE_S)
        for n in MISSES:
            seconds = [self._cost_s(n, compute, n_calls) for _ in range(N_ROWS)]
            key = RowKey("issue", "f32", self.expert_bytes, n, 0.0, self._arena_bytes, n_threads)
            samples.add(key, max(LEAST_S, float(np.median(seconds))))
            late = [self._arrivals_s.pop() for _ in range(N_ROWS)]
            woken = [self._wake_s(n, compute, n_calls) for _ in range(N_ROWS)]
            samples.add(replace(key, op="wake"), max(LEAST_S, float(np.median(woken))))
            alone = [self._arrivals_s.pop() for _ in range(N_ROWS)]
            samples.add(replace(key, op="delay"), max(LEAST_S, float(np.median(late) - np.median(alone))))

    def close(self) -> None:
        """Stop the readers."""
        self._experts.close()

    def _wake_s(self, n_misses: int, compute: Callable[[], object], n_calls: int) -> float:
        """What a layer's work takes longer after a wait for reads than at once again."""
        for _ in range(n_calls):
            compute()
        row = self._new_row(n_misses)
        self._experts.request(0, row)
        self._take(row)
        self._arrivals_s.append(self._arrival_s())
        times = []
        for _ in range(2):
            began = perf_counter()
            for _ in range(n_calls):
                compute()
            times.append(perf_counter() - began)
        return times[0] - times[1]

    def _new_row(self, n_misses: int) -> list[int]:
        """Experts that are not there: between two uses lie so many that none is left in the cache."""
        row = [(self._next + i) % N_EXPERTS for i in range(n_misses)]
        self._next += n_misses
        return row

    def _cost_s(self, n_misses: int, compute: Callable[[], object], n_calls: int) -> float:
        row = self._new_row(n_misses)
        missing_s = self._row_s(row, compute, n_calls)
        self._arrivals_s.append(self._arrival_s())
        return missing_s - self._row_s(row, compute, n_calls)

    def _row_s(self, row: list[int], compute: Callable[[], object], n_calls: int) -> float:
        for _ in range(n_calls):  # after a wait for reads the processor is slow at first
            compute()
        began = perf_counter()
        self._experts.request(0, row)
        for _ in range(n_calls):
            compute()
        seconds = perf_counter() - began
        self._take(row)
        return seconds

    def _take(self, row: list[int]) -> None:
        for _ in self._experts.waves(0, row):
            pass

    def _arrival_s(self) -> float:
        """From asking for the last row to its last expert's arrival."""
        assert self._experts.last_row is not None
        return self._experts.last_row.arrived_s - self._experts.last_row.issued_s


def _calls_in(compute: Callable[[], object], seconds: float) -> int:
    began, n = perf_counter(), 0
    while perf_counter() < began + seconds:
        compute()
        n += 1
    return max(1, n)


def open_issues(file: ProbeFile, plan: Plan) -> list[Issues]:
    """For the experts of the plan's first two shapes, a small one and a middle one."""
    return [Issues(file, plan, places_of(shape, GGMLQuantizationType.Q4_0)) for shape in plan.shapes[:2]]
