"""A sweep's folder: it can be gone on with, belongs to one sweep, and is never computed twice."""

import fcntl
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import sweep_kills
from conftest import assert_one_line

from simulator.sweeps import rows as sweep_rows
from simulator.sweeps.scenarios import Chunk

BASE = ("sweep", "--model", "smallthinker-4b-a0.6b", "--hardware", "raspberry-pi-5-nvme")
N_CHUNKS = 4


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """A sweep of four chunks (contexts) of two rows."""
    trace = sweep_kills.small_trace(tmp_path / "trace.parquet")
    grid = ("--ram-cap", "1GiB,own", "--context", "10,20,30,40", "--workers", "1")
    return [*BASE, "--trace", str(trace), *grid, "--output", str(tmp_path / "sweep")]


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the chunks that were computed, as they are; the sweep breaks off before the one in `stop_at`."""
    numbers: list[int] = []
    genuine = sweep_rows.ChunkRunner.rows

    def watched(self: sweep_rows.ChunkRunner, chunk: Chunk) -> list[sweep_rows.IndexedRow]:
        if chunk.number in stop_at:
            raise MemoryError("a test")
        numbers.append(chunk.number)
        return genuine(self, chunk)

    monkeypatch.setattr(sweep_rows.ChunkRunner, "rows", watched)
    stop_at.clear()
    return numbers


stop_at: set[int] = set()


def test_what_is_there_is_not_computed_again(moeplan, arguments: list[str], computed: list[int], tmp_path) -> None:
    """Broken off in the middle and started again: only what is missing; finished: nothing; the same bytes."""
    folder = tmp_path / "sweep"
    stop_at.add(2)
    assert_one_line(moeplan(*arguments), "memory")
    assert_one_line(moeplan("report", str(folder), "--output", str(tmp_path / "page.html")), "not finished", "--resume")
    assert computed == [0, 1]
    stop_at.clear()
    (folder / "parts" / ".00002.parquet.x.part").write_bytes(b"cut off")
    assert moeplan(*arguments).status == 0
    assert computed == [0, 1, 2, 3]
    table = (folder / "sweep.parquet").read_bytes()
    assert not (folder / "parts").exists()
    assert moeplan(*arguments, "--resume").status == 0
    again = moeplan("sweep", "--resume", "--output", str(folder), "--json")
    assert [row["context"] for row in json.loads(again.out)["rows"]] == [10, 10, 20, 20, 30, 30, 40, 40]
    assert computed == [0, 1, 2, 3]
    assert (folder / "sweep.parquet").read_bytes() == table
    other = [*arguments[:-1], str(tmp_path / "other")]
    assert moeplan(*other).status == 0
    assert (tmp_path / "other" / "sweep.parquet").read_bytes() == table


@pytest.mark.parametrize("damage", ["cut", "empty", "other rows"])
def test_a_damaged_part_is_computed_again(
    moeplan, arguments: list[str], computed: list[int], tmp_path: Path, damage: str
) -> None:
    """What a dying disk left of a part is no part."""
    stop_at.add(2)
    moeplan(*arguments)
    stop_at.clear()
    part, other = (tmp_path / "sweep" / "parts" / f"0000{number}.parquet" for number in (1, 0))
    whole = part.read_bytes()
    part.write_bytes({"cut": whole[:-100], "empty": b"", "other rows": other.read_bytes()}[damage])
    assert moeplan(*arguments).status == 0
    assert computed == [0, 1, 1, 2, 3]
    assert pq.read_table(tmp_path / "sweep" / "sweep.parquet").num_rows == 8


def test_another_sweep_is_refused(moeplan, arguments: list[str], tmp_path: Path) -> None:
    """A folder belongs to one definition and to the contents of its files; the line names what differs."""
    assert moeplan(*arguments).status == 0
    before = (tmp_path / "sweep" / "sweep.parquet").read_bytes()
    for change, words in {
        ("--ram-cap", "2GiB,own"): ("ram_cap", "2147483648,own", "1073741824,own"),
        ("--seed", "1"): ("seed 1",),
        ("--cache", "lru-per-layer"): ("cache", "lru-per-layer"),
    }.items():
        assert_one_line(moeplan(*arguments, *change), "must be a new folder or that of the same sweep", *words)
    other = sweep_kills.synthesize(
        n_tokens=40, n_prefill=8, n_moe_layers=32, n_experts=32, top_k=4, zipf=0.8, repeat_frac=0.4, seed=2
    )
    sweep_kills.write_trace(other, tmp_path / "trace.parquet")
    assert_one_line(moeplan(*arguments), "trace.parquet with other content")
    assert (tmp_path / "sweep" / "sweep.parquet").read_bytes() == before


@pytest.mark.parametrize(
    ("changed", "words"),
    [({"schema_version": 0}, "a sweep of another version"), ({"note": "mine"}, "sweep.json edited since")],
)
def test_a_manifest_that_was_edited_is_one_line(
    moeplan, arguments: list[str], tmp_path: Path, changed: dict[str, object], words: str
) -> None:
    """Whatever differs in it, also what is no input of a sweep."""
    assert moeplan(*arguments).status == 0
    path = tmp_path / "sweep" / "sweep.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    assert_one_line(moeplan(*arguments), "must be a new folder or that of the same sweep", words)


def test_two_sweeps_in_one_folder_are_refused(moeplan, arguments: list[str], tmp_path: Path) -> None:
    """While one process holds the lock another gets one line and touches nothing."""
    folder = tmp_path / "sweep"
    folder.mkdir()
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert_one_line(moeplan(*arguments), "must be free", "another sweep")
        assert sorted(path.name for path in folder.iterdir()) == [".lock"]
    assert moeplan(*arguments).status == 0


def test_processes_give_the_same_bytes(moeplan, arguments: list[str], tmp_path: Path) -> None:
    """Two workers on one trace in shared memory: byte for byte the table of one process."""
    assert moeplan(*arguments).status == 0
    two = [*arguments, "--workers", "2", "--output", str(tmp_path / "two")]
    assert moeplan(*two).status == 0
    assert (tmp_path / "two" / "sweep.parquet").read_bytes() == (tmp_path / "sweep" / "sweep.parquet").read_bytes()


def test_other_axes_have_maps_of_their_own(moeplan, arguments: list[str], tmp_path: Path) -> None:
    """Rows that differ in the context never share a cell; scenarios that fail stand in no map and are told."""
    outcome = moeplan(*arguments, "--threads", "own,3", "--storage-read", "1GB/s,2GB/s")
    assert outcome.status == 0
    assert "tokens/s, context 10" in outcome.out
    assert "tokens/s, context 40" in outcome.out
    assert "! 16 of 32 scenarios cannot be asked (threads 3): --threads" in " ".join(outcome.out.split())
    page = (tmp_path / "sweep" / "report.html").read_text()
    assert page.count("<h2>context ") == N_CHUNKS
    assert "16 of 32 scenarios cannot be asked (threads 3): --threads" in page


def test_a_target_can_be_asked_for_at_any_time(moeplan, arguments: list[str], tmp_path: Path) -> None:
    """It is no part of the sweep: the folder stays as it is, the page and the terminal mark what reaches it."""
    assert moeplan(*arguments, "--no-report").status == 0
    table = (tmp_path / "sweep" / "sweep.parquet").read_bytes()
    again = moeplan(*arguments, "--target-tokens-per-s", "0.5")
    assert "Yes: all 8 scenarios reach 0.5 tokens/s" in again.out
    assert (tmp_path / "sweep" / "sweep.parquet").read_bytes() == table
    page = tmp_path / "again.html"
    assert moeplan("report", str(tmp_path / "sweep"), "--output", str(page), "--target-tokens-per-s", "1e6").status == 0
    assert "No: " in page.read_text()
    assert_one_line(moeplan(*arguments, "--target-tokens-per-s", "nan"), "--target-tokens-per-s", "above zero")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--resume"], ("--resume", "must have a sweep in the folder")),
        (["--model", "smallthinker-4b-a0.6b"], ("--hardware", "must be given")),
        ([*BASE[1:], "--trace", "nobody"], ("--trace", "must be a shipped trace")),
        ([*BASE[1:], "--scheduler", "tcp://127.0.0.1:1", "--workers", "2"], ("--workers", "must be left out")),
    ],
)
def test_bad_options_are_one_line(moeplan, tmp_path: Path, options: list[str], words: tuple[str, ...]) -> None:
    """Wrong input stops a sweep before it begins."""
    assert_one_line(moeplan("sweep", *options, "--output", str(tmp_path / "sweep")), *words)


def test_a_folder_that_is_not_a_sweeps_is_refused(moeplan, arguments: list[str], tmp_path: Path) -> None:
    """A table of unknown origin is not written over; a manifest that is none of ours is named."""
    folder = tmp_path / "sweep"
    folder.mkdir()
    (folder / "sweep.parquet").write_bytes(b"mine")
    assert_one_line(moeplan(*arguments), "must be a new folder", "sweep.parquet")
    assert (folder / "sweep.parquet").read_bytes() == b"mine"
    (folder / "sweep.json").write_text("{}")
    assert_one_line(moeplan(*arguments), "must be the manifest of a sweep")
    assert_one_line(moeplan(*arguments[:-1], str(tmp_path / "trace.parquet")), "must be a folder or a new name")
