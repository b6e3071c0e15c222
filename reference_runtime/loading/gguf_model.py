"""
A GGUF file, or all shards of a split one, as a ModelFile: what its keys say and where its weights lie.

Keys and tensor names are those of stock llama.cpp (src/llama-arch.cpp, src/models/*.cpp).  What its graph would
compute and ours would not is refused in one line.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType

from moeplan.errors import InputError, nearest
from reference_runtime.loading.model_file import ModelFile, Part
from reference_runtime.loading.model_shapes import TRAITS, check_config, dense_shapes, expert_shapes, top_shapes
from reference_runtime.loading.tensor_table import Place, TensorTable
from reference_runtime.model_config import ModelConfig, Scoring
from simulator.model.imports.gguf_header import GgufHeader, GgufTensor
from simulator.model.imports.gguf_split import read_split

NOPE_PERIOD = 4  # of smallthinker with a window: hard-coded in llama.cpp, no key of the file says it
GATING_FUNCS: dict[int, Scoring] = {1: "softmax", 2: "sigmoid"}
ARCHITECTURES = {"smallthinker": "smallthinker", "olmoe": "olmoe", "qwen3moe": "qwen3moe", "llama": "mixtral"}
TOP_NAMES = {"token_embd": "token_embd.weight", "output_norm": "output_norm.weight", "output": "output.weight"}
LAYER_NAMES = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "o": "attn_output.weight",
    "ffn_norm": "ffn_norm.weight",
    "router": "ffn_gate_inp.weight",
    "gate": "ffn_gate_exps.weight",
    "up": "ffn_up_exps.weight",
    "down": "ffn_down_exps.weight",
}
PREDICTOR = "lm_head_profiler.weight"  # PowerInfer's guess at which logits matter; exact logits do without
EXPERT_FFN = {"smallthinker": "expert_feed_forward_length", "qwen3moe": "expert_feed_forward_length"}  # others: plain
# Keys that change what a model computes -> the values with which they change nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "rope.scaling.type": ("none", "linear"),  # linear with a factor of 1 is none
    "rope.scaling.factor": (0.0, 1.0),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scale_linear": (0.0, 1.0),
    "expert_shared_count": (0,),
    "expert_group_count": (0, 1),
    "expert_weights_scale": (0.0, 1.0),
    "leading_dense_block_count": (0,),
    "nextn_predict_layers": (0,),
    "attention.clamp_kqv": (0.0,),
    "attention.scale": (0.0,),
    "attention.causal": (True,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "router_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
}


def open_gguf_model(path: Path) -> ModelFile:
    """Config and places of a model in GGUF; no weight is read. Raises InputError."""
    files, header = read_split(path, whole=True)
    notes: list[str] = []
    config = read_config(header, notes)
    table = TensorTable(path, {name: _place(tensor) for name, tensor in header.tensors.items()})
    table.refuse_strangers([*_names(config), PREDICTOR])
    top = {
        field: table.part(TOP_NAMES[field], shape)
        for field, shape in top_shapes(config).items()
        if field != "output" or TOP_NAMES[field] in table
    }
    layers = tuple(
        {field: table.part(f"blk.{i}.{LAYER_NAMES[field]}", shape) for field, shape in dense_shapes(config).items()}
        for i in range(config.n_layers)
    )
    experts = tuple(_experts(table, config, i) for i in range(config.n_layers))
    return ModelFile(path, tuple(files), config, top, layers, experts, tuple(notes))


def _place(tensor: GgufTensor) -> Place:
    kind = GGMLQuantizationType[tensor.info.tensor_type.upper()]
    return Place(tensor.file, tensor.offset, kind, tensor.info.shape)


def _experts(table: TensorTable, config: ModelConfig, layer: int) -> tuple[tuple[Part, Part, Part], ...]:
    gate, up, down = (
        table.stack(f"blk.{layer}.{LAYER_NAMES[field]}", (config.n_experts, *shape))
        for field, shape in expert_shapes(config).items()
    )
    return tuple(zip(gate, up, down, strict=True))


def _names(config: ModelConfig) -> Iterable[str]:
    fields = [*dense_shapes(config), *expert_shapes(config)]
    return [*TOP_NAMES.values(), *(f"blk.{i}.{LAYER_NAMES[f]}" for i in range(config.n_layers) for f in fields)]


def read_config(header: GgufHeader, notes: list[str]) -> ModelConfig:
    """The model's shape from the keys; notes take what was assumed. Raises InputError."""
    prefix = header.value("general.architecture", str)
    if prefix not in ARCHITECTURES:
        where, must = f"{header.path}: general.architecture", f"must be one of {', '.join(ARCHITECTURES)}"
        raise InputError(where, must, repr(prefix), nearest(prefix, ARCHITECTURES))

    def key(name: str, kind: type = int, default: Any = None) -> Any:
        return header.value(f"{prefix}.{name}", kind, default)

    architecture = ARCHITECTURES[prefix]
    hidden_size, n_heads = key("embedding_length"), key("attention.head_count")
    head_dim = key("attention.key_length", default=hidden_size // max(n_heads, 1))
    window = key("attention.sliding_window", default=0) or None
    embedding = header.tensors.get(TOP_NAMES["token_embd"])
    fields: dict[str, Any] = {
        "name": header.value("general.name", str, header.path.stem),
        "n_layers": key("block_count"),
        "hidden_size": hidden_size,
        "n_heads": n_heads,
        "n_kv_heads": key("attention.head_count_kv", default=n_heads),
        "head_dim": head_dim,
        "n_experts": key("expert_count"),
        "top_k": key("expert_used_count"),
        "expert_ffn_size": key(EXPERT_FFN.get(architecture, "feed_forward_length")),
        "vocab_size": embedding.info.shape[0] if embedding else 0,
        "context_length": key("context_length"),
        "rope_theta": key("rope.freq_base", float, 10_000.0),
        "rms_norm_eps": key("attention.layer_norm_rms_epsilon", float),
        "window": window,
        "nope_period": NOPE_PERIOD if window else None,
        "scoring": _scoring(header, prefix, notes),
        "rope_style": "interleaved" if architecture == "mixtral" else "neox",
        "architecture": architecture,
    }
    config = check_config(ModelConfig(**(fields | TRAITS[architecture])), header.path)
    _check_neutral(header, prefix, config)
    return config


def _scoring(header: GgufHeader, prefix: str, notes: list[str]) -> Scoring:
    name = f"{prefix}.expert_gating_func"
    if prefix != "smallthinker":
        if header.value(name, int, 1) != 1:
            raise InputError(f"{header.path}: {name}", "must be 1 (softmax)", header.value(name, int))
        return "softmax"
    if name not in header.keys:
        # PowerInfer's converter leaves the key out for sigmoid models, and engines then differ in what they assume.
        notes.append(f"no {name}; sigmoid is assumed")
        return "sigmoid"
    gating_func = header.value(name, int)
    if gating_func not in GATING_FUNCS:
        raise InputError(f"{header.path}: {name}", "must be 1 (softmax) or 2 (sigmoid)", gating_func)
    return GATING_FUNCS[gating_func]


def _check_neutral(header: GgufHeader, prefix: str, config: ModelConfig) -> None:
    """Raises InputError where a key asks for what the forward pass does not do."""
    own: dict[str, tuple[Any, ...]] = {
        "attention.value_length": (config.head_dim,),
        "rope.dimension_count": (config.head_dim,),
        "rope.freq_base_swa": (config.rope_theta,),
        "expert_weights_norm": (config.normalised,),
    }
    if config.architecture == "smallthinker":
        own["attention.sliding_window_pattern"] = (NOPE_PERIOD,)
    else:
        own["attention.sliding_window"] = (0,)
    for name, allowed in (NEUTRAL | own).items():
        found = header.value(f"{prefix}.{name}", type(allowed[0]), allowed[0])
        if found not in allowed:
            must = f"must be {' or '.join(str(value) for value in allowed)}"
            raise InputError(f"{header.path}: {prefix}.{name}", must, found, "nothing else runs here")
