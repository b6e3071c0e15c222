"""The page of a sweep and its terminal answer: complete, the right pictures, readable whatever varies."""

import base64
import io
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
import reports_examples as examples
from html_pages import Checker, read
from rich.console import Console
from sweep_examples import GIB, PRINT, blocked, bound, caps_by_speeds, failed, row

from reports import sweep_page
from reports.sweep_charts import charts
from reports.sweep_figures import _ticks, chart_figure
from reports.sweep_findings import split
from reports.sweep_page import write_sweep_report
from reports.sweep_terminal import render_sweep
from simulator.result import SweepRow

POLICIES = ("lru", "lru-per-layer", "s3-fifo")


def page_of(rows: list[SweepRow], folder: Path, target: float | None = None) -> Checker:
    write_sweep_report(rows, folder / "sweep.html", PRINT, target)
    return read(folder / "sweep.html")


def printed(rows: list[SweepRow], target: float | None = None, width: int = 100) -> str:
    """What a console without colour shows."""
    buffer = io.StringIO()
    render_sweep(rows, Console(file=buffer, width=width, color_system=None, force_terminal=False), PRINT, target)
    return buffer.getvalue()


@pytest.mark.parametrize("n_caps", [1, 5])
@pytest.mark.parametrize("n_speeds", [1, 6])
def test_a_page_of_any_shape_has_a_row_for_each_scenario(n_caps: int, n_speeds: int, tmp_path: Path) -> None:
    """One cap, one speed, or many: as many table rows as scenarios, and at least one picture."""
    rows = [
        row
        for row in examples.sweep()
        if row.ram_cap_bytes in examples.CAPS[-n_caps:] and row.storage_read_bytes_per_s in examples.SPEEDS[:n_speeds]
    ]
    page = page_of(rows, tmp_path)
    n_maps = 2 if n_caps * n_speeds == 30 else 0  # one map a policy where both numbers vary
    assert page.tags.count("img") == n_maps + 1
    n_inputs = 1 + (n_caps > 1) + (n_speeds > 1)
    assert page.tags.count("tr") == len(rows) + 1 + n_inputs + 1 + len(PRINT)


def test_a_page_answers_top_to_bottom(tmp_path: Path) -> None:
    """Question, headline, winner, what bounds, the bound, warnings, what cannot run, differences, pictures, numbers."""
    rows = caps_by_speeds((GIB, 2 * GIB), (1e9, 4e9))
    rows += [
        replace(each, cache_policy="lfu", warnings="Mind this.") for each in caps_by_speeds((GIB, 2 * GIB), (1e9, 4e9))
    ]
    rows += [bound(1.25 * each.tokens_per_s, **_place(each)) for each in rows[:4]]
    rows += [blocked("the RAM cap is 1 MiB", ram_cap_bytes=2**20), failed("--threads: must be 4, got 3", n_threads=3)]
    page = page_of(rows, tmp_path)
    order = [
        "How fast does Model 4B run on Board (8 GB), by cache policy, RAM cap and storage read?",
        "4.00 tokens/s at best",
        "Fastest with any cache policy, RAM cap 2 GiB, storage read 4 GB/s",
        "Storage bandwidth bounds it",
        "at most 25 % above",
        "Before you rely on this",
        "cache policy lfu (4 of 12 scenarios): Mind this.",
        "What cannot run",
        "1 of 14 scenarios cannot run (RAM cap 1 MiB): the RAM cap is 1 MiB",
        "1 of 14 scenarios cannot be asked (threads 3): --threads: must be 4, got 3",
        "What makes a difference",
        "cache policy lru, lfu and belady (bound) x 1 makes no difference",
        "Cache policy makes no difference",
        "Dashed: a bound.",
        "cache policy lru: 1.00 to 4.00 tokens/s",
        "cache policy belady (bound): 1.25 to 5.00 tokens/s",
        "The numbers",
        "Small print",
    ]
    text = page.text.replace("storage read", "storage read")
    places = [text.find(part) for part in order if "x 1 makes" not in part]
    assert -1 not in places, [part for part in order if part not in text]
    assert places == sorted(places)
    assert "x 1" in text


def _place(row: SweepRow) -> dict[str, float]:
    return {"ram_cap_bytes": row.ram_cap_bytes, "storage_read_bytes_per_s": row.storage_read_bytes_per_s}


def test_a_sweep_that_is_not_finished_or_cannot_run_still_has_a_page(tmp_path: Path) -> None:
    """Absent cells stay empty; when no scenario can run the page says so; no row at all is no crash."""
    assert page_of(list(examples.sweep()[::7]), tmp_path).tags.count("img") >= 1
    stopped = [row for row in examples.sweep() if row.verdict == "cannot_run"]
    for rows in (stopped, []):
        page = page_of(rows, tmp_path)
        assert "Nothing here can run" in page.text
        assert "img" not in page.tags
        assert "Nothing here can run" in printed(rows)
    assert "12 scenarios cannot run: ram_floor" in page_of(stopped, tmp_path).text


def test_policies_are_compared_in_one_picture() -> None:
    """Alone as bars, over one number as lines, over two as lines where they differ most; a bound is told apart."""
    alone = split([row(10 + i, cache_policy=name) for i, name in enumerate(POLICIES)] + [bound(20)])
    (bars,) = charts(alone)
    assert bars.across is None
    assert bars.labels == ("belady (bound)", "s3-fifo", "lru-per-layer", "lru")
    over_caps = [
        row(cap * (1 + i), cache_policy=name, ram_cap_bytes=cap * GIB)
        for cap in (1, 2)
        for i, name in enumerate(POLICIES)
    ]
    (lines,) = charts(split(over_caps))
    assert [(line.name, line.is_bound) for line in lines.series] == [(name, False) for name in POLICIES]
    assert lines.labels == ("1 GiB", "2 GiB")
    maps = [
        replace(each, cache_policy=name, tokens_per_s=each.tokens_per_s * (1.5 if name == "lru" else 1))
        if each.storage_read_bytes_per_s == 2e9
        else replace(each, cache_policy=name)
        for name in POLICIES
        for each in caps_by_speeds((GIB, 2 * GIB), (1e9, 2e9))
    ]
    (compared,) = charts(split(maps))
    assert compared.title == "Cache policy: lru is fastest or as fast in all 4 cases, up to x 1.5 the slowest"
    assert compared.note == "Shown where its values differ most: storage read 2 GB/s."


def test_a_bound_chooses_no_picture_of_others() -> None:
    """Devices are compared where real policies differ most, not on Belady's rows."""
    rows = [
        row(speed, device=device, cache_policy=policy, is_upper_bound=policy == "belady", ram_cap_bytes=cap * GIB,
            storage_read_bytes_per_s=cap * rate)
        for device, factor in (("a", 1.0), ("b", 2.0))
        for policy, more in (("lru", 1.0), ("belady", 3.0))
        for cap in (1, 2)
        for rate in (1e9, 2e9)
        for speed in [cap * factor**more]
    ]  # fmt: skip
    chart = next(each for each in charts(split(rows)) if each.title.startswith("Device"))
    assert "cache policy lru" in chart.note


@pytest.mark.parametrize("n_policies", [1, 3, 12])
@pytest.mark.parametrize("n_caps", [1, 3, 20])
def test_pictures_of_all_shapes_are_well_formed(n_policies: int, n_caps: int) -> None:
    """Few and many bars, lines and labels, with what cannot run, a bound, a target and names that no font has."""
    rows = [
        row(1.0 + i + cap, cache_policy=f"策略-{i}", ram_cap_bytes=cap * GIB)
        for i in range(n_policies)
        for cap in range(1, n_caps + 1)
    ]
    rows += [bound(30, ram_cap_bytes=GIB), blocked("no", ram_cap_bytes=GIB, cache_policy="x")]
    for chart in charts(split(rows)):
        svg = chart_figure(chart, 5.0)
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert "target" in svg
        assert len(chart.series) <= 8
    assert charts(split([row()])) == []


def test_numbers_lie_where_their_logarithm_does() -> None:
    """Twice as much is as far everywhere; values without a logarithm lie evenly; labels keep their distance."""
    (chart,) = charts(
        split([row(1 + i, storage_read_bytes_per_s=2.0**i * 1e8, cache_policy=n) for i in range(9) for n in "ab"])
    )
    steps = [b - a for a, b in pairwise(chart.places)]
    assert steps == pytest.approx([math.log(2)] * 8)
    (plain,) = charts(split([row(1 + i, context=c, cache_policy=n) for i, c in enumerate((None, 8, 64)) for n in "ab"]))
    assert (plain.places, plain.labels) == ((0.0, 1.0, 2.0), ("own", "8", "64"))
    assert _ticks((0.0, 0.1, 5.0, 5.2, 9.0)) == [0, 2, 4]


def test_a_map_of_one_colour_is_a_sentence(tmp_path: Path) -> None:
    """Where neither input makes a difference no map is drawn; the title says so."""
    rows = [row(7, ram_cap_bytes=cap, storage_read_bytes_per_s=rate) for cap in (GIB, 2 * GIB) for rate in (1e9, 2e9)]
    page = page_of(rows, tmp_path)
    assert "img" not in page.tags
    assert "7.00 tokens/s everywhere; RAM cap and storage read make no difference" in page.text


def test_only_so_many_maps_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one with the fastest scenario goes first, and the page says how many there are."""
    monkeypatch.setattr(sweep_page, "MAX_MAPS", 1)
    rows = [each for context in (1, 2, 3) for each in caps_by_speeds((GIB, 2 * GIB), (1e9, 4e9), context=context)]
    rows = [replace(each, tokens_per_s=each.tokens_per_s * (each.context or 0)) for each in rows]
    page = page_of(rows, tmp_path)
    assert page.tags.count("img") == 1
    assert "context 3: 3.00 to 12.0 tokens/s" in page.text
    assert "1 of 3 maps are drawn" in page.text


def test_a_target_marks_maps_but_not_those_of_a_bound(tmp_path: Path) -> None:
    """The thick line is drawn where a runtime reaches the target."""
    rows = caps_by_speeds((GIB, 2 * GIB), (1e9, 4e9))
    rows += [bound(2 * each.tokens_per_s, **_place(each)) for each in rows]
    page = page_of(rows, tmp_path, 2.0)
    assert "Yes: 3 of 4 scenarios reach 2 tokens/s" in page.text
    assert page.text.count("Bold, inside the thick line: the value reaches 2 tokens/s.") == 1


def test_every_text_of_a_person_is_escaped(tmp_path: Path) -> None:
    """A model's or a device's name that holds markup is shown, not obeyed; no control character reaches a terminal."""
    bad = "<script>alert('x')</script> $x_1$"
    rows = [row(5, model=bad, warnings=bad), row(6, model="m", device=bad), failed(bad, model=bad)]
    page = page_of(rows, tmp_path)
    assert "script" not in page.tags
    assert page.text.count(bad) >= 4
    assert "\x1b" not in printed([row(5, model="\x1b[31m"), row(6, model="m", warnings="\x1b[31m")])


def test_the_figures_are_images_inside_the_page(tmp_path: Path) -> None:
    """Nothing from outside; every image is an SVG."""
    for source in page_of(list(examples.sweep()), tmp_path).sources:
        assert ElementTree.fromstring(base64.b64decode(source.partition(",")[2])).tag.endswith("svg")


def test_a_matrix_for_each_combination_of_the_others() -> None:
    """Caps down, speeds across; x cannot run, * resident, blank not run, + reaches the target."""
    rows = [row for row in examples.sweep() if (row.ram_cap_bytes, row.storage_read_bytes_per_s) != (examples.GIB, 7e9)]
    lines = [line.split() for line in printed(rows).splitlines()]
    assert sum(line[:2] == ["RAM", "cap"] and "MB/s" in line for line in lines) == 2
    assert ["1", "GiB", "3.85", "9.42", "13.0", "15.4", "17.6"] in lines
    assert ["512", "MiB", *"xxxxxx"] in lines
    assert ["3", "GiB", *["19.6*"] * 6] in lines
    assert ["1", "GiB", "3.85", "9.42", "13.0", "15.4+", "17.6+"] in [
        line.split() for line in printed(rows, 15).splitlines()
    ]


def test_a_wide_sweep_is_cut_into_blocks() -> None:
    """Sixteen speeds do not fit into 100 columns; each still heads one column."""
    rows = caps_by_speeds((GIB, 2 * GIB), tuple(i * 1e8 for i in range(1, 17)))
    text = printed(rows)
    heads = [line for line in text.splitlines() if line.startswith("RAM cap  ") and "B/s" in line]
    assert sum(line.count("B/s") for line in heads) == 16
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("width", [50, 100, 200])
@pytest.mark.parametrize(
    "make",
    [
        lambda: list(examples.sweep()),
        lambda: [row(), row(6, model="m" * 60)],
        lambda: [row(cap, ram_cap_bytes=cap * GIB, cache_policy=name) for cap in (1, 2) for name in POLICIES],
        lambda: [row(warnings="w " * 100)],
    ],
)
def test_no_line_is_wider_than_the_console(make: Callable[[], list[SweepRow]], width: int) -> None:
    """Matrices, lists, policies side by side, one scenario: everything wraps."""
    text = printed(make(), 8.0, width)
    assert max(len(line) for line in text.splitlines()) <= min(width, 100)
    assert "…" not in text


def test_one_number_and_policies_stand_side_by_side() -> None:
    """RAM caps down, policies across, the bound called one."""
    rows = [
        row(cap * (i + 1), cache_policy=n, ram_cap_bytes=cap * GIB) for cap in (1, 2) for i, n in enumerate(POLICIES)
    ]
    rows += [bound(9, ram_cap_bytes=cap * GIB) for cap in (1, 2)]
    lines = [line.split() for line in printed(rows).splitlines()]
    assert ["RAM", "cap", *POLICIES, "belady", "(bound)"] in lines
    assert ["2", "GiB", "2.00", "4.00", "6.00", "9.00"] in lines


def test_a_large_grid_is_colours_and_a_few_numbers(tmp_path: Path) -> None:
    """Thirty values each way: no number in a cell of the map, and a matrix of the terminal with both ends."""
    caps, speeds = tuple(range(GIB, 31 * GIB, GIB)), tuple(i * 1e8 for i in range(1, 31))
    rows = caps_by_speeds(caps, speeds)
    rows[0] = blocked("no", **_place(rows[0]))
    page = page_of(rows, tmp_path, 20.0)
    assert "Grey: cannot run. Inside the thick line: the value reaches 20 tokens/s. Marked: the fastest" in page.text
    svg = base64.b64decode(page.sources[0].partition(",")[2]).decode()
    assert "data:image/png" in svg
    assert len(svg) < 200_000
    lines = [line.split() for line in printed(rows).splitlines()]
    matrix = [line for line in lines if line[1:2] == ["GiB"] and len(line) > 2]
    assert [matrix[0][0], matrix[23][0]] == ["30", "1"]
    assert any("24 values of an input are shown" in " ".join(line) for line in lines)


def test_a_column_that_is_the_same_in_all_lines_is_told_once() -> None:
    """Hit rate and bound; the speeds stay; a dense model has no hit rate."""
    text = printed([row(10, device="a"), row(10, device="b")])
    assert "in all: hit rate 50.0 %, bound by storage bandwidth" in text
    assert sum(line.split()[1:3] == ["10.0", "8.00"] for line in text.splitlines()) == 2
    assert "hit rate" not in printed([row(10, device=name, top_k=0, bound_by="compute") for name in "ab"])


def test_names_in_the_table_may_break_and_numbers_may_not(tmp_path: Path) -> None:
    """A page of two models with long names keeps its last column; a number stays on one line."""
    rows = [row(10, model="a-long-model-name-with-parts", ram_cap_bytes=GIB), row(12, ram_cap_bytes=2 * GIB)]
    write_sweep_report(rows, tmp_path / "sweep.html", PRINT)
    page = (tmp_path / "sweep.html").read_text(encoding="utf-8")
    assert "<td>a-long-model-name-with-parts</td>" in page
    assert "table.tight td.l { white-space: normal; }" in page
    assert '<td class="n">' in page


def test_the_number_of_a_bar_lies_over_the_line_of_the_target() -> None:
    """On paper of its own, drawn after the line."""
    (chart,) = charts(split([row(10, cache_policy="lru"), row(12, cache_policy="lfu")]))
    svg = chart_figure(chart, 12.5)
    line, white = svg.index("stroke-dasharray"), svg.rindex("#ffffff")
    assert line < white


def test_a_target_far_out_of_reach_is_not_drawn_and_leaves_the_speeds_their_room() -> None:
    """One within sight widens the axis up to it; warnings of the drawing library would fail this test."""
    names = "lru", "lfu"
    caps = [row(2.0 * n, ram_cap_bytes=n * GIB, cache_policy=name) for n in (1, 2, 3) for name in names]
    lines = charts(split(caps))[0]
    bars = charts(split([row(speed, cache_policy=name) for name, speed in (("lru", 3.0), ("lfu", 5.0))]))[0]
    assert bars.across is None
    assert lines.across is not None
    for chart in (lines, bars):
        assert "target 9" in chart_figure(chart, 9.0)
        assert chart_figure(chart, 1000.0) == chart_figure(chart)
