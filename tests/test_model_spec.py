"""Model specs as input: strict, frozen, and every complaint names what must hold."""

from pathlib import Path

import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from pydantic import ValidationError

from moeplan.errors import InputError
from simulator.model.catalog import MODELS, load_model_spec, model_names
from simulator.model.spec import with_quantisation, with_top_k
from simulator.model.tensor_types import BLOCKS, bytes_per_weight, fitting_type, tensor_bytes

SHIPPED = {
    "smallthinker-4b-a0.6b", "smallthinker-21b-a3b", "qwen3-30b-a3b", "olmoe-1b-7b", "gpt-oss-20b", "mixtral-8x7b",
    "deepseek-v2-lite", "qwen3-0.6b", "qwen3-1.7b", "tiny-smallthinker",
}  # fmt: skip


def changed(tmp_path: Path, old: str, new: str, name: str = "smallthinker-21b-a3b") -> Path:
    """A shipped spec with one text replaced."""
    text = (MODELS / f"{name}.yaml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "model.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


def test_all_promised_models_are_shipped_and_named_as_their_files() -> None:
    """Ten names; each spec carries its own name and a source."""
    assert set(model_names()) == SHIPPED
    for name in model_names():
        spec = load_model_spec(name)
        assert spec.name == name
        assert spec.source


def test_smallthinker_specs_say_where_paper_and_config_differ() -> None:
    """The paper gives both models the NoPE hybrid; the shipped 4B has RoPE and full attention in all layers."""
    spec = load_model_spec("smallthinker-4b-a0.6b")
    assert spec.attention.layer_kinds == ("full_rope",)
    assert "2507.20984" in spec.notes
    assert "does not" in spec.notes
    assert "paper" in load_model_spec("smallthinker-21b-a3b").notes


def test_gate_sparsity_is_sourced_and_zero_for_swiglu() -> None:
    """ReGLU models quote where their sparsity is from; SiLU gives no zeros."""
    for name in model_names():
        experts = load_model_spec(name).experts
        if experts is not None:
            assert experts.gate_sparsity.source
            assert (experts.gate_sparsity.value > 0) == (experts.activation == "reglu")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("top_k: 6", "top_kk: 6", "top_k"),
        ("top_k: 6", "top_k: 65", "at most n_experts 64"),
        ("n_heads: 28", "n_heads: 30", "multiple of n_kv_heads 4"),
        ("  window: 4096\n", "", "window must be given"),
        ("hidden_size: 2560", "hidden_size: -1", "hidden_size"),
        ("experts: q4_0", "experts: q4_9", "known tensor type"),
        ("value: 0.6", "value: .nan", "gate_sparsity.value"),
        ("ffn_size: 768", "ffn_size: 768\n  first_dense_layers: 52", "below n_layers 52"),
        ("ffn_size: 768", "ffn_size: 768\n  first_dense_layers: 1", "dense_ffn_size"),
        ("ffn_size: 768", "ffn_size: 768\n  n_shared: 1", "shared_ffn_size"),
    ],
)
def test_a_wrong_spec_is_refused_with_file_and_reason(tmp_path: Path, old: str, new: str, expected: str) -> None:
    """One line that begins with file:line and names the rule."""
    path = changed(tmp_path, old, new)
    with pytest.raises(InputError) as error:
        load_model_spec(str(path))
    assert str(error.value).startswith(f"{path}:")
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_name_names_the_nearest() -> None:
    """A typing error is answered with the model that was meant."""
    with pytest.raises(InputError, match=r"smallthinker-4b-a0\.6b"):
        load_model_spec("smallthinker-4b")


def test_a_model_file_in_place_of_a_spec_is_sent_to_import(tmp_path: Path) -> None:
    """A GGUF is not a spec; the message says which command makes one of it."""
    with pytest.raises(InputError, match="moeplan model import"):
        load_model_spec(str(tmp_path / "model.gguf"))


def test_specs_are_frozen_and_hashable() -> None:
    """A spec can be a cache key, so nothing may change it."""
    spec = load_model_spec("olmoe-1b-7b")
    assert hash(spec) == hash(load_model_spec("olmoe-1b-7b"))
    with pytest.raises(ValidationError):
        spec.n_layers = 3  # type: ignore[misc]


def test_layers_with_experts() -> None:
    """The first layer of DeepSeek-V2-Lite is dense, the other 26 have experts."""
    spec = load_model_spec("deepseek-v2-lite")
    assert spec.moe_layer_ids == tuple(range(1, 27))
    assert not spec.is_moe_layer(0)


def test_wrong_overrides_are_refused() -> None:
    """Unknown types, a top-k beyond the experts and a top-k for a dense model are input errors."""
    spec = load_model_spec("olmoe-1b-7b")
    with pytest.raises(InputError, match="q4_0"):
        with_quantisation(spec, "q4_00")
    with pytest.raises(InputError, match="between 1 and 64"):
        with_top_k(spec, 65)
    with pytest.raises(InputError, match="dense"):
        with_top_k(load_model_spec("qwen3-0.6b"), 2)


def test_block_sizes_are_those_of_ggml() -> None:
    """Every type that ggml knows too has ggml's block size."""
    known = {kind.name.lower(): GGML_QUANT_SIZES[kind] for kind in GGMLQuantizationType if kind in GGML_QUANT_SIZES}
    shared = known.keys() & BLOCKS.keys()
    assert len(shared) > 20
    assert {name: BLOCKS[name] for name in shared} == {name: known[name] for name in shared}


@pytest.mark.parametrize(
    ("name", "bits"), [("q4_0", 4.5), ("q8_0", 8.5), ("q4_k", 4.5), ("q6_k", 6.5625), ("mxfp4", 4.25)]
)
def test_bits_per_weight(name: str, bits: float) -> None:
    """Bits per weight as the formats document them."""
    assert 8 * bytes_per_weight(name) == bits


def test_rows_that_do_not_fit_get_the_type_that_llama_cpp_gives_them() -> None:
    """1408 is no multiple of 256, so Q4_K becomes Q5_0 there; 100 fits no block at all."""
    assert fitting_type("q4_k", 1408) == "q5_0"
    assert fitting_type("q6_k", 1408) == "q8_0"
    assert fitting_type("q4_k", 2048) == "q4_k"
    assert fitting_type("q4_0", 100) == "f16"
    assert tensor_bytes(2048, 1408, "q4_k") == 2048 * 1408 // 32 * 22


def test_a_large_q6_k_tensor_has_its_documented_size() -> None:
    """ffn_down_exps [2048, 7168, 256] in Q6_K is 2940 MiB (ggml-org/llama.cpp issue 16379)."""
    assert tensor_bytes(7168 * 256, 2048, "q6_k") == 2940 * 2**20
