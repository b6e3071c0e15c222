"""GGUF headers as specs: tiny files with the oddities of real ones; nothing is taken silently."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES

from moeplan.errors import InputError
from simulator.model import size as model_size
from simulator.model.catalog import load_model_spec
from simulator.model.imports.dispatch import ImportedModel, import_model, write_spec
from simulator.model.imports.gguf_header import GgufHeader, read_header

HIDDEN, FFN, VOCAB, HEADS, KV_HEADS, HEAD_DIM, EXPERTS = 64, 32, 96, 4, 2, 32, 8
F32, Q8_0, Q4_0, Q6_K = (GGMLQuantizationType[name] for name in ("F32", "Q8_0", "Q4_0", "Q6_K"))


def add(writer: GGUFWriter, name: str, shape: tuple[int, ...], kind: GGMLQuantizationType = Q8_0) -> None:
    """A tensor of zeros; shape in numpy's order."""
    n_weights, n_bytes = GGML_QUANT_SIZES[kind]
    if kind == F32:
        writer.add_tensor(name, np.zeros(shape, dtype=np.float32))
    else:
        raw = np.zeros((*shape[:-1], shape[-1] // n_weights * n_bytes), dtype=np.uint8)
        writer.add_tensor(name, raw, raw_dtype=kind)


def keys(arch: str, **changes: Any) -> dict[str, Any]:
    """The architecture keys of a small MoE; None leaves a key out."""
    base = {
        "block_count": 4,
        "context_length": 2048,
        "embedding_length": HIDDEN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "expert_count": EXPERTS,
        "expert_used_count": 2,
        "expert_feed_forward_length": FFN,
        **changes,
    }
    return {f"{arch}.{name}": value for name, value in base.items() if value is not None}


def add_keys(writer: GGUFWriter, values: dict[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_array(key, value)


def add_layer(writer: GGUFWriter, layer: int, dense: bool = False, experts_type: GGMLQuantizationType = Q8_0) -> None:
    head = f"blk.{layer}"
    for name in ("attn_norm", "ffn_norm"):
        add(writer, f"{head}.{name}.weight", (HIDDEN,), F32)
    add(writer, f"{head}.attn_q.weight", (HEADS * HEAD_DIM, HIDDEN))
    for name in ("attn_k", "attn_v"):
        add(writer, f"{head}.{name}.weight", (KV_HEADS * HEAD_DIM, HIDDEN))
    add(writer, f"{head}.attn_output.weight", (HIDDEN, HEADS * HEAD_DIM))
    if dense:
        add(writer, f"{head}.ffn_gate.weight", (128, HIDDEN))
        add(writer, f"{head}.ffn_up.weight", (128, HIDDEN))
        add(writer, f"{head}.ffn_down.weight", (HIDDEN, 128))
        return
    add(writer, f"{head}.ffn_gate_inp.weight", (EXPERTS, HIDDEN), F32)
    add(writer, f"{head}.ffn_gate_exps.weight", (EXPERTS, FFN, HIDDEN), experts_type)
    add(writer, f"{head}.ffn_up_exps.weight", (EXPERTS, FFN, HIDDEN), experts_type)
    add(writer, f"{head}.ffn_down_exps.weight", (EXPERTS, HIDDEN, FFN), experts_type)


def write(path: Path, arch: str = "llama", *, tied: bool = False, dense: tuple[int, ...] = (), **changes: Any) -> Path:
    """A whole tiny model."""
    writer = GGUFWriter(path, arch)
    add_keys(writer, keys(arch, **changes))
    writer.add_token_list([f"token {i}" for i in range(VOCAB)])
    add(writer, "token_embd.weight", (VOCAB, HIDDEN))
    add(writer, "output_norm.weight", (HIDDEN,), F32)
    if not tied:
        add(writer, "output.weight", (VOCAB, HIDDEN))
    for layer in range(4):
        add_layer(writer, layer, layer in dense)
    return finish(writer, path)


def finish(writer: GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def said(imported: ImportedModel, *words: str) -> bool:
    """Whether one line of the report holds all the words."""
    return any(all(word in line for word in words) for line in imported.report)


def test_mixtral_is_recognised_under_the_llama_architecture(tmp_path: Path) -> None:
    """Keys carry the architecture as prefix, and Mixtral's is llama; shapes and bytes come out exactly."""
    spec = import_model(write(tmp_path / "m.gguf")).spec
    assert spec.experts is not None
    assert (spec.experts.n_experts, spec.experts.top_k, spec.experts.ffn_size) == (EXPERTS, 2, FFN)
    assert (spec.hidden_size, spec.n_layers, spec.vocab_size, spec.tied_embeddings) == (HIDDEN, 4, VOCAB, False)
    assert model_size.expert_bytes(spec) == 3 * HIDDEN * FFN // 32 * 34
    assert spec.tensor_types.router == "f32"


def test_an_exact_file_reports_no_difference_in_bytes(tmp_path: Path) -> None:
    """The spec's bytes are the tensors' bytes, group by group."""
    imported = import_model(write(tmp_path / "m.gguf", dense=(0,), tied=True))
    assert not said(imported, "the spec gives")


def test_a_missing_expert_count_is_read_from_the_tensors(tmp_path: Path) -> None:
    """*_exps tensors without expert_count: the count is their last dimension, and the report says so."""
    imported = import_model(write(tmp_path / "m.gguf", expert_count=None, expert_feed_forward_length=None))
    assert imported.spec.experts is not None
    assert imported.spec.experts.n_experts == EXPERTS
    assert said(imported, "expert_count", "not in the file", str(EXPERTS))


def test_a_wrong_expert_count_gives_way_to_the_tensors(tmp_path: Path) -> None:
    """The tensor is what an engine computes with; the contradiction is reported."""
    imported = import_model(write(tmp_path / "m.gguf", expert_count=16))
    assert imported.spec.experts is not None
    assert imported.spec.experts.n_experts == EXPERTS
    assert said(imported, "expert_count", "16", "8")


def test_feed_forward_length_is_never_taken_for_a_dense_layer(tmp_path: Path) -> None:
    """SmallThinker writes feed_forward_length = expert width although no layer is dense."""
    path = write(tmp_path / "m.gguf", "smallthinker", feed_forward_length=FFN, expert_gating_func=2)
    spec = import_model(path).spec
    assert spec.dense_ffn_size is None
    assert spec.n_moe_layers == 4


def test_smallthinker_without_a_window_key_has_rope_everywhere(tmp_path: Path) -> None:
    """As in llama.cpp: no key, no sliding layer (the shipped 4B); with a key the hybrid and a window of 4096."""
    plain = import_model(write(tmp_path / "a.gguf", "smallthinker")).spec
    assert plain.attention.layer_kinds == ("full_rope",)
    imported = import_model(write(tmp_path / "b.gguf", "smallthinker", **{"attention.sliding_window": 512}))
    assert imported.spec.attention.layer_kinds == ("full_nope", "sliding_rope", "sliding_rope", "sliding_rope")
    assert imported.spec.attention.window == 4096
    assert said(imported, "sliding_window", "512", "4096")


def test_what_a_gguf_cannot_say_is_reported(tmp_path: Path) -> None:
    """Gating function, activation, router placement and sparsity: taken from the architecture, and each is named."""
    imported = import_model(write(tmp_path / "m.gguf", "smallthinker"))
    experts = imported.spec.experts
    assert experts is not None
    assert (experts.activation, experts.router.placement, experts.router.scoring) == (
        "reglu",
        "pre_attention",
        "sigmoid",
    )
    assert experts.gate_sparsity.kind == "assumed"
    for word in ("expert_gating_func", "activation", "router.placement", "gate_sparsity", "expert_weights_norm"):
        assert said(imported, word)


def test_an_unknown_architecture_is_imported_and_named(tmp_path: Path) -> None:
    """Shapes suffice for sizes; what was assumed is in the report."""
    assert said(import_model(write(tmp_path / "m.gguf", "newarch")), "newarch", "assumed")


def test_an_equal_array_of_kv_heads_is_one_number(tmp_path: Path) -> None:
    """Some converters write head_count_kv per layer."""
    imported = import_model(write(tmp_path / "m.gguf", **{"attention.head_count_kv": [2, 2, 2, 2]}))
    assert imported.spec.attention.n_kv_heads == KV_HEADS
    assert not said(imported, "head_count_kv")


def test_layers_with_different_kv_heads_give_a_reported_upper_bound(tmp_path: Path) -> None:
    """A spec has one number: the largest is taken and the report says so."""
    imported = import_model(write(tmp_path / "m.gguf", **{"attention.head_count_kv": [1, 2, 1, 2]}))
    assert imported.spec.attention.n_kv_heads == 2
    assert said(imported, "head_count_kv", "upper bound")


def test_a_missing_output_is_a_tied_head(tmp_path: Path) -> None:
    """No output.weight: the embedding is the head, counted once."""
    imported = import_model(write(tmp_path / "m.gguf", tied=True))
    assert imported.spec.tied_embeddings
    assert said(imported, "tied_embeddings")
    assert model_size.group_bytes(imported.spec)["lm_head"] == 0


def test_leading_dense_layers_come_from_the_tensors(tmp_path: Path) -> None:
    """A layer has experts if it has expert tensors."""
    spec = import_model(write(tmp_path / "m.gguf", dense=(0, 2))).spec
    assert spec.moe_layer_ids == (1, 3)
    assert spec.dense_ffn_size == 128


def test_experts_without_a_pattern_are_refused(tmp_path: Path) -> None:
    """A spec can say leading dense layers and a step, nothing else."""
    with pytest.raises(InputError, match="every n-th layer"):
        import_model(write(tmp_path / "m.gguf", dense=(1,)))


def test_a_head_size_that_is_not_hidden_over_heads_survives_a_missing_key(tmp_path: Path) -> None:
    """64 / 4 heads is 16, but attn_q says 32: the tensor decides, not the division."""
    imported = import_model(
        write(tmp_path / "m.gguf", **{"attention.key_length": None, "attention.value_length": None})
    )
    assert imported.spec.attention.head_dim == HEAD_DIM
    assert said(imported, "key_length", "attn_q")


def test_mixed_types_keep_the_dominant_one_and_report_the_exact_bytes(tmp_path: Path) -> None:
    """Three layers of Q4_0 experts and one of Q8_0: the spec says q4_0 and the report has the file's sum."""
    path = tmp_path / "m.gguf"
    writer = GGUFWriter(path, "llama")
    add_keys(writer, keys("llama"))
    add(writer, "token_embd.weight", (VOCAB, HIDDEN))
    add(writer, "output_norm.weight", (HIDDEN,), F32)
    for layer in range(4):
        add_layer(writer, layer, experts_type=Q8_0 if layer == 3 else Q4_0)
    imported = import_model(finish(writer, path))
    weights = 3 * EXPERTS * HIDDEN * FFN
    exact = 3 * weights // 32 * 18 + weights // 32 * 34
    assert imported.spec.tensor_types.experts == "q4_0"
    assert said(imported, "tensor_types.experts", str(exact), str(4 * weights // 32 * 18))


def test_a_split_file_is_read_whole_from_any_shard(tmp_path: Path) -> None:
    """Keys stand in the first shard only; tensors are those of all."""
    single = import_model(write(tmp_path / "one.gguf")).spec
    first = GGUFWriter(tmp_path / "m-00001-of-00002.gguf", "llama")
    add_keys(first, {**keys("llama"), "split.count": 2})
    add(first, "token_embd.weight", (VOCAB, HIDDEN))
    add(first, "output_norm.weight", (HIDDEN,), F32)
    add_layer(first, 0)
    finish(first, tmp_path / "m-00001-of-00002.gguf")
    second = GGUFWriter(tmp_path / "m-00002-of-00002.gguf", "llama")
    add_keys(second, {"split.count": 2})
    add(second, "output.weight", (VOCAB, HIDDEN))
    for layer in (1, 2, 3):
        add_layer(second, layer)
    finish(second, tmp_path / "m-00002-of-00002.gguf")
    spec = import_model(tmp_path / "m-00002-of-00002.gguf").spec
    assert model_size.file_bytes(spec) == model_size.file_bytes(single)
    (tmp_path / "m-00001-of-00002.gguf").unlink()
    with pytest.raises(InputError, match="m-00001-of-00002"):
        import_model(tmp_path / "m-00002-of-00002.gguf")


def test_latent_attention_is_read(tmp_path: Path) -> None:
    """DeepSeek: kv_lora_rank, the RoPE part and the two head sizes make the latent cache."""
    mla = {
        "attention.kv_lora_rank": 32,
        "rope.dimension_count": 16,
        "attention.key_length": 48,
        "attention.value_length": 32,
        "attention.key_length_mla": 48,
        "attention.value_length_mla": 32,
    }
    spec = import_model(write(tmp_path / "m.gguf", "deepseek2", **mla)).spec
    assert spec.attention.mla is not None
    assert spec.attention.mla.qk_nope_head_dim == 32
    assert model_size.kv_bytes_per_token(spec) == 4 * (32 + 16) * 2


def test_the_first_bytes_of_a_file_are_enough(tmp_path: Path) -> None:
    """A header without its weights gives the same spec; what is missing is reported."""
    whole = write(tmp_path / "whole.gguf")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 4])
    imported = import_model(cut)
    assert imported.spec.experts == import_model(whole).spec.experts
    assert said(imported, "lacks")


def test_no_token_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spec needs no vocabulary, which of a real model has hundreds of thousands of texts."""
    decoded: list[object] = []
    monkeypatch.setattr(GgufHeader, "_texts", lambda _, value: decoded.append(value))
    path = write(tmp_path / "m.gguf")
    assert import_model(path).spec.vocab_size == VOCAB
    assert not decoded
    read_header(path, whole=False).get("tokenizer.ggml.tokens")
    assert len(decoded) == 1  # so it is there, and would have been counted


@pytest.mark.parametrize("n_bytes", [0, 3, 30, 600])
def test_a_cut_header_is_one_line(tmp_path: Path, n_bytes: int) -> None:
    """Wherever the header ends early, the answer is an InputError, never a traceback."""
    whole = write(tmp_path / "whole.gguf")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole.read_bytes()[:n_bytes])
    with pytest.raises(InputError, match="GGUF header"):
        import_model(cut)


def test_damaged_headers_never_end_in_a_traceback(tmp_path: Path) -> None:
    """Changed bytes anywhere in the header: a spec or an InputError, nothing else."""
    whole = write(tmp_path / "whole.gguf", "smallthinker").read_bytes()
    rng, path = np.random.default_rng(0), tmp_path / "damaged.gguf"
    for _ in range(100):
        damaged = bytearray(whole)
        for position in rng.integers(0, 3000, size=3):
            damaged[position] = rng.integers(256)
        path.write_bytes(damaged)
        with suppress(InputError):
            assert import_model(path).spec.n_layers > 0


@pytest.mark.parametrize("name", ["block_count", "expert_used_count", "context_length", "attention.head_count"])
def test_a_key_that_nothing_else_says_must_be_there(tmp_path: Path, name: str) -> None:
    """No default for top-k, layers, heads or context."""
    with pytest.raises(InputError, match=name):
        import_model(write(tmp_path / "m.gguf", **{name: None}))


def test_an_imported_spec_reads_back_equal(tmp_path: Path) -> None:
    """The YAML that import writes is a spec like any other."""
    imported = import_model(write(tmp_path / "m.gguf", "smallthinker", **{"attention.sliding_window": 4096}))
    write_spec(imported, tmp_path / "m.yaml")
    assert load_model_spec(str(tmp_path / "m.yaml")) == imported.spec
