"""Where, when and with what a grid was measured, and whether profile and runs belong together."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from hardware_profiles.schema import HardwareProfile
from moeplan.quantity import format_bytes
from simulator.validation.grid_cells import MeasuredGrid

WHEN = r"^([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}) UTC;"
IN_NOTES = {  # where the notes of a probed profile tell them
    "code": r"kernels and forward pass ([0-9a-f]+)",
    "numpy": r"numpy ([0-9.]+)",
    "GOMP_SPINCOUNT": r"GOMP_SPINCOUNT=([0-9]+)",
    "cpu": WHEN + r" (.+?), [0-9]+ cores?, ",
    "cores": WHEN + r" .+?, ([0-9]+) cores?, ",
    "RAM": WHEN + r" .+?, [0-9]+ cores?, ([0-9.]+ [A-Za-z]+);",
    "system": WHEN + r" .+?, [0-9]+ cores?, [0-9.]+ [A-Za-z]+; (.+?), Python",
}
CONDITIONS = ("cpu", "cores", "system", "python", "numpy", "kernels", "file_system", "reads")
MINUTES = "%Y-%m-%d %H:%M"


def machine_of(grid: MeasuredGrid) -> dict[str, str]:
    """The machine, the code and the times, as the runs and the profile tell them."""
    conditions, first = grid.runs[0].result.conditions, grid.runs[0].cell
    probed = {"probed_at": probed_at(grid.profile), "probed_again_at": probed_at(grid.profile_after)}
    times = sorted(run.cell.started_at for run in grid.runs)
    return {
        "profile": grid.profile.title,
        **{name: conditions[name] for name in CONDITIONS if name in conditions},
        **({"code": first.code} if first.code else {}),
        **({"GOMP_SPINCOUNT": first.spin_count} if first.spin_count else {}),
        **{name: _minute(when) for name, when in probed.items() if when is not None},
        "measured_from": times[0],
        "measured_to": times[-1],
    }


def probed_at(profile: HardwareProfile | None) -> datetime | None:
    """When a probe began, to the minute, as the profile's notes tell it; None where they do not."""
    found = re.match(WHEN, profile.notes) if profile is not None else None
    return datetime.strptime(found[1], MINUTES).replace(tzinfo=UTC) if found is not None else None


def order_of_events(grid: MeasuredGrid) -> str:
    """When was probed and when was run, by the times that the files tell; those of probes are whole minutes."""
    before, after = probed_at(grid.profile), probed_at(grid.profile_after)
    first, last = _run_times(grid)
    if before is None:
        told = "the profile does not tell when it was probed"
    else:
        told = f"the profile was probed {_minute(before)}, {'before' if before <= first else 'AFTER'} the first run"
    told += f"; the runs began {_minute(first)} to {_minute(last)}"
    if after is None:
        return told
    side = "after" if after >= _to_the_minute(last) else "BEFORE"
    return f"{told}; it was probed again {_minute(after)}, {side} the last run began"


def order_warnings(grid: MeasuredGrid) -> list[str]:
    """A warning where a probe was not on its side of the runs."""
    before, after = probed_at(grid.profile), probed_at(grid.profile_after)
    first, last = _run_times(grid)
    warnings = []
    if before is not None and before > first:
        late = f"the profile was probed {_minute(before)}, after the first run began ({_minute(first)})"
        warnings.append(f"NOT PREDICTED BEFOREHAND: {late}")
    if after is not None and after < _to_the_minute(last):
        early = f"the second probe ({_minute(after)}) was before the last run began ({_minute(last)})"
        warnings.append(f"{early}, so it does not show what changed over all runs")
    return warnings


def mixed_conditions(grid: MeasuredGrid) -> list[str]:
    """
    A warning for each condition of machine and code that runs and profiles do not have in common: their figures are
    then not comparable.  What one of them does not tell is not compared.
    """
    by_run = [_told_by(run.result.conditions, run.cell.code, run.cell.spin_count) for run in grid.runs]
    profiles = {"profile": grid.profile, "second profile": grid.profile_after}
    notes = {where: profile.notes for where, profile in profiles.items() if profile is not None}
    warnings = []
    for name, pattern in IN_NOTES.items():
        found = sorted({told[name] for told in by_run if name in told})
        probed = {where: match.groups()[-1] for where, text in notes.items() if (match := re.search(pattern, text))}
        others = [(where, value) for where, value in probed.items() if found and value != found[0]]
        if len(found) > 1:
            warnings.append(f"NOT COMPARABLE: the runs differ in {name}: {', '.join(found)}; run them all again")
        elif others:
            where, value = others[0]
            said = f"{name} is {value} in the {where} and {found[0]} in the runs"
            warnings.append(f"NOT COMPARABLE: {said}; probe and run again")
    return warnings


def _told_by(conditions: Mapping[str, str], code: str | None, spin_count: str | None) -> dict[str, str]:
    """What a run tells of what the notes of a profile tell too."""
    ram = conditions.get("ram_bytes", "")
    told = {
        **{name: conditions.get(name) for name in ("cpu", "cores", "system", "numpy")},
        "RAM": format_bytes(int(ram)) if ram.isdecimal() else None,
        "code": code,
        "GOMP_SPINCOUNT": spin_count,
    }
    return {name: value for name, value in told.items() if value is not None}


def _run_times(grid: MeasuredGrid) -> tuple[datetime, datetime]:
    """When the first and the last run began."""
    times = sorted(_aware(run.cell.started_at) for run in grid.runs)
    return times[0], times[-1]


def _aware(text: str) -> datetime:
    when = datetime.fromisoformat(text)
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)


def _to_the_minute(when: datetime) -> datetime:
    return when.replace(second=0, microsecond=0)


def _minute(when: datetime) -> str:
    return when.strftime(f"{MINUTES} UTC")
