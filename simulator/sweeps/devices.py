"""What a sweep works out once for its devices: rates, their draws, compute times and what misses cost."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from hardware_profiles.rates import DeviceRates
from simulator.closed_form.totals import ComputeWorks, CountedTokens, StackedTimes, Variants, cost_table
from simulator.costs import miss_costs
from simulator.expert_layout import expert_layout
from simulator.prefetch import PRE_ATTENTION
from simulator.question import Question, device_rates, drawn_devices, with_what_ifs
from simulator.result import Bound
from simulator.scenario import Scenario
from simulator.sweeps.scenarios import Cell
from simulator.what_bounds import twice_as_fast

Key = tuple[object, ...]
Made = TypeVar("Made")
BOUNDS: tuple[Bound, ...] = ("ram_bandwidth", "compute", "storage_bandwidth", "storage_latency")  # ties: the first
COMPUTE_BOUNDS: tuple[Bound, ...] = BOUNDS[:2]  # with compute times of their own; the others have the central ones
MAX_KEPT = {"times": 4}  # a set of times has (variants x contexts) numbers: megabytes
MAX_OTHERS_KEPT = 500  # the storages of a large chunk: some 50 kB each


def compute_key(cell: Cell) -> Key:
    """What the compute side depends on within a chunk."""
    return tuple(cell[name] for name in ("hardware", "threads", "ram_bandwidth", "flops"))


def storage_key(cell: Cell) -> Key:
    """What differs between cells of one compute side and capacity."""
    return tuple(cell[name] for name in ("storage_latency", "storage_read", "prefetch"))


class Devices:
    """
    For questions on one model, trace, context and layout; each thing is worked out once for what it depends on.

    Threads may share it.  The draws are those of simulate: the same seed gives the same interval.
    """

    def __init__(self, n_samples: int, seed: int) -> None:
        self._n_samples, self._seed = n_samples, seed
        self._kept: dict[str, dict[Key, Any]] = {}
        self._lock = threading.RLock()

    def _once(self, what: str, key: Key, make: Callable[[], Made]) -> Made:
        with self._lock:
            kept = self._kept.setdefault(what, {})
            if key not in kept:
                if len(kept) >= MAX_KEPT.get(what, MAX_OTHERS_KEPT):
                    del kept[next(iter(kept))]  # the oldest
                kept[key] = make()
            found: Made = kept[key]
            return found

    def tokens(self, scenario: Scenario) -> CountedTokens:
        """The counted tokens of a scenario."""

        def make() -> tuple[object, CountedTokens]:
            tokens = CountedTokens(scenario.model, scenario.steps, scenario.is_counted, scenario.lm_head_predictor)
            return scenario.steps, tokens  # as long as the steps are kept no others have their id

        key = (id(scenario.steps), scenario.n_warm_up_tokens, scenario.lm_head_predictor)
        return self._once("tokens", key, make)[1]

    def central(self, cell: Cell, question: Question) -> DeviceRates:
        """The central rates with the cell's what-ifs."""
        key = (*compute_key(cell), cell["storage_latency"], cell["storage_read"])
        return self._once("central", key, lambda: with_what_ifs(question, self._drawn(cell, question)[0][0]))

    def variants(self, tokens: CountedTokens, storages: Sequence[tuple[Cell, Question]]) -> Variants:
        """
        The storages of one compute side: central rates, the draws, and the device with each of BOUNDS doubled.
        """
        times = self._compute_times(tokens, *storages[0])
        n_own = 1 + self._n_samples + len(COMPUTE_BOUNDS)
        times_of = [*range(n_own), *[0] * (len(BOUNDS) - len(COMPUTE_BOUNDS))]
        rates = [self._rates(*storage) for storage in storages]
        speeds = [[(one.contended_compute_frac, one.contended_read_frac) for one in row] for row in rates]
        tables = [self._tables(*storage) for storage in storages]
        prefetched = np.array([question.prefetch == PRE_ATTENTION for _, question in storages])
        of_variants = np.ascontiguousarray(np.array(speeds).swapaxes(0, 1)), np.stack(tables, axis=1)
        return Variants(times, np.array(times_of), *of_variants, prefetched)

    def _rates(self, cell: Cell, question: Question) -> list[DeviceRates]:
        """Central rates, the draws, and the device with each resource doubled in the order of BOUNDS."""

        def make() -> list[DeviceRates]:
            devices = [rates for rates, _ in self._drawn(cell, question)]
            twice = twice_as_fast(question, devices[0])
            return [*(with_what_ifs(question, rates) for rates in devices), *(twice[bound] for bound in BOUNDS)]

        return self._once("rates", (*compute_key(cell), cell["storage_latency"], cell["storage_read"]), make)

    def _tables(self, cell: Cell, question: Question) -> np.ndarray:
        """float64 (n_variants, 4, top_k + 1): see totals.cost_table."""

        def make() -> np.ndarray:
            layout = expert_layout(question.model, question.layout)
            top_k = 0 if question.model.experts is None else question.model.experts.top_k
            beside = (miss_costs(rates, layout, top_k, question.prefetch) for rates in self._rates(cell, question))
            return np.array([cost_table(each) for each in beside])

        key = (*compute_key(cell), cell["storage_latency"], cell["storage_read"], question.prefetch)
        return self._once("tables", key, make)

    def _compute_times(self, tokens: CountedTokens, cell: Cell, question: Question) -> StackedTimes:
        """Of the central rates, the draws, and COMPUTE_BOUNDS doubled."""

        def make() -> StackedTimes:
            works = self._compute_works(tokens, cell, question)
            rates = self._rates(cell, question)[: 1 + self._n_samples + len(COMPUTE_BOUNDS)]
            sparsities = [sparsity for _, sparsity in self._drawn(cell, question)]
            sparsities += [None] * len(COMPUTE_BOUNDS)
            return StackedTimes.of([works.times(*each) for each in zip(rates, sparsities, strict=True)])

        return self._once("times", (id(tokens), *compute_key(cell)), make)

    def _compute_works(self, tokens: CountedTokens, cell: Cell, question: Question) -> ComputeWorks:
        key = (id(tokens), cell["hardware"], cell["threads"])
        return self._once("works", key, lambda: ComputeWorks(tokens, device_rates(question)))

    def _drawn(self, cell: Cell, question: Question) -> list[tuple[DeviceRates, float | None]]:
        """The central rates and the draws before any what-if, each with its gate sparsity; the same as `intervals`."""

        def make() -> list[tuple[DeviceRates, float | None]]:
            return drawn_devices(question, self._n_samples, self._seed)

        return self._once("draws", (cell["hardware"], cell["threads"]), make)
