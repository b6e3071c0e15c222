"""Results on a terminal: at most 100 columns, and nothing that only colour says."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from moeplan.quantity import format_seconds
from reports import wording
from reports.grid import Grid, as_grids, bytes_read_per_token
from simulator.result import Change, Interval, MemoryResult, PlanResult, Result, SweepRow

MAX_WIDTH = 100
BAR_WIDTH = 56
BAR_MARKS = {"dense part": "█#", "experts": "▓=", "KV": "▒+", "read buffers": "░~", "activations": "·."}
TONE = {"yes": "bold green", "resident": "bold green", "likely": "bold yellow", "streams": "bold cyan"}
SHORT_PRINT = ("start", "context", "routing")  # a plan's reader asks for these first; the page has all


def render_plan(plan: PlanResult, console: Console) -> None:
    """Print a plan: decision, memory, overlap, the three cheapest changes that reach the target, warnings."""
    result = plan.result
    _print(console, Text(plain(wording.question(result, plan.target_tokens_per_s))))
    target = f"target {wording.goal(plan.target_tokens_per_s)}"
    _answer(console, wording.plan_headline(plan), plan.decision, result.tokens_per_s, target)
    _lines(console, wording.plan_reason(plan), wording.bound_sentence(result))
    _body(console, result)
    _changes(console, plan)
    _end(console, result)


def render_result(result: Result, console: Console) -> None:
    """Print one simulated scenario: verdict, memory, overlap, warnings."""
    _print(console, Text(plain(wording.question(result))))
    _answer(console, wording.headline(result), result.verdict, result.tokens_per_s)
    _lines(console, wording.bound_sentence(result))
    _body(console, result)
    _end(console, result)


def render_sweep(rows: Sequence[SweepRow], console: Console) -> None:
    """Print a sweep: one matrix of tokens/s over RAM cap and storage speed per pair of policies."""
    _print(console, Text(wording.sweep_headline(rows), style="bold"))
    _lines(console, wording.sweep_reason(rows))
    for grid in as_grids(rows):
        policies = f"{grid.cache_policy} cache, {grid.prefetch_policy} prefetch"
        _print(console, Text(plain(f"\n{policies}{', ' if grid.others else ''}{grid.others}: tokens/s")))
        per_block = max(1, (_width(console) - 10) // 11)
        for start in range(0, len(grid.speeds_bytes_per_s), per_block):
            _print(console, _matrix(grid, range(len(grid.speeds_bytes_per_s))[start : start + per_block]))
    _print(console, Text("* all experts resident   x cannot run   blank: not run   80 % intervals: see the report"))


def plain(text: str) -> str:
    """The text without anything that a terminal would obey: control characters become '?'."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def _answer(console: Console, headline: str, tone: str, speed: Interval | None, *more: str) -> None:
    line = Text(f"\n{headline}", style=TONE.get(tone, "bold red"))
    if speed is not None:
        line.append(f": {wording.number(speed.value)} tokens/s", style="bold")
        detail = ", ".join((f"80 % interval {wording.span(speed)}", *more))
        line.append(f"  ({detail})", style="not bold default")
    _print(console, line)


def _body(console: Console, result: Result) -> None:
    """The arithmetic where it cannot run; else memory, overlap, cache and speed at the start."""
    if result.verdict == "cannot_run":
        _print(console, Text("\nThe arithmetic", style="bold"))
        _lines(console, *result.arithmetic.splitlines())
    _print(console, Text(""), _memory_table(result.memory))
    if result.verdict == "cannot_run":
        return
    _bars(console, result.memory)
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column()
    for name, text in _facts(result):
        facts.add_row(Text(name, style="bold"), Text(plain(text)))
    _print(console, Text(""), facts)


def _facts(result: Result) -> Iterable[tuple[str, str]]:
    if result.layers:
        yield "t_attention >= t_prefetch", wording.overlap_line(result)
    if wording.token_s(result) > 0:
        yield "a token's time", wording.time_finding(result)
    if result.cache is not None:
        cache = result.cache
        counts = f"{cache.hits:,} hits, {cache.misses:,} misses: {100 * cache.hit_rate:.1f} % hit"
        read = bytes_read_per_token(result)
        reads = "" if read is None else f"; {wording.size(read)} read per token"
        yield "expert cache", f"{cache.policy}, {cache.slots:,} experts; {counts}{reads}"
    if result.ttft_s is not None:
        low, high = format_seconds(result.ttft_s.low), format_seconds(result.ttft_s.high)
        first = result.first_decode_tokens_per_s
        then = "" if first is None else f"; the first 16 tokens at {wording.number(first)} tokens/s"
        prompt = f" for {result.n_prompt_tokens} prompt tokens, cache cold" if result.n_prompt_tokens else ""
        yield "first token after", f"{format_seconds(result.ttft_s.value)} ({low} to {high}){prompt}{then}"
    if result.energy_j_per_token is not None:
        yield "energy", f"{wording.number(result.energy_j_per_token)} J per token"


def _memory_table(memory: MemoryResult) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_footer=True)
    table.add_column("", footer="total")
    table.add_column("on storage", justify="right", footer=wording.size(memory.storage_bytes))
    cap = f"{wording.size(memory.resident_bytes)}  (RAM cap {wording.size(memory.ram_cap_bytes)})"
    table.add_column("resident in RAM", justify="left", footer=cap)
    for row in wording.memory_rows(memory):
        storage = "-" if row.storage_bytes is None else wording.size(row.storage_bytes)
        cached = "  (in the cache)" if row.name == "experts" else ""
        table.add_row(row.name, storage, wording.size(row.resident_bytes) + cached)
    return table


def _bars(console: Console, memory: MemoryResult) -> None:
    """Storage and resident as two bars on one scale; each part has its own mark."""
    ascii_only = console.options.ascii_only
    bar_width = max(10, min(BAR_WIDTH, _width(console) - 24))
    scale = bar_width / max(memory.storage_bytes, memory.resident_bytes, memory.ram_cap_bytes, 1)
    rows = wording.memory_rows(memory)
    marks = {row.name: BAR_MARKS[row.name][ascii_only] for row in rows if row.storage_bytes or row.resident_bytes}
    cap = round(memory.ram_cap_bytes * scale)
    storage = _bar([(marks[row.name], row.storage_bytes * scale) for row in rows if row.storage_bytes])
    resident = _bar([(marks[row.name], row.resident_bytes * scale) for row in rows if row.resident_bytes])
    resident = f"{resident[:cap].ljust(cap)}| RAM cap"
    legend = "  ".join(f"{mark} {name}" for name, mark in marks.items())
    _print(console, Text(f"\non storage  {storage}\nresident    {resident}\n            {legend}"))


def _bar(parts: list[tuple[str, float]]) -> str:
    """Marks in proportion, rounded so that the whole bar has the right length."""
    bar, end = "", 0.0
    for mark, width in parts:
        end += width
        bar += mark * (round(end) - len(bar))
    return bar


def _changes(console: Console, plan: PlanResult) -> None:
    """The three cheapest single changes that reach the target, or the best of those that do not."""
    good = [change for change in plan.changes if change.reaches][:3]
    target = wording.goal(plan.target_tokens_per_s)
    if good:
        _print(console, Text(f"\nWhat would reach {target} tokens/s, cheapest first", style="bold"))
        _print(console, _change_table(good))
    elif plan.changes:
        tried = sorted(plan.changes, key=lambda change: -(change.tokens_per_s.value if change.tokens_per_s else 0.0))
        _print(console, Text(f"\nNo single change reaches {target} tokens/s; the best", style="bold"))
        _print(console, _change_table(tried[:3]))


def _change_table(changes: list[Change]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for index, change in enumerate(changes, 1):
        speed = change.tokens_per_s
        result = "cannot run" if speed is None else f"{wording.number(speed.value)} ({wording.span(speed)})"
        ratio = f"x {wording.number(change.ratio)}" if change.ratio > 1 else ""
        step = Text(plain(f"{change.before} -> {change.after}"))
        what = Text(plain(change.what))
        if change.note:
            what.append(f"\n{plain(change.note)}", style="dim")
        table.add_row(str(index), what, step, ratio, result)
    return table


def _matrix(grid: Grid, columns: range) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("RAM cap", justify="right")
    for x in columns:
        table.add_column(wording.round_rate(grid.speeds_bytes_per_s[x]), justify="right")
    for y in reversed(range(len(grid.caps_bytes))):
        cells = (_cell(grid.cells.get((y, x))) for x in columns)
        table.add_row(wording.round_bytes(grid.caps_bytes[y]), *cells)
    return table


def _cell(row: SweepRow | None) -> str:
    if row is None:
        return ""
    if row.verdict == "cannot_run":
        return "x "
    return wording.number(row.tokens_per_s) + ("*" if row.verdict == "resident" else " ")


def _end(console: Console, result: Result) -> None:
    if result.warnings:
        _print(console, Text(""))
    for warning in result.warnings:
        _print(console, Text(f"! {plain(warning)}", style="yellow"))
    _print(console, Text(""))
    for key in SHORT_PRINT:
        if key in result.small_print:
            _print(console, Text(f"{key}: {plain(result.small_print[key])}", style="dim"))


def _width(console: Console) -> int:
    return min(console.width, MAX_WIDTH)


def _lines(console: Console, *texts: str) -> None:
    for text in texts:
        if text:
            _print(console, Text(plain(text)))


def _print(console: Console, *things: Text | Table) -> None:
    console.print(*things, sep="\n", width=_width(console), highlight=False, markup=False, emoji=False)
