"""Replayed routing: the trace's rows in order, whatever the scores and the chunks."""

from pathlib import Path

import numpy as np
import pytest
from forward_oracle import SMALL

from moeplan.errors import InputError
from reference_runtime.routing_replay import ReplayRouter, replay_router
from traces.routing_trace import DECODE, RoutingTrace, TraceHeader
from traces.store import write_trace

N_TOKENS = 10


def trace(weights: np.ndarray | None = None, n_layers: int = SMALL.n_layers, n_experts: int = 8) -> RoutingTrace:
    """10 tokens: token t, layer l chose experts (t + l) % n_experts and the next one."""
    first = np.add.outer(np.arange(N_TOKENS), np.arange(n_layers))
    ids = np.stack([first, first + 1], axis=-1) % n_experts
    header = TraceHeader("other", "", n_experts, tuple(range(n_layers)), "test", "made up", "CC0-1.0")
    zeros = np.zeros(N_TOKENS, dtype=np.int32)
    return RoutingTrace(
        header=header,
        expert_ids=ids.astype(np.int16),
        phase=np.full(N_TOKENS, DECODE, dtype=np.uint8),
        request_id=zeros,
        position=np.arange(N_TOKENS, dtype=np.int32),
        domain=zeros.astype(np.int16),
        weights=weights,
    )


def scores(n: int) -> np.ndarray:
    """Scores that would choose otherwise."""
    return np.random.default_rng(n).standard_normal((n, SMALL.n_experts)).astype(np.float32)


def test_rows_come_in_order_whatever_the_chunks() -> None:
    """Positions 0 to 5 as one chunk or as three give the same rows of the trace."""
    router = ReplayRouter(trace(), SMALL, "t")
    whole, _ = router.choose(2, scores(6), 0, SMALL)
    parts = [router.choose(2, scores(n), first, SMALL)[0] for first, n in ((0, 1), (1, 3), (4, 2))]
    assert np.array_equal(whole, np.concatenate(parts))
    assert whole.tolist() == [[(t + 2) % 8, (t + 3) % 8] for t in range(6)]


def test_the_models_own_choice_is_made_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that is replayed does the work of one that is not, so that its time is that of the model's own."""
    seen: list[np.ndarray] = []
    monkeypatch.setattr("reference_runtime.routing_replay.route", lambda scores, config: seen.append(scores))
    given = scores(3)
    ReplayRouter(trace(), SMALL, "t").choose(0, given, 0, SMALL)
    assert [found is given for found in seen] == [True]


def test_a_first_row_shifts_the_trace() -> None:
    """Position p takes row first_row + p."""
    ids, _ = ReplayRouter(trace(), SMALL, "t", first_row=4).choose(0, scores(2), 3, SMALL)
    assert ids.tolist() == [[7, 0], [0, 1]]


def test_the_end_is_refused_or_wraps() -> None:
    """By default a token behind the last row is an error; with wrap the trace begins again."""
    router = ReplayRouter(trace(), SMALL, "short.parquet")
    router.choose(0, scores(N_TOKENS), 0, SMALL)
    with pytest.raises(InputError, match=r"short\.parquet: must have a row for each token, it has 10, got 11"):
        router.choose(0, scores(1), N_TOKENS, SMALL)
    ids, _ = ReplayRouter(trace(), SMALL, "t", wrap=True).choose(0, scores(3), 9, SMALL)
    assert ids[:, 0].tolist() == [1, 0, 1]


def test_a_sequence_too_long_is_refused_before_it_runs() -> None:
    """The same error before the first token; from a later first row it has fewer, and wrapping it never ends."""
    router = ReplayRouter(trace(), SMALL, "t", first_row=4)
    router.check_length(N_TOKENS - 4)
    with pytest.raises(InputError, match="t: must have a row for each token, it has 10, got 11"):
        router.check_length(N_TOKENS - 3)
    ReplayRouter(trace(), SMALL, "t", wrap=True).check_length(1000)


def test_weights_are_the_recorded_ones_or_equal() -> None:
    """Recorded weights sum to 1 again after their float16 rounding; a trace without weights gives 1 / k."""
    recorded = np.broadcast_to(np.float16([0.7, 0.3]), (N_TOKENS, SMALL.n_layers, 2)).copy()
    _, weights = ReplayRouter(trace(recorded), SMALL, "t").choose(0, scores(2), 0, SMALL)
    assert weights.dtype == np.float32
    assert weights == pytest.approx(np.array([[0.7, 0.3]] * 2), abs=1e-3)
    assert weights.sum(axis=-1) == pytest.approx([1, 1], abs=1e-6)
    _, weights = ReplayRouter(trace(), SMALL, "t").choose(0, scores(2), 0, SMALL)
    assert weights.tolist() == [[0.5, 0.5]] * 2


def test_weights_that_are_none_are_refused() -> None:
    """NaN weights would become NaN words."""
    recorded = np.full((N_TOKENS, SMALL.n_layers, 2), np.nan, dtype=np.float16)
    with pytest.raises(InputError, match="must be finite"):
        ReplayRouter(trace(recorded), SMALL, "t")


def test_every_record_can_say_so() -> None:
    """The label names the trace and what was assumed."""
    recorded = np.full((N_TOKENS, SMALL.n_layers, 2), 0.5, dtype=np.float16)
    plain = ReplayRouter(trace(recorded), SMALL, "code.parquet").label
    assert plain == "routing replayed from code.parquet, not the model's own"
    both = ReplayRouter(trace(), SMALL, "code.parquet", wrap=True).label
    assert both == f"{plain}; equal weights, the trace has none; begins again at the trace's end"


@pytest.mark.parametrize("shape", [{"n_layers": 5}, {"n_experts": 16}])
def test_another_routing_shape_is_refused(shape: dict[str, int]) -> None:
    """Layers, experts and top-k must be the model's."""
    with pytest.raises(InputError, match="must have the routing shape of small: 6 layers, 8 experts, top-2"):
        ReplayRouter(trace(**shape), SMALL, "t")


def test_a_trace_file_is_read_and_named(tmp_path: Path) -> None:
    """replay_router takes the file's name for the label."""
    path = tmp_path / "code.parquet"
    write_trace(trace(), path)
    assert "code.parquet" in replay_router(path, SMALL).label
    with pytest.raises(InputError, match="must be 0 to 9"):
        replay_router(path, SMALL, first_row=10)
