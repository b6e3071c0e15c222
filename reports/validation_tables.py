"""A validation as tables of text: the same ones for the terminal, Markdown and HTML."""

from collections.abc import Sequence
from statistics import median

from moeplan.quantity import format_bytes, format_rate, format_seconds
from reports.validation_text import NOTHING, TITLES, TextTable, percent, plain_percent
from reports.validation_verdicts import balanced_text, verdict_findings
from reports.wording import number, span
from simulator.validation.cell_result import CellComparison, Conditions, Verdicts
from simulator.validation.result import GroupSummary, HeldOutRow, LeftOut, ValidationResult, View

N_WORST = 10  # cells whose reasons are told


def headline(result: ValidationResult) -> str:
    """The errors in one line."""
    told = "; ".join(f"{TITLES[name]} within {_two_errors(view)}" for name, view in result.views.items())
    return f"{len(result.cells)} cells, decode tokens/s: {told} (median, 90th percentile)"


def _two_errors(view: View) -> str:
    every = view.group("all", quiet=False)
    return f"{plain_percent(every.median_abs_error_frac)}, {plain_percent(every.p90_abs_error_frac)}"


def findings(result: ValidationResult) -> list[str]:
    """Decisions, coverage, verdicts, drift and load, a sentence each."""
    hits = "equal" if result.counts_equal else f"DIFFERENT in {_cells_where(result, 'counts_equal')}"
    n_bytes = "equal" if result.bytes_equal else f"DIFFERENT in {_cells_where(result, 'bytes_equal')}"
    lines = [f"Hits and misses: {hits}; bytes: {n_bytes} (over {sum(len(c.runs) for c in result.cells)} runs)."]
    for name, view in result.views.items():
        every = view.group("all", quiet=False)
        lines.append(
            f"80 % interval, {TITLES[name]}: {plain_percent(every.interval_coverage_frac)} of the measured values lie "
            f"inside, {plain_percent(every.coverage_with_noise_frac)} with drift and the runs' own noise."
        )
    return [*lines, *verdict_findings(result), *_machine_findings(result)]


def _machine_findings(result: ValidationResult) -> list[str]:
    lines, drift = [], result.drift
    if drift.spots:
        moved = ", ".join(f"{name} {plain_percent(sigma)}" for name, sigma in drift.spots.items())
        lines.append(f"Spot checks went from the probe by (standard deviation over the grid): {moved}.")
    if drift.slope_frac is not None and drift.slope_error_frac is not None:
        changed = f"{percent(drift.slope_frac)} (standard error {plain_percent(drift.slope_error_frac)})"
        lines.append(f"Drift of the machine's speed from the first run to the last: {changed}.")
    steals = [run.steal_frac for cell in result.cells for run in cell.runs if run.steal_frac is not None]
    if steals:
        shares = f"median {plain_percent(median(steals))}, at most {plain_percent(max(steals))}"
        lines.append(f"Processor time that the host gave to others during a run: {shares}.")
    if drift.reprobe:
        changes = ", ".join(f"{key} x {number(ratio)}" for key, ratio in drift.reprobe.items())
        lines.append(f"Probed after the last run over before the first: {changes}.")
    return lines


def summary_table(result: ValidationResult) -> TextTable:
    """The groups of cells under each prediction, as they are and the quiet ones alone."""
    columns = (
        "cells", "predicted", "n", "median |error|", "90 %", "single runs", "mean error", "in interval",
        "with drift, noise", "noise", "own shape out", "naive median", "naive 90 %",
    )  # fmt: skip
    rows = [_summary_row(group, name) for name, view in result.views.items() for group in view.groups]
    note = (
        f"Forecast: {result.rules['forecast']}. At state: {result.rules['at_state']}. Classes: "
        f"{result.rules['classes']}. Error: {result.rules['error']} (median / 90 % of |error|). "
        f"Quiet: {result.rules['quiet']}; noise: {result.rules['noise']}. With drift, "
        f"noise: {result.rules['with_drift']}, the {result.rules['run_noise']}. Own shape out: median |error| with "
        f"{result.rules['without_own_shape']}. Naive: {result.rules['naive']}."
    )
    return TextTable("Error of decode tokens/s", columns, rows, left=2, note=note)


def _summary_row(group: GroupSummary, predicted: str) -> tuple[str, ...]:
    name = f"{group.group}, quiet" if group.quiet else group.group
    figures = (
        plain_percent(group.median_abs_error_frac),
        plain_percent(group.p90_abs_error_frac),
        f"{plain_percent(group.run_median_abs_error_frac)} / {plain_percent(group.run_p90_abs_error_frac)}",
        percent(group.mean_error_frac),
        plain_percent(group.interval_coverage_frac),
        plain_percent(group.coverage_with_noise_frac),
        plain_percent(group.median_noise_frac),
        plain_percent(group.held_out_median_abs_error_frac),
        plain_percent(group.naive_median_abs_error_frac),
        plain_percent(group.naive_p90_abs_error_frac),
    )
    return (name, predicted, str(group.n_cells), *figures)


def cells_table(result: ValidationResult) -> TextTable:
    """Every cell: conditions, measured, both predictions, errors, noise and what is most off."""
    columns = (
        "cell", "RAM cap", "storage", "prefetch", "context", "class", "forecast (80 %)", "measured", "error", "noise",
        "at state (80 %)", "error at state", "errors of its runs", "own shape out", "hidden p / m", "verdicts",
        "counts", "most off, ms a token",
    )  # fmt: skip
    rows = [_cell_row(cell, result.cell_at_state(cell.cell)) for cell in result.cells]
    note = (
        "Decode tokens/s, * outside of the interval; noise ~: of a cell that ran once, the standard error within the "
        "run; errors of its runs: lowest and highest, which may cancel in the cell's; own shape out: error without the "
        "kernel rows of the model's own sizes; hidden: of the pairs with a miss, predicted / measured; verdicts: "
        "balanced accuracy on clear pairs; most off: signed over the runs, and where that cancels its size in a run."
    )
    return TextTable("Cells", columns, rows, 6, note, frozenset({columns[-1]}))


def _cell_row(cell: CellComparison, at_state: CellComparison | None) -> tuple[str, ...]:
    sharpest = at_state or cell
    return (
        cell.cell,
        *condition_texts(cell.conditions),
        cell.cell_class,
        _predicted(cell),
        number(cell.measured_tokens_per_s),
        percent(cell.error_frac),
        noise_text(cell),
        NOTHING if at_state is None else _predicted(at_state),
        NOTHING if at_state is None else percent(at_state.error_frac),
        _run_errors(sharpest),
        percent(sharpest.held_out_error_frac),
        _hidden(sharpest.verdicts),
        balanced_text(sharpest.clear_verdicts),
        counts_text(cell),
        _most_off(sharpest),
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
    """The cells with the largest errors of the sharpest prediction, and what they come from."""
    worst = sorted(result.sharpest.cells, key=lambda cell: -abs(cell.error_frac))[:N_WORST]
    forecasts = {cell.cell: cell.error_frac for cell in result.cells}
    rows = [
        (cell.cell, percent(cell.error_frac), percent(forecasts[cell.cell]), noise_text(cell), cell.reason)
        for cell in worst
    ]
    note = (
        f"Of the prediction {TITLES[_sharpest_name(result)]}. Signed: predicted less measured. The operations of a "
        "token add up to its time."
    )
    columns = ("cell", "error", "forecast", "noise", "reason")
    return TextTable("Worst cells, and the operation that is most off", columns, rows, 1, note, frozenset({"reason"}))


def _sharpest_name(result: ValidationResult) -> str:
    return next(name for name, view in result.views.items() if view is result.sharpest)


def ops_table(result: ValidationResult) -> TextTable:
    """By prediction and class, of each operation as a share of the token's measured time: mean error and mean size."""
    ops = list(dict.fromkeys(op for cell in result.cells for op in cell.ops))
    rows = []
    for view_name, view in result.views.items():
        for name in dict.fromkeys(cell.cell_class for cell in view.cells):
            cells = [cell for cell in view.cells if cell.cell_class == name]
            shares = (f"{percent(_op_share(cells, op))} / {plain_percent(_op_size(cells, op))}" for op in ops)
            rows.append((name, view_name, str(len(cells)), *shares))
    note = (
        "Mean over cells of predicted - measured seconds of the operation / measured seconds of the token; behind the "
        f"stroke of its size: {result.rules['off']}."
    )
    return TextTable("Where the error comes from", ("class", "predicted", "n", *ops), rows, left=2, note=note)


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
    """By prediction and model: errors with and without the model's own shape, and the ops that kept its rows."""
    columns = ("model", "predicted", "n", "median |error|", "own shape out", "kept its rows: no shape on each side")
    rows = [_held_out_row(row, name) for name, view in result.views.items() for row in view.held_out]
    note = f"Own shape out: {result.rules['without_own_shape']}."
    if not any(
        row.held_out_median_abs_error_frac is not None for view in result.views.values() for row in view.held_out
    ):
        rows = []
    return TextTable("Without the model's own shape", columns, rows, 2, note, frozenset({columns[-1]}))


def _held_out_row(row: HeldOutRow, predicted: str) -> tuple[str, ...]:
    out, kept = row.held_out_median_abs_error_frac, ", ".join(row.kept) or "none"
    return (
        row.model,
        predicted,
        str(row.n_cells),
        plain_percent(row.median_abs_error_frac),
        "cannot be" if out is None else plain_percent(out),
        NOTHING if out is None else kept,
    )


def left_out_table(result: ValidationResult) -> TextTable:
    """Leave one condition out: we use nothing of the grid, the laws are fitted on the cells without the value."""
    columns = ("left out", "n", "fitted on", "forecast", "at state", "law: miss rate", "law: bytes", "law: read time")
    rows = [_left_out_row(row) for row in result.left_out]
    note = f"Median / 90th percentile of |error|. Ours: {result.rules['prediction']}. Laws: {result.rules['laws']}."
    return TextTable("Leave one condition out", columns, rows, note=note)


def _left_out_row(row: LeftOut) -> tuple[str, ...]:
    laws = (row.ours, row.ours_at_state, row.law_miss_rate, row.law_bytes, row.law_read_s)
    texts = (NOTHING if law is None else f"{plain_percent(law[0])} / {plain_percent(law[1])}" for law in laws)
    return (f"{row.condition}: {row.value}", str(row.n_cells), str(row.n_fitted), *texts)


def prefill_table(result: ValidationResult) -> TextTable:
    """Prompts: seconds to the first logits."""
    columns = ("cell", "prompt", "predicted (80 %)", "measured", "error", "error at state", "noise")
    at_state = {} if result.at_state is None else {row.cell: row.error_frac for row in result.at_state.prefill}
    rows = [
        (
            row.cell,
            str(row.n_prompt),
            f"{format_seconds(row.predicted.value)} ({format_seconds(row.predicted.low)} to "
            f"{format_seconds(row.predicted.high)})" + ("" if row.in_interval else " *"),
            format_seconds(row.measured_s),
            percent(row.error_frac),
            percent(at_state.get(row.cell)),
            plain_percent(row.noise_frac),
        )
        for row in result.forecast.prefill
    ]
    note = "prompt: tokens; predicted: the forecast; * outside of the interval."
    return TextTable("Prefill: prompt to first logits", columns, rows, note=note)


def _hidden(verdicts: Verdicts) -> str:
    n = verdicts.n_pairs
    if not n:
        return NOTHING
    predicted, measured = verdicts.hidden_hidden + verdicts.waits_hidden, verdicts.hidden_hidden + verdicts.hidden_waits
    return f"{100 * predicted / n:.0f} / {100 * measured / n:.0f} %"


def _cells_where(result: ValidationResult, name: str) -> str:
    wrong = [cell.cell for cell in result.cells if not getattr(cell, name)]
    return f"{len(wrong)} cells ({', '.join(wrong[:3])}{', ...' if len(wrong) > 3 else ''})"
