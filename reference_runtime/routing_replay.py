"""
Run a model on routing that was recorded elsewhere, as an explicit option.

A random-weight model of real size has real reads and real arithmetic, but its router chooses almost evenly, which no
trained model does.  With a trace of the same routing shape in the router's place, the experts that are read are those
that a trained model chose.  Its words then mean even less, so every record carries the label.
"""

from pathlib import Path

import numpy as np

from moeplan.errors import InputError
from reference_runtime.forward import route
from reference_runtime.model_config import ModelConfig
from traces.routing_trace import RoutingTrace
from traces.store import read_trace

WRAPS = "; begins again at the trace's end"  # of a label


class ReplayRouter:
    """
    A Router (see forward.py) whose choice is not the scores': the token at position p gets the row first_row + p.

    The choice depends on layer and position alone, so it is the same for every cap, chunk size and repetition.  The
    model's own choice is made all the same and thrown away, so that the router takes the time that it does without.
    """

    def __init__(
        self, trace: RoutingTrace, config: ModelConfig, name: str, *, first_row: int = 0, wrap: bool = False
    ) -> None:
        """
        name: what to call the trace in `label`; wrap: begin again behind the last row, otherwise that is refused.

        Raises InputError for a trace of another routing shape and a first_row that it has not.
        """
        _check_shape(trace, config, name)
        if not 0 <= first_row < trace.n_tokens:
            raise InputError(f"{name}: first row", f"must be 0 to {trace.n_tokens - 1}", first_row)
        self.label = f"routing replayed from {name}, not the model's own"
        if trace.weights is None:
            self.label += "; equal weights, the trace has none"
        if wrap:
            self.label += WRAPS
        self._name, self._first_row, self._wrap = name, first_row, wrap
        self._ids = trace.expert_ids  # int16 (n_tokens, n_layers, k)
        self._weights = _weights(trace, config)  # float32 like ids

    def choose(
        self, layer: int, scores: np.ndarray, first_position: int, config: ModelConfig
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        The trace's expert ids (n, k) and weights (n, k) of the n tokens from first_position on.

        Raises InputError behind the trace's last row unless it wraps.
        """
        route(scores, config)  # for its time
        self.check_length(first_position + len(scores))
        first, n_rows = (self._first_row + first_position) % len(self._ids), len(self._ids)
        rows: slice | np.ndarray = slice(first, first + len(scores))  # one token's row is soon found
        if first + len(scores) > n_rows:
            rows = (first + np.arange(len(scores))) % n_rows
        return self._ids[rows, layer].astype(np.int64), self._weights[rows, layer]

    def check_length(self, n_tokens: int) -> None:
        """Raises InputError where a sequence of so many tokens goes behind the trace's last row, unless it wraps."""
        n_rows, needed = len(self._ids), self._first_row + n_tokens
        if needed > n_rows and not self._wrap:
            advice = "run fewer tokens, take a longer trace or let it wrap"
            raise InputError(self._name, f"must have a row for each token, it has {n_rows}", needed, advice)


def replay_router(path: Path, config: ModelConfig, *, first_row: int = 0, wrap: bool = False) -> ReplayRouter:
    """The router of a trace file, named after it. Raises InputError as read_trace and ReplayRouter do."""
    return ReplayRouter(read_trace(path), config, path.name, first_row=first_row, wrap=wrap)


def _check_shape(trace: RoutingTrace, config: ModelConfig, name: str) -> None:
    recorded = (trace.n_moe_layers, trace.header.n_experts, trace.top_k)
    needed = (config.n_layers, config.n_experts, config.top_k)
    if recorded != needed:
        must = "must have the routing shape of {}: {} layers, {} experts, top-{}".format(config.name, *needed)
        raise InputError(name, must, "{} layers, {} experts, top-{}".format(*recorded), "see `moeplan trace list`")


def _weights(trace: RoutingTrace, config: ModelConfig) -> np.ndarray:
    """float32 (n_tokens, n_layers, k): the recorded ones, which float16 has rounded, or equal ones; summing to 1."""
    if trace.weights is None:
        return np.full(trace.expert_ids.shape, 1 / trace.top_k, dtype=np.float32)
    weights = trace.weights.astype(np.float32)
    total = weights.sum(axis=-1, keepdims=True)
    if not (np.isfinite(total).all() and (weights >= 0).all() and (total > 0).all()):
        raise InputError("trace: weights", "must be finite, at least 0 and not all 0 in a row", "others")
    return weights / total if config.normalised else weights
