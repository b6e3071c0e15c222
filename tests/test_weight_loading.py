"""Weights in memory: the very bits of the file, tied heads once, no NaN, and no more memory than is kept."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from edited_models import F32, edited, random_blocks
from forward_oracle import SMALL, random_weights, vocabulary
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize, quantize
from parity.model_files import write_gguf as write_family
from parity.random_models import FAMILIES, random_model

from moeplan.errors import InputError
from reference_runtime.kernels.plain import PlainKernels
from reference_runtime.loading.gguf_weights import read_weights
from reference_runtime.loading.model_file import ModelFile, Part
from reference_runtime.loading.weight_loading import (
    ResidentExperts,
    check_finite,
    load_dense,
    load_expert,
    model_of,
    open_model,
)
from reference_runtime.training.export import write_gguf

KINDS = {name: GGMLQuantizationType[name] for name in ("F16", "BF16", "Q4_0", "Q8_0")}
ROOT = Path(__file__).parent.parent


def saved(path: Path, kind: GGMLQuantizationType = F32, tied: bool = True) -> ModelFile:
    write_gguf(random_weights(tied=tied), vocabulary(40), path.with_suffix(".f32"), F32)
    tensors = {
        t.name: (quantize(t.data, kind), kind)
        for t in GGUFReader(path.with_suffix(".f32")).tensors
        if "norm" not in t.name and "gate_inp" not in t.name
    }
    return open_model(edited(path.with_suffix(".f32"), path, tensors=tensors))


@pytest.mark.parametrize("kind", [F32, *KINDS.values()], ids=lambda kind: kind.name)
@pytest.mark.parametrize("pack", [False, True])
def test_dense_weights_are_those_of_the_file(kind: GGMLQuantizationType, pack: bool, tmp_path: Path) -> None:
    """
    Matrices keep the file's bytes, packed as rows where that is asked for and the type is Q4_0 or Q8_0; norms and
    routers are float32; every value is the plain reference's.
    """
    model_file = saved(tmp_path / "m.gguf", kind, tied=False)
    dense, weights = load_dense(model_file, pack), read_weights(tmp_path / "m.gguf")
    packing = "rows" if pack and kind.name in ("Q4_0", "Q8_0") else "ggml"
    for matrix, array in ((dense.token_embd, weights.token_embd), (dense.output, weights.output)):
        np.testing.assert_array_equal(matrix.float32(), array)
        assert (matrix.kind, matrix.packing, matrix.data.nbytes) == (kind, packing, model_file.top["output"].n_bytes)
    np.testing.assert_array_equal(dense.output_norm, weights.output_norm)
    for layer, expected in zip(dense.layers, weights.layers, strict=True):
        for field in ("q", "k", "v", "o"):
            assert getattr(layer, field).packing == packing
            np.testing.assert_array_equal(getattr(layer, field).float32(), getattr(expected, field))
        for field in ("attn_norm", "ffn_norm", "router"):
            np.testing.assert_array_equal(getattr(layer, field), getattr(expected, field))
            assert getattr(layer, field).dtype == np.float32
        assert layer.q_norm is None
    assert not dense.is_tied


def test_a_tied_head_is_the_embedding_itself(tmp_path: Path) -> None:
    """One object, loaded once."""
    dense = load_dense(saved(tmp_path / "m.gguf"))
    assert dense.output is dense.token_embd


def test_query_and_key_norms_are_loaded(tmp_path: Path) -> None:
    """Of the families that have them: a vector over the heads together, or over one head."""
    for name, (n_q, n_k) in {"olmoe": (64, 64), "qwen3moe": (32, 32)}.items():
        model = random_model(replace(FAMILIES[name], n_layers=1), 0)
        layer = load_dense(open_model(write_family(model, tmp_path / f"{name}.gguf"))).layers[0]
        assert layer.q_norm is not None
        assert layer.k_norm is not None
        assert (layer.q_norm.shape, layer.k_norm.shape) == ((n_q,), (n_k,))
        np.testing.assert_array_equal(layer.q_norm, model.layers[0]["q_norm"])
        np.testing.assert_array_equal(layer.k_norm, model.layers[0]["k_norm"])


def test_experts_are_those_of_the_file(tmp_path: Path) -> None:
    """One expert read alone, all in memory, and the slice of the stack are the same three matrices."""
    model_file = saved(tmp_path / "m.gguf", KINDS["Q4_0"])
    weights, resident = read_weights(tmp_path / "m.gguf"), ResidentExperts.read(model_file)
    resident.request(2, [5, 1])
    waves = list(resident.waves(2, [5, 1]))
    assert [[expert for expert, _ in wave] for wave in waves] == [[5, 1]]
    for expert, found in waves[0]:
        for field in ("gate", "up", "down"):
            alone = getattr(load_expert(model_file, 2, expert), field)
            np.testing.assert_array_equal(alone.data, getattr(found, field).data)
            np.testing.assert_array_equal(alone.float32(), getattr(weights.layers[2], field)[expert])
            assert alone.packing == "ggml"


def test_float_arrays_become_a_model_without_a_copy() -> None:
    """Matrices of the model share the arrays' memory; a tied head stays tied, an untied one does not become it."""
    for tied in (True, False):
        weights = random_weights(tied=tied)
        model = model_of(weights, PlainKernels())
        assert model.dense.is_tied is tied
        assert np.shares_memory(model.dense.token_embd.data, weights.token_embd)
        ((_, expert),) = next(iter(model.experts.waves(1, [3])))
        assert np.shares_memory(expert.down.data, weights.layers[1].down)
        np.testing.assert_array_equal(expert.down.float32(), weights.layers[1].down[3])


def test_the_plain_reference_is_smallthinker_only(tmp_path: Path) -> None:
    """Its arrays have no place for the norms of queries and keys of the other families."""
    write_family(random_model(replace(FAMILIES["olmoe"], n_layers=1), 0), tmp_path / "m.gguf")
    with pytest.raises(InputError, match="must be a smallthinker model, got olmoe"):
        read_weights(tmp_path / "m.gguf")


QUANTISED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")
SCALES = {  # bytes of a block where its float16 scales stand: ggml-common.h
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}


@pytest.mark.parametrize("name", QUANTISED)
def test_a_block_is_finite_where_its_scales_are(name: str) -> None:
    """
    A NaN or an infinity in any scale of any block is refused, also behind the first piece that is checked; any other
    bytes are weights.
    """
    kind = GGMLQuantizationType[name]
    block, size = GGML_QUANT_SIZES[kind]
    n_blocks = 2**22 // size + 100 if name == "Q4_0" else 100
    data = np.full((n_blocks, size), 0xFF, np.uint8)  # all quants at their largest
    for at in SCALES[name]:
        data[:, at : at + 2] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
    part = Part(0, 0, kind, (n_blocks, block), "blk.0.attn_q.weight")
    check_finite(data.reshape(-1), part, Path("m.gguf"))
    assert np.isfinite(dequantize(data, kind)).all()
    for at in SCALES[name]:
        for bad in (np.nan, np.inf):
            damaged = data.copy()
            damaged[-3, at : at + 2] = np.frombuffer(np.float16(bad).tobytes(), np.uint8)
            with pytest.raises(InputError, match=r"m\.gguf: blk\.0\.attn_q\.weight: must hold finite numbers only"):
                check_finite(damaged.reshape(-1), part, Path("m.gguf"))


@pytest.mark.parametrize("kind", [F32, KINDS["F16"], KINDS["BF16"]], ids=lambda kind: kind.name)
def test_floats_must_be_finite(kind: GGMLQuantizationType) -> None:
    """The largest number of a type passes, NaN and both infinities do not."""
    part = Part(0, 0, kind, (1, 64), "w")
    largest = 65504.0 if kind is KINDS["F16"] else 3.38e38
    for value in (largest, -largest, 0.0, np.nan, np.inf, -np.inf):
        data = quantize(np.full((1, 64), value, np.float32), kind).view(np.uint8).reshape(-1)
        if np.isfinite(value):
            check_finite(data, part, Path("m"))
        else:
            with pytest.raises(InputError, match="NaN or infinity"):
                check_finite(data, part, Path("m"))


def test_nan_in_a_file_names_the_tensor(tmp_path: Path) -> None:
    """Whichever loader meets the damaged block says where it stands, an expert's with its number."""
    model_file = saved(tmp_path / "m.gguf", KINDS["Q8_0"])
    content = bytearray((tmp_path / "m.gguf").read_bytes())
    for part in (model_file.layers[1]["k"], model_file.experts[3][6][2]):
        content[part.offset : part.offset + 2] = np.float16(np.nan).tobytes()
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(InputError, match=r"blk\.1\.attn_k\.weight: must hold finite"):
        load_dense(model_file)
    load_expert(model_file, 3, 5)
    with pytest.raises(InputError, match=r"blk\.3\.ffn_down_exps\.weight\[6\]: must hold finite"):
        load_expert(model_file, 3, 6)
    with pytest.raises(InputError, match=r"blk\.3\.ffn_down_exps\.weight\[6\]: must hold finite"):
        ResidentExperts.read(model_file)


def test_a_file_that_shrinks_is_one_line(tmp_path: Path) -> None:
    """A file cut after it was opened gives no weights, and one that vanished neither."""
    model_file = saved(tmp_path / "m.gguf")
    size = (tmp_path / "m.gguf").stat().st_size
    with (tmp_path / "m.gguf").open("r+b") as file:
        file.truncate(size // 2)
    with pytest.raises(InputError, match="did it change"):
        ResidentExperts.read(model_file)
    (tmp_path / "m.gguf").unlink()
    with pytest.raises(InputError, match="must be readable, got No such file"):
        load_dense(model_file)


MEASURE = """
import sys
from pathlib import Path
from reference_runtime import packing
from reference_runtime.process_memory import peak_rss_bytes, reset_peak, rss_bytes
from reference_runtime.loading.weight_loading import load_dense, open_model

def load(path, pack):
    model_file = open_model(Path(path))
    return load_dense(model_file, pack)

load(sys.argv[2], True)  # compiles what it needs
before = rss_bytes()
reset_peak()
dense = load(sys.argv[1], True)
print(rss_bytes() - before, peak_rss_bytes() - before)
"""


def test_loading_needs_one_matrix_more_than_it_keeps(tmp_path: Path) -> None:
    """The peak while loading a packed model is what is kept and at most its largest matrix, with 8 MB to spare."""
    config = replace(SMALL, n_layers=1, hidden_size=1024, n_heads=64, n_kv_heads=64, head_dim=32, vocab_size=40_000)
    rng = np.random.default_rng(0)
    scale = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)

    def blocks(shape: tuple[int, ...]) -> np.ndarray:
        data = rng.integers(0, 256, (*shape[:-1], shape[-1] // 32, 18), dtype=np.uint8)
        data[..., :2] = scale
        return data.reshape(*shape[:-1], -1)

    small = replace(SMALL, n_layers=1)
    write_gguf(random_weights(small), vocabulary(40), tmp_path / "small.f32", F32)
    sizes = {"q": 64 * 32, "k": 64 * 32, "v": 64 * 32}
    changed = {f"blk.0.attn_{field}.weight": (blocks((rows, 1024)), KINDS["Q4_0"]) for field, rows in sizes.items()}
    changed["blk.0.attn_output.weight"] = (blocks((1024, 64 * 32)), KINDS["Q4_0"])
    changed["token_embd.weight"] = (blocks((config.vocab_size, 1024)), KINDS["Q4_0"])
    for name in ("attn_norm", "ffn_norm"):
        changed[f"blk.0.{name}.weight"] = (np.ones(1024, np.float32), F32)
    changed["output_norm.weight"] = (np.ones(1024, np.float32), F32)
    changed["blk.0.ffn_gate_inp.weight"] = (np.ones((8, 1024), np.float32), F32)
    for name in ("gate", "up"):
        changed[f"blk.0.ffn_{name}_exps.weight"] = (blocks((8, 32, 1024)), KINDS["Q4_0"])
    changed["blk.0.ffn_down_exps.weight"] = (blocks((8, 1024, 32)), KINDS["Q4_0"])
    keys = {"embedding_length": 1024, "attention_head_count": 64, "attention_head_count_kv": 64}
    keys |= {f"attention_{name}_length": 32 for name in ("key", "value")} | {"rope_dimension_count": 32}
    edited(tmp_path / "small.f32", tmp_path / "large.gguf", tensors=changed, **keys)
    saved(tmp_path / "little.gguf", KINDS["Q4_0"])

    command = [sys.executable, "-c", MEASURE, str(tmp_path / "large.gguf"), str(tmp_path / "little.gguf")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    kept, peak = (int(number) for number in done.stdout.split())
    model_file = open_model(tmp_path / "large.gguf")
    expected = sum(part.n_bytes for part in (*model_file.top.values(), *model_file.layers[0].values()))
    largest = model_file.top["token_embd"].n_bytes
    assert expected > 25e6
    assert abs(kept - expected) < 8e6
    assert peak < expected + largest + 8e6


def test_random_blocks_are_what_they_claim() -> None:
    """The made-up Q4_K and Q6_K blocks of these tests dequantise to finite weights that are not all alike."""
    for name in ("Q4_K", "Q6_K"):
        kind = GGMLQuantizationType[name]
        weights = dequantize(random_blocks(kind, (4, 512)), kind)
        assert weights.shape == (4, 512)
        assert np.isfinite(weights).all()
        assert weights.std() > 0.01
