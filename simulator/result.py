"""
What simulating answers: Result and SweepRow, and their JSON form; what planning answers: plan_result.py.

Times are in seconds, sizes in bytes, rates per second; a fraction ends in _frac.  Reports read these and run nothing.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

SCHEMA_VERSION = 1

Verdict = Literal["resident", "streams", "cannot_run"]
RowVerdict = Literal["resident", "streams", "cannot_run", "failed"]
Reason = Literal["ram_floor", "storage_capacity"]
Bound = Literal["compute", "ram_bandwidth", "storage_bandwidth", "storage_latency"]


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its 80 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class CacheResult:
    """
    Expert cache over the decode tokens: an expert of a row counts as one hit or one miss.

    is_upper_bound: the policy is told the future: no runtime reaches what it does.
    """

    policy: str
    capacity_bytes: int
    slots: int
    hits: int
    misses: int
    hit_rate: float
    bytes_read: int
    bytes_wasted: int
    bytes_read_per_token: float
    is_upper_bound: bool = False


@dataclass(frozen=True)
class PageCacheResult:
    """
    A mapped model file in the page cache, means over the counted decode tokens.

    eviction: who goes, lru or two-list (Linux); window_bytes: what a fault reads around the page; misses: pages that
    were touched and not resident; reads: windows that were read; bytes_touched: what a token needs.
    """

    eviction: str
    capacity_bytes: int
    window_bytes: int
    misses_per_token: float
    reads_per_token: float
    bytes_read_per_token: float
    bytes_touched_per_token: float


@dataclass(frozen=True)
class LayerResult:
    """
    One MoE layer, means over the decode tokens.

    hidden_frac: share of the tokens with at least one miss for which t_attention >= t_prefetch, None where no
    token missed (without prefetch: what a prefetch would have hidden, while the bubble is the whole read);
    no_miss_frac: share of the tokens without a miss.
    """

    layer: int
    t_attention_s: float
    t_prefetch_s: float
    bubble_s: float
    hidden_frac: float | None
    no_miss_frac: float


@dataclass(frozen=True)
class MemoryResult:
    """
    Storage and resident bytes, always side by side; resident is the sum of the five parts after it.

    all_experts_bytes: as they are read and cached, padding included; dense_file_bytes: what the file holds beside the
    routed experts.  A mapped file has dense_bytes 0: its pages, whatever they hold, are cache_bytes.
    """

    storage_bytes: int
    resident_bytes: int
    dense_bytes: int
    kv_bytes: int
    cache_bytes: int
    buffer_bytes: int
    activation_bytes: int
    ram_cap_bytes: int
    all_experts_bytes: int
    dense_file_bytes: int


@dataclass(frozen=True)
class Result:
    """
    The answer for one scenario.

    seconds_per_token: mean decode seconds by op (embedding, router, attention, wait, dense_ffn, expert_ffn, lm_head);
    first_decode_tokens_per_s: speed of the first 16 decode tokens, which meet a cold cache unless all is resident;
    storage_read_bytes_per_s: sequential rate of the storage in this scenario; prefetch_policy: "none" is on demand;
    n_prompt_tokens: prompt of the first request, which ttft_s belongs to; page_cache: where the model file is mapped;
    warnings: what a reader must not miss, one sentence each; small_print: the conditions, name to text;
    beyond_device: why the device as bought cannot run it, having too little RAM for what is resident: every figure is
    then a what-if; empty where it can.  larger_cap: that the RAM cap is more than the device leaves, where the model
    takes less or cannot run with it either.
    """

    verdict: Verdict
    small_print: dict[str, str]
    memory: MemoryResult
    reason: Reason | None = None
    arithmetic: str = ""
    tokens_per_s: Interval | None = None
    ttft_s: Interval | None = None
    first_decode_tokens_per_s: float | None = None
    bound_by: Bound | None = None
    cache: CacheResult | None = None
    layers: tuple[LayerResult, ...] = ()
    seconds_per_token: dict[str, float] = field(default_factory=dict)
    energy_j_per_token: float | None = None
    storage_read_bytes_per_s: float | None = None
    prefetch_policy: str | None = None
    n_prompt_tokens: int = 0
    page_cache: PageCacheResult | None = None
    warnings: tuple[str, ...] = ()
    beyond_device: str = ""
    larger_cap: str = ""
    schema_version: int = SCHEMA_VERSION

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values with the field names of the contract."""
        return asdict(self)


@dataclass(frozen=True)
class SweepRow:
    """
    One scenario of a sweep: its inputs beside its outputs. tokens_per_s is 0 where it cannot run.

    verdict: failed where the inputs contradict each other, with the complaint as the reason; reason: the arithmetic
    where the model cannot run, or why the device as bought cannot hold it (see Result.beyond_device).  The inputs hold
    what was in force, also where the sweep left it to the device, the model or the trace (context and n_threads: None
    and 0 there); storage_latency_s: seconds of a request before its bytes.  quantisation: type of the experts (of the
    FFN of a dense model).

    is_upper_bound: as in CacheResult; warnings: what a reader of this row must not miss, one on a line.
    """

    ram_cap_bytes: int
    storage_read_bytes_per_s: float
    cache_policy: str
    prefetch_policy: str
    verdict: RowVerdict
    tokens_per_s: float
    tokens_per_s_low: float
    tokens_per_s_high: float
    hit_rate: float
    hidden_frac: float
    wait_s_per_token: float
    bytes_read_per_token: float
    bound_by: str
    reason: str = ""
    model: str = ""
    device: str = ""
    trace: str = ""
    quantisation: str = ""
    top_k: int = 0
    layout: str = ""
    context: int | None = None
    n_threads: int = 0
    storage_latency_s: float = 0.0
    ram_bytes_per_s: float = 0.0
    gemv_flop_per_s: float = 0.0
    n_slots: int = 0
    hits: int = 0
    misses: int = 0
    storage_bytes: int = 0
    resident_bytes: int = 0
    is_upper_bound: bool = False
    warnings: str = ""
