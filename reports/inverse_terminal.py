"""Inverse planning on a terminal: savings or changes, limits, front and purchases of a plan, and designs."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports import inverse_wording, plan_wording, wording
from reports.console_text import plain, print_lines, print_things
from simulator.plan_result import Change, PlanResult

NO_WRAP = ("tokens/s",)
N_FRONT_ROWS, N_PURCHASES, N_CHANGES, N_NEAREST = 7, 3, 5, 3


def render_inverse(plan: PlanResult, console: Console) -> None:
    """Print what to buy or to save, what would have to change, and what the target asks at least."""
    _savings(console, plan)
    _purchases(console, plan)
    _changes(console, plan)
    if plan.limits:
        _heading(console, inverse_wording.limits_title(plan))
        if inverse_wording.has_limits(plan):
            print_things(console, _limit_table(plan))
            notes = (f"{row.name}: {row.note}" for row in inverse_wording.limit_rows(plan) if row.note)
            print_lines(console, inverse_wording.SAFELY, *notes, style="dim")
    if plan.front is not None:
        finding = inverse_wording.front_finding(plan.front, plan.target_tokens_per_s)
        _heading(console, inverse_wording.as_bound(plan, finding))
        rows = inverse_wording.front_rows(plan.front, N_FRONT_ROWS)
        if rows:
            table = _table(("RAM cap", "storage from", "tokens/s", "safely from"))
            for row in rows:
                table.add_row(row.ram, row.storage, row.speed, row.cautious)
            print_things(console, table)
            print_lines(console, *inverse_wording.front_notes(plan.front), f"tried: {plan.front.grid}", style="dim")


def _savings(console: Console, plan: PlanResult) -> None:
    if plan_wording.is_met(plan):
        _heading(console, plan_wording.saving_title(plan))
        print_lines(console, *plan_wording.savings(plan))


def _purchases(console: Console, plan: PlanResult) -> None:
    finding = inverse_wording.purchases_finding(plan)
    if plan.shopping is None or not finding:
        return
    _heading(console, finding)
    table = _table(("", "price", "parts", "tokens/s"))
    for word, purchases in zip(
        ("meets it", "safely"), inverse_wording.purchase_rows(plan.shopping, N_PURCHASES), strict=True
    ):
        for buy in purchases:
            table.add_row(word, buy.price, buy.parts + (f" ({buy.note})" if buy.note else ""), buy.speed)
    if table.row_count:
        print_things(console, table)
    print_lines(console, *plan_wording.left_out(plan.shopping), style="dim")


def _changes(console: Console, plan: PlanResult) -> None:
    """The first changes that reach the target in the plan's order, or the best of those that do not."""
    if plan_wording.is_met(plan):  # what makes it safe stands in the savings
        return
    shown = [change for change in plan.changes if change.reaches]
    if not shown:
        shown = sorted(plan.changes, key=lambda one: -(one.tokens_per_s.value if one.tokens_per_s else 0.0))
    if not shown:
        return
    is_reached = shown[0].reaches
    shown = shown[: N_CHANGES if is_reached else N_NEAREST]
    _heading(console, plan_wording.changes_title(plan) + ("" if is_reached else "; the best"))
    print_things(console, _change_table(shown, plan.currency))
    notes = (f"{change.what}: {change.note}" for change in shown if change.note)
    print_lines(console, *([plan_wording.changes_order(plan)] if is_reached else []), *notes, style="dim")


def _change_table(changes: Sequence[Change], currency: str) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for index, change in enumerate(changes, 1):
        speed = change.tokens_per_s
        result = "cannot run" if speed is None else f"{wording.number(speed.value)} ({wording.span(speed)})"
        ratio = f"x {wording.number(change.ratio)}" if change.ratio > 1 else ""
        cost = plan_wording.change_cost(change, currency)
        step = Text(plain(f"{change.before} -> {change.after}"))
        table.add_row(str(index), Text(plain(change.what)), step, ratio, Text(plain(cost)), result)
    return table


def _limit_table(plan: PlanResult) -> Table:
    table = _table(("", "today", "meets it", "tokens/s", "safely", "found by"))
    for row in inverse_wording.limit_rows(plan):
        table.add_row(row.name, row.today, row.value, row.speed, row.cautious, row.search)
    return table


def _table(names: Sequence[str], gap: int = 2) -> Table:
    table = Table(box=None, padding=(0, gap, 0, 0), header_style="dim")
    for index, name in enumerate(names):
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=index == 0 or name in NO_WRAP)
    return table


def _heading(console: Console, text: str) -> None:
    print_things(console, Text(f"\n{plain(text)}", style="bold"))
