"""Results on a terminal: at most 100 columns, and nothing that only colour says."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from moeplan.quantity import format_seconds
from reports import plan_wording, wording
from reports.console_text import plain, print_lines, print_things, text_width
from reports.inverse_terminal import render_inverse
from reports.memory_wording import memory_rows, said_first
from simulator.plan_result import PlanResult
from simulator.result import Interval, MemoryResult, Result

BAR_WIDTH = 56
BAR_MARKS = {
    "dense part": "█#",
    "experts": "▓=",
    "mapped file": "▓=",
    "KV": "▒+",
    "read buffers": "░~",
    "activations": "·.",
}
TONE = {"yes": "bold green", "resident": "bold green", "likely": "bold yellow", "streams": "bold cyan"}
SHORT_PRINT = ("start", "context", "routing", "engine")  # a plan's reader asks for these first; the page has all


def render_plan(plan: PlanResult, console: Console) -> None:
    """Print a plan: decision, memory, overlap, what to buy or to change, the limits, warnings."""
    result = plan.result
    print_things(console, Text(plain(wording.question(result, plan.target_tokens_per_s))))
    target = f"target {wording.goal(plan.target_tokens_per_s)}"
    _answer(console, plan_wording.plan_headline(plan), plan.decision, result.tokens_per_s, target)
    print_lines(console, plan_wording.plan_reason(plan), wording.bound_sentence(result))
    _body(console, result)
    render_inverse(plan, console)
    _end(console, result)


def render_result(result: Result, console: Console) -> None:
    """Print one simulated scenario: verdict, memory, overlap, warnings."""
    print_things(console, Text(plain(wording.question(result))))
    tone = "cannot_run" if result.beyond_device else result.verdict
    _answer(console, wording.headline(result), tone, result.tokens_per_s)
    print_lines(console, said_first(result), wording.bound_sentence(result))
    _body(console, result)
    _end(console, result)


def _answer(console: Console, headline: str, tone: str, speed: Interval | None, *more: str) -> None:
    line = Text(f"\n{headline}", style=TONE.get(tone, "bold red"))
    if speed is not None:
        line.append(f": {wording.number(speed.value)} tokens/s", style="bold")
        detail = ", ".join((f"80 % interval {wording.span(speed)}", *more))
        line.append(f"  ({detail})", style="not bold default")
    print_things(console, line)


def _body(console: Console, result: Result) -> None:
    """The arithmetic where it cannot run; else memory, overlap, cache and speed at the start."""
    if result.verdict == "cannot_run":
        print_things(console, Text("\nThe arithmetic", style="bold"))
        print_lines(console, *result.arithmetic.splitlines())
    print_things(console, Text(""), _memory_table(result.memory))
    if result.verdict == "cannot_run":
        return
    _bars(console, result.memory)
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column()
    for name, text in _facts(result):
        facts.add_row(Text(name, style="bold"), Text(plain(text)))
    print_things(console, Text(""), facts)


def _facts(result: Result) -> Iterable[tuple[str, str]]:
    if result.layers:
        yield "t_attention >= t_prefetch", wording.overlap_line(result)
    if wording.token_s(result) > 0:
        yield "a token's time", wording.time_finding(result)
    if result.cache is not None:
        yield "page cache" if result.page_cache else "expert cache", wording.cache_line(result)
    if result.ttft_s is not None:
        low, high = format_seconds(result.ttft_s.low), format_seconds(result.ttft_s.high)
        first = result.first_decode_tokens_per_s
        then = "" if first is None else f"; the 16 tokens after it at {wording.number(first)} tokens/s"
        empty = " on an empty cache" if wording.has_expert_cache(result) else ""
        prompt = f" for {result.n_prompt_tokens} prompt tokens{empty}" if result.n_prompt_tokens else ""
        yield "first token after", f"{format_seconds(result.ttft_s.value)} ({low} to {high}){prompt}{then}"
    if result.energy_j_per_token is not None:
        yield "energy", f"{wording.number(result.energy_j_per_token)} J per token"


def _memory_table(memory: MemoryResult) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_footer=True)
    table.add_column("", footer="total")
    table.add_column("on storage", justify="right", footer=wording.size(memory.storage_bytes))
    cap = f"{wording.size(memory.resident_bytes)}  (RAM cap {wording.size(memory.ram_cap_bytes)})"
    table.add_column("resident in RAM", justify="left", footer=cap)
    for row in memory_rows(memory):
        storage = "-" if row.storage_bytes is None else wording.size(row.storage_bytes)
        cached = {"experts": "  (in the cache)", "mapped file": "  (in the page cache)"}.get(row.name, "")
        table.add_row(row.name, storage, wording.size(row.resident_bytes) + cached)
    return table


def _bars(console: Console, memory: MemoryResult) -> None:
    """Storage and resident as two bars on one scale; each part has its own mark."""
    ascii_only = console.options.ascii_only
    bar_width = max(10, min(BAR_WIDTH, text_width(console) - 24))
    scale = bar_width / max(memory.storage_bytes, memory.resident_bytes, memory.ram_cap_bytes, 1)
    rows = memory_rows(memory)
    marks = {row.name: BAR_MARKS[row.name][ascii_only] for row in rows if row.storage_bytes or row.resident_bytes}
    cap = round(memory.ram_cap_bytes * scale)
    storage = _bar([(marks[row.name], row.storage_bytes * scale) for row in rows if row.storage_bytes])
    resident = _bar([(marks[row.name], row.resident_bytes * scale) for row in rows if row.resident_bytes])
    resident = f"{resident[:cap].ljust(cap)}| RAM cap"
    legend = "  ".join(f"{mark} {name}" for name, mark in marks.items())
    print_things(console, Text(f"\non storage  {storage}\nresident    {resident}\n            {legend}"))


def _bar(parts: list[tuple[str, float]]) -> str:
    """Marks in proportion, rounded so that the whole bar has the right length."""
    bar, end = "", 0.0
    for mark, width in parts:
        end += width
        bar += mark * (round(end) - len(bar))
    return bar


def _end(console: Console, result: Result) -> None:
    if result.warnings:
        print_things(console, Text(""))
    for warning in result.warnings:
        print_things(console, Text(f"! {plain(warning)}", style="yellow"))
    print_things(console, Text(""))
    for key in SHORT_PRINT:
        if key in result.small_print:
            print_things(console, Text(f"{key}: {plain(result.small_print[key])}", style="dim"))
