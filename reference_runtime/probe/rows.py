"""
From samples to the rows of the kernel table: products, what is left of an operation without them, and what reads cost.

    issue            attention beside reads, less attention without a miss and wake_attention
    delay            span beside compute, less that of the same reads on demand
    wake             router and expert FFN where there are reads, less those without; and the hand-over, less a wait
                     without a miss
    wake_on_demand   the same with attention, of reads on demand
    wake_attention   attention beside slower reads, less beside those as fast as the disk

(parts of with_reads.py).  What the profile's contention explains of issue and delay is taken off: the simulator counts
it by itself.  What a wait costs is a function of the span, and never falls with it: the nearest such function to the
measured points, at the microseconds of WAKE_US.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from hardware_profiles.kernel_table import KERNEL_OPS, Call, KernelTable, KernelTimes
from reference_runtime.probe.in_situ import COUNTED_TOKENS, PROMPT_TOKENS, SKIPPED_TOKENS, OpKey, ShutKey, UsedKey
from reference_runtime.probe.plan import Plan
from reference_runtime.probe.products import RowKey
from reference_runtime.probe.sampling import Samples, drift_frac, factor_80, log_spread, trimmed_mean, uncertainty
from reference_runtime.probe.with_reads import COUNTED_TOKENS as COUNTED_READS_TOKENS
from reference_runtime.probe.with_reads import PARTS, SLOW_TOKENS, ReadsKey
from simulator import kernel_calls
from simulator.expert_layout import layout_of_bytes
from simulator.model.size import expert_bytes
from simulator.model.spec import ModelSpec

WAKE_US = tuple(round(100 * 2 ** (step / 2)) for step in range(17))  # of reads: 100 us to 25.6 ms; then the end's cost
OWN_PARTS = ("router", "expert_ffn", "hand_over")  # of a wait that attention has no part in
LEAST_S = 1e-8  # where the products alone explain an operation
DIGITS = 4  # of every figure that is written

Times = Mapping[RowKey, float]


@dataclass(frozen=True)
class Disagreement:
    """An operation whose products alone take longer than it did as a whole, by so much of the whole."""

    shape: str
    op: str
    n_tokens: int
    threads: int
    frac: float


def table_uncertainty(samples: Samples, spots: Samples) -> float:
    """
    The drift of the machine from round to round, and the spread of a single row beside it; not less than what the
    tokens of the spot checks show.
    """
    keys = [key for key in samples.values if isinstance(key, RowKey) and key.op in ("gemv", "experts", "attend")]
    rows = uncertainty(drift_frac(samples, keys), float(np.median([samples.spread_frac(key) for key in keys])))
    tokens = [log_spread(values) for name, values in spots.values.items() if "token" in str(name)]
    return max(rows, round(factor_80(float(np.sqrt(np.mean(np.square(tokens))))), 3))


def product_times(plan: Plan, samples: Samples) -> dict[RowKey, float]:
    """The mean of every product; LM heads from RAM as they stand in a forward pass where that is less."""
    times = {key: samples.mean(key) for key in samples.values if isinstance(key, RowKey)}
    for spec in plan.shapes:
        (call,) = kernel_calls.lm_head_calls(spec)
        for n_threads in plan.threads:
            key = RowKey(call.op, call.type, int(call.size), 1, 0.0, plan.arena_bytes, n_threads)
            whole = OpKey(spec.name, "lm_head", 1, n_threads)
            if key in times and call.working_set >= plan.arena_bytes and whole in samples.values:
                times[key] = min(times[key], samples.mean(whole))
    return times


def kernel_times(times: Times, n_threads: int) -> KernelTimes:
    """The times of one number of threads, as the simulator reads them."""
    head = {"kind": "measured", "source": "this probe", "uncertainty": 0.0, "engine": "", "ram_bandwidth": "1 GB/s"}
    rows = [row_fields(key, seconds) for key, seconds in times.items() if key.threads == n_threads]
    return KernelTimes(KernelTable.model_validate({**head, "rows": rows}), n_threads)


def row_fields(key: RowKey, seconds: float) -> dict[str, Any]:
    """A row as the profile has it."""
    fields: dict[str, Any] = {"op": key.op, "type": key.type, "size": key.size}
    if key.count != 1:
        fields["count"] = key.count
    if key.zero_frac:
        fields["zero_frac"] = key.zero_frac
    return fields | {
        "working_set": size_text(key.working_set),
        "threads": key.threads,
        "time": f"{seconds * 1e6:.{DIGITS}g} us",
    }


def size_text(n_bytes: int) -> str:
    """Whole MiB or KiB where it is that, otherwise bytes; no size is rounded."""
    for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
        if n_bytes % size == 0:
            return f"{n_bytes // size} {unit}"
    return f"{n_bytes} B"


def rest_times(plan: Plan, samples: Samples, products: Times) -> tuple[dict[RowKey, float], list[Disagreement]]:
    """
    The rows of router, attention_rest, experts_rest, row, row_wait and step, from the models in memory; and where the
    products of an operation take longer than the operation.
    """
    result: dict[RowKey, float] = {}
    off: list[Disagreement] = []
    for n_threads in plan.threads:
        kernels = kernel_times(products, n_threads)
        for spec in plan.shapes:
            for n in (1, *plan.chunks):
                if OpKey(spec.name, "router", n, n_threads) in samples.values:
                    for op, size, whole_s, parts_s in _operations(spec, n, n_threads, samples, kernels):
                        result[_key(op, size, n, plan, n_threads)] = max(LEAST_S, whole_s - parts_s)
                        if parts_s > whole_s:
                            off.append(Disagreement(spec.name, op, n, n_threads, parts_s / whole_s - 1))
                if UsedKey(spec.name, n, n_threads) in samples.values:
                    key, seconds = _experts_rest(plan, spec, n, n_threads, samples, kernels)
                    result[key] = seconds
        # of the smallest shape: there it is a part of the operation, elsewhere less than the products' own error
        smallest = plan.shapes[0]
        result[_key("row", 1, 1, plan, n_threads)] = _row_s(smallest, n_threads, samples, kernels)
        wait_s = samples.mean(OpKey(smallest.name, "wait", 1, n_threads))
        result[_key("row_wait", 1, 1, plan, n_threads)] = wait_s
    return result, off


def _operations(
    spec: ModelSpec, n: int, n_threads: int, samples: Samples, kernels: KernelTimes
) -> Iterator[tuple[str, int, float, float]]:
    """(op, size, seconds as a whole, seconds of its products) of each row."""

    def seconds(op: str) -> float:
        return samples.mean(OpKey(spec.name, op, n, n_threads))

    assert spec.experts is not None
    first = PROMPT_TOKENS + SKIPPED_TOKENS + 1
    n_pairs = first + (COUNTED_TOKENS - 1) / 2 if n == 1 else n * (n + 1) / 2
    attention = _sum(kernel_calls.attention_calls(spec, n_pairs, n), kernels, but="attention_rest")
    head = _sum(kernel_calls.lm_head_calls(spec), kernels)
    yield "router", spec.experts.n_experts * spec.hidden_size, seconds("router"), 0.0
    yield "attention_rest", spec.hidden_size, seconds("attention"), attention
    yield "step", spec.hidden_size, seconds("embedding") + seconds("lm_head"), head


def _experts_rest(
    plan: Plan, spec: ModelSpec, n: int, n_threads: int, samples: Samples, kernels: KernelTimes
) -> tuple[RowKey, float]:
    """What an expert of a chunk of n tokens costs beside its products; the tokens spread evenly over those used."""
    n_used = max(1, round(samples.mean(UsedKey(spec.name, n, n_threads))))
    calls = kernel_calls.expert_ffn_calls(spec, n_used, n, 0.0)
    (rest, *_) = [call for call in calls if call.op == "experts_rest"]
    products_s = _sum((call for call in calls if call.op in ("gemm", "gemv")), kernels)
    whole_s = samples.mean(OpKey(spec.name, "expert_ffn", n, n_threads))
    key = _key("experts_rest", int(rest.size), rest.count, plan, n_threads)
    return key, max(LEAST_S, (whole_s - products_s) / n_used)


def _row_s(spec: ModelSpec, n_threads: int, samples: Samples, kernels: KernelTimes) -> float:
    assert spec.experts is not None
    zero_frac = samples.mean(ShutKey(spec.name, n_threads))
    calls = kernel_calls.expert_ffn_calls(spec, spec.experts.top_k, 1, zero_frac)
    own = [call for call in calls if call.op == "experts"]
    return max(LEAST_S, samples.mean(OpKey(spec.name, "expert_ffn", 1, n_threads)) - _sum(own, kernels))


def miss_times(plan: Plan, samples: Samples, compute: float, read: float) -> dict[RowKey, float]:
    """
    The rows of issue, delay and what a wait costs; see the top of this file.

    compute, read: speed of each beside the other at full rate, 1 alone.
    """
    result: dict[RowKey, float] = {}
    sizes = {spec.name: layout_of_bytes(expert_bytes(spec), "bundle").padded_bytes for spec in plan.shapes}
    still = [key for key in samples.values if isinstance(key, ReadsKey) and key.part == "span" and not key.n_misses]
    for key in still:
        curves = _wake_curves(samples, key, compute, read)
        rows = [*_beside_times(samples, key, curves["wake_attention"], compute, read)]
        rows += [(op, us, curve.at(us * 1e-6)) for op, curve in curves.items() for us in WAKE_US]
        for op, n, seconds in rows:
            row = RowKey(op, "f32", sizes[key.shape], n, 0.0, plan.arena_bytes, key.threads)
            result[row] = max(LEAST_S, seconds)
    return result


@dataclass(frozen=True, eq=False)
class _Curve:
    """What a wait costs, seconds, over the seconds that its reads take, both ascending (n,)."""

    spans: np.ndarray
    costs: np.ndarray

    def at(self, span_s: float) -> float:
        """Linear between the points, that of the end beyond them."""
        return float(np.interp(span_s, self.spans, self.costs))


def _beside_times(
    samples: Samples, still: ReadsKey, slowness: _Curve, compute: float, read: float
) -> Iterator[tuple[str, int, float]]:
    """(op, misses, seconds) of issue and delay; slowness: of attention after waits, which is no part of issue."""
    attention_s = _parts(samples, still)["attention"]
    for key in _with_misses(samples, still):
        if not key.at_least_s:
            beside, after = _parts(samples, key), _parts(samples, key._replace(is_prefetch=False))
            own_span, issue = _alone(beside, "span", read), _alone(beside, "attention", compute) - attention_s
            slow_s = slowness.at(trimmed_mean(own_span.tolist()))
            yield "issue", key.n_misses, trimmed_mean(issue.tolist()) - slow_s
            yield "delay", key.n_misses, trimmed_mean((own_span - after["span"]).tolist())


def _alone(beside: Mapping[str, np.ndarray], part: str, speed: float) -> np.ndarray:
    """Attention or span without their contention, which the simulator counts by itself; speed: beside the other."""
    return beside[part] - (1 - speed) * np.minimum(beside["attention"], beside["span"])


def _wake_curves(samples: Samples, still: ReadsKey, compute: float, read: float) -> dict[str, _Curve]:
    """By op: what waits cost, never less for longer reads."""
    without, points = _parts(samples, still), defaultdict[str, list[tuple[float, float, int]]](list)
    keys = _with_misses(samples, still)
    slowed = {key.n_misses for key in keys if key.at_least_s}
    for key in keys:
        beside, after = _parts(samples, key), _parts(samples, key._replace(is_prefetch=False))
        as_fast = _parts(samples, key._replace(at_least_s=0.0))
        own_span = _alone(beside, "span", read)
        measured = [
            ("wake", own_span, [beside[part] - without[part] for part in OWN_PARTS]),
            ("wake_on_demand", after["span"], [after[part] - without[part] for part in (*OWN_PARTS, "attention")]),
        ]
        if key.n_misses in slowed:
            slower_s = _alone(beside, "attention", compute) - _alone(as_fast, "attention", compute)
            measured.append(("wake_attention", own_span, [slower_s]))
        n_tokens = SLOW_TOKENS if key.at_least_s else COUNTED_READS_TOKENS
        for op, span, costs in measured:
            point = trimmed_mean(span.tolist()), trimmed_mean(np.sum(costs, axis=0).tolist()), n_tokens
            points[op].append(point)
    return {op: _rising(measured) for op, measured in points.items()}


def _rising(points: list[tuple[float, float, int]]) -> _Curve:
    """The nearest curve to (span, cost, weight) that never falls."""
    spans, costs, weights = np.array(sorted(points)).T
    return _Curve(spans, isotonic_regression(costs, weights=weights).x)


def _with_misses(samples: Samples, still: ReadsKey) -> list[ReadsKey]:
    """The keys of a shape's spans beside attention."""
    keys = [key for key in samples.values if isinstance(key, ReadsKey) and key.n_misses and key.is_prefetch]
    return [key for key in keys if (key.shape, key.part, key.threads) == (still.shape, still.part, still.threads)]


def _parts(samples: Samples, key: ReadsKey) -> dict[str, np.ndarray]:
    """The parts of a layer, a value for each round: differences are taken within a round."""
    return {part: np.array(samples.values[key._replace(part=part)]) for part in PARTS}


def _sum(calls: Iterable[Call], kernels: KernelTimes, but: str = "") -> float:
    return sum(kernels.seconds(call) for call in calls if call.op != but)


def _key(op: str, size: int, n: int, plan: Plan, n_threads: int) -> RowKey:
    return RowKey(op, "f32", size, n, 0.0, plan.arena_bytes, n_threads)


def ordered(times: Times) -> Iterator[tuple[RowKey, float]]:
    """By threads, operation, type, working set and size."""
    at: dict[str, int] = {op: i for i, op in enumerate(KERNEL_OPS)}
    for key in sorted(times, key=lambda k: (k.threads, at[k.op], k.type, k.working_set, k.zero_frac, k.count, k.size)):
        yield key, times[key]
