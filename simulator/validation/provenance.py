"""Where and with what a grid was measured, and whether profile and runs belong together."""

import re

from simulator.validation.grid_cells import MeasuredGrid

IN_NOTES = {  # where the notes of a probed profile tell them
    "code": r"kernels and forward pass ([0-9a-f]+)",
    "numpy": r"numpy ([0-9.]+)",
    "GOMP_SPINCOUNT": r"GOMP_SPINCOUNT=([0-9]+)",
}
CONDITIONS = ("cpu", "cores", "system", "python", "numpy", "kernels", "file_system", "reads")


def machine_of(grid: MeasuredGrid) -> dict[str, str]:
    """The machine, the code and the time, as the runs and the profile tell them."""
    conditions, first = grid.runs[0].result.conditions, grid.runs[0].cell
    times = sorted(run.cell.started_at for run in grid.runs)
    return {
        "profile": grid.profile.title,
        **{name: conditions[name] for name in CONDITIONS if name in conditions},
        **({"code": first.code} if first.code else {}),
        **({"GOMP_SPINCOUNT": first.spin_count} if first.spin_count else {}),
        "measured_from": times[0],
        "measured_to": times[-1],
    }


def mixed_conditions(grid: MeasuredGrid) -> list[str]:
    """
    A warning for each of code, numpy and GOMP_SPINCOUNT that runs and profile do not have in common: their figures are
    then not comparable.  What one of them does not tell is not compared.
    """
    told = {
        "code": [run.cell.code for run in grid.runs],
        "numpy": [run.result.conditions.get("numpy") for run in grid.runs],
        "GOMP_SPINCOUNT": [run.cell.spin_count for run in grid.runs],
    }
    warnings = []
    for name, values in told.items():
        found = sorted({value for value in values if value is not None})
        probed = re.search(IN_NOTES[name], grid.profile.notes)
        if len(found) > 1:
            warnings.append(f"NOT COMPARABLE: the runs differ in {name}: {', '.join(found)}; run them all again")
        elif found and probed is not None and probed[1] != found[0]:
            said = f"{name} is {probed[1]} in the profile and {found[0]} in the runs"
            warnings.append(f"NOT COMPARABLE: {said}; probe and run again")
    return warnings
