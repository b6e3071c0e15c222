"""
simulate_mapped: an engine that maps the model file and leaves the reading to the operating system's page cache.

    bytes    replay of the trace's touches on a PageCache (simulator/page_cache.py) of what the RAM cap leaves
    seconds  a step's compute, as if all were in RAM, and its reads, which nothing hides:

             without read-ahead   every page a request at queue depth 1 for each faulting thread
             with read-ahead      windows one after the other: n_windows latencies, n_requests overheads, the bytes

The window is twice the device's read-ahead setting, since llama.cpp advises the kernel that it reads sequentially
(POSIX_FADV_SEQUENTIAL).  A warm start begins with the whole file touched once, as mapping it with MAP_POPULATE does.
Left out: reads ahead that run while the engine computes.
"""

from dataclasses import dataclass, replace

import numpy as np

from hardware_profiles.rates import DeviceRates
from hardware_profiles.storage import StorageModel
from moeplan.progress import OnProgress, ignore_progress
from simulator.engine_fast import Decisions, FastEngine
from simulator.mapped_file import mapped_file
from simulator.page_cache import PAGE_BYTES, Eviction, PageCache, Touched
from simulator.question import Prepared, Question
from simulator.result import CacheResult, PageCacheResult
from simulator.scenario import Scenario, Step
from simulator.timeline import Timeline

SEQUENTIAL_FACTOR = 2  # POSIX_FADV_SEQUENTIAL doubles a file's read-ahead (mm/fadvise.c)


@dataclass(frozen=True)
class Mapping:
    """
    How the file is mapped.

    read_ahead_bytes: the device's setting while tokens run, 0 or a mapping advised as random: none; load_bytes: its
    setting while the file was loaded, None for the same (the folios of that time stay, and waste room where only a part
    of one is needed); storage: the device as faults see it through the page cache, with the
    profile's uncertainty, None takes the profile's own;
    other_bytes: what else counts against the RAM cap, beside keys, values and activations.
    """

    read_ahead_bytes: int
    load_bytes: int | None = None
    eviction: Eviction = "two-list"
    storage: StorageModel | None = None
    other_bytes: int = 0

    @property
    def window_pages(self) -> int:
        """Pages that a fault reads."""
        return _window_pages(self.read_ahead_bytes)

    @property
    def load_window_pages(self) -> int:
        """Pages that a fault read while the file was loaded."""
        return _window_pages(self.read_ahead_bytes if self.load_bytes is None else self.load_bytes)


def mapping_of(question: Question, read_ahead_bytes: int | None = None) -> Mapping:
    """The mapping with a read-ahead, None for the profile's own; without any, the file was loaded with that."""
    own = int(question.profile.storage.read_ahead.value)
    return Mapping(own if read_ahead_bytes is None else read_ahead_bytes, load_bytes=read_ahead_bytes or own)


def _window_pages(read_ahead_bytes: int) -> int:
    return max(1, SEQUENTIAL_FACTOR * read_ahead_bytes // PAGE_BYTES)


class MappedEngine:
    """The pages of every step, found once; times for any rates."""

    def __init__(self, prepared: Prepared, mapping: Mapping, on_progress: OnProgress = ignore_progress) -> None:
        """prepared has a scenario; on_progress watches the replay."""
        assert prepared.scenario is not None
        self.mapping, self.prepared = mapping, prepared
        self.scenario: Scenario = replace(prepared.scenario, preloaded=True, n_slots=_all_experts(prepared.scenario))
        self._compute = FastEngine(self.scenario)
        self.capacity_pages = max(0, prepared.plan.memory.cache_bytes - mapping.other_bytes) // PAGE_BYTES
        self.touched = self._replay(on_progress)

    @property
    def decisions(self) -> Decisions:
        """Of the engine that computes: every expert is where it is looked for."""
        return self._compute.decisions

    def timeline(self, rates: DeviceRates, gate_sparsity: float | None = None) -> Timeline:
        """The times of all steps; the reads stand under `wait`."""
        timeline = self._compute.timeline(rates, gate_sparsity)
        read_s = self.read_s(rates)
        op_s = timeline.op_s | {"wait": timeline.op_s["wait"] + read_s}
        return replace(timeline, step_s=timeline.step_s + read_s, op_s=op_s, read_busy_s=read_s)

    def read_s(self, rates: DeviceRates) -> np.ndarray:
        """(n_steps,) seconds of the reads of every step."""
        storage = self._storage(rates)
        pages = np.array([touched.n_pages_read for touched in self.touched], dtype=np.float64)
        windows = np.array([touched.n_windows for touched in self.touched], dtype=np.float64)
        requests = np.array([touched.n_requests for touched in self.touched], dtype=np.float64)
        if self.mapping.window_pages == 1:
            lane_s, bus_s = storage.service_s(PAGE_BYTES)
            lanes = min(self._n_threads, storage.queue_depth)
            return pages * max((lane_s + bus_s) / lanes, bus_s)
        s_per_byte = storage.lane_s_per_byte + storage.bus_s_per_byte
        return windows * storage.latency_s + requests * storage.request_overhead_s + pages * PAGE_BYTES * s_per_byte

    def _storage(self, rates: DeviceRates) -> StorageModel:
        """The mapping's own, slower or faster in the proportion in which a draw or a what-if changed the device's."""
        own, central, changed = self.mapping.storage, self.scenario.rates.storage, rates.storage
        if own is None:
            return changed
        per_request = _ratio(*(model.latency_s + model.request_overhead_s for model in (changed, central)))
        per_byte = _ratio(*(model.lane_s_per_byte + model.bus_s_per_byte for model in (changed, central)))
        return replace(
            own,
            latency_s=own.latency_s * per_request,
            request_overhead_s=own.request_overhead_s * per_request,
            lane_s_per_byte=own.lane_s_per_byte * per_byte,
            bus_s_per_byte=own.bus_s_per_byte * per_byte,
        )

    def page_cache_result(self) -> PageCacheResult:
        """Means over the counted tokens."""
        counted = [touched for touched, is_counted in self._counted() if is_counted]
        return PageCacheResult(
            eviction=self.mapping.eviction,
            capacity_bytes=self.capacity_pages * PAGE_BYTES,
            window_bytes=self.mapping.window_pages * PAGE_BYTES,
            misses_per_token=float(np.mean([touched.n_misses for touched in counted])),
            reads_per_token=float(np.mean([touched.n_windows for touched in counted])),
            bytes_read_per_token=float(np.mean([touched.bytes_read for touched in counted])),
            bytes_touched_per_token=float(np.mean([touched.n_touched for touched in counted])) * PAGE_BYTES,
        )

    def cache_result(self) -> CacheResult | None:
        """The same as hits and misses of pages; slots: what the page cache would hold of experts alone."""
        if self.scenario.model.experts is None:
            return None
        counted = [touched for touched, is_counted in self._counted() if is_counted]
        n_pages, n_misses = sum(touched.n_touched for touched in counted), sum(touched.n_misses for touched in counted)
        n_bytes = sum(touched.bytes_read for touched in counted)
        return CacheResult(
            policy=f"page cache, {self.mapping.eviction}",
            capacity_bytes=self.capacity_pages * PAGE_BYTES,
            slots=self.prepared.plan.n_slots,
            hits=n_pages - n_misses,
            misses=n_misses,
            hit_rate=1 - n_misses / n_pages,
            bytes_read=n_bytes,
            bytes_wasted=0,
            bytes_read_per_token=n_bytes / len(counted),
        )

    def _counted(self) -> list[tuple[Touched, bool]]:
        return list(zip(self.touched, self.scenario.is_counted.tolist(), strict=True))

    @property
    def _n_threads(self) -> int:
        question = self.prepared.question
        return question.n_threads or question.profile.cpu.threads

    def _replay(self, on_progress: OnProgress) -> tuple[Touched, ...]:
        file, trace = mapped_file(self.scenario.model), self.prepared.question.trace
        cache = PageCache(file.n_pages, self.capacity_pages, self.mapping.load_window_pages, self.mapping.eviction)
        ids = None if trace is None else trace.token_id
        if self.prepared.question.start == "warm":  # llama.cpp maps with MAP_POPULATE: the file's last part is resident
            cache.touch(np.array([[0, file.n_pages]], np.int64))
        cache.set_window(self.mapping.window_pages)

        def touch(step: Step) -> Touched:
            # without recorded token ids every token takes the first row of the embedding
            token_ids = [0] * step.n_tokens if ids is None else ids[step.tokens.start : step.tokens.stop].tolist()
            return cache.touch(file.runs(step.rows, token_ids))

        touched = []
        for step in self.scenario.steps:
            touched.append(touch(step))
            on_progress(len(touched), len(self.scenario.steps))
        return tuple(touched)


def _ratio(changed: float, central: float) -> float:
    """1 for what the device does not have."""
    return changed / central if central else 1.0


def _all_experts(scenario: Scenario) -> int:
    experts = scenario.model.experts
    return 0 if experts is None else experts.n_experts * scenario.model.n_moe_layers
