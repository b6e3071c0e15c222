"""
Traces on disk: one Parquet file, a row a token, the header as JSON in the file's metadata.

Columns: expert_ids fixed_size_list<int16>[n_moe_layers * top_k] (layer-major), phase, request_id, position, domain
and, where the trace has them, token_id, weights (float16) and predicted.<name>.  Readers reject, never repair.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from moeplan.errors import InputError
from moeplan.files import atomic_path
from traces.routing_trace import RoutingTrace, TraceHeader

SCHEMA_VERSION = 1
METADATA_KEY = b"moeplan.routing_trace"
BATCH_TOKENS = 4096  # tokens that are decoded at once: a few MB, whatever the trace's length
TOKEN_COLUMNS = {"phase": np.uint8, "request_id": np.int32, "position": np.int32, "domain": np.int16}


def write_trace(trace: RoutingTrace, path: Path) -> None:
    """Write the trace, whole or not at all."""
    columns: dict[str, pa.Array] = {"expert_ids": _as_lists(trace.expert_ids)}
    for name, dtype in TOKEN_COLUMNS.items():
        columns[name] = pa.array(getattr(trace, name).astype(dtype))
    if trace.token_id is not None:
        columns["token_id"] = pa.array(trace.token_id.astype(np.int32))
    if trace.weights is not None:
        columns["weights"] = _as_lists(trace.weights.astype(np.float16))
    for name, ids in trace.predicted.items():
        columns[f"predicted.{name}"] = _as_lists(ids.astype(np.int16))
    header = asdict(trace.header) | {"schema_version": SCHEMA_VERSION, "top_k": trace.top_k}
    table = pa.table(columns).replace_schema_metadata({METADATA_KEY: json.dumps(header, sort_keys=True).encode()})
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", compression_level=9)


def read_trace(path: Path) -> RoutingTrace:
    """Read and check a trace. Raises InputError for anything that is not a whole, valid trace file."""
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise InputError(str(path), "must be a trace file", "a folder, a pipe or a device")
    try:
        with pq.ParquetFile(path) as file:  # read_table would load pyarrow.dataset and pandas, a quarter of a second
            header, top_k = _header(file.schema_arrow, path)
            return _trace(file, header, top_k, path)
    except FileNotFoundError as error:
        raise InputError(str(path), "must be a trace file", "no such file", "see `moeplan trace list`") from error
    except (OSError, pa.ArrowException) as error:
        raise InputError(str(path), "must be a whole Parquet file", _first_line(error), "record it again") from error


def _header(schema: pa.Schema, path: Path) -> tuple[TraceHeader, int]:
    raw = (schema.metadata or {}).get(METADATA_KEY)
    if raw is None:
        raise InputError(
            str(path),
            "must be a moeplan routing trace",
            "a Parquet file without its header",
            "use `moeplan trace import`",
        )
    try:
        header = json.loads(raw)
        version, top_k = header.pop("schema_version"), int(header.pop("top_k"))
        if version != SCHEMA_VERSION:
            raise InputError(str(path), f"must have schema version {SCHEMA_VERSION}", version, "update moeplan")
        header["layer_ids"] = tuple(int(layer) for layer in header["layer_ids"])
        header["domains"] = tuple(header["domains"])
        checked = TraceHeader(**header)
        texts = (checked.model, checked.model_fingerprint, checked.engine, checked.source, checked.licence)
        if type(checked.n_experts) is not int or not isinstance(checked.conditions, dict):
            raise TypeError("n_experts must be a whole number and conditions a mapping")
        if not all(isinstance(text, str) for text in (*texts, *checked.domains, *checked.conditions.values())):
            raise TypeError("model, fingerprint, engine, source, licence, domains and conditions must be text")
        return checked, top_k
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(str(path), "must have a valid header", _first_line(error)) from error


def _trace(file: pq.ParquetFile, header: TraceHeader, top_k: int, path: Path) -> RoutingTrace:
    names = file.schema_arrow.names
    missing = ({"expert_ids"} | set(TOKEN_COLUMNS)) - set(names)
    if missing:
        raise InputError(str(path), f"must have the column {sorted(missing)[0]!r}", sorted(names))
    shape = (file.metadata.num_rows, len(header.layer_ids), top_k)
    predictors = [name for name in names if name.startswith("predicted.")]
    try:
        return RoutingTrace(
            header=header,
            expert_ids=_cube(file, "expert_ids", shape, np.int16),
            token_id=_column(file, "token_id", np.int32) if "token_id" in names else None,
            weights=_cube(file, "weights", shape, np.float16) if "weights" in names else None,
            predicted={name.removeprefix("predicted."): _cube(file, name, shape, np.int16) for name in predictors},
            **{name: _column(file, name, dtype) for name, dtype in TOKEN_COLUMNS.items()},
        )
    except InputError as error:
        raise InputError(f"{path}: {error.where}", error.must, error.got, error.advice) from error


def _as_lists(cube: np.ndarray) -> pa.FixedSizeListArray:
    _, n_layers, top_k = cube.shape
    return pa.FixedSizeListArray.from_arrays(pa.array(cube.reshape(-1)), n_layers * top_k)


def _cube(file: pq.ParquetFile, name: str, shape: tuple[int, int, int], dtype: Any) -> np.ndarray:
    """A fixed-size-list column as (n_tokens, n_moe_layers, top_k), read a batch at a time: no second copy of it."""
    kind, n_values = file.schema_arrow.field(name).type, shape[1] * shape[2]
    if not pa.types.is_fixed_size_list(kind):
        raise InputError(name, "must be a fixed-size list without nulls", kind)
    if kind.value_type != pa.from_numpy_dtype(dtype) or kind.list_size != n_values:
        got = f"{kind.value_type} with {kind.list_size} values a token"
        raise InputError(name, f"must be {np.dtype(dtype)} of shape {shape}", got)
    cube, n_read = np.empty((shape[0], n_values), dtype), 0
    for batch in file.iter_batches(BATCH_TOKENS, columns=[name]):
        column = batch.column(0)
        if column.null_count or column.flatten().null_count:
            raise InputError(name, "must be a fixed-size list without nulls", kind)
        cube[n_read : n_read + len(column)] = _values(column.flatten(), dtype).reshape(len(column), n_values)
        n_read += len(column)
    return cube.reshape(shape)


def _column(file: pq.ParquetFile, name: str, dtype: Any) -> np.ndarray:
    kind = file.schema_arrow.field(name).type
    column = file.read([name]).column(0)
    if kind != pa.from_numpy_dtype(dtype) or column.null_count:
        raise InputError(name, f"must be {np.dtype(dtype)} without nulls", kind)
    return np.concatenate([_values(chunk, dtype) for chunk in column.chunks] or [np.empty(0, dtype)])


def _values(array: pa.Array, dtype: Any) -> np.ndarray:
    """The numbers of an array without nulls where they lie; its own to_numpy would load pandas."""
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * np.dtype(dtype).itemsize)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
