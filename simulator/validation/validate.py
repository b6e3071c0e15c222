"""validate(grid) -> ValidationResult: every run of a measured grid beside its prediction, and the figures of all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hardware_profiles.schema import HardwareProfile
from moeplan.errors import InputError
from simulator.expert_layout import expert_layout
from simulator.model.spec import ModelSpec
from simulator.simulate import N_SAMPLES
from simulator.validation.baselines import leave_one_out
from simulator.validation.cell_result import CellComparison, RunComparison
from simulator.validation.compare import compare
from simulator.validation.drift import drift
from simulator.validation.grid_cells import MeasuredGrid, MeasuredRun
from simulator.validation.group_rows import boundary_rows, held_out_rows
from simulator.validation.held_out import without_shape
from simulator.validation.machine_state import (
    AS_PROBED,
    GridStates,
    MachineState,
    check_names,
    drift_of,
    grid_states,
)
from simulator.validation.predict import held_out_speed, predict
from simulator.validation.provenance import machine_of, mixed_conditions
from simulator.validation.result import ValidationResult, View
from simulator.validation.rules import RULES
from simulator.validation.tables import (
    cell_comparison,
    is_boundary,
    n_boundary_cells,
    prefill_rows,
    summaries,
    total_verdicts,
)

OnRun = Callable[[object], None]


@dataclass(frozen=True, eq=False)
class _Compared:
    """A run under both predictions; at_state: None where no spot checks tell the machine's state."""

    run: MeasuredRun
    forecast: RunComparison
    at_state: RunComparison | None


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
    checks = grid_states([run.cell.spots for run in grid.runs if run.cell.spots is not None], grid.profile)
    by_cell: dict[str, list[_Compared]] = {}
    specs: dict[tuple[str, str], ModelSpec] = {}
    for run in grid.runs:
        key = (run.cell.model, run.cell.model_path)
        if key not in specs:
            specs[key] = run.spec(grid.folder)
        by_cell.setdefault(run.cell.cell, []).append(_compared(run, specs[key], grid.profile, checks, n_samples))
        on_run(run)
    cells = tuple(_cell(name, runs) for name, runs in sorted(by_cell.items()))
    at_state = tuple(_cell_at_state(name, runs) for name, runs in sorted(by_cell.items()) if _has_state(runs))
    return ValidationResult(
        forecast=_view(cells),
        at_state=_view(at_state) if at_state else None,
        left_out=leave_one_out(cells, at_state),
        n_boundary_cells=n_boundary_cells(cells),
        drift=drift(cells, grid.profile, grid.profile_after, checks.drift),
        rules=RULES,
        provenance={**(provenance or {}), **machine_of(grid)},
        warnings=(
            *grid.warnings,
            *mixed_conditions(grid),
            *_few_runs(cells),
            *_no_state(cells, at_state),
            *_outliers(checks),
        ),
    )


def _compared(
    run: MeasuredRun, spec: ModelSpec, profile: HardwareProfile, checks: GridStates, n_samples: int
) -> _Compared:
    request_bytes = expert_layout(spec, run.condition("layout")).request_bytes
    names = check_names(request_bytes, run.cell.threads)
    forecast = _under(run, spec, profile, (AS_PROBED, drift_of(checks.drift, names)), n_samples)
    around = run.cell.spots
    state = None if around is None else checks.around(around, names)
    if state is None:
        return _Compared(run, forecast, None)
    return _Compared(run, forecast, _under(run, spec, profile, (state, AS_PROBED), n_samples))


def _under(
    run: MeasuredRun,
    spec: ModelSpec,
    profile: HardwareProfile,
    states: tuple[MachineState, MachineState],
    n_samples: int,
) -> RunComparison:
    """A run beside its prediction at a state with a drift, and beside that without the model's own shape."""
    state, drift_on_top = states
    prediction, others = predict(run, spec, profile, n_samples, state, drift_on_top), without_shape(profile, spec)
    if others is None:
        return compare(run, prediction)
    return compare(run, prediction, held_out_speed(run, spec, others.profile, state, prediction), others.kept)


def _view(cells: tuple[CellComparison, ...]) -> View:
    beside = [cell for cell in cells if cell.conditions.prefetch != "none"]  # on demand nothing is ever hidden
    return View(
        cells=cells,
        groups=summaries(cells),
        prefill=prefill_rows(cells),
        verdicts=total_verdicts(cell.verdicts for cell in beside),
        clear_verdicts=total_verdicts(cell.clear_verdicts for cell in beside),
        boundary_verdicts=total_verdicts(cell.verdicts for cell in beside if is_boundary(cell)),
        boundary=boundary_rows(beside),
        held_out=held_out_rows(cells),
    )


def _has_state(runs: Sequence[_Compared]) -> bool:
    return all(compared.at_state is not None for compared in runs)


def _cell_at_state(name: str, runs: Sequence[_Compared]) -> CellComparison:
    compared = [one.at_state for one in runs if one.at_state is not None]
    return cell_comparison(name, runs[0].run.cell.conditions(), compared)


def _outliers(checks: GridStates) -> list[str]:
    counts = {name: state.n_outliers for name, state in checks.states.items() if state.n_outliers}
    told = ", ".join(f"{name} {n}" for name, n in counts.items())
    return [f"of {len(checks.takes)} takes of each spot check these were left out as outliers: {told}"] if told else []


def _no_state(cells: Sequence[CellComparison], at_state: Sequence[CellComparison]) -> list[str]:
    n = len(cells) - len(at_state)
    return [f"{n} of {len(cells)} cells have no spot checks, so the machine's state is not known"] if n else []


def _cell(name: str, runs: Sequence[_Compared]) -> CellComparison:
    first, *others = (one.run for one in runs)
    for run in others:
        if run.cell.conditions() != first.cell.conditions():
            where = str(run.folder / "cell.json")
            raise InputError(where, f"must have the conditions of {first.folder.name}", "others", "rename the cell")
    return cell_comparison(name, first.cell.conditions(), [one.forecast for one in runs])


def _few_runs(cells: tuple[CellComparison, ...]) -> list[str]:
    single = [cell.cell for cell in cells if len(cell.runs) == 1]
    return [f"{len(single)} of {len(cells)} cells ran once, so their noise is not known"] if single else []
