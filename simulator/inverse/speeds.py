"""
Speeds of many variations of one question, in closed form: what two variations share is worked out once.

They share the model, the trace, the context and the device; they may differ in RAM cap, policies, layout, LM head and
in the what-ifs on the device's speeds.  The equations are those of simulator.sweeps.totals.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from hardware_profiles.rates import DeviceRates
from simulator.costs import MissCosts, costs_of_waits_rise, miss_costs, read_table
from simulator.expert_layout import ExpertLayout, expert_layout
from simulator.inverse.bounded import Bounded
from simulator.policies import STACK_POLICIES
from simulator.prefetch import NONE
from simulator.question import (
    Prepared,
    Question,
    device_rates,
    drawn_devices,
    prepare,
    question_rates,
    with_what_ifs,
)
from simulator.result import Interval
from simulator.scenario import Scenario
from simulator.simulate import interval_of
from simulator.sweeps.decisions import counted_misses
from simulator.sweeps.definition import N_SWEEP_SAMPLES
from simulator.sweeps.replay import lean_replay
from simulator.sweeps.totals import ComputeTimes, ComputeWorks, CountedTokens, MissSums, Totals
from traces.routing_trace import RoutingTrace

Key = tuple[object, ...]

# what each stage depends on beside what all variations share
PLAN_FIELDS = (
    "ram_cap_bytes", "cache_policy", "prefetch_policy", "layout", "start", "lm_head_predictor", "warm_up_tokens",
    "chunk_tokens",
)  # fmt: skip
TOKEN_FIELDS = ("start", "warm_up_tokens", "lm_head_predictor")
DRAW_FIELDS = ("layout", "n_threads")
COMPUTE_FIELDS = (*DRAW_FIELDS, "compute_factor", "ram_bytes_per_s", "gemv_flop_per_s")
AT_ONCE = 10  # capacities of one pass over the trace: the counts of a long trace must fit into memory
MAX_SUMS_BYTES = 256 * 2**20  # holds the draws of one variation at 16,384 contexts of a 21B; found again when needed
MAX_TIMES_BYTES = 128 * 2**20


class Speeds:
    """Decode speeds of a question and its variations; the same numbers as `simulate`, draws included."""

    def __init__(self, question: Question, n_samples: int = N_SWEEP_SAMPLES, seed: int = 0) -> None:
        """n_samples: Monte Carlo draws behind an interval. Raises InputError where trace and model do not fit."""
        self.question, self.n_samples, self.seed = question, n_samples, seed
        self._replay = lean_replay(question)
        self._prepared: dict[Key, Prepared] = {}
        self._tokens: dict[Key, CountedTokens] = {}
        self._decided: dict[Key, tuple[dict[int, np.ndarray], int]] = {}
        self._draws: dict[Key, list[tuple[DeviceRates, float | None]]] = {}
        self._works: dict[Key, ComputeWorks] = {}
        self._times: Bounded[ComputeTimes] = Bounded(MAX_TIMES_BYTES, lambda times: times.n_bytes)
        self._sums: Bounded[MissSums] = Bounded(MAX_SUMS_BYTES, lambda sums: sums.n_bytes)

    def with_routing(self, trace: RoutingTrace) -> "Speeds":
        """Other experts for the same prompts and positions: what attention and all other compute cost is kept."""
        changed = Speeds(replace(self.question, trace=trace), self.n_samples, self.seed)
        changed._tokens, changed._draws, changed._works, changed._times = (
            self._tokens, self._draws, self._works, self._times,
        )  # fmt: skip
        return changed

    def prepared(self, question: Question) -> Prepared:
        """
        Memory plan and scenario.  What-ifs on the device do not change them, so the Prepared may be that of a variation
        with other ones: its question and its scenario's rates are not this question's.

        Raises InputError where the question cannot be asked.
        """
        key = _values(question, PLAN_FIELDS)
        if key not in self._prepared:
            self._prepared[key] = prepare(question, self._replay)
        return self._prepared[key]

    def speed(self, question: Question) -> float:
        """Central tokens/s, 0 where the model cannot run."""
        totals = self.totals(question)
        return 0.0 if totals is None else self.n_tokens(question) / totals.step_s

    def interval(self, question: Question) -> Interval | None:
        """Central tokens/s with its 80 % interval, None where the model cannot run."""
        n_tokens = self.n_tokens(question)
        return self._interval(question, lambda totals: n_tokens / totals.step_s)

    def hidden_frac(self, question: Question) -> Interval | None:
        """Share of the pairs with a miss that attention hides, None where nothing misses or nothing runs."""
        totals = self.totals(question)
        if totals is None or not totals.n_missed:
            return None
        return self._interval(question, lambda totals: totals.n_hidden / totals.n_missed)

    def _interval(self, question: Question, figure: Callable[[Totals], float]) -> Interval | None:
        if self.prepared(question).scenario is None:
            return None
        central, *draws = (figure(self._totals(question, index)) for index in range(self.n_samples + 1))
        return interval_of(central, draws)

    def low(self, question: Question) -> float:
        """The low end of the interval, 0 where the model cannot run."""
        interval = self.interval(question)
        return 0.0 if interval is None else interval.low

    def totals(self, question: Question) -> Totals | None:
        """Sums over the counted tokens at the central rates, None where the model cannot run."""
        return None if self.prepared(question).scenario is None else self._totals(question, 0)

    def n_tokens(self, question: Question) -> int:
        """Decode tokens that count."""
        scenario = self.prepared(question).scenario
        return 0 if scenario is None else self._counted(question, scenario).n_tokens

    def n_misses(self, question: Question) -> int:
        """Misses of the counted tokens."""
        return self._histogram(question)[1]

    def compute_bound(self, question: Question) -> float:
        """Tokens/s if no expert were ever missing: no routing, cache or storage is faster."""
        prepared = self.prepared(question)
        if prepared.scenario is None:
            return 0.0
        return self.n_tokens(question) / self._compute_times(question, 0).total_s

    def decide(self, questions: Iterable[Question]) -> None:
        """Take the cache's decisions of many variations with few passes over the trace."""
        groups: dict[Key, dict[Key, tuple[Question, Scenario]]] = {}
        for question in questions:
            scenario = self.prepared(question).scenario
            if scenario is not None and self._decision_key(question, scenario) not in self._decided:
                shared = (scenario.cache_policy, id(scenario.steps), *_values(question, TOKEN_FIELDS))
                groups.setdefault(shared, {})[self._decision_key(question, scenario)] = question, scenario
        for group in groups.values():
            keys = list(group)
            for first in range(0, len(keys), AT_ONCE):
                some = keys[first : first + AT_ONCE]
                self._decide(some, [group[key][1] for key in some], group[some[0]][0])

    def _decide(self, keys: Sequence[Key], scenarios: Sequence[Scenario], question: Question) -> None:
        """question: one of those behind the scenarios, whose counted tokens are the same."""
        tokens = self._counted(question, scenarios[0])
        for key, n_misses in zip(keys, counted_misses(scenarios, self._replay), strict=True):
            self._decided[key] = tokens.histogram(n_misses), int(n_misses.sum(dtype=np.int64))

    def _decision_key(self, question: Question, scenario: Scenario) -> Key:
        return (
            scenario.cache_policy, scenario.n_slots, scenario.preloaded, id(scenario.steps),
            *_values(question, TOKEN_FIELDS),
        )  # fmt: skip

    def _histogram(self, question: Question) -> tuple[dict[int, np.ndarray], int]:
        scenario = self.prepared(question).scenario
        assert scenario is not None
        key = self._decision_key(question, scenario)
        if key not in self._decided:
            self._decide([key], [scenario], question)
        return self._decided[key]

    def _counted(self, question: Question, scenario: Scenario) -> CountedTokens:
        """The counted decode tokens, which no prompt chunk changes."""
        key = _values(question, TOKEN_FIELDS)
        if key not in self._tokens:
            self._tokens[key] = CountedTokens(
                scenario.model, scenario.steps, scenario.is_counted, scenario.lm_head_predictor
            )
        return self._tokens[key]

    def _drawn(self, question: Question, index: int) -> tuple[DeviceRates, float | None]:
        """The central rates (0) or a draw, before any what-if, with the gate sparsity; the same as `simulate`'s."""
        key = _values(question, DRAW_FIELDS)
        if key not in self._draws:
            self._draws[key] = drawn_devices(question, self.n_samples, self.seed)
        return self._draws[key][index]

    def _compute_times(self, question: Question, index: int) -> ComputeTimes:
        compute = (*_values(question, TOKEN_FIELDS), *_values(question, COMPUTE_FIELDS))
        key = (*compute, index)
        found = self._times.get(key)
        if found is None:
            drawn, sparsity = self._drawn(question, index)
            works_key = (*_values(question, TOKEN_FIELDS), question.n_threads)
            if works_key not in self._works:
                scenario = self.prepared(question).scenario
                assert scenario is not None
                self._works[works_key] = ComputeWorks(self._counted(question, scenario), device_rates(question))
            found = self._works[works_key].times(with_what_ifs(question, drawn), sparsity)
            self._times.put(key, found)
        return found

    def _totals(self, question: Question, index: int) -> Totals:
        prepared = self.prepared(question)
        assert prepared.scenario is not None
        key = (self._decision_key(question, prepared.scenario), *_values(question, COMPUTE_FIELDS), index)
        sums = self._sums.get(key)
        if sums is None:
            sums = MissSums(self._compute_times(question, index), self._histogram(question)[0])
            self._sums.put(key, sums)
        rates = with_what_ifs(question, self._drawn(question, index)[0])
        beside, read_s = miss_tables(question, rates, prepared.layout)
        return sums.totals(read_s, beside, rates, question.prefetch)


def more_slots_never_slower(question: Question) -> bool:
    """Whether a larger cache is proven never to be slower."""
    return not doubt_of_more_slots(question)


def doubt_of_more_slots(question: Question) -> str:
    """
    Why a larger cache may be slower, empty where it is proven never to be.

    A stack policy's larger cache holds all that a smaller one holds, so no row misses more; and what n misses cost must
    not fall with n, which is looked up.  Sums and percentiles of what never falls never fall.  Waking costs only where
    reads outlast attention, which more misses can end, as issuing them lengthens it; without prefetch every miss wakes.
    """
    if question.model.experts is None:
        return ""
    if question.cache_policy not in STACK_POLICIES:
        return f"a larger cache under {question.cache_policy} can miss more"
    layout = expert_layout(question.model, question.layout)
    beside, read_s = miss_tables(question, question_rates(question), layout)
    if question.prefetch != NONE and beside.wake_s.any():
        return "the measured cost of waking after a wait can end with more misses"
    rises = all((np.diff(table) >= 0).all() for table in (beside.issue_s, beside.delay_s, beside.wake_s, read_s))
    return "" if rises else "the measured cost of misses falls somewhere with their number"


def faster_storage_never_slower(question: Question) -> bool:
    """
    Whether a faster storage is proven never to be slower: all its times fall, and what a wait costs falls with them,
    which is looked up; a limiter before it has a lag.
    """
    layout = expert_layout(question.model, question.layout)
    rises = costs_of_waits_rise(question_rates(question), layout, question.prefetch)
    return question.storage_limit_bytes_per_s is None and rises


def faster_compute_never_slower(question: Question) -> bool:
    """Whether faster compute is proven never to be slower: all its times fall, but waking after a wait costs more."""
    layout = expert_layout(question.model, question.layout)
    return not miss_tables(question, question_rates(question), layout)[0].wake_s.any()


def miss_tables(question: Question, rates: DeviceRates, layout: ExpertLayout) -> tuple[MissCosts, np.ndarray]:
    """What 0, 1, ..., top_k misses cost beside their reads, and seconds to read them at once from idle storage."""
    top_k = 0 if question.model.experts is None else question.model.experts.top_k
    return miss_costs(rates, layout, top_k, question.prefetch), read_table(rates, layout, top_k)


def _values(question: Question, names: tuple[str, ...]) -> Key:
    return tuple(getattr(question, name) for name in names)
