"""
Run the validation grid for real; killed at any moment and started again it goes on where it was.

    python -m reference_runtime.validation_grid DIR [--grid FILE] [--cells PATTERN] [--repeats N] [--model-4b FILE]

Every run leaves DIR/cells/CELL-rREPEAT/ with cell.json, run.json, trace.parquet and ops.parquet.  Nothing else should
run on the machine meanwhile; --list shows the runs in their order and what is done.
"""

import argparse
import fcntl
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from moeplan.errors import InputError
from reference_runtime.probe.spot_checks import SpotChecks
from reference_runtime.validation_grid.grid import SHIPPED_GRID, Grid, read_grid_file
from reference_runtime.validation_grid.prepared import ReadyModel, prepare, seal
from reference_runtime.validation_grid.run_cell import Spots, clear_unfinished, is_done, run_cell
from reference_runtime.validation_grid.run_order import PlannedRun, planned_runs

TERMINATED = 128 + signal.SIGTERM  # exit status, as shells count it
LEAST_READ_BYTES = 64 * 10**6  # of a file that spot checks read: far more than the cache of a drive
SPEED_WINDOW_S = 3600.0  # the time left is guessed from all runs of the last hour: they differ much


def run_grid(
    folder: Path,
    grid_file: Path,
    *,
    pattern: str = "*",
    repeats: int | None = None,
    model_4b: Path | None = None,
    spot_arena_bytes: int | None = None,
) -> int:
    """
    Run what is missing of a grid; how many runs that was.  Raises InputError.

    pattern, repeats: see planned_runs; model_4b: a file for the grid's model 4b, otherwise random weights are written;
    spot_arena_bytes: of the spot checks' weights, None: as many as the probe has, with whose times they are compared.
    """
    grid = read_grid_file(grid_file)
    runs = planned_runs(grid, repeats, pattern)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(str(folder), "must be a folder or a new name", error.strerror or error) from error
    with _alone(folder):
        seal(folder, grid_file)
        clear_unfinished(folder)
        missing = [run for run in runs if not is_done(folder, run)]
        if not missing:
            return 0
        cells = list(dict.fromkeys(run.cell for run in missing))
        with _progress() as progress:
            task = progress.add_task("preparing", total=len(missing))

            def report(doing: str) -> None:
                progress.update(task, description=doing)

            models = prepare(folder, grid, cells, {} if model_4b is None else {"4b": model_4b}, report)
            os.sync()  # what was written goes to the disk now and not while a cell reads from it
            with SpotChecks(_large_store(models), folder, _threads(grid), spot_arena_bytes) as checks:
                report("first spot checks")
                spots: Spots = checks.take()
                progress.reset(task)
                for run in missing:
                    report(run.name)
                    spots = run_cell(folder, run, models[run.cell.model], spots, checks.take)
                    progress.advance(task)
    return len(missing)


def _threads(grid: Grid) -> tuple[int, ...]:
    """Those of all cells: the checks are the same whatever part of the grid is run."""
    return tuple(sorted({cell.threads for cell in grid.cells}))


def _large_store(models: Mapping[str, ReadyModel]) -> Path | None:
    """
    The largest store where it is large enough to be read for the spot checks, else None.

    models: of all cells of the grid, so that it is the same file whatever cells are missing when a grid goes on.
    """
    store = max((model.store for model in models.values()), key=lambda path: path.stat().st_size)
    return store if store.stat().st_size >= LEAST_READ_BYTES else None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Raises InputError where another process runs cells in this folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise InputError(str(folder), "must be used by one run at a time", "another that is running") from error
    finally:
        os.close(descriptor)


def _progress() -> Progress:
    """A bar over runs on standard error with the time left; nothing where that is no terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    return Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
        refresh_per_second=1,  # drawing takes time from what is measured
        speed_estimate_period=SPEED_WINDOW_S,
    )


def _list(folder: Path, runs: Sequence[PlannedRun]) -> str:
    return "\n".join(f"{run.order:4d}  {'done' if is_done(folder, run) else '-':4}  {run.name}" for run in runs)


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)


def main(argv: list[str] | None = None) -> None:
    """Command line; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--grid", type=Path, default=SHIPPED_GRID, help="cells to run; default: the shipped ones")
    parser.add_argument("--cells", default="*", metavar="PATTERN", help="only cells of such names, e.g. 'tiny-*'")
    parser.add_argument("--repeats", type=int, help="runs of each cell; default: as the grid says")
    parser.add_argument("--model-4b", type=Path, help="a GGUF for the model 4b; default: one is written to DIR/models")
    parser.add_argument("--list", action="store_true", help="only show the runs in their order")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _stop)  # as an exception, which ends the cell's process and removes its folder
    try:
        if args.repeats is not None and args.repeats < 1:
            raise InputError("--repeats", "must be at least 1", args.repeats)
        if args.list:
            print(_list(args.folder, planned_runs(read_grid_file(args.grid), args.repeats, args.cells)))
            return
        n_runs = run_grid(args.folder, args.grid, pattern=args.cells, repeats=args.repeats, model_4b=args.model_4b)
        print(f"{args.folder}: {n_runs} runs made, nothing is missing")
    except InputError as error:
        parser.exit(2, f"validation_grid: {error}\n")
    except KeyboardInterrupt:
        parser.exit(128 + signal.SIGINT, "validation_grid: stopped; start again to go on\n")


if __name__ == "__main__":
    main()
