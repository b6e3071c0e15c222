"""Limits, front, purchases and designs on the page and on the terminal: every number stands there with its unit."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
import reports_examples as examples
from rich.console import Console

from reports.front_figure import front_figure
from reports.html import write_plan_report, write_result_report
from reports.inverse_terminal import render_inverse
from reports.inverse_wording import (
    front_finding,
    front_notes,
    front_rows,
    limit_rows,
    purchase_rows,
    shopping_finding,
)
from reports.memory_wording import memory_finding, memory_rows
from reports.terminal import render_plan
from simulator.plan_result import Front, FrontPoint, Limit, PlanResult, Purchase, Shopping
from simulator.result import CacheResult, Interval, PageCacheResult

GIB = 2**30
FAST = Interval(8.02, 7.2, 8.5)
SAFE = Interval(9.0, 8.0, 9.5)
LIMITS = (
    Limit("ram_cap", "least", GIB, 1_809_845_760, FAST, 1_867_574_784, SAFE, "bisected", 23, "1,031 caps"),
    Limit("storage_read", "least", 419e6, 1.33e9, FAST, None, None, "bisected", 19, "980 rates"),
    Limit("context", "largest", 128, None, None, None, None, "scanned", 22, "22 contexts", "KV takes RAM"),
    Limit("top_k", "largest", 4, 2, FAST, 1, SAFE, "scanned", 10, "10 values"),
    Limit("quantisation", "best", "q4_0", "q3_k", FAST, "q2_k", SAFE, "scanned", 8, "f16, q8_0"),
)
FRONT = Front(
    (FrontPoint(GIB // 2, 2.1e9, FAST), FrontPoint(GIB, 1.3e9, FAST), FrontPoint(2 * GIB, 1e6, SAFE)),
    (FrontPoint(GIB // 2, 2.5e9, SAFE, "more than it carries"), FrontPoint(2 * GIB, 1e6, SAFE)),
    "bisected",
    "33 RAM caps",
    GIB,
)
SHOP = Shopping(
    "EUR",
    (
        Purchase(3.5, 1_809_845_760, 419e6, 1.0, FAST, False),
        Purchase(80.0, GIB, 419e6, 1.5, FAST, False),
        Purchase(60.0, GIB, 3.5e9, 1.0, SAFE, True, "more RAM than fits"),
    ),
    6,
    "3 storages",
)


@pytest.fixture
def plan() -> PlanResult:
    """The example's plan with all that inverse planning adds."""
    return replace(examples.streaming_plan(), limits=LIMITS, front=FRONT, shopping=SHOP)


def printed(render, *things) -> str:
    """What a terminal of 100 columns shows."""
    buffer = io.StringIO()
    render(*things, Console(file=buffer, width=100, force_terminal=False))
    return buffer.getvalue()


def text_of(path: Path) -> str:
    """The words of a page."""
    return " ".join(re.sub(r"<[^>]+>", " ", path.read_text(encoding="utf-8")).split())


def test_limits_have_units_and_say_how_they_were_found(plan: PlanResult) -> None:
    """None of the grid is said in words; a type stands as it is."""
    rows = {row.name: row for row in limit_rows(plan)}
    assert (rows["least RAM cap"].today, rows["least RAM cap"].value) == ("1.00 GiB", "1.686 GiB")
    assert (rows["least storage read"].value, rows["least storage read"].cautious) == ("1.33 GB/s", "none")
    assert (rows["largest context"].today, rows["largest context"].value) == ("128 tokens", "none")
    assert (rows["largest top-k"].value, rows["largest top-k"].cautious) == ("2", "1")
    assert rows["best quantisation"].value == "q3_k"
    assert [row.search for row in rows.values()] == ["bisection", "bisection", "scan", "scan", "scan"]
    assert rows["least RAM cap"].speed == "8.02 (7.20 to 8.50)"


def test_the_front_names_the_ends_of_what_the_device_can_have() -> None:
    """Any storage where the slowest of the grid does; what the device cannot have is marked, and is no end."""
    ends = "512.0 MiB of RAM with storage of 2.10 GB/s to 2.000 GiB of RAM with any storage"
    assert front_finding(FRONT, 8) == f"8 tokens/s for anything from {ends} on this grid"
    rows = front_rows(FRONT)
    assert rows[1].cautious == "2.50 GB/s (a)"
    assert front_notes(FRONT) == ["(a) more than it carries"]
    assert [row.ram for row in front_rows(FRONT, 2)] == [rows[0].ram, rows[-1].ram]
    assert front_finding(replace(FRONT, points=()), 8).endswith("reach 8 tokens/s: compute is too slow")
    assert front_finding(replace(FRONT, points=(), starts_warm=False), 8).endswith("reach 8 tokens/s")
    one = front_finding(replace(FRONT, points=FRONT.points[:1]), 8)
    assert one == "8 tokens/s take 512.0 MiB of RAM with storage of 2.10 GB/s on this grid"
    first, *others = FRONT.points
    marked = replace(FRONT, points=(replace(first, note="more RAM than there is; too fast"), *others))
    assert front_rows(marked)[0].storage == "2.10 GB/s (a) (b)"
    assert front_finding(marked, 8).startswith(
        "8 tokens/s for anything from 1.000 GiB of RAM with storage of 1.30 GB/s"
    )
    assert front_finding(marked, 8).endswith(" on this grid; its other pairs are not for this device")
    assert [row.ram for row in front_rows(marked, 2)] == ["512.0 MiB", "1.000 GiB", "2.000 GiB"]
    nowhere = replace(FRONT, points=tuple(replace(point, note="no") for point in FRONT.points))
    assert (
        front_finding(nowhere, 8) == f"No RAM and storage that this device can have reach 8 tokens/s; elsewhere: {ends}"
    )


def test_purchases_stand_in_the_order_of_their_price(plan: PlanResult) -> None:
    """The cheapest in the heading, the cautious one beside it, each with what speaks against it."""
    finding = shopping_finding(SHOP, 8, GIB)
    parts = "1.686 GiB of RAM, storage 419 MB/s"
    safely = "safely for 60.00 EUR: 1.000 GiB of RAM, storage 3.50 GB/s (more RAM than fits)"
    assert finding == f"8 tokens/s for 3.50 EUR above today's parts: {parts}; {safely}"
    none = replace(SHOP, purchases=())
    assert shopping_finding(none, 8, GIB) == "None of the parts on the price list reaches 8 tokens/s"
    none = replace(none, left_out=("storage 3.50 GB/s: more than the link carries",))
    assert "that this device can have reaches 8 tokens/s" in shopping_finding(none, 8, GIB)
    text = printed(render_inverse, plan)
    assert text.index("3.50 EUR") < text.index("80.00 EUR")
    assert "CPU and RAM x 1.50" in " ".join(text.split())
    assert "more RAM than fits" in " ".join(text.split())


def test_what_is_there_is_not_bought(plan: PlanResult) -> None:
    """Today's parts at no price have no row, and no heading of their own where they are safe."""
    free = replace(SHOP.purchases[0], price=0.0, ram_cap_bytes=GIB)
    as_predicted = replace(SHOP, purchases=(free, SHOP.purchases[2]))
    told = "Safely 8 tokens/s for 60.00 EUR above today's parts: 1.000 GiB of RAM, storage 3.50 GB/s"
    assert shopping_finding(as_predicted, 8, GIB).startswith(told)
    assert shopping_finding(replace(SHOP, purchases=(free,)), 8, GIB) == "No parts reach 8 tokens/s safely"
    safe = replace(SHOP, purchases=(free, replace(free, is_cautious=True)))
    assert shopping_finding(safe, 8, GIB) == ""
    assert "EUR" not in printed(render_inverse, replace(plan, shopping=safe))


def test_ram_that_is_there_is_named_and_not_bought(plan: PlanResult) -> None:
    """A larger cap at no price: nothing to buy, how much it takes, and from where it is safe."""
    more = replace(SHOP.purchases[0], price=0.0)
    enough = replace(more, ram_cap_bytes=2 * GIB, tokens_per_s=SAFE, is_cautious=True)
    free = replace(SHOP, purchases=(more, enough))
    told = (
        "Nothing to buy for 8 tokens/s: 1.686 GiB of RAM, storage 419 MB/s; safely with 2.000 GiB of RAM, storage "
        "419 MB/s"
    )
    assert shopping_finding(free, 8, GIB) == told
    assert "EUR" not in printed(render_inverse, replace(plan, shopping=free))
    today = replace(more, ram_cap_bytes=GIB)
    assert shopping_finding(replace(SHOP, purchases=(today, enough)), 8, GIB) == (
        "Safely 8 tokens/s at no price: 2.000 GiB of RAM, storage 419 MB/s"
    )


def test_parts_that_the_device_cannot_have_are_told_in_one_line(plan: PlanResult, tmp_path: Path) -> None:
    """Beside the purchases, on terminal and page."""
    shop = replace(SHOP, left_out=("storage 3.50 GB/s: more than the link carries",))
    answer = replace(plan, shopping=shop)
    write_plan_report(answer, tmp_path / "plan.html")
    for text in (" ".join(printed(render_inverse, answer).split()), text_of(tmp_path / "plan.html")):
        assert "not for this device: storage 3.50 GB/s: more than the link carries" in text


def test_a_cache_that_knows_the_future_promises_nothing(plan: PlanResult, tmp_path: Path) -> None:
    """Headings of limits, front, changes, purchases and savings are bounds; so is what the reason says."""
    rows = tuple(replace(row, is_upper_bound=True) for row in plan.grid)
    for target in (8.0, 15.0):
        answer = replace(plan, grid=rows, target_tokens_per_s=target)
        write_plan_report(answer, tmp_path / "plan.html")
        met = target < 9
        for text in (" ".join(printed(render_plan, answer).split()), text_of(tmp_path / "plan.html")):
            assert "All figures here are for a cache that is told the future: bounds, no promises." in text
            assert f"As a bound: what {target:g} tokens/s asks, one thing at a time" in text
            assert f"As a bound: {target:g} tokens/s for anything from" in text
            assert f"As a bound: {target:g} tokens/s for 3.50 EUR" in text
            assert ("As a bound: nothing to buy for 8 tokens/s" in text) == met
            assert ("As a bound: what would reach 15 tokens/s" in text) != met
    assert "bound" not in printed(render_inverse, plan)


def test_terminal_and_page_show_the_same_limits(plan: PlanResult, tmp_path: Path) -> None:
    """Every value of the limits stands in both; so does every point of the front on the page."""
    told = " ".join(printed(render_plan, plan).split())
    write_plan_report(plan, tmp_path / "plan.html")
    page = text_of(tmp_path / "plan.html")
    for row in limit_rows(plan):
        for text in (row.name, row.value, row.cautious, row.search):
            assert text in told
            assert text in page
        assert row.grid in page
    for point in front_rows(FRONT):
        assert point.ram in page
        assert point.cautious in page
    assert "LM-head predictor A small network" in page
    assert "bubble What is left to wait" in page


def test_a_plan_without_them_shows_nothing_of_them(tmp_path: Path) -> None:
    """A model that the storage cannot hold has no limits."""
    bare = examples.streaming_plan()
    assert printed(render_inverse, replace(bare, changes=())) == ""
    write_plan_report(bare, tmp_path / "plan.html")
    assert "one thing at a time" not in text_of(tmp_path / "plan.html")


def test_figures_are_the_same_bytes_each_time() -> None:
    """No clock and no random ids; with one point or none as well."""
    for points in (FRONT.points, FRONT.points[:1], ()):
        front = replace(FRONT, points=points, cautious_points=())
        assert front_figure(front, (GIB, 419e6)) == front_figure(front, (GIB, 419e6))


def test_a_mapped_file_is_one_row_and_counts_pages(tmp_path: Path) -> None:
    """No dense part of 0 B; faults and pages have their names; the sums hold."""
    memory = replace(
        examples.MEMORY, dense_bytes=0, cache_bytes=GIB // 2, buffer_bytes=0, resident_bytes=GIB // 2 + 52_331_648,
        activation_bytes=2_000_000,
    )  # fmt: skip
    rows = memory_rows(memory)
    assert [row.name for row in rows] == ["mapped file", "KV", "activations"]
    assert sum(row.resident_bytes for row in rows) == memory.resident_bytes
    assert sum(row.storage_bytes or 0 for row in rows) == memory.storage_bytes
    assert memory_finding(memory).endswith("the page cache holds 24 % of the mapped file")
    mapped = replace(
        examples.streaming_result(), memory=memory, layers=(),
        cache=CacheResult("page cache, two-list", GIB // 2, 200, 1000, 24, 0.97, 10**6, 0, 2000.0),
        page_cache=PageCacheResult("two-list", GIB // 2, 131_072, 0.1, 0.1, 2000.0, 10**6),
    )  # fmt: skip
    write_result_report(mapped, tmp_path / "mapped.html")
    page = text_of(tmp_path / "mapped.html")
    assert "page faults 24" in page
    assert "pages found in RAM 1,000" in page
    assert "on an empty cache" not in page.partition("Words")[0]


def test_padding_is_no_part_of_the_file() -> None:
    """An expert padded on storage may make the experts larger than the file: the file's parts still add up to it."""
    memory = replace(examples.MEMORY, storage_bytes=200, all_experts_bytes=400, dense_file_bytes=20)
    assert [row.storage_bytes for row in memory_rows(memory)][:2] == [20, 180]


def test_what_is_bought_safely_is_told_once() -> None:
    """One purchase for the predicted value and for the low end: one line, and one phrase in the finding."""
    bought = Purchase(60.0, GIB, 3.5e9, 1.0, SAFE, False)
    other = replace(bought, price=90.0, ram_cap_bytes=2 * GIB)
    purchases = (bought, other, replace(bought, is_cautious=True))
    shop = Shopping("EUR", purchases, 4, "4 pairs")
    meeting, safe = purchase_rows(shop)
    assert [row.price for row in meeting] == ["90.00 EUR"]
    assert [row.price for row in safe] == ["60.00 EUR"]
    finding = shopping_finding(shop, 15.0, GIB // 2)
    assert finding.startswith("15 tokens/s, safely too, for 60.00 EUR above today's parts: 1.000 GiB of RAM")
    assert finding.count("60.00 EUR") == 1
