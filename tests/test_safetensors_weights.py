"""Opening a Hugging Face folder: the published names and keys of four families, and one line for what does not run."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited_models import HF_KINDS, save_safetensors, write_smallthinker
from forward_oracle import SMALL, random_weights
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from parity.model_files import write_folder
from parity.random_models import FAMILIES, random_model
from safetensors import safe_open

from moeplan.errors import InputError
from reference_runtime.loading.gguf_weights import read_weights
from reference_runtime.loading.weight_loading import PartReader, ResidentExperts, load_dense, open_model
from reference_runtime.training.export import named_tensors

BF16 = GGMLQuantizationType.BF16
Change = Callable[[dict[str, Any], dict[str, np.ndarray]], None]


@pytest.mark.parametrize("n_files", [1, 3])
@pytest.mark.parametrize("kind", HF_KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("tied", [True, False])
def test_smallthinker_round_trip(n_files: int, kind: GGMLQuantizationType, tied: bool, tmp_path: Path) -> None:
    """A folder without model_type, in one file or several, gives back the configuration and every weight."""
    weights = random_weights(tied=tied)
    read = read_weights(write_smallthinker(weights, tmp_path / "m", kind, n_files))
    assert read.config == weights.config
    assert read.is_tied is tied
    for name, array in named_tensors(weights).items():
        np.testing.assert_array_equal(named_tensors(read)[name], dequantize(quantize(array, kind), kind))


@pytest.mark.parametrize("architecture", FAMILIES)
def test_the_other_families(architecture: str, tmp_path: Path) -> None:
    """Configuration, dense weights and every expert of OLMoE, Qwen3-MoE and Mixtral."""
    model = random_model(replace(FAMILIES[architecture], n_layers=2), 0)
    folder = write_folder(model, tmp_path / f"random-{architecture}")
    opened = open_model(folder)
    assert opened.config == model.config
    dense, experts = load_dense(opened), ResidentExperts.read(opened)
    np.testing.assert_array_equal(dense.output.float32(), model.top["output"])
    for i, layer in enumerate(model.layers):
        for field in layer.keys() - {"gate", "up", "down"}:
            found = getattr(dense.layers[i], field)
            np.testing.assert_array_equal(found if isinstance(found, np.ndarray) else found.float32(), layer[field])
        for expert, found in next(iter(experts.waves(i, range(model.config.n_experts)))):
            for field in ("gate", "up", "down"):
                np.testing.assert_array_equal(getattr(found, field).float32(), layer[field][expert])


@pytest.mark.parametrize("architecture", FAMILIES)
def test_stacked_experts(architecture: str, tmp_path: Path) -> None:
    """transformers 5 may store gate above up in one tensor of all experts, always under mlp: the same parts result."""
    model = random_model(replace(FAMILIES[architecture], n_layers=2), 0)
    folder = write_folder(model, tmp_path / "m")
    with safe_open(folder / "model.safetensors", "numpy") as file:
        tensors = {n: file.get_tensor(n) for n in file.keys() if ".experts." not in n}  # noqa: SIM118  (no mapping)
    tensors = {n.replace("block_sparse_moe", "mlp"): array for n, array in tensors.items()}
    for i, layer in enumerate(model.layers):
        tensors[f"model.layers.{i}.mlp.experts.gate_up_proj"] = np.concatenate([layer["gate"], layer["up"]], axis=1)
        tensors[f"model.layers.{i}.mlp.experts.down_proj"] = layer["down"]
    save_safetensors(folder / "model.safetensors", tensors)
    opened = open_model(folder)
    with PartReader(opened) as reader:
        for i, layer in enumerate(model.layers):
            for expert, parts in enumerate(opened.experts[i]):
                for field, part in zip(("gate", "up", "down"), parts, strict=True):
                    np.testing.assert_array_equal(reader.float32(part), layer[field][expert])


def test_new_spellings_of_transformers_5(tmp_path: Path) -> None:
    """rope_parameters instead of rope_theta, and num_local_experts for Qwen3-MoE, say the same."""
    folder = write_folder(random_model(replace(FAMILIES["qwen3moe"], n_layers=1), 0), tmp_path / "m")
    config, old = json.loads((folder / "config.json").read_text()), open_model(folder).config
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    config["num_local_experts"] = config.pop("num_experts")
    (folder / "config.json").write_text(json.dumps(config))
    assert open_model(folder).config == old


def drops(*keys: str) -> Change:
    def change(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        for key in keys:
            del config[key]

    return change


def sets(**values: Any) -> Change:
    return lambda config, tensors: config.update(values)


def test_rotary_buffers_are_passed_over(tmp_path: Path) -> None:
    """Old folders store the frequencies that follow from rope_theta."""
    change = adds("model.layers.0.self_attn.rotary_emb.inv_freq", np.ones(4, np.float32))
    assert open_model(write_smallthinker(random_weights(), tmp_path / "m", change=change)).config == SMALL


def test_a_stored_copy_of_a_tied_head_is_not_read(tmp_path: Path) -> None:
    """The 4B stores lm_head though it is tied: the embedding is loaded once and is the head."""
    weights = random_weights(tied=False)
    opened = open_model(write_smallthinker(weights, tmp_path / "m", change=sets(tie_word_embeddings=True)))
    assert set(opened.top) == {"token_embd", "output_norm"}
    assert load_dense(opened).is_tied


def test_what_is_assumed_is_told(tmp_path: Path) -> None:
    """Keys that the model's own code has defaults for may be absent; each default taken is a sentence."""
    weights = random_weights(replace(SMALL, window=None, nope_period=None))
    change = drops("moe_primary_router_apply_softmax", "rope_layout", "sliding_window_layout", "tie_word_embeddings")
    opened = open_model(write_smallthinker(weights, tmp_path / "m", change=change))
    assert opened.config == weights.config
    assert opened.warnings == (
        "no moe_primary_router_apply_softmax; sigmoid is assumed, as the model's own code does",
        "no rope_layout; 1 is assumed for every layer",
        "no sliding_window_layout; 0 is assumed for every layer",
        "no tie_word_embeddings; the head is taken as tied",
    )


@pytest.mark.parametrize(
    ("rope", "slides", "window", "period"),
    [
        ([1] * 6, [0] * 6, None, None),
        ([1] * 6, [1] * 6, 8, None),
        ([0, 1, 1, 0, 1, 1], [0, 1, 1, 0, 1, 1], 8, 3),
        ([0, 1, 1, 1, 1, 1], [0] * 6, None, 6),
        ([0] * 6, [0] * 6, None, 1),
    ],
)
def test_layouts_that_can_be_said(
    rope: list[int], slides: list[int], window: int | None, period: int | None, tmp_path: Path
) -> None:
    """A periodic NoPE pattern, and sliding in no layer or in those with RoPE, is the same layer by layer."""
    change = sets(rope_layout=rope, sliding_window_layout=slides)
    config = open_model(write_smallthinker(random_weights(), tmp_path / "m", change=change)).config
    assert (config.window, config.nope_period) == (window, period)
    assert [config.has_rope(i) for i in range(6)] == [bool(x) for x in rope]
    assert [config.layer_window(i) for i in range(6)] == [8 if x else None for x in slides]


def renames(old: str, new: str) -> Change:
    def change(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        tensors[new] = tensors.pop(old)

    return change


def adds(name: str, array: np.ndarray) -> Change:
    return lambda config, tensors: tensors.update({name: array})


def other_family(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    del config["moe_num_primary_experts"]
    config["model_type"] = "deepseek_v3"


ONES, RAW = np.ones(32, np.float32), np.ones((40, 32), np.int8)
REFUSED: dict[str, tuple[Change, str]] = {
    "other family": (other_family, "must be one of smallthinker, olmoe, qwen3_moe, mixtral, got 'deepseek_v3'"),
    "layout": (sets(rope_layout=[0, 1, 1, 0, 0, 1]), "must have NoPE at layers 0, p, 2p, ... only"),
    "layout starts late": (sets(rope_layout=[1, 0, 1, 0, 1, 0]), "must have NoPE at layers 0, p, 2p, ... only"),
    "slides without RoPE": (sets(sliding_window_layout=[1, 1, 1, 1, 1, 1]), "slide in no layer or in exactly those"),
    "layout too short": (sets(rope_layout=[0, 1]), "rope_layout: must be 6 zeros and ones, got [0, 1]"),
    "no window size": (drops("sliding_window_size"), "sliding_window_size: must be given"),
    "yarn": (sets(rope_scaling={"type": "yarn", "factor": 4.0}), "rope_scaling: must leave RoPE as it is"),
    "rope type": (sets(rope_parameters={"rope_type": "llama3"}), "rope_parameters: must leave RoPE as it is"),
    "no theta": (drops("rope_theta"), "rope_theta: must be a number, got nothing"),
    "qk norm": (sets(use_qk_norm=True), "use_qk_norm: must be absent or False, got True"),
    "dense layers": (sets(moe_layer_layout=[0, 1, 1, 1, 1, 1]), "moe_layer_layout: must be absent or [1, 1"),
    "shared": (sets(moe_shared_primary_experts=1), "moe_shared_primary_experts: must be absent or 0, got 1"),
    "secondary": (sets(moe_enable_secondary_experts=True), "moe_enable_secondary_experts: must be absent or False"),
    "late router": (sets(moe_enable_early_router=False), "moe_enable_early_router: must be absent or True"),
    "SwiGLU": (sets(hidden_act="silu"), "hidden_act: must be absent or relu, got 'silu'"),
    "quantised": (sets(quantization_config={"quant_method": "awq"}), "quantization_config: must be absent"),
    "top-k": (sets(moe_num_active_primary_experts=9), "top_k: must be at most the 8 experts, got 9"),
    "no experts": (sets(moe_num_primary_experts=0), "n_experts: must be a finite number above 0"),
    "epsilon": (sets(rms_norm_eps="1e-6"), "rms_norm_eps: must be a number, got '1e-6'"),
    "tied is text": (sets(tie_word_embeddings="yes"), "tie_word_embeddings: must be of type bool"),
    "vocabulary": (sets(vocab_size=41), "model.embed_tokens.weight: must have the shape (41, 32), got (40, 32)"),
    "missing tensor": (renames("model.norm.weight", "model.norms.weight"), "model.norms.weight: must be a tensor that"),
    "bias": (adds("model.layers.0.self_attn.q_proj.bias", ONES), "got a bias (1 such tensors)"),
    "int8": (adds("model.embed_tokens.weight", RAW), "embed_tokens.weight of type I8, none of F32, F16, BF16"),
    "untied without a head": (sets(tie_word_embeddings=False), "must have the tensor lm_head.weight"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_run_is_refused(case: str, tmp_path: Path) -> None:
    """Each variant and each damage is one line that names the key or the tensor."""
    change, must = REFUSED[case]
    refused(write_smallthinker(random_weights(), tmp_path / "m", change=change), must)


@pytest.mark.parametrize(
    ("architecture", "changes", "must"),
    [
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv: must be absent, got 8.0"),
        ("olmoe", {"attention_bias": True}, "attention_bias: must be absent or False"),
        ("olmoe", {"hidden_act": "gelu"}, "hidden_act: must be absent or silu"),
        ("mixtral", {"sliding_window": 4096}, "sliding_window: must be absent, got 4096"),
        ("qwen3moe", {"use_sliding_window": True}, "use_sliding_window: must be absent or False"),
        ("qwen3moe", {"mlp_only_layers": [0]}, "mlp_only_layers: must be absent or [], got [0]"),
        ("qwen3moe", {"decoder_sparse_step": 2}, "decoder_sparse_step: must be absent or 1"),
        ("qwen3moe", {"norm_topk_prob": 1}, "norm_topk_prob: must be of type bool"),
        ("qwen3moe", {"layer_types": ["sliding_attention"]}, "layer_types: must be absent or ['full_attention']"),
    ],
)
def test_variants_of_the_other_families(architecture: str, changes: dict[str, Any], must: str, tmp_path: Path) -> None:
    """Clipped queries, windows, biases and dense layers are refused."""
    folder = write_folder(random_model(replace(FAMILIES[architecture], n_layers=1), 0), tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    refused(folder, must)


def test_norm_topk_prob_decides(tmp_path: Path) -> None:
    """Qwen3-MoE without it does not normalise, as transformers has it, and says so."""
    folder = write_folder(random_model(replace(FAMILIES["qwen3moe"], n_layers=1), 0), tmp_path / "m")
    assert open_model(folder).config.normalised
    config = json.loads((folder / "config.json").read_text())
    del config["norm_topk_prob"]
    (folder / "config.json").write_text(json.dumps(config))
    assert not open_model(folder).config.normalised
    assert open_model(folder).warnings == ("no norm_topk_prob; false is assumed, as transformers does",)


def refused(folder: Path, must: str) -> None:
    with pytest.raises(InputError) as caught:
        open_model(folder)
    assert must in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nan_names_the_tensor(tmp_path: Path) -> None:
    """A NaN in BF16 is found when the expert is read."""
    weights = random_weights()

    def change(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        name = "model.layers.2.block_sparse_moe.experts.5.up.weight"
        tensors[name] = tensors[name].copy()
        tensors[name][0, 3] = np.nan

    opened = open_model(write_smallthinker(weights, tmp_path / "m", BF16, change=change))
    assert opened.experts[0][0][0].kind is BF16
    with pytest.raises(InputError, match=r"experts\.5\.up\.weight: must hold finite numbers only"):
        ResidentExperts.read(opened)
