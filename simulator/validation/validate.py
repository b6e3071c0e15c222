"""validate(grid) -> ValidationResult: every run of a measured grid beside its prediction, and the figures of all."""

from collections.abc import Callable, Mapping, Sequence

from hardware_profiles.schema import HardwareProfile
from moeplan.errors import InputError
from simulator.expert_layout import expert_layout
from simulator.interval import N_SAMPLES
from simulator.model.spec import ModelSpec
from simulator.validation.baselines import leave_one_out
from simulator.validation.cell_result import CellComparison, RunComparison
from simulator.validation.compare import compare
from simulator.validation.drift import drift
from simulator.validation.grid_cells import MeasuredGrid, MeasuredRun
from simulator.validation.group_rows import boundary_rows, held_out_rows
from simulator.validation.held_out import without_shape
from simulator.validation.machine_state import check_names, drift_of, grid_drift
from simulator.validation.predict import held_out_speed, predict
from simulator.validation.provenance import machine_of, mixed_conditions, order_of_events, order_warnings
from simulator.validation.result import ValidationResult
from simulator.validation.rules import rules
from simulator.validation.summaries import summaries, trends
from simulator.validation.tables import cell_comparison, n_boundary_cells, prefill_rows, reads_beside

OnRun = Callable[[object], None]
Compared = tuple[MeasuredRun, RunComparison]


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
    spots = grid_drift([run.cell.spots for run in grid.runs if run.cell.spots is not None], grid.profile)
    by_cell: dict[str, list[Compared]] = {}
    specs: dict[tuple[str, str], ModelSpec] = {}
    for run in grid.runs:
        key = (run.cell.model, run.cell.model_path)
        if key not in specs:
            specs[key] = run.spec(grid.folder)
        compared = _compared(run, specs[key], grid.profile, spots, n_samples)
        by_cell.setdefault(run.cell.cell, []).append((run, compared))
        on_run(run)
    cells = tuple(_cell(name, runs) for name, runs in sorted(by_cell.items()))
    return ValidationResult(
        cells=cells,
        groups=summaries(cells),
        trends=trends(cells),
        boundary=boundary_rows([cell for cell in cells if reads_beside(cell)]),
        held_out=held_out_rows(cells),
        left_out=leave_one_out(cells),
        prefill=prefill_rows(cells),
        n_boundary_cells=n_boundary_cells(cells),
        drift=drift(cells, grid.profile, grid.profile_after, spots),
        rules=rules(order_of_events(grid)),
        provenance={**(provenance or {}), **machine_of(grid)},
        warnings=(*grid.warnings, *order_warnings(grid), *mixed_conditions(grid), *_few_runs(cells), *_no_spots(grid)),
    )


def _compared(
    run: MeasuredRun, spec: ModelSpec, profile: HardwareProfile, spots: Mapping[str, float], n_samples: int
) -> RunComparison:
    """A run beside its prediction, and beside that without the model's own shape."""
    request_bytes = expert_layout(spec, run.condition("layout")).request_bytes
    names = check_names(request_bytes, run.cell.threads)
    prediction, others = predict(run, spec, profile, n_samples, drift_of(spots, names)), without_shape(profile, spec)
    if others is None:
        return compare(run, prediction)
    return compare(run, prediction, held_out_speed(run, spec, others.profile, prediction), others.kept)


def _cell(name: str, runs: Sequence[Compared]) -> CellComparison:
    first, *others = (run for run, _ in runs)
    for run in others:
        if run.cell.conditions() != first.cell.conditions():
            where = str(run.folder / "cell.json")
            raise InputError(where, f"must have the conditions of {first.folder.name}", "others", "rename the cell")
    return cell_comparison(name, first.cell.conditions(), [compared for _, compared in runs])


def _few_runs(cells: tuple[CellComparison, ...]) -> list[str]:
    single = [cell.cell for cell in cells if len(cell.runs) == 1]
    return [f"{len(single)} of {len(cells)} cells ran once, so their noise is not known"] if single else []


def _no_spots(grid: MeasuredGrid) -> list[str]:
    n = sum(run.cell.spots is None for run in grid.runs)
    return [f"{n} of {len(grid.runs)} runs have no spot checks, so the interval with drift knows less"] if n else []
