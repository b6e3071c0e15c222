"""One run of a cell between two spot checks of the machine, and the folder that it leaves: whole or not there."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from moeplan.files import flush_to_disk
from reference_runtime.conditions import code_fingerprint
from reference_runtime.processor_time import load_average, processor_times, steal_frac
from reference_runtime.validation_grid.child import run_moeplan
from reference_runtime.validation_grid.grid import Cell
from reference_runtime.validation_grid.prepared import ReadyModel, model_arguments, state_path
from reference_runtime.validation_grid.run_order import PlannedRun

SCHEMA_VERSION = 1
Spots = Mapping[str, float]  # seconds of each spot check by its name


def cells_folder(folder: Path) -> Path:
    """Where the runs of a grid lie."""
    return folder / "cells"


def is_done(folder: Path, run: PlannedRun) -> bool:
    """Whether a run has been made; its folder has its name only when it is whole."""
    return (cells_folder(folder) / run.name).is_dir()


def clear_unfinished(folder: Path) -> None:
    """Remove what a run that was killed has left, here and of its prompt."""
    for left in (*cells_folder(folder).glob(".*"), *folder.glob(".prompt-*")):
        shutil.rmtree(left, ignore_errors=True)


def run_cell(folder: Path, run: PlannedRun, model: ReadyModel, before: Spots, take: Callable[[], Spots]) -> Spots:
    """
    Run a cell once and leave its folder, which appears under its name when it is whole and on the disk.

    before: the spot checks that were taken last, nothing lies between; take: takes those after the run, which are
    returned.  Raises InputError.
    """
    cells = cells_folder(folder)
    cells.mkdir(exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{run.name}-", dir=cells))
    try:
        work.chmod(0o755)
        started_at, average, times, began_s = datetime.now(UTC), load_average(), processor_times(), perf_counter()
        arguments = [*cell_arguments(folder, run.cell, model), "--record", str(work)]
        run_moeplan(run.name, arguments, model.text[: run.cell.n_tokens], folder)
        measured = {
            "started_at": started_at.isoformat(timespec="seconds"),
            "seconds": perf_counter() - began_s,
            "load_average": average,
            "steal_frac": steal_frac(times, processor_times()),
        }
        after = take()
        measured["spot_checks"] = {"before": before, "after": after}
        (work / "cell.json").write_text(json.dumps(cell_json(run, model, measured), indent=1), encoding="utf-8")
        for path in (*work.iterdir(), work):
            flush_to_disk(path)
        os.replace(work, cells / run.name)
        flush_to_disk(cells)
        return after
    finally:
        shutil.rmtree(work, ignore_errors=True)


def cell_arguments(folder: Path, cell: Cell, model: ReadyModel) -> list[str]:
    """The options of `moeplan run` that make a cell."""
    found = [
        *model_arguments(model),
        "--forced",
        *("--max-tokens", str(cell.n_decode)),
        *("--warm-up", str(cell.n_warm_up)),
        *("--prefetch", cell.prefetch),
        *("--threads", str(cell.threads)),
        *("--prefill-chunk", str(cell.chunk_tokens)),
    ]
    if cell.ram_cap_bytes is not None:
        found += ["--ram-cap", cell.ram_cap]
    if cell.storage_limit_bytes_per_s is not None:
        found += ["--storage-limit", cell.storage_limit]
    if cell.state is not None:
        found += ["--load-state", str(state_path(folder, cell))]
    return found


def cell_json(run: PlannedRun, model: ReadyModel, measured: Mapping[str, Any]) -> dict[str, Any]:
    """cell.json: the conditions, the place in the order, and what the machine did; n_prompt: tokens that were fed."""
    cell = run.cell
    return {
        "schema_version": SCHEMA_VERSION,
        "cell": cell.name,
        "repeat": run.repeat,
        "order": run.order,
        "model": model.path.name,
        "model_path": model.given,
        "model_class": cell.model,
        "ram_cap_bytes": cell.ram_cap_bytes,
        "storage_limit_bytes_per_s": cell.storage_limit_bytes_per_s,
        "prefetch": cell.prefetch,
        "context": cell.context,
        "threads": cell.threads,
        "n_prompt": cell.prompt or 0,
        "n_warm_up": cell.n_warm_up,
        "n_counted": cell.n_counted,
        "routing": model.replay_routing or "own",
        "code": code_fingerprint(),
        "spin_count": os.environ["GOMP_SPINCOUNT"],  # set when the kernels are imported, and inherited by the run
        **measured,
    }
