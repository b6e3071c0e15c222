"""
The draws behind the intervals of many questions: rates, compute times and what misses cost, each worked out once.

Sweeps and searches share it: both ask about one model and its trace on many devices, speeds and caches.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from hardware_profiles.rates import DeviceRates
from simulator.closed_form.bounded import Bounded
from simulator.closed_form.drawn_device import DrawnDevice, DrawnReads
from simulator.closed_form.totals import ComputeWorks, CountedTokens, ManyTotals, StackedTimes, Variants
from simulator.expert_layout import expert_layout
from simulator.prefetch import PRE_ATTENTION
from simulator.question import Question, device_rates, drawn_devices, with_what_ifs
from simulator.result import Bound
from simulator.scenario import Scenario
from simulator.what_bounds import twice_as_fast

Key = tuple[Hashable, ...]
Made = TypeVar("Made")

COMPUTE_BOUNDS: tuple[Bound, ...] = ("ram_bandwidth", "compute")  # with compute times of their own
BOUNDS: tuple[Bound, ...] = (*COMPUTE_BOUNDS, "storage_bandwidth", "storage_latency")  # of ties the first

# what each thing depends on, beside the device, what all questions share, and the counted tokens
DRAW_FIELDS = ("layout", "n_threads")
COMPUTE_FIELDS = (*DRAW_FIELDS, "compute_factor", "ram_bytes_per_s", "gemv_flop_per_s")
READ_FIELDS = (*COMPUTE_FIELDS, "storage_latency_s", "storage_limit_bytes_per_s")  # and the rate, which scales them

RATES_BYTES = 2000  # of one DeviceRates, about
MAX_BYTES = 64 * 2**20  # of each kind of thing but the next; found again when needed
MAX_TIMES_BYTES = 128 * 2**20  # of compute times: 105 MB for the draws of one device at 16,384 contexts of a 21B


class Draws:
    """
    For questions on one model and context that may differ in device, threads, layout, prefetch and what-ifs on speeds.

    Threads may share it.  The same seed gives the draws behind every interval of `simulate`.
    """

    def __init__(self, n_samples: int, seed: int, *, with_bounds: bool = False) -> None:
        """with_bounds: behind the draws stands the device with each of BOUNDS doubled, see what_bounds."""
        self.n_samples, self._seed, self._bounds = n_samples, seed, BOUNDS if with_bounds else ()
        self._kept: dict[str, Bounded[Any]] = {}
        self._lock = threading.RLock()

    def _once(
        self, what: str, of: Sequence[object], key: Key, make: Callable[[], Made], n_bytes: Callable[[Made], int]
    ) -> Made:
        """of: what is told apart by its id; kept beside what was made, so that nothing else has that id meanwhile."""
        with self._lock:
            kept = self._kept.get(what)
            if kept is None:
                most = MAX_TIMES_BYTES if what == "times" else MAX_BYTES
                kept = self._kept[what] = Bounded(most, lambda value: n_bytes(value[1]))
            full_key = (*map(id, of), *key)
            found: tuple[Sequence[object], Made] | None = kept.get(full_key)
            if found is None:
                found = of, make()
                kept.put(full_key, found)
            return found[1]

    def tokens(self, scenario: Scenario) -> CountedTokens:
        """The counted tokens of a scenario, the same object for the same steps."""
        key = (scenario.n_warm_up_tokens, scenario.lm_head_predictor)

        def make() -> CountedTokens:
            return CountedTokens(scenario.model, scenario.steps, scenario.is_counted, scenario.lm_head_predictor)

        return self._once("tokens", (scenario.steps,), key, make, lambda found: found.context_index.nbytes)

    def drawn(self, question: Question) -> Sequence[tuple[DeviceRates, float | None]]:
        """The central rates and every draw, before any what-if, each with its gate sparsity."""

        def make() -> list[tuple[DeviceRates, float | None]]:
            return drawn_devices(question, self.n_samples, self._seed)

        return self._once(
            "draws", (question.profile,), _fields(question, DRAW_FIELDS), make, lambda found: RATES_BYTES * len(found)
        )

    def central(self, question: Question) -> DeviceRates:
        """The central rates with the what-ifs."""
        key = (*_fields(question, READ_FIELDS), question.storage_read_bytes_per_s)

        def make() -> DeviceRates:
            return with_what_ifs(question, self.drawn(question)[0][0])

        return self._once("central", (question.profile,), key, make, lambda _: RATES_BYTES)

    def device(self, question: Question) -> tuple[DrawnDevice, float]:
        """The central device, every draw and each bound, and how many times as fast their storage is asked for."""
        asked, factor = _without_rate(question)
        key = (*_fields(asked, READ_FIELDS), asked.storage_read_bytes_per_s, asked.prefetch)

        def make() -> DrawnDevice:
            model = asked.model
            top_k = 0 if model.experts is None else model.experts.top_k
            return DrawnDevice(self._rates(asked), expert_layout(model, asked.layout), top_k, asked.prefetch)

        n_bytes = RATES_BYTES * (1 + self.n_samples)
        return self._once("devices", (asked.profile,), key, make, lambda _: n_bytes), factor

    def _rates(self, question: Question) -> list[DeviceRates]:
        """With the what-ifs: the central rates, every draw, and the device with each bound doubled."""
        devices = [rates for rates, _ in self.drawn(question)]
        twice = twice_as_fast(question, devices[0]) if self._bounds else {}
        return [*(with_what_ifs(question, rates) for rates in devices), *(twice[bound] for bound in self._bounds)]

    def reads(self, question: Question) -> DrawnReads:
        """What misses cost on each device of `device`."""
        key = (*_fields(question, READ_FIELDS), question.storage_read_bytes_per_s, question.prefetch)

        def make() -> DrawnReads:
            device, factor = self.device(question)
            return device.reads(factor)

        return self._once("reads", (question.profile,), key, make, lambda found: found.n_bytes)

    def works(self, tokens: CountedTokens, question: Question) -> ComputeWorks:
        """The works of counted tokens on the question's device."""

        def make() -> ComputeWorks:
            return ComputeWorks(tokens, device_rates(question))

        return self._once("works", (tokens, question.profile), (question.n_threads,), make, lambda found: found.n_bytes)

    def times(self, tokens: CountedTokens, question: Question) -> StackedTimes:
        """Compute times of the counted tokens: of the central rates, every draw, and COMPUTE_BOUNDS where asked for."""

        def make() -> StackedTimes:
            works, drawn = self.works(tokens, question), self.drawn(question)
            sparsities = [*(sparsity for _, sparsity in drawn), *(None for _ in self._own_times)]
            rates = self._rates(question)[: len(sparsities)]
            return StackedTimes.of([works.times(*each) for each in zip(rates, sparsities, strict=True)])

        of = tokens, question.profile
        return self._once("times", of, _fields(question, COMPUTE_FIELDS), make, lambda found: found.n_bytes)

    @property
    def _own_times(self) -> tuple[Bound, ...]:
        return self._bounds[: len(COMPUTE_BOUNDS)]

    def totals(self, tokens: CountedTokens, questions: Sequence[Question], histograms: np.ndarray) -> ManyTotals:
        """
        Totals (n_capacities, n_devices, len(questions)) over the counted tokens, devices in the order of `device`.

        The questions differ in storage and prefetch alone; histograms int64 (n_capacities, n_kinds, n_contexts, width).
        """
        times, reads = self.times(tokens, questions[0]), [self.reads(question) for question in questions]
        n_own = 1 + self.n_samples + len(self._own_times)
        times_of = [*range(n_own), *[0] * (len(self._bounds) - len(self._own_times))]
        variants = Variants(
            times,
            np.array(times_of),
            np.stack([each.speeds for each in reads], axis=1),
            np.stack([each.tables for each in reads], axis=1),
            np.array([question.prefetch == PRE_ATTENTION for question in questions]),
        )
        return variants.totals(histograms)


def _fields(question: Question, names: Sequence[str]) -> Key:
    return tuple(getattr(question, name) for name in names)


def _without_rate(question: Question) -> tuple[Question, float]:
    """
    The question on its device's own storage speed, and the factor on it; a limiter's lag and share are no factor.
    """
    rate, own = question.storage_read_bytes_per_s, question.profile.storage.sequential_read.value
    if rate is None or question.storage_limit_bytes_per_s is not None:
        return question, 1.0
    return replace(question, storage_read_bytes_per_s=None), rate / own
