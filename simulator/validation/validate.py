"""validate(grid) -> ValidationResult: every run of a measured grid beside its prediction, and the figures of all."""

from collections.abc import Callable

from moeplan.errors import InputError
from simulator.model.spec import ModelSpec
from simulator.simulate import N_SAMPLES
from simulator.validation.baselines import leave_one_out
from simulator.validation.cell_result import CellComparison, RunComparison
from simulator.validation.compare import compare
from simulator.validation.drift import drift
from simulator.validation.grid_cells import MeasuredGrid, MeasuredRun
from simulator.validation.predict import predict
from simulator.validation.result import ValidationResult
from simulator.validation.tables import (
    RULES,
    cell_comparison,
    is_boundary,
    n_boundary_cells,
    prefill_rows,
    summaries,
    total_verdicts,
)

OnRun = Callable[[object], None]


def validate(
    grid: MeasuredGrid,
    *,
    provenance: dict[str, str] | None = None,
    n_samples: int = N_SAMPLES,
    on_run: OnRun = lambda run: None,
) -> ValidationResult:
    """
    Predict and compare every run of a grid; on_run is called after each.

    provenance: command line and the like, to which machine and date of the measurement are added.  Raises InputError.
    """
    by_cell: dict[str, list[tuple[MeasuredRun, RunComparison]]] = {}
    specs: dict[tuple[str, str], ModelSpec] = {}
    for run in grid.runs:
        key = (run.cell.model, run.cell.model_path)
        if key not in specs:
            specs[key] = run.spec(grid.folder)
        compared = compare(run, predict(run, specs[key], grid.profile, n_samples))
        by_cell.setdefault(run.cell.cell, []).append((run, compared))
        on_run(run)
    cells = tuple(_cell(name, runs) for name, runs in sorted(by_cell.items()))
    beside = [cell for cell in cells if cell.conditions.prefetch != "none"]  # on demand nothing is ever hidden
    return ValidationResult(
        cells=cells,
        groups=summaries(cells),
        left_out=leave_one_out(cells),
        prefill=prefill_rows(cells),
        verdicts=total_verdicts(cell.verdicts for cell in beside),
        clear_verdicts=total_verdicts(cell.clear_verdicts for cell in beside),
        boundary_verdicts=total_verdicts(cell.verdicts for cell in beside if is_boundary(cell)),
        n_boundary_cells=n_boundary_cells(cells),
        drift=drift(cells, grid.profile, grid.profile_after),
        rules=RULES,
        provenance={**(provenance or {}), **_machine(grid)},
        warnings=(*grid.warnings, *_few_runs(cells)),
    )


def _cell(name: str, runs: list[tuple[MeasuredRun, RunComparison]]) -> CellComparison:
    first, *others = (run for run, _ in runs)
    for run in others:
        if run.cell.conditions() != first.cell.conditions():
            where = str(run.folder / "cell.json")
            raise InputError(where, f"must have the conditions of {first.folder.name}", "others", "rename the cell")
    return cell_comparison(name, first.cell.conditions(), [compared for _, compared in runs])


def _machine(grid: MeasuredGrid) -> dict[str, str]:
    """The machine and the time, as the runs and the profile tell them."""
    conditions = grid.runs[0].result.conditions
    names = ("cpu", "cores", "system", "python", "numpy", "kernels", "file_system", "reads")
    times = sorted(run.cell.started_at for run in grid.runs)
    return {
        "profile": grid.profile.title,
        **{name: conditions[name] for name in names if name in conditions},
        "measured_from": times[0],
        "measured_to": times[-1],
    }


def _few_runs(cells: tuple[CellComparison, ...]) -> list[str]:
    single = [cell.cell for cell in cells if len(cell.runs) == 1]
    return [f"{len(single)} of {len(cells)} cells ran once, so their noise is not known"] if single else []
