"""A sweep on a terminal: the answer, what each input changes, matrices or a list, and what a reader must not miss."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports import sweep_gathered, sweep_wording
from reports.console_text import plain, print_lines, print_things, text_width
from reports.grid import Grid, as_grids, reaches
from reports.sweep_findings import Split, is_beyond, map_inputs, split
from reports.sweep_inputs import Input, values
from reports.wording import BOUND_NAME, goal, number
from simulator.result import SweepRow

MAX_MATRICES = 6
MAX_LISTED = 24
MAX_VALUES = 24  # down or across a matrix
LABEL_COLUMNS, CELL_COLUMNS = 12, 11  # of a matrix: the first column and each other one
TONE = {"yes": "bold green", "likely": "bold yellow", "streams": "bold"}
BOUND_BY = "bound by"
SAME_IN_ALL = ("hit rate", BOUND_BY)  # columns of a list that are told once where they are the same in all lines
SHORT_PRINT = ("start", "context", "routing")  # the page has all


def render_sweep(
    rows: Sequence[SweepRow],
    console: Console,
    small_print: dict[str, str] | None = None,
    target_tokens_per_s: float | None = None,
) -> None:
    """Print a sweep: the fastest and all its inputs, what each input changes, the speeds, reasons and warnings."""
    sweep, conditions = split(rows), small_print or {}
    tone = TONE.get(sweep_wording.sweep_tone(sweep, target_tokens_per_s), "bold red")
    print_lines(console, sweep_wording.sweep_question(sweep, conditions))
    print_things(console, Text(f"\n{sweep_wording.sweep_headline(sweep, target_tokens_per_s)}", style=tone))
    print_lines(console, *sweep_wording.sweep_reasons(sweep, target_tokens_per_s))
    _effects(sweep, console)
    _speeds(sweep, console, target_tokens_per_s)
    _marked(console, "\nWhat cannot run", sweep_gathered.cannot(sweep))
    _marked(console, "\nBefore you rely on this", sweep_gathered.sweep_warnings(sweep))
    told = [f"{key}: {conditions[key]}" for key in SHORT_PRINT if key in conditions]
    if told:
        print_things(console, Text(""))
    print_lines(console, *told, style="dim")


def _effects(sweep: Split, console: Console) -> None:
    if not sweep.inputs or not sweep.real:
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("\nWhat makes a difference", "\ntried", "fastest over\nslowest", "\nbest"):
        table.add_column(name, overflow="fold")
    for row in sweep_wording.effect_rows(sweep):
        table.add_row(*(Text(plain(text)) for text in (row.name, row.tried, row.ratio, row.best)))
    print_things(console, Text(""), table)


def _speeds(sweep: Split, console: Console, target_tokens_per_s: float | None) -> None:
    """Matrices over two numbers where these vary, else a list."""
    if not sweep.runs:
        return
    over = map_inputs(sweep)
    if over is None:
        table = _side_by_side(sweep, text_width(console), target_tokens_per_s)
        if table is None:
            _list(sweep, console, target_tokens_per_s)
        else:
            print_things(console, Text("\ntokens/s", style="bold"), table)
            print_lines(console, _legend(sweep, (), target_tokens_per_s))
        return
    grids = as_grids(sweep.told, *over)
    for grid in grids[:MAX_MATRICES]:
        print_things(console, Text(plain(f"\ntokens/s{', ' if grid.others else ''}{grid.others}"), style="bold"))
        _matrix(grid, console, target_tokens_per_s)
    if len(grids) > MAX_MATRICES:
        print_lines(console, f"and {len(grids) - MAX_MATRICES} more of these; the table on disk has all rows")
    print_lines(console, _legend(sweep, grids, target_tokens_per_s))


def _legend(sweep: Split, grids: Sequence[Grid], target_tokens_per_s: float | None) -> str:
    parts = ["* all in RAM"] if any(row.verdict == "resident" for row in sweep.runs) else []
    parts += ["x cannot run"] if sweep.blocked else []
    if any(max(len(grid.row_values), len(grid.column_values)) > MAX_VALUES for grid in grids):
        parts.append(f"{MAX_VALUES} values of an input are shown")
    parts += ["? more RAM than the device has"] if sweep.beyond else []
    parts += [f"+ reaches {goal(target_tokens_per_s)}"] if target_tokens_per_s is not None else []
    return "   ".join([*parts, "80 % intervals: see the report"])


def _matrix(grid: Grid, console: Console, target_tokens_per_s: float | None) -> None:
    per_block = max(1, (text_width(console) - LABEL_COLUMNS) // CELL_COLUMNS)
    lines, shown = (_spread(len(found)) for found in (grid.row_values, grid.column_values))
    for start in range(0, len(shown), per_block):
        columns = shown[start : start + per_block]
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column(_corner(grid.up, grid.across), justify="right")
        for x in columns:
            table.add_column(grid.across.text(grid.column_values[x]), justify="right")
        for y in reversed(lines):
            cells = (_cell(grid.cells.get((y, x)), target_tokens_per_s) for x in columns)
            table.add_row(grid.up.text(grid.row_values[y]), *cells)
        print_things(console, table)


def _spread(n: int) -> list[int]:
    """All of 0 to n - 1, or so many spread over them, both ends among them."""
    return list(range(n)) if n <= MAX_VALUES else [round(i * (n - 1) / (MAX_VALUES - 1)) for i in range(MAX_VALUES)]


def _corner(up: Input, across: Input) -> str:
    return f"{up.name} \\ {across.name}" if len(up.name) + len(across.name) < LABEL_COLUMNS else up.name


def _cell(row: SweepRow | None, target_tokens_per_s: float | None) -> str:
    if row is None:
        return ""
    if row.verdict == "cannot_run":
        return "x "
    return f"{_speed(row, target_tokens_per_s)}{'*' if row.verdict == 'resident' else ' '}"


def _speed(row: SweepRow, target_tokens_per_s: float | None) -> str:
    """The number and its marks: whether it reaches the target, whether it is a what-if."""
    is_good = target_tokens_per_s is not None and not row.is_upper_bound and reaches(row, target_tokens_per_s)
    return f"{number(row.tokens_per_s)}{'+' if is_good else ''}{'?' if is_beyond(row) else ''}"


def _side_by_side(sweep: Split, width: int, target_tokens_per_s: float | None) -> Table | None:
    """One number down, the values of the other inputs across; None where no number varies or they are too many."""
    numbers = [each for each in sweep.inputs if each.is_number]
    words = [each for each in sweep.inputs if not each.is_number]
    names = list(dict.fromkeys(", ".join(each.value_text(row) for each in words) for row in sweep.told))
    if not numbers or not words or LABEL_COLUMNS + sum(max(8, len(name)) + 2 for name in names) > width:
        return None
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in (numbers[0].name, *names):
        table.add_column(Text(plain(name)), justify="right")
    rows = {
        (numbers[0].of(row), ", ".join(each.value_text(row) for each in words)): row for row in sweep.told
    }  # fmt: skip
    for value in values(sweep.told, numbers[0]):
        cells = (_cell(rows.get((value, name)), target_tokens_per_s) for name in names)
        table.add_row(numbers[0].text(value), *cells)
    return table


def _list(sweep: Split, console: Console, target_tokens_per_s: float | None) -> None:
    """One line a scenario, the fastest first where no number varies; what is the same in all is told once below."""
    rows = list(sweep.told)
    if not any(each.is_number for each in sweep.inputs):
        rows.sort(key=lambda row: -row.tokens_per_s)
    outputs = [_outputs(row, target_tokens_per_s) for row in rows]
    same = {name: outputs[0][name] for name in SAME_IN_ALL if len({each[name] for each in outputs}) == 1}
    shown = [name for name in outputs[0] if name not in same or (len(rows) == 1 and same[name])]
    table = Table(box=None, padding=(0, 2, 0, 0))
    for each in sweep.inputs:
        table.add_column(each.name, justify="right" if each.is_number else "left", overflow="fold")
    for name in shown:
        table.add_column(name, justify="left" if name == BOUND_BY else "right", overflow="fold")
    for row, texts_of in list(zip(rows, outputs, strict=True))[:MAX_LISTED]:
        inputs = [Text(plain(each.value_text(row))) for each in sweep.inputs]
        table.add_row(*inputs, *(texts_of[name] for name in shown))
    print_things(console, Text(""), table)
    if len(rows) > MAX_LISTED:
        print_lines(console, f"and {len(rows) - MAX_LISTED} more; the table on disk has all rows")
    told = ", ".join(f"{name} {text}" for name, text in same.items() if text and name not in shown)
    marks = [f"in all: {told}"] if told else []
    marks += [f"+ reaches {goal(target_tokens_per_s)}"] if target_tokens_per_s is not None else []
    marks += ["? more RAM than the device has"] if sweep.beyond else []
    print_lines(console, "   ".join(marks))


def _outputs(row: SweepRow, target_tokens_per_s: float | None) -> dict[str, str]:
    """The columns of a list, name to text."""
    if row.verdict == "cannot_run":
        return {"tokens/s": "cannot run", "80 % interval": "", "hit rate": "", BOUND_BY: ""}
    interval = f"{number(row.tokens_per_s_low)} to {number(row.tokens_per_s_high)}"
    hits = "" if row.model and not row.top_k else f"{100 * row.hit_rate:.1f} %"
    bound = BOUND_NAME.get(row.bound_by, row.bound_by)
    speed = _speed(row, target_tokens_per_s)
    return {"tokens/s": speed, "80 % interval": interval, "hit rate": hits, BOUND_BY: bound}


def _marked(console: Console, title: str, texts: Sequence[str]) -> None:
    """Each on lines of its own below a title, its further lines moved in."""
    if not texts:
        return
    print_things(console, Text(title, style="bold"))
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=1)
    table.add_column()
    for text in texts:
        table.add_row("!", Text(plain(text)))
    print_things(console, table)
