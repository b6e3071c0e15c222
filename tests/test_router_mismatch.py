"""The router mismatch: what is compared, against the model's own choices and by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moeplan.errors import InputError
from reference_runtime.forward import forward
from reference_runtime.kv_cache import KVCache
from reference_runtime.matrix import Matrix
from reference_runtime.model import Model
from reference_runtime.quality import router_mismatch
from reference_runtime.quality.table import TextOptions, resident_model
from reference_runtime.synthetic_model import Q8_0, write_synthetic
from simulator.model.catalog import load_model_spec

OPTIONS = TextOptions(n_context=8, window_tokens=24)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A small random model: 3 layers, 128 tokens, 32 experts of which 4 a token."""
    path: Path = tmp_path_factory.mktemp("mismatch") / "small.gguf"
    spec = load_model_spec("tiny-smallthinker").model_copy(update={"n_layers": 3, "vocab_size": 128})
    write_synthetic(spec, path, Q8_0)
    return resident_model(path)


def text(n: int) -> np.ndarray:
    """Random token ids."""
    return np.random.default_rng(0).integers(0, 128, n)


def test_mismatch_by_hand() -> None:
    """Two tokens, one layer: {0, 1} against {1, 2} and {3, 4} against {4, 3}."""
    own, other = np.array([[[0, 1]], [[3, 4]]]), np.array([[[1, 2]], [[4, 3]]])
    found = router_mismatch.mismatch(own, other)
    assert found.overlap.tolist() == [0.75]
    assert found.same_set.tolist() == [0.5]
    assert found.same_first.tolist() == [0]
    assert found.chance.tolist() == [0]


def test_choices_are_those_of_the_model_itself(model: Model) -> None:
    """x is what forward chose; y and z are what it chooses in layer 0 when its router stands after attention."""
    tokens = text(40)
    found = router_mismatch.choices(model, tokens)
    own = forward(model, tokens, KVCache(model.config, 40))
    assert np.array_equal(found.x, own.expert_ids)
    for state, ids in {"residual": found.y, "normed": found.z}.items():
        moved = replace(model, config=replace(model.config, pre_attention_router=False, post_attention_input=state))
        assert np.array_equal(forward(moved, tokens, KVCache(moved.config, 40)).expert_ids[:, 0], ids[:, 0])
    assert not np.array_equal(found.x, found.y)
    assert (found.attention_size > 0).all()


def test_without_attention_there_is_no_mismatch(model: Model) -> None:
    """With output matrices of zeros y is x: the same experts, and running on y gives the same perplexity."""
    zero = Matrix.of(np.zeros(model.dense.layers[0].o.shape, dtype=np.float32))
    layers = tuple(replace(layer, o=zero) for layer in model.dense.layers)
    still = replace(model, dense=replace(model.dense, layers=layers))
    found = router_mismatch.choices(still, text(40))
    assert (router_mismatch.mismatch(found.x, found.y).same_set == 1).all()
    assert (found.attention_size == 0).all()
    x, y, _, by_chance = router_mismatch.choice_quality(still, [text(60)], None, OPTIONS)
    assert y.quality == x.quality
    assert by_chance.quality != x.quality


def test_the_mismatch_table_has_a_row_for_each_layer(model: Model) -> None:
    """Layers in order; the states' means below them."""
    table = router_mismatch.mismatch_table(router_mismatch.choices(model, text(40)))
    rows = [line.split()[0] for line in table.splitlines() if line]
    assert rows[2:5] == ["0", "1", "2"]
    assert rows.count("y") >= 1


def test_a_post_attention_model_has_no_mismatch_to_measure(model: Model) -> None:
    """One line instead of a table about nothing."""
    moved = replace(model, config=replace(model.config, pre_attention_router=False))
    with pytest.raises(InputError, match="must have a pre-attention router"):
        router_mismatch.choices(moved, text(4))
