"""What a validation grid checks, makes and picks before and between its runs."""

import fcntl
import json
import os
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
from forward_oracle import random_weights, vocabulary
from validation_grid_files import CONFIG, FROM_PROMPT, NumberedChecks, write_grid

from moeplan.errors import InputError
from reference_runtime.training.export import Q8_0, write_gguf
from reference_runtime.validation_grid.__main__ import run_grid

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def grid_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cells on a small random model, and a text of token ids."""
    return write_grid(tmp_path_factory.mktemp("grid"))


def test_checks_after_a_run_are_those_before_the_next(
    grid_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One take before the first run and one after each: nothing lies between two runs."""
    monkeypatch.setattr("reference_runtime.validation_grid.__main__.SpotChecks", NumberedChecks)
    assert run_grid(tmp_path / "m", grid_file, pattern="small-p8*", repeats=2) == 2
    first, second = (
        json.loads((tmp_path / "m" / "cells" / f"{FROM_PROMPT[:-1]}{repeat}" / "cell.json").read_text())["spot_checks"]
        for repeat in (0, 1)
    )
    assert (first, second) == ({"before": {"1": 1}, "after": {"1": 2}}, {"before": {"1": 2}, "after": {"1": 3}})


@pytest.mark.parametrize(("text", "words"), [("{", "must be a JSON document"), ("[1]", "must be a JSON object")])
def test_damaged_models_are_one_line(grid_file: Path, tmp_path: Path, text: str, words: str) -> None:
    """A models.json that was cut short is named."""
    (tmp_path / "models.json").write_text(text)
    with pytest.raises(InputError, match=rf"models\.json: {words}.*give a new folder") as refusal:
        run_grid(tmp_path, grid_file)
    assert "\n" not in str(refusal.value)


def test_a_cell_that_cannot_run_leaves_nothing(
    grid_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command's own line comes with the cell's name; no folder of that name and nothing half made is there."""
    monkeypatch.setattr("reference_runtime.validation_grid.__main__.SpotChecks", NumberedChecks)
    bad, folder = tmp_path / "grid.yaml", tmp_path / "measured"
    bad.write_text(grid_file.read_text().replace("470 kB", "47 kB"))
    with pytest.raises(InputError, match=r"small-p8-47kB.*exit status 2: moeplan: --ram-cap: must hold"):
        run_grid(folder, bad, pattern="small-p8*")
    assert list((folder / "cells").iterdir()) == []
    assert not list(folder.glob(".*"))


def test_too_little_room_is_told_first(grid_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is made where the disk cannot hold all of it."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("reference_runtime.validation_grid.prepared.shutil.disk_usage", lambda _: usage(9, 0, 10**6))
    with pytest.raises(InputError, match=r"must have .* free for models, stores, states and records, got 977 KiB"):
        run_grid(tmp_path / "m", grid_file)
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["grid.yaml"]


def test_a_text_too_short_is_refused(grid_file: Path, tmp_path: Path) -> None:
    """Before anything runs."""
    bad = tmp_path / "grid.yaml"
    bad.write_text(grid_file.read_text().replace("state: 40", "state: 45"))
    with pytest.raises(InputError, match=r"models\.small\.text: must have 62 tokens for its longest cell, got 60"):
        run_grid(tmp_path / "m", bad)


def test_two_runners_do_not_share_a_folder(grid_file: Path, tmp_path: Path) -> None:
    """The second is refused while the first runs."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="must be used by one run at a time"):
            run_grid(tmp_path, grid_file)
    finally:
        os.close(descriptor)


def test_wrong_options_are_one_line(tmp_path: Path) -> None:
    """Exit status 2, nothing on standard output."""
    command = [sys.executable, "-m", "reference_runtime.validation_grid", str(tmp_path), "--cells", "nothing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_a_grid_that_goes_on_reads_the_same_file(
    grid_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spot checks read the largest store of all cells, also when the cells of that model are done or not meant."""
    large = tmp_path / "large.gguf"
    write_gguf(random_weights(replace(CONFIG, expert_ffn_size=128)), vocabulary(CONFIG.vocab_size), large, Q8_0)
    both, text = tmp_path / "grid.yaml", grid_file.read_text()
    cells = text[text.index("cells:") : text.index("  - {model: small, state")]
    models = (
        text[: text.index("cells:")] + f"  large: {{path: {large}, text: [{grid_file.with_name('text.parquet')}]}}\n"
    )
    both.write_text(models + cells + cells.removeprefix("cells:\n").replace("model: small", "model: large"))
    read: list[Path | None] = []

    def checks(file: Path | None, *others: object) -> NumberedChecks:
        read.append(file)
        return NumberedChecks(file, *others)  # type: ignore[arg-type]

    program = "reference_runtime.validation_grid.__main__"
    monkeypatch.setattr(f"{program}.SpotChecks", checks)
    monkeypatch.setattr(f"{program}.LEAST_READ_BYTES", 1)
    monkeypatch.setattr(f"{program}.run_cell", lambda folder, run, model, spots, take: take())
    for pattern in ("*", "large-*", "small-*"):
        run_grid(tmp_path / "m", both, pattern=pattern)
    assert read == [tmp_path / "m" / "stores" / "large.bundle"] * 3
