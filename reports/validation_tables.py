"""A validation as tables of text: the same ones for the terminal, Markdown and HTML."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from moeplan.quantity import format_bytes, format_rate, format_seconds
from reports.wording import number, span
from simulator.validation.cell_result import CellComparison, Conditions, Verdicts
from simulator.validation.result import GroupSummary, LeftOut, ValidationResult

N_WORST = 10  # cells whose reasons are told
NOTHING = "–"


@dataclass(frozen=True)
class TextTable:
    """A title, columns and rows of text; left: how many columns from the left hold words and not numbers."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    left: int = 1
    note: str = ""
    words: frozenset[str] = field(default_factory=frozenset)  # columns further right that hold words too

    def is_word(self, index: int) -> bool:
        """Whether a column is aligned left."""
        return index < self.left or self.columns[index] in self.words


def headline(result: ValidationResult) -> str:
    """The errors in one line."""
    every = result.group("all", quiet=False)
    return (
        f"{len(result.cells)} cells: decode tokens/s within {plain_percent(every.median_abs_error_frac)} (median), "
        f"{plain_percent(every.p90_abs_error_frac)} (90th percentile)"
    )


def findings(result: ValidationResult) -> list[str]:
    """Decisions, verdicts, coverage and drift, a sentence each."""
    every = result.group("all", quiet=False)
    hits = "equal" if result.counts_equal else f"DIFFERENT in {_cells_where(result, 'counts_equal')}"
    n_bytes = "equal" if result.bytes_equal else f"DIFFERENT in {_cells_where(result, 'bytes_equal')}"
    lines = [
        f"Hits and misses: {hits}; bytes: {n_bytes} (over {sum(len(c.runs) for c in result.cells)} runs).",
        f"80 % interval: {plain_percent(every.interval_coverage_frac)} of the measured values lie inside.",
        f"Verdict t_attention >= t_prefetch, clear pairs: {verdict_text(result.clear_verdicts)}.",
        f"All pairs with a miss: {verdict_text(result.verdicts)}.",
        f"All pairs of the cells near the boundary: {verdict_text(result.boundary_verdicts)}.",
        f"Cells near the boundary (median t_prefetch / t_attention from 0.5 to 2): {result.n_boundary_cells}.",
    ]
    drift = result.drift
    if drift.slope_frac is not None and drift.slope_error_frac is not None:
        moved = f"{percent(drift.slope_frac)} (standard error {plain_percent(drift.slope_error_frac)})"
        lines.append(f"Drift of the machine's speed from the first run to the last: {moved}.")
    steals = [run.steal_frac for cell in result.cells for run in cell.runs if run.steal_frac is not None]
    if steals:
        shares = f"median {plain_percent(median(steals))}, at most {plain_percent(max(steals))}"
        lines.append(f"Processor time that the host gave to others during a run: {shares}.")
    if drift.reprobe:
        changes = ", ".join(f"{key} x {number(ratio)}" for key, ratio in drift.reprobe.items())
        lines.append(f"Probed after the last run over before the first: {changes}.")
    return lines


def verdict_text(verdicts: Verdicts) -> str:
    """Agreement, balanced accuracy and the baseline."""
    if not verdicts.n_pairs:
        return "no pair"
    return (
        f"balanced accuracy {plain_percent(verdicts.balanced_frac)}, agreement "
        f"{plain_percent(verdicts.agreement_frac)} (majority class alone {plain_percent(verdicts.majority_frac)}) "
        f"of {verdicts.n_pairs:,} (token, layer) pairs"
    )


def summary_table(result: ValidationResult) -> TextTable:
    """The groups of cells, as they are and the quiet ones alone."""
    columns = (
        "cells",
        "n",
        "median |error|",
        "90 %",
        "mean error",
        "in interval",
        "noise",
        "naive median",
        "naive 90 %",
    )
    rows = [_summary_row(group) for group in result.groups]
    note = f"Classes: {result.rules['classes']}. Quiet: {result.rules['quiet']}. Naive: {result.rules['naive']}."
    return TextTable("Error of decode tokens/s", columns, rows, note=note)


def _summary_row(group: GroupSummary) -> tuple[str, ...]:
    name = f"{group.group}, quiet" if group.quiet else group.group
    figures = (
        plain_percent(group.median_abs_error_frac),
        plain_percent(group.p90_abs_error_frac),
        percent(group.mean_error_frac),
        plain_percent(group.interval_coverage_frac),
        plain_percent(group.median_noise_frac),
        plain_percent(group.naive_median_abs_error_frac),
        plain_percent(group.naive_p90_abs_error_frac),
    )
    return (name, str(group.n_cells), *figures)


def cells_table(result: ValidationResult) -> TextTable:
    """Every cell: conditions, predicted, measured, error, noise and what is most off."""
    columns = (
        "cell", "RAM cap", "storage", "prefetch", "context", "class", "predicted (80 %)", "measured", "error", "noise",
        "hidden p / m", "counts", "most off, ms a token",
    )  # fmt: skip
    rows = [_cell_row(cell) for cell in result.cells]
    note = "Decode tokens/s, * outside of the interval; hidden: of the pairs with a miss, predicted / measured."
    return TextTable("Cells", columns, rows, 6, note, frozenset({columns[-1]}))


def _cell_row(cell: CellComparison) -> tuple[str, ...]:
    return (
        cell.cell,
        *condition_texts(cell.conditions),
        cell.cell_class,
        f"{number(cell.predicted.value)} ({span(cell.predicted)})" + ("" if cell.in_interval else " *"),
        number(cell.measured_tokens_per_s),
        percent(cell.error_frac),
        plain_percent(cell.noise_frac),
        _hidden(cell.verdicts),
        counts_text(cell),
        f"{cell.worst_op} {1e3 * cell.ops[cell.worst_op].difference:+.3g}",
    )


def condition_texts(conditions: Conditions) -> tuple[str, str, str, str]:
    """RAM cap, storage limit, prefetch and context."""
    cap, limit = conditions.ram_cap_bytes, conditions.storage_limit_bytes_per_s
    return (
        "none" if cap is None else format_bytes(cap),
        "no limit" if limit is None else format_rate(limit),
        conditions.prefetch,
        str(conditions.context),
    )


def counts_text(cell: CellComparison) -> str:
    """Whether the decisions are the same."""
    return "equal" if cell.counts_equal and cell.bytes_equal else "DIFFERENT"


def worst_table(result: ValidationResult) -> TextTable:
    """The cells with the largest errors, and what they come from."""
    worst = sorted(result.cells, key=lambda cell: -abs(cell.error_frac))[:N_WORST]
    rows = [(cell.cell, percent(cell.error_frac), plain_percent(cell.noise_frac), cell.reason) for cell in worst]
    note = "Signed: predicted less measured. The operations of a token add up to its time."
    return TextTable("Worst cells, and the operation that is most off", ("cell", "error", "noise", "reason"), rows, 1,
                     note, frozenset({"reason"}))  # fmt: skip


def ops_table(result: ValidationResult) -> TextTable:
    """By class: mean signed error of each operation as a share of the token's measured time."""
    ops = list(dict.fromkeys(op for cell in result.cells for op in cell.ops))
    classes = list(dict.fromkeys(cell.cell_class for cell in result.cells))
    rows = []
    for name in classes:
        cells = [cell for cell in result.cells if cell.cell_class == name]
        rows.append((name, str(len(cells)), *(percent(_op_share(cells, op)) for op in ops)))
    note = "Mean over cells of (predicted - measured) seconds of the operation / measured seconds of the token."
    return TextTable("Where the error comes from", ("class", "n", *ops), rows, note=note)


def _op_share(cells: Sequence[CellComparison], op: str) -> float:
    shares = [
        cell.ops[op].difference / sum(pair.measured for pair in cell.ops.values()) if op in cell.ops else 0.0
        for cell in cells
    ]
    return sum(shares) / len(shares)


def left_out_table(result: ValidationResult) -> TextTable:
    """Leave one condition out: we use nothing of the grid, the laws are fitted on the cells without the value."""
    columns = ("left out", "n", "fitted on", "ours", "law: miss rate", "law: bytes", "law: read time")
    rows = [_left_out_row(row) for row in result.left_out]
    note = f"Median / 90th percentile of |error|. Ours: {result.rules['prediction']}. Laws: {result.rules['laws']}."
    return TextTable("Leave one condition out", columns, rows, note=note)


def _left_out_row(row: LeftOut) -> tuple[str, ...]:
    laws = (row.ours, row.law_miss_rate, row.law_bytes, row.law_read_s)
    texts = (NOTHING if law is None else f"{plain_percent(law[0])} / {plain_percent(law[1])}" for law in laws)
    return (f"{row.condition}: {row.value}", str(row.n_cells), str(row.n_fitted), *texts)


def prefill_table(result: ValidationResult) -> TextTable:
    """Prompts: seconds to the first logits."""
    columns = ("cell", "prompt", "predicted (80 %)", "measured", "error", "noise")
    rows = [
        (
            row.cell,
            str(row.n_prompt),
            f"{format_seconds(row.predicted.value)} ({format_seconds(row.predicted.low)} to "
            f"{format_seconds(row.predicted.high)})" + ("" if row.in_interval else " *"),
            format_seconds(row.measured_s),
            percent(row.error_frac),
            plain_percent(row.noise_frac),
        )
        for row in result.prefill
    ]
    return TextTable(
        "Prefill: prompt to first logits", columns, rows, note="prompt: tokens; * outside of the interval."
    )


def percent(fraction: float | None) -> str:
    """'+3.1 %'."""
    return NOTHING if fraction is None else f"{100 * fraction:+.1f} %"


def plain_percent(fraction: float | None) -> str:
    """'3.1 %'."""
    return NOTHING if fraction is None else f"{100 * fraction:.1f} %"


def _hidden(verdicts: Verdicts) -> str:
    n = verdicts.n_pairs
    if not n:
        return NOTHING
    predicted, measured = verdicts.hidden_hidden + verdicts.waits_hidden, verdicts.hidden_hidden + verdicts.hidden_waits
    return f"{100 * predicted / n:.0f} / {100 * measured / n:.0f} %"


def _cells_where(result: ValidationResult, name: str) -> str:
    wrong = [cell.cell for cell in result.cells if not getattr(cell, name)]
    return f"{len(wrong)} cells ({', '.join(wrong[:3])}{', ...' if len(wrong) > 3 else ''})"
