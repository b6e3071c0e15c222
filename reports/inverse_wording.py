"""What inverse planning says, in words: limits, front and purchases; shared by the page and the terminal."""

import math
from dataclasses import dataclass
from string import ascii_lowercase

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


ABOVE_TODAY = " above today's parts"
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
    for unit_bytes, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        value = _up(n_bytes / unit_bytes)
        if value >= 1:
            return f"{value:.{_digits(value)}f} {unit}"
    return f"{math.ceil(n_bytes)} B"


def _up(value: float) -> float:
    """Rounded up to four significant digits; a value that then counts 1024 is left to the next unit."""
    scale = 10 ** _digits(value)
    return math.ceil(value * scale - 1e-9) / scale


def _digits(value: float) -> int:
    """Decimals for four significant digits."""
    return max(0, 3 - math.floor(math.log10(value))) if value >= 1 else 3


def limit_value(limit: Limit, value: float | str | None) -> str:
    """A value with its unit; none of the grid where there is none."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    if limit.what == "ram_cap":
        return size_up(value)
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
        return f"No other {tried} alone reaches {wording.goal(plan.target_tokens_per_s)} tokens/s"
    return f"What {wording.goal(plan.target_tokens_per_s)} tokens/s asks, one thing at a time, all else as it is"


SAFELY = "meets it: the predicted value reaches the target; safely: the low end of the 80 % interval does too"
LIMITS_CAPTION = (
    "Meets it: the predicted value reaches the target. Safely: the low end of the 80 % interval does too. Bisection is "
    "used only where it is proven that nothing beyond the answer falls short; elsewhere value after value is tried, of "
    "many RAM caps only as many as the column of the grid says, evenly spaced."
)


def front_rows(front: Front, most: int | None = None) -> list[FrontRow]:
    """The points of a front, or at most so many of them, evenly spaced, both ends included; (a): see front_notes."""
    points = list(front.points)
    if most is not None and len(points) > most:
        points = [points[round(index * (len(points) - 1) / (most - 1))] for index in range(most)]
    return [_front_row(front, point) for point in points]


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
        ram=size_up(point.ram_cap_bytes),
        storage=_marked(front, storage_text(point.storage_read_bytes_per_s), point),
        speed=f"{wording.number(point.tokens_per_s.value)} ({wording.span(point.tokens_per_s)})",
        cautious="none" if safely is None else _marked(front, storage_text(safely.storage_read_bytes_per_s), safely),
    )


def storage_text(bytes_per_s: float) -> str:
    """A rate; any where the slowest of the grid does."""
    return "any" if bytes_per_s <= SLOWEST_BYTES_PER_S else format_rate(bytes_per_s)


def front_finding(front: Front, target_tokens_per_s: float) -> str:
    """The finding over the front: the two ends of what the device can have."""
    target = f"{wording.goal(target_tokens_per_s)} tokens/s"
    if not front.points:
        why = ": compute is too slow" if front.starts_warm else ""  # else the first reads are never spared
        return f"No RAM cap and storage speed of the grid reach {target}{why}"
    here = tuple(point for point in front.points if not point.note)
    if not here:
        return f"No RAM and storage that this device can have reach {target}; elsewhere: {_ends(front.points)}"
    rest = "" if len(here) == len(front.points) else "; other pairs are not for this device"
    return f"{target} {'for anything from' if len(here) > 1 else 'take'} {_ends(here)}{rest}"


def _ends(points: tuple[FrontPoint, ...]) -> str:
    return " to ".join(
        f"{size_up(point.ram_cap_bytes)} of RAM with {_storage_phrase(point.storage_read_bytes_per_s)}"
        for point in dict.fromkeys((points[0], points[-1]))
    )


def _storage_phrase(bytes_per_s: float) -> str:
    return "any storage" if bytes_per_s <= SLOWEST_BYTES_PER_S else f"storage of {format_rate(bytes_per_s)}"


def purchase_rows(shop: Shopping, most: int | None = None) -> tuple[list[PurchaseRow], list[PurchaseRow]]:
    """What has to be bought to meet the target, and to meet it safely; at most so many of each."""
    bought = [buy for buy in shop.purchases if buy.price > 0]  # today's parts are not bought
    value = [buy for buy in bought if not buy.is_cautious][:most]
    safe = [buy for buy in bought if buy.is_cautious][:most]
    return [_purchase_row(shop, buy) for buy in value], [_purchase_row(shop, buy) for buy in safe]


def _purchase_row(shop: Shopping, buy: Purchase) -> PurchaseRow:
    compute = "" if buy.compute_factor == 1 else f", CPU and RAM x {wording.number(buy.compute_factor)}"
    return PurchaseRow(
        price=f"{buy.price:,.2f} {shop.currency}",
        parts=f"{size_up(buy.ram_cap_bytes)} of RAM, storage {format_rate(buy.storage_read_bytes_per_s)}{compute}",
        speed=f"{wording.number(buy.tokens_per_s.value)} ({wording.span(buy.tokens_per_s)})",
        note=buy.note,
    )


def purchases_finding(plan: PlanResult) -> str:
    """
    The finding over a plan's purchases, empty where there is nothing to buy; its RAM cap counts as there, also where
    the device has less.
    """
    finding = "" if plan.shopping is None else shopping_finding(plan.shopping, plan.target_tokens_per_s)
    return f"Beside that RAM: {finding}" if finding and plan.result.beyond_device else finding


def shopping_finding(shop: Shopping, target_tokens_per_s: float) -> str:
    """The cheapest purchase, and the cheapest safe one; empty where today's parts are safe."""
    target = f"{wording.goal(target_tokens_per_s)} tokens/s"
    value, safe = purchase_rows(shop, 1)
    if not shop.purchases:
        return f"None of the parts on the price list reaches {target}"
    if _is_free(shop, is_cautious=True):
        return ""
    safely = f"; safely for {_phrase(safe[0])}" if safe else "; no parts of the list reach it safely"
    if _is_free(shop, is_cautious=False):
        return f"Safely {target} for {_phrase(safe[0], ABOVE_TODAY)}" if safe else f"No parts reach {target} safely"
    return f"{target} for {_phrase(value[0], ABOVE_TODAY)}{safely}"


def _phrase(buy: PurchaseRow, above: str = "") -> str:
    return f"{buy.price}{above}: {buy.parts}" + (f" ({buy.note})" if buy.note else "")


def _is_free(shop: Shopping, *, is_cautious: bool) -> bool:
    return any(buy.price == 0 for buy in shop.purchases if buy.is_cautious == is_cautious)
