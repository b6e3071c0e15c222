"""A text as token ids: from a UTF-8 file through the model's tokenizer, or from a file of ids."""

import json
from pathlib import Path
from tokenize import TokenError

import numpy as np

from moeplan.errors import InputError
from moeplan.files import read_text
from reference_runtime.loading.tokenizer import Tokenizer

MAX_TEXT_BYTES = 2**28
ID_SUFFIXES = (".npy", ".json")  # files of token ids; all others are text


def is_token_file(path: Path) -> bool:
    """Whether a file's name says that it holds token ids."""
    return path.suffix in ID_SUFFIXES


def read_token_ids(path: Path, vocab_size: int | None = None) -> np.ndarray:
    """
    The token ids of an .npy of one row or of a JSON list, int64 (n,), at least one.

    Raises InputError for a file that is neither and for ids outside the vocabulary, where that is known.
    """
    array = _load(path) if path.suffix == ".npy" else _parse(path)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.size == 0:
        must = "must be one row of whole numbers, at least one"
        raise InputError(str(path), must, f"{array.dtype} {array.shape}")
    if vocab_size is not None and (array.min() < 0 or int(array.max()) >= vocab_size):
        raise InputError(str(path), f"must hold ids of 0 to {vocab_size - 1}", f"{array.min()} to {array.max()}")
    return array.astype(np.int64)


def text_tokens(path: Path, tokenizer: Tokenizer, n_tokens: int | None = None) -> np.ndarray:
    """The first n_tokens token ids of a text or of a file of ids (ID_SUFFIXES), int64 (n,). Raises InputError."""
    if is_token_file(path):
        return read_token_ids(path, tokenizer.vocab_size)[:n_tokens]
    return np.array(tokenizer.encode(read_text(path, MAX_TEXT_BYTES)), dtype=np.int64)[:n_tokens]


def _load(path: Path) -> np.ndarray:
    try:
        with path.open("rb") as file:  # the format's own reader: no pickle, no archive of arrays under another name
            return np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError, TokenError, MemoryError) as error:
        raise InputError(str(path), "must be an .npy of token ids", error) from error


def _parse(path: Path) -> np.ndarray:
    try:
        ids = json.loads(read_text(path, MAX_TEXT_BYTES))
    except (ValueError, RecursionError) as error:
        raise InputError(str(path), "must be a JSON list of token ids", error) from error
    if not isinstance(ids, list) or not all(type(token) is int and abs(token) < 2**31 for token in ids):
        raise InputError(str(path), "must be one JSON list of whole numbers", type(ids).__name__)
    return np.array(ids, dtype=np.int64)
