"""
Our forward pass gives the logits that llama.cpp and transformers gave for random models; see tests/parity.

The weights come from a seed and the files are written anew, so this also holds the loaders to both formats.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from parity.golden import GoldenCase, golden_cases
from parity.model_files import write_folder, write_gguf
from parity.ours import load, run
from parity.rounded_activations import rounded
from parity.table import EXACT, relative_error

from reference_runtime.kv_cache import KVCache

CASES = golden_cases()
SMALL = [case for case in CASES.values() if case.first == 0]
EDGE = CASES["window_edge"]


def expected(case: GoldenCase) -> np.ndarray:
    """The stored logits, (n, vocab)."""
    with np.load(case.fixture) as golden:
        return golden["logits"]


@pytest.mark.parametrize("name", CASES)
def test_seed_names_the_same_weights(name: str) -> None:
    """The random weights are, bit by bit, those that the engines ran."""
    with np.load(CASES[name].fixture) as golden:
        assert str(golden["weights_digest"]) == CASES[name].model.digest()


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_gguf_gives_the_golden_logits(case: GoldenCase, tmp_path: Path) -> None:
    """Through a GGUF of any family the logits are within 1e-5 of the other engine's."""
    model = load(write_gguf(case.model, tmp_path / "model.gguf"))
    assert relative_error(run(model, case.token_ids)[0], expected(case)) < EXACT


@pytest.mark.parametrize("name", ["olmoe", "qwen3moe", "mixtral"])
def test_safetensors_give_the_golden_logits(name: str, tmp_path: Path) -> None:
    """Through a safetensors folder with the published names too."""
    case = CASES[name]
    model = load(write_folder(case.model, tmp_path / name))
    assert relative_error(run(model, case.token_ids)[0], expected(case)) < EXACT


def test_window_is_4096_tokens_with_the_query_itself(tmp_path: Path) -> None:
    """Across position 4096 the logits are llama.cpp's; a window one shorter or longer is seen at once."""
    model = load(write_gguf(EDGE.model, tmp_path / "model.gguf"))

    cache = KVCache(model.config, len(EDGE.token_ids))
    run(model, EDGE.token_ids[: EDGE.first], cache=cache)  # no window of about 4096 shows up to here

    def error(window: int) -> float:
        cache.rewind(EDGE.first)
        other = replace(model, config=replace(model.config, window=window))
        return relative_error(run(other, EDGE.token_ids[EDGE.first :], cache=cache)[0], expected(EDGE))

    assert error(4096) < EXACT
    assert error(4095) > 10 * EXACT
    assert error(4097) > 10 * EXACT


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("sigmoid_hybrid_tied", {"scoring": "softmax"}),
        ("sigmoid_hybrid_tied", {"nope_period": None}),
        ("sigmoid_hybrid_tied", {"pre_attention_router": False}),
        ("sigmoid_hybrid_tied", {"activation": "silu"}),
        ("softmax_rope_untied", {"normalised": False}),
        ("softmax_rope_untied", {"rope_style": "interleaved"}),
        ("olmoe", {"normalised": True}),
        ("qwen3moe", {"normalised": False}),
        ("mixtral", {"rope_style": "neox"}),
    ],
    ids=str,
)
def test_golden_logits_tell_a_wrong_detail(name: str, change: dict[str, object], tmp_path: Path) -> None:
    """The check is not blind: with one detail wrong the error is above 1e-2."""
    case = CASES[name]
    model = load(write_gguf(case.model, tmp_path / "model.gguf"))
    wrong = replace(model, config=replace(model.config, **change))
    assert relative_error(run(wrong, case.token_ids)[0], expected(case)) > 1e-2


def test_activations_are_rounded_as_q8_0_does() -> None:
    """What stands in for llama.cpp's rounding is the `gguf` package's Q8_0, zeros and blocks of zeros included."""
    x = np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32) * np.float32(3)
    x[0], x[1, :32], x[2, 5] = 0, 0, 0
    there_and_back = dequantize(quantize(x, GGMLQuantizationType.Q8_0), GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(rounded(x), there_and_back)
