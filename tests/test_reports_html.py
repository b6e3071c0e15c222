"""The pages: complete, escaped, self-contained, the same bytes each time, whole or absent."""

import base64
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import reports_examples as examples
from html_pages import Checker, read

from moeplan.errors import InputError
from reports.html import write_plan_report, write_result_report
from reports.sweep_page import write_sweep_report
from simulator.plan_result import PlanResult
from simulator.result import MemoryResult, Result

PLANS = [examples.streaming_plan, examples.resident_plan, examples.floor_plan, examples.likely_plan]
RESULTS = [
    examples.streaming_result,
    examples.resident_result,
    examples.floor_result,
    examples.capacity_result,
    examples.dense_result,
]


def plan_page(plan: PlanResult, folder: Path) -> Checker:
    write_plan_report(plan, folder / "plan.html")
    return read(folder / "plan.html")


def result_page(result: Result, folder: Path) -> Checker:
    write_result_report(result, folder / "result.html")
    return read(folder / "result.html")


@pytest.mark.parametrize("make", PLANS)
def test_a_plan_page_needs_nothing_from_outside(make: Callable[[], PlanResult], tmp_path: Path) -> None:
    """No script, no link, and every image is inside the page and described in words."""
    page = plan_page(make(), tmp_path)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.sources)
    assert len(page.alts) == page.tags.count("img")
    assert all(page.alts)


@pytest.mark.parametrize("make", RESULTS)
def test_every_figure_is_well_formed_and_undated(make: Callable[[], Result], tmp_path: Path) -> None:
    """Each image is an SVG that an XML parser takes, with no date in it."""
    for source in result_page(make(), tmp_path).sources:
        svg = base64.b64decode(source.partition(",")[2])
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert b"<dc:date>" not in svg


def test_the_streaming_plan_answers_top_to_bottom(tmp_path: Path) -> None:
    """Question, decision, bound, both sizes, warnings, changes, heat map, layers, time, memory, cache, small print."""
    page = plan_page(examples.streaming_plan(), tmp_path)
    order = [
        "How fast does SmallThinker-4B-A0.6B run on Raspberry Pi 5",
        "No: 9.42 tokens/s",
        "80 % interval 7.61 to 11.4 tokens/s; target 15 tokens/s",
        "Storage bandwidth bounds it",
        "On storage2.12 GiB",
        "Resident in RAM1.00 GiB",
        "The routing is a stand-in",
        "What would reach 15 tokens/s",
        "419 MB/s → 1.23 GB/s",
        "Not enough alone:",
        "Order: what costs nothing",
        "17 of these 30 combinations reach 15 tokens/s",
        "Framed: this scenario.",
        "Attention hides the reads in",
        "Waiting for experts takes 48 % of the 98.5 ms of a token",
        "the cache holds 38 % of the experts",
        "Expert cache: 61 % of the lookups hit",
        "25,324",
        "bytes read per token",
        "Small print",
        "recorded from tiny-smallthinker, a stand-in",
    ]
    places = [page.text.find(part) for part in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places)


def test_cannot_run_gives_the_arithmetic_instead_of_charts(tmp_path: Path) -> None:
    """Without a speed there is no chart of one, and the arithmetic stands there word for word."""
    page = result_page(examples.capacity_result(), tmp_path)
    assert "It cannot run" in page.text
    assert examples.capacity_result().arithmetic in page.text
    assert "img" not in page.tags
    assert "tokens/s" not in page.text


def test_cannot_run_in_a_plan_still_shows_what_would_have_to_change(tmp_path: Path) -> None:
    """The changes and the heat map are the way out, so they stay; the charts of the one scenario go."""
    page = plan_page(examples.floor_plan(), tmp_path)
    assert page.tags.count("img") == 1
    assert "needed at least" in page.text
    assert "1.75 GiB" in page.text


def test_nothing_missed_says_so(tmp_path: Path) -> None:
    """hidden_frac None everywhere reads as nothing to hide, not as 0 %."""
    page = result_page(examples.resident_result(), tmp_path)
    assert "No token missed an expert" in page.text
    assert "every lookup hits" in page.text
    assert "Nothing waits: expert FFN is the largest part" in page.text


def test_a_dense_model_has_no_expert_parts(tmp_path: Path) -> None:
    """No layers, no cache: the page leaves their sections out."""
    page = result_page(examples.dense_result(), tmp_path)
    assert "Expert cache" not in page.text
    assert "a dense model, all of it resident" in page.text
    assert page.tags.count("img") == 2


def test_every_text_of_a_person_is_escaped(tmp_path: Path) -> None:
    """A name, warning, change or policy that holds markup is shown, not obeyed."""
    bad = "<script>alert('x')</script> & \"quotes\" $x_1$"
    base = examples.streaming_plan()
    cache = replace(base.result.cache, policy=bad) if base.result.cache else None
    result = replace(base.result, cache=cache, warnings=(bad,), small_print={"model": bad, "device": bad, bad: bad})
    changes = (replace(base.changes[0], what=bad, before=bad, after=bad, note=bad),)
    grid = tuple(replace(row, cache_policy=bad, prefetch_policy=bad) for row in base.grid)
    page = plan_page(replace(base, result=result, changes=changes, grid=grid), tmp_path)
    assert "script" not in page.tags
    assert page.text.count(bad) >= 12
    blocked = replace(result, verdict="cannot_run", reason="ram_floor", arithmetic=bad, tokens_per_s=None)
    assert bad in result_page(blocked, tmp_path).text
    write_sweep_report(grid, tmp_path / "sweep.html", result.small_print)
    assert "script" not in read(tmp_path / "sweep.html").tags


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    """No date, no random id: two pages of one plan are equal byte by byte."""
    for name in ("a", "b"):
        write_plan_report(examples.streaming_plan(), tmp_path / f"{name}.html")
        write_sweep_report(examples.sweep(), tmp_path / f"{name}-sweep.html", examples.SMALL_PRINT)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert (tmp_path / "a-sweep.html").read_bytes() == (tmp_path / "b-sweep.html").read_bytes()


def test_a_page_is_whole_or_absent(tmp_path: Path) -> None:
    """A place that cannot be written is one InputError, and nothing is left behind."""
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(InputError, match="must be a place that can be written"):
        write_result_report(examples.streaming_result(), tmp_path / "file" / "page.html")
    write_result_report(examples.streaming_result(), tmp_path / "page.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "page.html"]


def test_the_frame_stands_where_the_plans_own_scenario_is(tmp_path: Path) -> None:
    """The cell of the result's cap and storage speed is framed, also where several cells have the same speed."""
    plan = examples.resident_plan()
    assert "Framed" not in plan_page(plan, tmp_path).text
    memory = replace(plan.result.memory, ram_cap_bytes=3 * examples.GIB)
    plan = replace(plan, result=replace(plan.result, memory=memory))
    assert "Framed: this scenario." in plan_page(plan, tmp_path).text


def test_a_plan_without_grid_or_changes_has_a_page(tmp_path: Path) -> None:
    """Nothing is shown for what is not there."""
    plan = replace(examples.streaming_plan(), grid=(), changes=())
    page = plan_page(plan, tmp_path)
    assert "No: 9.42 tokens/s" in page.text
    assert "changes" not in page.text
    assert page.tags.count("img") == 3


def test_storage_is_never_named_without_resident(tmp_path: Path) -> None:
    """Storage and resident stand side by side on every page of a result, whatever the verdict."""
    for make in RESULTS:
        text = result_page(make(), tmp_path).text
        memory: MemoryResult = make().memory
        assert re.search(r"On storage[\d.]+ GiB.{0,40}Resident in RAM[\d.]+ [GM]iB", text), memory
