"""The figures and the wording: what is drawn and said is what the result holds."""

from dataclasses import replace
from xml.etree import ElementTree

import matplotlib
import pytest
import reports_examples as examples

from reports.figures import _shares, layer_figure, memory_figure, time_figure
from reports.grid import as_grids, cell_of, current_row
from reports.heat_map import heat_map
from reports.memory_wording import memory_rows
from reports.wording import number, overlap, overlap_finding, overlap_line, percent, size
from simulator.result import Interval, LayerResult


def n_hatched(svg: str) -> int:
    """Hatched areas in an SVG."""
    return svg.count("fill: url(#")


def test_the_overlap_weighs_layers_by_their_misses() -> None:
    """hidden = sum(h (1 - f)) / sum(1 - f): 0.5 of 0.2 and 1.0 of 0.6 is 0.875; a layer without a miss is left out."""
    layers = (
        LayerResult(0, 1e-3, 2e-3, 1e-3, 0.5, 0.8),
        LayerResult(1, 1e-3, 1e-3, 0.5e-3, 1.0, 0.4),
        LayerResult(2, 1e-3, 0.0, 0.0, None, 1.0),
    )
    check = overlap(replace(examples.streaming_result(), layers=layers))
    assert check.hidden_frac == pytest.approx(0.875)
    assert check.bubble_s == pytest.approx(0.5e-3)
    assert check.bubble_s_per_token == pytest.approx(1.5e-3)
    assert overlap(examples.resident_result()).hidden_frac is None


def test_all_hidden_and_none_hidden_read_differently() -> None:
    """A share of 1 is 'every read', of 0 is 'none', and neither hides behind a rounded percentage."""
    base = examples.streaming_result()
    free = tuple(replace(layer, hidden_frac=1.0, bubble_s=0.0) for layer in base.layers)
    late = tuple(replace(layer, hidden_frac=0.0) for layer in base.layers)
    assert overlap_finding(replace(base, layers=free)) == "Attention hides every read: no layer waits"
    assert overlap_finding(replace(base, layers=late)).startswith("Attention hides none of the reads")


def test_the_memory_columns_add_up() -> None:
    """The parts on storage add up to the file, the resident parts to the resident bytes."""
    for result in (examples.streaming_result(), examples.resident_result(), examples.dense_result()):
        rows = memory_rows(result.memory)
        assert sum(row.storage_bytes or 0 for row in rows) == result.memory.storage_bytes
        assert sum(row.resident_bytes for row in rows) == result.memory.resident_bytes


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0042, "0.0042"),
        (0.1234, "0.123"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (99.96, "100"),
        (1234.4, "1,234"),
    ],
)
def test_numbers_have_three_significant_digits(value: float, text: str) -> None:
    """Also next to a power of ten."""
    assert number(value) == text


def test_shares_and_sizes_do_not_lie_by_rounding() -> None:
    """0.2 % is not 0 %, 99.8 % is not 100 %, and 1023 MiB is 1.00 GiB."""
    assert [percent(x) for x in (0, 0.002, 0.5, 0.998, 1)] == ["0 %", "under 1 %", "50 %", "over 99 %", "100 %"]
    assert size(1023 * 2**20) == "1.00 GiB"
    assert size(729 * 2**20) == "729 MiB"


def test_the_current_row_is_the_plans_own_scenario() -> None:
    """Same cap and same speed; not found where the cap is not in the grid."""
    plan = examples.streaming_plan()
    row = current_row(plan)
    assert row is not None
    assert (row.ram_cap_bytes, row.storage_read_bytes_per_s) == (examples.GIB, 0.419e9)
    assert cell_of(as_grids(plan.grid)[0], row) == (1, 1)
    assert current_row(examples.resident_plan()) is None
    twice = replace(plan, grid=(*plan.grid, replace(row, storage_read_bytes_per_s=0.42e9)))
    assert current_row(twice) == row


def test_the_heat_map_hatches_exactly_the_cells_that_cannot_run() -> None:
    """Six of the thirty cells cannot run."""
    grid = as_grids(examples.grid())[0]
    svg = heat_map(grid, 15.0, (1, 1), 20.0)
    assert n_hatched(svg) == 6
    assert svg.count("cannot") == 6
    assert "9.42" in svg


def test_a_figure_shows_waiting_only_where_something_waits() -> None:
    """Layers hatch their bubbles and late tokens, a token's time its wait; a resident model has neither."""
    streams, resident = examples.streaming_result(), examples.resident_result()
    assert n_hatched(layer_figure(streams.layers)) >= 2 * len(streams.layers)
    assert n_hatched(layer_figure(resident.layers)) == 0
    assert n_hatched(time_figure(streams)) > 0
    assert n_hatched(time_figure(resident)) == 0


def test_figures_leave_matplotlib_as_it_was_and_do_not_depend_on_it() -> None:
    """A person's matplotlibrc neither changes a figure nor is changed by it."""
    before = memory_figure(examples.MEMORY)
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "none", "axes.facecolor": "black"}):
        settings = dict(matplotlib.rcParams)
        assert memory_figure(examples.MEMORY) == before
        assert dict(matplotlib.rcParams) == settings


def test_extreme_shapes_are_drawn() -> None:
    """One layer, 94 layers, a token of microseconds, a grid of one cell and of sixteen columns."""
    many = examples.layers(94)
    fast = replace(examples.streaming_result(), seconds_per_token={"attention": 3e-6, "lm_head": 1e-6})
    wide = as_grids([replace(examples.grid()[-1], storage_read_bytes_per_s=i * 1e8) for i in range(1, 17)])[0]
    single = as_grids(examples.grid()[-1:])[0]
    for svg in (
        layer_figure(many),
        layer_figure(many[:1]),
        time_figure(fast),
        heat_map(wide, None, None, 1.0),
        heat_map(single, 1.0, (0, 0), 0.0),
    ):
        assert ElementTree.fromstring(svg).tag.endswith("svg")


def test_the_interval_is_in_the_examples() -> None:
    """The examples that the other tests read are consistent: low <= value <= high."""
    for result in (examples.streaming_result(), examples.resident_result()):
        speed = result.tokens_per_s
        assert isinstance(speed, Interval)
        assert speed.low <= speed.value <= speed.high


def test_on_demand_reads_are_never_called_hidden() -> None:
    """Without prefetch hidden_frac is what a prefetch would have hidden; the words and the bars say that all wait."""
    result = replace(examples.streaming_result(), prefetch_policy="none")
    assert "nothing is hidden" in overlap_finding(result)
    assert "on demand" in overlap_line(result)
    layer = result.layers[0]
    assert _shares(layer, True) == (layer.no_miss_frac, 0.0, 1 - layer.no_miss_frac)
