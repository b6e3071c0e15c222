"""Reading a trace: what it holds comes back; a column that is not what it must be is refused by name."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import make_trace, random_trace

from moeplan.errors import InputError
from traces import routing_trace, store
from traces.routing_trace import RoutingTrace
from traces.store import read_trace, write_trace


@pytest.mark.parametrize("batch_tokens", [1, 7, 4096])
def test_whatever_the_batches_the_trace_comes_back(
    batch_tokens: int, tmp_path: Path, trace: RoutingTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids, weights and predictions are read a batch of tokens at a time, and are those that were written."""
    monkeypatch.setattr(store, "BATCH_TOKENS", batch_tokens)
    weights = np.random.default_rng(1).random(trace.expert_ids.shape).astype(np.float16)
    extra = {"weights": weights, "token_id": np.arange(40, dtype=np.int32)}
    extra["predicted"] = {"early": trace.expert_ids[::-1].copy()}  # type: ignore[assignment]
    write_trace(make_trace(trace.expert_ids, 8, 8, **extra), tmp_path / "t.parquet")
    found = read_trace(tmp_path / "t.parquet")
    np.testing.assert_array_equal(found.expert_ids, trace.expert_ids)
    np.testing.assert_array_equal(found.weights, weights)
    np.testing.assert_array_equal(found.token_id, extra["token_id"])
    np.testing.assert_array_equal(found.predicted["early"], trace.expert_ids[::-1])
    assert found.expert_ids.flags.c_contiguous


def _nulls(table: pa.Table, name: str) -> pa.Table:
    column = table[name].to_pylist()
    column[3] = [None, *column[3][1:]] if isinstance(column[3], list) else None
    return table.set_column(table.schema.get_field_index(name), name, pa.array(column, table.schema.field(name).type))


def _as(kind: pa.DataType):  # type: ignore[no-untyped-def]
    def change(table: pa.Table, name: str) -> pa.Table:
        column = pa.array(table[name].to_pylist(), kind)
        return table.set_column(table.schema.get_field_index(name), name, column)

    return change


def _texts(table: pa.Table, name: str) -> pa.Table:
    texts = pa.array([str(value) for value in table[name].to_pylist()])
    return table.set_column(table.schema.get_field_index(name), name, texts)


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("expert_ids", _nulls, "expert_ids: must be a fixed-size list without nulls"),
        ("expert_ids", _as(pa.list_(pa.int16(), 6)), ""),
        ("expert_ids", _as(pa.list_(pa.int16())), "expert_ids: must be a fixed-size list without nulls"),
        ("expert_ids", _as(pa.list_(pa.int32(), 6)), "expert_ids: must be int16 of shape (40, 3, 2)"),
        ("position", _nulls, "position: must be int32 without nulls"),
        ("position", _as(pa.int64()), "position: must be int32 without nulls"),
        ("phase", _texts, "phase: must be uint8 without nulls"),
    ],
)
def test_a_column_that_is_something_else_is_refused(  # type: ignore[no-untyped-def]
    name: str, change, complaint: str, tmp_path: Path, trace: RoutingTrace
) -> None:
    """Its name, what it must be and what it is; the same column written anew is read."""
    path = tmp_path / "t.parquet"
    write_trace(trace, path)
    table = pq.read_table(path)
    pq.write_table(change(table, name).replace_schema_metadata(table.schema.metadata), path)
    if not complaint:
        np.testing.assert_array_equal(read_trace(path).expert_ids, trace.expert_ids)
        return
    with pytest.raises(InputError) as error:
        read_trace(path)
    assert complaint in str(error.value)
    assert str(path) in str(error.value)


def test_a_list_of_another_length_than_the_header_s_is_refused(tmp_path: Path, trace: RoutingTrace) -> None:
    """The header's layers times top_k are the length of a token's list."""
    path = tmp_path / "t.parquet"
    write_trace(trace, path)
    table = pq.read_table(path)
    header = json.loads(table.schema.metadata[store.METADATA_KEY]) | {"top_k": 3}
    pq.write_table(table.replace_schema_metadata({store.METADATA_KEY: json.dumps(header).encode()}), path)
    with pytest.raises(InputError, match=r"expert_ids: must be int16 of shape \(40, 3, 3\), got int16 with 6 values"):
        read_trace(path)


@pytest.mark.parametrize("top_k", [2, routing_trace.MAX_COMPARED + 1])
def test_the_place_of_a_bad_row_is_told_wherever_it_is(top_k: int) -> None:
    """Ids are checked in blocks, by comparing or by sorting: the token is counted from the trace's start."""
    n_tokens = 2 * routing_trace.CHECKED_TOKENS + 5
    ids = random_trace(2, n_tokens, 2, 16, top_k).expert_ids.copy()
    make_trace(ids, 16)
    ids[n_tokens - 2, 1, 1] = ids[n_tokens - 2, 1, 0]
    with pytest.raises(InputError, match=f"token {n_tokens - 2}, layer 1: expert ids must be distinct"):
        make_trace(ids, 16)
    ids[n_tokens - 3, 0, 1] = 16
    with pytest.raises(InputError, match=f"token {n_tokens - 3}, layer 0: expert ids must be 0 to 15, got 16"):
        make_trace(ids, 16)
