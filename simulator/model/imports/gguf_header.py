"""
The header of a GGUF file, or of all shards of a split one, through the `gguf` package.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.  Only keys and tensor infos are read, so the first
megabytes of a file are enough.
"""

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader
from pydantic import BaseModel

from moeplan.errors import InputError
from moeplan.strict_yaml import validate
from simulator.model.imports.tensors import TensorInfo
from simulator.model.tensor_types import BLOCKS

SHARD_NAME = re.compile(r"^(?P<stem>.+[-._])(?P<number>\d{5})(?P<middle>[-._]of[-._])(?P<count>\d{5})\.gguf$")
Model = TypeVar("Model", bound=BaseModel)


class _HeaderReader(GGUFReader):
    """The package's reader, without the tensors' data, and strict about the end of the file."""

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> np.ndarray:
        array = super()._get(offset, dtype, count, override_order)
        if len(array) != int(count):
            raise ValueError(f"the file ends at byte {len(self.data)}, inside its header")
        return array

    def _build_tensors(self, start_offs: int, fields: list[Any]) -> None:
        self.infos = [_info(field) for field in fields]
        self.data_offset = start_offs
        names = [info.name for info in self.infos]
        if len(set(names)) != len(names):
            raise ValueError("a tensor's name stands twice")


def _info(field: Any) -> TensorInfo:
    _, name, _, dims, raw_type, _ = field.parts
    try:
        tensor_type = GGMLQuantizationType(int(raw_type[0])).name.lower()
    except ValueError:
        tensor_type = f"ggml type {int(raw_type[0])}"
    shape = tuple(int(n) for n in reversed(dims))
    title = bytes(name).decode("utf-8")
    if tensor_type not in BLOCKS:
        raise ValueError(f"tensor {title} has the unknown type {tensor_type}")
    n_weights, n_bytes = BLOCKS[tensor_type]
    if not shape or 0 in shape or shape[-1] % n_weights:
        raise ValueError(f"tensor {title} of type {tensor_type} has the shape {shape}")
    return TensorInfo(title, shape, tensor_type, prod(shape) // n_weights * n_bytes)


@dataclass(frozen=True, eq=False)
class GgufHeader:
    """Keys of the first shard and the tensor infos of all."""

    path: Path
    reader: GGUFReader
    tensors: tuple[TensorInfo, ...]

    def value(self, key: str) -> Any:
        """The value of a key as int, float, str, bool or list, None where it is absent. Raises InputError."""
        field = self.reader.get_field(key)
        try:
            return None if field is None else field.contents()
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self.path}: {key}", "must be UTF-8 text", "other bytes", "the file is damaged"
            ) from error

    def text(self, key: str) -> str:
        """The value of a key that must be there and be a text. Raises InputError."""
        value = self.value(key)
        if not isinstance(value, str) or not value:
            raise InputError(f"{self.path}: {key}", "must be a text", "nothing" if value is None else repr(value))
        return value

    def validated(self, model: type[Model], body: dict[str, Any]) -> Model:
        """A pydantic model from what the header says. Raises InputError."""
        return validate(body, model, str(self.path), {})


def read_header(path: Path) -> tuple[GGUFReader, list[TensorInfo]]:
    """Keys and tensor infos of one file. Raises InputError."""
    try:
        reader = _HeaderReader(path)
    except OSError as error:
        raise InputError(str(path), "must be a file that can be read", error.strerror or error) from error
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        reason = str(error).strip() or type(error).__name__
        raise InputError(str(path), "must have a whole GGUF header", reason, "fetch or convert it again") from error
    if reader.byte_order != "I":
        raise InputError(str(path), "must have this machine's byte order", "the other one", "convert it")
    return reader, reader.infos


def shard_paths(path: Path) -> list[Path]:
    """All shards of a split file in order, or the file alone. Raises InputError when one is missing."""
    match = SHARD_NAME.match(path.name)
    if match is None:
        return [path]
    n_shards = int(match["count"])
    names = [f"{match['stem']}{i:05d}{match['middle']}{match['count']}.gguf" for i in range(1, n_shards + 1)]
    paths = [path.with_name(name) for name in names]
    missing = [shard.name for shard in paths if not shard.is_file()]
    if missing:
        must, got = f"must lie beside all {n_shards} shards", f"{len(missing)} missing, first {missing[0]}"
        raise InputError(str(path), must, got, "the headers alone are enough")
    return paths


def read_split(path: Path, report: list[str]) -> GgufHeader:
    """The header of a file or of all its shards; the report says what is short. Raises InputError."""
    paths = shard_paths(path)
    headers = [read_header(shard) for shard in paths]
    tensors = tuple(info for _, infos in headers for info in infos)
    header = GgufHeader(path, headers[0][0], tensors)
    n_said = header.value("split.count")
    if n_said is not None and n_said > 1 and n_said != len(paths):
        advice = "keep the names NAME-00001-of-0000N.gguf"
        raise InputError(str(path), f"must be one of {n_said} shards", f"{len(paths)} by its name", advice)
    n_tensors = header.value("split.tensors.count")
    if n_tensors is not None and n_tensors != len(tensors):
        raise InputError(str(path), f"must have {n_tensors} tensors in its shards", len(tensors), "fetch them again")
    if len(paths) > 1:
        report.append(f"shards: read {len(paths)} files")
    for shard, (reader, infos) in zip(paths, headers, strict=True):
        missing = reader.data_offset + sum(info.n_bytes for info in infos) - shard.stat().st_size
        if missing > 0:
            report.append(
                f"weights: {shard.name} lacks {missing} bytes of its tensors; the header is enough for a spec"
            )
    return header
