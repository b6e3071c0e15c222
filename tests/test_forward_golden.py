"""The numpy forward pass gives what the PyTorch network gave for a small random 8-layer Q8_0 model (see fixtures)."""

from pathlib import Path

import numpy as np
import pytest
from forward_oracle import plain_model

from reference_runtime.forward import forward
from reference_runtime.kv_cache import KVCache
from reference_runtime.loading.gguf_weights import read_weights

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.mark.parametrize("chunk", [48, 1, 7])
def test_equals_the_golden_logits(chunk: int) -> None:
    """Logits within 1e-5 relative and every expert id the same, in whatever chunks the tokens come."""
    weights = read_weights(FIXTURES / "forward_golden.gguf")
    golden = np.load(FIXTURES / "forward_golden.npz")
    tokens = golden["token_ids"]
    model, cache = plain_model(weights), KVCache(weights.config, len(tokens))
    parts = [forward(model, tokens[at : at + chunk], cache) for at in range(0, len(tokens), chunk)]
    logits, ids = (np.concatenate([getattr(part, field) for part in parts]) for field in ("logits", "expert_ids"))
    assert np.abs(logits - golden["logits"]).max() < 1e-5 * np.abs(golden["logits"]).max()
    assert np.linalg.norm(logits - golden["logits"]) < 1e-5 * np.linalg.norm(golden["logits"])
    np.testing.assert_array_equal(ids, golden["expert_ids"])


def test_the_golden_model_uses_all_of_itself() -> None:
    """The fixture tells something: every expert is chosen somewhere and the layers route differently."""
    ids = np.load(FIXTURES / "forward_golden.npz")["expert_ids"]
    assert set(np.unique(ids)) == set(range(8))
    assert len({ids[:, layer].tobytes() for layer in range(ids.shape[1])}) == ids.shape[1]
