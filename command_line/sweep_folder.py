"""A sweep's folder seen from the command: its report, and reading it back."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from moeplan.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.result import SweepRow

FILE_NAME = "sweep.parquet"
METADATA_KEY = b"moeplan.sweep"
MAX_PAGE_ROWS = 20_000  # a second of work and a few megabytes


def write_sweep_report_of(
    folder: Path, rows: "Sequence[SweepRow]", conditions: dict[str, str], target_tokens_per_s: float | None
) -> str:
    """Write report.html beside the table; the reason where there is none to write."""
    if len(rows) > MAX_PAGE_ROWS:
        return f"{len(rows):,} scenarios are more than a page holds; {FILE_NAME} has all rows"
    from reports.sweep_page import write_sweep_report  # half a second of matplotlib

    write_sweep_report(rows, folder / "report.html", conditions, target_tokens_per_s)
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
