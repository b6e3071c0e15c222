"""Shared builders: small traces whose routing is made up here, in numbers to check by hand; and the command."""

import sys

import numpy as np
import pytest

from command_line import app
from hardware_profiles.rates import DeviceRates
from hardware_profiles.storage import StorageModel
from simulator.model.catalog import load_model_spec
from simulator.model.spec import ModelSpec
from traces.routing_trace import DECODE, PREFILL, RoutingTrace, TraceHeader


def make_trace(expert_ids: object, n_experts: int, n_prefill: int = 0, **changes: object) -> RoutingTrace:
    """One request with the given ids (n_tokens, n_moe_layers, top_k)."""
    ids = np.asarray(expert_ids, dtype=np.int16)
    n_tokens = len(ids)
    fields: dict = {
        "header": TraceHeader("made-up", "", n_experts, tuple(range(ids.shape[1])), "tests", "by hand", "CC0-1.0"),
        "expert_ids": ids,
        "phase": np.where(np.arange(n_tokens) < n_prefill, PREFILL, DECODE).astype(np.uint8),
        "request_id": np.zeros(n_tokens, np.int32),
        "position": np.arange(n_tokens, dtype=np.int32),
        "domain": np.zeros(n_tokens, np.int16),
    }
    return RoutingTrace(**(fields | changes))


def random_trace(
    seed: int, n_tokens: int, n_layers: int, n_experts: int, top_k: int, n_prefill: int = 0
) -> RoutingTrace:
    """Uniform random rows."""
    rng = np.random.default_rng(seed)
    ids = np.argsort(rng.random((n_tokens, n_layers, n_experts)), axis=2)[:, :, :top_k]
    return make_trace(ids, n_experts, n_prefill)


@pytest.fixture
def trace() -> RoutingTrace:
    """40 tokens, 8 of them prefill, 3 layers x 8 experts, top-2."""
    return random_trace(0, 40, 3, 8, 2, n_prefill=8)


def tiny_model(n_layers: int = 3, n_experts: int = 8, top_k: int = 2, **changes: object) -> ModelSpec:
    """A small SmallThinker-like model: hidden 64, 2 heads of 32, expert FFN 32, Q8_0."""
    spec = load_model_spec("tiny-smallthinker")
    assert spec.experts is not None
    experts = spec.experts.model_copy(
        update={"n_experts": n_experts, "top_k": top_k, "ffn_size": 32, **changes.pop("experts", {})}  # type: ignore[call-overload]
    )
    update = {"name": "tiny", "hidden_size": 64, "n_layers": n_layers, "experts": experts, "vocab_size": 128}
    return spec.model_copy(update={**update, **changes})


def storage_model(**changes: float | None) -> StorageModel:
    """Storage in round numbers: 100 us a request in parallel lanes, 1 GB/s on the bus, 4 lanes."""
    fields = {
        "latency_s": 1e-4,
        "lane_s_per_byte": 0.0,
        "request_overhead_s": 0.0,
        "bus_s_per_byte": 1e-9,
        "queue_depth": 4,
    }
    return StorageModel(**(fields | changes))  # type: ignore[arg-type]


def device_rates(storage: StorageModel | None = None, **changes: float) -> DeviceRates:
    """A device in round numbers: 10 GFLOP/s, 1 GB/s of RAM, 1 us a kernel, perfect overlap."""
    fields = {
        "gemv_flop_per_s": 1e10,
        "gemm_flop_per_s": 2e10,
        "ram_bytes_per_s": 1e9,
        "op_overhead_s": 1e-6,
        "sequential_read_bytes_per_s": 1e9,
        "contended_compute_frac": 1.0,
        "contended_read_frac": 1.0,
    }
    return DeviceRates(storage=storage or storage_model(), **(fields | changes))  # type: ignore[arg-type]


class Outcome:
    """Exit status and what was printed."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def moeplan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs the command with arguments, in this process."""

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["moeplan", *arguments])
        with pytest.raises(SystemExit) as stop:
            app.main()
        captured = capsys.readouterr()
        return Outcome(int(stop.value.code or 0), captured.out, captured.err)

    return run


def assert_one_line(outcome: Outcome, *words: str) -> None:
    """Exit status 2, nothing on standard output, one line on standard error that holds the words."""
    assert outcome.status == 2, outcome.err
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1, outcome.err
    assert "Traceback" not in outcome.err
    for word in words:
        assert word in outcome.err
