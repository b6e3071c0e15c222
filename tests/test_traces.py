"""Traces: what is written is what is read, and what is wrong is refused with its place."""

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.errors import InputError
from tests.conftest import make_trace, random_trace
from traces import statistics
from traces.routing_trace import RoutingTrace
from traces.store import read_trace, write_trace
from traces.synthetic import adapt, synthesize


def test_a_trace_survives_the_store(trace: RoutingTrace, tmp_path: Path) -> None:
    """Every array and the header come back equal."""
    rng = np.random.default_rng(1)
    weights = rng.random(trace.expert_ids.shape).astype(np.float16)
    full = replace(
        trace,
        weights=weights,
        token_id=np.arange(40, dtype=np.int32),
        predicted={"last": trace.expert_ids[::-1].copy()},
    )
    write_trace(full, tmp_path / "t.parquet")
    back = read_trace(tmp_path / "t.parquet")
    assert back.header == full.header
    for name in ("expert_ids", "phase", "request_id", "position", "domain", "token_id", "weights"):
        assert np.array_equal(getattr(back, name), getattr(full, name)), name
    assert np.array_equal(back.predicted["last"], full.predicted["last"])


def test_writing_is_deterministic(trace: RoutingTrace, tmp_path: Path) -> None:
    """The same trace gives the same bytes."""
    write_trace(trace, tmp_path / "a.parquet")
    write_trace(trace, tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[[0, 9]]], "token 0, layer 0: expert ids must be 0 to 7, got 9"),
        ([[[0, -1]]], "expert ids must be 0 to 7, got -1"),
        ([[[1, 2]], [[3, 3]]], "token 1, layer 0: expert ids must be distinct"),
    ],
)
def test_bad_expert_ids_are_refused_with_their_place(ids: list, message: str) -> None:
    """An id outside the experts, padding and a repeated id are never repaired."""
    with pytest.raises(InputError, match=message):
        make_trace(ids, n_experts=8)


def test_an_id_beyond_the_experts_in_a_file_names_the_file(trace: RoutingTrace, tmp_path: Path) -> None:
    """A reader checks what it reads, whoever wrote it."""
    write_trace(trace, tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    metadata = {
        key: value.replace(b'"n_experts": 8', b'"n_experts": 4') for key, value in table.schema.metadata.items()
    }
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "bad.parquet")
    with pytest.raises(InputError, match=r"bad.parquet: trace: token 0.*must be 0 to 3"):
        read_trace(tmp_path / "bad.parquet")


def test_a_truncated_file_is_refused(trace: RoutingTrace, tmp_path: Path) -> None:
    """Half a Parquet file is no trace."""
    write_trace(trace, tmp_path / "t.parquet")
    data = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "half.parquet").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"half.parquet: must be a whole Parquet file"):
        read_trace(tmp_path / "half.parquet")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not a trace at all"])
def test_no_parquet_at_all_is_refused(content: bytes, tmp_path: Path) -> None:
    """Empty and foreign files get one line."""
    (tmp_path / "x.parquet").write_bytes(content)
    with pytest.raises(InputError, match="must be a whole Parquet file"):
        read_trace(tmp_path / "x.parquet")


def test_a_parquet_file_without_the_header_is_refused(tmp_path: Path) -> None:
    """Some other table is no trace."""
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="moeplan routing trace"):
        read_trace(tmp_path / "x.parquet")


def test_positions_must_rise_and_prefill_come_first(trace: RoutingTrace) -> None:
    """The order of a request is part of the data."""
    with pytest.raises(InputError, match="positions must rise"):
        replace(trace, position=np.zeros(40, np.int32))
    with pytest.raises(InputError, match="prefill must come before decode"):
        replace(trace, phase=trace.phase[::-1].copy())


def _reference_hits(trace: RoutingTrace, capacity: int, per_layer: bool) -> float:
    """LRU with ordered dictionaries, cold at each request: written apart from the code under test."""
    hits = accesses = 0
    caches: dict[int, OrderedDict] = {}
    for token in range(trace.n_tokens):
        if token and trace.request_id[token] != trace.request_id[token - 1]:
            caches = {}
        for layer in range(trace.n_moe_layers):
            cache = caches.setdefault(layer if per_layer else 0, OrderedDict())
            row = [(layer, int(e)) for e in trace.expert_ids[token, layer]]
            hits += sum(key in cache for key in row)
            accesses += len(row)
            for key in row:
                cache.pop(key, None)
                cache[key] = True
            while len(cache) > capacity:
                cache.popitem(last=False)
    return hits / accesses


@given(seed=st.integers(0, 10**6), capacity=st.integers(1, 24), per_layer=st.booleans())
def test_hit_rates_from_stack_distances_equal_a_replay(seed: int, capacity: int, per_layer: bool) -> None:
    """One pass of stack distances gives the hits of every capacity."""
    trace = random_trace(seed, 30, 3, 8, 2)
    trace = replace(trace, request_id=(np.arange(30) >= 17).astype(np.int32))
    scope = "per-layer" if per_layer else "global"
    distances = statistics.stack_distances(trace, scope)
    assert (distances < capacity).mean() == _reference_hits(trace, capacity, per_layer)


def test_uniform_routing_hits_in_proportion_to_capacity() -> None:
    """Independent uniform choices: hit rate = capacity / experts within a point, and the trace is named uniform."""
    trace = synthesize(
        n_tokens=3000, n_prefill=0, n_moe_layers=2, n_experts=16, top_k=2, zipf=0.0, repeat_frac=0.0, seed=3
    )
    distances = statistics.stack_distances(trace, "per-layer")
    assert (distances < 8).mean() == pytest.approx(0.5, abs=0.03)
    assert statistics.looks_uniform(trace)
    local = synthesize(
        n_tokens=500, n_prefill=0, n_moe_layers=2, n_experts=16, top_k=2, zipf=1.0, repeat_frac=0.5, seed=3
    )
    assert not statistics.looks_uniform(local)


def test_divergence_of_disjoint_loads_is_one_bit() -> None:
    """Jensen-Shannon divergence is 0 for equal and 1 bit for disjoint loads."""
    first, second = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    assert statistics.routing_divergence(first, first) == 0
    assert statistics.routing_divergence(first, second) == pytest.approx(1.0)


def test_an_adapted_trace_is_valid_and_says_so(trace: RoutingTrace) -> None:
    """Stretching gives distinct experts of the wanted shape and a label; an impossible shape is refused."""
    adapted = adapt(trace, layer_ids=tuple(range(5)), n_experts=16, top_k=3)
    assert adapted.expert_ids.shape == (40, 5, 3)
    assert "5 x 16, 3 a token" in adapted.header.conditions["adapted"]
    with pytest.raises(InputError, match="multiple of 8 experts"):
        adapt(trace, layer_ids=(0,), n_experts=12, top_k=2)
