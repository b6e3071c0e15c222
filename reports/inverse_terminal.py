"""Inverse planning on a terminal: limits, front and purchases of a plan, and designs."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports import design_wording, inverse_wording
from reports.console_text import plain, print_lines, print_things
from simulator.plan_result import DesignResult, PlanResult

NO_WRAP = ("tokens/s", "holds")
N_FRONT_ROWS, N_PURCHASES = 7, 3


def render_inverse(plan: PlanResult, console: Console) -> None:
    """Print what a plan's target asks at least: limits, front, purchases."""
    if plan.limits:
        _heading(console, inverse_wording.limits_title(plan))
        print_things(console, _limit_table(plan))
        notes = (f"{row.name}: {row.note}" for row in inverse_wording.limit_rows(plan) if row.note)
        print_lines(console, inverse_wording.SAFELY, *notes, style="dim")
    if plan.front is not None:
        _heading(console, inverse_wording.front_finding(plan.front, plan.target_tokens_per_s))
        rows = inverse_wording.front_rows(plan.front, N_FRONT_ROWS)
        if rows:
            table = _table(("RAM cap", "storage from", "tokens/s", "safely from"))
            for row in rows:
                table.add_row(row.ram, row.storage, row.speed, row.cautious)
            print_things(console, table)
    if plan.shopping is not None:
        _heading(console, inverse_wording.shopping_finding(plan.shopping, plan.target_tokens_per_s))
        table = _table(("", "price", "parts", "tokens/s"))
        for word, purchases in zip(
            ("meets it", "safely"), inverse_wording.purchase_rows(plan.shopping, N_PURCHASES), strict=True
        ):
            for buy in purchases:
                table.add_row(word, buy.price, buy.parts + (f" ({buy.note})" if buy.note else ""), buy.speed)
        if table.row_count:
            print_things(console, table)


def _limit_table(plan: PlanResult) -> Table:
    table = _table(("", "today", "meets it", "tokens/s", "safely", "found by"))
    for row in inverse_wording.limit_rows(plan):
        table.add_row(row.name, row.today, row.value, row.speed, row.cautious, row.search)
    return table


def render_design(result: DesignResult, console: Console) -> None:
    """Print a design: the decision line, every shape, the small print."""
    print_things(console, Text(plain(design_wording.design_question(result))))
    print_things(console, Text(f"\n{design_wording.design_headline(result)}", style="bold"))
    print_lines(console, design_wording.design_reason(result), design_wording.design_target(result))
    print_things(console, Text(""), _design_table(result))
    print_lines(console, *design_wording.not_simulated(result))
    print_lines(console, design_wording.TERMINAL_CAPTION, style="dim")
    if any(design.is_recorded for design in result.designs):
        print_lines(
            console,
            "* routing of the given trace (of its best experts, where top-k is smaller); the others' is made up",
        )
    for warning in result.warnings:
        print_things(console, Text(f"! {plain(warning)}", style="yellow"))
    print_things(console, Text(""))
    for key in ("model", "sizes", "ram_cap", "storage", "context", "routing", "interval"):
        if key in result.small_print:
            print_lines(console, f"{key.replace('_', ' ')}: {result.small_print[key]}", style="dim")


def _design_table(result: DesignResult) -> Table:
    """Every design; N and A stand there where they are not fixed."""
    free = [name for name, is_fixed in (("N", result.params_fixed), ("A", result.active_fixed)) if not is_fixed]
    table = _table(("experts", "one", *free, "attention", "prefetch", "holds", "from", "tokens/s"), gap=1)
    for design in result.designs:
        row = design_wording.design_row(design, result.holds_frac)
        sizes = {"N": row["n_params"], "A": row["n_active"]}
        names = ("attention", "prefetch", "verdict", "holds_from")
        cells = [row["expert"], *(sizes[name] for name in free), *(row[name] for name in names)]
        star = "*" if design.is_recorded else ""
        speed = f"{row['speed']} ({row['span']})" if row["speed"] else ""
        table.add_row(f"{row['shape']}{star}", *map(str, cells), speed)
    return table


def _table(names: Sequence[str], gap: int = 2) -> Table:
    table = Table(box=None, padding=(0, gap, 0, 0), header_style="dim")
    for index, name in enumerate(names):
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=index == 0 or name in NO_WRAP)
    return table


def _heading(console: Console, text: str) -> None:
    print_things(console, Text(f"\n{plain(text)}", style="bold"))
