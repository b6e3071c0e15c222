"""Keys and values of the tokens so far."""

import numpy as np

from moeplan.errors import InputError
from reference_runtime.model_config import ModelConfig


def check_capacity(config: ModelConfig, n_tokens: int) -> None:
    """Raises InputError where a sequence has no token or more than the model's context length."""
    if not 0 < n_tokens <= config.context_length:
        raise InputError("context", f"must be 1 to {config.context_length} tokens", n_tokens, "shorten the request")


class KVCache:
    """
    Keys and values of the tokens so far, all layers: float32 (n_layers, kv, capacity, dim).

    A sliding layer's old tokens stay in it; the window is the attention's business.
    """

    def __init__(self, config: ModelConfig, capacity: int) -> None:
        """Raises InputError where the capacity is above the model's context length."""
        check_capacity(config, capacity)
        shape = (config.n_layers, config.n_kv_heads, capacity, config.head_dim)
        self.keys, self.values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self.capacity, self.n_tokens = capacity, 0

    def extend(self, layer: int, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Store a chunk's k and v, each (n, kv, dim), behind the others; all of the layer's, each (kv, s, dim)."""
        end = self.n_tokens + len(k)
        self.keys[layer, :, self.n_tokens : end] = k.transpose(1, 0, 2)
        self.values[layer, :, self.n_tokens : end] = v.transpose(1, 0, 2)
        return self.keys[layer, :, :end], self.values[layer, :, :end]

    def rewind(self, n_tokens: int) -> None:
        """Forget all but the first n_tokens, so that another continuation can follow."""
        if not 0 <= n_tokens <= self.n_tokens:
            raise InputError("context", f"must be 0 to the {self.n_tokens} tokens there are", n_tokens)
        self.n_tokens = n_tokens
