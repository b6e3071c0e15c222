"""
A whole layer of ggml operations, each fed by the one before, as a decode token runs through it.

Timed alone, an operation finds its inputs in its own processor's cache; in a layer another core has just written them,
and the next operation's weights push out the last one's.  What a layer takes beyond the sum of its parts is the time of
a `row` in the table.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from parity.ggml_graphs import ROPE_NEOX, Graph, Tensor, Tensors
from simulator.model.spec import ModelSpec

EPSILON = 1e-6
F16_BYTES = 2
F32_BYTES = 4
N_KEYS = 256  # in use
SLOT = 77  # where the token's keys and values go
WEIGHT_FLOOR = 6e-5  # the sum of the chosen weights is clamped to it


class Layer(NamedTuple):
    """Tensors of one layer."""

    gain: Tensor
    qkv: tuple[Tensor, Tensor, Tensor]
    output: Tensor
    router: Tensor
    experts: tuple[Tensor, Tensor, Tensor]
    keys: Tensor
    values: Tensor
    has_rope: bool


class Places(NamedTuple):
    """Where the token stands: its position, its slot among the keys, its slots among the values, the mask."""

    position: Tensor
    slot: Tensor
    slots: Tensor
    mask: Tensor


def places(inputs: Tensors, model: ModelSpec, n_keys: int, room: int) -> Places:
    """The inputs that all layers share; room: keys that the caches hold."""
    width = model.attention.n_kv_heads * model.attention.head_dim
    return Places(
        inputs.filled(np.array([SLOT], np.int32)),
        inputs.filled(np.array([SLOT], np.int64)),
        inputs.filled(SLOT + room * np.arange(width, dtype=np.int64)),
        inputs.filled(np.zeros((1, n_keys), np.float32)),
    )


def attend(
    graph: Graph, model: ModelSpec, q: Tensor, caches: tuple[Tensor, Tensor], mask: Tensor, shape: tuple[int, int]
) -> Tensor:
    """Scores, softmax and mix of one token; shape: keys in use, keys that the caches have room for."""
    attention, (n_keys, room) = model.attention, shape
    head, n_heads, n_kv = attention.head_dim, attention.n_heads, attention.n_kv_heads
    keys, values = caches
    row_bytes = F16_BYTES * head * n_kv
    heads = graph.view_3d(keys, head, n_kv, n_keys, F16_BYTES * head, row_bytes, 0)
    scores = graph.mul_mat(graph.permute(heads, 0, 2, 1, 3), graph.permute(q, 0, 2, 1, 3))
    shares = graph.soft_max_ext(scores, mask, head**-0.5, 0.0)
    used = graph.view_3d(values, n_keys, head, n_kv, F16_BYTES * room, F16_BYTES * room * head, 0)
    mix = graph.permute(graph.mul_mat(used, shares), 0, 2, 1, 3)
    return graph.run_last(graph.cont_2d(mix, head * n_heads, 1))


def normed(graph: Graph, x: Tensor, gain: Tensor) -> Tensor:
    """RMS norm times its gain."""
    return graph.run_last(graph.mul(graph.rms_norm(x, EPSILON), gain))


def rotated(graph: Graph, model: ModelSpec, x: Tensor, position: Tensor) -> Tensor:
    """RoPE over whole heads."""
    head = model.attention.head_dim
    scales = (1e6, 1.0, 0.0, 1.0, 32.0, 1.0)
    return graph.run_last(graph.rope_ext(x, position, None, head, ROPE_NEOX, model.context_length, *scales))


def stored(graph: Graph, model: ModelSpec, k: Tensor, v: Tensor, caches: tuple[Tensor, Tensor], at: Places) -> None:
    """Keys into a row of their cache, values into a column of theirs."""
    width = model.attention.n_kv_heads * model.attention.head_dim
    graph.run_last(graph.set_rows(caches[0], graph.reshape_2d(k, width, 1), at.slot))
    graph.run_last(graph.set_rows(caches[1], graph.reshape_2d(v, 1, width), at.slots))


def routed(graph: Graph, model: ModelSpec, matrix: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """(chosen experts, their weights): scores, sigmoid, top k, normalised."""
    assert model.experts is not None
    n, k = model.experts.n_experts, model.experts.top_k
    shares = graph.sigmoid(graph.mul_mat(matrix, x))
    chosen = graph.argsort_top_k(shares, k)
    weights = graph.reshape_2d(graph.get_rows(graph.reshape_3d(shares, 1, n, 1), chosen), k, 1)
    total = graph.clamp(graph.sum_rows(weights), WEIGHT_FLOOR, float("inf"))
    return chosen, graph.run_last(graph.div(weights, total))


def expert_row(
    graph: Graph, model: ModelSpec, experts: tuple[Tensor, ...], x: Tensor, ids: Tensor, weights: Tensor
) -> Tensor:
    """Three products, ReGLU, weights, sum: x (hidden, 1, 1), weights (1, k, 1)."""
    assert model.experts is not None
    hidden, k = model.hidden_size, model.experts.top_k
    gate, up = (graph.run_last(graph.mul_mat_id(matrix, x, ids)) for matrix in experts[:2])
    down = graph.mul_mat_id(experts[2], graph.reglu_split(gate, up), ids)
    weighted = graph.run_last(graph.mul(down, weights))
    parts = [graph.view_2d(weighted, hidden, 1, F32_BYTES * hidden * k, F32_BYTES * hidden * i) for i in range(k)]
    total = parts[0]
    for part in parts[1:]:
        total = graph.run_last(graph.add(total, part))
    return total


def all_layers(
    model: ModelSpec, new_tensors: Callable[[str], Tensors], graphs: Sequence[Graph], n_different: int, room: int
) -> None:
    """
    Every layer of a model after the other at N_KEYS keys, of which n_different have weights of their own.

    graphs: one for each of several tokens, which choose different experts.

    new_tensors: a place for weights of a type, which lives as long as the graphs; room: keys that the caches hold.
    """
    types = model.tensor_types
    dense, banks, inputs = new_tensors(types.attention), new_tensors(types.experts), new_tensors("f32")
    layers = [_layer(model, (dense, banks, inputs), index, room) for index in range(n_different)]
    at = places(inputs, model, N_KEYS, room)
    tokens = [inputs.random("f32", model.hidden_size, 1) for _ in graphs]
    for tensors in (dense, banks, inputs):
        tensors.allocate()
    for graph, x in zip(graphs, tokens, strict=True):
        for index in range(model.n_layers):
            x = _through(graph, model, layers[index % n_different], at, x, room)


def _layer(model: ModelSpec, places_of: tuple[Tensors, Tensors, Tensors], index: int, room: int) -> Layer:
    assert model.experts is not None
    dense, banks, inputs = places_of
    attention, types, hidden, ffn = model.attention, model.tensor_types, model.hidden_size, model.experts.ffn_size
    width, kv_width = attention.n_heads * attention.head_dim, attention.n_kv_heads * attention.head_dim
    n = model.experts.n_experts
    q, k, v = (dense.random(types.attention, hidden, rows) for rows in (width, kv_width, kv_width))
    shapes = ((hidden, ffn), (hidden, ffn), (ffn, hidden))
    gate, up, down = (banks.random(types.experts, *shape, n) for shape in shapes)
    return Layer(
        inputs.random("f32", hidden),
        (q, k, v),
        dense.random(types.attention, width, hidden),
        inputs.random("f32", hidden, n),
        (gate, up, down),
        inputs.random("f16", kv_width, room),
        inputs.random("f16", 1, kv_width * room),
        "rope" in model.layer_kind(index),
    )


def _through(graph: Graph, model: ModelSpec, layer: Layer, at: Places, x: Tensor, room: int) -> Tensor:
    """The residual after the layer, in the order of llama.cpp's graph."""
    assert model.experts is not None
    attention, hidden = model.attention, model.hidden_size
    head, n_heads, n_kv = attention.head_dim, attention.n_heads, attention.n_kv_heads
    z = normed(graph, x, layer.gain)
    heads = (n_heads, n_kv, n_kv)
    q, k, v = (
        graph.reshape_3d(graph.run_last(graph.mul_mat(m, z)), head, n, 1) for m, n in zip(layer.qkv, heads, strict=True)
    )
    if layer.has_rope:
        q, k = rotated(graph, model, q, at.position), rotated(graph, model, k, at.position)
    stored(graph, model, k, v, (layer.keys, layer.values), at)
    mix = attend(graph, model, q, (layer.keys, layer.values), at.mask, (N_KEYS, room))
    chosen, weights = routed(graph, model, layer.router, x)
    x = graph.run_last(graph.add(graph.mul_mat(layer.output, mix), x))
    z = graph.reshape_3d(normed(graph, x, layer.gain), hidden, 1, 1)
    weights = graph.reshape_3d(weights, 1, model.experts.top_k, 1)
    row = expert_row(graph, model, layer.experts, z, chosen, weights)
    return graph.run_last(graph.add(row, x))
