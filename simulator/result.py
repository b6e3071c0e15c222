"""
What simulating and planning answer: Result, SweepRow, PlanResult and DesignResult, and their JSON form.

Times are in seconds, sizes in bytes, rates per second; a fraction ends in _frac.  Reports read these and run nothing.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

SCHEMA_VERSION = 1

Verdict = Literal["resident", "streams", "cannot_run"]
RowVerdict = Literal["resident", "streams", "cannot_run", "failed"]
Reason = Literal["ram_floor", "storage_capacity"]
Decision = Literal["yes", "likely", "no", "cannot_run"]
Search = Literal["bisected", "scanned"]
Bound = Literal["compute", "ram_bandwidth", "storage_bandwidth", "storage_latency"]


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its 80 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class CacheResult:
    """Expert cache over the decode tokens: an expert of a row counts as one hit or one miss."""

    policy: str
    capacity_bytes: int
    slots: int
    hits: int
    misses: int
    hit_rate: float
    bytes_read: int
    bytes_wasted: int
    bytes_read_per_token: float


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
    warnings: what a reader must not miss, one sentence each; small_print: the conditions, name to text.
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
    schema_version: int = SCHEMA_VERSION

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values with the field names of the contract."""
        return asdict(self)


@dataclass(frozen=True)
class SweepRow:
    """
    One scenario of a sweep: its inputs beside its outputs. tokens_per_s is 0 where it cannot run.

    verdict: failed where the inputs contradict each other, with the complaint as the reason; reason: the arithmetic
    where the model cannot run.  The inputs hold what was in force, also where the sweep left it to the device, the
    model or the trace (context and n_threads: None and 0 there); storage_latency_s: seconds of a request before its
    bytes.  quantisation: type of the experts (of the FFN of a dense model).
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


@dataclass(frozen=True)
class Change:
    """
    One single change that is asked for the target.

    what: the thing that changes; before, after: with units; ratio: after / before (>= 1, the size of the wish);
    reaches: whether the target is reached with it; result: the speed with it, None where it cannot run.
    """

    what: str
    before: str
    after: str
    ratio: float
    reaches: bool
    tokens_per_s: Interval | None
    note: str = ""


@dataclass(frozen=True)
class Limit:
    """
    The least, largest or best value of one input with which the target is still met, all else as it was asked.

    value: the speed's central value meets the target; cautious_value: the low end of its 80 % interval does; None where
    no value of the grid does.  Bytes, bytes per second, tokens, experts or the name of a type, as `what` says.
    search: bisected where the speed is proven monotone, scanned elsewhere; grid: its values, in words.
    """

    what: Literal["ram_cap", "storage_read", "context", "top_k", "quantisation"]
    sense: Literal["least", "largest", "best"]
    today: float | str
    value: float | str | None
    tokens_per_s: Interval | None
    cautious_value: float | str | None
    cautious_tokens_per_s: Interval | None
    search: Search
    n_tried: int
    grid: str
    note: str = ""


@dataclass(frozen=True)
class FrontPoint:
    """A RAM cap and the least storage speed that meets the target with it; no other point has less of both."""

    ram_cap_bytes: int
    storage_read_bytes_per_s: float
    tokens_per_s: Interval


@dataclass(frozen=True)
class Front:
    """
    The Pareto front of RAM against storage speed: ascending RAM, descending speed.

    points: the central value meets the target; cautious_points: the low end of the interval does;
    available_ram_bytes: what the device leaves to a program.
    """

    points: tuple[FrontPoint, ...]
    cautious_points: tuple[FrontPoint, ...]
    search: Search
    grid: str
    available_ram_bytes: int


@dataclass(frozen=True)
class Purchase:
    """Parts that meet the target together, and what they cost more than today's; compute_factor: 1 is today's."""

    price: float
    ram_cap_bytes: int
    storage_read_bytes_per_s: float
    compute_factor: float
    tokens_per_s: Interval
    is_cautious: bool
    note: str = ""


@dataclass(frozen=True)
class Shopping:
    """The purchases that meet the target, cheapest first (for each storage and compute the cheapest RAM)."""

    currency: str
    purchases: tuple[Purchase, ...]
    n_tried: int
    grid: str


@dataclass(frozen=True)
class PlanResult:
    """
    The answer to "does it reach the target, and what would have to change?".

    decision: yes (the low end of the interval reaches the target, and the hit rates are the model's own or do not
    matter), likely (the value reaches it), no, cannot_run;
    changes: the single changes that reach the target, cheapest first, then those that do not;
    limits, front: what the target asks at least, None and empty for a model that the storage cannot hold;
    shopping: only where prices were given.
    """

    target_tokens_per_s: float
    decision: Decision
    result: Result
    changes: tuple[Change, ...]
    grid: tuple[SweepRow, ...]
    limits: tuple[Limit, ...] = ()
    front: Front | None = None
    shopping: Shopping | None = None
    schema_version: int = SCHEMA_VERSION

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Design:
    """
    A hypothetical model on the device: its shape and what follows; what follows is 0 or None where it cannot run.

    t_attention_s, t_prefetch_s: means over the (token, layer) pairs with a miss; row_prefetch_s: a whole row's read;
    hidden_frac: share of those pairs with t_attention >= t_prefetch, None without a miss; holds_from_bytes_per_s: the
    least storage speed with which it holds; no_locality_tokens_per_s: with uniform, independent routing;
    is_recorded: the routing is a recorded trace's.
    """

    n_experts: int
    top_k: int
    ffn_size: int
    n_params: int
    n_active_params: int
    expert_bytes: int
    storage_bytes: int
    n_slots: int
    is_recorded: bool
    verdict: Verdict
    reason: str = ""
    hit_rate: float = 0.0
    t_attention_s: float = 0.0
    t_prefetch_s: float = 0.0
    row_prefetch_s: float = 0.0
    hidden_frac: float | None = None
    holds_from_bytes_per_s: float | None = None
    tokens_per_s: Interval | None = None
    no_locality_tokens_per_s: float | None = None


@dataclass(frozen=True)
class DesignResult:
    """
    Where t_attention >= t_prefetch begins to hold among the shapes of a hypothetical model.

    designs: largest experts first; holds_frac: share of the pairs with a miss from which it is said to hold; held: what
    is held constant, in words; params_held, active_held: whether N and A are; small_print: the conditions.
    """

    designs: tuple[Design, ...]
    holds_frac: float
    held: str
    params_held: bool
    active_held: bool
    target_tokens_per_s: float | None
    small_print: dict[str, str]
    warnings: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)
