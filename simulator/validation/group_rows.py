"""Groups of compared cells: how hard their verdicts are, and what they are without the model's own shape."""

from collections.abc import Sequence
from statistics import median

from simulator.validation.cell_result import CellComparison
from simulator.validation.hindsight import hindsight_of
from simulator.validation.result import BoundaryRow, HeldOutRow
from simulator.validation.tables import by_class, is_boundary, total_verdicts

NEAR_BOUNDARY = "near the boundary"  # name of a group


def boundary_rows(cells: Sequence[CellComparison]) -> tuple[BoundaryRow, ...]:
    """All cells given, each class of them and those near the boundary; groups without a pair have no row."""
    groups = by_class(cells) | {NEAR_BOUNDARY: [cell for cell in cells if is_boundary(cell)]}
    rows = (_boundary_row(name, group) for name, group in groups.items())
    return tuple(row for row in rows if row.verdicts.n_pairs)


def _boundary_row(name: str, cells: Sequence[CellComparison]) -> BoundaryRow:
    runs = [run for cell in cells for run in cell.runs if run.boundary.distance is not None]
    distances = [run.boundary.distance for run in runs if run.boundary.distance is not None]
    alike = total_verdicts(run.alike_verdicts for run in runs)
    clear = total_verdicts(run.clear_verdicts for run in runs)
    return BoundaryRow(
        group=name,
        n_cells=len(cells),
        noise_frac=median(run.boundary.noise for run in runs) if runs else None,
        distance_frac=median(distances) if distances else None,
        within_noise_frac=1 - clear.n_pairs / alike.n_pairs if alike.n_pairs else None,
        hindsight=hindsight_of((run.boundary for run in runs), clear_only=False),
        clear_hindsight=hindsight_of((run.boundary for run in runs), clear_only=True),
        verdicts=total_verdicts(run.verdicts for run in runs),
        alike_verdicts=alike,
        clear_verdicts=clear,
    )


def held_out_rows(cells: Sequence[CellComparison]) -> tuple[HeldOutRow, ...]:
    """A row a model, in the order of the cells."""
    models = dict.fromkeys(cell.conditions.model for cell in cells)
    return tuple(_held_out_row(name, [cell for cell in cells if cell.conditions.model == name]) for name in models)


def _held_out_row(model: str, cells: Sequence[CellComparison]) -> HeldOutRow:
    known = [abs(cell.held_out_error_frac) for cell in cells if cell.held_out_error_frac is not None]
    return HeldOutRow(
        model=model,
        n_cells=len(cells),
        kept=tuple(dict.fromkeys(op for cell in cells for op in cell.held_out_kept)),
        median_abs_error_frac=median(abs(cell.error_frac) for cell in cells),
        held_out_median_abs_error_frac=median(known) if known else None,
    )
