"""A design for a device on a terminal: the decision, every shape, the small print."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from moeplan.quantity import format_params
from reports import design_answer, design_wording, wording
from reports.console_text import plain, print_lines, print_things
from simulator.plan_result import Design, DesignResult

SHORT_PRINT = ("model", "sizes", "ram_cap", "storage", "context", "routing", "interval")
TONE = {"yes": "bold green", "likely": "bold yellow", "no": "bold red", "cannot_run": "bold red"}


def render_design(result: DesignResult, console: Console) -> None:
    """Print a design: the decision line, every shape, the small print."""
    print_things(console, Text(plain(design_answer.design_question(result))))
    style = TONE[design_answer.design_tone(result)]
    print_things(console, Text(f"\n{design_answer.design_headline(result)}", style=style))
    print_lines(console, *design_answer.design_reasons(result))
    print_things(console, Text(""), _table(result))
    print_lines(console, *design_answer.not_simulated(result))
    print_lines(console, design_wording.terminal_caption(result), style="dim")
    if doubts := design_wording.storage_doubts(result):
        print_lines(console, doubts)
    if any(design.is_recorded for design in result.designs):
        told = "* routing of the given trace (of its best experts, where top-k is smaller); the others' is made up"
        print_lines(console, told)
    for warning in result.warnings:
        print_things(console, Text(f"! {plain(warning)}", style="yellow"))
    print_things(console, Text(""))
    for key in SHORT_PRINT:
        if key in result.small_print:
            print_lines(console, f"{key.replace('_', ' ')}: {result.small_print[key]}", style="dim")


def _table(result: DesignResult) -> Table:
    """
    Every design, on lines of at most 100 columns.

    N and A stand there where they are not fixed, below the shape where neither is; times, shares and storage where a
    design reads.
    """
    free = [name for name, is_fixed in (("N", result.params_fixed), ("A", result.active_fixed)) if not is_fixed]
    columns = free if len(free) == 1 else []
    has_reads = any(design.hidden_frac is not None for design in result.designs)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    shape = f"shape\n  {', '.join(free)}" if len(free) > 1 else "\nshape"
    names = [shape, "one\nexpert", *(f"\n{name}" for name in columns), "t_atten-\ntion"]
    names += ["t_pre-\nfetch", "\nholds", "hidden, %\n(low end)", "from GB/s\n(safely)"] if has_reads else []
    for index, name in enumerate([*names, "tokens/s\n(80 % interval)"]):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    for design in result.designs:
        start = _sizes(design, free, columns)
        row = design_wording.design_row(design, result.holds_frac)
        reading = _reading(design, row) if has_reads else []
        speed = f"{row['speed']} ({row['span']})" if design.tokens_per_s is not None else row["holds"]
        table.add_row(*start, row["attention"], *reading, speed)
    return table


def _sizes(design: Design, free: list[str], columns: list[str]) -> list[str]:
    """The shape, the bytes of an expert, and N and A where they are not fixed."""
    sizes = {"N": format_params(design.n_params), "A": format_params(design.n_active_params)}
    shape = design_wording.shape(design) + ("*" if design.is_recorded else "")
    if len(free) > len(columns):
        shape += f"\n  {', '.join(sizes[name] for name in free)}"
    return [shape, wording.size(design.expert_bytes), *(sizes[name] for name in columns)]


def _reading(design: Design, row: dict[str, str]) -> list[str]:
    """What a design's reads take, whether they are hidden, and the storage that they ask for."""
    if design.tokens_per_s is None:
        return ["", "", "", ""]
    if design.hidden_frac is None:
        return ["", "", row["holds"], ""]
    hidden = _pair(_percent(design.hidden_frac), _percent(design.hidden_low_frac))
    storage = _pair(
        _giga(design.holds_from_bytes_per_s, design.holds_from_doubt),
        _giga(design.holds_safely_from_bytes_per_s, design.holds_safely_from_doubt),
    )
    return [row["prefetch"], row["holds"], hidden, storage]


def _pair(value: str, cautious: str) -> str:
    return f"{value} ({cautious})"


def _percent(fraction: float | None) -> str:
    """A share that is neither none nor all never reads as 0 or 100."""
    if fraction is None:
        return "-"
    return "<1" if 0 < fraction < 0.01 else ">99" if 0.99 < fraction < 1 else f"{100 * fraction:.0f}"


def _giga(bytes_per_s: float | None, doubt: str) -> str:
    if bytes_per_s is None:
        return "none"
    return wording.number(bytes_per_s / 1e9) + (design_wording.DOUBTED if doubt else "")
