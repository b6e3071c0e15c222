"""A plan on the page and on the terminal: what to buy, to change or to save, in what order, and what cannot be had."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
import reports_examples as examples
from rich.console import Console

from reports.grid import as_grids, current_row
from reports.html import write_plan_report, write_result_report
from reports.plan_wording import change_cost, map_caption, map_finding, plan_headline, plan_reason, savings
from reports.terminal import render_plan, render_result
from simulator.plan_result import Change, Limit, PlanResult, StorageCeiling
from simulator.result import Interval, Result

GIB = 2**30
FAST = Interval(16.0, 12.2, 18.0)
RAM = Limit("ram_cap", "least", GIB, 1_809_845_760, FAST, 1_867_574_784, FAST, "bisected", 23, "1,031 caps")
STORAGE = Limit("storage_read", "least", 419e6, 1.33e9, FAST, None, None, "bisected", 19, "980 rates")
BEYOND = "Some board has 4.00 GiB of RAM; its system keeps 800 MiB: 3.20 GiB are left, and this takes 5.00 GiB."


def told(render, *things) -> str:
    """What a terminal of 100 columns shows, on one line."""
    buffer = io.StringIO()
    render(*things, Console(file=buffer, width=100, force_terminal=False))
    return " ".join(buffer.getvalue().split())


def page_of(plan: PlanResult, folder: Path) -> str:
    """The words of a plan's page."""
    write_plan_report(plan, folder / "plan.html")
    return " ".join(re.sub(r"<[^>]+>", " ", (folder / "plan.html").read_text(encoding="utf-8")).split())


def test_the_map_names_the_exact_limits_and_not_its_own_cells() -> None:
    """1.33 GB/s by bisection, though the map's first good column is 1.5 GB/s; without limits neither."""
    plan = replace(examples.streaming_plan(), limits=(RAM, STORAGE))
    grid, now = as_grids(plan.grid)[0], current_row(plan)
    exact = "17 of these 30 combinations reach 15 tokens/s: at 1 GiB from 1.33 GB/s, at 419 MB/s from 1.686 GiB"
    assert map_finding(plan, grid, now) == exact
    assert map_finding(replace(plan, limits=()), grid, now) == "17 of these 30 combinations reach 15 tokens/s"
    any_storage = replace(plan, limits=(RAM, replace(STORAGE, value=1e6)))
    assert ": at 1 GiB with any storage, at 419 MB/s from" in map_finding(any_storage, grid, now)
    none = replace(plan, limits=(replace(RAM, value=None), replace(STORAGE, value=None)))
    assert map_finding(none, grid, now).endswith(": it takes both more RAM and a faster SSD")
    hopeless = map_finding(replace(plan, target_tokens_per_s=100.0), grid, now)
    assert hopeless.startswith("No combination here reaches 100 tokens/s; the best has 19.6")
    top = as_grids(plan.grid[-6:])[0]
    assert map_finding(plan, top, None) == "Every combination here reaches 15 tokens/s"


def test_what_of_a_map_cannot_be_had_is_said() -> None:
    """RAM that the device has not, which the cells are marked for, and storage that its link does not carry."""
    link = StorageCeiling(5e8, "this device's link")
    plan = replace(examples.streaming_plan(), available_ram_bytes=2 * GIB, storage_ceiling=link)
    beyond = tuple(replace(row, reason=BEYOND) if row.ram_cap_bytes > 2 * GIB else row for row in plan.grid)
    caption = map_caption(plan, as_grids(beyond)[0])
    assert caption.startswith("?: takes more RAM than the 2.00 GiB that this device leaves.")
    assert caption.endswith("Storage above 500 MB/s is more than this device's link carries.")
    roomy = replace(plan, available_ram_bytes=8 * GIB, storage_ceiling=StorageCeiling(7e9, "any drive"))
    assert map_caption(roomy, as_grids(plan.grid)[0]) == ""


@pytest.mark.parametrize(
    ("change", "currency", "cost"),
    [
        (Change("prefetch", "none", "pre-attention", 1.0, True, FAST, "", "setting"), "", "costs nothing"),
        (Change("top-k", "6", "4", 1.0, True, FAST, "", "quality"), "EUR", "costs quality"),
        (Change("storage read", "1 GB/s", "2 GB/s", 2.0, True, FAST), "", "to buy"),
        (Change("storage read", "1 GB/s", "2 GB/s", 2.0, True, FAST, "", "hardware", 15.0), "EUR", "15.00 EUR"),
        (Change("storage read", "1 GB/s", "2 GB/s", 2.0, True, FAST), "EUR", "no such part on the list"),
        (Change("RAM cap", "1 GiB", "9 GiB", 9.0, True, FAST, "", "other_device"), "", "not for this device"),
        (
            Change("storage read", "1 GB/s", "9 GB/s", 9.0, True, FAST, "", "other_device", 15.0),
            "EUR",
            "not for this device; 15.00 EUR",
        ),
    ],
)
def test_every_change_says_what_it_costs(change: Change, currency: str, cost: str, tmp_path: Path) -> None:
    """Nothing, quality, a price, or that it cannot be had; on both, with the criterion of the order."""
    assert change_cost(change, currency) == cost
    plan = replace(examples.streaming_plan(), changes=(change,), currency=currency)
    for text in (told(render_plan, plan), page_of(plan, tmp_path)):
        assert cost in text
        assert "Order: what costs nothing, what costs quality, what must be bought" in text
        assert ("by price" if currency else "no prices given") in text


def test_a_target_that_is_met_says_what_may_be_saved(tmp_path: Path) -> None:
    """Nothing to buy; the least RAM and storage that still meet it, and from where it is safe."""
    met = replace(RAM, today=4.0 * GIB), replace(STORAGE, value=1e6)
    plan = replace(examples.resident_plan(), limits=met)
    assert savings(plan)[0] == "least RAM: 1.686 GiB, safely from 1.740 GiB; now 4.00 GiB; all else as it is"
    assert savings(plan)[1].startswith("least storage: any, but no speed of it alone makes it safe; now 419 MB/s")
    for text in (told(render_plan, plan), page_of(plan, tmp_path)):
        assert "Nothing to buy for 15 tokens/s" in text
        assert "least RAM: 1.686 GiB" in text
        assert "What would reach" not in text
    likely = replace(examples.likely_plan(), limits=met)
    assert "Nothing to buy for 9 tokens/s, as predicted; to be safe it takes more" in told(render_plan, likely)
    top_k = Limit("top_k", "largest", 4, 4, FAST, 3, FAST, "scanned", 10, "10 values")
    safe = "to be safe: RAM cap 1.740 GiB, or top-k 3; what that costs in quality is not measured"
    assert savings(replace(likely, limits=(*met, top_k)))[-1] == safe
    unsafe = tuple(replace(limit, cautious_value=None) for limit in met)
    assert savings(replace(likely, limits=unsafe))[-1] == "to be safe: no single one of the things below is enough"


def test_a_setting_that_makes_it_safe_is_named_and_is_no_change(tmp_path: Path) -> None:
    """The target is met: no heading of changes, but the LM-head predictor stands in what is safe."""
    predictor = Change("LM-head predictor", "off", "on", 1.0, True, FAST, "lossy", "quality")
    unsafe = replace(RAM, cautious_value=None)
    likely = replace(examples.likely_plan(), limits=(unsafe,), changes=(predictor,))
    safe = "to be safe: LM-head predictor on; what that costs in quality is not measured"
    for text in (told(render_plan, likely), page_of(likely, tmp_path)):
        assert safe in text
        assert "What would reach" not in text
        assert "single change" not in text


def test_a_cap_beyond_what_the_device_leaves_is_said_first(tmp_path: Path) -> None:
    """Before the target's reason, also where the model takes less and fits."""
    first = "The RAM cap of 12.0 GiB is more than the 7.00 GiB that this device leaves to a program"
    larger = f"{first}; the model takes 1.00 GiB of it and fits."
    plan = replace(examples.resident_plan(), result=replace(examples.resident_result(), larger_cap=larger))
    assert plan_reason(plan).startswith(f"{larger} Even the low end")
    for text in (told(render_plan, plan), page_of(plan, tmp_path)):
        assert text.index(first) < text.index("Even the low end")
        assert text.count("more than the 7.00 GiB") == 1
    floor = replace(examples.floor_plan(), result=replace(examples.floor_result(), larger_cap=f"{first}."))
    assert plan_reason(floor) == f"{first}."
    assert "more than" not in plan_reason(examples.resident_plan())


def test_more_ram_than_the_device_has_is_in_the_headline(tmp_path: Path) -> None:
    """With the arithmetic, on terminal and page, of a result and of a plan; the speed is called a what-if."""
    result: Result = replace(examples.resident_result(), beyond_device=BEYOND)
    plan = replace(examples.resident_plan(), result=result, decision="cannot_run")
    assert plan_headline(plan) == "Not on this device as bought; with that RAM"
    assert plan_reason(plan).startswith(BEYOND)
    write_result_report(result, tmp_path / "result.html")
    page = (tmp_path / "result.html").read_text(encoding="utf-8")
    assert 'class="answer cannot_run"' in page
    for text in (told(render_result, result), told(render_plan, plan), page_of(plan, tmp_path), page):
        assert "Not on this device as bought; with that RAM" in text
        assert BEYOND in text
        assert "Every figure here is for a device that has the RAM." in text
        assert "Nothing to buy" not in text


def test_where_no_limit_helps_there_is_no_table_of_nothing(tmp_path: Path) -> None:
    """One line says what was tried."""
    none = tuple(replace(limit, value=None, tokens_per_s=None, cautious_value=None) for limit in (RAM, STORAGE))
    plan = replace(examples.streaming_plan(), limits=none)
    for text in (told(render_plan, plan), page_of(plan, tmp_path)):
        assert "No other RAM cap, storage read alone reaches 15 tokens/s" in text
    assert "found by" not in told(render_plan, plan)
