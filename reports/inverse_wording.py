"""What inverse planning says, in words: limits, front and purchases; shared by the page and the terminal."""

from dataclasses import dataclass, replace
from string import ascii_lowercase

from moeplan.quantity import format_bytes_up, format_rate, format_rate_up
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
    """One purchase in words; price: empty where nothing has to be bought."""

    price: str
    parts: str
    speed: str
    note: str


def is_told_future(plan: PlanResult) -> bool:
    """Whether the cache policy of all the plan's figures knows the future, so that each of them is a bound."""
    cache = plan.result.cache
    return (cache is not None and cache.is_upper_bound) or any(row.is_upper_bound for row in plan.grid)


def as_bound(plan: PlanResult, finding: str) -> str:
    """A finding, said to be a bound where the cache is told the future."""
    return f"As a bound: {finding[:1].lower()}{finding[1:]}" if finding and is_told_future(plan) else finding


def limit_value(limit: Limit, value: float | str | None) -> str:
    """A value with its unit; none of the grid where there is none."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    if limit.what == "ram_cap":
        return format_bytes_up(value)
    if limit.what == "storage_read":
        return storage_text(value)
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


def has_limits(plan: PlanResult) -> bool:
    """Whether one thing alone, of some value, meets the target."""
    return any(limit.value is not None for limit in plan.limits)


def limits_title(plan: PlanResult) -> str:
    """The heading over the limits."""
    if not has_limits(plan):
        tried = ", ".join(WHAT[limit.what] for limit in plan.limits)
        return as_bound(plan, f"No other {tried} alone reaches {wording.goal(plan.target_tokens_per_s)} tokens/s")
    target = f"{wording.goal(plan.target_tokens_per_s)} tokens/s"
    return as_bound(plan, f"What {target} asks, one thing at a time, all else as it is")


SAFELY = "meets it: the predicted value reaches the target; safely: the low end of the 80 % interval does too"
LIMITS_CAPTION = (
    "Meets it: the predicted value reaches the target. Safely: the low end of the 80 % interval does too. Bisection is "
    "used only where it is proven that nothing beyond the answer falls short; elsewhere value after value is tried, of "
    "many RAM caps only as many as the column of the grid says, evenly spaced."
)


def front_rows(front: Front, most: int | None = None) -> list[FrontRow]:
    """
    The points of a front, or so many of them, evenly spaced, both ends included, and the least RAM that the device can
    have; (a): see front_notes.
    """
    points, places = list(front.points), set(range(len(front.points)))
    if most is not None and len(points) > most:
        here = [place for place, point in enumerate(points) if not point.note]
        places = {round(index * (len(points) - 1) / (most - 1)) for index in range(most)} | set(here[:1])
    return [_front_row(front, points[place]) for place in sorted(places)]


def front_notes(front: Front) -> list[str]:
    """Why some points cannot be had on this device, by the marks that front_rows gives them."""
    return [f"{mark} {note}" for note, mark in _marks(front).items()]


def _marks(front: Front) -> dict[str, str]:
    notes = (note for point in (*front.points, *front.cautious_points) for note in point.note.split("; ") if note)
    return {note: f"({letter})" for note, letter in zip(dict.fromkeys(notes), ascii_lowercase, strict=False)}


def _marked(front: Front, text: str, point: FrontPoint) -> str:
    marks = _marks(front)
    return " ".join((text, *(marks[note] for note in point.note.split("; ") if note)))


def _front_row(front: Front, point: FrontPoint) -> FrontRow:
    safe = [safe for safe in front.cautious_points if safe.ram_cap_bytes <= point.ram_cap_bytes]
    safely = safe[-1] if safe else None
    return FrontRow(
        ram=format_bytes_up(point.ram_cap_bytes),
        storage=_marked(front, storage_text(point.storage_read_bytes_per_s), point),
        speed=f"{wording.number(point.tokens_per_s.value)} ({wording.span(point.tokens_per_s)})",
        cautious="none" if safely is None else _marked(front, storage_text(safely.storage_read_bytes_per_s), safely),
    )


def storage_text(bytes_per_s: float) -> str:
    """A least rate; any where the slowest of the grid does."""
    return "any" if bytes_per_s <= SLOWEST_BYTES_PER_S else format_rate_up(bytes_per_s)


def front_finding(front: Front, target_tokens_per_s: float) -> str:
    """The finding over the front: the two ends of what the device can have."""
    target = f"{wording.goal(target_tokens_per_s)} tokens/s"
    if not front.points:
        why = ": compute is too slow" if front.starts_warm else ""  # else the first reads are never spared
        return f"No RAM cap and storage speed of the grid reach {target}{why}"
    here = tuple(point for point in front.points if not point.note)
    if not here:
        return f"No RAM and storage that this device can have reach {target}; elsewhere: {_ends(front.points)}"
    rest = " on this grid" + ("" if len(here) == len(front.points) else "; its other pairs are not for this device")
    return f"{target} {'for anything from' if len(here) > 1 else 'take'} {_ends(here)}{rest}"


def _ends(points: tuple[FrontPoint, ...]) -> str:
    return " to ".join(
        f"{format_bytes_up(point.ram_cap_bytes)} of RAM with {_storage_phrase(point.storage_read_bytes_per_s)}"
        for point in dict.fromkeys((points[0], points[-1]))
    )


def _storage_phrase(bytes_per_s: float) -> str:
    return "any storage" if bytes_per_s <= SLOWEST_BYTES_PER_S else f"storage of {format_rate_up(bytes_per_s)}"


def purchase_rows(shop: Shopping, most: int | None = None) -> tuple[list[PurchaseRow], list[PurchaseRow]]:
    """What has to be bought to meet the target, and to meet it safely, which is told once; at most so many of each."""
    bought = [buy for buy in shop.purchases if buy.price > 0]  # what is there is not bought
    safe = [buy for buy in bought if buy.is_cautious]
    value = [buy for buy in bought if not buy.is_cautious and replace(buy, is_cautious=True) not in safe]
    return [_purchase_row(shop, buy) for buy in value[:most]], [_purchase_row(shop, buy) for buy in safe[:most]]


def _purchase_row(shop: Shopping, buy: Purchase) -> PurchaseRow:
    compute = "" if buy.compute_factor == 1 else f", CPU and RAM x {wording.number(buy.compute_factor)}"
    rate = format_rate(buy.storage_read_bytes_per_s)
    return PurchaseRow(
        price=f"{buy.price:,.2f} {shop.currency}" if buy.price else "",
        parts=f"{format_bytes_up(buy.ram_cap_bytes)} of RAM, storage {rate}{compute}",
        speed=f"{wording.number(buy.tokens_per_s.value)} ({wording.span(buy.tokens_per_s)})",
        note=buy.note,
    )


def purchases_finding(plan: PlanResult) -> str:
    """
    The finding over a plan's purchases, empty where there is nothing to buy; its RAM cap counts as there, also where
    the device has less.
    """
    if plan.shopping is None:
        return ""
    cap = plan.result.memory.ram_cap_bytes
    finding = shopping_finding(plan.shopping, plan.target_tokens_per_s, cap)
    return as_bound(plan, f"Beside that RAM: {finding}" if finding and plan.result.beyond_device else finding)


def shopping_finding(shop: Shopping, target_tokens_per_s: float, ram_cap_bytes: int) -> str:
    """The cheapest purchase, and the cheapest safe one; empty where today's parts, with that RAM cap, are safe."""
    target = f"{wording.goal(target_tokens_per_s)} tokens/s"
    if not shop.purchases:
        whose = " that this device can have" if shop.left_out else ""
        return f"None of the parts on the price list{whose} reaches {target}"
    value, safe = (next((buy for buy in shop.purchases if buy.is_cautious == end), None) for end in (False, True))
    if value is not None and value.price and safe == replace(value, is_cautious=True):
        return _phrase(shop, value, f"{target}, safely too,")
    if value is None or not _is_today(value, ram_cap_bytes):
        return f"{_value_finding(shop, value, target)}; {_safe_phrase(shop, safe)}"
    if safe is None:
        return f"No parts reach {target} safely"
    if _is_today(safe, ram_cap_bytes):
        return ""
    return f"Safely {_phrase(shop, safe, target)}" if safe.price else f"Safely {target} at no price: {_row(shop, safe)}"


def _is_today(buy: Purchase, ram_cap_bytes: int) -> bool:
    """Whether it is what the question asked about: nothing to pay, and no more RAM taken."""
    return buy.price == 0 and buy.ram_cap_bytes <= ram_cap_bytes


def _value_finding(shop: Shopping, value: Purchase | None, target: str) -> str:
    if value is None:
        return f"No parts reach {target} as predicted"
    return _phrase(shop, value, target) if value.price else f"Nothing to buy for {target}: {_row(shop, value)}"


def _safe_phrase(shop: Shopping, safe: Purchase | None) -> str:
    if safe is None:
        return "no parts of the list reach it safely"
    cost = f"for {safe.price:,.2f} {shop.currency}:" if safe.price else "with"
    return f"safely {cost} {_row(shop, safe)}"


def _phrase(shop: Shopping, buy: Purchase, target: str) -> str:
    return f"{target} for {buy.price:,.2f} {shop.currency} above today's parts: {_row(shop, buy)}"


def _row(shop: Shopping, buy: Purchase) -> str:
    row = _purchase_row(shop, buy)
    return row.parts + (f" ({row.note})" if row.note else "")
