"""What many scenarios of a sweep say alike, told once: why some cannot run or be asked, and the warnings."""

from collections.abc import Sequence

from moeplan.alike import alike, merged
from reports.sweep_findings import Split
from reports.sweep_inputs import INPUTS, scope, varied
from simulator.result import SweepRow


def rest_sentence(sweep: Split) -> str:
    """How many scenarios cannot run."""
    parts = [f"{len(sweep.blocked):,} cannot run"] if sweep.blocked else []
    parts += [f"{len(sweep.beyond):,} need more RAM than the device has"] if sweep.beyond else []
    return f"Of {len(sweep.rows):,} scenarios {joined(parts)}; the reasons stand below." if parts else ""


def refused_sentence(sweep: Split) -> str:
    """How many scenarios nobody can ask, which, and why."""
    failed = sweep.failed
    if not failed:
        return ""
    which, kinds = scope(failed, sweep.rows, INPUTS), list(alike(row.reason for row in failed).values())
    who = f"{of_all(len(failed), len(sweep.rows))} could not be asked{f' ({which})' if which else ''}"
    if len(kinds) > 1:
        return f"{who}, for {len(kinds)} reasons that stand below."
    return f"{who}: {merged([failed[place].reason for place in kinds[0]])}."


def cannot(sweep: Split) -> list[str]:
    """The reasons of the scenarios that cannot run or be asked, alike ones together, with how many and which."""
    found = []
    beyond = "cannot run on the device as bought"
    kinds = (
        (sweep.blocked, ("cannot run",) * 2, sweep.told, sweep.inputs),
        (
            sweep.beyond,
            (f"{beyond}, its speed is a what-if", f"{beyond}, their speeds are what-ifs"),
            sweep.told,
            sweep.inputs,
        ),
        (sweep.failed, ("cannot be asked",) * 2, sweep.rows, INPUTS),
    )
    for rows, (of_one, of_many), among, inputs in kinds:
        for places in alike(row.reason for row in rows).values():
            same = [rows[place] for place in places]
            which = scope(same, among, inputs)
            verb = of_one if len(same) == 1 else of_many
            who = f"{of_all(len(same), len(sweep.rows))} {verb}{f' ({which})' if which else ''}"
            found.append(f"{who}: {merged([row.reason for row in same]) or 'no reason was kept'}")
    return found


def sweep_warnings(sweep: Split) -> list[str]:
    """Every warning of the scenarios that run, once, with the scenarios that it concerns where these are not all."""
    among = (*sweep.real, *sweep.bounds) or sweep.beyond
    of_places = [kind for group in _by_place(among) for kind in _merged(_told(group))]
    told = [(text, row) for text, same in of_places for row in same]
    found = []
    for text, rows in _merged(told, sizes_alone=True):
        which = scope(rows, among, varied(among))
        count = f"{len(rows):,} of {len(among):,} scenarios"
        found.append(text if len(rows) == len(among) else f"{f'{which} ({count})' if which else count}: {text}")
    return found


def _told(rows: Sequence[SweepRow]) -> list[tuple[str, SweepRow]]:
    return [(text, row) for row in rows for text in row.warnings.splitlines()]


def _merged(told: Sequence[tuple[str, SweepRow]], *, sizes_alone: bool = False) -> list[tuple[str, list[SweepRow]]]:
    """Texts that are alike as one, with the rows of all."""
    kinds = alike((text for text, _ in told), sizes_alone=sizes_alone).values()
    return [(merged([told[place][0] for place in places]), [told[place][1] for place in places]) for places in kinds]


def _by_place(rows: Sequence[SweepRow]) -> list[list[SweepRow]]:
    """By model and device, whose names may hold numbers of their own."""
    groups: dict[tuple[str, str], list[SweepRow]] = {}
    for row in rows:
        groups.setdefault((row.model, row.device), []).append(row)
    return list(groups.values())


def of_all(n: int, n_all: int) -> str:
    """'3 of 12 scenarios', 'all 12 scenarios', 'the one scenario'."""
    if n == n_all:
        return f"all {n:,} scenarios" if n > 1 else "the one scenario"
    return f"{n:,} of {n_all:,} scenarios"


def joined(parts: Sequence[str]) -> str:
    """'a, b and c'."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))
