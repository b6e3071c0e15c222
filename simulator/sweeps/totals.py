"""
Totals over the counted decode tokens, in closed form over a histogram of misses.

An expert FFN waits for its own layer's reads alone, so nothing carries over from layer to layer: a (token, layer) pair
is told apart by its attention time a (layer kind and context) and its number of misses m only.  With reads r(m), and
speeds v of compute and w of reads while both run, the sums of engine_fast's equations over the pairs are

    shared = min(a / v, r / w);   below the edge a < r v / w:  bubble = r - w a / v;   from it on: bubble = 0

where a and r hold what m misses cost attention and reads beside each other, and a bubble brings its wake-up.

So prefix sums of counts and of a over the pairs in ascending a give every storage speed by one search each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hardware_profiles.rates import DeviceRates
from simulator import costs
from simulator.model.spec import ModelSpec
from simulator.prefetch import PRE_ATTENTION
from simulator.scenario import Step


class CountedTokens:
    """What all capacities and devices share: the distinct contexts of the counted decode tokens."""

    def __init__(
        self, model: ModelSpec, steps: Sequence[Step], is_counted: np.ndarray, lm_head_predictor: bool
    ) -> None:
        self.model, self.is_counted, self.lm_head_predictor = model, is_counted, lm_head_predictor
        counted = [steps[index] for index in np.flatnonzero(is_counted).tolist()]
        self.n_tokens, self.n_logits = len(counted), sum(step.has_logits for step in counted)
        contexts, self.context_index = np.unique([step.context for step in counted], return_inverse=True)
        self.contexts, self.n_per_context = contexts.tolist(), np.bincount(self.context_index)
        kinds = costs.representative_layers(model)
        self.kinds = sorted(set(kinds))
        moe = [kinds[layer] for layer in model.moe_layer_ids]
        self.moe_layers = {kind: np.flatnonzero(np.array(moe) == kind) for kind in self.kinds}
        self.n_dense = {kind: kinds.count(kind) - len(self.moe_layers[kind]) for kind in self.kinds}

    def histogram(self, n_misses: np.ndarray) -> dict[int, np.ndarray]:
        """kind -> int64 (n_contexts, most misses + 1): the pairs of the counted rows (n_tokens, n_moe_layers)."""
        width, found = int(n_misses.max(initial=0)) + 1, {}
        for kind, layers in self.moe_layers.items():
            counts = np.zeros(len(self.contexts) * width, np.int64)
            for layer in layers:
                counts += np.bincount(self.context_index * width + n_misses[:, layer], minlength=len(counts))
            found[kind] = counts.reshape(len(self.contexts), width)
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


@dataclass(frozen=True)
class Totals:
    """Sums over the counted tokens; n_hidden of the n_missed (token, layer) pairs with a miss are hidden."""

    step_s: float
    wait_s: float
    n_hidden: int
    n_missed: int


class MissSums:
    """Prefix sums over one histogram and one set of compute times; `totals` then costs a search a storage."""

    def __init__(self, times: ComputeTimes, histogram: dict[int, np.ndarray]) -> None:
        self._total_s = times.total_s
        self._kinds = []
        for kind, counts in histogram.items():
            ordered, attention_s = counts[times.orders[kind]], times.attention_s[kind]
            n_below = _prefix(ordered)
            attention_below_s = _prefix(ordered * attention_s[:, None])
            self._kinds.append((attention_s, n_below, attention_below_s))

    def totals(self, read_s: np.ndarray, beside: costs.MissCosts, rates: DeviceRates, prefetch_policy: str) -> Totals:
        """read_s: seconds to read 0, 1, ... experts at once, at least as many as were ever missing; so is beside."""
        v, w = rates.contended_compute_frac, rates.contended_read_frac
        prefetched = prefetch_policy == PRE_ATTENTION
        step_s, wait_s, n_hidden, n_missed = self._total_s, 0.0, 0, 0
        for attention_s, n_below, attention_below_s in self._kinds:
            width = n_below.shape[1]
            columns, reads, wake_s = np.arange(1, width), read_s[1:width], beside.wake_s[1:width]
            n_all = n_below[-1, 1:]
            n_missed += int(n_all.sum())
            if not prefetched:
                n = n_below[np.searchsorted(attention_s, reads), columns]
                n_hidden += int((n_all - n).sum())
                wait_s += float(reads @ n_all)
                step_s += float(wake_s @ n_all)
                continue
            issue_s, reads = beside.issue_s[1:width], reads + beside.delay_s[1:width]
            edge = np.searchsorted(attention_s, reads * v / w - issue_s)
            n = n_below[edge, columns]
            n_hidden += int((n_all - n).sum())
            below_s = attention_below_s[edge, columns] + n * issue_s
            wait_s += float(reads @ n - w / v * below_s.sum())
            step_s += float((1 - v) * (below_s.sum() / v + reads @ (n_all - n) / w) + issue_s @ n_all + wake_s @ n)
        return Totals(step_s + wait_s, wait_s, n_hidden, n_missed)


def _prefix(columns: np.ndarray) -> np.ndarray:
    """Row i: the sums of the rows before i; one row more than given."""
    return np.concatenate([np.zeros((1, columns.shape[1]), columns.dtype), np.cumsum(columns, axis=0)])
