"""A wheel, unpacked elsewhere, works with all its data files: nothing is read from the source tree."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, unpacked into an empty folder."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if tracked.returncode:
        pytest.skip("not a git checkout: no list of the project's own files")
    for name in tracked.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file() and not name.startswith("tests/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


def run(site: Path, *arguments: str) -> str:
    """The command from the unpacked wheel, in its own folder, not from the source tree."""
    code = f"import command_line.app as app; assert app.__file__.startswith({str(site)!r}); app.main()"
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=site.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_answers_with_shipped_names(unpacked: Path, tmp_path: Path) -> None:
    """Device, model, trace and report template all come along."""
    page = tmp_path / "page.html"
    names = ["--model", "smallthinker-4b-a0.6b", "--hardware", "raspberry-pi-5-nvme"]
    trace = ["--trace", "tiny-smallthinker-switching", "--ram-cap", "1GiB", "--engine", "fast"]
    answer = json.loads(run(unpacked, "simulate", *names, *trace, "--json", "--output", str(page)))
    assert answer["verdict"] == "streams"
    assert "<html" in page.read_text(encoding="utf-8")


def test_everything_shipped_is_listed(unpacked: Path) -> None:
    """The wheel has every device, model, trace and weight file of the tree."""
    for folder in ("hardware_profiles/devices", "simulator/model/specs", "traces/samples", "reference_runtime/weights"):
        here = {path.name for path in (ROOT / folder).glob("*.*") if path.is_file()}  # no prepared store
        assert {path.name for path in (unpacked / folder).glob("*.*")} == here
        assert here or folder.endswith("weights")
