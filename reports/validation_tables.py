"""A validation as tables of text: the same ones for the terminal, Markdown and HTML."""

from collections.abc import Sequence

from moeplan.quantity import format_seconds
from reports.validation_findings import check_text
from reports.validation_text import NOTHING, TextTable, high_percent, percent, plain_percent, two_errors
from reports.validation_verdicts import HIDDEN, hidden_text
from reports.wording import number, span
from simulator.validation.cell_result import CellComparison
from simulator.validation.result import GroupSummary, HeldOutRow, LeftOut, ValidationResult

N_WORST = 10  # cells whose reasons are told
HELD_OUT = "without the model's own kernel rows"


def summary_table(result: ValidationResult) -> TextTable:
    """The groups of cells, as they are and the quiet ones alone."""
    columns = (
        "cells", "n", "median |error|", "90th percentile", "mean error", "single runs, median / 90th",
        "in interval", "half-width", "with drift, noise", "noise", "naive formula",
    )  # fmt: skip
    rows = [_summary_row(group) for group in result.groups]
    note = "Quiet: cells whose own runs differ by less than 5 %. Naive formula: its median |error|."
    return TextTable("Error of decode tokens/s", columns, rows, note=note)


def _summary_row(group: GroupSummary) -> tuple[str, ...]:
    single = (group.run_median_abs_error_frac, group.run_p90_abs_error_frac)
    return (
        f"{group.group}, quiet" if group.quiet else group.group,
        str(group.n_cells),
        plain_percent(group.median_abs_error_frac),
        high_percent(group.high_abs_error_frac, group.n_cells),
        percent(group.mean_error_frac),
        " / ".join(map(plain_percent, single)),
        plain_percent(group.interval_coverage_frac),
        plain_percent(group.half_width_frac),
        plain_percent(group.coverage_with_noise_frac),
        plain_percent(group.median_noise_frac),
        plain_percent(group.naive_median_abs_error_frac),
    )


def trend_table(result: ValidationResult) -> TextTable:
    """Each model's cells by threads and by measured miss rate: a mean error that runs with either is a trend."""
    columns = ("cells", "n", "median |error|", "90th percentile", "mean error", "in the 80 % interval")
    rows = [
        (
            group.group,
            str(group.n_cells),
            plain_percent(group.median_abs_error_frac),
            high_percent(group.high_abs_error_frac, group.n_cells),
            percent(group.mean_error_frac),
            plain_percent(group.interval_coverage_frac),
        )
        for group in result.trends
    ]
    return TextTable("By threads and miss rate", columns, rows)


def cells_table(result: ValidationResult) -> TextTable:
    """Every cell: predicted, measured, errors, noise and what is most off."""
    columns = (
        "cell", "class", "predicted (80 %)", "measured", "error", "noise", "errors of its runs", HIDDEN,
        "most off, ms a token",
    )  # fmt: skip
    note = (
        "A name: model, c and the context or p and the length of the prompt, RAM cap, storage limit, prefetch, t and "
        "the threads. * outside of the interval. Noise ~: of a cell that ran once, the standard error within the run. "
        "Most off: signed over the runs, and where that cancels its size in a run."
    )
    return TextTable("Cells", columns, [_cell_row(cell) for cell in result.cells], 2, note, frozenset({columns[-1]}))


def _cell_row(cell: CellComparison) -> tuple[str, ...]:
    return (
        cell.cell,
        cell.cell_class,
        _predicted(cell),
        number(cell.measured_tokens_per_s),
        percent(cell.error_frac),
        noise_text(cell),
        _run_errors(cell),
        NOTHING if cell.conditions.prefetch == "none" else hidden_text(cell.verdicts),
        _most_off(cell),
    )


def _run_errors(cell: CellComparison) -> str:
    errors = cell.run_errors
    return f"{percent(min(errors))} to {percent(max(errors))}" if len(errors) > 1 else NOTHING


def _most_off(cell: CellComparison) -> str:
    """The worst op with its signed mean, and what is off in a single run where that is more."""
    signed, size = cell.ops[cell.worst_op].difference, cell.off_s[cell.worst_op]
    beside = f", by run {1e3 * size:.3g}" if size > 1.001 * abs(signed) else ""
    return f"{cell.worst_op} {1e3 * signed:+.3g}{beside}"


def _predicted(cell: CellComparison) -> str:
    return f"{number(cell.predicted.value)} ({span(cell.predicted)})" + ("" if cell.in_interval else " *")


def noise_text(cell: CellComparison) -> str:
    """The spread of the runs, of a single run its own standard error."""
    return f"~{plain_percent(cell.run_noise_frac)}" if cell.noise_frac is None else plain_percent(cell.noise_frac)


def worst_table(result: ValidationResult) -> TextTable:
    """The cells with the largest errors, and what they come from."""
    worst = sorted(result.cells, key=lambda cell: -abs(cell.error_frac))[:N_WORST]
    rows = [(cell.cell, percent(cell.error_frac), noise_text(cell), cell.reason) for cell in worst]
    note = "Signed: predicted less measured. The operations of a token add up to its time."
    columns = ("cell", "error", "noise", "reason")
    return TextTable("Worst cells, and the operation that is most off", columns, rows, 1, note, frozenset({"reason"}))


def ops_table(result: ValidationResult) -> TextTable:
    """By class, of each operation as a share of the token's measured time: mean error and mean size."""
    ops = list(dict.fromkeys(op for cell in result.cells for op in cell.ops))
    rows = []
    for name in dict.fromkeys(cell.cell_class for cell in result.cells):
        cells = [cell for cell in result.cells if cell.cell_class == name]
        shares = (f"{percent(_op_share(cells, op))} / {plain_percent(_op_size(cells, op))}" for op in ops)
        rows.append((name, str(len(cells)), *shares))
    note = "Means over cells, as shares of the token's measured time: signed / size."
    return TextTable("Where the error comes from", ("class", "n", *ops), rows, note=note)


def _op_share(cells: Sequence[CellComparison], op: str) -> float:
    shares = [
        cell.ops[op].difference / sum(pair.measured for pair in cell.ops.values()) if op in cell.ops else 0.0
        for cell in cells
    ]
    return sum(shares) / len(shares)


def _op_size(cells: Sequence[CellComparison], op: str) -> float:
    shares = [cell.off_s.get(op, 0.0) / sum(pair.measured for pair in cell.ops.values()) for cell in cells]
    return sum(shares) / len(shares)


def held_out_table(result: ValidationResult) -> TextTable:
    """By model: errors with and without the model's own kernel rows, and the ops that kept them."""
    columns = ("model", "n", "median |error|", HELD_OUT, "kept them: no shape on each side")
    known = any(row.held_out_median_abs_error_frac is not None for row in result.held_out)
    rows = [_held_out_row(row) for row in result.held_out] if known else []
    return TextTable("Without a model's own kernel rows", columns, rows, 1, words=frozenset({columns[-1]}))


def _held_out_row(row: HeldOutRow) -> tuple[str, ...]:
    out, kept = row.held_out_median_abs_error_frac, ", ".join(row.kept) or "none"
    return (
        row.model,
        str(row.n_cells),
        plain_percent(row.median_abs_error_frac),
        "cannot be" if out is None else plain_percent(out),
        NOTHING if out is None else kept,
    )


def left_out_table(result: ValidationResult) -> TextTable:
    """Leave one condition out: we use nothing of the grid, the laws are fitted on the cells without the value."""
    columns = ("left out", "n", "fitted on", "prediction", "law: miss rate", "law: read time")
    rows = [_left_out_row(row) for row in result.left_out]
    note = "Median / 90th percentile of |error|; the laws are fitted on the other cells, the prediction on none."
    return TextTable("Leave one condition out", columns, rows, note=note)


def _left_out_row(row: LeftOut) -> tuple[str, ...]:
    texts = (two_errors(errors, row.n_cells) for errors in (row.ours, row.law_miss_rate, row.law_read_s))
    return (f"{row.condition}: {row.value}", str(row.n_cells), str(row.n_fitted), *texts)


def prefill_table(result: ValidationResult) -> TextTable:
    """Prompts: seconds to the first logits."""
    columns = ("cell", "tokens", "predicted (80 %)", "measured", "error", "noise")
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
    note = "Error: above zero the prediction is too slow. * outside of the interval."
    return TextTable("Prefill: prompt to first logits", columns, rows, note=note)


def machine_table(result: ValidationResult) -> TextTable:
    """Spot checks and the second probe against the first."""
    first, again = (result.provenance.get(name, "no time told") for name in ("probed_at", "probed_again_at"))
    spots, reprobe = result.drift.spots, result.drift.reprobe
    rows = [(check_text(name), f"{plain_percent(sigma)} from the probe's") for name, sigma in spots.items()]
    rows += [(f"{key}, probed again", f"x {number(ratio)}") for key, ratio in reprobe.items()]
    note = (
        "Spot checks: standard deviation over all takes, about the probe's time. Probed again "
        f"({again}): that profile's figure over the first one's ({first})."
    )
    return TextTable("How the machine changed", ("what", "change"), rows, note=note)
