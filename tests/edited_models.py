"""Small models on disk, and copies of them with one thing changed: what the tests of the loaders feed in."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import quantize

from reference_runtime.loading.gguf_weights import LayerWeights, Weights

F32 = GGMLQuantizationType.F32
Stored = tuple[np.ndarray, GGMLQuantizationType]
HF_KINDS = {F32: "F32", GGMLQuantizationType.F16: "F16", GGMLQuantizationType.BF16: "BF16"}
HF_LAYER = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "router": "block_sparse_moe.primary_router",
}


def edited(
    source: Path,
    target: Path,
    drop: tuple[str, ...] = (),
    tensors: dict[str, np.ndarray | Stored] | None = None,
    architecture: str | None = None,
    add: dict[str, tuple[Any, GGUFValueType]] | None = None,
    split_max_tensors: int = 0,
    **keys: object,
) -> Path:
    """
    A copy of a GGUF without some keys or tensors, with other values of some keys (a _ for each . and no prefix), with
    more keys (add) and with other or more tensors.
    """
    reader, tensors = GGUFReader(source), dict(tensors or {})
    prefix = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(target, architecture or prefix, split_max_tensors=split_max_tensors)
    for field in reader.fields.values():
        name = field.name.removeprefix(f"{prefix}.")
        if field.name.startswith(("GGUF.", "split.")) or field.name == "general.architecture" or name in drop:
            continue
        value, kind = keys.pop(name.replace(".", "_"), field.contents()), field.types[0]
        writer.add_key_value(field.name, value, kind, field.types[-1] if len(field.types) > 1 else None)
    for name, (value, kind) in (add or {}).items():
        item = GGUFValueType.get_type(value[0]) if kind is GGUFValueType.ARRAY else None
        writer.add_key_value(
            name if "." in name and name.startswith("split") else f"{prefix}.{name}", value, kind, item
        )
    stored = {t.name: (t.data, t.tensor_type) for t in reader.tensors if t.name not in drop}
    for name, value in tensors.items():
        stored[name] = value if isinstance(value, tuple) else (value, stored[name][1] if name in stored else F32)
    for name, (data, kind) in stored.items():
        writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=kind)
    writer.write_header_to_file(path=target)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert not keys, f"no such key: {keys}"
    return target


def random_blocks(kind: GGMLQuantizationType, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random Q4_K or Q6_K blocks with scales near 0.01, uint8; the `gguf` package reads these types but writes none."""
    size, scales = {GGMLQuantizationType.Q4_K: (144, (0, 2)), GGMLQuantizationType.Q6_K: (210, (208,))}[kind]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // 256, size), dtype=np.uint8)
    for at in scales:
        value = (0.01 * (1 + rng.random(blocks.shape[:-1]))).astype(np.float16)
        blocks[..., at : at + 2] = value[..., None].view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def smallthinker_tensors(weights: Weights) -> dict[str, np.ndarray]:
    """The arrays under the names of the published safetensors folders; an untied head as lm_head."""
    tensors = {"model.embed_tokens.weight": weights.token_embd, "model.norm.weight": weights.output_norm}
    for i, layer in enumerate(weights.layers):
        tensors |= _layer_tensors(layer, f"model.layers.{i}.")
    return tensors if weights.is_tied else tensors | {"lm_head.weight": weights.output}


def _layer_tensors(layer: LayerWeights, prefix: str) -> dict[str, np.ndarray]:
    tensors = {f"{prefix}{name}.weight": getattr(layer, field) for field, name in HF_LAYER.items()}
    for field in ("gate", "up", "down"):
        for expert, matrix in enumerate(getattr(layer, field)):
            tensors[f"{prefix}block_sparse_moe.experts.{expert}.{field}.weight"] = matrix
    return tensors


def smallthinker_config(weights: Weights) -> dict[str, Any]:
    """The config.json of such a folder; it has neither model_type nor an activation key."""
    c = weights.config
    rope = [int(c.has_rope(i)) for i in range(c.n_layers)]
    return {
        "architectures": ["SmallThinkerForCausalLM"],
        "model_name": c.name,
        "num_hidden_layers": c.n_layers,
        "hidden_size": c.hidden_size,
        "num_attention_heads": c.n_heads,
        "num_key_value_heads": c.n_kv_heads,
        "head_dim": c.head_dim,
        "vocab_size": c.vocab_size,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_theta,
        "rope_layout": rope,
        "rope_scaling": None,
        "max_position_embeddings": c.context_length,
        "sliding_window_layout": rope if c.window else [0] * c.n_layers,
        "sliding_window_size": c.window or 4096,
        "moe_num_primary_experts": c.n_experts,
        "moe_num_active_primary_experts": c.top_k,
        "moe_ffn_hidden_size": c.expert_ffn_size,
        "moe_primary_router_apply_softmax": c.scoring == "softmax",
        "tie_word_embeddings": weights.is_tied,
    }


def write_smallthinker(
    weights: Weights,
    folder: Path,
    kind: GGMLQuantizationType = F32,
    n_files: int = 1,
    change: Callable[[dict[str, Any], dict[str, np.ndarray]], None] = lambda config, tensors: None,
) -> Path:
    """A safetensors folder of one or more files; change may alter config and tensors first."""
    folder.mkdir(parents=True, exist_ok=True)
    config, tensors = smallthinker_config(weights), smallthinker_tensors(weights)
    change(config, tensors)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if n_files == 1:
        save_safetensors(folder / "model.safetensors", tensors, kind)
        return folder
    files = {f"model-{i + 1:05d}-of-{n_files:05d}.safetensors": list(tensors)[i::n_files] for i in range(n_files)}
    for file, names in files.items():
        save_safetensors(folder / file, {name: tensors[name] for name in names}, kind)
    index = {"weight_map": {name: file for file, names in files.items() for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def save_safetensors(path: Path, tensors: dict[str, np.ndarray], kind: GGMLQuantizationType = F32) -> None:
    """A safetensors file with all tensors of one type; int8 arrays are stored as they are."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    content = bytearray()
    for name, array in tensors.items():
        is_i8 = array.dtype == np.int8
        data = array.tobytes() if is_i8 else quantize(np.ascontiguousarray(array), kind).tobytes()
        place = [len(content), len(content) + len(data)]
        header[name] = {"dtype": "I8" if is_i8 else HF_KINDS[kind], "shape": list(array.shape), "data_offsets": place}
        content += data
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)
