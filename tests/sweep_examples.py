"""Rows of a sweep in round numbers, for the tests of its page and its terminal answer."""

from dataclasses import replace

from simulator.result import SweepRow

GIB = 2**30
BASE = SweepRow(
    ram_cap_bytes=GIB, storage_read_bytes_per_s=1e9, cache_policy="lru", prefetch_policy="pre-attention",
    verdict="streams", tokens_per_s=10.0, tokens_per_s_low=8.0, tokens_per_s_high=12.0, hit_rate=0.5, hidden_frac=0.3,
    wait_s_per_token=0.05, bytes_read_per_token=1e8, bound_by="storage_bandwidth", model="m-4b", device="board",
    trace="t", quantisation="q4_0", top_k=4, layout="bundle", n_threads=4, storage_latency_s=1e-4,
    ram_bytes_per_s=1e10, gemv_flop_per_s=1e11,
)  # fmt: skip
PRINT = {"model": "Model 4B; experts q4_0", "device": "Board (8 GB)"}


def row(speed: float = 10.0, **changes: object) -> SweepRow:
    """A row that runs at a speed, its interval 0.8 to 1.2 of it."""
    times = {"tokens_per_s": speed, "tokens_per_s_low": 0.8 * speed, "tokens_per_s_high": 1.2 * speed}
    return replace(BASE, **{**times, **changes})  # type: ignore[arg-type]


def bound(speed: float, **changes: object) -> SweepRow:
    """A row under the policy that is told the future."""
    return row(speed, cache_policy="belady", is_upper_bound=True, **changes)


def blocked(reason: str, **changes: object) -> SweepRow:
    """A row that cannot run."""
    nothing = dict.fromkeys(("hit_rate", "hidden_frac", "wait_s_per_token", "bytes_read_per_token"), 0.0)
    return row(0.0, verdict="cannot_run", reason=reason, bound_by="none", **nothing, **changes)


def failed(reason: str, **changes: object) -> SweepRow:
    """A row that nobody can ask, with nothing of what would have been in force."""
    never = {"storage_latency_s": 0.0, "ram_bytes_per_s": 0.0, "gemv_flop_per_s": 0.0}
    return replace(blocked(reason), verdict="failed", **{**never, **changes})  # type: ignore[arg-type]


def caps_by_speeds(caps: tuple[int, ...], speeds: tuple[float, ...], **changes: object) -> list[SweepRow]:
    """RAM caps x storage speeds; more of either is faster."""
    return [
        row(cap / GIB * (speed / 1e9) ** 0.5, ram_cap_bytes=cap, storage_read_bytes_per_s=speed, **changes)
        for cap in caps
        for speed in speeds
    ]
