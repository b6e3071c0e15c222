"""
Totals over the counted decode tokens, in closed form over a histogram of misses.

An expert FFN waits for its own layer's reads alone, so nothing carries over from layer to layer: a (token, layer) pair
is told apart by its attention time a (layer kind and context) and its number of misses m only.  With reads r(m), and
speeds v of compute and w of reads while both run, the sums of engine_fast's equations over the pairs are

    shared = min(a / v, r / w);   below the edge a < r v / w:  bubble = r - w a / v;   from it on: bubble = 0

where a and r hold what m misses cost attention and reads beside each other, and a bubble brings its wake-up.

So prefix sums of counts and of a over the pairs in ascending a give every storage speed by one search each.
The loops are compiled: simulator/closed_form/miss_kernels.py.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hardware_profiles.rates import DeviceRates
from simulator import costs
from simulator.closed_form.miss_kernels import STEP, WAIT, add_all_waits, add_waits, count_misses, n_sums, sum_before
from simulator.miss_costs import MissCosts
from simulator.model.spec import ModelSpec
from simulator.prefetch import PRE_ATTENTION
from simulator.scenario import Step
from simulator.trace_steps import StepColumns


class CountedTokens:
    """What all capacities and devices share: the distinct contexts of the counted decode tokens."""

    def __init__(
        self, model: ModelSpec, steps: Sequence[Step], is_counted: np.ndarray, lm_head_predictor: bool
    ) -> None:
        self.model, self.is_counted, self.lm_head_predictor = model, is_counted, lm_head_predictor
        columns = StepColumns.of(steps)
        self.n_tokens, self.n_logits = int(is_counted.sum()), int(columns.has_logits[is_counted].sum())
        contexts, self.context_index = np.unique(columns.contexts[is_counted], return_inverse=True)
        self.contexts, self.n_per_context = contexts.tolist(), np.bincount(self.context_index)
        kinds = costs.representative_layers(model)
        self.kinds = sorted(set(kinds))
        moe = np.array([kinds[layer] for layer in model.moe_layer_ids], np.int64)
        self.moe_layers = {kind: np.flatnonzero(moe == kind) for kind in self.kinds}
        self.n_dense = {kind: kinds.count(kind) - len(self.moe_layers[kind]) for kind in self.kinds}
        self._kind_of = np.searchsorted(self.kinds, moe)

    @property
    def width(self) -> int:
        """Numbers of misses that a decode row can have: 0 to top_k."""
        return 1 if self.model.experts is None else self.model.experts.top_k + 1

    def histograms(self, blocks: Iterable[tuple[int, np.ndarray]], n_capacities: int) -> np.ndarray:
        """
        int64 (n_capacities, n_kinds, n_contexts, width): the counted pairs by kind, context and misses.

        blocks: (first row, misses (n_rows, n_capacities)) of whole steps, row step * n_moe_layers + layer.
        """
        context_of = np.full(len(self.is_counted), -1)
        context_of[self.is_counted] = self.context_index
        out = np.zeros((len(self.contexts), n_capacities, len(self.kinds), self.width), np.uint32)
        n_layers = len(self._kind_of)
        for first, n_misses in blocks:
            of_block = context_of[first // n_layers : (first + len(n_misses)) // n_layers]
            count_misses(n_misses, n_layers, self._kind_of, of_block, out)
        return np.ascontiguousarray(out.transpose(1, 2, 0, 3).astype(np.int64))

    def histogram(self, n_misses: np.ndarray) -> dict[int, np.ndarray]:
        """kind -> uint32 (n_contexts, width): the pairs of the counted rows (n_tokens, n_moe_layers)."""
        out = np.zeros((len(self.contexts), 1, len(self.kinds), self.width), np.uint32)
        count_misses(n_misses.reshape(-1, 1), len(self._kind_of), self._kind_of, self.context_index, out)
        return {kind: out[:, 0, place].copy() for place, kind in enumerate(self.kinds)}

    def all_held(self) -> np.ndarray:
        """int64 (n_kinds, n_contexts, width): the histogram where nothing is ever missing."""
        found = np.zeros((len(self.kinds), len(self.contexts), self.width), np.int64)
        for place, kind in enumerate(self.kinds):
            found[place, :, 0] = self.n_per_context * len(self.moe_layers[kind])
        return found


class ComputeWorks:
    """The works of the counted tokens on devices of one kernel table; timed for any rates by `times`."""

    def __init__(self, tokens: CountedTokens, rates: DeviceRates) -> None:
        model, self.tokens = tokens.model, tokens
        one = [1] * len(tokens.contexts)
        self._attention = {
            kind: costs.Works.of([costs.attention_work(model, kind, c) for c in tokens.contexts], one, rates)
            for kind in tokens.kinds
        }
        works = [costs.embedding_work(model), costs.router_work(model), costs.dense_ffn_work(model)]
        self._fixed = costs.Works.of(works, [1, 1, 1], rates)
        self._lm_head = costs.lm_head_work(model, tokens.lm_head_predictor)
        top_k = 0 if model.experts is None else model.experts.top_k
        self._own_sparsity = 0.0 if model.experts is None else model.experts.gate_sparsity.value
        self._ffn_dense, self._ffn_sparse = (
            costs.Works.of([costs.expert_ffn_work(model, top_k, 1, sparsity)], [1], rates) for sparsity in (0.0, 1.0)
        )

    @property
    def n_bytes(self) -> int:
        """Bytes of the arrays that grow with the contexts."""
        return sum(5 * works.n_bytes.nbytes for works in self._attention.values())  # five arrays of one shape each

    def times(self, rates: DeviceRates, gate_sparsity: float | None = None) -> "ComputeTimes":
        """Seconds of everything but waits and what sharing the machine with reads costs."""
        tokens, model = self.tokens, self.tokens.model
        n_moe = model.n_moe_layers
        attention_s = {kind: works.seconds(rates) for kind, works in self._attention.items()}
        embedding_s, router_s, dense_ffn_s = self._fixed.seconds(rates)
        sparsity = self._own_sparsity if gate_sparsity is None else gate_sparsity
        ffn_s = float(self._ffn_dense.mixed(self._ffn_sparse, sparsity).seconds(rates)[0])
        per_token_s = embedding_s + n_moe * (router_s + ffn_s) + (model.n_layers - n_moe) * dense_ffn_s
        total_s = tokens.n_tokens * per_token_s + tokens.n_logits * costs.seconds(self._lm_head, rates)
        for kind in tokens.kinds:
            n_layers = tokens.n_dense[kind] + len(tokens.moe_layers[kind])
            total_s += n_layers * float(attention_s[kind] @ tokens.n_per_context)
        orders = {kind: np.argsort(attention_s[kind], kind="stable") for kind in tokens.kinds}
        return ComputeTimes(float(total_s), {kind: attention_s[kind][orders[kind]] for kind in tokens.kinds}, orders)


@dataclass(frozen=True, eq=False)
class ComputeTimes:
    """total_s over all counted tokens; per kind attention_s (n_contexts,) ascending, and the order that made it so."""

    total_s: float
    attention_s: dict[int, np.ndarray]
    orders: dict[int, np.ndarray]

    @property
    def n_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(each.nbytes for held in (self.attention_s, self.orders) for each in held.values())


@dataclass(frozen=True)
class Totals:
    """Sums over the counted tokens; n_hidden of the n_missed (token, layer) pairs with a miss are hidden."""

    step_s: float
    wait_s: float
    n_hidden: int
    n_missed: int


@dataclass(frozen=True, eq=False)
class StackedTimes:
    """Several ComputeTimes of one kind as arrays: total_s (n,); orders and attention_s (n, n_kinds, n_contexts)."""

    total_s: np.ndarray
    orders: np.ndarray
    attention_s: np.ndarray

    @staticmethod
    def of(times: Sequence[ComputeTimes]) -> "StackedTimes":
        """In order, of one trace and model."""
        shape = (len(times), len(times[0].orders), len(next(iter(times[0].orders.values()))))
        orders, attention_s = np.empty(shape, np.int64), np.empty(shape)
        for index, one in enumerate(times):
            for kind, key in enumerate(one.orders):
                orders[index, kind], attention_s[index, kind] = one.orders[key], one.attention_s[key]
        return StackedTimes(np.array([one.total_s for one in times]), orders, attention_s)

    @property
    def n_bytes(self) -> int:
        """Bytes of the arrays."""
        return self.orders.nbytes + self.attention_s.nbytes


class MissSums:
    """Prefix sums over one histogram and one set of compute times; `totals` then costs a search a storage."""

    def __init__(self, times: ComputeTimes, histogram: dict[int, np.ndarray]) -> None:
        self._total_s, self._n_missed = times.total_s, 0
        self._kinds = []
        for kind, counts in histogram.items():
            shape = (n_sums(counts.shape[0]), counts.shape[1])
            n_below, below_s = np.empty(shape, np.int64), np.empty(shape)
            own = counts.astype(np.int64), times.orders[kind], times.attention_s[kind]
            sum_before(*own, n_below, below_s)
            self._n_missed += int(n_below[-1, 1:].sum())
            self._kinds.append((*own, n_below, below_s))

    @property
    def n_bytes(self) -> int:
        """Bytes of the arrays, those of the compute times left out."""
        return sum(counts.nbytes + n_below.nbytes + below_s.nbytes for counts, _, _, n_below, below_s in self._kinds)

    def totals(self, beside: MissCosts, rates: DeviceRates, prefetch_policy: str) -> Totals:
        """beside: of at least as many misses as a row ever had."""
        v, w = rates.contended_compute_frac, rates.contended_read_frac
        seconds, table = np.zeros(2), cost_table(beside)
        n_hidden = sum(add_waits(*sums, v, w, prefetch_policy == PRE_ATTENTION, table, seconds) for sums in self._kinds)
        wait_s = float(seconds[WAIT])
        return Totals(self._total_s + float(seconds[STEP]) + wait_s, wait_s, int(n_hidden), self._n_missed)


def cost_table(beside: MissCosts) -> np.ndarray:
    """float64 (4, n): what 0, 1, ..., n - 1 misses cost, in the order of miss_kernels.ISSUE."""
    return np.stack([beside.issue_s, beside.delay_s, beside.wake_s, beside.read_s])


@dataclass(frozen=True, eq=False)
class Variants:
    """
    A device with several storages, in several variants each (the central figures, draws, a resource doubled).

    times: of the compute sides; times_of int64 (n_variants,): which of them a variant has;
    speeds (n_variants, n_storages, 2): of compute and of reads while both run; tables (n_variants, n_storages, 4,
    width): see cost_table; prefetched bool (n_storages,)
    """

    times: StackedTimes
    times_of: np.ndarray
    speeds: np.ndarray
    tables: np.ndarray
    prefetched: np.ndarray

    def totals(self, histograms: np.ndarray) -> "ManyTotals":
        """The totals of histograms int64 (n_capacities, n_kinds, n_contexts, width)."""
        shape = (len(histograms), *self.speeds.shape[:2])
        seconds, n_hidden = np.zeros((*shape, 2)), np.zeros(shape, np.int64)
        room = (n_sums(histograms.shape[2]), histograms.shape[3])
        add_all_waits(
            histograms, self.times.orders, self.times.attention_s, self.times_of, self.speeds, self.prefetched,
            self.tables, np.empty(room, np.int64), np.empty(room), seconds, n_hidden,
        )  # fmt: skip
        total_s = self.times.total_s[self.times_of]
        wait_s = seconds[..., WAIT]
        return ManyTotals(total_s[:, None] + seconds[..., STEP] + wait_s, wait_s, n_hidden)


@dataclass(frozen=True, eq=False)
class ManyTotals:
    """Totals (n_capacities, n_variants, n_storages); see Totals."""

    step_s: np.ndarray
    wait_s: np.ndarray
    n_hidden: np.ndarray
