"""
Decode speeds that others published: the rows of public_measurements.csv, read strictly.

A row holds the figures of its source and how this project describes it: which model spec, tensor type and profile.
An empty cell is a fact that the source does not state.
"""

import csv
import io
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from moeplan.errors import InputError, nearest
from moeplan.files import read_text

TABLE = Path(__file__).with_name("public_measurements.csv")

RowClass = Literal["in-RAM CPU dense", "in-RAM CPU MoE", "streaming"]
CLASSES: tuple[RowClass, ...] = get_args(RowClass)


@dataclass(frozen=True)
class PublicRow:
    """
    One published decode speed and its conditions; None or "" is not stated.

    spec, quantisation, profile: how the row is described here; context: keys in the cache when decode begins;
    n_cached_experts or cache_mib: the expert cache; hit_rate, read_mib_per_token: what the source counted there;
    lanes: reads in flight; assumed: facts that the description adds beyond the empty cells, and that code knows by
    name; not_predicted: why the row cannot be, "" where it can.
    """

    id: str
    row_class: RowClass
    model: str
    spec: str
    quantisation: str
    device: str
    profile: str
    engine: str
    threads: int | None
    context: int | None
    n_generated: int | None
    ram_cap_gib: float | None
    n_cached_experts: int | None
    cache_mib: float | None
    hit_rate: float | None
    read_mib_per_token: float | None
    lanes: int | None
    lm_head_predictor: bool
    file_gb: float | None
    tokens_per_s: float
    assumed: tuple[str, ...]
    not_predicted: str
    confidence: str
    note: str
    source_url: str


COLUMNS = ("class" if name == "row_class" else name for name in PublicRow.__dataclass_fields__)
HEADER = tuple(COLUMNS)


@cache
def public_rows() -> tuple[PublicRow, ...]:
    """The shipped table."""
    return read_rows(read_text(TABLE), str(TABLE))


def read_rows(text: str, where: str) -> tuple[PublicRow, ...]:
    """The rows of a table in CSV. Raises InputError that names the line and the column."""
    reader = csv.DictReader(io.StringIO(text), strict=True)
    if tuple(reader.fieldnames or ()) != HEADER:
        raise InputError(where, f"must have the columns {', '.join(HEADER)}", reader.fieldnames)
    rows = tuple(_row(cells, f"{where}:{line}") for line, cells in enumerate(reader, start=2))
    if len({row.id for row in rows}) != len(rows):
        raise InputError(where, "every id must stand once", "one of them twice")
    return rows


def _row(cells: dict[str, str], where: str) -> PublicRow:
    if None in cells or None in cells.values():
        raise InputError(where, f"must have {len(HEADER)} cells", "more or fewer")
    row_class = next((known for known in CLASSES if known == cells["class"]), None)
    if row_class is None:
        raise InputError(f"{where}: class", "must be a known class", cells["class"], nearest(cells["class"], CLASSES))
    row = PublicRow(
        id=cells["id"],
        row_class=row_class,
        model=cells["model"],
        spec=cells["spec"],
        quantisation=cells["quantisation"],
        device=cells["device"],
        profile=cells["profile"],
        engine=cells["engine"],
        threads=_count(cells, "threads", where),
        context=_count(cells, "context", where),
        n_generated=_count(cells, "n_generated", where),
        ram_cap_gib=_number(cells, "ram_cap_gib", where),
        n_cached_experts=_count(cells, "n_cached_experts", where),
        cache_mib=_number(cells, "cache_mib", where),
        hit_rate=_number(cells, "hit_rate", where),
        read_mib_per_token=_number(cells, "read_mib_per_token", where),
        lanes=_count(cells, "lanes", where),
        lm_head_predictor=cells["lm_head_predictor"] == "yes",
        file_gb=_number(cells, "file_gb", where),
        tokens_per_s=_number(cells, "tokens_per_s", where) or 0.0,
        assumed=tuple(filter(None, cells["assumed"].split(";"))),
        not_predicted=cells["not_predicted"],
        confidence=cells["confidence"],
        note=cells["note"],
        source_url=cells["source_url"],
    )
    _check(row, where)
    return row


def _check(row: PublicRow, where: str) -> None:
    if row.tokens_per_s <= 0:
        raise InputError(f"{where}: tokens_per_s", "must be above zero", row.tokens_per_s)
    if not row.source_url.startswith("https://"):
        raise InputError(f"{where}: source_url", "must be the page of the figure", repr(row.source_url))
    if not row.not_predicted and not (row.spec and row.profile and row.quantisation):
        raise InputError(where, "must have spec, quantisation and profile, or say why it is not predicted", row.id)


def _number(cells: dict[str, str], column: str, where: str) -> float | None:
    try:
        value = float(cells[column]) if cells[column] else None
    except ValueError:
        raise InputError(f"{where}: {column}", "must be a number or empty", repr(cells[column])) from None
    if value is not None and not 0 <= value < float("inf"):
        raise InputError(f"{where}: {column}", "must be finite and not negative", value)
    return value


def _count(cells: dict[str, str], column: str, where: str) -> int | None:
    value = _number(cells, column, where)
    if value is not None and value != int(value):
        raise InputError(f"{where}: {column}", "must be a whole number or empty", value)
    return None if value is None else int(value)
