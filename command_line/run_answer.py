"""A run on a terminal: the text, the speed and what held it back, layer by layer, memory against the cap."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from command_line.console import answer_console
from moeplan.quantity import format_bytes, format_seconds
from reference_runtime.conditions import ram_bytes
from reference_runtime.run_result import TEACHER_FORCED, RunResult

SHADES = " ▁▂▃▄▅▆▇█"  # 0 to 1 in eight steps
OPS = ("router", "attention", "wait", "expert_ffn", "lm_head", "embedding")
LEGEND = (
    "means of the tokens that count, a mark a layer; hidden: of the tokens with a miss; bubble: the wait that is left; "
    "zero gates: neurons of the chosen experts that ReLU sets to zero, whose other weights are skipped"
)


def render_run(result: RunResult, record: Path | None, beside: Sequence[str] = ()) -> None:
    """Print a run on standard output; beside: what no speed is quoted without, right below it."""
    console = answer_console()
    if result.text and result.conditions["decode"] != TEACHER_FORCED:
        console.print(Text(_printable(result.text)), soft_wrap=True)
        console.print()
    console.print(Text(_speed_line(result), style="bold"))
    for line in [*beside, *_lines(result)]:
        console.print(Text(line))
    if any(layer.hidden_frac is not None for layer in result.layers):
        console.print(_layer_table(result))
        console.print(Text(LEGEND, style="dim"))
    for warning in result.warnings:
        console.print(Text(f"note: {warning}"))
    if record is not None:
        console.print(Text(f"record: {record}"))


def _speed_line(result: RunResult) -> str:
    prompt = f"prompt of {result.n_prompt_tokens} tokens in {format_seconds(result.prompt_s)}"
    if result.n_prompt_tokens == 0:
        prompt = f"from a saved state of {result.conditions.get('context_at_start', '?')} tokens"
    if result.tokens_per_s is None:
        return f"no decode token counted; {prompt}"
    return f"{result.tokens_per_s:.3g} tokens/s over {result.n_counted_tokens} decode tokens; {prompt}"


def _lines(result: RunResult) -> list[str]:
    lines = []
    if result.tokens_per_s is not None:
        per_token = result.seconds_per_token
        names = {} if result.misses else {"wait": "expert lookup"}  # nothing was waited for
        parts = [f"{names.get(op, op)} {format_seconds(per_token[op])}" for op in OPS if per_token.get(op, 0) > 0]
        lines.append(f"a token: {', '.join(parts)}")
    if result.hit_rate is not None:
        n_bytes = format_bytes(round(result.bytes_read / max(1, result.n_counted_tokens)))
        lines.append(
            f"expert cache: {result.hit_rate:.1%} hits ({result.hits} of {result.hits + result.misses}), "
            f"{n_bytes} read a token; {result.conditions['cache']}, {result.conditions['layout']}, "
            f"{result.conditions['reads']}"
        )
    if result.hidden_frac is not None:
        share = _share(result.hidden_frac)
        lines.append(f"hidden: {share} of the layers with a miss had it read before attention ended")
    grown = result.peak_rss_bytes - result.baseline_rss_bytes
    cap = _cap(result.ram_cap_bytes, ram_bytes())
    lines.append(
        f"memory: {format_bytes(grown)} above the {format_bytes(result.baseline_rss_bytes)} of the bare process at its "
        f"peak, {cap} (the allocator may add a tenth and 20 MB)"
    )
    lines.append(f"routing: {result.conditions['routing']}; {result.conditions['kernels']}; {result.conditions['cpu']}")
    return lines


def _cap(cap_bytes: int | None, machine_bytes: int) -> str:
    """The cap; one above the machine's RAM (0: not known) holds nobody back."""
    if cap_bytes is None:
        return "no cap"
    more = f", more than this machine has ({format_bytes(machine_bytes)})" if 0 < machine_bytes < cap_bytes else ""
    return f"cap {format_bytes(cap_bytes)}{more}"


def _share(fraction: float) -> str:
    """'9.6%'."""
    return f"{fraction:.1%}"


def _layer_table(result: RunResult) -> Table:
    """
    A strip a quantity, a mark a layer: the share hidden, and each time against the longest of all.

    The mean share is that of the text: of all tokens and layers with a miss, however many a layer has of them.
    """
    layers = result.layers
    longest = max(max(layer.t_attention_s, layer.t_prefetch_s) for layer in layers)
    table = Table(box=None, show_header=False, pad_edge=False)
    first, last = layers[0].layer, layers[-1].layer
    table.add_row(f"layers {first} to {last}", "", "mean")
    hidden = [layer.hidden_frac for layer in layers]
    mean = "" if result.hidden_frac is None else _share(result.hidden_frac)
    table.add_row("hidden", "".join("·" if share is None else _shade(share) for share in hidden), mean)
    for name in ("t_attention_s", "t_prefetch_s", "bubble_s"):
        values = [getattr(layer, name) for layer in layers]
        strip = "".join(_shade(value / longest if longest else 0) for value in values)
        table.add_row(name.removesuffix("_s"), strip, format_seconds(sum(values) / len(values)))
    zero = [layer.zero_gate_frac for layer in layers]
    table.add_row("zero gates", "".join(map(_shade, zero)), f"{sum(zero) / len(zero):.0%}")
    return table


def _shade(share: float) -> str:
    return SHADES[min(len(SHADES) - 1, round(share * (len(SHADES) - 1)))]


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
