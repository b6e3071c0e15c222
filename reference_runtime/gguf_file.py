"""
The header of a GGUF file: its keys and where its tensors lie (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

The `gguf` package's own reader maps the file and makes Python objects of every token, which for 151,936 tokens takes
seconds and hundreds of MB.  Here the header is read once, strictly, and a list is decoded only when it is asked for.
"""

import os
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from moeplan.errors import InputError
from reference_runtime.tensor_table import Place
from simulator.model.imports.gguf_header import SHARD_NAME

MAGIC, VERSIONS = b"GGUF", (2, 3)
MAX_DIMENSIONS = 4
CHUNK_BYTES = 1 << 20
U32, U64 = Struct("<I"), Struct("<Q")
SCALARS = {
    GGUFValueType.UINT8: Struct("<B"),
    GGUFValueType.INT8: Struct("<b"),
    GGUFValueType.UINT16: Struct("<H"),
    GGUFValueType.INT16: Struct("<h"),
    GGUFValueType.UINT32: U32,
    GGUFValueType.INT32: Struct("<i"),
    GGUFValueType.UINT64: U64,
    GGUFValueType.INT64: Struct("<q"),
    GGUFValueType.FLOAT32: Struct("<f"),
    GGUFValueType.FLOAT64: Struct("<d"),
    GGUFValueType.BOOL: Struct("<?"),
}


@dataclass(frozen=True)
class _List:
    """A list that was passed over: n items of a type, from a byte of the header on."""

    item_type: GGUFValueType
    n_items: int
    start: int


@dataclass(frozen=True, eq=False)
class GgufHeader:
    """Keys and tensors of one file; `tensors` in the file's order, with absolute offsets."""

    path: Path
    keys: dict[str, Any]
    tensors: dict[str, Place]
    header: bytearray  # what the lists are decoded from

    def value(self, key: str, kind: type, default: Any = None) -> Any:
        """
        The value of a key as int, float, str, bool or list; the default where the key is absent.

        Raises InputError for a wrong type, and for an absent key without a default.
        """
        value = self.keys.get(key)
        if value is None:
            if default is None:
                raise InputError(str(self.path), f"must have the key {key}", "none", "is it a model, and a whole one?")
            return default
        try:
            value = self._decoded(value)
        except UnicodeDecodeError as error:
            raise InputError(f"{self.path}: {key}", "must be UTF-8 text", f"a bad byte at {error.start}") from error
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise InputError(f"{self.path}: {key}", f"must be of type {kind.__name__}", type(value).__name__)
        return value

    def _decoded(self, value: Any) -> Any:
        if isinstance(value, bytes):
            return value.decode("utf-8")
        if not isinstance(value, _List):
            return value
        if value.item_type is GGUFValueType.STRING:
            return self._texts(value)
        item = np.dtype(SCALARS[value.item_type].format)
        return np.frombuffer(self.header, item, value.n_items, value.start).tolist()

    def _texts(self, value: _List) -> list[str]:
        texts, at = [], value.start
        for _ in range(value.n_items):
            end = at + 8 + U64.unpack_from(self.header, at)[0]
            texts.append(self.header[at + 8 : end].decode("utf-8"))
            at = end
        return texts


class _Cursor:
    """Goes forward through the first bytes of a file and keeps them; strict about the file's end."""

    def __init__(self, file: BufferedReader) -> None:
        self.file, self.size = file, os.fstat(file.fileno()).st_size
        self.header, self.at = bytearray(), 0

    def take(self, n_bytes: int) -> int:
        """Where the next n bytes start in the header; goes past them. Raises ValueError beyond the file's end."""
        start, end = self.at, self.at + n_bytes
        if end > self.size:
            raise ValueError(f"the file ends at byte {self.size}, a field at {start} reaches beyond it")
        while len(self.header) < end:
            more = self.file.read(max(CHUNK_BYTES, end - len(self.header)))
            if not more:
                raise ValueError(f"the file ends at byte {len(self.header)}, it became shorter")
            self.header += more
        self.at = end
        return start

    def number(self, form: Struct) -> Any:
        return form.unpack_from(self.header, self.take(form.size))[0]

    def text(self) -> bytes:
        n_bytes = self.number(U64)
        start = self.take(n_bytes)
        return bytes(self.header[start : start + n_bytes])

    def pass_texts(self, n: int) -> None:
        """Go past n texts; a tight loop, for a vocabulary has hundreds of thousands."""
        if 8 * n > self.size - self.at:
            raise ValueError(f"the file ends at byte {self.size}, before a list of {n} texts")
        at, length = self.at, U64.unpack_from
        for _ in range(n):
            if at + 8 > len(self.header):
                self.take(at + 8 - self.at)  # from the list's start on: only the end matters
                self.at = at
            at += 8 + length(self.header, at)[0]
        self.take(at - self.at)

    def value(self) -> Any:
        kind = GGUFValueType(self.number(U32))
        if kind is GGUFValueType.STRING:
            return self.text()
        if kind is not GGUFValueType.ARRAY:
            value = self.number(SCALARS[kind])
            # 1e-6 and not 9.99999997e-07: the number that was written as float32
            return float(str(np.float32(value))) if kind is GGUFValueType.FLOAT32 else value
        item_type, n_items = GGUFValueType(self.number(U32)), self.number(U64)
        if item_type is GGUFValueType.ARRAY:
            raise ValueError("a list of lists")
        start = self.at
        if item_type is GGUFValueType.STRING:
            self.pass_texts(n_items)
        else:
            self.take(SCALARS[item_type].size * n_items)
        return _List(item_type, n_items, start)

    def tensor(self) -> tuple[str, Place]:
        """A tensor's name and place, its offset still counted from the start of the data."""
        name, n_dimensions = self.text().decode("utf-8"), self.number(U32)
        if not 0 < n_dimensions <= MAX_DIMENSIONS:
            raise ValueError(f"tensor {name} has {n_dimensions} dimensions")
        shape = tuple(reversed([self.number(U64) for _ in range(n_dimensions)]))  # the file names the fastest first
        raw_type, offset = self.number(U32), self.number(U64)
        try:
            kind = GGMLQuantizationType(raw_type)
        except ValueError:
            raise ValueError(f"tensor {name} has the unknown type {raw_type}") from None
        if 0 in shape or shape[-1] % GGML_QUANT_SIZES[kind][0]:
            raise ValueError(f"tensor {name} of type {kind.name} has the shape {shape}")
        return name, Place(0, offset, kind, shape)


def read_header(path: Path, file_index: int = 0) -> GgufHeader:
    """The header of one file, all its tensors inside the file; file_index goes into the places. Raises InputError."""
    try:
        with path.open("rb") as file:
            return _header(_Cursor(file), path, file_index)
    except OSError as error:
        raise InputError(str(path), "must be a file that can be read", error.strerror or error) from error
    except (ValueError, KeyError, OverflowError) as error:
        raise InputError(str(path), "must be a whole GGUF file", error, "fetch or export it again") from error


def _header(cursor: _Cursor, path: Path, file_index: int) -> GgufHeader:
    start = cursor.take(4)
    if cursor.header[start : start + 4] != MAGIC:
        raise ValueError("no GGUF magic in its first bytes")
    version = cursor.number(U32)
    if version not in VERSIONS:
        if version & 0xFFFF == 0:
            raise InputError(str(path), "must have this machine's byte order", "the other one", "convert it")
        raise ValueError(f"version {version}")
    n_tensors, n_keys = cursor.number(U64), cursor.number(U64)
    keys: dict[str, Any] = {}
    for _ in range(n_keys):
        name = cursor.text().decode("utf-8")
        if name in keys:
            raise ValueError(f"the key {name} stands twice")
        keys[name] = cursor.value()
    tensors: dict[str, Place] = {}
    for _ in range(n_tensors):
        name, place = cursor.tensor()
        if name in tensors:
            raise ValueError(f"the tensor {name} stands twice")
        tensors[name] = place
    placed = _placed(tensors, cursor, keys.get("general.alignment", 32), file_index)
    return GgufHeader(path, keys, placed, cursor.header)


def _placed(tensors: dict[str, Place], cursor: _Cursor, alignment: Any, file_index: int) -> dict[str, Place]:
    """The tensors with offsets from the start of the file."""
    if type(alignment) is not int or alignment <= 0 or alignment % 8:
        raise ValueError(f"general.alignment {alignment}")
    data_start = -(-cursor.at // alignment) * alignment
    placed = {}
    for name, place in tensors.items():
        found = Place(file_index, data_start + place.offset, place.kind, place.shape)
        if place.offset % alignment:
            raise ValueError(f"tensor {name} is not aligned to {alignment} bytes")
        if found.offset + found.n_bytes > cursor.size:
            raise ValueError(f"the file ends at byte {cursor.size}, tensor {name} at {found.offset + found.n_bytes}")
        placed[name] = found
    return placed


def shard_paths(path: Path) -> list[Path]:
    """All shards of a split file in order, from any of them, or the file alone. Raises InputError for a missing one."""
    match = SHARD_NAME.match(path.name)
    if match is None:
        return [path]
    names = [
        f"{match['stem']}{number:05d}{match['middle']}{match['count']}.gguf"
        for number in range(1, int(match["count"]) + 1)
    ]
    paths = [path.with_name(name) for name in names]
    missing = [shard.name for shard in paths if not shard.is_file()]
    if missing:
        must, got = f"must lie beside all {len(paths)} shards", f"{len(missing)} missing, first {missing[0]}"
        raise InputError(str(path), must, got, "fetch them too")
    return paths


def read_split(path: Path) -> tuple[list[Path], GgufHeader]:
    """All files of a model, and one header: the first's keys, the tensors of all. Raises InputError."""
    paths = shard_paths(path)
    headers = [read_header(shard, index) for index, shard in enumerate(paths)]
    tensors = {name: place for header in headers for name, place in header.tensors.items()}
    first = headers[0]
    n_shards, n_tensors = first.value("split.count", int, 1), first.value("split.tensors.count", int, len(tensors))
    if max(n_shards, 1) != len(paths):
        advice = "keep the names NAME-00001-of-0000N.gguf"
        raise InputError(str(path), f"must be one of {n_shards} shards", f"{len(paths)} by its name", advice)
    if n_tensors != len(tensors) or len(tensors) != sum(len(header.tensors) for header in headers):
        raise InputError(str(path), f"must have {n_tensors} tensors in its shards", len(tensors), "fetch them again")
    return paths, GgufHeader(path, first.keys, tensors, first.header)
