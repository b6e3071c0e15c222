"""From runs to cells, classes and groups, by hand."""

import math
from dataclasses import replace

import pytest
from validation_cells import CONDITIONS, made_cell, made_run

from simulator.validation.cell_result import CellComparison, CountPair, Pair
from simulator.validation.summaries import summaries, trends
from simulator.validation.tables import cell_comparison, class_of, n_boundary_cells, spread_frac


def test_a_cell_is_the_median_of_its_runs() -> None:
    """Speed, error and noise by hand; one run has no noise."""
    runs = [made_run(measured, 11.0) for measured in (9.0, 10.0, 12.0)]
    cell = cell_comparison("a", CONDITIONS, runs)
    assert cell.measured_tokens_per_s == 10.0
    assert cell.error_frac == pytest.approx(0.1)
    assert cell.noise_frac == pytest.approx(0.3)
    assert cell.in_interval
    drifted = made_cell(measured=13.2, predicted=11.0)
    assert (drifted.in_interval, drifted.in_interval_with_noise) == (False, True)
    assert cell.miss_rate == 0.25
    assert cell.bytes_per_token == 1e6
    assert made_cell().noise_frac is None
    assert not made_cell(measured=20.0, predicted=10.0).in_interval


def test_errors_to_both_sides_do_not_hide_each_other() -> None:
    """
    Repeats that were predicted 25 % too fast and 20 % too slow have no error as a cell, and both errors beside it; an
    op that is off to and fro by run is off, and the worst one, though another has the larger mean.
    """
    runs = [
        made_run(8.0, 10.0, ops={"attention": Pair(0.06, 0.05), "wait": Pair(0.04, 0.075)}),
        made_run(12.5, 10.0, ops={"attention": Pair(0.06, 0.05), "wait": Pair(0.04, 0.006)}),
    ]
    cell = cell_comparison("a", CONDITIONS, runs)
    assert cell.error_frac == pytest.approx(0)
    assert cell.run_errors == (pytest.approx(0.25), pytest.approx(-0.2))
    assert cell.ops["wait"].difference == pytest.approx(-0.0005)
    assert cell.off_s == {"attention": pytest.approx(0.01), "wait": pytest.approx(0.0345)}
    assert cell.worst_op == "wait"
    assert cell.reason.endswith("; by run -35.0 ms to +34.0 ms")
    every = summaries([cell])[0]
    assert every.median_abs_error_frac == pytest.approx(0)
    assert every.run_median_abs_error_frac == pytest.approx(0.225)
    assert every.run_p90_abs_error_frac == pytest.approx(0.245)


def test_the_class_is_the_measured_share_of_waiting() -> None:
    """Below 5 % compute-bound, above 40 % storage-bound; waiting without a miss is not counted."""
    classes = [class_of(share) for share in (0.0, 0.049, 0.05, 0.4, 0.41)]
    assert classes == ["compute-bound"] * 2 + ["balanced"] * 2 + ["storage-bound"]
    assert made_cell(wait_s=0.05).cell_class == "storage-bound"
    assert made_cell(wait_s=0.05, miss_wait_s=Pair(0.0, 0.001)).cell_class == "compute-bound"


def test_summaries_by_hand() -> None:
    """All and quiet cells, by class; a cell that ran once is not quiet, since nobody knows."""
    noisy = cell_comparison("n", CONDITIONS, [made_run(9.0, 15.0), made_run(11.0, 15.0)])
    quiet = cell_comparison("q", CONDITIONS, [made_run(10.0, 10.5), made_run(10.1, 10.5), made_run(10.0, 10.5)])
    groups = {(group.group, group.quiet): group for group in summaries([noisy, quiet, made_cell("o", predicted=8.0)])}
    assert groups["all", False].n_cells == 3
    assert groups["all", False].high_abs_error_frac == pytest.approx(15.0 / math.sqrt(99.0) - 1)
    assert groups["all", False].half_width_frac == pytest.approx(math.sqrt(1.1 / 0.9) - 1)
    assert groups["all", False].median_abs_error_frac == pytest.approx(0.2)
    assert groups["all", False].interval_coverage_frac == pytest.approx(1 / 3)
    assert groups["all", False].naive_median_abs_error_frac == pytest.approx(1.0)
    assert groups["all", True].n_cells == 1
    assert groups["all", True].p90_abs_error_frac == pytest.approx(0.05)
    assert groups["storage-bound", False].median_abs_error_frac is None


def test_the_spread_and_the_boundary() -> None:
    """(max - min) / median; near the boundary from half to twice."""
    assert spread_frac([8.0, 10.0, 11.0]) == pytest.approx(0.3)
    ratios = (None, 0.49, 0.5, 1.0, 2.0, 2.1)
    beside = replace(CONDITIONS, prefetch="pre-attention")
    assert n_boundary_cells([made_cell("a", beside, read_ratio=ratio) for ratio in ratios]) == 3
    assert n_boundary_cells([made_cell(read_ratio=1.0)]) == 0  # on demand nothing is hidden


def test_trends_by_hand() -> None:
    """By model and threads, and by model and miss rate; an end of a range belongs to it; empty ones have no row."""

    def cell(misses: int, predicted: float, threads: int = 1) -> CellComparison:
        counts = CountPair((100 - misses, misses, 1), (100 - misses, misses, 1))
        return made_cell("a", replace(CONDITIONS, threads=threads), predicted=predicted, counts=counts)

    cells = [cell(0, 10.0), cell(5, 11.0), cell(4, 9.0), cell(61, 8.0, threads=2), cell(100, 7.0, threads=2)]
    found = {group.group: (group.n_cells, group.mean_error_frac) for group in trends(cells)}
    assert found == {
        "tiny, 1 thread": (3, pytest.approx(0)),
        "tiny, 2 threads": (2, pytest.approx(-0.25)),
        "tiny, no miss": (1, pytest.approx(0)),
        "tiny, 0 to 5 % miss": (2, pytest.approx(0)),
        "tiny, 60 to 100 % miss": (2, pytest.approx(-0.25)),
    }
