"""From samples to a hardware profile, as the mapping that its YAML has."""

from typing import Any

import numpy as np

from reference_runtime.probe.bursts import BurstKey
from reference_runtime.probe.machine import Machine
from reference_runtime.probe.plan import KINDS, MIB, Plan
from reference_runtime.probe.products import RowKey, type_name
from reference_runtime.probe.rows import DIGITS, Times, ordered, row_fields, size_text, table_uncertainty
from reference_runtime.probe.sampling import (
    Samples,
    log_spread,
    root_mean_square_80,
    spread_frac,
    trimmed_mean,
    uncertainty,
)
from reference_runtime.probe.sharing import LagKey, SharedKey
from reference_runtime.probe.storage import LatencyKey, LoopKey

ENGINE = "moeplan reference runtime, fast kernels"
HELPS_FRAC = 1.05  # more requests in flight help where they give so much more
UNKNOWN_RAM_USE_FRAC = 0.1  # of RAM that other programs keep, where the system does not tell
VIRTUAL = ("vd", "xvd")  # device names of guests: whether the host's disk turns is not told
WEIGHTS_PER_BYTE = {"q4_0": 32 / 18, "q8_0": 32 / 34, "f32": 1 / 4}


def profile_of(
    plan: Plan, machine: Machine, samples: Samples, spots: Samples, times: Times, name: str, notes: str
) -> dict[str, Any]:
    """The whole profile; times: the rows of the kernel table, spots: of the spot checks by name."""
    contention = contention_of(samples)
    compute, read = (contention[key]["value"] for key in ("compute_speed", "read_speed"))
    slower, faster = sorted((compute, read))
    either = {key: contention[key]["uncertainty"] for key in contention}
    return {
        "schema_version": 1,
        "name": name,
        "title": f"{machine.cpu}, probed",
        "notes": notes,
        "cpu": _cpu(plan, machine, samples, spots, times),
        "ram": _ram(plan, machine, samples, times),
        "storage": _storage(plan, machine, samples, spots),
        "overlap_efficiency": _figure(
            round(max(0.0, 1 - (1 - slower) / faster), DIGITS),
            round(max(either.values()), DIGITS),
            "follows from contention: the share of the shorter of two equal jobs that running both at once hides",
        ),
        "contention": contention,
        "spot_checks": [
            {"name": key, "time": f"{_digits(spots.mean(key) * 1e3)} ms", "spread": round(log_spread(values), DIGITS)}
            for key, values in spots.values.items()
        ],
    }


def _figure(value: object, spread: float, source: str, kind: str = "measured") -> dict[str, Any]:
    return {"value": value, "kind": kind, "source": source, "uncertainty": spread}


def rate(bytes_per_s: float) -> str:
    """A rate as text with DIGITS digits."""
    return f"{_digits(bytes_per_s / 1e6)} MB/s"


def _digits(value: float) -> str:
    return f"{float(f'{value:.{DIGITS}g}'):.12g}"


def _cpu(plan: Plan, machine: Machine, samples: Samples, spots: Samples, times: Times) -> dict[str, Any]:
    threads = plan.threads[-1]
    own = {key: seconds for key, seconds in times.items() if key.threads == threads}
    gemv = max((key for key in own if _is_weights(key, "gemv") and key.working_set == plan.warm_bytes), key=_size)
    gemm = min((key for key in own if _is_weights(key, "gemm")), key=lambda key: own[key] / _flop(key))
    f32 = [key for key in own if key.op in ("gemm", "gemv")]
    fastest = min(f32, key=lambda key: own[key] / _flop(key))
    least = min((key for key in own if key.op == "gemv"), key=lambda key: own[key])
    return {
        "name": machine.cpu,
        "cores": max(machine.n_cores, -(-threads // 2)),
        "threads": threads,
        "cores_source": "measured: the cores that this process may use; all are used",
        "peak_flop_per_s": _flop_figure(fastest, own, samples, "the fastest product of all"),
        "gemm_flop_per_s": _flop_figure(gemm, own, samples, "the best rate of a chunk"),
        "gemv_flop_per_s": _flop_figure(gemv, own, samples, "one token, the weights in a cache"),
        "op_overhead": _figure(
            _time(own[least]),
            uncertainty(samples.spread_frac(least)),
            f"the shortest kernel call: a product with {least.size} bytes on {threads} threads",
        ),
        "timer_lag": _timer_lag(samples),
        "kernels": {
            "engine": ENGINE,
            "kind": "measured",
            "source": "means of the rounds of this probe; router, attention_rest, row, row_wait and step: whole "
            "forward passes of models of random weights in memory, less their products; issue, delay and wake*: such "
            "models that read experts",
            "uncertainty": table_uncertainty(samples, spots),
            "ram_bandwidth": rate(_ram_rate(own)[1]),
            "rows": [row_fields(key, seconds) for key, seconds in ordered(times)],
        },
    }


def _is_weights(key: RowKey, op: str) -> bool:
    return key.op == op and key.type in map(type_name, KINDS)


def _size(key: RowKey) -> int:
    return key.size


def _flop(key: RowKey) -> float:
    return 2 * key.size * WEIGHTS_PER_BYTE[key.type] * key.count


def _flop_figure(key: RowKey, own: Times, samples: Samples, what: str) -> dict[str, Any]:
    value = f"{_digits(_flop(key) / own[key] / 1e9)} GFLOP/s"
    source = f"{what}: {key.type}, {key.size} bytes x {key.count} tokens on {key.threads} threads"
    return _figure(value, uncertainty(samples.spread_frac(key)), source)


def _time(seconds: float) -> str:
    return f"{_digits(seconds * 1e6)} us"


def _timer_lag(samples: Samples) -> dict[str, Any]:
    lags = [value for key, values in samples.values.items() if isinstance(key, LagKey) for value in values]
    low, middle, high = np.quantile(lags, [0.1, 0.5, 0.9])
    waits = [key.wait_s * 1e3 for key in samples.values if isinstance(key, LagKey)]
    source = f"a reader that slept {min(waits):g} to {max(waits):g} ms for a limiter, {len(lags)} times"
    return _figure(_time(middle), uncertainty(min(10.0, (high - low) / 2 / middle)), source)


def _ram_rate(own: Times) -> tuple[RowKey, float]:
    """The rate of the largest product that is not in any cache."""
    largest = max((key for key in own if _is_weights(key, "gemv")), key=lambda key: (key.working_set, key.size))
    return largest, largest.size / own[largest]


def _ram(plan: Plan, machine: Machine, samples: Samples, times: Times) -> dict[str, Any]:
    own = {key: seconds for key, seconds in times.items() if key.threads == plan.threads[-1]}
    key, gemv = _ram_rate(own)
    copy = samples.median("copy")
    fastest = max(copy, *(k.size / s for k, s in times.items() if k.op == "gemv" and k.size == key.size))
    used = machine.ram_bytes - (machine.ram_available_bytes or 0)
    reserved = _figure(f"{used // MIB} MiB", 0.2, "what was in use when the probe began")
    if machine.ram_available_bytes is None:
        guess = f"{int(machine.ram_bytes * UNKNOWN_RAM_USE_FRAC) // MIB} MiB"
        reserved = _figure(guess, 0.5, "a tenth of the RAM; the system does not tell", kind="assumed")
    return {
        "size": size_text(machine.ram_bytes),
        "size_source": "measured: what the operating system says",
        "os_reserved": reserved,
        "peak_bandwidth": _figure(
            rate(fastest), uncertainty(samples.spread_frac("copy")), "a copy, bytes read and written; or a product"
        ),
        "gemv_bandwidth": _figure(
            rate(gemv),
            uncertainty(samples.spread_frac(key)),
            f"a {key.type} matrix of {key.size} bytes times one token, on {key.threads} threads",
        ),
    }


def _storage(plan: Plan, machine: Machine, samples: Samples, spots: Samples) -> dict[str, Any]:
    loops = [key for key in samples.values if isinstance(key, LoopKey)]
    direct = sorted(key for key in loops if key.mode != "buffered")
    mode = direct[0].mode
    depth, small = _useful_depth(direct, samples), direct[0]
    large = max(key for key in direct if key.request_bytes == direct[-1].request_bytes and key.depth <= depth)
    bursts = sorted(key for key in samples.values if isinstance(key, BurstKey))
    read_ahead = machine.read_ahead_bytes
    kind = {True: "disk that turns", False: "SSD", None: "disk"}[machine.rotational]
    if machine.device.startswith(VIRTUAL):
        kind = "virtual disk"
    return {
        "kind": f"{kind} {machine.device} with {machine.file_system}",
        "capacity": _figure(size_text(machine.capacity_bytes), 0.0, "what the file system says"),
        "free_space": _figure(size_text(machine.free_bytes), 0.0, "what the file system says"),
        "sequential_read": _figure(
            rate(samples.median(large)),
            uncertainty(samples.spread_frac(large)),
            f"{large.request_bytes // MIB} MiB reads, {large.depth} in flight; {_latency(samples, 2 * MIB)}",
        ),
        "random_4k_read": _figure(
            rate(samples.median(small)),
            uncertainty(samples.spread_frac(small)),
            f"one in flight; {_latency(samples, small.request_bytes)}",
        ),
        "queue_depth": depth,
        "queue_depth_source": "measured: more in flight give less than 5 % more",
        "table": {
            "kind": "measured",
            "source": f"closed loops at random places, {_mode_text(mode)}; {_buffered(loops, samples)}",
            "uncertainty": uncertainty(float(np.median([samples.spread_frac(key) for key in direct]))),
            "rows": [
                {"request": size_text(key.request_bytes), "queue_depth": key.depth, "rate": rate(samples.median(key))}
                for key in direct
            ],
        },
        "bursts": {
            "kind": "measured",
            "source": "the runtime's own readers into memory all over an arena, after so long without a read, in which "
            "products from RAM ran; means",
            "uncertainty": _burst_uncertainty(plan, samples, spots, bursts),
            "rows": [
                {
                    "request": size_text(key.request_bytes),
                    "n_requests": key.n_requests,
                    "idle": f"{key.idle_s * 1e3:g} ms",
                    "time": _time(samples.mean(key)),
                }
                for key in bursts
            ],
        },
        "direct_io": mode == "direct",
        "read_ahead": _figure(size_text(read_ahead), 0.0, "the device's own setting")
        if read_ahead is not None
        else _figure("128 KiB", 1.0, "the system does not tell; a common default", kind="assumed"),
        "page_cache": _mode_text(mode),
    }


def _burst_uncertainty(plan: Plan, samples: Samples, spots: Samples, bursts: list[BurstKey]) -> float:
    """The spread of a row's mean from round to round, not less than that of the spot checks' bursts."""
    checked = [log_spread(values) for name, values in spots.values.items() if "burst" in str(name)]
    rounds = [np.reshape(samples.values[key], (-1, plan.n_bursts)).tolist() for key in bursts]
    spreads = [spread_frac([trimmed_mean(one) for one in values]) for values in rounds]
    return max(uncertainty(float(np.median(spreads))), root_mean_square_80(checked))


def _mode_text(mode: str) -> str:
    texts = {
        "direct": "O_DIRECT, past the page cache",
        "nocache": "F_NOCACHE, which keeps them out of the page cache",
        "buffered+dontneed": "the file system refuses O_DIRECT: buffered reads, their pages given back",
    }
    return texts[mode]


def _latency(samples: Samples, request_bytes: int) -> str:
    found = samples.values.get(LatencyKey(request_bytes))
    if not found:
        return "latency not measured"
    percentiles = ", ".join(f"{q} % {np.quantile(found, q / 100) * 1e6:.0f}" for q in (10, 50, 90, 99))
    return f"latency of {size_text(request_bytes)} in us: {percentiles}"


def _buffered(loops: list[LoopKey], samples: Samples) -> str:
    rows = [key for key in loops if key.mode == "buffered"]
    texts = [f"{size_text(k.request_bytes)} x {k.depth} {rate(samples.median(k))}" for k in rows]
    return "buffered from an empty page cache: " + ", ".join(texts)


def _useful_depth(direct: list[LoopKey], samples: Samples) -> int:
    """The smallest depth that reaches all but HELPS_FRAC of the best depth, on the mean over the request sizes."""
    best: dict[int, float] = {}
    for key in direct:
        best[key.request_bytes] = max(best.get(key.request_bytes, 0.0), samples.median(key))
    reached = {
        depth: float(np.mean([samples.median(key) / best[key.request_bytes] for key in direct if key.depth == depth]))
        for depth in sorted({key.depth for key in direct})
    }
    return next(depth for depth, share in reached.items() if share * HELPS_FRAC >= max(reached.values()))


def contention_of(samples: Samples) -> dict[str, Any]:
    """
    What compute and reads take from each other, as the profile has it.

    Nothing becomes faster by the other, so a mean is at most 1; single samples are not cut off there, which would lower
    the mean by their noise.
    """
    result = {}
    for key, text in (("compute", "products from RAM while 2 MiB reads run"), ("read", "2 MiB reads beside products")):
        values = samples.values[SharedKey(key)]
        source = f"{text}, as a fraction of its speed alone; {len(values)} times"
        speed = round(min(1.0, trimmed_mean(values)), DIGITS)
        result[f"{key}_speed"] = _figure(speed, uncertainty(spread_frac(values)), source)
    return result
