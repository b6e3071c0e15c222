"""A grid of two cells on a small random model, and spot checks that count how often they are taken."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from conftest import make_trace
from forward_oracle import SMALL, random_tokens, random_weights, vocabulary

from reference_runtime.training.export import Q8_0, write_gguf
from traces.store import write_trace

CONFIG = replace(SMALL, hidden_size=64, head_dim=32, expert_ffn_size=64, context_length=128)
N_TEXT = 60
ARENA_BYTES = 2**22  # of the spot checks here, whose times are compared with nothing
GRID = """
schema_version: 1
seed: 3
repeats: 1
models:
  small: {{path: {model}, text: [{text}]}}
cells:
  - {{model: small, prompt: 8, ram_cap: 470 kB, storage_limit: 20 MB/s, prefetch: none, threads: 1, n_warm_up: 2,
     n_counted: 9}}
  - {{model: small, state: 40, ram_cap: none, storage_limit: none, prefetch: pre-attention, threads: 1, n_warm_up: 1,
     n_counted: 16}}
"""
FROM_PROMPT, FROM_STATE = "small-p8-470kB-20MBs-none-t1-r0", "small-c40-all-free-pre-t1-r0"


def write_grid(folder: Path) -> Path:
    """The grid's file beside its model and a text of token ids."""
    write_gguf(random_weights(CONFIG), vocabulary(CONFIG.vocab_size), folder / "small.gguf", Q8_0)
    write_text(folder / "text.parquet", random_tokens(N_TEXT, CONFIG).astype("int32"))
    file = folder / "grid.yaml"
    file.write_text(GRID.format(model=folder / "small.gguf", text=folder / "text.parquet"))
    return file


def write_text(path: Path, tokens: np.ndarray) -> None:
    """A trace that carries these token ids (n,)."""
    ids = [[[0, 1]] * CONFIG.n_layers] * len(tokens)
    write_trace(make_trace(ids, CONFIG.n_experts, token_id=tokens), path)


class NumberedChecks:
    """Spot checks that count how often they were taken, by the number of threads."""

    def __init__(self, file: Path | None, directory: Path, threads: Sequence[int], arena_bytes: int | None) -> None:
        self._threads, self._n_takes = threads, 0
        assert arena_bytes is None  # as many as the probe's

    def __enter__(self) -> "NumberedChecks":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def take(self) -> dict[str, float]:
        """The count, for each number of threads."""
        self._n_takes += 1
        return {str(n): self._n_takes for n in self._threads}
