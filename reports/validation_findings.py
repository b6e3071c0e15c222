"""What a validation says in a headline and a few sentences: errors, intervals, verdicts, machine."""

import re
from collections.abc import Sequence
from statistics import median

from reports.validation_text import percent, plain_percent
from simulator.validation.cell_result import Verdicts
from simulator.validation.result import FEWEST_FOR_A_PERCENTILE, BoundaryRow, GroupSummary, ValidationResult

CHECK_SIZES = {"small": "20 KB", "large": "2 MB"}  # one expert of the models whose tokens the spot checks run


def headline(result: ValidationResult) -> str:
    """The errors in one line."""
    every = result.group("all")
    high = plain_percent(every.high_abs_error_frac)
    most = f"9 of 10 cells within {high}" if every.n_cells >= FEWEST_FOR_A_PERCENTILE else f"all within {high}"
    within = plain_percent(every.median_abs_error_frac)
    return f"{len(result.cells)} cells: decode speed predicted within {within} (median); {most}."


def findings(result: ValidationResult) -> list[str]:
    """Decisions, order of events, interval, verdicts and machine, a bullet each."""
    return [
        _consistency(result),
        f"Order: {result.rules['order']}.",
        _coverage(result),
        *verdict_findings(result),
        *_machine(result),
    ]


def _consistency(result: ValidationResult) -> str:
    n_runs = sum(len(cell.runs) for cell in result.cells)
    if result.counts_equal and result.bytes_equal:
        return (
            f"Consistency check: hits, misses and bytes are equal in all {n_runs} runs. Both sides run the same cache "
            "code, so this shows that the conditions are the same and says nothing of the times."
        )
    told = [
        f"{name} are DIFFERENT in {_cells_where(result, attribute)}"
        for name, attribute in (("hits and misses", "counts_equal"), ("bytes", "bytes_equal"))
        if not getattr(result, attribute)
    ]
    return f"Consistency check failed, so no error below means anything: {'; '.join(told)}, of {n_runs} runs."


def _cells_where(result: ValidationResult, name: str) -> str:
    wrong = [cell.cell for cell in result.cells if not getattr(cell, name)]
    return f"{_cells(len(wrong))} ({', '.join(wrong[:3])}{', ...' if len(wrong) > 3 else ''})"


def _cells(n: int) -> str:
    return f"{n} cell{'' if n == 1 else 's'}"


def _coverage(result: ValidationResult) -> str:
    every, *classes = [group for group in result.groups if not group.quiet and group.n_cells]
    told = ", ".join(f"{group.group} {_inside(group)}" for group in classes)
    return (
        f"80 % interval: {plain_percent(every.interval_coverage_frac)} of the measured values lie inside ({told}); "
        f"{plain_percent(every.coverage_with_noise_frac)} with drift and the runs' own noise."
    )


def _inside(group: GroupSummary) -> str:
    n = round((group.interval_coverage_frac or 0) * group.n_cells)
    return f"{n} of {group.n_cells} at a half-width of {plain_percent(group.half_width_frac)}"


def verdict_findings(result: ValidationResult) -> list[str]:
    """Agreement on clear pairs by class, each against always saying the commoner; and how many cells are near."""
    classes = {cell.cell_class for cell in result.cells}
    rows = [row for row in result.boundary if row.group in classes and row.clear_verdicts.n_pairs]
    near = f"Near the boundary: {_cells(result.n_boundary_cells)}."
    if not rows or result.verdicts is None:
        return [f"Are the reads hidden by attention? No clear pair. {near}"]
    told = "; ".join(f"{row.group} {against_majority(row.clear_verdicts)}" for row in rows)
    balanced = balanced_text(result.verdicts.clear_verdicts)
    clear = plain_percent(result.verdicts.clear_verdicts.n_pairs / result.verdicts.alike_verdicts.n_pairs)
    return [
        f"Are the reads hidden by attention? Right on clear pairs ({clear} of those with alike), and in brackets by "
        f"always saying the commoner verdict: {told}; balanced accuracy over all {balanced}. {_never(rows)}{near}"
    ]


def _never(rows: Sequence[BoundaryRow]) -> str:
    """The classes of which 'hidden' is never said, although some pairs were."""
    never = [
        f"{row.group} ({plain_percent(row.clear_verdicts.measured_hidden_frac)} were)"
        for row in rows
        if row.clear_verdicts.predicted_hidden_frac == 0 and row.clear_verdicts.measured_hidden_frac
    ]
    return f"Never said to be hidden: {', '.join(never)}. " if never else ""


def against_majority(verdicts: Verdicts) -> str:
    """'99.1 % of 1,204 (95.0 %)': agreement, and that of always saying the commoner."""
    agreement, majority = plain_percent(verdicts.agreement_frac), plain_percent(verdicts.majority_frac)
    return f"{agreement} of {verdicts.n_pairs:,} ({majority})"


def balanced_text(verdicts: Verdicts) -> str:
    """Balanced accuracy; where all pairs were measured alike there is none."""
    return "one class" if verdicts.has_one_class else plain_percent(verdicts.balanced_frac)


def _machine(result: ValidationResult) -> list[str]:
    parts, drift = [], result.drift
    if drift.slope_frac is not None and drift.slope_error_frac is not None:
        error = plain_percent(drift.slope_error_frac)
        parts.append(f"from the first run to the last its speed changed by {percent(drift.slope_frac)} ± {error}")
    if drift.spots:
        ends = (plain_percent(end(drift.spots.values())) for end in (min, max))
        parts.append(f"spot checks lay {' to '.join(ends)} from the probe's (standard deviation)")
    steals = [run.steal_frac for cell in result.cells for run in cell.runs if run.steal_frac is not None]
    if steals:
        shares = f"{plain_percent(median(steals))} (median) to {plain_percent(max(steals))}"
        parts.append(f"the host gave {shares} of a run's processor time to others")
    noise = result.group("all").median_noise_frac
    if noise is not None:
        parts.append(f"runs of one cell differ by {plain_percent(noise)} (median)")
    return [f"The machine: {'; '.join(parts)}."] if parts else []


def check_text(name: str) -> str:
    """What a spot check does, from its name: 'small_token_t1', 'burst_64KiB'."""
    token = re.fullmatch(r"(small|large)_token_t([0-9]+)", name)
    if token is not None:
        threads = f"{token[2]} thread{'' if token[2] == '1' else 's'}"
        return f"a decode token of a model with experts of {CHECK_SIZES[token[1]]}, on {threads} ({name})"
    burst = re.fullmatch(r"burst_([0-9]+)([KMG]iB)", name)
    return name if burst is None else f"a burst of reads of {burst[1]} {burst[2]} each ({name})"
