"""The fast kernels against plain numpy on the same weights: equal but for float32 rounding."""

import os
import subprocess
import sys

import numba
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from moeplan.errors import InputError
from reference_runtime.kernels import plain
from reference_runtime.kernels.fast import FastKernels
from reference_runtime.matrix import Matrix, Packing
from reference_runtime.model import Expert, Wave
from reference_runtime.packing import PACKED_KINDS, Q4_0, Q8_0, pack

HIDDEN, FFN = 160, 96  # a wide and a narrow tile of outputs, more than one block of everything
KINDS = sorted(PACKED_KINDS)


def relative_rms(found: np.ndarray, expected: np.ndarray) -> float:
    """Root mean square of the difference over that of what is expected."""
    return float(np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected.astype(np.float64)))


def random_matrix(
    kind: GGMLQuantizationType, rows: int, columns: int, packing: Packing, rng: np.random.Generator
) -> Matrix:
    """A normal random matrix, quantised."""
    blocks = quantize(rng.standard_normal((rows, columns), np.float32), kind).reshape(-1).view(np.uint8)
    return Matrix(kind, (rows, columns), pack(blocks, kind, (rows, columns), packing), packing)


def random_expert(kind: GGMLQuantizationType, rng: np.random.Generator) -> Expert:
    """Gate and up by rows, down by columns."""
    gate, up = (random_matrix(kind, FFN, HIDDEN, "rows", rng) for _ in range(2))
    return Expert(gate, up, random_matrix(kind, HIDDEN, FFN, "columns", rng))


def run_experts(
    kernels: object, n_tokens: int, wave: Wave, activation: str = "relu", seed: int = 5
) -> tuple[np.ndarray, int]:
    """Random tokens that choose all experts of the wave, in different orders, on top of what is in `mixed`."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n_tokens, HIDDEN), np.float32)
    ids = np.stack([rng.permutation([e for e, _ in wave]) for _ in range(n_tokens)])
    weights = rng.random(ids.shape, np.float32)
    mixed = rng.standard_normal(z.shape, np.float32)
    n_zero = kernels.add_experts(mixed, z, wave, ids, weights, activation)  # type: ignore[attr-defined]
    return mixed, n_zero


@pytest.fixture(params=[1, 2])
def kernels(request: pytest.FixtureRequest) -> FastKernels:
    """On one thread and on two, where numba has two."""
    if request.param > numba.config.NUMBA_NUM_THREADS:
        pytest.skip("numba has one thread")
    return FastKernels(request.param)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n_tokens", "rows", "columns"),
    [(1, 70, 160), (2, 64, 32), (1, 300, 544), (16, 70, 160), (9, 33, 32), (17, 70, 544), (50, 6, 160)],
)
def test_product_by_rows(
    kernels: FastKernels, kind: GGMLQuantizationType, n_tokens: int, rows: int, columns: int
) -> None:
    """x @ matrix.T from packed blocks is that of the dequantised matrix, for one token and for several."""
    rng = np.random.default_rng(rows)
    matrix = random_matrix(kind, rows, columns, "rows", rng)
    x = rng.standard_normal((n_tokens, columns), np.float32)
    assert relative_rms(kernels.matmul(x, matrix), x.astype(np.float64) @ matrix.float32().T) < 1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_tokens", [1, 5, 16, 33, 49])
def test_product_by_columns(kernels: FastKernels, kind: GGMLQuantizationType, n_tokens: int) -> None:
    """A matrix packed by columns multiplies as well."""
    rng = np.random.default_rng(0)
    matrix = random_matrix(kind, HIDDEN, FFN, "columns", rng)
    x = rng.standard_normal((n_tokens, FFN), np.float32)
    assert relative_rms(kernels.matmul(x, matrix), x.astype(np.float64) @ matrix.float32().T) < 1e-6


def test_every_quant_and_special_scale() -> None:
    """All 16 nibbles and 256 int8 times subnormal, tiny, negative and largest scales; infinity and NaN come through."""
    rng = np.random.default_rng(0)
    scales = np.array([2**-24, 2**-14, -1.5, 65504, np.inf, np.nan], np.float16)
    for kind, width in ((Q4_0, 16), (Q8_0, 32)):
        quants = np.arange(6 * 8 * width, dtype=np.uint16).astype(np.uint8).reshape(48, width)
        blocks = np.concatenate([np.repeat(scales, 8).view(np.uint8).reshape(48, 2), quants], axis=1)
        matrix = Matrix(kind, (6, 256), pack(blocks, kind, (6, 256), "rows"), "rows")
        x = rng.standard_normal((1, 256), np.float32)
        with np.errstate(invalid="ignore"):  # infinity times zero
            expected = (x @ matrix.float32().T)[0]
        found = FastKernels(1).matmul(x, matrix)[0]
        np.testing.assert_allclose(found[:4], expected[:4], rtol=1e-4)
        assert not np.isfinite(found[4])
        assert np.isnan(found[5])


def test_what_is_not_packed_takes_numpy(kernels: FastKernels) -> None:
    """F32 and unpacked blocks give what plain numpy gives, as matrices and as experts."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, HIDDEN), np.float32)
    matrices = [Matrix.of(rng.standard_normal((FFN, HIDDEN), np.float32)) for _ in range(2)]
    down = random_matrix(Q8_0, HIDDEN, FFN, "ggml", rng)
    np.testing.assert_array_equal(kernels.matmul(x, matrices[0]), x @ matrices[0].float32().T)
    for n_tokens in (1, 2, 16):
        wave = [(0, Expert(*matrices, down)), (1, random_expert(Q4_0, rng))]
        found, n_zero = run_experts(kernels, n_tokens, wave)
        expected, expected_zero = run_experts(plain.PlainKernels(), n_tokens, wave)
        assert relative_rms(found, expected) < 2e-6
        assert n_zero == expected_zero


@pytest.mark.parametrize("kinds", [(Q4_0, Q4_0, Q4_0), (Q8_0, Q8_0, Q8_0), (Q4_0, Q8_0, Q8_0), (Q8_0, Q4_0, Q4_0)])
@pytest.mark.parametrize("activation", ["relu", "silu"])
@pytest.mark.parametrize("n_tokens", [1, 16])
def test_experts(kernels: FastKernels, kinds: tuple, activation: str, n_tokens: int) -> None:
    """Sum, count of zero gates and what was in `mixed` before are the reference's, mixed files too."""
    rng = np.random.default_rng(1)
    pools = [[random_expert(kind, rng) for kind in kinds] for _ in range(3)]
    wave = [(e, Expert(a.gate, b.up, c.down)) for e, (a, b, c) in zip((4, 0, 9), pools, strict=True)]
    found, n_zero = run_experts(kernels, n_tokens, wave, activation)
    expected, expected_zero = run_experts(plain.PlainKernels(), n_tokens, wave, activation)
    assert relative_rms(found, expected) < 2e-6
    assert n_zero == expected_zero
    assert (n_zero > 0) == (activation == "relu")


@pytest.mark.parametrize("kind", KINDS)
def test_one_token_equals_several(kind: GGMLQuantizationType) -> None:
    """A token's result by itself is that among others."""
    kernels, rng = FastKernels(1), np.random.default_rng(2)
    matrix = random_matrix(kind, FFN, HIDDEN, "rows", rng)
    x = rng.standard_normal((16, HIDDEN), np.float32)
    alone = np.concatenate([kernels.matmul(row, matrix) for row in np.split(x, 16)])
    assert relative_rms(kernels.matmul(x, matrix), alone) < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_a_shut_neuron_is_not_read(kernels: FastKernels, kind: GGMLQuantizationType) -> None:
    """
    NaN in the up rows of neurons whose gate is zero, other quants in their down columns, and NaN scales in a block of
    columns that is shut altogether change no bit of the result.
    """
    rng = np.random.default_rng(3)
    expert = random_expert(kind, rng)
    gate = expert.gate.float32().copy()
    z = np.random.default_rng(5).standard_normal((1, HIDDEN), np.float32)  # the token of run_experts
    gate[32:64] = -z  # a whole block shut
    blocks = quantize(gate, kind).reshape(-1).view(np.uint8)
    expert = expert._replace(gate=Matrix(kind, gate.shape, pack(blocks, kind, gate.shape, "rows"), "rows"))
    is_shut = (z @ expert.gate.float32().T)[0] <= 0
    assert is_shut[32:64].all()
    assert not is_shut.all()
    expected, n_zero = run_experts(kernels, 1, [(0, expert)])
    assert n_zero == is_shut.sum()

    width = 1 if kind is Q8_0 else 2
    up, down = expert.up.data.copy(), expert.down.data.copy()
    nan = np.float16(np.nan).view(np.uint16)
    up[FFN * HIDDEN // width :].view(np.uint16).reshape(FFN, -1)[is_shut] = nan
    down[: FFN * HIDDEN // width].reshape(FFN, -1)[is_shut] ^= 0x55
    down[FFN * HIDDEN // width :].view(np.uint16).reshape(-1, HIDDEN)[1] = nan
    poisoned_up, poisoned_down = Matrix(kind, (FFN, HIDDEN), up, "rows"), Matrix(kind, (HIDDEN, FFN), down, "columns")
    found, _ = run_experts(kernels, 1, [(0, Expert(expert.gate, poisoned_up, poisoned_down))])
    np.testing.assert_array_equal(found, expected)


def test_a_gate_that_is_no_number_shows() -> None:
    """NaN in an open path reaches the result: nothing is skipped for being NaN."""
    expert = random_expert(Q8_0, np.random.default_rng(3))
    data = expert.gate.data.copy()
    data[-2:] = np.float16(np.nan).tobytes()[0], np.float16(np.nan).tobytes()[1]
    found, _ = run_experts(FastKernels(1), 1, [(0, expert._replace(gate=Matrix(Q8_0, (FFN, HIDDEN), data, "rows")))])
    assert np.isnan(found).all()


@pytest.mark.parametrize(("n_heads", "n_kv", "dim"), [(12, 2, 128), (3, 3, 32), (5, 1, 96), (4, 2, 80)])
@pytest.mark.parametrize(("n_keys", "window"), [(1, None), (2, 1), (128, None), (129, 128), (400, None), (400, 130)])
def test_attention_of_one_token(
    kernels: FastKernels, n_heads: int, n_kv: int, dim: int, n_keys: int, window: int | None
) -> None:
    """One query over a cache with room behind the last key, which has no part in it."""
    rng = np.random.default_rng(n_keys)
    q = 3 * rng.standard_normal((1, n_heads, dim), np.float32)
    keys, values = rng.standard_normal((2, n_kv, n_keys + 3, dim), np.float32)
    keys[:, n_keys:] = values[:, n_keys:] = np.nan
    arguments = q, keys[:, :n_keys], values[:, :n_keys], np.array([n_keys - 1]), window
    assert relative_rms(kernels.attend(*arguments), plain.attend(*arguments)) < 2e-6


@pytest.mark.parametrize(("n_heads", "n_kv", "dim"), [(12, 2, 128), (3, 3, 32), (4, 2, 80)])
@pytest.mark.parametrize(("n_tokens", "n_before"), [(2, 0), (16, 3), (17, 0), (33, 500), (70, 1)])
@pytest.mark.parametrize("window", [None, 1, 20])
def test_attention_of_several_tokens(
    kernels: FastKernels, n_heads: int, n_kv: int, dim: int, n_tokens: int, n_before: int, window: int | None
) -> None:
    """Queries in tiles, whole and not, over a cache with room behind the last key, which has no part in it."""
    rng, n_keys = np.random.default_rng(n_tokens), n_before + n_tokens
    q = 3 * rng.standard_normal((n_tokens, n_heads, dim), np.float32)
    keys, values = rng.standard_normal((2, n_kv, n_keys + 5, dim), np.float32)
    keys[:, n_keys:] = values[:, n_keys:] = np.nan
    arguments = q, keys[:, :n_keys], values[:, :n_keys], np.arange(n_before, n_keys), window
    assert relative_rms(kernels.attend(*arguments), plain.attend(*arguments)) < 2e-6


def test_attention_with_scores_far_apart() -> None:
    """Scores of several hundred neither overflow nor lose the largest; a NaN key shows."""
    rng = np.random.default_rng(0)
    q = 100 * rng.standard_normal((1, 2, 32), np.float32)
    keys, values = rng.standard_normal((2, 1, 300, 32), np.float32)
    arguments = q, keys, values, np.array([299]), None
    assert relative_rms(FastKernels(1).attend(*arguments), plain.attend(*arguments)) < 1e-5
    keys[0, 140, 3] = np.nan
    assert np.isnan(FastKernels(1).attend(*arguments)).all()
    several = 100 * rng.standard_normal((3, 2, 32), np.float32), keys, values, np.arange(297, 300), None
    assert np.isnan(FastKernels(1).attend(*several)).all()
    keys[0, 140, 3] = 0
    assert relative_rms(FastKernels(1).attend(*several), plain.attend(*several)) < 1e-5


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="numba has one thread")
@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_threads_changes_no_bit(kind: GGMLQuantizationType) -> None:
    """Products, experts and attention, of one token and of several, are bit-identical on one thread and on two."""
    rng = np.random.default_rng(4)
    one, two = FastKernels(1), FastKernels(2)
    matrix, x = random_matrix(kind, 211, HIDDEN, "rows", rng), rng.standard_normal((1, HIDDEN), np.float32)
    np.testing.assert_array_equal(one.matmul(x, matrix), two.matmul(x, matrix))
    wave = [(e, random_expert(kind, rng)) for e in range(3)]
    np.testing.assert_array_equal(run_experts(one, 1, wave)[0], run_experts(two, 1, wave)[0])
    q, cache = rng.standard_normal((1, 6, 64), np.float32), rng.standard_normal((2, 700, 64), np.float32)
    arguments = q, cache, cache, np.array([699]), None
    np.testing.assert_array_equal(one.attend(*arguments), two.attend(*arguments))
    x = rng.standard_normal((37, HIDDEN), np.float32)
    np.testing.assert_array_equal(one.matmul(x, matrix), two.matmul(x, matrix))
    np.testing.assert_array_equal(run_experts(one, 37, wave)[0], run_experts(two, 37, wave)[0])
    arguments = rng.standard_normal((37, 6, 64), np.float32), cache, cache, np.arange(663, 700), 50
    np.testing.assert_array_equal(one.attend(*arguments), two.attend(*arguments))


def test_after_warming_up_nothing_is_compiled() -> None:
    """warm_up meets every type that the kernels are called with, read-only and strided arguments included."""
    FastKernels(1).warm_up()
    functions = {
        (module.__name__, name): value
        for module in list(sys.modules.values())
        if module and module.__name__.startswith(("reference_runtime.kernels.fast", "reference_runtime.packing"))
        for name, value in vars(module).items()
        if hasattr(value, "signatures")
    }
    before = {name: len(function.signatures) for name, function in functions.items()}
    assert sum(before.values()) >= 6
    rng = np.random.default_rng(0)
    wave = [(e, random_expert(kind, rng)) for e, kind in enumerate(KINDS)]
    for n_tokens in (1, 2, 16):
        run_experts(FastKernels(1), n_tokens, wave)
    x = rng.standard_normal((1, 2 * HIDDEN), np.float32)[:, ::2]
    x.flags.writeable = False
    wave[0][1].gate.data.flags.writeable = False
    FastKernels(1).matmul(x, wave[0][1].gate)
    cache = rng.standard_normal((2, 9, 32), np.float32)
    for keys in (cache, cache[:, :5]):
        n_keys = keys.shape[1]
        FastKernels(1).attend(x[:, :64].reshape(1, 2, 32), keys, keys, np.array([n_keys - 1]), None)
        FastKernels(1).attend(x[:, :128].reshape(2, 2, 32), keys, keys, np.arange(n_keys - 2, n_keys), 2)
    assert {name: len(function.signatures) for name, function in functions.items()} == before


READERS = """
import threading
import numpy as np
from reference_runtime.kernels.fast import FastKernels
from reference_runtime.matrix import Matrix
from reference_runtime.packing import Q4_0, pack, pack_into
blocks = np.random.default_rng(0).integers(0, 59, 18 * 64 * 8, np.uint8)
packed = pack(blocks, Q4_0, (64, 256), "columns")
wrong, stop = [], threading.Event()
def read():
    target = np.empty_like(blocks)
    while not stop.is_set():
        pack_into(blocks, target, Q4_0, (64, 256), "columns")
        if not np.array_equal(target, packed):
            wrong.append(1)
threads = [threading.Thread(target=read) for _ in range(2)]
matrix, x = Matrix(Q4_0, (64, 256), pack(blocks, Q4_0, (64, 256), "rows"), "rows"), np.ones((1, 256), np.float32)
kernels = FastKernels(2)
expected = kernels.matmul(x, matrix)
[t.start() for t in threads]
for _ in range(100):
    wrong += [1] * (not np.array_equal(kernels.matmul(x, matrix), expected))
stop.set()
[t.join() for t in threads]
import numba
print(numba.threading_layer(), len(wrong))
"""


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="numba has one thread")
def test_readers_pack_while_the_kernels_run_on_the_simplest_threads() -> None:
    """Numba's workqueue layer ends the process when two threads enter it; packing does not enter it."""
    environment = {**os.environ, "NUMBA_THREADING_LAYER": "workqueue"}
    run = subprocess.run([sys.executable, "-c", READERS], env=environment, capture_output=True, text=True, timeout=120)
    assert (run.stdout.split(), run.stderr) == (["workqueue", "0"], "")


def test_threads_that_numba_does_not_have() -> None:
    """A number of threads that cannot be is refused."""
    for n_threads in (0, numba.config.NUMBA_NUM_THREADS + 1):
        with pytest.raises(InputError, match="threads"):
            FastKernels(n_threads)
