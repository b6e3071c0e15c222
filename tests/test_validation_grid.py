"""What a validation grid may say, and in which order its cells run."""

from itertools import pairwise
from pathlib import Path

import pytest
from validation_grid_files import write_grid

from moeplan.errors import InputError
from reference_runtime.validation_grid.grid import SHIPPED_GRID, Cell, read_grid_file
from reference_runtime.validation_grid.prepared import ReadyModel
from reference_runtime.validation_grid.run_cell import cell_arguments
from reference_runtime.validation_grid.run_order import MIN_APART, planned_runs


@pytest.fixture(scope="module")
def grid_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cells on a small random model, and a text of token ids."""
    return write_grid(tmp_path_factory.mktemp("grid"))


# What a grid says


def test_the_shipped_grid_covers_what_it_must() -> None:
    """
    40 cells and more, half on the 4B, a quarter from 2048 tokens, 6 caps of each model, every limit and prefetch; the
    bare disk in 8 cells of the 4B and more, but in fewer than half of those that read.
    """
    grid = read_grid_file(SHIPPED_GRID)
    cells = grid.cells
    assert len(cells) >= 40
    assert grid.repeats >= 2
    assert 2 * sum(cell.model == "4b" for cell in cells) >= len(cells)
    assert 4 * sum(cell.context == 2048 for cell in cells) >= len(cells)
    for model in ("tiny", "4b"):
        own = [cell for cell in cells if cell.model == model]
        assert len({cell.ram_cap for cell in own}) >= 6
        assert {cell.storage_limit for cell in own} >= {"none", "500 MB/s", "200 MB/s", "80 MB/s"}
        assert {cell.prefetch for cell in own} == {"none", "pre-attention"}
        assert {cell.threads for cell in own} == {1, 2}
        assert any(cell.ram_cap_bytes is None for cell in own)
    assert all(cell.n_counted >= 16 for cell in cells)
    reading = [cell for cell in cells if cell.model == "4b" and cell.ram_cap_bytes is not None]
    n_bare = sum(cell.storage_limit_bytes_per_s is None for cell in reading)
    assert 8 <= n_bare < len(reading) / 2


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("threads: 1", "thread: 1", r"grid\.yaml:8: every key must be known, got 'cells\.0\.thread'"),
        ("prompt: 8", "prompt: 8, state: 8", "must have a prompt or a state"),
        ("470 kB", "470 kb", "bits are not accepted"),
        ("20 MB/s", "20 MB", "must be a quantity like .* or none"),
        ("model: small, prompt", "model: big, prompt", "must be one of small, got 'big'"),
        ("pre-attention", "early", "prefetch"),
        ("n_counted: 9", "n_counted: 0", "n_counted"),
        ("repeats: 1", "repeats: 0", "repeats"),
        ("{path: ", "{random: {shape: x, quantisation: Q4_0}, path: ", "must have a path or random weights"),
    ],
)
def test_a_wrong_grid_is_refused(grid_file: Path, tmp_path: Path, old: str, new: str, words: str) -> None:
    """One line that names the file and what must hold."""
    text = grid_file.read_text()
    assert old in text
    bad = tmp_path / "grid.yaml"
    bad.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=words) as refusal:
        read_grid_file(bad)
    assert str(bad) in str(refusal.value)


def test_a_cell_stands_once(grid_file: Path, tmp_path: Path) -> None:
    """Two cells of the same conditions would share a folder."""
    bad = tmp_path / "grid.yaml"
    text = grid_file.read_text()
    bad.write_text(text + text[text.rindex("  - {model") :])
    with pytest.raises(InputError, match="must stand once each, got small-c40-all-free-pre-t1 2 times"):
        read_grid_file(bad)


def test_a_cell_becomes_the_options_of_a_run() -> None:
    """From a state the chunk is one token; without cap and limit neither is given."""
    cells = read_grid_file(SHIPPED_GRID).cells
    model = ReadyModel("4b", "/m.gguf", Path("/m.gguf"), Path("/m.bundle"), (), "a-trace")
    capped = next(cell for cell in cells if cell.name == "4b-c2048-1.9GB-200MBs-pre-t1")
    text = " ".join(cell_arguments(Path("/d"), capped, model))
    assert text == (
        "--model /m.gguf --store /m.bundle --layout bundle --replay-routing a-trace --forced --max-tokens 28 "
        "--warm-up 8 --prefetch pre-attention --threads 1 --prefill-chunk 1 --ram-cap 1.9 GB --storage-limit 200 MB/s "
        "--load-state /d/states/4b-2048.state"
    )
    free = next(cell for cell in cells if cell.name == "4b-p512-all-free-pre-t1")
    text = " ".join(cell_arguments(Path("/d"), free, model))
    assert "--prefill-chunk 512" in text
    assert not any(word in text for word in ("--ram-cap", "--storage-limit", "--load-state"))


def test_a_cell_names_its_conditions() -> None:
    """The name is the folder's: no blanks and no slashes."""
    conditions = {"ram_cap": "1.9 GB", "storage_limit": "500 MB/s", "prefetch": "none", "threads": 2}
    cell = Cell(model="4b", state=2048, n_warm_up=8, n_counted=16, **conditions)
    assert cell.name == "4b-c2048-1.9GB-500MBs-none-t2"
    assert (cell.context, cell.chunk_tokens, cell.n_tokens) == (2048, 1, 2072)


# The order


def test_every_round_runs_every_cell_once_and_repeats_stand_apart() -> None:
    """Shuffled: not the grid's order, and no two rounds alike; a cell's runs are at least MIN_APART apart."""
    grid = read_grid_file(SHIPPED_GRID)
    n_cells, runs = len(grid.cells), planned_runs(grid, repeats=4)
    names = [run.cell.name for run in runs]
    rounds = [names[i : i + n_cells] for i in range(0, len(names), n_cells)]
    assert [run.order for run in runs] == list(range(4 * n_cells))
    assert all(sorted(order) == sorted(cell.name for cell in grid.cells) for order in rounds)
    assert len({tuple(order) for order in [*rounds, [cell.name for cell in grid.cells]]}) == 5
    for name in rounds[0]:
        places = [place for place, other in enumerate(names) if other == name]
        assert min(later - sooner for sooner, later in pairwise(places)) >= MIN_APART


def test_a_cell_may_have_repeats_of_its_own() -> None:
    """Two runs of most cells, three of those that say so, in the order that all would have with three, still apart."""
    grid = read_grid_file(SHIPPED_GRID)
    runs, all_thrice = planned_runs(grid), planned_runs(grid, repeats=3)
    assert all(run in all_thrice for run in runs)
    counts = {cell.name: sum(run.cell is cell for run in runs) for cell in grid.cells}
    assert counts == {cell.name: cell.repeats or grid.repeats for cell in grid.cells}
    assert set(counts.values()) == {2, 3}
    names = [run.cell.name for run in runs]
    for name in counts:
        places = [place for place, other in enumerate(names) if other == name]
        assert min(later - sooner for sooner, later in pairwise(places)) >= MIN_APART


def test_a_part_of_the_grid_keeps_its_order() -> None:
    """A pattern or another number of repeats leaves every run's place as it is, so a grid can be run in parts."""
    grid = read_grid_file(SHIPPED_GRID)
    whole = planned_runs(grid, repeats=3)
    assert planned_runs(grid, repeats=2) == whole[: 2 * len(grid.cells)]
    assert planned_runs(grid, 3, "tiny-c*") == tuple(run for run in whole if run.cell.name.startswith("tiny-c"))
    with pytest.raises(InputError, match=r"must be a pattern that meets a cell, got 'x\*'"):
        planned_runs(grid, pattern="x*")
