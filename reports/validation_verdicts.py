"""The verdict t_attention >= t_prefetch in words and as a table: what was reached, and what could be."""

import math

from reports.validation_text import NOTHING, TITLES, TextTable, plain_percent
from simulator.validation.cell_result import Ceiling, Verdicts
from simulator.validation.result import BoundaryRow, ValidationResult, View


def verdict_findings(result: ValidationResult) -> list[str]:
    """What each prediction reached, what could be reached, and how many cells lie near the boundary."""
    lines = []
    for name, view in result.views.items():
        lines += [
            f"Verdict t_attention >= t_prefetch, {TITLES[name]}, clear pairs: {verdict_text(view.clear_verdicts)}; "
            f"{plain_percent(_clear_frac(view))} of those with a miss.",
            f"The same, all pairs with a miss: {verdict_text(view.verdicts)}.",
            f"The same, all pairs of the cells near the boundary: {verdict_text(view.boundary_verdicts)}.",
        ]
    for row in result.forecast.boundary[:1]:
        lines.append(
            "Ceiling, from the measured rows alone: who knew what like rows typically took in the same run, and not "
            f"the luck of each, would at best reach {_both(row.clear_ceiling)} on clear pairs, {_both(row.ceiling)} on "
            "all (balanced accuracy / agreement, each for itself)."
        )
    boundary = f"Cells near the boundary (median t_prefetch / t_attention from 0.5 to 2): {result.n_boundary_cells}."
    return [*lines, boundary]


def _clear_frac(view: View) -> float | None:
    return view.clear_verdicts.n_pairs / view.verdicts.n_pairs if view.verdicts.n_pairs else None


def verdict_text(verdicts: Verdicts) -> str:
    """Agreement, balanced accuracy and the baseline."""
    if not verdicts.n_pairs:
        return "no pair"
    return (
        f"balanced accuracy {balanced_text(verdicts)}, agreement "
        f"{plain_percent(verdicts.agreement_frac)} (majority class alone {plain_percent(verdicts.majority_frac)}) "
        f"of {verdicts.n_pairs:,} (token, layer) pairs"
    )


def balanced_text(verdicts: Verdicts) -> str:
    """Balanced accuracy; where all pairs were measured alike there is none."""
    return "one class" if verdicts.has_one_class else plain_percent(verdicts.balanced_frac)


def boundary_table(result: ValidationResult) -> TextTable:
    """By class of cells: how near the pairs are, how large the noise is, the ceiling, and what each prediction says."""
    views = list(result.views)
    columns = (
        "cells", "n", "pairs", "noise", "distance", "within noise", "ceiling", *views, "clear: ceiling",
        *(f"clear: {name}" for name in views),
    )  # fmt: skip
    rows = [_boundary_row([view.boundary[index] for view in result.views.values()]) for index in _common(result)]
    note = (
        "Pairs (token, layer) with a miss, in cells that read beside attention. Noise: one standard deviation of "
        "t_prefetch / t_attention among alike rows, distance: how far the two are from each other; both medians over "
        f"runs. Within noise: not clear, see the verdicts. Ceiling: {result.rules['ceiling']}. Balanced accuracy / "
        "agreement."
    )
    return TextTable("How near the verdicts are, and what could be reached", columns, rows, note=note)


def _common(result: ValidationResult) -> list[int]:
    """Rows of the forecast that every other prediction has too."""
    groups = [[row.group for row in view.boundary] for view in result.views.values()]
    return [
        index for index, name in enumerate(groups[0]) if all(other[index : index + 1] == [name] for other in groups)
    ]


def _boundary_row(views: list[BoundaryRow]) -> tuple[str, ...]:
    row = views[0]
    return (
        row.group,
        str(row.n_cells),
        f"{row.verdicts.n_pairs:,}",
        plain_percent(row.noise_frac),
        NOTHING if row.distance_frac is None else f"x {math.exp(row.distance_frac):.2f}",
        plain_percent(row.within_noise_frac),
        _both(row.ceiling),
        *(_both(view.verdicts) for view in views),
        _both(row.clear_ceiling),
        *(_both(view.clear_verdicts) for view in views),
    )


def _both(said: Verdicts | Ceiling) -> str:
    if not said.n_pairs:
        return NOTHING
    balanced = "one class" if said.balanced_frac is None else plain_percent(said.balanced_frac)
    return f"{balanced} / {plain_percent(said.agreement_frac)}"
