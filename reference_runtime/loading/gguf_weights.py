"""
A whole `smallthinker` model as float32 arrays: what the training tools read and write, and the plain reference.

`read_weights` takes whatever `weight_loading.open_model` opens; to run a model without expanding it see there.
"""

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFReader

from moeplan.errors import InputError
from reference_runtime.loading.gguf_model import LAYER_NAMES
from reference_runtime.loading.model_file import ModelFile, Part
from reference_runtime.loading.model_shapes import dense_shapes, expert_shapes
from reference_runtime.loading.weight_loading import PartReader, open_model
from reference_runtime.model_config import ModelConfig
from simulator.model.imports.gguf_header import read_header

ARCHITECTURE = "smallthinker"
Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """float32 arrays of one layer; matrices are (out, in), so y = x @ matrix.T."""

    attn_norm: np.ndarray  # (hidden,)
    q: np.ndarray  # (n_heads * head_dim, hidden)
    k: np.ndarray  # (n_kv_heads * head_dim, hidden)
    v: np.ndarray  # (n_kv_heads * head_dim, hidden)
    o: np.ndarray  # (hidden, n_heads * head_dim)
    ffn_norm: np.ndarray  # (hidden,)
    router: np.ndarray  # (n_experts, hidden)
    gate: np.ndarray  # (n_experts, ffn, hidden)
    up: np.ndarray  # (n_experts, ffn, hidden)
    down: np.ndarray  # (n_experts, hidden, ffn)


@dataclass(frozen=True, eq=False)
class Weights:
    """The whole model; `output` is the very array `token_embd` where the head is tied."""

    config: ModelConfig
    token_embd: np.ndarray  # (vocab, hidden)
    layers: tuple[LayerWeights, ...]
    output_norm: np.ndarray  # (hidden,)
    output: np.ndarray  # (vocab, hidden)

    @property
    def is_tied(self) -> bool:
        """Whether the embedding is the LM head too."""
        return self.output is self.token_embd


def layer_tensors(config: ModelConfig) -> dict[str, tuple[str, Shape]]:
    """Field of LayerWeights -> (GGUF name after `blk.N.`, shape in numpy's order)."""
    stacks = {field: (config.n_experts, *shape) for field, shape in expert_shapes(config).items()}
    return {field: (LAYER_NAMES[field], shape) for field, shape in (dense_shapes(config) | stacks).items()}


def open_gguf(path: Path) -> GGUFReader:
    """
    A GGUF file through the `gguf` package, which maps it: for tools that copy keys and tensors.

    Raises InputError for a file that is not whole.
    """
    read_header(path, whole=True)
    return GGUFReader(path)


def read_weights(path: Path) -> Weights:
    """
    All weights as read-only float32 arrays, whatever types the file stores them in.

    Warns of what was assumed.  Raises InputError, also for another architecture than smallthinker.
    """
    model_file = open_model(Path(path))
    config = model_file.config
    if config.architecture != ARCHITECTURE:
        raise InputError(
            str(path), f"must be a {ARCHITECTURE} model", config.architecture, "the others run as they are"
        )
    for sentence in model_file.warnings:
        warnings.warn(f"{path}: {sentence}", stacklevel=2)
    with PartReader(model_file) as reader:
        layers = tuple(_read_layer(reader, model_file, i) for i in range(config.n_layers))
        top = {field: _array(reader, part) for field, part in model_file.top.items()}
    top["output_norm"] = top["output_norm"].reshape(-1)
    return Weights(config=config, layers=layers, **({"output": top["token_embd"]} | top))


def _read_layer(reader: PartReader, model_file: ModelFile, layer: int) -> LayerWeights:
    shapes = dense_shapes(model_file.config)
    dense = {field: _array(reader, part).reshape(shapes[field]) for field, part in model_file.layers[layer].items()}
    stacks = zip(*model_file.experts[layer], strict=True)  # all gates, all ups, all downs
    experts = {field: _stack(reader, parts) for field, parts in zip(("gate", "up", "down"), stacks, strict=True)}
    return LayerWeights(**dense, **experts)


def _array(reader: PartReader, part: Part) -> np.ndarray:
    array = reader.float32(part)
    array.setflags(write=False)
    return array


def _stack(reader: PartReader, parts: tuple[Part, ...]) -> np.ndarray:
    """The same matrix of all experts, float32 (n_experts, rows, columns)."""
    array = np.empty((len(parts), *parts[0].shape), np.float32)
    for target, part in zip(array, parts, strict=True):
        target[:] = reader.float32(part)
    array.setflags(write=False)
    return array


def fingerprint(path: Path) -> str:
    """sha256 of a file, in hexadecimal: names the very weights that a trace was recorded with."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(str(path), "must be a file that can be read", error.strerror or error) from error
