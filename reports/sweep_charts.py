"""Which pictures a sweep gets beside its maps, and what each shows: the values of one input side by side."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reports.sweep_findings import NO_DIFFERENCE, Split, effect, gaps, has_speed_there, map_inputs
from reports.sweep_inputs import CACHE_POLICY, Input, key_of, matched, said_all, values
from reports.sweep_wording import in_cases
from reports.wording import number
from simulator.result import SweepRow

MAX_SERIES = 8  # lines that a reader tells apart
MAX_BARS = 24
BARS_UP_TO = 8  # values of one number that are drawn as bars; more are a line


@dataclass(frozen=True)
class Series:
    """A line: its name, whether it is a bound, and a row at each place across, None where there is none."""

    name: str
    is_bound: bool
    rows: tuple[SweepRow | None, ...]


@dataclass(frozen=True)
class Chart:
    """
    Speeds as lines over an input, or as bars where across is None.

    labels: of the places across, or of each bar; places: where these lie, the logarithm of the values where they have
    one, else 0, 1, ...
    """

    title: str
    note: str
    across: Input | None
    labels: tuple[str, ...]
    places: tuple[float, ...]
    series: tuple[Series, ...]


def charts(sweep: Split) -> list[Chart]:
    """All rows as bars or lines where one number varies at most; else a comparison for each input that is no number."""
    if not sweep.inputs or not sweep.runs:
        return []
    words = [each for each in sweep.inputs if not each.is_number]
    numbers = [each for each in sweep.inputs if each.is_number]
    over = map_inputs(sweep)
    if over is not None:
        return [chart for each in words if (chart := _comparison(sweep, each, over[0]))]
    if not numbers or (not words and len(values(sweep.told, numbers[0])) <= BARS_UP_TO):
        return [_bars(sweep)] if len(sweep.told) <= MAX_BARS else []
    n_lines = len({key_of(row, words) for row in sweep.told})
    if n_lines <= MAX_SERIES:
        return [_lines(_lines_title(sweep), "", sweep.told, words, numbers[0])]
    return [chart for each in words if (chart := _comparison(sweep, each, numbers[0]))]


def _bars(sweep: Split) -> Chart:
    rows = sweep.told
    if len(sweep.inputs) == 1 and sweep.inputs[0].is_number:
        order = {value: place for place, value in enumerate(values(rows, sweep.inputs[0]))}
        rows = tuple(sorted(rows, key=lambda row: order[sweep.inputs[0].of(row)]))
    elif len({row.tokens_per_s for row in rows}) > 1:
        rows = tuple(sorted(rows, key=lambda row: -row.tokens_per_s))
    labels = tuple(", ".join(each.value_text(row) for each in sweep.inputs) for row in rows)
    places = tuple(float(place) for place in range(len(rows)))
    return Chart(_lines_title(sweep), "", None, labels, places, (Series("", False, rows),))


def _lines_title(sweep: Split) -> str:
    """The range, and an input that makes no difference."""
    speeds = [row.tokens_per_s for row in sweep.best_kind]
    idle = [each.name for each in sweep.inputs if effect(sweep.real, sweep.inputs, each).is_nothing]
    none = f"; {idle[0]} makes no difference" if len(idle) == 1 else "; nothing makes a difference" if idle else ""
    if max(speeds) < min(speeds) * NO_DIFFERENCE:
        return f"{number(max(speeds))} tokens/s{' wherever it runs' if len(speeds) > 1 else ''}{none}"
    return f"{number(min(speeds))} to {number(max(speeds))} tokens/s{none}"


def _lines(title: str, note: str, rows: Sequence[SweepRow], words: Sequence[Input], across: Input) -> Chart:
    places = {value: place for place, value in enumerate(values(rows, across))}
    lines: dict[str, list[SweepRow | None]] = {}
    bounds = set()
    for row in rows:
        name = ", ".join(each.value_text(row) for each in words)
        lines.setdefault(name, [None] * len(places))[places[across.of(row)]] = row
        if row.is_upper_bound:
            bounds.add(name)
    series = tuple(Series(name, name in bounds, tuple(line)) for name, line in lines.items())
    labels = tuple(across.text(value) for value in places)
    at = tuple(math.log(value) if all(places) else float(place) for value, place in places.items())
    return Chart(title, note, across, labels, at, series)


def _comparison(sweep: Split, of: Input, over: Input) -> Chart | None:
    """The values of one input over another, where they differ most; None where no two of them run side by side."""
    others = [each for each in sweep.inputs if each not in (of, over)]
    slices: dict[tuple[object, ...], list[SweepRow]] = {}
    for row in sweep.told:
        slices.setdefault(key_of(row, others), []).append(row)
    spreads = [_spread(rows, (*others, of, over), of) for rows in slices.values()]
    if max(spreads) < 1:
        return None
    rows = list(slices.values())[spreads.index(max(spreads))]
    shown = _most_shown(rows, of)
    where = [f"Shown where its values differ most: {said_all(rows[0], others)}."] if others else []
    n_all = len(values(rows, of))
    where += [f"The fastest {MAX_SERIES} of {n_all} are drawn."] if n_all > MAX_SERIES else []
    return _lines(_comparison_title(sweep, of), " ".join(where), shown, [of], over)


def _spread(rows: Sequence[SweepRow], inputs: Sequence[Input], of: Input) -> float:
    """
    The largest ratio of speeds between rows that differ in one input alone; 0 where there are no two.

    Bounds count only beside cache policies.
    """
    runs = [row for row in rows if has_speed_there(row) and (of is CACHE_POLICY or not row.is_upper_bound)]
    groups = [[row.tokens_per_s for row in group] for group in matched(runs, inputs, of) if len(group) > 1]
    return max((max(speeds) / min(speeds) for speeds in groups), default=0.0)


def _most_shown(rows: Sequence[SweepRow], of: Input) -> list[SweepRow]:
    """The rows of the values whose best row is fastest."""
    best: dict[object, float] = {}
    for row in rows:
        best[of.of(row)] = max(best.get(of.of(row), 0.0), row.tokens_per_s)
    kept = set(sorted(best, key=lambda value: -best[value])[:MAX_SERIES])
    return [row for row in rows if of.of(row) in kept]


def _comparison_title(sweep: Split, of: Input) -> str:
    name, found = f"{of.name[0].upper()}{of.name[1:]}", effect(sweep.real, sweep.inputs, of)
    if found.best is None:
        widest = max(gaps(sweep), key=lambda gap: gap.ratio, default=None) if of is CACHE_POLICY else None
        if widest is None:
            return f"{name} side by side"
        if widest.ratio < NO_DIFFERENCE:
            return f"{name}: {widest.real.cache_policy} is as fast as the bound"
        return f"{name}: the bound is at most {widest.above} above {widest.real.cache_policy}"
    if found.is_nothing:
        return f"{name} makes no difference"
    where = "" if found.n_groups == 1 else f" {in_cases(found.n_best, found.n_groups)}"
    rank = "fastest or as fast" if found.least < NO_DIFFERENCE else "fastest"
    return f"{name}: {of.text(of.of(found.best))} is {rank}{where}, up to x {found.most:.3g} the slowest"
