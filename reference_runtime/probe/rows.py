"""
From samples to the rows of the kernel table: products, what is left of an operation without them, and what reads cost.

    issue            attention beside reads, less attention without a miss
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
from reference_runtime.probe.with_reads import PARTS, ReadsKey
from simulator import kernel_calls
from simulator.expert_layout import layout_of_bytes
from simulator.model.size import expert_bytes
from simulator.model.spec import ModelSpec

WAKE_US = (100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600)  # of reads; beyond the ends the cost is the end's
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
        size, threads = sizes[key.shape], key.threads
        for op, n, seconds in (*_beside_times(samples, key, compute, read), *_wake_times(samples, key)):
            result[RowKey(op, "f32", size, n, 0.0, plan.arena_bytes, threads)] = max(LEAST_S, seconds)
    return result


def _beside_times(samples: Samples, still: ReadsKey, compute: float, read: float) -> Iterator[tuple[str, int, float]]:
    """(op, misses, seconds) of issue and delay."""
    attention_s = _parts(samples, still)["attention"]
    for key in _with_misses(samples, still):
        if not key.slower_s:
            beside, after = _parts(samples, key), _parts(samples, key._replace(is_prefetch=False))
            shared = np.minimum(beside["attention"], beside["span"])
            issue = beside["attention"] - attention_s - (1 - compute) * shared
            delay = beside["span"] - after["span"] - (1 - read) * shared
            yield "issue", key.n_misses, trimmed_mean(issue.tolist())
            yield "delay", key.n_misses, trimmed_mean(delay.tolist())


def _wake_times(samples: Samples, still: ReadsKey) -> Iterator[tuple[str, int, float]]:
    """(op, microseconds of reads, seconds) of the costs of a wait."""
    without, points = _parts(samples, still), defaultdict[str, list[tuple[float, float]]](list)
    keys = _with_misses(samples, still)
    slowed = {key.n_misses for key in keys if key.slower_s}

    def add(op: str, parts: Mapping[str, np.ndarray], less: Mapping[str, np.ndarray], own: tuple[str, ...]) -> None:
        seconds = np.sum([parts[part] - less[part] for part in own], axis=0)
        points[op].append((trimmed_mean(parts["span"].tolist()), trimmed_mean(seconds.tolist())))

    for key in keys:
        beside, after = _parts(samples, key), _parts(samples, key._replace(is_prefetch=False))
        add("wake", beside, without, ("router", "expert_ffn", "hand_over"))
        add("wake_on_demand", after, without, ("router", "attention", "expert_ffn", "hand_over"))
        if key.n_misses in slowed:
            add("wake_attention", beside, _parts(samples, key._replace(slower_s=0.0)), ("attention",))
    for op, measured in points.items():
        spans, seconds = np.array(sorted(measured)).T
        rising = isotonic_regression(seconds).x
        for microseconds in WAKE_US:
            yield op, microseconds, float(np.interp(microseconds * 1e-6, spans, rising))


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
