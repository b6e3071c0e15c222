"""A sweep starts fast: nothing compiled twice, nothing imported that it does not need; threads change no byte."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sweep_kills

from command_line.console import PIPE_WIDTH
from simulator.sweeps import schedulers
from simulator.sweeps.axes import DEFAULTS
from simulator.sweeps.definition import SweepDefinition
from simulator.sweeps.scenarios import chunks

AXES = ("--ram-cap", "400MiB,500MiB", "--cache", "lru,belady,s3-fifo", "--storage-read", "0.5GB/s,2GB/s", "--no-report")
CODE = "import sys; from command_line import app; sys.argv = ['moeplan', *{arguments!r}]\ntry:\n    app.main()\n"
CODE += "finally:\n    print({{'pandas', 'pyarrow.dataset', 'matplotlib', 'scipy.optimize'}} & set(sys.modules))"


def arguments(trace: Path, folder: Path, *more: str) -> list[str]:
    """A sweep of three chunks."""
    model = ("--model", "smallthinker-4b-a0.6b", "--hardware", "raspberry-pi-5-nvme", "--trace", str(trace))
    return ["sweep", *model, *AXES, "--output", str(folder), *more]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A small trace on disk."""
    return sweep_kills.small_trace(tmp_path / "trace.parquet")


def run(code: str, **environment: str) -> str:
    """What a fresh process prints on either stream."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, **environment},
        cwd=Path(__file__).parent.parent,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_second_sweep_compiles_nothing_and_loads_no_pandas(trace: Path, tmp_path: Path) -> None:
    """All kernels come from numba's cache; pandas and pyarrow's data sets would take a quarter of a second."""
    run(CODE.format(arguments=arguments(trace, tmp_path / "first")))
    again = run(CODE.format(arguments=arguments(trace, tmp_path / "second")), NUMBA_DEBUG_CACHE="1")
    assert "data loaded from" in again
    assert "data saved to" not in again
    assert again.splitlines()[-1] == "set()"


def test_without_a_folder_for_compiled_code_nothing_fails() -> None:
    """Where numba finds no folder to write to, the modules of a sweep are imported all the same."""
    code = "import simulator.sweeps.timing, simulator.cache_passes.miss_counts as passes; print(len(passes.PASSES))"
    nowhere = {"NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator", "NUMBA_CACHE_DIR": ""}
    assert int(run(code, **nowhere)) > 0


def test_threads_processes_and_one_after_the_other_give_the_same_bytes(moeplan, trace: Path, tmp_path: Path) -> None:
    """Default: threads of this process; --workers 2: processes; --workers 1: nothing beside this one."""
    tables = []
    for name, workers in (("threads", ()), ("processes", ("--workers", "2")), ("alone", ("--workers", "1"))):
        assert moeplan(*arguments(trace, tmp_path / name, *workers)).status == 0
        tables.append((tmp_path / name / "sweep.parquet").read_bytes())
    assert tables[0] == tables[1] == tables[2]


def test_what_a_reader_must_not_miss_is_wrapped(moeplan, trace: Path, tmp_path: Path) -> None:
    """The warning stands in lines no longer than the tables above it."""
    out = moeplan(*arguments(trace, tmp_path / "sweep")).out
    told = out[out.index("Before you rely on this\n") :].partition("\n\n")[0].splitlines()[1:]
    assert any("stand-in" in line for line in told)
    assert all(len(line) <= PIPE_WIDTH for line in told)
    assert all(line.startswith(("! ", "  ")) for line in told)


def test_slow_passes_go_first_within_a_trace() -> None:
    """All chunks once; those of one trace stay together, and end with LRU, which is done soonest."""
    axes = {"model": ("m",), "hardware": ("h",), "trace": ("a", "b"), "cache": ("lru", "belady", "s3-fifo")}
    definition = SweepDefinition({**dict.fromkeys(DEFAULTS, ("lru",)), **axes, "layout": ("bundle",)})
    ordered = schedulers.longest_first(chunks(definition))
    assert sorted(chunk.number for chunk in ordered) == list(range(6))
    found = [(chunk.axes["trace"][0], chunk.axes["cache"][0]) for chunk in ordered]
    assert found == [(trace, cache) for trace in "ab" for cache in ("s3-fifo", "belady", "lru")]
