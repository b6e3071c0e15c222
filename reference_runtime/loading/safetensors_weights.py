"""
A Hugging Face folder (config.json and *.safetensors) as a ModelFile: what it is and where its weights lie.

The header of a safetensors file is 8 bytes of length, then JSON with the offsets of every tensor behind it
(https://github.com/huggingface/safetensors, README).
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType

from moeplan.errors import InputError
from reference_runtime.loading.hf_model_config import read_config
from reference_runtime.loading.model_file import ModelFile, Part
from reference_runtime.loading.model_shapes import dense_shapes, expert_shapes, top_shapes
from reference_runtime.loading.tensor_table import Place, TensorTable
from reference_runtime.model_config import ModelConfig
from simulator.model.imports.safetensors_header import header_entries

KINDS = {
    "F32": (GGMLQuantizationType.F32, 4),
    "F16": (GGMLQuantizationType.F16, 2),
    "BF16": (GGMLQuantizationType.BF16, 2),
}
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
TOP_NAMES = {
    "token_embd": "model.embed_tokens.weight",
    "output_norm": "model.norm.weight",
    "output": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "o": "self_attn.o_proj.weight",
    "ffn_norm": "post_attention_layernorm.weight",
}
STACKED_GATE_UP, STACKED_DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"


@dataclass(frozen=True)
class ExpertNames:
    """Names after `model.layers.N.` of the router and of expert E's gate, up and down."""

    router: str
    experts: str  # with {expert} and {matrix}
    matrices: tuple[str, str, str]

    def of(self, expert: int) -> list[str]:
        """Gate, up and down of one expert."""
        return [self.experts.format(expert=expert, matrix=matrix) for matrix in self.matrices]


_MLP = ExpertNames("mlp.gate.weight", "mlp.experts.{expert}.{matrix}_proj.weight", ("gate", "up", "down"))
EXPERT_NAMES = {
    "smallthinker": ExpertNames(
        "block_sparse_moe.primary_router.weight",
        "block_sparse_moe.experts.{expert}.{matrix}.weight",
        ("gate", "up", "down"),
    ),
    "olmoe": _MLP,
    "qwen3moe": _MLP,
    "mixtral": ExpertNames(
        "block_sparse_moe.gate.weight", "block_sparse_moe.experts.{expert}.{matrix}.weight", ("w1", "w3", "w2")
    ),
}


def open_safetensors(folder: Path) -> ModelFile:
    """Config and places of a model in a folder; no weight is read. Raises InputError."""
    notes: list[str] = []
    config, tied = read_config(folder / "config.json", notes)
    files = _files(folder)
    table = TensorTable(folder, _places(files))
    is_stacked = f"model.layers.0.{STACKED_GATE_UP}" in table
    table.refuse_strangers(
        [*_names(config, is_stacked), *(name for name in table.places if name.endswith("rotary_emb.inv_freq"))]
    )
    if tied is None:
        tied = TOP_NAMES["output"] not in table
        notes.append(f"no tie_word_embeddings; the head is taken as {'tied' if tied else 'stored'}")
    top = {
        field: table.part(TOP_NAMES[field], shape)
        for field, shape in top_shapes(config).items()
        if not (tied and field == "output")  # a stored copy of the embedding is not read
    }
    names = LAYER_NAMES | {"router": _router_name(config, is_stacked)}
    layers = tuple(
        {field: table.part(f"model.layers.{i}.{names[field]}", shape) for field, shape in dense_shapes(config).items()}
        for i in range(config.n_layers)
    )
    find: Callable[[TensorTable, ModelConfig, str], list[tuple[Part, Part, Part]]] = _stacked if is_stacked else _single
    experts = tuple(tuple(find(table, config, f"model.layers.{i}.")) for i in range(config.n_layers))
    return ModelFile(folder, tuple(files), config, top, layers, experts, tuple(notes))


def _router_name(config: ModelConfig, is_stacked: bool) -> str:
    return _MLP.router if is_stacked else EXPERT_NAMES[config.architecture].router


def _names(config: ModelConfig, is_stacked: bool) -> list[str]:
    own = EXPERT_NAMES[config.architecture]
    experts = [name for expert in range(config.n_experts) for name in own.of(expert)]
    after = [
        *(LAYER_NAMES[field] for field in dense_shapes(config) if field != "router"),
        _router_name(config, is_stacked),
        *([STACKED_GATE_UP, STACKED_DOWN] if is_stacked else experts),
    ]
    return [*TOP_NAMES.values(), *(f"model.layers.{i}.{name}" for i in range(config.n_layers) for name in after)]


def _single(table: TensorTable, config: ModelConfig, prefix: str) -> list[tuple[Part, Part, Part]]:
    names, shapes = EXPERT_NAMES[config.architecture], list(expert_shapes(config).values())
    found = []
    for expert in range(config.n_experts):
        gate, up, down = (
            table.part(prefix + name, shape) for name, shape in zip(names.of(expert), shapes, strict=True)
        )
        found.append((gate, up, down))
    return found


def _stacked(table: TensorTable, config: ModelConfig, prefix: str) -> list[tuple[Part, Part, Part]]:
    """The layout of newer versions of transformers: gate above up in one tensor of all experts."""
    n, (rows, columns) = config.n_experts, expert_shapes(config)["gate"]
    gate, up = table.halves(prefix + STACKED_GATE_UP, (n, 2 * rows, columns))
    down = table.stack(prefix + STACKED_DOWN, (n, columns, rows))
    return list(zip(gate, up, down, strict=True))


def _files(folder: Path) -> list[Path]:
    """The weight files of a folder, those that its index names or the only one. Raises InputError."""
    index = folder / INDEX
    if not index.is_file():
        if not (folder / SINGLE).is_file():
            raise InputError(str(folder), f"must hold {SINGLE} or {INDEX}", "neither", "other formats do not run here")
        return [folder / SINGLE]
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        if not names or any(Path(name).name != name for name in names):
            raise ValueError(f"files {names[:3]}")
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise InputError(str(index), "must be an index with a weight_map of plain file names", error) from error
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise InputError(str(folder), "must hold all files of its index", f"{len(missing)} missing, first {missing[0]}")
    return [folder / name for name in names]


def _places(files: list[Path]) -> dict[str, Place]:
    places: dict[str, Place] = {}
    for number, path in enumerate(files):
        for name, place in read_places(path, number).items():
            if name in places:
                raise InputError(str(path), "must hold no tensor of another file", name, "fetch the model again")
            places[name] = place
    return places


def read_places(path: Path, number: int = 0) -> dict[str, Place]:
    """The tensors of one file, each wholly inside it, as places in file `number`. Raises InputError."""
    try:
        entries, start = header_entries(path)
        room = path.stat().st_size - start
        return {name: _place(name, entry, number, start, room) for name, entry in entries.items()}
    except OSError as error:
        raise InputError(str(path), "must be a file that can be read", error.strerror or error) from error
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(str(path), "must be a whole safetensors file", error, "fetch it again") from error


def _place(name: str, entry: dict[str, Any], number: int, start: int, room: int) -> Place:
    first, end = entry["data_offsets"]
    shape, dtype = tuple(int(n) for n in entry["shape"]), entry["dtype"]
    if dtype not in KINDS:
        raise ValueError(f"tensor {name} of type {dtype}, none of {', '.join(KINDS)}")
    kind, item_bytes = KINDS[dtype]
    if not shape or min(shape) < 1 or prod(shape) * item_bytes != end - first:
        raise ValueError(f"tensor {name} of shape {shape} with {end - first} bytes")
    if not 0 <= first <= end <= room:
        raise ValueError(f"{room} bytes of weights, tensor {name} ends at {end}")
    return Place(number, start + first, kind, shape)
