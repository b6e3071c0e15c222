"""Opening a GGUF: every architecture, type and split, where the weights lie, and one line for what does not run."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from edited_models import F32, edited, random_blocks
from forward_oracle import SMALL, random_weights, vocabulary
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType
from gguf.quants import dequantize, quantize
from parity.model_files import write_gguf as write_family
from parity.random_models import FAMILIES, SMALLTHINKER, random_model

from moeplan.errors import InputError
from reference_runtime.loading.gguf_weights import read_weights
from reference_runtime.loading.model_file import ModelFile, Part
from reference_runtime.loading.weight_loading import PartReader, open_model
from reference_runtime.training.export import named_tensors, write_gguf

Q4_0, Q8_0, F16, BF16 = (GGMLQuantizationType[name] for name in ("Q4_0", "Q8_0", "F16", "BF16"))
Q4_K, Q6_K, Q5_1, I8 = (GGMLQuantizationType[name] for name in ("Q4_K", "Q6_K", "Q5_1", "I8"))
TYPES = GGUFValueType
CONFIGS = {"smallthinker": SMALLTHINKER, **FAMILIES}


def parts_by_name(model: ModelFile) -> dict[str, Part]:
    parts = [*model.top.values(), *(part for layer in model.layers for part in layer.values())]
    parts += [part for layer in model.experts for expert in layer for part in expert]
    return {part.name: part for part in parts}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A small SmallThinker in F32."""
    write_gguf(random_weights(), vocabulary(40), tmp_path / "small.gguf", F32)
    return tmp_path / "small.gguf"


@pytest.mark.parametrize("kind", [F32, F16, BF16, Q8_0, Q4_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize("architecture", CONFIGS)
def test_every_weight_is_found_where_it_lies(architecture: str, kind: GGMLQuantizationType, tmp_path: Path) -> None:
    """
    Each part, read plainly at its place, is the weight that was written, rounded to the file's type; an expert is
    the slice of its stack; norms and routers are exact.
    """
    config = replace(CONFIGS[architecture], n_layers=2, expert_ffn_size=96)
    model = random_model(config, 0)
    opened = open_model(write_family(model, tmp_path / "m.gguf", kind))
    assert opened.warnings == ()
    parts = parts_by_name(opened)
    stored = {tensor.name: tensor for tensor in GGUFReader(tmp_path / "m.gguf").tensors}
    with PartReader(opened) as reader:
        for name, part in parts.items():
            tensor, _, index = name.partition("[")
            array = dequantize(stored[tensor].data, stored[tensor].tensor_type)
            expected = array[int(index[:-1])] if index else array
            np.testing.assert_array_equal(reader.float32(part), expected.reshape(part.shape), err_msg=name)
        for i, layer in enumerate(model.layers):
            gate, up, down = opened.experts[i][3]
            for part, field in ((gate, "gate"), (up, "up"), (down, "down")):
                np.testing.assert_array_equal(reader.float32(part), rounded(layer[field][3], kind))
            np.testing.assert_array_equal(reader.float32(opened.layers[i]["router"]), layer["router"])
            assert opened.layers[i].keys() == layer.keys() - {"gate", "up", "down"}
    assert {part.kind for name, part in parts.items() if "norm" not in name and "gate_inp" not in name} == {kind}


def rounded(array: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    return dequantize(quantize(array, kind), kind)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_an_architecture_is_recognised(architecture: str, tmp_path: Path) -> None:
    """All fields of the configuration come back; only Mixtral's queries turn neighbouring dimensions."""
    config = CONFIGS[architecture]
    read = open_model(write_family(random_model(config, 0), tmp_path / "m.gguf")).config
    assert read == replace(config, rope_style="interleaved" if architecture == "mixtral" else "neox")


def test_types_may_be_mixed_at_will(tmp_path: Path) -> None:
    """One file with F32, F16, BF16, Q4_0, Q5_1, Q8_0, Q4_K and Q6_K tensors: each is read by its own rule."""
    config = replace(SMALL, n_layers=2, hidden_size=256, expert_ffn_size=256)
    weights = random_weights(config)
    write_gguf(weights, vocabulary(40), tmp_path / "f32.gguf", F32)
    changed = {}
    kinds = [F32, F16, BF16, Q4_0, Q5_1, Q8_0, Q4_K, Q6_K]
    for i, (name, array) in enumerate(named_tensors(weights).items()):
        kind = kinds[i % len(kinds)] if array.shape[-1] % 256 == 0 else F32
        data = random_blocks(kind, array.shape, i) if kind in (Q4_K, Q6_K) else quantize(array, kind)
        changed[name] = (data, kind)
    assert {kind for _, kind in changed.values()} == set(kinds)
    read = named_tensors(read_weights(edited(tmp_path / "f32.gguf", tmp_path / "mixed.gguf", tensors=changed)))
    for name, (data, kind) in changed.items():
        np.testing.assert_array_equal(read[name], dequantize(data, kind).reshape(read[name].shape), err_msg=name)


def test_a_split_file_is_one_model(small: Path, tmp_path: Path) -> None:
    """Every shard's name opens the whole; places name the shard they are in; the weights are those of the one file."""
    edited(small, tmp_path / "split.gguf", split_max_tensors=9)
    shards = sorted(tmp_path.glob("split-*.gguf"))
    assert len(shards) == 7  # 62 tensors
    whole = named_tensors(read_weights(small))
    for shard in shards:
        opened = open_model(shard)
        assert list(opened.files) == shards
        assert {part.file for part in parts_by_name(opened).values()} == set(range(7))
    split = named_tensors(read_weights(shards[3]))
    assert all(np.array_equal(split[name], array) for name, array in whole.items())


def test_a_missing_shard_is_one_line(small: Path, tmp_path: Path) -> None:
    """A set with a hole names the file that is missing, a renamed shard the count that it should have."""
    edited(small, tmp_path / "split.gguf", split_max_tensors=9)
    first = tmp_path / "split-00001-of-00007.gguf"
    (tmp_path / "split-00004-of-00007.gguf").rename(tmp_path / "alone.gguf")
    refused(first, "must lie beside all 7 shards, got 1 missing, first split-00004-of-00007.gguf")
    first.rename(tmp_path / "renamed.gguf")
    refused(tmp_path / "renamed.gguf", "must be one of 7 shards, got 1 by its name")


def test_shards_of_two_models_are_refused(small: Path, tmp_path: Path) -> None:
    """A tensor that two shards hold, instead of another that none does, is one line."""
    edited(small, tmp_path / "split.gguf", split_max_tensors=9)
    second = tmp_path / "split-00002-of-00007.gguf"
    second.write_bytes((tmp_path / "split-00003-of-00007.gguf").read_bytes())
    refused(tmp_path / "split-00001-of-00007.gguf", "must have 62 tensors in its shards, got 53")


def test_default_scoring_is_told(small: Path, tmp_path: Path) -> None:
    """Without expert_gating_func a SmallThinker is taken as sigmoid, and the person who runs it is told."""
    opened = open_model(edited(small, tmp_path / "m.gguf", drop=("expert_gating_func",)))
    assert opened.config.scoring == "sigmoid"
    assert opened.warnings == ("no smallthinker.expert_gating_func; sigmoid is assumed",)


def test_a_neutral_rope_scaling_is_none(small: Path, tmp_path: Path) -> None:
    """Linear scaling by 1 changes nothing, and PowerInfer's predictor of logits is not needed: both are read."""
    add = {"rope.scaling.type": ("linear", TYPES.STRING), "rope.scaling.factor": (1.0, TYPES.FLOAT32)}
    more = {"lm_head_profiler.weight": (np.ones((1, 32), np.float32), F32)}
    assert open_model(edited(small, tmp_path / "m.gguf", add=add, tensors=more)).config == SMALL


def refused(path: Path, must: str) -> None:
    with pytest.raises(InputError) as caught:
        open_model(path)
    assert must in str(caught.value)
    assert "\n" not in str(caught.value)


def with_key(name: str, value: object, kind: GGUFValueType) -> Callable[[Path, Path], Path]:
    return lambda source, target: edited(source, target, add={name: (value, kind)})


def with_tensor(name: str, shape: tuple[int, ...]) -> Callable[[Path, Path], Path]:
    return lambda source, target: edited(source, target, tensors={name: (np.ones(shape, np.float32), F32)})


def with_i8_head(source: Path, target: Path) -> Path:
    return edited(source, target, tensors={"output.weight": (np.ones((40, 32), np.int8), I8)})


def old_experts(source: Path, target: Path) -> Path:
    first = {"blk.0.ffn_gate.0.weight": (np.ones((32, 32), np.float32), F32)}
    return edited(source, target, drop=("blk.0.ffn_gate_exps.weight",), tensors=first)


VARIANTS = {
    "yarn": (with_key("rope.scaling.type", "yarn", TYPES.STRING), "must be none or linear, got yarn"),
    "scaled": (with_key("rope.scaling.factor", 4.0, TYPES.FLOAT32), "rope.scaling.factor: must be 0.0 or 1.0, got 4.0"),
    "shared": (with_key("expert_shared_count", 1, TYPES.UINT32), "expert_shared_count: must be 0, got 1"),
    "dense layers": (with_key("leading_dense_block_count", 1, TYPES.UINT32), "leading_dense_block_count: must be 0"),
    "clipped": (with_key("attention.clamp_kqv", 8.0, TYPES.FLOAT32), "attention.clamp_kqv: must be 0.0, got 8.0"),
    "soft cap": (with_key("final_logit_softcapping", 30.0, TYPES.FLOAT32), "final_logit_softcapping: must be 0.0"),
    "weights scale": (with_key("expert_weights_scale", 2.5, TYPES.FLOAT32), "expert_weights_scale: must be 0.0 or 1.0"),
    "other pattern": (with_key("attention.sliding_window_pattern", 2, TYPES.UINT32), "must be 4, got 2"),
    "pattern list": (
        with_key("attention.sliding_window_pattern", [True], TYPES.ARRAY),
        "must be of type int, got list",
    ),
    "bias": (with_tensor("blk.0.attn_q.bias", (32,)), "blk.0.attn_q.bias: must be a tensor that the forward pass uses"),
    "bias said": (with_tensor("blk.0.attn_q.bias", (32,)), "got a bias (1 such tensors)"),
    "shared expert": (with_tensor("blk.1.ffn_up_shexp.weight", (32, 32)), "got a shared expert"),
    "rope factors": (with_tensor("rope_freqs.weight", (4,)), "got factors of a scaled RoPE"),
    "dense layer": (with_tensor("blk.0.ffn_up.weight", (32, 32)), "got a layer without experts"),
    "query norm": (with_tensor("blk.0.attn_q_norm.weight", (8,)), "got a norm of queries or keys"),
    "anything": (with_tensor("blk.0.novelty.weight", (8,)), "got one that it does not know"),
    "a layer more": (lambda s, t: edited(s, t, block_count=5), "blk.5.attn_norm.weight: must be a tensor that"),
    "one tensor per expert": (old_experts, "got one tensor per expert: an old file"),
    "no dequantiser": (with_i8_head, "output.weight: must be dequantisable, got I8"),
}


@pytest.mark.parametrize("case", VARIANTS)
def test_what_the_forward_pass_does_not_do_is_refused(case: str, small: Path, tmp_path: Path) -> None:
    """A variant is one line that names the key or the tensor, never a run that gives other numbers."""
    make, must = VARIANTS[case]
    refused(make(small, tmp_path / "bad.gguf"), must)


@pytest.mark.parametrize(
    ("architecture", "key", "value", "kind", "must"),
    [
        ("mixtral", "attention.sliding_window", 4096, TYPES.UINT32, "attention.sliding_window: must be 0, got 4096"),
        ("qwen3moe", "expert_gating_func", 2, TYPES.UINT32, "must be 1 (softmax), got 2"),
        ("olmoe", "expert_weights_norm", True, TYPES.BOOL, "expert_weights_norm: must be False, got True"),
    ],
)
def test_variants_of_the_other_families(
    architecture: str, key: str, value: object, kind: GGUFValueType, must: str, tmp_path: Path
) -> None:
    """A windowed Mixtral, a sigmoid Qwen3-MoE and a normalising OLMoE do not exist in llama.cpp and are refused."""
    source = write_family(random_model(replace(CONFIGS[architecture], n_layers=1), 0), tmp_path / "m.gguf")
    refused(edited(source, tmp_path / "bad.gguf", add={key: (value, kind)}), must)


def test_a_dense_llama_is_refused(tmp_path: Path) -> None:
    """The architecture llama without experts is no Mixtral."""
    source = write_family(random_model(replace(FAMILIES["mixtral"], n_layers=1), 0), tmp_path / "m.gguf")
    refused(edited(source, tmp_path / "bad.gguf", drop=("expert_count",)), "must have the key llama.expert_count")


def test_a_tied_head_is_not_listed(tmp_path: Path) -> None:
    """Without output.weight the file's top parts are the embedding and the last norm."""
    write_gguf(random_weights(tied=True), vocabulary(40), tmp_path / "m.gguf", F32)
    assert set(open_model(tmp_path / "m.gguf").top) == {"token_embd", "output_norm"}


def test_other_byte_order_and_version(small: Path, tmp_path: Path) -> None:
    """A big-endian file and one of an unknown version are one line each."""
    content = small.read_bytes()
    for version, must in ((b"\0\0\0\3", "must have this machine's byte order"), (b"\x63\0\0\0", "version 99")):
        (tmp_path / "v.gguf").write_bytes(content[:4] + version + content[8:])
        refused(tmp_path / "v.gguf", must)


def test_other_paths_are_refused(tmp_path: Path) -> None:
    """A single safetensors file is answered with what to give instead."""
    (tmp_path / "model.safetensors").write_bytes(b"")
    refused(tmp_path / "model.safetensors", "must be a GGUF file or a folder, got a .safetensors file; give its folder")
