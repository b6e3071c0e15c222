"""Parameters and bytes of the shipped models, from their shapes, against published figures."""

import pytest

from simulator.model import size as model_size
from simulator.model.catalog import load_model_spec, model_names
from simulator.model.spec import with_quantisation, with_top_k

# name: (total, active here = body + LM head, active as the vendor counts), in 10^9; within 1 % by the project's target
FIGURES = {
    "smallthinker-4b-a0.6b": (4.035, 0.864, 0.631),
    "smallthinker-21b-a3b": (21.507, 3.329, 2.940),
    "mixtral-8x7b": (46.70, 12.75, None),
    "qwen3-30b-a3b": (30.53, 3.04, None),
    "olmoe-1b-7b": (6.92, 1.18, None),
    "gpt-oss-20b": (20.9, 3.61, None),
    "deepseek-v2-lite": (15.7, 2.45, None),
    "qwen3-0.6b": (0.596, 0.596, None),
    "qwen3-1.7b": (1.72, 1.72, None),
}
# Figures that vendors print, rounded by them, with what each counts.
VENDORS = {
    "mixtral-8x7b": (12.9, "body_and_both"),
    "qwen3-30b-a3b": (3.3, "body_and_both"),
    "olmoe-1b-7b": (1.3, "body_and_both"),
    "gpt-oss-20b": (3.6, "body_and_head"),
    "deepseek-v2-lite": (2.4, "body_and_head"),
    "smallthinker-21b-a3b": (3.0, "body"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_totals_and_active_parameters_meet_the_published_figures(name: str) -> None:
    """Total and active parameters come out of the shapes within 1 %."""
    spec, (total, active, vendor) = load_model_spec(name), FIGURES[name]
    assert model_size.n_params(spec) == pytest.approx(total * 1e9, rel=0.01)
    assert model_size.n_active_params(spec) == pytest.approx(active * 1e9, rel=0.01)
    if vendor is not None:
        assert model_size.vendor_active_params(spec) == pytest.approx(vendor * 1e9, rel=0.01)


@pytest.mark.parametrize("name", VENDORS)
def test_active_parameters_meet_the_vendor_under_the_vendors_convention(name: str) -> None:
    """The vendor's rounded active figure holds within 3 % when counted as the spec says the vendor counts."""
    spec, (active, convention) = load_model_spec(name), VENDORS[name]
    assert spec.active_convention == convention
    assert model_size.vendor_active_params(spec) == pytest.approx(active * 1e9, rel=0.03)


@pytest.mark.parametrize("name", [name for name in model_names() if load_model_spec(name).vendor])
def test_vendor_figures_in_the_specs_agree_with_the_shapes(name: str) -> None:
    """What a spec quotes from its vendor is within 3 % of the shapes, or the shapes round to the quoted 0.1 B."""
    spec = load_model_spec(name)
    assert spec.vendor is not None
    for computed, stated in (
        (model_size.n_params(spec), spec.vendor.n_params),
        (model_size.vendor_active_params(spec), spec.vendor.n_active_params),
    ):
        assert computed == pytest.approx(stated, rel=0.03) or round(computed / 1e8) * 10**8 == stated


def test_smallthinker_4b_bytes_are_exact() -> None:
    """A Q4_0 expert is 3 x 768 x 1536 weights at 18 bytes per 32; the tied file is 2.119 GiB."""
    spec = load_model_spec("smallthinker-4b-a0.6b")
    assert model_size.expert_bytes(spec) == 3 * 768 * 1536 // 32 * 18 == 1_990_656
    assert model_size.expert_params(spec) == 3_538_944
    assert model_size.attention_params_per_layer(spec) == 5_505_024
    assert model_size.file_bytes(spec) / 2**30 == pytest.approx(2.119, abs=0.001)
    layer_bytes = model_size.attention_bytes_per_layer(spec, 0) + model_size.router_bytes_per_layer(spec)
    assert layer_bytes / 2**20 == pytest.approx(3.152, abs=0.001)


def test_smallthinker_21b_bytes_are_exact() -> None:
    """A Q4_0 expert is 3 x 768 x 2560 weights; the untied file is 11.295 GiB."""
    spec = load_model_spec("smallthinker-21b-a3b")
    assert model_size.expert_bytes(spec) == 3_317_760
    assert model_size.attention_params_per_layer(spec) == 20_971_520
    assert model_size.file_bytes(spec) / 2**30 == pytest.approx(11.295, abs=0.001)


def test_gpt_oss_file_is_as_long_as_the_published_gguf() -> None:
    """MXFP4 experts, the rest Q8_0: the tensors make up 12.1 GB of the 12.11 GB file."""
    spec = load_model_spec("gpt-oss-20b")
    assert model_size.file_bytes(spec) == pytest.approx(12.11e9, rel=0.005)
    assert model_size.expert_bytes(spec) == 3 * 2880 * 2880 // 32 * 17


@pytest.mark.parametrize(
    ("name", "n_bytes"),
    [
        ("smallthinker-4b-a0.6b", 32_768),
        ("smallthinker-21b-a3b", 106_496),
        ("qwen3-30b-a3b", 98_304),
        ("deepseek-v2-lite", 27 * (512 + 64) * 2),
    ],
)
def test_kv_bytes_per_token(name: str, n_bytes: int) -> None:
    """Keys and values of all layers in fp16 before any window; latent attention keeps one vector and a RoPE key."""
    assert model_size.kv_bytes_per_token(load_model_spec(name)) == n_bytes


def test_a_window_caps_the_kv_cache_layer_by_layer() -> None:
    """gpt-oss-20b at 8192 tokens x 32 streams in 16 bit: 6.094 GiB with the window, 12 GiB without."""
    spec = load_model_spec("gpt-oss-20b")
    assert 32 * model_size.kv_bytes(spec, 8192) / 2**30 == pytest.approx(6.094, abs=0.001)
    assert 32 * 8192 * model_size.kv_bytes_per_token(spec) == 12 * 2**30


def test_smallthinker_21b_saves_kv_and_the_4b_does_not() -> None:
    """The shipped 4B has no sliding layer; the 21B slides in three layers of four: 728 MiB at 16k instead of 1664."""
    small, large = load_model_spec("smallthinker-4b-a0.6b"), load_model_spec("smallthinker-21b-a3b")
    assert model_size.kv_bytes(small, 32_768) == 2**30
    assert model_size.kv_bytes(large, 16_384) == 728 * 2**20
    assert [large.layer_kind(i) for i in range(5)] == ["full_nope", *["sliding_rope"] * 3, "full_nope"]


@pytest.mark.parametrize("name", model_names())
def test_groups_add_up(name: str) -> None:
    """file = dense + routed experts; a tied embedding stands in the file once."""
    spec = load_model_spec(name)
    n_experts = 0 if spec.experts is None else spec.n_moe_layers * spec.experts.n_experts
    assert model_size.file_bytes(spec) == model_size.dense_bytes(spec) + n_experts * model_size.expert_bytes(spec)
    assert (model_size.group_bytes(spec)["lm_head"] == 0) == spec.tied_embeddings
    assert model_size.n_active_params(spec) <= model_size.n_params(spec) + model_size.vocab_params(spec)


def test_per_layer_bytes_add_up_to_the_dense_part() -> None:
    """Embedding, attention with norms, router, shared and dense FFN, last norm, head: nothing is counted twice."""
    for name in ("deepseek-v2-lite", "qwen3-0.6b", "smallthinker-21b-a3b"):
        spec = load_model_spec(name)
        n_moe = spec.n_moe_layers
        layers = sum(model_size.attention_bytes_per_layer(spec, i) for i in range(spec.n_layers))
        moe = model_size.router_bytes_per_layer(spec) + model_size.shared_ffn_bytes_per_layer(spec)
        dense = (spec.n_layers - n_moe) * model_size.dense_ffn_bytes_per_layer(spec)
        vocab = model_size.lm_head_bytes(spec) * (1 if spec.tied_embeddings else 2)
        last_norm = 4 * spec.hidden_size
        assert model_size.dense_bytes(spec) == layers + n_moe * moe + dense + vocab + last_norm


def test_four_billion_parameters_in_q4_0_are_2_25_gb() -> None:
    """Q4_0 is 18 bytes per 32 weights, so about 0.5625 bytes per parameter."""
    spec = load_model_spec("smallthinker-4b-a0.6b")
    assert model_size.file_bytes(spec) == pytest.approx(model_size.n_params(spec) * 18 / 32, rel=0.005)


def test_quantisation_scales_the_experts_and_leaves_the_router() -> None:
    """f16 experts are 32/9 of Q4_0 ones; routers and norms keep their type."""
    spec = load_model_spec("smallthinker-4b-a0.6b")
    half = with_quantisation(spec, "f16")
    assert model_size.expert_bytes(half) * 9 == model_size.expert_bytes(spec) * 32
    assert half.tensor_types.router == half.tensor_types.norm == "f32"
    assert spec.tensor_types.experts == "q4_0"


def test_top_k_changes_active_parameters_by_whole_experts() -> None:
    """Two experts fewer in each of 48 layers; total and file stay."""
    spec = load_model_spec("qwen3-30b-a3b")
    six = with_top_k(spec, 6)
    difference = model_size.n_active_params(spec) - model_size.n_active_params(six)
    assert difference == 48 * 2 * model_size.expert_params(spec)
    assert model_size.file_bytes(spec) == model_size.file_bytes(six)


def test_tiny_smallthinker_has_the_routing_shape_of_the_4b() -> None:
    """Its traces replay on the 4B without adaptation; its Q8_0 file stays under 30 MB."""
    tiny, small = load_model_spec("tiny-smallthinker"), load_model_spec("smallthinker-4b-a0.6b")
    assert tiny.experts is not None
    assert small.experts is not None
    assert (tiny.n_moe_layers, tiny.experts.n_experts, tiny.experts.top_k) == (32, 32, 4)
    assert (small.n_moe_layers, small.experts.n_experts, small.experts.top_k) == (32, 32, 4)
    assert model_size.file_bytes(tiny) < 30e6
