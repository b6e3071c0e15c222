"""
What planning answers: PlanResult and DesignResult with their parts, and their JSON form.

Units and names as in simulator.result.  Reports read these and run nothing.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from simulator.result import SCHEMA_VERSION, Interval, Result, RowVerdict, SweepRow

Decision = Literal["yes", "likely", "no", "cannot_run"]
Search = Literal["bisected", "scanned"]
ChangeKind = Literal["setting", "quality", "hardware", "other_device"]
# In the order of what they cost: nothing; quality of the answers; money; what this device cannot have or nobody sells.
CHANGE_KINDS: tuple[ChangeKind, ...] = ("setting", "quality", "hardware", "other_device")


@dataclass(frozen=True)
class Change:
    """
    One single change that is asked for the target.

    what: the thing that changes; before, after: with units; ratio: after / before (>= 1, the size of the wish);
    reaches: whether the target is reached with it; tokens_per_s: the speed with it, None where it cannot run;
    kind: see CHANGE_KINDS; price: of the cheapest parts of the price list that do, None without a list or such parts.
    """

    what: str
    before: str
    after: str
    ratio: float
    reaches: bool
    tokens_per_s: Interval | None
    note: str = ""
    kind: ChangeKind = "hardware"
    price: float | None = None


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
    """
    A RAM cap and the least storage speed that meets the target with it; no other point has less of both.

    note: why this device cannot have it, or nobody sells it; empty where it can be had.
    """

    ram_cap_bytes: int
    storage_read_bytes_per_s: float
    tokens_per_s: Interval
    note: str = ""


@dataclass(frozen=True)
class Front:
    """
    The Pareto front of RAM against storage speed: ascending RAM, descending speed.

    points: the central value meets the target; cautious_points: the low end of the interval does;
    available_ram_bytes: what the device leaves to a program; starts_warm: the largest cap then never misses.
    """

    points: tuple[FrontPoint, ...]
    cautious_points: tuple[FrontPoint, ...]
    search: Search
    grid: str
    available_ram_bytes: int
    starts_warm: bool = True


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
    """
    The purchases that meet the target, cheapest first: for each storage and compute the cheapest RAM; none that a
    cheaper one nearly matches in speed, and nothing but what is there, at no price, where that does.

    left_out: parts of the list that the device cannot have, or nobody sells, and why, a line for each reason.
    """

    currency: str
    purchases: tuple[Purchase, ...]
    n_tried: int
    grid: str
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class StorageCeiling:
    """The most bytes per second that a device's kind of storage can read; text: whose ceiling it is."""

    bytes_per_s: float
    text: str


@dataclass(frozen=True)
class PlanResult:
    """
    The answer to "does it reach the target, and what would have to change?".

    decision: yes (the low end of the interval reaches the target, and the hit rates are the model's own or do not
    matter), likely (the value reaches it), no, cannot_run (also where the device as bought has less RAM than it takes,
    see Result.beyond_device);
    changes: the single changes that reach the target, in the order of CHANGE_KINDS, within one by price where there is
    one, else by ratio; then those that do not; where the value reaches it and the low end of the interval does not:
    the settings with which the low end does too;
    limits, front: what the target asks at least, None and empty for a model that the storage cannot hold;
    shopping: only where prices were given; currency: of every price;
    available_ram_bytes: what the device leaves to a program; storage_ceiling: of the device's kind of storage.
    """

    target_tokens_per_s: float
    decision: Decision
    result: Result
    changes: tuple[Change, ...]
    grid: tuple[SweepRow, ...]
    limits: tuple[Limit, ...] = ()
    front: Front | None = None
    shopping: Shopping | None = None
    currency: str = ""
    available_ram_bytes: int | None = None
    storage_ceiling: StorageCeiling | None = None
    schema_version: int = SCHEMA_VERSION

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Design:
    """
    A hypothetical model on the device: its shape and what follows, which is 0 or None where it cannot run.

    t_attention_s, t_prefetch_s: means over the (token, layer) pairs with a miss; row_prefetch_s: a whole row's read;
    hidden_frac: share of those pairs with t_attention >= t_prefetch, None without a miss; hidden_low_frac: the low end
    of its 80 % interval; holds_from_bytes_per_s: the least storage speed with which it holds,
    holds_safely_from_bytes_per_s: with which the low end does too; their doubts: why nobody can have such a storage for
    the device, empty where somebody can; all_in_ram_bytes: the RAM with which nothing is read; is_beyond_device: it
    takes more RAM than the device leaves, so that its figures are what-ifs;
    no_locality_tokens_per_s: with uniform, independent routing; is_recorded: the routing is a recorded trace's;
    verdict: failed where it could not be simulated; reason: why it cannot run, or was not simulated.
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
    verdict: RowVerdict
    reason: str = ""
    hit_rate: float = 0.0
    t_attention_s: float = 0.0
    t_prefetch_s: float = 0.0
    row_prefetch_s: float = 0.0
    hidden_frac: float | None = None
    hidden_low_frac: float | None = None
    holds_from_bytes_per_s: float | None = None
    holds_safely_from_bytes_per_s: float | None = None
    holds_from_doubt: str = ""
    holds_safely_from_doubt: str = ""
    tokens_per_s: Interval | None = None
    no_locality_tokens_per_s: float | None = None
    all_in_ram_bytes: int = 0
    is_beyond_device: bool = False


@dataclass(frozen=True)
class DesignResult:
    """
    Where t_attention >= t_prefetch begins to hold among the shapes of a hypothetical model.

    designs: largest experts first; holds_frac: share of the pairs with a miss from which it is said to hold;
    fixed: what is the same for all, in words; params_fixed, active_fixed: whether N and A are;
    is_prefetched: whether reads run beside attention; else what holds is what a prefetch would hide;
    larger_cap: that the RAM cap is more than the device leaves, without a full stop; small_print: the conditions.
    """

    designs: tuple[Design, ...]
    holds_frac: float
    fixed: str
    params_fixed: bool
    active_fixed: bool
    target_tokens_per_s: float | None
    small_print: dict[str, str]
    warnings: tuple[str, ...] = ()
    is_prefetched: bool = True
    larger_cap: str = ""
    schema_version: int = SCHEMA_VERSION

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)
