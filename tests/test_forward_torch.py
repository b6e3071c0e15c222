"""The numpy forward pass against the PyTorch training network, and checkpoints there and back; needs PyTorch."""

from pathlib import Path

import numpy as np
import pytest
from forward_oracle import plain_model, vocabulary

torch = pytest.importorskip("torch")

from reference_runtime.forward import forward  # noqa: E402  (only where PyTorch is)
from reference_runtime.kv_cache import KVCache  # noqa: E402
from reference_runtime.loading.gguf_weights import read_weights  # noqa: E402
from reference_runtime.training import export, train  # noqa: E402
from reference_runtime.training.network import Network, NetworkConfig  # noqa: E402

CONFIG = NetworkConfig(n_layers=4, hidden_size=64, expert_ffn_size=32, n_experts=16, vocab_size=80)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of a random network."""
    torch.manual_seed(0)
    network = Network(CONFIG)
    path = tmp_path / "random.pt"
    train.save(path, network, train.optimisers(network, 0.01, 0.01), {"n_tokens_seen": 5, "n_steps": 1})
    return path


def test_f32_export_equals_the_network(checkpoint: Path, tmp_path: Path) -> None:
    """An F32 GGUF of a checkpoint gives the network's logits to 1e-5 relative and its expert ids."""
    gguf = tmp_path / "f32.gguf"
    export.write_gguf(export.checkpoint_weights(checkpoint), vocabulary(80), gguf, export.F32)
    weights = read_weights(gguf)
    tokens = np.random.default_rng(0).integers(0, 80, 200)
    network, _ = train.load(checkpoint)
    with torch.no_grad():
        logits, _, _, routing = network(torch.tensor(tokens)[None])
    result = forward(plain_model(weights), tokens, KVCache(weights.config, 200))
    expected = logits[0].numpy()
    assert np.linalg.norm(result.logits - expected) < 1e-5 * np.linalg.norm(expected)
    np.testing.assert_array_equal(result.expert_ids, torch.stack(routing, 1).numpy())


def test_checkpoint_from_gguf_trains_on(checkpoint: Path, tmp_path: Path) -> None:
    """GGUF -> checkpoint gives a network that train.load takes, with the very weights of the file."""
    gguf, back = tmp_path / "q8.gguf", tmp_path / "back.pt"
    export.main(["gguf", str(checkpoint), str(_tokenizer_json(tmp_path)), str(gguf)])
    export.main(["checkpoint", str(gguf), str(back)])
    network, state = train.load(back)
    assert network.config == CONFIG
    assert state["progress"] == {}
    again = export.checkpoint_weights(back)
    for name, array in export.named_tensors(read_weights(gguf)).items():
        np.testing.assert_array_equal(export.named_tensors(again)[name], array)


def _tokenizer_json(folder: Path) -> Path:
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(vocabulary(80).tokens)}, []))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"
