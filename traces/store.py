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
    try:
        table = pq.read_table(path, memory_map=False)
    except FileNotFoundError as error:
        raise InputError(str(path), "must be a trace file", "no such file", "see `moeplan trace list`") from error
    except (OSError, pa.ArrowException) as error:
        raise InputError(str(path), "must be a whole Parquet file", _first_line(error), "record it again") from error
    header, top_k = _header(table, path)
    try:
        return _trace(table, header, top_k, path)
    except InputError as error:
        raise InputError(f"{path}: {error.where}", error.must, error.got, error.advice) from error


def _header(table: pa.Table, path: Path) -> tuple[TraceHeader, int]:
    raw = (table.schema.metadata or {}).get(METADATA_KEY)
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


def _trace(table: pa.Table, header: TraceHeader, top_k: int, path: Path) -> RoutingTrace:
    shape = (table.num_rows, len(header.layer_ids), top_k)
    names = set(table.column_names)
    missing = ({"expert_ids"} | set(TOKEN_COLUMNS)) - names
    if missing:
        raise InputError(str(path), f"must have the column {sorted(missing)[0]!r}", sorted(names))
    tokens = {name: _column(table, name, dtype) for name, dtype in TOKEN_COLUMNS.items()}
    predicted = {
        name.removeprefix("predicted."): _cube(table, name, shape, np.int16)
        for name in table.column_names
        if name.startswith("predicted.")
    }
    return RoutingTrace(
        header=header,
        expert_ids=_cube(table, "expert_ids", shape, np.int16),
        token_id=_column(table, "token_id", np.int32) if "token_id" in names else None,
        weights=_cube(table, "weights", shape, np.float16) if "weights" in names else None,
        predicted=predicted,
        **tokens,
    )


def _as_lists(cube: np.ndarray) -> pa.FixedSizeListArray:
    _, n_layers, top_k = cube.shape
    return pa.FixedSizeListArray.from_arrays(pa.array(cube.reshape(-1)), n_layers * top_k)


def _cube(table: pa.Table, name: str, shape: tuple[int, int, int], dtype: Any) -> np.ndarray:
    """A fixed-size-list column as (n_tokens, n_moe_layers, top_k)."""
    column = table.column(name).combine_chunks()
    if not pa.types.is_fixed_size_list(column.type) or column.null_count:
        raise InputError(name, "must be a fixed-size list without nulls", column.type)
    flat = column.flatten().to_numpy(zero_copy_only=False)
    if flat.dtype != dtype or flat.size != np.prod(shape):
        raise InputError(name, f"must be {np.dtype(dtype)} of shape {shape}", f"{flat.dtype} with {flat.size} values")
    return flat.reshape(shape)


def _column(table: pa.Table, name: str, dtype: Any) -> np.ndarray:
    column = table.column(name)
    array = column.to_numpy()
    if column.null_count or array.dtype != dtype:
        raise InputError(name, f"must be {np.dtype(dtype)} without nulls", column.type)
    return array


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
