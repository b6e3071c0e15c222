"""A sweep on disk: sweep.parquet with every input beside every output, and report.html."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from moeplan.errors import InputError
from moeplan.files import atomic_path

if TYPE_CHECKING:
    from simulator.question import Question
    from simulator.result import SweepRow

FILE_NAME = "sweep.parquet"
METADATA_KEY = b"moeplan.sweep"


def write_sweep(question: "Question", rows: "list[SweepRow]", folder: Path, seed: int) -> None:
    """Write the table with its conditions in the metadata, and the report beside it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from reports.html import write_sweep_report
    from simulator.question import prepare
    from simulator.small_print import small_print, warnings_of
    from simulator.sweep import N_SWEEP_SAMPLES, sweep_columns

    smallest = prepare(replace(question, ram_cap_bytes=min(row.ram_cap_bytes for row in rows)))
    conditions = {"before you rely on this": " ".join(warnings_of(smallest))}
    conditions |= small_print(smallest, "fast", N_SWEEP_SAMPLES, seed)
    for name in ("ram_cap", "storage", "cache", "prefetch"):  # these vary from row to row
        conditions.pop(name, None)
    if question.start == "warm":
        conditions["start"] = (
            "warm; resident rows have all experts loaded, the others a cache filled by the trace's head"
        )
    table = pa.table(sweep_columns(rows)).replace_schema_metadata({METADATA_KEY: json.dumps(conditions).encode()})
    with atomic_path(folder / FILE_NAME) as temporary:
        pq.write_table(table, temporary)
    write_sweep_report(rows, folder / "report.html", conditions)


def read_sweep(folder: Path) -> "tuple[list[SweepRow], dict[str, str]]":
    """The rows and the conditions of a sweep folder. Raises InputError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from simulator.result import SweepRow

    path = folder / FILE_NAME
    try:
        table = pq.read_table(path)
        conditions = json.loads((table.schema.metadata or {})[METADATA_KEY])
        return [SweepRow(**row) for row in table.to_pylist()], conditions
    except FileNotFoundError as error:
        raise InputError(str(folder), f"must be the folder of a sweep with {FILE_NAME}", "none there") from error
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise InputError(str(path), "must be a whole sweep file", str(error).splitlines()[0]) from error
