"""The random models as files: a GGUF as llama.cpp reads it, a safetensors folder as transformers does."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import ExpertGatingFuncType, GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from safetensors.numpy import save_file

from parity.random_models import RandomModel
from reference_runtime.model_config import ModelConfig

F32 = GGMLQuantizationType.F32
GGUF_ARCHITECTURES = {"mixtral": "llama"}  # the others are called as in transformers
GGUF_NAMES = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "ffn_norm": "ffn_norm",
    "router": "ffn_gate_inp",
    "gate": "ffn_gate_exps",
    "up": "ffn_up_exps",
    "down": "ffn_down_exps",
}
SAFETENSORS_TOP = {
    "token_embd": "model.embed_tokens.weight",
    "output_norm": "model.norm.weight",
    "output": "lm_head.weight",
}
SAFETENSORS_LAYER = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
}
EXPERT_BLOCKS = {  # router, then gate, up and down of an expert
    "olmoe": ("mlp", "gate_proj", "up_proj", "down_proj"),
    "qwen3moe": ("mlp", "gate_proj", "up_proj", "down_proj"),
    "mixtral": ("block_sparse_moe", "w1", "w3", "w2"),
}


def write_gguf(model: RandomModel, path: Path, kind: GGMLQuantizationType = F32) -> Path:
    """The model with matrices of a kind; router and norms stay F32, the vocabulary has no texts."""
    config = model.config
    writer = GGUFWriter(path, GGUF_ARCHITECTURES.get(config.architecture, config.architecture))
    _add_keys(writer, config)
    for name, array in _gguf_tensors(model):
        stored = F32 if array.ndim == 1 or "ffn_gate_inp" in name else kind
        writer.add_tensor(name, quantize(array, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_folder(model: RandomModel, folder: Path) -> Path:
    """A safetensors folder of one of the families that transformers knows, with the published tensor names."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_hf_config(model), indent=1), encoding="utf-8")
    tensors = {name: np.ascontiguousarray(array) for name, array in _safetensors(model)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _add_keys(writer: GGUFWriter, config: ModelConfig) -> None:
    writer.add_name(config.name)
    writer.add_block_count(config.n_layers)
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.expert_ffn_size)
    writer.add_expert_feed_forward_length(config.expert_ffn_size)
    writer.add_expert_count(config.n_experts)
    writer.add_expert_used_count(config.top_k)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.n_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    if config.architecture == "smallthinker":
        gating = ExpertGatingFuncType.SIGMOID if config.scoring == "sigmoid" else ExpertGatingFuncType.SOFTMAX
        writer.add_expert_gating_func(gating)
    if config.window is not None:
        writer.add_sliding_window(config.window)


def _gguf_tensors(model: RandomModel) -> Iterator[tuple[str, np.ndarray]]:
    for field, array in model.top.items():
        yield f"{field}.weight", array
    for i, layer in enumerate(model.layers):
        for field, array in layer.items():
            yield f"blk.{i}.{GGUF_NAMES[field]}.weight", _gguf_order(field, array, model.config)


def _gguf_order(field: str, array: np.ndarray, config: ModelConfig) -> np.ndarray:
    """
    llama.cpp turns neighbours 2j, 2j + 1 of a Mixtral head where transformers turns j, j + dim / 2: the converter
    reorders the rows of q and k.
    """
    if config.architecture != "mixtral" or field not in ("q", "k"):
        return array
    halves = array.reshape(-1, 2, config.head_dim // 2, config.hidden_size)  # (heads, half, j, hidden)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)


def _safetensors(model: RandomModel) -> Iterator[tuple[str, np.ndarray]]:
    block, *names = EXPERT_BLOCKS[model.config.architecture]
    for field, array in model.top.items():
        yield SAFETENSORS_TOP[field], array
    for i, layer in enumerate(model.layers):
        prefix = f"model.layers.{i}."
        for field, name in SAFETENSORS_LAYER.items():
            if field in layer:
                yield f"{prefix}{name}.weight", layer[field]
        yield f"{prefix}{block}.gate.weight", layer["router"]
        for field, name in zip(("gate", "up", "down"), names, strict=True):
            for e, matrix in enumerate(layer[field]):
                yield f"{prefix}{block}.experts.{e}.{name}.weight", matrix


def _hf_config(model: RandomModel) -> dict[str, Any]:
    config = model.config
    common = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "num_experts_per_tok": config.top_k,
        "hidden_act": "silu",
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": "output" not in model.top,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    return common | HF_KEYS[config.architecture](config)


HF_KEYS = {
    "olmoe": lambda c: {
        "model_type": "olmoe",
        "architectures": ["OlmoeForCausalLM"],
        "intermediate_size": c.expert_ffn_size,
        "num_experts": c.n_experts,
        "norm_topk_prob": c.normalised,
        "clip_qkv": None,
    },
    "qwen3moe": lambda c: {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "intermediate_size": c.expert_ffn_size,
        "moe_intermediate_size": c.expert_ffn_size,
        "head_dim": c.head_dim,
        "num_experts": c.n_experts,
        "norm_topk_prob": c.normalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
    },
    "mixtral": lambda c: {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "intermediate_size": c.expert_ffn_size,
        "head_dim": c.head_dim,
        "num_local_experts": c.n_experts,
        "sliding_window": None,
    },
}
