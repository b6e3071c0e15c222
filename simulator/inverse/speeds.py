"""
Speeds of many variations of one question, in closed form: what two variations share is worked out once.

They share the model, the trace, the context and the device; they may differ in RAM cap, policies, layout, LM head and
in the what-ifs on the device's speeds.  The equations are those of simulator.closed_form.totals.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from simulator.closed_form.bounded import Bounded
from simulator.closed_form.decisions import counted_misses
from simulator.closed_form.drawn_device import DrawnDevice, DrawnReads
from simulator.closed_form.draws import COMPUTE_FIELDS, Draws
from simulator.closed_form.replay import lean_replay
from simulator.closed_form.totals import ComputeTimes, CountedTokens, MissSums, Totals
from simulator.interval import N_SAMPLES, interval_of
from simulator.miss_costs import miss_costs
from simulator.question import Prepared, Question, prepare, question_rates
from simulator.result import Interval
from simulator.scenario import Scenario
from traces.routing_trace import RoutingTrace

Key = tuple[object, ...]

# what each stage depends on beside what all variations share
PLAN_FIELDS = (
    "ram_cap_bytes", "cache_policy", "prefetch_policy", "layout", "start", "lm_head_predictor", "warm_up_tokens",
    "chunk_tokens",
)  # fmt: skip
TOKEN_FIELDS = ("start", "warm_up_tokens", "lm_head_predictor")
AT_ONCE = 10  # capacities of one pass over the trace: the counts of a long trace must fit into memory
MAX_SUMS_BYTES = 64 * 2**20  # of central variations, 4 MB each at 16,384 contexts of a 21B; found again when needed


class Speeds:
    """Decode speeds of a question and its variations; the same numbers as `simulate`, draws included."""

    def __init__(self, question: Question, n_samples: int = N_SAMPLES, seed: int = 0) -> None:
        """n_samples: Monte Carlo draws behind an interval. Raises InputError where trace and model do not fit."""
        self.question, self.n_samples, self.seed = question, n_samples, seed
        self._replay = lean_replay(question)
        self._prepared: dict[Key, Prepared] = {}
        self._tokens: dict[Key, CountedTokens] = {}
        self._decided: dict[Key, tuple[dict[int, np.ndarray], int]] = {}
        self._draws = Draws(n_samples, seed)
        self._central: Bounded[ComputeTimes] = Bounded(MAX_SUMS_BYTES, lambda times: times.n_bytes)
        self._sums: Bounded[MissSums] = Bounded(MAX_SUMS_BYTES, lambda sums: sums.n_bytes)

    def with_routing(self, trace: RoutingTrace) -> "Speeds":
        """Other experts for the same prompts and positions: what attention and all other compute cost is kept."""
        changed = Speeds(replace(self.question, trace=trace), self.n_samples, self.seed)
        changed._tokens, changed._draws, changed._central = self._tokens, self._draws, self._central
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
        totals = self._all_totals(question)
        if totals is None:
            return None
        speeds = self.n_tokens(question) / totals[0]
        return interval_of(self.speed(question), speeds[1:].tolist())

    def hidden_frac(self, question: Question) -> Interval | None:
        """Share of the pairs with a miss that attention hides, None where nothing misses or nothing runs."""
        totals = self.totals(question)
        if totals is None or not totals.n_missed:
            return None
        all_totals = self._all_totals(question)
        assert all_totals is not None
        return interval_of(totals.n_hidden / totals.n_missed, (all_totals[1][1:] / totals.n_missed).tolist())

    def low(self, question: Question) -> float:
        """The low end of the interval, 0 where the model cannot run."""
        interval = self.interval(question)
        return 0.0 if interval is None else interval.low

    def totals(self, question: Question) -> Totals | None:
        """Sums over the counted tokens at the central rates, None where the model cannot run."""
        scenario = self.prepared(question).scenario
        if scenario is None:
            return None
        key = (self._decision_key(question, scenario), *_values(question, COMPUTE_FIELDS))
        sums = self._sums.get(key)
        if sums is None:
            sums = MissSums(self._compute_times(question), self._histogram(question)[0])
            self._sums.put(key, sums)
        rates = question_rates(question)
        beside = miss_costs(rates, scenario.layout, _top_k(question), question.prefetch)
        return sums.totals(beside, rates, question.prefetch)

    def _all_totals(self, question: Question) -> tuple[np.ndarray, np.ndarray] | None:
        """Seconds and hidden pairs of the central rates and of every draw, (1 + n_samples,) each."""
        scenario = self.prepared(question).scenario
        if scenario is None:
            return None
        histogram = np.stack([counts.astype(np.int64) for counts in self._histogram(question)[0].values()])
        found = self._draws.totals(self._counted(question, scenario), [question], histogram[None])
        return found.step_s[0, :, 0], found.n_hidden[0, :, 0]

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
        return self.n_tokens(question) / self._compute_times(question).total_s

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

    def drawn_device(self, question: Question) -> DrawnDevice:
        """The central device and every draw."""
        return self._draws.device(question)[0]

    def drawn_reads(self, question: Question) -> DrawnReads:
        """What misses cost on the central device and on every draw of it."""
        return self._draws.reads(question)

    def _compute_key(self, question: Question) -> Key:
        return (*_values(question, TOKEN_FIELDS), *_values(question, COMPUTE_FIELDS))

    def _compute_times(self, question: Question) -> ComputeTimes:
        """Of the central rates."""
        key = self._compute_key(question)
        found = self._central.get(key)
        if found is None:
            scenario = self.prepared(question).scenario
            assert scenario is not None
            works = self._draws.works(self._counted(question, scenario), question)
            found = works.times(question_rates(question), None)
            self._central.put(key, found)
        return found


def _top_k(question: Question) -> int:
    return 0 if question.model.experts is None else question.model.experts.top_k


def _values(question: Question, names: tuple[str, ...]) -> Key:
    return tuple(getattr(question, name) for name in names)
