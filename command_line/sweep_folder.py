"""A sweep's folder seen from the command: the conditions behind its numbers, its report, and reading it back."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from moeplan.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.question import Prepared
    from simulator.result import SweepRow
    from simulator.sweeps.definition import SweepDefinition
    from simulator.sweeps.scenarios import Inputs

FILE_NAME = "sweep.parquet"
METADATA_KEY = b"moeplan.sweep"
MAX_HEAT_MAPS = 24  # a picture takes a third of a second; more are no report
# conditions that vary from row to row, by the axis that makes them vary
ALWAYS_IN_ROWS = ("ram_cap", "storage", "cache", "prefetch")
IN_ROWS = {"context": "context", "threads": "threads", "layout": "expert_layout", "trace": "trace_source"}


def sweep_conditions(definition: "SweepDefinition", inputs: "Inputs") -> dict[str, str]:
    """What holds for all rows, in words, and what a reader must not miss at the smallest RAM cap."""
    from simulator.policies import OFFLINE_POLICIES
    from simulator.small_print import small_print, warnings_of

    axes = definition.axes
    names = {"model": "models", "hardware": "devices"}
    several = {key: f"{len(axes[key])} {word}" for key, word in names.items() if len(axes[key]) > 1}
    prepared = _first_prepared(definition, inputs)
    if prepared is None:
        return {"model": several.get("model", str(axes["model"][0]))} | {
            "device": several.get("hardware", str(axes["hardware"][0]))
        }
    warnings = list(warnings_of(prepared))
    conditions = {"before you rely on this": " ".join(warnings)}
    conditions |= small_print(prepared, "fast", definition.n_samples, definition.seed)
    gone = [*ALWAYS_IN_ROWS, *(key for axis, key in IN_ROWS.items() if len(axes[axis]) > 1)]
    for name in gone:
        conditions.pop(name, None)
    if "model" in several or len(axes["quantisation"]) > 1:
        conditions["model"] = several.get("model", prepared.question.model.title) + "; weights: see the rows"
    if "hardware" in several:
        conditions["device"] = several["hardware"]
    offline = [str(name) for name in axes["cache"] if name in OFFLINE_POLICIES]
    if offline:
        conditions["cache"] = f"{', '.join(offline)}: told the future, a bound that no runtime reaches"
    if len(axes["trace"]) > 1:
        conditions["routing"] = f"{len(axes['trace'])} traces"
    if definition.start == "warm":
        conditions["start"] = (
            "warm; resident rows have all experts loaded, the others a cache filled by the trace's head"
        )
    return conditions


def _first_prepared(definition: "SweepDefinition", inputs: "Inputs") -> "Prepared | None":
    """The first scenario that can be asked, with the smallest RAM cap."""
    from simulator.question import prepare
    from simulator.sweeps.rows import ChunkRunner
    from simulator.sweeps.scenarios import chunks

    runner = ChunkRunner(definition, inputs)
    smallest = min(definition.axes["ram_cap"], key=lambda cap: (cap is None, cap))
    for chunk in chunks(definition)[:64]:
        _, cell = next(chunk.cells(definition))
        try:
            question, replay = runner.asked(cell | {"ram_cap": smallest})
            return prepare(question, replay)
        except InputError:
            continue
    return None


def write_sweep_report_of(folder: Path, rows: "Sequence[SweepRow]") -> str:
    """Write report.html beside the table; the reason where there is none to write."""
    from reports.grid import as_grids

    told = [row for row in rows if row.verdict != "failed"]
    if not told:
        return "every scenario failed"
    n_maps = len(as_grids(told))
    if n_maps > MAX_HEAT_MAPS:
        return f"{n_maps} heat maps are more than anybody reads; {FILE_NAME} has all rows"
    from reports.html import write_sweep_report  # half a second of matplotlib

    write_sweep_report(told, folder / "report.html", read_conditions(folder))
    return ""


def read_conditions(folder: Path) -> dict[str, str]:
    """What holds for all rows of a finished sweep, in words."""
    import pyarrow.parquet as pq

    found: dict[str, str] = json.loads(pq.read_metadata(folder / FILE_NAME).metadata[METADATA_KEY])
    return found


def read_sweep(folder: Path) -> "tuple[list[SweepRow], dict[str, str]]":
    """The rows and the conditions of a sweep folder. Raises InputError."""
    import pyarrow as pa

    from simulator.result import SweepRow
    from simulator.sweeps.store import read_table

    path = folder / FILE_NAME
    try:
        table = read_table(path)
        conditions = json.loads((table.schema.metadata or {})[METADATA_KEY])
        return [SweepRow(**row) for row in table.to_pylist()], conditions
    except FileNotFoundError as error:
        must = f"must be the folder of a sweep with {FILE_NAME}"
        if (folder / "sweep.json").exists():
            advice = f"finish it with `moeplan sweep --resume --output {folder}`"
            raise InputError(str(folder), must, "a sweep that is not finished", advice) from error
        raise InputError(str(folder), must, "none there") from error
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise InputError(str(path), "must be a whole sweep file", str(error).splitlines()[0]) from error
