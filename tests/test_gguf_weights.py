"""Reading and writing `smallthinker` GGUF files: exact values, and one line for every kind of bad file."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from edited_models import edited
from forward_oracle import SMALL, random_weights, vocabulary
from gguf import GGUFReader

from moeplan.errors import InputError
from reference_runtime.loading.gguf_weights import Weights, fingerprint, open_gguf, read_weights
from reference_runtime.runtime_options import SHIPPED
from reference_runtime.training.export import F32, Q8_0, Vocabulary, dequantise, main, named_tensors, write_gguf


def saved(path: Path, weights: Weights, kind: int = F32) -> Path:
    write_gguf(weights, vocabulary(weights.config.vocab_size), path, kind)
    return path


@pytest.fixture
def f32(tmp_path: Path) -> Path:
    """A small model in F32."""
    return saved(tmp_path / "f32.gguf", random_weights())


@pytest.mark.parametrize("tied", [True, False])
def test_f32_round_trip(tmp_path: Path, tied: bool) -> None:
    """An F32 file gives back the configuration and every weight bit for bit; a tied head is stored once."""
    weights = random_weights(tied=tied)
    again = read_weights(saved(tmp_path / "m.gguf", weights))
    assert again.config == weights.config
    assert again.is_tied is tied
    for name, array in named_tensors(weights).items():
        np.testing.assert_array_equal(named_tensors(again)[name], array)
    stored = {tensor.name for tensor in GGUFReader(tmp_path / "m.gguf").tensors}
    assert ("output.weight" in stored) is not tied


def test_weights_are_frozen(f32: Path) -> None:
    """What was read cannot be written to."""
    with pytest.raises(ValueError, match="read-only"):
        read_weights(f32).layers[0].gate[0] = 0


@pytest.mark.parametrize(
    "config", [SMALL, replace(SMALL, scoring="softmax"), replace(SMALL, window=None, nope_period=None)]
)
def test_kinds_of_models(tmp_path: Path, config: object) -> None:
    """Gating function and window survive; no window key means RoPE in every layer and no sliding."""
    read = read_weights(saved(tmp_path / "m.gguf", random_weights(config))).config
    assert read == config
    ropes = [read.has_rope(i) for i in range(6)]
    assert ropes == ([True] * 6 if read.window is None else [False, True, True, True, False, True])
    assert [read.layer_window(i) for i in range(6)] == [read.window if rope else None for rope in ropes]


def test_q8_0_error_bound(tmp_path: Path) -> None:
    """
    A Q8_0 weight is off by at most half a step of its block of 32, max|w| / 254, plus the rounding of the fp16
    scale, at most 2^-11 of |w|; router and norms are exact.
    """
    weights = random_weights()
    again = named_tensors(read_weights(saved(tmp_path / "q8.gguf", weights, Q8_0)))
    for name, array in named_tensors(weights).items():
        if array.ndim == 1 or "ffn_gate_inp" in name:
            np.testing.assert_array_equal(again[name], array)
            continue
        blocks = array.reshape(-1, 32)
        largest = np.abs(blocks).max(axis=1, keepdims=True)
        assert (np.abs(again[name].reshape(-1, 32) - blocks) <= largest * (1 / 254 + 2**-11) * 1.001).all(), name
        assert not np.array_equal(again[name], array)


def test_dequantise_is_exact(tmp_path: Path) -> None:
    """The F32 file of a Q8_0 one holds the very weights that the Q8_0 one stands for, and the same keys."""
    q8, target = saved(tmp_path / "q8.gguf", random_weights(), Q8_0), tmp_path / "f32.gguf"
    main(["dequantise", str(q8), str(target)])
    a, b = (named_tensors(read_weights(path)) for path in (q8, target))
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert {tensor.tensor_type for tensor in GGUFReader(target).tensors} == {F32}
    keys = [{f.name: f.contents() for f in GGUFReader(path).fields.values()} for path in (q8, target)]
    assert {name for name in keys[0] if keys[0][name] != keys[1][name]} == {"general.file_type"}


def test_the_shipped_file_is_what_the_export_writes(tmp_path: Path) -> None:
    """Read and written again it is the same file, byte for byte: how files are written has not changed since."""
    shipped = SHIPPED["tiny-smallthinker"]
    keys = {name.split(".")[-1]: field.contents() for name, field in open_gguf(shipped).fields.items()}
    vocabulary = Vocabulary(tuple(keys["tokens"]), tuple(keys["merges"]), keys["eos_token_id"], keys["pre"])
    write_gguf(read_weights(shipped), vocabulary, tmp_path / "again.gguf")
    assert fingerprint(tmp_path / "again.gguf") == fingerprint(shipped)


def test_absent_gating_function_warns(f32: Path, tmp_path: Path) -> None:
    """Without expert_gating_func sigmoid is taken and the reader says so."""
    with pytest.warns(UserWarning, match="no smallthinker.expert_gating_func; sigmoid is assumed"):
        assert read_weights(edited(f32, tmp_path / "m.gguf", drop=("expert_gating_func",))).config.scoring == "sigmoid"


def nan_in_the_gate(source: Path, target: Path) -> Path:
    bad = np.array(GGUFReader(source).tensors[8].data)
    bad.reshape(-1)[3] = np.nan
    return edited(source, target, tensors={GGUFReader(source).tensors[8].name: bad})


def turned_down(source: Path, target: Path) -> Path:
    down = next(t for t in GGUFReader(source).tensors if t.name == "blk.0.ffn_down_exps.weight")
    return edited(source, target, tensors={down.name: np.array(down.data)[:, :, :16]})


def powerinfer_down(_source: Path, target: Path) -> Path:
    narrow = random_weights(replace(SMALL, expert_ffn_size=64))
    saved(target.with_suffix(".whole"), narrow)
    down = np.ascontiguousarray(narrow.layers[2].down.transpose(0, 2, 1))
    return edited(target.with_suffix(".whole"), target, tensors={"blk.2.ffn_down_exps.weight": down})


BAD_FILES = {
    "another architecture": (
        lambda s, t: edited(s, t, architecture="gemma3"),
        "must be one of smallthinker, olmoe, qwen3moe, llama, got 'gemma3'",
    ),
    "no block count": (lambda s, t: edited(s, t, drop=("block_count",)), "must have the key smallthinker.block_count"),
    "more layers than tensors": (
        lambda s, t: edited(s, t, block_count=7),
        "must have the tensor blk.6.attn_norm.weight",
    ),
    "a tensor too few": (lambda s, t: edited(s, t, drop=("blk.1.attn_k.weight",)), "must have the tensor blk.1.attn_k"),
    "no embedding": (lambda s, t: edited(s, t, drop=("token_embd.weight",)), "vocab_size: must be"),
    "a head too many": (lambda s, t: edited(s, t, attention_head_count=6), "blk.0.attn_q.weight: must have the shape"),
    "heads not divisible": (
        lambda s, t: edited(s, t, attention_head_count=5),
        "n_heads: must be a multiple of the 2 key-value heads, got 5",
    ),
    "top-k above experts": (
        lambda s, t: edited(s, t, expert_used_count=9),
        "top_k: must be at most the 8 experts, got 9",
    ),
    "zero experts": (lambda s, t: edited(s, t, expert_count=0), "n_experts: must be a finite number above 0, got 0"),
    "NaN in a key": (lambda s, t: edited(s, t, rope_freq_base=float("nan")), "rope_theta: must be a finite number"),
    "gating 0": (lambda s, t: edited(s, t, expert_gating_func=0), "must be 1 (softmax) or 2 (sigmoid), got 0"),
    "unknown gating": (lambda s, t: edited(s, t, expert_gating_func=3), "must be 1 (softmax) or 2 (sigmoid), got 3"),
    "value length": (lambda s, t: edited(s, t, attention_value_length=16), "attention.value_length: must be 8"),
    "NaN in a tensor": (nan_in_the_gate, "must hold finite numbers only"),
    "wrong shape": (turned_down, "ffn_down_exps.weight: must have the shape (8, 32, 32), got (8, 32, 16)"),
    "PowerInfer's turned down": (powerinfer_down, "PowerInfer turned it"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_refused(case: str, f32: Path, tmp_path: Path) -> None:
    """Each kind of bad model is one line that names the file and what must hold."""
    make, must = BAD_FILES[case]
    path = make(f32, tmp_path / "bad.gguf")
    with pytest.raises(InputError) as caught:
        read_weights(path)
    assert must in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kept_frac", [0, 1e-5, 1e-3, 0.01, 0.05, 0.5, 0.999])
def test_truncated_files_are_refused(kept_frac: float, f32: Path, tmp_path: Path) -> None:
    """A file cut anywhere, in its keys, its tensor list or its data, is one line and never a hang."""
    content = f32.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(content[: int(len(content) * kept_frac)])
    with pytest.raises(InputError, match="must be a whole GGUF file") as caught:
        read_weights(path)
    assert "\n" not in str(caught.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    """Text, a folder and no file at all are one line each."""
    (tmp_path / "text.gguf").write_text("not a model, but long enough to have a magic number's worth of bytes")
    for path in (tmp_path / "text.gguf", tmp_path, tmp_path / "none.gguf"):
        with pytest.raises(InputError, match=r"must be a (whole GGUF|file)"):
            open_gguf(path)


def test_damaged_headers_never_hang(f32: Path, tmp_path: Path) -> None:
    """Any of the header's bytes set to 255 gives a model or one line, not a hang, a crash or a traceback."""
    content, lines = bytearray(f32.read_bytes()), []
    path = tmp_path / "damaged.gguf"
    for place in range(0, 1200, 7):
        damaged = bytearray(content)
        damaged[place] = 255
        path.write_bytes(damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a damaged key name is an absent key
            try:
                read_weights(path)
            except InputError as error:
                lines.append(str(error))
    assert lines
    assert not any("\n" in line for line in lines)


def test_q8_0_needs_whole_blocks(tmp_path: Path) -> None:
    """A row of 48 weights is refused as Q8_0 and leaves no file behind."""
    with pytest.raises(InputError, match="multiple of 32"):
        saved(tmp_path / "m.gguf", random_weights(replace(SMALL, hidden_size=48)), Q8_0)
    assert list(tmp_path.iterdir()) == []


def test_fingerprint_is_sha256(tmp_path: Path) -> None:
    """The fingerprint of a file of `abc` is the one that FIPS 180-2 prints."""
    (tmp_path / "abc").write_bytes(b"abc")
    assert fingerprint(tmp_path / "abc").startswith("ba7816bf8f01cfea414140de5dae2223")


def test_export_refuses_with_exit_status_2(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """The command says what is wrong in one line and exits with 2."""
    with pytest.raises(SystemExit) as caught:
        main(["dequantise", str(tmp_path / "none.gguf"), str(tmp_path / "out.gguf")])
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(InputError):
        dequantise(tmp_path, tmp_path / "out.gguf")
