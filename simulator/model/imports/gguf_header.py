"""
The header of one GGUF file: its keys and where its tensors lie.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.  The `gguf` package's own reader maps the file and
makes Python objects of every token, which for 151,936 tokens takes seconds and hundreds of MB.  Here the header is read
once, strictly, and a list is decoded only when it is asked for.
"""

import os
from dataclasses import dataclass
from io import BufferedReader
from math import prod
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType

from moeplan.errors import InputError
from simulator.model.imports.tensors import TensorInfo
from simulator.model.tensor_types import BLOCKS

MAGIC, VERSIONS = b"GGUF", (2, 3)
MAX_DIMENSIONS = 4
MAX_HEADER_BYTES = 1 << 28  # a vocabulary of 150,000 tokens has some 6 MB; more is a damaged length
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
class GgufTensor:
    """A tensor and its place: an offset in bytes from the start of one of the model's files."""

    info: TensorInfo
    file: int
    offset: int

    @property
    def end(self) -> int:
        """The offset of the first byte behind it."""
        return self.offset + self.info.n_bytes


@dataclass(frozen=True)
class _List:
    """A list that was passed over: n items of a type, from a byte of the header on."""

    item_type: GGUFValueType
    n_items: int
    start: int


@dataclass(frozen=True, eq=False)
class GgufHeader:
    """Keys and tensors of a file; `tensors` by name in the file's order, `keys` with their lists not decoded."""

    path: Path
    keys: dict[str, Any]
    tensors: dict[str, GgufTensor]
    header: bytearray  # what the lists are decoded from

    def get(self, key: str) -> Any:
        """The value of a key as int, float, str, bool or list, None where it is absent. Raises InputError."""
        value = self.keys.get(key)
        try:
            return self._decoded(value)
        except UnicodeDecodeError as error:
            raise InputError(f"{self.path}: {key}", "must be UTF-8 text", f"a bad byte at {error.start}") from error

    def value(self, key: str, kind: type, default: Any = None) -> Any:
        """
        The value of a key, of the type asked for; the default where the key is absent.

        Raises InputError for a wrong type, and for an absent key without a default.
        """
        value = self.get(key)
        if value is None:
            if default is None:
                raise InputError(str(self.path), f"must have the key {key}", "none", "is it a model, and a whole one?")
            return default
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
        if end > MAX_HEADER_BYTES:
            raise ValueError(f"a field at byte {start} that reaches beyond {MAX_HEADER_BYTES} bytes of header")
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

    def tensor(self, file_index: int) -> GgufTensor:
        """The next tensor, its offset still counted from the start of the data."""
        name, n_dimensions = self.text().decode("utf-8"), self.number(U32)
        if not 0 < n_dimensions <= MAX_DIMENSIONS:
            raise ValueError(f"tensor {name} has {n_dimensions} dimensions")
        shape = tuple(reversed([self.number(U64) for _ in range(n_dimensions)]))  # the file names the fastest first
        tensor_type, offset = _type_name(self.number(U32)), self.number(U64)
        if tensor_type not in BLOCKS:
            raise ValueError(f"tensor {name} has the unknown type {tensor_type}")
        n_weights, n_bytes = BLOCKS[tensor_type]
        if 0 in shape or shape[-1] % n_weights:
            raise ValueError(f"tensor {name} of type {tensor_type} has the shape {shape}")
        return GgufTensor(TensorInfo(name, shape, tensor_type, prod(shape) // n_weights * n_bytes), file_index, offset)


def _type_name(number: int) -> str:
    try:
        return GGMLQuantizationType(number).name.lower()
    except ValueError:
        return f"ggml type {number}"


def read_header(path: Path, file_index: int = 0, *, whole: bool) -> GgufHeader:
    """
    The header of one file; file_index goes into the places of its tensors.

    whole: the file must hold all bytes of its tensors; else it may end anywhere after the header, as the first
    megabytes of a download do.  Raises InputError.
    """
    try:
        with path.open("rb") as file:
            cursor = _Cursor(file)
            header = _header(cursor, path, file_index)
            if whole:
                _check_whole(header, cursor.size)
            return header
    except OSError as error:
        raise InputError(str(path), "must be a file that can be read", error.strerror or error) from error
    except (ValueError, KeyError, OverflowError) as error:
        must = "must be a whole GGUF file" if whole else "must have a whole GGUF header"
        raise InputError(str(path), must, error, "fetch or convert it again") from error


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
    tensors: dict[str, GgufTensor] = {}
    for _ in range(n_tensors):
        tensor = cursor.tensor(file_index)
        if tensor.info.name in tensors:
            raise ValueError(f"the tensor {tensor.info.name} stands twice")
        tensors[tensor.info.name] = tensor
    return GgufHeader(path, keys, _placed(tensors, cursor.at, keys.get("general.alignment", 32)), cursor.header)


def _placed(tensors: dict[str, GgufTensor], header_bytes: int, alignment: Any) -> dict[str, GgufTensor]:
    """The tensors with offsets from the start of the file."""
    if type(alignment) is not int or alignment <= 0 or alignment % 8:
        raise ValueError(f"general.alignment {alignment}")
    data_start = -(-header_bytes // alignment) * alignment
    for name, tensor in tensors.items():
        if tensor.offset % alignment:
            raise ValueError(f"tensor {name} is not aligned to {alignment} bytes")
    return {name: GgufTensor(t.info, t.file, data_start + t.offset) for name, t in tensors.items()}


def _check_whole(header: GgufHeader, file_bytes: int) -> None:
    for name, tensor in header.tensors.items():
        if tensor.end > file_bytes:
            raise ValueError(f"the file ends at byte {file_bytes}, tensor {name} at {tensor.end}")
