"""The terminal answer: at most 100 columns, complete without colour, and it obeys nothing that a name holds."""

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
import reports_examples as examples
from rich.console import Console

from reports.sweep_terminal import render_sweep
from reports.terminal import render_plan, render_result


def printed(render: Callable[[Console], None], width: int = 100, encoding: str = "utf-8") -> str:
    """What a console without colour shows."""
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding=encoding, write_through=True)
    render(Console(file=stream, width=width, color_system=None, force_terminal=False))
    return buffer.getvalue().decode(encoding)


def test_the_plan_answers_at_a_glance() -> None:
    """Verdict with interval, bound, both sizes, overlap in one line, three changes, warnings, small print."""
    text = printed(lambda console: render_plan(examples.streaming_plan(), console))
    assert "No: 9.42 tokens/s  (80 % interval 7.61 to 11.4, target 15)" in text
    assert "Storage bandwidth bounds it" in text
    total = next(line for line in text.splitlines() if line.startswith("total"))
    assert total.split() == ["total", "2.12", "GiB", "1.00", "GiB", "(RAM", "cap", "1.00", "GiB)"]
    check = next(line for line in text.splitlines() if line.startswith("t_attention >= t_prefetch"))
    assert "25 % of cases with a miss; mean bubble 1.48 ms a layer, 47.5 ms a token" in check
    assert [line[:2] for line in text.splitlines() if line[:2] in {"1 ", "2 ", "3 ", "4 "}] == ["1 ", "2 ", "3 "]
    assert "LM-head predictor" not in text
    assert text.count("\n! ") == 3
    assert "a stand-in for smallthinker-4b-a0.6b" in text


def test_without_a_change_that_reaches_the_best_ones_are_named() -> None:
    """The reader still learns how far each single change goes."""
    plan = examples.streaming_plan()
    plan = replace(plan, changes=tuple(change for change in plan.changes if not change.reaches))
    text = printed(lambda console: render_plan(plan, console))
    assert "No single change reaches 15 tokens/s; the best" in text
    assert "10.4 (8.50 to 12.6)" in text


def test_a_plan_on_a_bound_is_no_yes() -> None:
    """A policy that is told the future reaches the target: that is all that is said."""
    plan = examples.likely_plan()
    assert plan.result.cache is not None
    result = replace(plan.result, cache=replace(plan.result.cache, policy="belady", is_upper_bound=True))
    text = printed(lambda console: render_plan(replace(plan, result=result), console))
    assert "As a bound only: 9.42 tokens/s" in text
    assert "A cache that is told the future reaches 9 tokens/s" in text
    assert "belady (a bound: told the future), 384 experts" in " ".join(text.split())


def test_cannot_run_prints_its_arithmetic_and_no_speed() -> None:
    """Storage and resident stand there all the same."""
    for make in (examples.floor_result, examples.capacity_result):
        text = printed(lambda console, make=make: render_result(make(), console))
        assert "It cannot run" in text
        assert all(line in text for line in make().arithmetic.splitlines())
        assert "tokens/s" not in text
        assert "on storage" in text
        assert "resident in RAM" in text


def test_nothing_missed_reads_as_always_hidden() -> None:
    """hidden_frac None is not 0 %."""
    text = printed(lambda console: render_result(examples.resident_result(), console))
    assert "always: no token missed an expert" in text
    assert "It runs from RAM: 19.6 tokens/s" in text


@pytest.mark.parametrize("width", [60, 100, 200])
def test_no_line_is_wider_than_the_console_or_100_columns(width: int) -> None:
    """Long names wrap; a wide console does not stretch the answer."""
    result = replace(examples.streaming_result(), small_print={"model": "m" * 150, "device": "a device " * 20})
    plan = replace(examples.streaming_plan(), result=result)
    for text in (
        printed(lambda console: render_plan(plan, console), width),
        printed(lambda console: render_result(result, console), width),
        printed(lambda console: render_sweep(examples.sweep(), console), width),
    ):
        assert max(len(line) for line in text.splitlines()) <= min(width, 100)
        assert "…" not in text


def test_control_characters_and_markup_are_shown_not_obeyed() -> None:
    """An escape sequence in a name becomes '?', rich's markup stays as typed."""
    small_print = {"model": "\x1b[31mred [bold]x[/bold] :smile:", "device": "a\x07b"}
    text = printed(
        lambda console: render_result(replace(examples.streaming_result(), small_print=small_print), console)
    )
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "?[31mred [bold]x[/bold] :smile:" in text


def test_an_ascii_console_gets_ascii() -> None:
    """The bars fall back to ASCII marks."""
    text = printed(lambda console: render_plan(examples.streaming_plan(), console), encoding="ascii")
    assert "# dense part" in text


def test_the_bars_are_in_proportion() -> None:
    """On one scale: a file of 2.12 GiB is 56 marks, the cap of 1 GiB stands at 26 of them, resident ends there."""
    text = printed(lambda console: render_result(examples.streaming_result(), console))
    lines = text.splitlines()
    storage = next(line for line in lines if line.startswith("on storage  "))
    resident = next(line for line in lines if line.startswith("resident    "))
    assert len(storage.split()[2]) == 56
    assert resident.index("|") - 12 == round(56 * examples.GIB / 2_275_000_000)
