"""
llama.cpp's kernels on this machine as a KernelTable: each op of a decode token as small graphs of ggml, timed alone.

    python -m parity.ggml_kernels SPEC.yaml OUTPUT.json [--repack] [--threads 1 2]

A graph repeats an op over many copies of its weights, which together are as large as what one token touches (at most
ARENA_BYTES), so that the next time round they are as cold, or as warm, as they are in a model.  The operations are
those of llama.cpp's graph for SmallThinker, in its order (src/models/smallthinker.cpp, build_moe_ffn, build_attn_mha).
Nothing here runs the model.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hardware_profiles.kernel_table import KernelTable
from parity.ggml_graphs import Graph, Tensors
from parity.ggml_layer import attend, expert_row, layer_s, normed, places, rotated, routed, stored
from simulator.kernel_calls import token_bytes
from simulator.model import size as model_size
from simulator.model.catalog import load_model_spec
from simulator.model.spec import ModelSpec
from simulator.model.tensor_types import tensor_bytes

ARENA_BYTES = 256_000_000  # several times a last-level cache
KV_STEP = 256  # llama.cpp computes attention over multiples of so many keys
CONTEXTS = (256, 512, 768, 1024, 2048, 2304)
REPACKED = ("q4_0",)  # what llama.cpp repacks for AVX2
NO_TIME_S = 1e-12  # of what is measured as part of another op, a table takes no zero
UNCERTAINTY = 0.1


@dataclass(frozen=True)
class Bench:
    """What is timed: a model's shapes on so many threads, weights repacked or not."""

    model: ModelSpec
    n_threads: int
    repack: bool

    @property
    def arena_bytes(self) -> float:
        """Bytes that the copies of a weight take together."""
        return min(ARENA_BYTES, token_bytes(self.model))

    def weights(self, type_name: str) -> Tensors:
        """Where weights of a type go."""
        return Tensors(repack=self.repack and type_name in REPACKED)


def gemv_s(bench: Bench, type_name: str, n_rows: int, n_cols: int) -> float:
    """A matrix times a vector, its rounding to Q8_0 included."""
    n_copies = _copies(bench, tensor_bytes(n_rows, n_cols, type_name))
    with bench.weights(type_name) as weights, Tensors() as inputs, Graph(4 * n_copies) as graph:
        matrices = [weights.random(type_name, n_cols, n_rows) for _ in range(n_copies)]
        x = inputs.random("f32", n_cols, 1)
        weights.allocate()
        inputs.allocate()
        for matrix in matrices:
            graph.run_last(graph.mul_mat(matrix, x))
        return graph.seconds(bench.n_threads) / n_copies


def experts_s(bench: Bench) -> float:
    """A row of experts for one token."""
    model, experts = bench.model, bench.model.experts
    assert experts is not None
    hidden, ffn, n, k = model.hidden_size, experts.ffn_size, experts.n_experts, experts.top_k
    kind = model.tensor_types.experts
    all_bytes = model.n_moe_layers * n * model_size.expert_bytes(model)
    n_layers = max(1, round(min(ARENA_BYTES, all_bytes) / (n * model_size.expert_bytes(model))))
    with bench.weights(kind) as weights, Tensors() as inputs, Graph(32 * n_layers * (n // k)) as graph:
        shapes = ((hidden, ffn), (hidden, ffn), (ffn, hidden))
        layers = [tuple(weights.random(kind, *shape, n) for shape in shapes) for _ in range(n_layers)]
        x, shares = inputs.random("f32", hidden, 1, 1), inputs.random("f32", 1, k, 1)
        order = np.random.default_rng(0).permuted(np.tile(np.arange(n, dtype=np.int32), (n_layers, 1)), axis=1)
        rows = [[inputs.filled(order[i, j : j + k][None]) for j in range(0, n - k + 1, k)] for i in range(n_layers)]
        weights.allocate()
        inputs.allocate()
        n_rows = len(rows[0])
        for j in range(n_rows):  # a lap over all layers before a layer comes again
            for layer, ids in zip(layers, rows, strict=True):
                expert_row(graph, model, layer, x, ids[j], shares)
        return graph.seconds(bench.n_threads) / (n_layers * n_rows)


def attend_s(bench: Bench, n_keys: int) -> float:
    """Scores, softmax and mix of one token over a cache of n_keys, without flash attention."""
    model, attention, room = bench.model, bench.model.attention, max(CONTEXTS)
    width = attention.head_dim * attention.n_kv_heads
    with Tensors() as inputs, Graph(12 * model.n_layers) as graph:
        caches = [(inputs.random("f16", width, room), inputs.random("f16", room, width)) for _ in range(model.n_layers)]
        q, mask = inputs.random("f32", attention.head_dim, attention.n_heads, 1), places(inputs, model, n_keys).mask
        inputs.allocate()
        for cache in caches:
            attend(graph, model, q, cache, mask, (n_keys, room))
        return graph.seconds(bench.n_threads) / model.n_layers


def attention_rest_s(bench: Bench) -> float:
    """Both norms, RoPE where a layer has it, keys and values into the cache, both sums of the residual."""
    model, attention = bench.model, bench.model.attention
    head, n_heads, n_kv, hidden = attention.head_dim, attention.n_heads, attention.n_kv_heads, model.hidden_size
    with Tensors() as inputs, Graph(32 * model.n_layers) as graph:
        x, gain = inputs.random("f32", hidden, 1), inputs.random("f32", hidden)
        q, k, v = (inputs.random("f32", head, n, 1) for n in (n_heads, n_kv, n_kv))
        at, width = places(inputs, model, KV_STEP), head * n_kv
        shapes = ((width, KV_STEP), (1, width * KV_STEP))
        caches = [(inputs.random("f16", *shapes[0]), inputs.random("f16", *shapes[1])) for _ in range(model.n_layers)]
        inputs.allocate()
        for layer, cache in enumerate(caches):
            z, k_now = normed(graph, x, gain), k
            if "rope" in model.layer_kind(layer):
                rotated(graph, model, q, at.position)
                k_now = rotated(graph, model, k, at.position)
            stored(graph, model, k_now, v, cache, at)
            summed = graph.run_last(graph.add(z, x))
            graph.run_last(graph.add(normed(graph, summed, gain), summed))
        return graph.seconds(bench.n_threads) / model.n_layers


def router_s(bench: Bench) -> float:
    """Scores of all experts, sigmoid, the top k and their normalised weights."""
    model, experts = bench.model, bench.model.experts
    assert experts is not None
    with Tensors() as inputs, Graph(20 * model.n_moe_layers) as graph:
        matrices = [inputs.random("f32", model.hidden_size, experts.n_experts) for _ in range(model.n_moe_layers)]
        x = inputs.random("f32", model.hidden_size, 1)
        inputs.allocate()
        for matrix in matrices:
            routed(graph, model, matrix, x)
        return graph.seconds(bench.n_threads) / model.n_moe_layers


def rows_of(bench: Bench, step_s: float) -> list[dict]:
    """The rows of the table for one number of threads; step_s: what a step costs beside its graph."""
    model, types = bench.model, bench.model.tensor_types
    assert model.experts is not None
    experts, attention = model.experts, model.attention
    rows: list[dict] = []

    def add(op: str, type_name: str, size: float, seconds: float, count: int = 1) -> None:
        rows.append(
            {"op": op, "type": type_name, "size": size, "count": count, "working_set": f"{token_bytes(model):.0f} B",
             "threads": bench.n_threads, "time": f"{seconds:.6g} s"}
        )  # fmt: skip

    head_type = types.embedding if model.tied_embeddings else types.lm_head
    matrices = {(types.attention, m.n_rows, m.n_cols) for m in model_size.attention_matrices(model)}
    matrices.add((head_type, model.vocab_size, model.hidden_size))
    for kind, n_bytes in sorted({(kind, tensor_bytes(n_rows, n_cols, kind)) for kind, n_rows, n_cols in matrices}):
        alike = [
            shape for shape in sorted(matrices) if (shape[0], tensor_bytes(*shape[1:], shape[0])) == (kind, n_bytes)
        ]
        add("gemv", kind, n_bytes, float(np.mean([gemv_s(bench, *shape) for shape in alike])))
    add("experts", types.experts, model_size.expert_bytes(model), experts_s(bench), experts.top_k)
    per_key = attention.n_heads * attention.head_dim
    for context in CONTEXTS:
        seconds = attend_s(bench, context)
        # a step: all contexts that are rounded up to this one cost the same
        add("attend", "f32", per_key * context, seconds)
        if context > KV_STEP:
            add("attend", "f32", per_key * (context - KV_STEP + 1), seconds)
    add("attention_rest", "f32", model.hidden_size, attention_rest_s(bench))
    add("router", "f32", experts.n_experts * model.hidden_size, router_s(bench))
    add(
        "row",
        "f32",
        1,
        max(NO_TIME_S, layer_s(model, bench.weights, bench.n_threads, ARENA_BYTES) - _sum_of(rows, model)),
    )
    add("step", "f32", model.hidden_size, step_s)
    return rows


def measured_table(model: ModelSpec, threads: list[int], repack: bool, step_s: Callable[[int], float]) -> KernelTable:
    """llama.cpp's kernels in a model's shapes; step_s: threads to the seconds of a step beside its graph."""
    rows = [row for n in threads for row in rows_of(Bench(model, n, repack), step_s(n))]
    head = next(row for row in rows if row["op"] == "gemv" and row["size"] == model_size.lm_head_bytes(model))
    rate = head["size"] / float(head["time"].removesuffix(" s"))
    return KernelTable.model_validate(
        {"engine": "llama.cpp", "ram_bandwidth": f"{rate:.6g} B/s", "rows": rows, "kind": "measured",
         "source": "parity.ggml_kernels on this machine", "uncertainty": UNCERTAINTY}
    )  # fmt: skip


def _sum_of(rows: list[dict], model: ModelSpec) -> float:
    """Seconds of the parts of one layer at KV_STEP keys."""

    def seconds(op: str, size: float) -> float:
        return next(float(row["time"].removesuffix(" s")) for row in rows if (row["op"], row["size"]) == (op, size))

    assert model.experts is not None
    kind, attention = model.tensor_types.attention, model.attention
    matrices = model_size.attention_matrices(model)
    parts = [("gemv", tensor_bytes(matrix.n_rows, matrix.n_cols, kind)) for matrix in matrices]
    parts += [("experts", model_size.expert_bytes(model)), ("attention_rest", model.hidden_size)]
    parts.append(("attend", attention.n_heads * attention.head_dim * KV_STEP))
    parts.append(("router", model.experts.n_experts * model.hidden_size))
    return sum(seconds(op, size) for op, size in parts)


def _copies(bench: Bench, n_bytes: int) -> int:
    return int(max(1, min(400, bench.arena_bytes // n_bytes)))


def main() -> None:
    """Command line; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("output", type=Path)
    parser.add_argument("--repack", action="store_true")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    rows = [row for n in args.threads for row in rows_of(Bench(load_model_spec(args.model), n, args.repack), NO_TIME_S)]
    args.output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
