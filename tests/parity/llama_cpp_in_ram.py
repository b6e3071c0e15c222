"""
Decode speed of llama.cpp with all weights in RAM, at several contexts and thread counts in one process.

The longest prompt is read once, a context is its beginning; after each block of decode tokens the cache is rolled back,
so that all blocks of a context start from the same keys and values, and thread counts alternate.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import llama_cpp
import numpy as np

from parity.llama_cpp_engine import patched_defaults
from parity.undisturbed import MOST_DISTURBED_FRAC, favoured, others_busy_s

N_BLOCK = 8  # decode tokens of a block
N_BLOCKS = 5  # undisturbed blocks wanted
N_MOST_BLOCKS = 12  # then the least disturbed ones count
Speeds = dict[tuple[int, int], list[float]]  # (context, threads) -> tokens/s of the blocks that count


class InRam:
    """A model in llama.cpp, with room for so many tokens."""

    def __init__(self, path: Path, n_ctx: int, repack: bool) -> None:
        with patched_defaults(None, repack):
            self._llama = llama_cpp.Llama(
                model_path=str(path), n_ctx=-(-n_ctx // 256) * 256, n_threads=2, n_threads_batch=2, flash_attn=False,
                verbose=False,
            )  # fmt: skip

    def speeds(self, tokens: Sequence[int], contexts: Sequence[int], threads: Sequence[int]) -> Speeds:
        """Tokens/s of N_BLOCKS blocks for each context and number of threads."""
        result: Speeds = {}
        self._llama.reset()
        self._llama.eval(list(tokens[: max(contexts)]))  # touches the weights too, so that no fault is timed
        for context in sorted(contexts, reverse=True):
            blocks: dict[int, list[tuple[float, float]]] = {n: [] for n in threads}
            while any(self._wanted(blocks[n]) for n in threads):
                for n in threads:
                    if self._wanted(blocks[n]):
                        blocks[n].append(self._block(tokens, context, n))
            for n in threads:
                best = sorted(blocks[n])[:N_BLOCKS]
                result[context, n] = [speed for _, speed in best]
        return result

    def close(self) -> None:
        """Free the model."""
        self._llama.close()

    def _wanted(self, blocks: list[tuple[float, float]]) -> bool:
        quiet = sum(others_frac <= MOST_DISTURBED_FRAC for others_frac, _ in blocks)
        return quiet < N_BLOCKS and len(blocks) < N_MOST_BLOCKS

    def _block(self, tokens: Sequence[int], context: int, n_threads: int) -> tuple[float, float]:
        """(share of a core that others used, tokens/s); the first token after a change of threads is not counted."""
        self._llama.n_tokens = context
        llama_cpp.llama_set_n_threads(self._llama.ctx, n_threads, n_threads)
        seconds, others, began = [], others_busy_s(), time.perf_counter()
        with favoured():
            for token in tokens[context : context + N_BLOCK + 1]:
                start = time.perf_counter()
                self._llama.eval([token])
                seconds.append(time.perf_counter() - start)
        self._llama.n_tokens = context
        others_frac = (others_busy_s() - others) / (time.perf_counter() - began)
        return others_frac, 1 / median(seconds[1:])


def distinct_tokens(vocab_size: int, n_tokens: int) -> list[int]:
    """Random ids of a vocabulary, without repeats as far as it has enough."""
    rng = np.random.default_rng(0)
    laps = [rng.permutation(vocab_size) for _ in range(-(-n_tokens // vocab_size))]
    return np.concatenate(laps)[:n_tokens].tolist()
