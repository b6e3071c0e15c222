"""What inverse planning says, in words: limits, front and purchases; shared by the page and the terminal."""

import math
from dataclasses import dataclass

from moeplan.quantity import format_rate
from reports import wording
from simulator.plan_result import Front, FrontPoint, Limit, PlanResult, Purchase, Shopping

WHAT = {
    "ram_cap": "RAM cap",
    "storage_read": "storage read",
    "context": "context",
    "top_k": "top-k",
    "quantisation": "quantisation",
}


SLOWEST_BYTES_PER_S = 1e6  # no grid of storage speeds begins lower


@dataclass(frozen=True)
class LimitRow:
    """One limit in words; cautious: the low end of the interval meets the target too."""

    name: str
    today: str
    value: str
    speed: str
    cautious: str
    search: str
    grid: str
    note: str


@dataclass(frozen=True)
class FrontRow:
    """One point of the front in words; cautious: the storage from which the low end meets the target with this RAM."""

    ram: str
    storage: str
    speed: str
    cautious: str


@dataclass(frozen=True)
class PurchaseRow:
    """One purchase in words."""

    price: str
    parts: str
    speed: str
    note: str


def size_up(n_bytes: float) -> str:
    """Four significant digits, rounded up, so that what is read is not less than what is needed: '1.686 GiB'."""
    unit_bytes, unit = next(
        ((size, name) for size, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")) if n_bytes >= size),
        (1, "B"),
    )
    value = n_bytes / unit_bytes
    digits = max(0, 3 - math.floor(math.log10(value))) if value >= 1 and unit != "B" else 0
    return f"{math.ceil(value * 10**digits - 1e-9) / 10**digits:.{digits}f} {unit}"


def limit_value(limit: Limit, value: float | str | None) -> str:
    """A value with its unit; none of the grid where there is none."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    if limit.what == "ram_cap":
        return size_up(value)
    if limit.what == "storage_read":
        return format_rate(value)
    return f"{value:,.0f} tokens" if limit.what == "context" else f"{value:.0f}"


def limit_rows(plan: PlanResult) -> list[LimitRow]:
    """The limits of a plan, one line each."""
    return [_limit_row(limit) for limit in plan.limits]


def _limit_row(limit: Limit) -> LimitRow:
    speed = limit.tokens_per_s
    today = wording.size(limit.today) if limit.what == "ram_cap" else limit_value(limit, limit.today)  # type: ignore[arg-type]
    return LimitRow(
        name=f"{limit.sense} {WHAT[limit.what]}",
        today=today,
        value=limit_value(limit, limit.value),
        speed="" if speed is None else f"{wording.number(speed.value)} ({wording.span(speed)})",
        cautious=limit_value(limit, limit.cautious_value),
        search="bisection" if limit.search == "bisected" else "scan",
        grid=f"{limit.n_tried} tried of {limit.grid}",
        note=limit.note,
    )


def limits_title(plan: PlanResult) -> str:
    """The heading over the limits."""
    return f"What {wording.goal(plan.target_tokens_per_s)} tokens/s asks, one thing at a time, all else as it is"


SAFELY = "meets it: the predicted value reaches the target; safely: the low end of the 80 % interval does too"
LIMITS_CAPTION = (
    "Meets it: the predicted value reaches the target. Safely: the low end of the 80 % interval does too. Bisection is "
    "used only where it is proven that nothing beyond the answer falls short; elsewhere value after value is tried, of "
    "many RAM caps only as many as the column of the grid says, evenly spaced."
)


def front_rows(front: Front, most: int | None = None) -> list[FrontRow]:
    """The points of a front, or at most so many of them, evenly spaced, both ends included."""
    points = list(front.points)
    if most is not None and len(points) > most:
        points = [points[round(index * (len(points) - 1) / (most - 1))] for index in range(most)]
    return [_front_row(front, point) for point in points]


def _front_row(front: Front, point: FrontPoint) -> FrontRow:
    safe = [safe for safe in front.cautious_points if safe.ram_cap_bytes <= point.ram_cap_bytes]
    beyond = " (more than this device leaves)" if point.ram_cap_bytes > front.available_ram_bytes else ""
    return FrontRow(
        ram=size_up(point.ram_cap_bytes) + beyond,
        storage=storage_text(point.storage_read_bytes_per_s),
        speed=f"{wording.number(point.tokens_per_s.value)} ({wording.span(point.tokens_per_s)})",
        cautious=storage_text(safe[-1].storage_read_bytes_per_s) if safe else "none",
    )


def storage_text(bytes_per_s: float) -> str:
    """A rate; any where the slowest of the grid does."""
    return "any" if bytes_per_s <= SLOWEST_BYTES_PER_S else format_rate(bytes_per_s)


def front_finding(front: Front, target_tokens_per_s: float) -> str:
    """The finding over the front: its two ends."""
    target = f"{wording.goal(target_tokens_per_s)} tokens/s"
    if not front.points:
        why = ": compute is too slow" if front.starts_warm else ""  # else the first reads are never spared
        return f"No RAM cap and storage speed of the grid reach {target}{why}"
    ends = [
        f"{size_up(point.ram_cap_bytes)} of RAM with {_storage_phrase(point.storage_read_bytes_per_s)}"
        for point in dict.fromkeys((front.points[0], front.points[-1]))
    ]
    return f"{target} {'for anything from' if len(ends) > 1 else 'take'} {' to '.join(ends)}"


def _storage_phrase(bytes_per_s: float) -> str:
    return "any storage" if bytes_per_s <= SLOWEST_BYTES_PER_S else f"storage of {format_rate(bytes_per_s)}"


def purchase_rows(shop: Shopping, most: int | None = None) -> tuple[list[PurchaseRow], list[PurchaseRow]]:
    """The purchases that meet the target, and those that meet it safely; at most so many of each."""
    value = [buy for buy in shop.purchases if not buy.is_cautious][:most]
    safe = [buy for buy in shop.purchases if buy.is_cautious][:most]
    return [_purchase_row(shop, buy) for buy in value], [_purchase_row(shop, buy) for buy in safe]


def _purchase_row(shop: Shopping, buy: Purchase) -> PurchaseRow:
    compute = "" if buy.compute_factor == 1 else f", CPU and RAM x {wording.number(buy.compute_factor)}"
    return PurchaseRow(
        price=f"{buy.price:,.2f} {shop.currency}",
        parts=f"{size_up(buy.ram_cap_bytes)} of RAM, storage {format_rate(buy.storage_read_bytes_per_s)}{compute}",
        speed=f"{wording.number(buy.tokens_per_s.value)} ({wording.span(buy.tokens_per_s)})",
        note=buy.note,
    )


def shopping_finding(shop: Shopping, target_tokens_per_s: float) -> str:
    """The finding over the purchases."""
    target = f"{wording.goal(target_tokens_per_s)} tokens/s"
    value, safe = purchase_rows(shop, 1)
    if not value:
        return f"None of the parts on the price list reaches {target}"
    safely = f"; safely for {safe[0].price}" if safe else "; none reaches it safely"
    return f"{target} for {value[0].price} above today's parts: {value[0].parts}{safely}"
