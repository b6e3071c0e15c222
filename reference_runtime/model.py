"""
What the forward pass runs on: dense weights in memory, experts from wherever they come, kernels that multiply.

The three are separate so that one forward pass serves all: a plain float32 model in memory, quantised weights, and
experts that stream from disk under a byte cap.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from reference_runtime.matrix import Matrix
from reference_runtime.model_config import ModelConfig


@dataclass(frozen=True, eq=False)
class DenseLayer:
    """What a layer keeps in memory; norms and router are float32 arrays."""

    attn_norm: np.ndarray  # (hidden,)
    q: Matrix  # (n_heads * head_dim, hidden)
    k: Matrix  # (n_kv_heads * head_dim, hidden)
    v: Matrix  # (n_kv_heads * head_dim, hidden)
    o: Matrix  # (hidden, n_heads * head_dim)
    ffn_norm: np.ndarray  # (hidden,)
    router: np.ndarray  # (n_experts, hidden)
    q_norm: np.ndarray | None = None  # (head_dim,) or (n_heads * head_dim,)
    k_norm: np.ndarray | None = None  # (head_dim,) or (n_kv_heads * head_dim,)


@dataclass(frozen=True, eq=False)
class DenseWeights:
    """Everything but the routed experts; `output` is the very object `token_embd` where the head is tied."""

    token_embd: Matrix  # (vocab, hidden)
    layers: tuple[DenseLayer, ...]
    output_norm: np.ndarray  # (hidden,)
    output: Matrix  # (vocab, hidden)

    @property
    def is_tied(self) -> bool:
        """Whether the embedding is the LM head too."""
        return self.output is self.token_embd


class Expert(NamedTuple):
    """The three matrices of one expert: down(activation(gate z) * (up z))."""

    gate: Matrix  # (ffn, hidden)
    up: Matrix  # (ffn, hidden)
    down: Matrix  # (hidden, ffn)


Wave = list[tuple[int, Expert]]


class ExpertSource(Protocol):
    """
    Where a layer's experts come from.  The calls of one layer: request, then waves to its end, once each.

    A row is the distinct experts that the chunk needs: in slot order for one token, ascending for several.
    """

    def request(self, layer: int, row: Sequence[int]) -> None:
        """The router has spoken: from here on the missing experts may be read."""
        ...

    def waves(self, layer: int, row: Sequence[int]) -> Iterator[Wave]:
        """
        The row's experts in the row's order, in as few lists as the memory allows; waits for those that are missing.

        The matrices of a list are valid until the next one is asked for.  Raises InputError when a read fails.
        """
        ...


class Kernels(Protocol):
    """The multiplications.  Implementations differ in speed and in the last bits, never in meaning."""

    def matmul(self, x: np.ndarray, matrix: Matrix) -> np.ndarray:
        """x @ matrix.T: float32 (n, columns) -> float32 (n, rows)."""
        ...

    def attend(
        self, q: np.ndarray, keys: np.ndarray, values: np.ndarray, positions: np.ndarray, window: int | None
    ) -> np.ndarray:
        """Causal grouped-query attention; see reference_runtime.kernels.plain.attend."""
        ...

    def add_experts(
        self,
        mixed: np.ndarray,
        z: np.ndarray,
        wave: Wave,
        expert_ids: np.ndarray,
        expert_weights: np.ndarray,
        activation: str,
    ) -> int:
        """
        mixed[t] += weight * down(activation(gate z[t]) * (up z[t])) for each expert of the wave in its order and each
        token t that chose it.  mixed, z: (n, hidden); expert_ids, expert_weights: (n, k).

        Returns how many gates of these choices are exactly zero after the activation.
        """
        ...


@dataclass(frozen=True, eq=False)
class Model:
    """A model that can run."""

    config: ModelConfig
    dense: DenseWeights
    experts: ExpertSource
    kernels: Kernels
