"""
MappedFile: where the tensors of a model file lie, and which of its pages a token touches, in order.

The order of tensors is the one in which converters write GGUF files; the order of touches that of llama.cpp's graph:
a layer's attention, router, the gates of the chosen experts in ascending order, their ups, their downs, at last the
head.  Every tensor starts at a multiple of 32 bytes; the header (a few MiB) is left out, and so are shared experts' and
biases' own places: they are part of the layer's dense part.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.model import size as model_size
from simulator.model.spec import ModelSpec
from simulator.model.tensor_types import bytes_per_weight, tensor_bytes
from simulator.page_cache import PAGE_BYTES

ALIGNMENT_BYTES = 32  # general.alignment of GGUF files

Range = tuple[int, int]  # first byte, byte after the last


@dataclass(frozen=True)
class MappedLayer:
    """Byte ranges of a layer: dense is touched for every token; each of parts holds one matrix of all experts."""

    dense: Range
    parts: tuple[Range, ...]  # gate, up, down; () for a layer without experts


@dataclass(frozen=True)
class MappedFile:
    """The file's size in pages, its layers, the embedding and the head."""

    n_pages: int
    layers: tuple[MappedLayer, ...]
    embedding: Range
    head: Range
    n_experts: int
    row_bytes: int  # of the embedding

    def runs(self, rows: Sequence[Sequence[int]], token_ids: Iterable[int]) -> np.ndarray:
        """
        What a step touches: int64 (n, 2), the first page and the one after the last.

        rows: the experts of each MoE layer, as in Step.rows.
        """
        ranges = [self._embedding_row(token) for token in token_ids]
        expert_rows = iter(rows)
        for layer in self.layers:
            ranges.append(layer.dense)
            if layer.parts:
                ranges += self._expert_ranges(layer, sorted(next(expert_rows)))
        ranges.append(self.head)
        return np.array([(start // PAGE_BYTES, -(-stop // PAGE_BYTES)) for start, stop in ranges], np.int64)

    def _embedding_row(self, token: int) -> Range:
        start = self.embedding[0] + token * self.row_bytes
        return start, start + self.row_bytes

    def _expert_ranges(self, layer: MappedLayer, experts: Sequence[int]) -> Iterator[Range]:
        for start, stop in layer.parts:
            n_bytes = (stop - start) // self.n_experts
            for expert in experts:
                yield start + expert * n_bytes, start + (expert + 1) * n_bytes


def mapped_file(model: ModelSpec) -> MappedFile:
    """The file of a model, laid out from its shapes."""
    types, layers = model.tensor_types, []
    place = _Place()
    embedding = place.take(tensor_bytes(model.vocab_size, model.hidden_size, types.embedding))
    head = embedding if model.tied_embeddings else place.take(model_size.lm_head_bytes(model))
    moe_layers = set(model.moe_layer_ids)
    for index in range(model.n_layers):
        dense_bytes = model_size.attention_bytes_per_layer(model, index)
        if index not in moe_layers:
            layers.append(MappedLayer(place.take(dense_bytes + model_size.dense_ffn_bytes_per_layer(model)), ()))
            continue
        dense_bytes += model_size.router_bytes_per_layer(model) + model_size.shared_ffn_bytes_per_layer(model)
        layers.append(MappedLayer(place.take(dense_bytes), tuple(map(place.take, _expert_parts(model)))))
    row_bytes = round(model.hidden_size * bytes_per_weight(types.embedding))
    n_experts = 0 if model.experts is None else model.experts.n_experts
    return MappedFile(-(-place.end // PAGE_BYTES), tuple(layers), embedding, head, n_experts, row_bytes)


def _expert_parts(model: ModelSpec) -> list[int]:
    assert model.experts is not None
    sizes = [tensor_bytes(m.n_rows, m.n_cols, model.tensor_types.experts) for m in model_size.expert_matrices(model)]
    return [model.experts.n_experts * n_bytes for n_bytes in sizes]


class _Place:
    """The next free byte of a file."""

    def __init__(self) -> None:
        self.end = 0

    def take(self, n_bytes: int) -> Range:
        """Room for a tensor."""
        start = -(-self.end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.end = start + n_bytes
        return start, self.end
