"""
Traces of the shapes that count, made up to any length: Zipf-popular experts, a part of which repeats.

Fast where traces/synthetic.py is exact: a token's repeated experts are drawn slot by slot.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from simulator.cache_passes.compiled import compiled
from simulator.cache_passes.rows import Rows
from traces.routing_trace import DECODE, RoutingTrace
from traces.store import write_trace
from traces.synthetic import made_up_header

ZIPF, REPEAT_FRAC = 1.0, 0.3  # near to what recorded traces show at half the experts
REQUEST_TOKENS = 1000  # a request's decode tokens: what the models' context lengths leave room for


class Shape(NamedTuple):
    """Routing of a model: MoE layers, experts a layer, experts a token."""

    n_layers: int
    n_experts: int
    top_k: int

    @property
    def accesses_per_token(self) -> int:
        """Experts that one token uses."""
        return self.n_layers * self.top_k


SHAPES = {"4B": Shape(32, 32, 4), "21B": Shape(52, 64, 6), "DeepSeek-V3": Shape(58, 256, 8)}


@compiled
def _synthesize(n_tokens, n_layers, n_experts, top_k, cumulative, order, repeat_frac, seed, out):  # type: ignore[no-untyped-def]
    """Experts into out int16 (n_tokens, n_layers, top_k)."""
    np.random.seed(seed)
    for token in range(n_tokens):
        for layer in range(n_layers):
            n = 0
            if token > 0:
                for slot in range(top_k):
                    if np.random.random() < repeat_frac:
                        out[token, layer, n] = out[token - 1, layer, slot]
                        n += 1
            while n < top_k:
                rank = min(np.searchsorted(cumulative, np.random.random()), n_experts - 1)
                expert, is_new = order[layer, rank], True
                for slot in range(n):
                    is_new &= out[token, layer, slot] != expert
                if is_new:
                    out[token, layer, n] = expert
                    n += 1


def made_up_ids(n_tokens: int, shape: Shape, seed: int = 0) -> np.ndarray:
    """Expert ids int16 (n_tokens, n_layers, top_k), distinct within a row."""
    n_layers, n_experts, top_k = shape
    rng = np.random.default_rng(seed)
    weights = np.arange(1, n_experts + 1) ** -ZIPF
    order = np.stack([rng.permutation(n_experts) for _ in range(n_layers)])
    out = np.empty((n_tokens, n_layers, top_k), np.int16)
    cumulative = np.cumsum(weights / weights.sum())
    _synthesize(n_tokens, n_layers, n_experts, top_k, cumulative, order, REPEAT_FRAC, seed, out)
    return out


def made_up_rows(n_tokens: int, shape: Shape, seed: int = 0) -> Rows:
    """The decode rows of such a trace, for the cache passes."""
    first_key = (np.arange(shape.n_layers) * shape.n_experts).astype(np.uint16)[:, None]
    keys = made_up_ids(n_tokens, shape, seed).astype(np.uint16) + first_key
    offsets = np.arange(0, keys.size + 1, shape.top_k).astype(np.uint32)
    return Rows(keys.reshape(-1), offsets, shape.n_layers, shape.n_experts)


def first_rows(rows: Rows, n_tokens: int) -> Rows:
    """The rows of the first tokens."""
    n_rows = min(rows.n_rows, n_tokens * rows.n_layers)
    return Rows(rows.keys[: rows.offsets[n_rows]], rows.offsets[: n_rows + 1], rows.n_layers, rows.n_experts)


def capacities_of(rows: Rows, n: int) -> list[int]:
    """n capacities from one lap of the model to nearly all experts."""
    lap = int(rows.offsets[rows.n_layers])
    return np.linspace(1.06 * lap, 0.95 * rows.n_keys, n).astype(int).tolist()


def made_up_trace(n_tokens: int, shape: Shape, seed: int = 0) -> RoutingTrace:
    """Requests of REQUEST_TOKENS decode tokens each, labelled as made up."""
    tokens = np.arange(n_tokens)
    numbers = f"zipf {ZIPF}, repeat {REPEAT_FRAC}, seed {seed}"
    layers = range(shape.n_layers)
    header = made_up_header("made up for a benchmark", shape.n_experts, layers, "moeplan bench", numbers)
    return RoutingTrace(
        header=header,
        expert_ids=made_up_ids(n_tokens, shape, seed),
        phase=np.full(n_tokens, DECODE, np.uint8),
        request_id=(tokens // REQUEST_TOKENS).astype(np.int32),
        position=(tokens % REQUEST_TOKENS).astype(np.int32),
        domain=np.zeros(n_tokens, np.int16),
    )


def trace_file(folder: Path, n_tokens: int, name: str) -> Path:
    """The file of a made-up trace of SHAPES[name]; made where it is not there yet."""
    path = folder / f"made-up-{name}-{n_tokens}.parquet"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_trace(made_up_trace(n_tokens, SHAPES[name]), path)
    return path
