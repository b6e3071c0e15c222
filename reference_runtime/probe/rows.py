"""
From samples to the rows of the kernel table: products, and what is left of an operation without them.

What reads cost is in miss_rows.py.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scipy.stats import binom

from hardware_profiles.kernel_table import KERNEL_OPS, Call, KernelTable, KernelTimes
from reference_runtime.kernels.fast import MOST_ONE_BY_ONE
from reference_runtime.probe.in_situ import (
    COUNTED_TOKENS,
    PROMPT_TOKENS,
    SKIPPED_TOKENS,
    ContextKey,
    OpKey,
    ShutKey,
    layers_and_experts,
)
from reference_runtime.probe.memory import ZERO_FRAC
from reference_runtime.probe.plan import Plan
from reference_runtime.probe.products import RowKey
from reference_runtime.probe.sampling import Samples, drift_frac, log_spread, root_mean_square_80, uncertainty
from simulator import kernel_calls
from simulator.model.spec import ModelSpec

LEAST_S = 1e-8  # where the products alone explain an operation
DIGITS = 4  # of every figure that is written

Times = Mapping[RowKey, float]


@dataclass(frozen=True)
class Disagreement:
    """
    An operation whose products alone take longer than it did as a whole, by so much of the whole; below zero: the
    experts of a chunk that take less, as no row of the table holds the rest.
    """

    shape: str
    op: str
    n_tokens: int
    threads: int
    frac: float


def table_uncertainty(samples: Samples, spots: Samples) -> float:
    """
    What all rows have in common: the drift of the machine from round to round, not less than what the tokens of the
    spot checks show.

    It stands for a factor on every row alike.  A row's own noise has no part in it: a token is the sum of many rows,
    and each row a mean of rounds, so that what is not common to them averages out.
    """
    keys = [key for key in samples.values if isinstance(key, RowKey) and key.op in ("gemv", "experts", "attend")]
    tokens = [log_spread(values) for name, values in spots.values.items() if "token" in str(name)]
    return max(uncertainty(drift_frac(samples, keys)), root_mean_square_80(tokens))


def product_times(plan: Plan, samples: Samples) -> dict[RowKey, float]:
    """
    The mean of every product; as they stand in a forward pass LM heads from RAM where that is less, and attention over
    many keys where that is more.
    """
    times = {key: samples.mean(key) for key in samples.values if isinstance(key, RowKey)}
    for spec in plan.shapes:
        (call,) = kernel_calls.lm_head_calls(spec)
        for n_threads in plan.threads:
            key = RowKey(call.op, call.type, int(call.size), 1, 0.0, plan.arena_bytes, n_threads)
            whole = OpKey(spec.name, "lm_head", 1, n_threads)
            if key in times and call.working_set >= plan.arena_bytes and whole in samples.values:
                times[key] = min(times[key], samples.mean(whole))
    return times | _attend_in_place(plan, samples, times) | _with_shut_gates(times)


def _attend_in_place(plan: Plan, samples: Samples, alone: Times) -> dict[RowKey, float]:
    """
    Rows of attend over many keys where attention as a whole grew by more than they take alone; of the working sets
    that stand for the model's own.
    """
    result: dict[RowKey, float] = {}
    of_contexts = [key for key in samples.values if isinstance(key, ContextKey)]
    for key in of_contexts:
        spec = next(spec for spec in plan.shapes if spec.name == key.shape)
        few, many = (_attend_call(spec, n_keys) for n_keys in (plan.contexts[0], key.context))
        grown_s = samples.mean(key) - samples.mean(OpKey(key.shape, "attention", 1, key.threads))
        for row, seconds in alone.items():
            is_own = (row.op, row.size, row.count, row.threads) == ("attend", many.size, many.count, key.threads)
            if is_own and row.working_set >= many.working_set / 2:
                result[row] = max(seconds, alone[replace(row, size=int(few.size))] + grown_s)
    return result


def _with_shut_gates(alone: Times) -> dict[RowKey, float]:
    """Experts of a chunk whose tokens are multiplied together: shut gates save nothing there."""
    chunks = [key for key in alone if key.op == "experts_chunk" and key.count > MOST_ONE_BY_ONE]
    return {replace(key, zero_frac=ZERO_FRAC): alone[key] for key in chunks}


def _attend_call(spec: ModelSpec, n_keys: int) -> Call:
    return next(call for call in kernel_calls.attention_calls(spec, n_keys) if call.op == "attend")


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
    The rows of router, attention_rest, row, row_wait and step, from the models in memory; and where the
    products of an operation take longer than the operation, or the experts of a chunk another time.
    """
    result: dict[RowKey, float] = {}
    off: list[Disagreement] = []
    for n_threads in plan.threads:
        kernels = kernel_times(products, n_threads)
        # of the smallest shape: there it is a part of the operation, elsewhere less than the products' own error
        row_s = _row_s(plan.shapes[0], n_threads, samples, kernels)
        result[_key("row", 1, 1, plan, n_threads)] = row_s
        wait_s = samples.mean(OpKey(plan.shapes[0].name, "wait", 1, n_threads))
        result[_key("row_wait", 1, 1, plan, n_threads)] = wait_s
        for spec, n in _passes(plan, n_threads, samples):
            for op, size, whole_s, parts_s in _operations(spec, n, n_threads, samples, kernels):
                result[_key(op, size, n, plan, n_threads)] = max(LEAST_S, whole_s - parts_s)
                if parts_s > whole_s:
                    off.append(Disagreement(spec.name, op, n, n_threads, parts_s / whole_s - 1))
            if n > 1:
                parts_s = row_s + _experts_of_chunk_s(plan, spec, n, n_threads, samples, kernels)
                whole_s = samples.mean(OpKey(spec.name, "expert_ffn", n, n_threads))
                off.append(Disagreement(spec.name, "expert_ffn", n, n_threads, parts_s / whole_s - 1))
    return result, off


def _passes(plan: Plan, n_threads: int, samples: Samples) -> Iterator[tuple[ModelSpec, int]]:
    """The models in memory, and the tokens of each of their passes."""
    for spec in plan.shapes:
        for n in (1, *plan.chunks):
            if OpKey(spec.name, "router", n, n_threads) in samples.values:
                yield spec, n


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


def _experts_of_chunk_s(
    plan: Plan, spec: ModelSpec, n: int, n_threads: int, samples: Samples, kernels: KernelTimes
) -> float:
    """
    Seconds of the experts of a chunk as the simulator adds them up: no row is made of it, it checks those that are.

    Routing is random, so how many tokens an expert has is binomial: each token chooses each expert with one chance.
    """
    assert spec.experts is not None
    zero_frac, n_experts = samples.mean(ShutKey(spec.name, n_threads)), layers_and_experts(spec, plan.arena_bytes)[1]
    chosen = spec.experts.top_k / n_experts
    calls = {load: kernel_calls.expert_ffn_calls(spec, 1, n, zero_frac, (load,))[0] for load in range(1, n + 1)}
    chances = n_experts * binom.pmf(list(calls), n, chosen)
    return float(sum(chance * kernels.seconds(call) for chance, call in zip(chances, calls.values(), strict=True)))


def _row_s(spec: ModelSpec, n_threads: int, samples: Samples, kernels: KernelTimes) -> float:
    assert spec.experts is not None
    zero_frac = samples.mean(ShutKey(spec.name, n_threads))
    calls = kernel_calls.expert_ffn_calls(spec, spec.experts.top_k, 1, zero_frac)
    own = [call for call in calls if call.op == "experts"]
    return max(LEAST_S, samples.mean(OpKey(spec.name, "expert_ffn", 1, n_threads)) - _sum(own, kernels))


def _sum(calls: Iterable[Call], kernels: KernelTimes, but: str = "") -> float:
    return sum(kernels.seconds(call) for call in calls if call.op != but)


def _key(op: str, size: int, n: int, plan: Plan, n_threads: int) -> RowKey:
    return RowKey(op, "f32", size, n, 0.0, plan.arena_bytes, n_threads)


def ordered(times: Times) -> Iterator[tuple[RowKey, float]]:
    """By threads, operation, type, working set and size."""
    at: dict[str, int] = {op: i for i, op in enumerate(KERNEL_OPS)}
    for key in sorted(times, key=lambda k: (k.threads, at[k.op], k.type, k.working_set, k.zero_frac, k.count, k.size)):
        yield key, times[key]
