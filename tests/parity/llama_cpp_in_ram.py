"""
Decode of llama.cpp with all weights in RAM, at several contexts and thread counts, in short turns.

The longest prompt is read once, a context is its beginning: its keys and values are kept and put back before a turn, so
that all turns of a context start from the same state.
"""

import ctypes
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import llama_cpp
import numpy as np

from parity.llama_cpp_engine import patched_defaults
from parity.undisturbed import TURN_S, Turn

ROOM = (
    64  # tokens after a context; llama.cpp computes attention over multiples of 256 keys, so all of them cost the same
)
MIN_TOKENS = 4  # that count in a turn; otherwise it lasts TURN_S, as a kernel's does, since caches warm up
States = Mapping[int, "ctypes.Array[ctypes.c_uint8]"]  # context -> keys and values of its tokens


class InRam:
    """A model in llama.cpp, with room for so many tokens."""

    def __init__(self, path: Path, n_ctx: int, repack: bool) -> None:
        self._states: States = {}
        self._tokens: Sequence[int] = ()
        with patched_defaults(None, repack):
            self._llama = llama_cpp.Llama(
                model_path=str(path), n_ctx=-(-n_ctx // 256) * 256, n_threads=2, n_threads_batch=2, flash_attn=False,
                verbose=False,
            )  # fmt: skip

    def read(self, tokens: Sequence[int], contexts: Sequence[int], states: States | None = None) -> States:
        """
        Read the longest context and keep every context's state; or take those of the same model, weights in another
        order, which are the same tokens' up to rounding.  Tokens are the prompt and what is decoded after it.
        """
        self._tokens = tokens
        if states is None:
            kept, n_read = {}, 0
            self._llama.reset()
            for context in sorted(contexts):
                self._llama.eval(list(tokens[n_read:context]))
                kept[context], n_read = self._state(), context
            states = kept
        self._states = states
        return states

    def turns(self, threads: Sequence[int]) -> dict[tuple[int, int], Turn]:
        """A turn at every (context, threads)."""
        return {(context, n): partial(self.turn, context, n) for context in self._states for n in threads}

    def turn(self, context: int, n_threads: int) -> list[float]:
        """Seconds of a few tokens; the first one, with other threads and a new state, is not counted."""
        llama_cpp.llama_set_n_threads(self._llama.ctx, n_threads, n_threads)
        state, seconds = self._states[context], list[float]()
        if llama_cpp.llama_state_seq_set_data(self._llama.ctx, state, len(state), 0) != len(state):
            raise SystemExit("llama.cpp did not take the state back")
        self._llama.n_tokens = context
        for token in self._tokens[context : context + ROOM]:
            start = time.perf_counter()
            self._llama.eval([token])
            seconds.append(time.perf_counter() - start)
            if len(seconds) > MIN_TOKENS and sum(seconds[1:]) > TURN_S:
                break
        return seconds[1:]

    def close(self) -> None:
        """Free the model."""
        self._llama.close()

    def _state(self) -> "ctypes.Array[ctypes.c_uint8]":
        state = (ctypes.c_uint8 * llama_cpp.llama_state_seq_get_size(self._llama.ctx, 0))()
        llama_cpp.llama_state_seq_get_data(self._llama.ctx, state, len(state), 0)
        return state


def distinct_tokens(vocab_size: int, n_tokens: int) -> list[int]:
    """Random ids of a vocabulary, without repeats as far as it has enough."""
    rng = np.random.default_rng(0)
    laps = [rng.permutation(vocab_size) for _ in range(-(-n_tokens // vocab_size))]
    return np.concatenate(laps)[:n_tokens].tolist()
