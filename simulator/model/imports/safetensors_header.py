"""
The headers of safetensors files: 8 bytes of length, then JSON (https://github.com/huggingface/safetensors, README).
"""

import json
import struct
from math import prod
from pathlib import Path
from typing import Any

from moeplan.errors import InputError
from simulator.model.imports.tensors import TensorInfo

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
TYPES = {
    "F64": ("f64", 8),
    "F32": ("f32", 4),
    "F16": ("f16", 2),
    "BF16": ("bf16", 2),
    "F8_E4M3": ("f8", 1),
    "F8_E5M2": ("f8", 1),
    "I8": ("i8", 1),
    "U8": ("packed u8", 1),
    "I32": ("packed i32", 4),
    "I64": ("packed i64", 8),
}
PACKED_TYPES = frozenset(name for name, _ in TYPES.values() if name.startswith("packed"))


def read_folder(folder: Path) -> list[TensorInfo]:
    """The tensors of all *.safetensors of a folder; none: an empty list. Raises InputError."""
    paths = sorted(folder.glob("*.safetensors"))
    _check_whole_set(folder, paths)
    return [info for path in paths for info in read_header(path)]


def _check_whole_set(folder: Path, paths: list[Path]) -> None:
    index = folder / "model.safetensors.index.json"
    if not paths or not index.is_file():
        return
    try:
        wanted = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(str(index), "must be an index with a weight_map", type(error).__name__) from error
    missing = sorted(wanted - {path.name for path in paths})
    if missing:
        raise InputError(str(folder), "must hold all files of its index", f"{len(missing)} missing, first {missing[0]}")


def read_header(path: Path) -> list[TensorInfo]:
    """The tensors of one file. Raises InputError."""
    try:
        entries, _ = header_entries(path)
        return [_info(name, entry) for name, entry in entries.items()]
    except OSError as error:
        raise InputError(str(path), "must be a file that can be read", error.strerror or error) from error
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(str(path), "must have a whole safetensors header", error, "fetch it again") from error


def header_entries(path: Path) -> tuple[dict[str, Any], int]:
    """
    The JSON entry of every tensor by name, and the byte at which the data begin.

    Raises OSError, struct.error or ValueError for what is no such header; the caller says what it is for.
    """
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"a header of {length} bytes")
        text = file.read(length)
    if len(text) != length:
        raise ValueError(f"{len(text)} of {length} bytes of header")
    entries = json.loads(text)
    return {name: entry for name, entry in entries.items() if name != "__metadata__"}, 8 + length


def _info(name: str, entry: dict[str, Any]) -> TensorInfo:
    start, stop = entry["data_offsets"]
    shape, (tensor_type, item_bytes) = tuple(entry["shape"]), TYPES[entry["dtype"]]
    if prod(shape) * item_bytes != stop - start:
        raise ValueError(f"tensor {name} of shape {shape} with {stop - start} bytes")
    if name.endswith("_blocks"):  # MXFP4: two weights a byte, their scales in a tensor of their own
        return TensorInfo(name, (*shape[:-1], 2 * shape[-1]), "mxfp4", stop - start)
    if name.endswith("_scales"):
        return TensorInfo(name, (0,), "mxfp4", stop - start)
    return TensorInfo(name, shape, tensor_type, stop - start)
