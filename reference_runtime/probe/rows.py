"""From samples to the rows of the kernel table: medians, and what is left of an operation without its products."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from hardware_profiles.kernel_table import KERNEL_OPS, Call, KernelTable, KernelTimes
from reference_runtime.probe.in_situ import COUNTED_TOKENS, PROMPT_TOKENS, SKIPPED_TOKENS, OpKey, ShutKey
from reference_runtime.probe.plan import Plan
from reference_runtime.probe.products import RowKey
from reference_runtime.probe.sampling import Samples, drift_frac, uncertainty
from simulator import kernel_calls
from simulator.model.spec import ModelSpec

LEAST_S = 1e-8  # where the products alone explain an operation
DIGITS = 4  # of every figure that is written

Times = Mapping[RowKey, float]


def table_uncertainty(samples: Samples) -> float:
    """The drift of the machine from round to round, and the spread of a single row beside it."""
    keys = [key for key in samples.values if isinstance(key, RowKey) and key.op in ("gemv", "experts", "attend")]
    return uncertainty(drift_frac(samples, keys), float(np.median([samples.spread_frac(key) for key in keys])))


def product_times(samples: Samples) -> dict[RowKey, float]:
    """The median of every product."""
    return {key: samples.median(key) for key in samples.values if isinstance(key, RowKey)}


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


def rest_times(plan: Plan, samples: Samples, products: Times) -> dict[RowKey, float]:
    """The rows of router, attention_rest, row and step, from the models in memory."""
    result: dict[RowKey, float] = {}
    for n_threads in plan.threads:
        kernels = kernel_times(products, n_threads)
        for spec in plan.shapes:
            for n in (1, *plan.chunks):
                if OpKey(spec.name, "router", n, n_threads) in samples.values:
                    result |= _rest(plan, spec, n, n_threads, samples, kernels)
        # of the smallest shape: there it is a part of the operation, elsewhere less than the products' own error
        result[_key("row", 1, 1, plan, n_threads)] = _row_s(plan.shapes[0], n_threads, samples, kernels)
    return result


def _rest(
    plan: Plan, spec: ModelSpec, n: int, n_threads: int, samples: Samples, kernels: KernelTimes
) -> Iterable[tuple[RowKey, float]]:
    def seconds(op: str) -> float:
        return samples.median(OpKey(spec.name, op, n, n_threads))

    assert spec.experts is not None
    first = PROMPT_TOKENS + SKIPPED_TOKENS + 1
    n_pairs = first + (COUNTED_TOKENS - 1) / 2 if n == 1 else n * (n + 1) / 2
    attention = _sum(kernel_calls.attention_calls(spec, n_pairs, n), kernels, but="attention_rest")
    head = _sum(kernel_calls.lm_head_calls(spec), kernels)
    router = spec.experts.n_experts * spec.hidden_size
    return [
        (_key("router", router, n, plan, n_threads), seconds("router")),
        (
            _key("attention_rest", spec.hidden_size, n, plan, n_threads),
            max(LEAST_S, seconds("attention") - attention),
        ),
        (
            _key("step", spec.hidden_size, n, plan, n_threads),
            max(LEAST_S, seconds("embedding") + seconds("lm_head") - head),
        ),
    ]


def _row_s(spec: ModelSpec, n_threads: int, samples: Samples, kernels: KernelTimes) -> float:
    assert spec.experts is not None
    whole = sum(samples.median(OpKey(spec.name, op, 1, n_threads)) for op in ("wait", "expert_ffn"))
    zero_frac = samples.median(ShutKey(spec.name, n_threads))
    calls = kernel_calls.expert_ffn_calls(spec, spec.experts.top_k, 1, zero_frac)
    return max(LEAST_S, whole - _sum(calls, kernels, but="row"))


def _sum(calls: Iterable[Call], kernels: KernelTimes, but: str = "") -> float:
    return sum(kernels.seconds(call) for call in calls if call.op != but)


def _key(op: str, size: int, n: int, plan: Plan, n_threads: int) -> RowKey:
    return RowKey(op, "f32", size, n, 0.0, plan.arena_bytes, n_threads)


def ordered(times: Times) -> Iterator[tuple[RowKey, float]]:
    """By threads, operation, type, working set and size."""
    at: dict[str, int] = {op: i for i, op in enumerate(KERNEL_OPS)}
    for key in sorted(times, key=lambda k: (k.threads, at[k.op], k.type, k.working_set, k.zero_frac, k.count, k.size)):
        yield key, times[key]
