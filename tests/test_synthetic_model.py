"""Random models of real shape: exact zero sums, spread routing, whole files; and files rounded to another type."""

from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize, quantize

from moeplan.errors import InputError
from reference_runtime import synthetic_model
from reference_runtime.forward import forward
from reference_runtime.kv_cache import KVCache
from reference_runtime.loading import gguf_stream
from reference_runtime.loading.gguf_stream import TensorPlan, requantise, write_streamed
from reference_runtime.model import Model
from reference_runtime.quality.table import resident_model
from reference_runtime.synthetic_model import pack_blocks, tensor_plans, write_synthetic, zero_sum_blocks
from simulator.model.catalog import load_model_spec
from simulator.model.size import file_bytes
from simulator.model.spec import ModelSpec, with_quantisation

F32, Q8_0, Q4_0 = GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_0


def small_spec(**changes: object) -> ModelSpec:
    """The tiny model's shape with 8 layers and 256 tokens."""
    return load_model_spec("tiny-smallthinker").model_copy(update={"n_layers": 8, "vocab_size": 256, **changes})


@pytest.fixture(scope="module")
def q4_0_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model in Q4_0."""
    path = tmp_path_factory.mktemp("synthetic") / "q4_0.gguf"
    write_synthetic(small_spec(), path, Q4_0)
    return path


def tensors(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of a file in float32."""
    return {t.name: dequantize(t.data, t.tensor_type) for t in GGUFReader(path).tensors}


def run(model: Model, n_tokens: int = 64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token ids, logits and expert ids of random tokens."""
    ids = np.random.default_rng(0).integers(0, model.config.vocab_size, n_tokens)
    result = forward(model, ids, KVCache(model.config, n_tokens))
    return ids, result.logits, result.expert_ids


@pytest.mark.parametrize("limit", [7, 127])
def test_every_block_sums_to_zero_and_spans_the_range(limit: int) -> None:
    """Each 32 weights sum to exactly 0, and both ends of the range occur."""
    blocks = zero_sum_blocks(np.random.default_rng(0), 0, 64, 96, limit)
    assert blocks.shape == (64, 3, 32)
    assert (blocks.sum(axis=-1, dtype=int) == 0).all()
    assert blocks.min() == -limit
    assert blocks.max() == limit


def test_twins_differ_from_row_to_row() -> None:
    """Column 0's negative stands at place 16 + row % 16, wherever a piece of the matrix begins."""
    for first_row in (0, 5):
        blocks = zero_sum_blocks(np.random.default_rng(0), first_row, 32, 32, 127)[:, 0].astype(int)
        for row in range(32):
            assert blocks[row, 16 + (first_row + row) % 16] == -blocks[row, 0]


@pytest.mark.parametrize("kind", [F32, Q8_0, Q4_0])
def test_packed_blocks_are_what_gguf_reads(kind: GGMLQuantizationType) -> None:
    """Dequantising the stored bytes gives value times scale exactly."""
    blocks = zero_sum_blocks(np.random.default_rng(1), 0, 8, 64, synthetic_model.LIMITS[kind])
    scale = np.float16(0.013)
    packed = pack_blocks(blocks, scale, kind).reshape(8, -1)
    assert np.array_equal(dequantize(packed, kind).reshape(8, 2, 32), blocks * np.float32(scale))


def test_a_seed_names_the_bytes(q4_0_file: Path, tmp_path: Path) -> None:
    """The same arguments give the same file, another seed another one."""
    again, other = tmp_path / "again.gguf", tmp_path / "other.gguf"
    write_synthetic(small_spec(), again, Q4_0)
    write_synthetic(small_spec(), other, Q4_0, seed=1)
    assert again.read_bytes() == q4_0_file.read_bytes()
    assert other.read_bytes() != q4_0_file.read_bytes()


def test_the_file_says_what_it_is(q4_0_file: Path) -> None:
    """Name and description say that it is random; it has no tokenizer but the size of a vocabulary."""
    reader = GGUFReader(q4_0_file)
    keys = {name: reader.fields[name].contents() for name in reader.fields if not name.startswith("GGUF.")}
    assert "RANDOM" in keys["general.name"]
    assert "RANDOM" in keys["general.description"]
    assert keys["tokenizer.ggml.model"] == "none"
    assert keys["smallthinker.vocab_size"] == 256


def test_the_model_runs_and_its_routing_is_spread(q4_0_file: Path) -> None:
    """64 random tokens use nearly all 32 experts in each layer; logits have the size that is meant, no self-echo."""
    ids, logits, expert_ids = run(resident_model(q4_0_file))
    distinct = [len(np.unique(expert_ids[:, layer])) for layer in range(expert_ids.shape[1])]
    assert min(distinct) >= 28
    assert np.isfinite(logits).all()
    assert logits.std() == pytest.approx(synthetic_model.LOGIT_SIZE, rel=0.2)
    assert (logits.argmax(axis=-1) == ids).mean() < 0.2


def test_types_have_the_same_bytes_as_the_spec_says() -> None:
    """The planned tensors of the real 4B take what the size module derives from the same spec."""
    spec = with_quantisation(load_model_spec("smallthinker-4b-a0.6b"), "q4_0")
    plans = tensor_plans(synthetic_model.synthetic_config(spec, 0), Q4_0, spec.tied_embeddings)
    assert sum(plan.n_bytes for plan in plans) == file_bytes(spec)


def test_f32_and_q8_0_hold_the_same_numbers(tmp_path: Path) -> None:
    """Q8_0's weights are what F32 stores, so the two differ in arithmetic only."""
    spec = small_spec(n_layers=1, tied_embeddings=False)
    write_synthetic(spec, tmp_path / "a.gguf", F32)
    write_synthetic(spec, tmp_path / "b.gguf", Q8_0)
    a, b = tensors(tmp_path / "a.gguf"), tensors(tmp_path / "b.gguf")
    assert "output.weight" in a
    assert a.keys() == b.keys()
    assert all(np.array_equal(a[name], b[name]) for name in a)


def test_gate_sparsity_is_rows_of_zeros(tmp_path: Path) -> None:
    """0.75: half of each expert's gate rows are zero, and with half of the others three quarters of the gates."""
    path = tmp_path / "sparse.gguf"
    write_synthetic(small_spec(), path, Q8_0, gate_sparsity=0.75)
    gate = tensors(path)["blk.3.ffn_gate_exps.weight"]  # (experts, ffn, hidden)
    assert ((gate == 0).all(axis=-1).sum(axis=-1) == 32).all()
    model = resident_model(path)
    ids = np.arange(64)
    zero = forward(model, ids, KVCache(model.config, 64)).zero_gate_frac
    assert zero == pytest.approx(np.full(8, 0.75), abs=0.02)


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        (load_model_spec("olmoe-1b-7b"), {}, "must be of SmallThinker's architecture"),
        (small_spec(), {"gate_sparsity": 0.3}, "must be 0.5 to 1"),
        (small_spec(), {"kind": GGMLQuantizationType.Q6_K}, "must be one of F32, Q8_0, Q4_0"),
        (small_spec(hidden_size=100), {}, "must have rows of a multiple of 32"),
    ],
)
def test_what_cannot_be_made_is_refused(spec: ModelSpec, options: dict, message: str, tmp_path: Path) -> None:
    """A line that says why, and no file."""
    with pytest.raises(InputError, match=message):
        write_synthetic(spec, tmp_path / "no.gguf", **options)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The room is checked first."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(gguf_stream.shutil, "disk_usage", lambda path: usage(10**9, 10**9, 10**6))
    with pytest.raises(InputError, match="free for the file"):
        write_synthetic(small_spec(), tmp_path / "new" / "no.gguf")
    assert not list(tmp_path.iterdir())


def test_an_interrupted_file_does_not_exist(tmp_path: Path) -> None:
    """Stopped half-way: nothing is left; and progress ends at the whole."""
    seen = []

    def stop(done: int, total: int) -> None:
        seen.append((done, total))
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_synthetic(small_spec(), tmp_path / "no.gguf", progress=stop)
    assert not list(tmp_path.iterdir())
    assert seen == sorted(seen)


def test_a_tensor_that_comes_short_is_a_fault(tmp_path: Path) -> None:
    """The writer counts: a piece too few never makes a file."""
    with pytest.raises(AssertionError, match="64 bytes written, 128 planned"):
        write_streamed(
            tmp_path / "no.gguf", lambda writer: None, [TensorPlan("a", (1, 32), F32)], lambda plan: [np.zeros(8)]
        )
    assert not list(tmp_path.iterdir())


def test_requantise_rounds_matrices_alone(tmp_path: Path) -> None:
    """Matrices are rounded to Q4_0 as the gguf package does, router, norms and keys stay."""
    source, target = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write_synthetic(small_spec(n_layers=1), source, Q8_0)
    requantise(source, target, Q4_0)
    before, after = GGUFReader(source), GGUFReader(target)
    name = before.fields["general.name"].contents()
    assert after.fields["general.name"].contents() == name
    assert after.fields["general.file_type"].contents() == 2  # MOSTLY_Q4_0
    for old, new in zip(before.tensors, after.tensors, strict=True):
        assert old.name == new.name
        if old.tensor_type == F32:
            assert new.tensor_type == F32
            assert np.array_equal(old.data, new.data)
        else:
            assert np.array_equal(new.data, quantize(dequantize(old.data, Q8_0), Q4_0))
