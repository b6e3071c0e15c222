"""Our side of the comparison: any file through `open_model`, the forward pass in chunks."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reference_runtime.forward import OWN_ROUTER, Router, forward
from reference_runtime.kernels.plain import PlainKernels
from reference_runtime.kv_cache import KVCache
from reference_runtime.loading.weight_loading import ResidentExperts, load_dense, open_model
from reference_runtime.model import Kernels, Model
from reference_runtime.model_config import ModelConfig

CHUNK = 256  # tokens at a time: bounds the memory of attention's scores


def load(path: Path, kernels: Kernels | None = None) -> Model:
    """A model with all experts in memory, on plain numpy unless other kernels are given."""
    model_file = open_model(path)
    dense, experts = load_dense(model_file), ResidentExperts.read(model_file)
    return Model(model_file.config, dense, experts, kernels or PlainKernels())


def run(
    model: Model,
    token_ids: np.ndarray,
    router: Router = OWN_ROUTER,
    cache: KVCache | None = None,
    chunk: int = CHUNK,
) -> tuple[np.ndarray, np.ndarray]:
    """Logits (n, vocab) and expert ids (n, n_layers, k) of the next tokens, of a whole sequence without a cache."""
    cache = cache or KVCache(model.config, len(token_ids))
    parts = [forward(model, token_ids[at : at + chunk], cache, router=router) for at in range(0, len(token_ids), chunk)]
    return np.concatenate([part.logits for part in parts]), np.concatenate([part.expert_ids for part in parts])


def greedy(model: Model, prompt: Sequence[int], n_tokens: int) -> list[int]:
    """The n tokens of highest logit that follow a prompt: the prompt as a chunk, then one by one."""
    cache = KVCache(model.config, len(prompt) + n_tokens)
    best = [int(forward(model, np.array(prompt), cache).logits[-1].argmax())]
    while len(best) < n_tokens:
        best.append(int(forward(model, np.array(best[-1:]), cache).logits[-1].argmax()))
    return best


class Replay:
    """A router that takes the experts another engine chose, (n, n_layers, k); the weights are the model's own."""

    def __init__(self, expert_ids: np.ndarray) -> None:
        self._expert_ids = expert_ids

    def choose(
        self, layer: int, scores: np.ndarray, first_position: int, config: ModelConfig
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `reference_runtime.forward.Router`; only for weights that sum to 1 over the chosen."""
        ids = self._expert_ids[first_position : first_position + len(scores), layer]  # (n, k)
        top = np.take_along_axis(scores, ids, axis=-1).astype(np.float64)
        share = 1 / (1 + np.exp(-top)) if config.scoring == "sigmoid" else np.exp(top - top.max(axis=-1, keepdims=True))
        return ids, (share / share.sum(axis=-1, keepdims=True)).astype(np.float32)
