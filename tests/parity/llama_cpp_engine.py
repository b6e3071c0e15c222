"""llama.cpp through llama-cpp-python on the CPU; nothing rounds: no flash attention, F32 keys and values."""

import ctypes
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp._ggml import libggml

F32_CACHE = 0  # GGML_TYPE_F32
LOG_ERROR = 4  # GGML_LOG_LEVEL_ERROR
BATCH = 512  # tokens at a time
_TENSOR = [ctypes.c_void_p]
libggml.ggml_get_name.argtypes, libggml.ggml_get_name.restype = _TENSOR, ctypes.c_char_p
libggml.ggml_get_data.argtypes, libggml.ggml_get_data.restype = _TENSOR, ctypes.c_void_p
libggml.ggml_nelements.argtypes, libggml.ggml_nelements.restype = _TENSOR, ctypes.c_int64


@llama_cpp.llama_log_callback
def _log_errors(level: int, text: bytes, _: Any) -> None:
    if level == LOG_ERROR:
        sys.stderr.write(text.decode(errors="replace"))


llama_cpp.llama_log_set(_log_errors, ctypes.c_void_p(0))


class LlamaCpp:
    """A model in llama.cpp with room for n_tokens; repack: weights in llama.cpp's own order for speed."""

    def __init__(self, path: Path, n_tokens: int, repack: bool = True) -> None:
        self.experts: dict[int, list[np.ndarray]] = {}  # layer -> per chunk (n, n_experts), best first
        self._n_experts = 0
        self._callback = llama_cpp.ggml_backend_sched_eval_callback(self._see)  # kept alive by this object
        patched = _Patch(self._callback, repack)
        with patched:
            self._llama = llama_cpp.Llama(
                model_path=str(path),
                n_ctx=max(256, -(-n_tokens // 256) * 256),
                n_batch=BATCH,
                n_ubatch=BATCH,
                n_threads=1,
                n_threads_batch=1,
                logits_all=True,
                flash_attn=False,
                type_k=F32_CACHE,
                type_v=F32_CACHE,
                verbose=False,
            )
        architecture = self._llama.metadata["general.architecture"]
        self._n_experts = int(self._llama.metadata[f"{architecture}.expert_count"])

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """Logits of a new sequence, float32 (n, vocab)."""
        self._llama.reset()
        self.experts.clear()
        self._llama.eval([int(token) for token in token_ids])
        return self._llama.scores[: len(token_ids)].copy()

    def expert_ids(self, top_k: int) -> np.ndarray:
        """The experts that the last sequence chose, best first: (n, n_layers, top_k)."""
        layers = [np.concatenate(self.experts[layer])[:, :top_k] for layer in sorted(self.experts)]
        return np.stack(layers, axis=1)

    def greedy(self, prompt: Sequence[int], n_tokens: int) -> list[int]:
        """The n tokens of highest logit that follow a prompt, one after the other."""
        best = [int(self.logits(prompt)[-1].argmax())]
        while len(best) < n_tokens:
            self._llama.eval(best[-1:])
            best.append(int(self._llama.scores[len(prompt) + len(best) - 1].argmax()))
        return best

    def close(self) -> None:
        """Free the model."""
        self._llama.close()

    def _see(self, tensor: int, ask: bool, _: Any) -> bool:
        name = libggml.ggml_get_name(tensor)
        found = re.fullmatch(rb"ffn_moe_argsort-(\d+)", name or b"")
        if ask:
            return found is not None
        if found:
            n = libggml.ggml_nelements(tensor)
            data = (ctypes.c_int32 * n).from_address(libggml.ggml_get_data(tensor))
            order = np.array(data, dtype=np.int64).reshape(-1, self._n_experts)
            self.experts.setdefault(int(found[1]), []).append(order)
        return True


class _Patch:
    """Llama takes neither a callback nor use_extra_bufts, so its defaults carry them while it starts."""

    def __init__(self, callback: Any, repack: bool) -> None:
        self._callback, self._repack = callback, repack
        self._defaults = llama_cpp.llama_context_default_params, llama_cpp.llama_model_default_params

    def __enter__(self) -> None:
        context_params, model_params = (default() for default in self._defaults)
        if self._callback is not None:
            context_params.cb_eval = self._callback
        model_params.use_extra_bufts = self._repack
        _module().llama_context_default_params = lambda: context_params
        _module().llama_model_default_params = lambda: model_params

    def __exit__(self, *_: object) -> None:
        _module().llama_context_default_params, _module().llama_model_default_params = self._defaults


def patched_defaults(callback: Any, repack: bool) -> _Patch:
    """A context in which llama_cpp.Llama starts with a callback (or None) and with or without repacked weights."""
    return _Patch(callback, repack)


def _module() -> Any:
    return llama_cpp.llama_cpp


def llama_cpp_tokens(path: Path, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of texts under llama.cpp's reading of the file's tokenizer."""
    llama = llama_cpp.Llama(model_path=str(path), vocab_only=True, verbose=False)
    ids = [llama.tokenize(text.encode(), add_bos=False, special=True) for text in texts]
    llama.close()
    return ids


def version() -> str:
    """The package with its version."""
    return f"llama-cpp-python {llama_cpp.__version__}"
