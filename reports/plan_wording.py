"""What a plan says beside its scenario's own result, in words: shared by the page and the terminal."""

from moeplan.quantity import format_bytes, format_rate
from reports import wording
from reports.grid import Grid
from reports.inverse_wording import WHAT, as_bound, is_told_future, limit_value
from reports.memory_wording import said_first
from simulator.plan_result import Change, ChangeKind, Limit, PlanResult, Shopping
from simulator.result import SweepRow

KIND: dict[ChangeKind, str] = {
    "setting": "costs nothing",
    "quality": "costs quality",
    "hardware": "to buy",
    "other_device": "not for this device",
}
BOUNDS = "All figures here are for a cache that is told the future: bounds, no promises."
ORDER = (
    "Order: what costs nothing, what costs quality, what must be bought{money}, last what this device cannot have or "
    "nobody sells."
)


def plan_headline(plan: PlanResult) -> str:
    """The decision in one or a few words."""
    if plan.result.beyond_device:
        return wording.headline(plan.result)
    if plan.decision == "likely" and wording.is_bound(plan.result):
        return "As a bound only"
    return {"yes": "Yes", "likely": "Likely", "no": "No", "cannot_run": "It cannot run"}[plan.decision]


def plan_reason(plan: PlanResult) -> str:
    """
    Why the decision is what it is; first that the RAM cap is more than the device leaves, last that all is a bound.

    Empty where the result cannot run and neither holds.
    """
    told = said_first(plan.result), _target_reason(plan), BOUNDS if is_told_future(plan) else ""
    return " ".join(text for text in told if text)


def _target_reason(plan: PlanResult) -> str:
    target, speed = f"{wording.goal(plan.target_tokens_per_s)} tokens/s", plan.result.tokens_per_s
    if speed is None:
        return ""
    if speed.value < plan.target_tokens_per_s:
        reached = " Only the high end of the interval does." if speed.high >= plan.target_tokens_per_s else ""
        return f"The predicted speed does not reach {target}.{reached}"
    if wording.is_bound(plan.result):
        return f"A cache that is told the future reaches {target}; none that a runtime can follow is as good."
    if speed.low < plan.target_tokens_per_s:
        return f"The predicted speed reaches {target}, the low end of its 80 % interval does not."
    if plan.decision == "likely":
        return f"The interval lies above {target}, but its hit rates are those of a stand-in's routing."
    return f"Even the low end of the 80 % interval reaches {target}."


def _limit(plan: PlanResult, what: str) -> Limit | None:
    return next((limit for limit in plan.limits if limit.what == what), None)


def is_met(plan: PlanResult) -> bool:
    """Whether the predicted value reaches the target."""
    speed = plan.result.tokens_per_s
    return speed is not None and speed.value >= plan.target_tokens_per_s


def saving_title(plan: PlanResult) -> str:
    """Nothing to buy; whether that is safe. With more RAM than the device has: what of it and of storage it takes."""
    if plan.result.beyond_device:
        return f"With that RAM {wording.goal(plan.target_tokens_per_s)} tokens/s are met"
    target = f"{wording.goal(plan.target_tokens_per_s)} tokens/s"
    safely = "" if _is_safe(plan) else ", as predicted; to be safe it takes more"
    return as_bound(plan, f"Nothing to buy for {target}{safely}")


def _is_safe(plan: PlanResult) -> bool:
    """Whether the low end of the interval reaches the target."""
    speed = plan.result.tokens_per_s
    return speed is not None and speed.low >= plan.target_tokens_per_s


def savings(plan: PlanResult) -> list[str]:
    """Where the target is met: how little of RAM and storage still meets it, and safely; one sentence each."""
    found = []
    for what, name, much in (("ram_cap", "RAM", "amount"), ("storage_read", "storage", "speed")):
        limit = _limit(plan, what)
        if limit is not None and limit.value is not None:
            value, safe = (limit_value(limit, one) for one in (limit.value, limit.cautious_value))
            safely = "safely too" if safe == value else f"safely from {safe}"
            if safe == "none":
                safely = f"but no {much} of it alone makes it safe"
            today = wording.size(float(limit.today)) if what == "ram_cap" else limit_value(limit, limit.today)
            found.append(f"least {name}: {value}, {safely}; now {today}; all else as it is")
    return found if _is_safe(plan) or not plan.limits else [*found, _what_is_safe(plan)]


def _what_is_safe(plan: PlanResult) -> str:
    """The settings and the limits that the low end of the interval meets, each alone."""
    safe = [limit for limit in plan.limits if limit.cautious_value is not None]
    if not safe and not plan.changes:
        return "to be safe: no single one of the things below is enough"
    told = [f"{WHAT[limit.what]} {limit_value(limit, limit.cautious_value)}" for limit in safe]
    told += [f"{change.what} {change.after}" for change in plan.changes]
    costs_quality = any(limit.what in ("top_k", "quantisation") for limit in safe)
    costs_quality |= any(change.kind == "quality" for change in plan.changes)
    cost = "; what that costs in quality is not measured" if costs_quality else ""
    return f"to be safe: {', or '.join(told)}{cost}"


def changes_title(plan: PlanResult) -> str:
    """The heading over the changes."""
    target = f"{wording.goal(plan.target_tokens_per_s)} tokens/s"
    if any(change.reaches for change in plan.changes):
        return as_bound(plan, f"What would reach {target}")
    return as_bound(plan, f"No single change reaches {target}")


def changes_order(plan: PlanResult) -> str:
    """By what the changes are ordered."""
    return ORDER.format(money=", by price" if plan.currency else ", the smallest step first (no prices given)")


def change_cost(change: Change, currency: str) -> str:
    """What a change costs: its kind, and its price where there is one."""
    price = "" if change.price is None else f"{change.price:,.2f} {currency}"
    if change.kind == "other_device":
        return f"{KIND[change.kind]}; {price}" if price else KIND[change.kind]
    if price:
        return price
    if currency and change.kind == "hardware":
        return "no such part on the list"
    return KIND[change.kind]


def left_out(shop: Shopping) -> list[str]:
    """The parts of the price list that this device cannot have, a line for each reason."""
    return [f"not for this device: {line}" for line in shop.left_out]


def map_finding(plan: PlanResult, grid: Grid, now: SweepRow | None) -> str:
    """The finding over a plan's heat map: how much of it reaches the target, and the exact limits beside it."""
    target = f"{wording.goal(plan.target_tokens_per_s)} tokens/s"
    good = grid.reaching(plan.target_tokens_per_s)
    if not good:
        best = max((row.tokens_per_s for row in grid.runs), default=0.0)
        return f"No combination here reaches {target}" + (f"; the best has {wording.number(best)}" if best else "")
    if len(good) == len(grid.cells):
        return f"Every combination here reaches {target}"
    exact = _exact_steps(plan, now)
    return f"{len(good)} of these {len(grid.cells)} combinations reach {target}{exact}"


def _exact_steps(plan: PlanResult, now: SweepRow | None) -> str:
    """From where on it is met, along either axis from this scenario: the limits, not the nearest cells of the map."""
    ram, storage = _limit(plan, "ram_cap"), _limit(plan, "storage_read")
    if now is None or ram is None or storage is None:
        return ""
    steps = []
    if storage.value is not None:
        least = limit_value(storage, storage.value)
        least = "with any storage" if least == "any" else f"from {least}"
        steps.append(f"at {wording.round_bytes(now.ram_cap_bytes)} {least}")
    if ram.value is not None:
        steps.append(f"at {wording.round_rate(now.storage_read_bytes_per_s)} from {limit_value(ram, ram.value)}")
    return f": {', '.join(steps)}" if steps else ": it takes both more RAM and a faster SSD"


def map_caption(plan: PlanResult, grid: Grid) -> str:
    """What of a map the device cannot have, or nobody sells."""
    told = []
    if plan.available_ram_bytes is not None and any(row.reason for row in grid.runs):
        told.append(f"?: takes more RAM than the {format_bytes(plan.available_ram_bytes)} that this device leaves.")
    ceiling = plan.storage_ceiling
    if ceiling is not None and any(rate > ceiling.bytes_per_s for rate in grid.speeds_bytes_per_s):
        told.append(f"Storage above {format_rate(ceiling.bytes_per_s)} is more than {ceiling.text} carries.")
    return " ".join(told)
