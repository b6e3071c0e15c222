"""
A sweep's folder: whatever happens to the machine, it holds a whole sweep or one that can be gone on with.

    sweep.json          the definition and the contents of its files, written before anything is computed
    parts/00012.parquet the rows of one chunk; written beside its place, synced, renamed
    sweep.parquet       all rows in order, made of the parts when they are complete; then the parts go
    .lock               held with flock while a sweep writes here; the system lets go of it when the process dies

Only the process that holds the lock writes, whoever computes.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from moeplan.errors import InputError
from moeplan.files import atomic_path, flush_to_disk, output_target, read_text
from simulator.result import SweepRow
from simulator.sweeps.definition import SweepDefinition, difference, fingerprint
from simulator.sweeps.scenarios import Chunk

if TYPE_CHECKING:
    from simulator.sweeps.rows import IndexedRow

MANIFEST, TABLE, PARTS, LOCK = "sweep.json", "sweep.parquet", "parts", ".lock"
CONDITIONS_KEY, FINGERPRINT_KEY = b"moeplan.sweep", b"moeplan.sweep.fingerprint"
MAX_MANIFEST_BYTES = 64 * 2**20

_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string(), int | None: pa.int64()}
COLUMNS = pa.schema([(item.name, _TYPES.get(item.type, pa.string())) for item in fields(SweepRow)])  # type: ignore
PART_COLUMNS = COLUMNS.append(pa.field("scenario", pa.int64()))


@dataclass(frozen=True)
class SweepFolder:
    """A folder whose lock is held, and the sweep that it holds."""

    path: Path
    fingerprint: str

    def finished(self) -> bool:
        """Whether sweep.parquet is this sweep's."""
        try:
            metadata = pq.read_schema(self.path / TABLE).metadata or {}
        except (OSError, pa.ArrowException):
            return False
        return bool(metadata.get(FINGERPRINT_KEY) == self.fingerprint.encode())

    def done(self, chunks: Sequence[Chunk], definition: SweepDefinition) -> set[int]:
        """Numbers of the chunks whose parts are whole; a part that is not is taken away, to be computed again."""
        found = set()
        for chunk in chunks:
            path = self._part(chunk)
            if path.exists():
                if self._is_whole(path, chunk, definition):
                    found.add(chunk.number)
                else:
                    path.unlink()
        return found

    def _is_whole(self, path: Path, chunk: Chunk, definition: SweepDefinition) -> bool:
        try:
            table = read_table(path)
        except (OSError, pa.ArrowException):
            return False
        if table.schema.names != PART_COLUMNS.names or table.schema.metadata != {FINGERPRINT_KEY: self._key}:
            return False
        return bool(table["scenario"].to_pylist() == [row for row, _ in chunk.cells(definition)])

    @property
    def _key(self) -> bytes:
        return self.fingerprint.encode()

    def _part(self, chunk: Chunk) -> Path:
        return self.path / PARTS / f"{chunk.number:05d}.parquet"

    def write_part(self, chunk: Chunk, rows: "Sequence[IndexedRow]") -> None:
        """Put the rows of a chunk on disk for good. Raises InputError where the disk is full."""
        columns = [[getattr(item.row, name) for item in rows] for name in COLUMNS.names]
        columns.append([item.scenario for item in rows])
        arrays = [_array(values, field.type) for values, field in zip(columns, PART_COLUMNS, strict=True)]
        table = pa.Table.from_arrays(arrays, schema=PART_COLUMNS.with_metadata({FINGERPRINT_KEY: self._key}))
        _write_table(table, self._part(chunk))

    def merge(self, chunks: Sequence[Chunk], conditions: Mapping[str, str]) -> None:
        """Make sweep.parquet of all parts; the parts stay until `tidy`."""
        table = pa.concat_tables([read_table(self._part(chunk)) for chunk in chunks])
        places = np.argsort(np.array(table["scenario"].to_pylist(), np.int64))
        table = table.drop_columns(["scenario"]).take(_array(places, pa.int64())).combine_chunks()
        metadata = {CONDITIONS_KEY: json.dumps(dict(conditions)).encode(), FINGERPRINT_KEY: self._key}
        _write_table(table.replace_schema_metadata(metadata), self.path / TABLE)

    def tidy(self) -> None:
        """Take away the parts, and what writes that were cut off have left."""
        _remove_temporary(self.path)
        for path in sorted((self.path / PARTS).glob("*")) if (self.path / PARTS).is_dir() else ():
            path.unlink()
        if (self.path / PARTS).is_dir():
            (self.path / PARTS).rmdir()


@contextmanager
def opened(folder: Path, definition: SweepDefinition, content: Mapping[str, str]) -> Iterator[SweepFolder]:
    """
    The folder, locked, with its manifest written or found to be the same.

    Raises InputError where another sweep is running there, another definition stands there or it cannot be written.
    """
    with locked(folder):
        wanted = {"schema_version": 1, "moeplan": _version(), "columns": COLUMNS.names}
        wanted |= {"definition": definition.as_json(), "content": dict(content)}
        key = fingerprint(definition, {**content, "moeplan": _version(), "columns": ",".join(COLUMNS.names)})
        found = read_manifest(folder)
        if found is None:
            if (folder / TABLE).exists():
                raise InputError(str(folder), "must be a new folder", f"one with {TABLE} and no {MANIFEST}")
            _write_text(json.dumps(wanted, indent=1), folder / MANIFEST)
        elif found != wanted:
            _refuse(folder, found, wanted)
        for place in (folder, folder / PARTS):
            _remove_temporary(place)
        yield SweepFolder(folder, key)


def _refuse(folder: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    must, advice = "must be a new folder or that of the same sweep", "take another folder, or remove this one"
    if any(found.get(name) != wanted[name] for name in ("schema_version", "moeplan", "columns")):
        raise InputError(str(folder), must, "a sweep of another version of moeplan", advice)
    changed = difference(found["definition"], wanted["definition"])
    if not changed:
        names = sorted({**found["content"], **wanted["content"]})
        other = [name for name in names if found["content"].get(name) != wanted["content"].get(name)]
        changed = f"{other[0]} with other content than when the sweep began" if other else f"a {MANIFEST} edited since"
    raise InputError(str(folder), must, changed, advice)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. Raises InputError where another process has it."""
    if folder.exists() and not folder.is_dir():
        raise InputError(str(folder), "must be a folder or a new name", "a file")
    output_target(folder / TABLE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InputError(str(folder), "must be a place that can be written", error.strerror) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            advice = "wait for it, or take another folder"
            raise InputError(str(folder), "must be free", "another sweep that is writing there", advice) from error
        yield
    finally:
        os.close(handle)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """What stands in sweep.json, None where there is none. Raises InputError for one that is none of ours."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        found = json.loads(read_text(path, MAX_MANIFEST_BYTES))
        SweepDefinition.from_json(found["definition"])
        return {**found, "content": dict(found["content"]), **{name: found[name] for name in ("columns", "moeplan")}}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(str(path), "must be the manifest of a sweep", type(error).__name__) from error


def _version() -> str:
    try:
        return version("moeplan")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "source"


def read_table(path: Path) -> pa.Table:
    """A whole Parquet file; pyarrow's own read_table would load its data sets and pandas, a quarter of a second."""
    with pq.ParquetFile(path) as file:
        return file.read()


def _array(values: Sequence[Any] | np.ndarray, kind: pa.DataType) -> pa.Array:
    """The same as pa.array for the types of COLUMNS, which would load pandas."""
    known = [value is not None for value in values]
    validity = None if all(known) else pa.py_buffer(np.packbits(known, bitorder="little"))
    if pa.types.is_string(kind):
        texts = [("" if value is None else value).encode() for value in values]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        return pa.Array.from_buffers(kind, len(texts), [validity, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))])
    if pa.types.is_boolean(kind):
        bits = np.packbits(np.array(values, bool), bitorder="little")
        return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(bits)])
    numbers = np.array([0 if value is None else value for value in values], str(kind).replace("double", "float64"))
    return pa.Array.from_buffers(kind, len(numbers), [validity, pa.py_buffer(numbers)])


def _write_table(table: pa.Table, target: Path) -> None:
    with atomic_path(target) as temporary:
        pq.write_table(table, temporary)
        flush_to_disk(temporary)
    flush_to_disk(target.parent)


def _write_text(text: str, target: Path) -> None:
    with atomic_path(target) as temporary:
        temporary.write_text(text, encoding="utf-8")
        flush_to_disk(temporary)
    flush_to_disk(target.parent)


def _remove_temporary(folder: Path) -> None:
    """What atomic_path leaves behind when its process is killed."""
    for path in folder.glob(".*.part"):
        path.unlink(missing_ok=True)
