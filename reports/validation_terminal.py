"""A validation on a terminal: what holds, the errors by class, every cell, and why the worst are off."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.console_text import MAX_WIDTH, plain
from reports.validation_findings import findings, headline
from reports.validation_tables import (
    cells_table,
    held_out_table,
    left_out_table,
    prefill_table,
    summary_table,
    trend_table,
    worst_table,
)
from reports.validation_text import TextTable
from reports.validation_verdicts import HIDDEN, verdict_table
from simulator.validation.result import ValidationResult

# what does not fit into 100 columns; the page has all
LEFT_AWAY: dict[str, tuple[str, ...]] = {
    "Cells": ("class", "errors of its runs", HIDDEN, "most off, ms a token"),
    "Error of decode tokens/s": (
        "mean error", "single runs, median / 90th", "with drift, noise", "noise",
    ),
    "Are the reads hidden by attention?": (HIDDEN, "hindsight, balanced"),
    "Leave one condition out": ("fitted on",),
}  # fmt: skip

LONGEST_NOTE = 150  # characters; longer ones stand on the page


def render_validation(result: ValidationResult, console: Console) -> None:
    """Print a validation."""
    _print(console, Text(headline(result), style="bold"))
    for line in findings(result):
        _print(console, Text(plain(f"- {line}")))
    for warning in result.warnings:
        _print(console, Text(f"! {plain(warning)}", style="yellow"))
    for make in (
        cells_table,
        summary_table,
        trend_table,
        worst_table,
        verdict_table,
        left_out_table,
        held_out_table,
        prefill_table,
    ):
        table = make(result)
        if table.rows:
            _table(console, table)
    machine = [result.provenance[key] for key in ("cpu", "measured_from") if key in result.provenance]
    _print(console, Text(plain("\n" + ", ".join(machine)), style="dim"))


def _table(console: Console, table: TextTable) -> None:
    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    hidden = LEFT_AWAY.get(table.title, ())
    indices = [index for index, column in enumerate(table.columns) if column not in hidden]
    for index in indices:
        is_word = table.is_word(index)
        shown.add_column(Text(table.columns[index]), justify="left" if is_word else "right", overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(plain(row[index])) for index in indices))
    _print(console, Text(f"\n{table.title}", style="bold"), shown)
    if table.note and len(table.note) < LONGEST_NOTE:
        _print(console, Text(plain(table.note), style="dim"))


def _print(console: Console, *things: Text | Table) -> None:
    width = min(console.width, MAX_WIDTH)
    console.print(*things, sep="\n", width=width, highlight=False, markup=False, emoji=False)
