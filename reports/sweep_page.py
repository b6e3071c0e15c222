"""The page of a sweep: what varies, what is fastest, what each input changes, pictures, all numbers."""

from collections.abc import Sequence
from pathlib import Path

from reports import sweep_gathered, sweep_wording, wording
from reports.figure_style import as_data_uri
from reports.glossary import LAYER_WORDS, SWEEP_WORDS
from reports.grid import Grid, as_grids
from reports.heat_map import has_intervals, heat_map, is_large
from reports.html_environment import write_page
from reports.picture import Picture
from reports.sweep_charts import charts
from reports.sweep_figures import chart_figure
from reports.sweep_findings import NO_DIFFERENCE, Split, fastest, is_beyond, map_inputs, split
from simulator.result import SweepRow

MAX_MAPS = 24  # a picture takes a third of a second; more are no report
MAX_TABLE_ROWS = 2000
OPEN_ROWS = 60  # a longer table is folded


def write_sweep_report(
    rows: Sequence[SweepRow], path: Path, small_print: dict[str, str], target_tokens_per_s: float | None = None
) -> None:
    """Write the page of a sweep, scenarios that failed included. Raises InputError when path cannot be written."""
    sweep = split(rows)
    grids = _grids(sweep)
    page = {
        "title": sweep_wording.sweep_question(sweep, small_print),
        "headline": sweep_wording.sweep_headline(sweep, target_tokens_per_s),
        "tone": sweep_wording.sweep_tone(sweep, target_tokens_per_s),
        "reasons": sweep_wording.sweep_reasons(sweep, target_tokens_per_s),
        "warnings": sweep_gathered.sweep_warnings(sweep),
        "effects": sweep_wording.effect_rows(sweep),
        "cannot": sweep_gathered.cannot(sweep),
        "charts": _charts(sweep, target_tokens_per_s),
        "maps": [_map(sweep, grid, target_tokens_per_s) for grid in grids[:MAX_MAPS]],
        "n_maps": len(grids),
        "max_maps": MAX_MAPS,
        "inputs": sweep.inputs,
        "rows": sweep.told[:MAX_TABLE_ROWS],
        "n_rows": len(sweep.told),
        "is_open": len(sweep.told) <= OPEN_ROWS,
        "target": target_tokens_per_s,
        "small_print": small_print,
        "words": SWEEP_WORDS | LAYER_WORDS,
    }
    write_page("sweep.html.j2", path, **page)


def _grids(sweep: Split) -> list[Grid]:
    """The matrices that have two inputs to show; of too many that with the fastest row goes first."""
    over = map_inputs(sweep)
    if over is None or not sweep.runs:
        return []
    grids, best = [grid for grid in as_grids(sweep.told, *over) if len(grid.cells) > 1], fastest(sweep)
    if len(grids) > MAX_MAPS:
        grids.sort(key=lambda grid: best not in grid.rows)
    return grids


def _map(sweep: Split, grid: Grid, target_tokens_per_s: float | None) -> Picture:
    """Drawn where something differs; a map of one colour is its title alone."""
    title = sweep_wording.map_finding(grid)
    speeds = [row.tokens_per_s for row in grid.runs]
    if not speeds or (len(speeds) == len(grid.cells) and max(speeds) < min(speeds) * NO_DIFFERENCE):
        return Picture(title, "")
    is_bound = all(row.is_upper_bound for row in grid.runs)
    aim = None if is_bound else target_tokens_per_s
    top = max(row.tokens_per_s for row in sweep.runs)
    parts = ["Decode tokens/s; small: the 80 % interval." if has_intervals(grid) else "Decode tokens/s."]
    if is_large(grid) and len(grid.runs) < len(grid.cells):
        parts.append("Grey: cannot run.")
    if aim is not None and grid.reaching(aim):
        bold = "Inside" if is_large(grid) else "Bold, inside"
        parts.append(f"{bold} the thick line: the value reaches {wording.goal(aim)} tokens/s.")
    if is_bound:
        parts.append("A bound: told the future, no runtime reaches it.")
    if any(is_beyond(row) for row in grid.rows) and not is_large(grid):
        parts.append("?: more RAM than the device has.")
    best = fastest(sweep)
    cell = next((key for key, row in grid.cells.items() if row is best), None)
    if cell is not None:
        mark = "Marked" if is_large(grid) else "Framed"
        parts.append(f"{mark}: the fastest; of several as fast the one with the least RAM and storage speed.")
    return Picture(title, as_data_uri(heat_map(grid, aim, cell, top)), " ".join(parts))


def _charts(sweep: Split, target_tokens_per_s: float | None) -> list[Picture]:
    found = []
    for chart in charts(sweep):
        has_bound = any(row.is_upper_bound for series in chart.series for row in series.rows if row is not None)
        bound = f"{'Hatched' if chart.across is None else 'Dashed'}: a bound." if has_bound else ""
        note = " ".join(filter(None, (chart.note, bound)))
        found.append(Picture(chart.title, as_data_uri(chart_figure(chart, target_tokens_per_s)), note))
    return found
