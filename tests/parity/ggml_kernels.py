"""
llama.cpp's kernels on this machine as a KernelTable: each op of a decode token as a small graph of ggml, timed alone.

    python -m parity.ggml_kernels SPEC.yaml OUTPUT.json [--repack] [--threads 1 2]

A graph repeats an op over many copies of its weights, which together are as large as what one token touches (at most
ARENA_BYTES), so that the next time round they are as cold, or as warm, as they are in a model.  The operations are
those of llama.cpp's graph for SmallThinker, in its order (src/models/smallthinker.cpp, build_moe_ffn, build_attn_mha).
Nothing here runs the model.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import numpy as np

from hardware_profiles.kernel_table import KernelTable
from parity.ggml_graphs import Graph, Tensors, turn
from parity.ggml_layer import all_layers, attend, expert_row, normed, places, rotated, routed, stored
from parity.undisturbed import Turn, take_turns
from simulator.kernel_calls import token_bytes
from simulator.model import size as model_size
from simulator.model.catalog import load_model_spec
from simulator.model.spec import ModelSpec
from simulator.model.tensor_types import tensor_bytes

ARENA_BYTES = 256_000_000  # several times a last-level cache
KV_STEP = 256  # llama.cpp computes attention over multiples of so many keys
CONTEXTS = (256, 512, 768, 1024, 2048, 2304)
ROOM = max(CONTEXTS)  # keys that the caches hold
REPACKED = ("q4_0",)  # what llama.cpp repacks for AVX2
NO_TIME_S = 1e-12  # of what is measured as part of another op, a table takes no zero
UNCERTAINTY = 0.1
LAPS = 8  # over the experts of a layer
LAYER = "layer"  # all operations of a layer, each fed by the one before: no op of the table


class Op(NamedTuple):
    """What a row of the table is about."""

    name: str
    type: str = "f32"
    size: float = 1
    count: int = 1


class Timed(NamedTuple):
    """A graph that does an op so many times, at different places in memory, or several that do so in turn."""

    op: Op
    graphs: tuple[Graph, ...]
    n_times: int


Key = tuple[int, int]  # which of Kernels.graphs, threads


class Kernels:
    """The graphs of all ops in a model's shapes; repack: weights of REPACKED types in llama.cpp's own order."""

    def __init__(self, model: ModelSpec, repack: bool) -> None:
        self.model, self._repack, self._stack = model, repack, ExitStack()
        self.graphs = (
            *self._gemvs(), self._experts(), *map(self._attend, CONTEXTS), self._attention_rest(), self._router(),
            self._layer(),
        )  # fmt: skip

    def close(self) -> None:
        """Free all tensors."""
        self._stack.close()

    def turns(self, threads: Sequence[int]) -> dict[Key, Turn]:
        """A turn of every graph on every number of threads."""
        return {
            (index, n): partial(turn, timed.graphs, n) for index, timed in enumerate(self.graphs) for n in threads
        }  # fmt: skip

    def table(
        self, taken: Mapping[Key, Sequence[float]], threads: Sequence[int], step_s: Mapping[int, float]
    ) -> KernelTable:
        """From the seconds that the turns took; step_s: threads to the seconds of a step beside its layers."""
        rows = []
        for n in threads:
            seconds = self.op_seconds({index: median(taken[index, n]) for index in range(len(self.graphs))})
            rows += [self._row(op, n, s) for op, s in seconds.items()]
            rows.append(self._row(Op("step", size=self.model.hidden_size), n, step_s[n]))
        head = next(row for row in rows if row["op"] == "gemv" and row["size"] == model_size.lm_head_bytes(self.model))
        rate = head["size"] / float(head["time"].removesuffix(" s"))
        return KernelTable.model_validate(
            {"engine": "llama.cpp", "ram_bandwidth": f"{rate:.6g} B/s", "rows": rows, "kind": "measured",
             "source": "parity.ggml_kernels on this machine", "uncertainty": UNCERTAINTY}
        )  # fmt: skip

    def op_seconds(self, graph_s: Mapping[int, float]) -> dict[Op, float]:
        """
        Seconds of every op from the seconds of the graphs.

        What a layer takes beyond the sum of its parts is a `row`; where it takes less, each part is so much faster.
        """
        alike: dict[Op, list[float]] = {}
        for index, (op, _, n_times) in enumerate(self.graphs):
            alike.setdefault(op, []).append(graph_s[index] / n_times)
        seconds = {op: mean(of_one) for op, of_one in alike.items()}
        layer_s = seconds.pop(Op(LAYER))
        parts = self._parts_of_a_layer()
        sum_s = sum(seconds[op] for op in parts)
        seconds[Op("row")] = max(NO_TIME_S, layer_s - sum_s)
        seconds |= {op: seconds[op] * min(1, layer_s / sum_s) for op in parts}
        width = self.model.attention.n_heads * self.model.attention.head_dim
        for context in CONTEXTS[1:]:  # a step: all contexts that are rounded up to this one cost the same
            seconds[Op("attend", size=width * (context - KV_STEP + 1))] = seconds[Op("attend", size=width * context)]
        return seconds

    def _row(self, op: Op, n_threads: int, seconds: float) -> dict:
        working_set = f"{token_bytes(self.model):.0f} B"
        return {
            "op": op.name, "type": op.type, "size": op.size, "count": op.count, "working_set": working_set,
            "threads": n_threads, "time": f"{seconds:.6g} s",
        }  # fmt: skip

    def _parts_of_a_layer(self) -> list[Op]:
        model, attention = self.model, self.model.attention
        matrices = [
            _gemv_op(m.n_rows, m.n_cols, model.tensor_types.attention) for m in model_size.attention_matrices(model)
        ]
        names = ("experts", "attention_rest", "router")
        others = [next(timed.op for timed in self.graphs if timed.op.name == name) for name in names]
        return [*matrices, *others, Op("attend", size=attention.n_heads * attention.head_dim * KV_STEP)]

    def _new_tensors(self, type_name: str = "f32") -> Tensors:
        return self._stack.enter_context(Tensors(repack=self._repack and type_name in REPACKED))

    def _new_graph(self, n_nodes: int) -> Graph:
        return self._stack.enter_context(Graph(n_nodes))

    def _gemvs(self) -> list[Timed]:
        """Every shape of a matrix once; shapes of the same bytes are one op."""
        model, types = self.model, self.model.tensor_types
        head_type = types.embedding if model.tied_embeddings else types.lm_head
        shapes = {(types.attention, m.n_rows, m.n_cols) for m in model_size.attention_matrices(model)}
        shapes.add((head_type, model.vocab_size, model.hidden_size))
        return [self._gemv(*shape) for shape in sorted(shapes)]

    def _gemv(self, type_name: str, n_rows: int, n_cols: int) -> Timed:
        """A matrix times a vector, its rounding to Q8_0 included."""
        arena_bytes = min(ARENA_BYTES, token_bytes(self.model))
        n_copies = int(max(1, min(400, arena_bytes // tensor_bytes(n_rows, n_cols, type_name))))
        weights, inputs = self._new_tensors(type_name), self._new_tensors()
        graph = self._new_graph(4 * n_copies)
        matrices = [weights.random(type_name, n_cols, n_rows) for _ in range(n_copies)]
        x = inputs.random("f32", n_cols, 1)
        weights.allocate()
        inputs.allocate()
        for matrix in matrices:
            graph.run_last(graph.mul_mat(matrix, x))
        return Timed(_gemv_op(n_rows, n_cols, type_name), (graph,), n_copies)

    def _experts(self) -> Timed:
        """A row of experts for one token."""
        model, experts = self.model, self.model.experts
        assert experts is not None
        hidden, ffn, n, k = model.hidden_size, experts.ffn_size, experts.n_experts, experts.top_k
        kind, expert_bytes = model.tensor_types.experts, model_size.expert_bytes(model)
        n_layers = max(1, min(model.n_moe_layers, round(ARENA_BYTES / (n * expert_bytes))))
        weights, inputs = self._new_tensors(kind), self._new_tensors()
        graph = self._new_graph(32 * n_layers * (n // k))
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
        return Timed(Op("experts", kind, expert_bytes, k), (graph,), n_layers * n_rows)

    def _attend(self, n_keys: int) -> Timed:
        """Scores, softmax and mix of one token over a cache of n_keys, without flash attention."""
        model, attention = self.model, self.model.attention
        width, n = attention.head_dim * attention.n_kv_heads, model.n_layers
        inputs, graph = self._new_tensors(), self._new_graph(12 * n)
        caches = [(inputs.random("f16", width, ROOM), inputs.random("f16", ROOM, width)) for _ in range(n)]
        q = inputs.random("f32", attention.head_dim, attention.n_heads, 1)
        mask = places(inputs, model, n_keys, ROOM).mask
        inputs.allocate()
        for cache in caches:
            attend(graph, model, q, cache, mask, (n_keys, ROOM))
        return Timed(Op("attend", size=attention.n_heads * attention.head_dim * n_keys), (graph,), n)

    def _attention_rest(self) -> Timed:
        """Both norms, RoPE where a layer has it, keys and values into the cache, both sums of the residual."""
        model, attention = self.model, self.model.attention
        head, n_heads, n_kv, hidden = attention.head_dim, attention.n_heads, attention.n_kv_heads, model.hidden_size
        inputs, graph = self._new_tensors(), self._new_graph(32 * model.n_layers)
        x, gain = inputs.random("f32", hidden, 1), inputs.random("f32", hidden)
        q, k, v = (inputs.random("f32", head, n, 1) for n in (n_heads, n_kv, n_kv))
        at, width = places(inputs, model, KV_STEP, ROOM), head * n_kv
        shapes = ((width, ROOM), (1, width * ROOM))
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
        return Timed(Op("attention_rest", size=hidden), (graph,), model.n_layers)

    def _router(self) -> Timed:
        """Scores of all experts, sigmoid, the top k and their normalised weights."""
        model, experts = self.model, self.model.experts
        assert experts is not None
        inputs, graph = self._new_tensors(), self._new_graph(20 * model.n_moe_layers)
        matrices = [inputs.random("f32", model.hidden_size, experts.n_experts) for _ in range(model.n_moe_layers)]
        x = inputs.random("f32", model.hidden_size, 1)
        inputs.allocate()
        for matrix in matrices:
            routed(graph, model, matrix, x)
        return Timed(Op("router", size=experts.n_experts * model.hidden_size), (graph,), model.n_moe_layers)

    def _layer(self) -> Timed:
        """
        All layers; as many with weights of their own as the arena holds, then the same again.

        A layer that is passed LAPS times, by one token or by several, has had most of its experts chosen.
        """
        model = self.model
        layer_bytes = model_size.file_bytes(model) / model.n_layers
        n_different = max(1, min(model.n_layers, round(ARENA_BYTES / layer_bytes)))
        n_tokens = -(-LAPS * n_different // model.n_layers)
        graphs = tuple(self._new_graph(80 * model.n_layers) for _ in range(n_tokens))
        all_layers(model, self._new_tensors, graphs, n_different, ROOM)
        return Timed(Op(LAYER), graphs, model.n_layers)


def _gemv_op(n_rows: int, n_cols: int, type_name: str) -> Op:
    return Op("gemv", type_name, tensor_bytes(n_rows, n_cols, type_name))


def main() -> None:
    """Command line; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("output", type=Path)
    parser.add_argument("--repack", action="store_true")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    kernels = Kernels(load_model_spec(args.model), args.repack)
    taken = take_turns(kernels.turns(args.threads))
    table = kernels.table(taken, args.threads, dict.fromkeys(args.threads, NO_TIME_S))
    args.output.write_text(json.dumps([row.model_dump(mode="json") for row in table.rows], indent=1))


if __name__ == "__main__":
    main()
