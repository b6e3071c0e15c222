"""config.json and safetensors folders as specs: the spellings of several families, and what they leave unsaid."""

import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from moeplan.errors import InputError
from simulator.model import size as model_size
from simulator.model.catalog import load_model_spec
from simulator.model.imports.dispatch import ImportedModel, import_model

BYTES = {"BF16": 2, "F32": 4, "U8": 1, "I32": 4}

QWEN3_30B = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "max_position_embeddings": 40960, "hidden_act": "silu",
    "tie_word_embeddings": False, "use_sliding_window": False, "sliding_window": None, "torch_dtype": "bfloat16",
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2, "max_position_embeddings": 32768, "sliding_window": None, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
OLMOE = {
    "model_type": "olmoe", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16,
    "num_key_value_heads": 16, "intermediate_size": 1024, "vocab_size": 50304, "num_experts": 64,
    "num_experts_per_tok": 8, "norm_topk_prob": False, "max_position_embeddings": 4096, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "vocab_size": 201088,
    "num_local_experts": 32, "num_experts_per_tok": 4, "max_position_embeddings": 131072, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "attention_bias": True, "hidden_act": "silu",
    "tie_word_embeddings": False, "quantization_config": {"quant_method": "mxfp4"}, "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16,
    "num_key_value_heads": 16, "intermediate_size": 10944, "moe_intermediate_size": 1408, "vocab_size": 102400,
    "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
    "moe_layer_freq": 1, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "scoring_func": "softmax", "norm_topk_prob": False, "max_position_embeddings": 163840,
    "attention_bias": False, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
SMALLTHINKER = {  # like the 21B of the family it has neither a model_type nor an activation key
    "hidden_size": 1536, "num_hidden_layers": 32, "num_attention_heads": 12, "num_key_value_heads": 2,
    "head_dim": 128, "vocab_size": 151936, "moe_num_primary_experts": 32, "moe_num_active_primary_experts": 4,
    "moe_ffn_hidden_size": 768, "norm_topk_prob": True, "rope_layout": [1] * 32, "sliding_window_layout": [0] * 32,
    "sliding_window_size": 4096, "max_position_embeddings": 32768, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_06B = {
    "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
    "max_position_embeddings": 40960, "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip

FAMILIES = {
    "qwen3-30b-a3b": QWEN3_30B, "mixtral-8x7b": MIXTRAL, "olmoe-1b-7b": OLMOE, "gpt-oss-20b": GPT_OSS,
    "deepseek-v2-lite": DEEPSEEK, "smallthinker-4b-a0.6b": SMALLTHINKER, "qwen3-0.6b": QWEN3_06B,
}  # fmt: skip


def write(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def write_safetensors(path: Path, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    """A header and no data: only the header is read."""
    entries, offset = {}, 0
    for name, (dtype, shape) in tensors.items():
        n_bytes = BYTES[dtype]
        for size in shape:
            n_bytes *= size
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + n_bytes]}
        offset += n_bytes
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def said(imported: ImportedModel, *words: str) -> bool:
    """Whether one line of the report holds all the words."""
    return any(all(word in line for word in words) for line in imported.report)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_familys_config_gives_the_shipped_spec(tmp_path: Path, name: str) -> None:
    """Two ways to one model: the config's spellings and the shipped YAML agree in every shape."""
    shipped, spec = load_model_spec(name), import_model(write(tmp_path, FAMILIES[name])).spec
    assert spec.attention == shipped.attention
    assert model_size.group_params(spec) == model_size.group_params(shipped)
    assert model_size.n_active_params(spec) == model_size.n_active_params(shipped)
    assert (spec.context_length, spec.tied_embeddings) == (shipped.context_length, shipped.tied_embeddings)
    if spec.experts is not None and shipped.experts is not None:
        assert spec.experts.router == shipped.experts.router
        assert spec.experts.activation == shipped.experts.activation


def test_deleting_head_dim_changes_the_kv_bytes_and_is_reported(tmp_path: Path) -> None:
    """Qwen3's head_dim is not hidden / heads: without the key the KV cache would silently be half as large."""
    without = {key: value for key, value in QWEN3_30B.items() if key != "head_dim"}
    imported = import_model(write(tmp_path, without))
    assert model_size.kv_bytes_per_token(imported.spec) == 49_152
    assert said(imported, "head_dim", "64")


def test_what_the_config_does_not_say_is_reported(tmp_path: Path) -> None:
    """Expert width from intermediate_size, router placement, normalisation and tying are all named."""
    config = {key: value for key, value in MIXTRAL.items() if key != "tie_word_embeddings"}
    imported = import_model(write(tmp_path, config))
    for words in (("intermediate_size",), ("router.placement",), ("norm_topk_prob",), ("tie_word_embeddings",)):
        assert said(imported, *words)


def test_a_switched_off_window_is_no_window(tmp_path: Path) -> None:
    """Qwen states a sliding_window and use_sliding_window false."""
    spec = import_model(write(tmp_path, {**QWEN3_30B, "sliding_window": 32768})).spec
    assert spec.attention.window is None


def test_every_second_layer_with_experts(tmp_path: Path) -> None:
    """decoder_sparse_step 2 counts from layer 1: layers 1, 3, 5, ... have experts."""
    spec = import_model(write(tmp_path, {**QWEN3_30B, "decoder_sparse_step": 2})).spec
    assert spec.moe_layer_ids[:3] == (1, 3, 5)
    assert spec.dense_ffn_size == 6144


def test_a_quantisation_method_without_files_is_no_size(tmp_path: Path) -> None:
    """The name of a method is not a number of bytes; the report says that the size is an upper bound."""
    config = {**QWEN3_30B, "quantization_config": {"quant_method": "awq", "bits": 4}}
    assert said(import_model(write(tmp_path, config)), "awq", "upper bound")


@pytest.mark.parametrize("key", ["hidden_size", "num_experts_per_tok", "vocab_size", "max_position_embeddings"])
def test_a_key_that_nothing_else_says_must_be_there(tmp_path: Path, key: str) -> None:
    """No default for shapes."""
    config = {name: value for name, value in QWEN3_30B.items() if name != key}
    with pytest.raises(InputError, match=key):
        import_model(write(tmp_path, config))


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"model_type": 3}', '{"model_type": "qwen3", "num_hidden_layers": "x"}']
)
def test_a_broken_config_is_one_line(tmp_path: Path, text: str) -> None:
    """Whatever is in the file, the answer is an InputError that names it."""
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"config\.json"):
        import_model(path)


@pytest.mark.parametrize("key", sorted(QWEN3_30B))
@pytest.mark.parametrize("value", [-1, 0, 3.5, "x", [], {"a": 1}, 10**30], ids=str)
def test_a_wrong_value_never_ends_in_a_traceback(tmp_path: Path, key: str, value: Any) -> None:
    """Any key with any JSON value: a spec or an InputError, nothing else."""
    path = write(tmp_path, {**QWEN3_30B, key: value})
    with suppress(InputError):
        assert model_size.n_params(import_model(path).spec) > 0


def test_relu_in_the_config_makes_reglu_with_unknown_sparsity(tmp_path: Path) -> None:
    """The config's own activation counts, and its sparsity is reported as not stated."""
    imported = import_model(write(tmp_path, {**QWEN3_30B, "hidden_act": "relu"}))
    assert imported.spec.experts is not None
    assert imported.spec.experts.activation == "reglu"
    assert said(imported, "gate_sparsity")


SMALL = {
    **MIXTRAL, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 32, "vocab_size": 96, "num_local_experts": 4,
}  # fmt: skip


def small_tensors(expert_dtype: str = "BF16") -> dict[str, tuple[str, tuple[int, ...]]]:
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        "model.embed_tokens.weight": ("BF16", (96, 64)),
        "model.norm.weight": ("BF16", (64,)),
        "lm_head.weight": ("BF16", (96, 64)),
    }
    for i in range(2):
        head = f"model.layers.{i}"
        for name, shape in (("q", (64, 64)), ("k", (32, 64)), ("v", (32, 64)), ("o", (64, 64))):
            tensors[f"{head}.self_attn.{name}_proj.weight"] = ("BF16", shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{head}.{name}.weight"] = ("BF16", (64,))
        tensors[f"{head}.block_sparse_moe.gate.weight"] = ("BF16", (4, 64))
        for e in range(4):
            for name, (rows, cols) in (("w1", (32, 64)), ("w2", (64, 32)), ("w3", (32, 64))):
                shape = (rows, cols // 8) if expert_dtype == "I32" else (rows, cols)
                tensors[f"{head}.block_sparse_moe.experts.{e}.{name}.weight"] = (expert_dtype, shape)
    return tensors


def test_a_safetensors_folder_gives_exact_types_and_bytes(tmp_path: Path) -> None:
    """Types come from the headers; every group's bytes and the parameters agree, so nothing is reported about them."""
    write(tmp_path, SMALL)
    write_safetensors(tmp_path / "model.safetensors", small_tensors())
    imported = import_model(tmp_path)
    assert set(imported.spec.tensor_types.model_dump().values()) == {"bf16"}
    assert not said(imported, "the spec gives")
    assert not said(imported, "shapes give")


def test_packed_integers_get_the_nearest_type_and_a_note(tmp_path: Path) -> None:
    """4-bit weights packed into 32-bit words: the bytes a weight decide, and the report says which type that is."""
    write(tmp_path, SMALL)
    write_safetensors(tmp_path / "model.safetensors", small_tensors("I32"))
    imported = import_model(tmp_path)
    assert said(imported, "tensor_types.experts", "packed", "0.500")


def test_mxfp4_blocks_and_scales_are_seventeen_bytes_per_32(tmp_path: Path) -> None:
    """gpt-oss stores two weights a byte and a scale byte per 32 weights in two tensors."""
    config = {
        **GPT_OSS,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "layer_types": GPT_OSS["layer_types"][:2],
    }  # type: ignore[index]
    write(tmp_path, config)
    tensors = {
        f"model.layers.{i}.mlp.experts.{name}": ("U8", shape)
        for i in range(2)
        for name, shape in (
            ("gate_up_proj_blocks", (32, 128, 2, 16)),
            ("gate_up_proj_scales", (32, 128, 2)),
            ("down_proj_blocks", (32, 64, 2, 16)),
            ("down_proj_scales", (32, 64, 2)),
        )
    }
    write_safetensors(tmp_path / "model.safetensors", tensors)
    imported = import_model(tmp_path)
    assert imported.spec.tensor_types.experts == "mxfp4"
    assert not said(imported, "tensor_types.experts")


def test_a_missing_shard_is_refused(tmp_path: Path) -> None:
    """The index names all files; sums over some of them would be wrong."""
    write(tmp_path, SMALL)
    write_safetensors(tmp_path / "a.safetensors", small_tensors())
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(InputError, match=r"b\.safetensors"):
        import_model(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, struct.pack("<Q", 50) + b"{}", struct.pack("<Q", 2) + b"[]"])
def test_a_broken_safetensors_header_is_one_line(tmp_path: Path, content: bytes) -> None:
    """Truncated, absurdly long or no JSON object: an InputError."""
    write(tmp_path, SMALL)
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match="safetensors header"):
        import_model(tmp_path)


def test_a_folder_without_config_says_what_to_name(tmp_path: Path) -> None:
    """Headers alone do not say heads or top-k."""
    with pytest.raises(InputError, match=r"config\.json"):
        import_model(tmp_path)
