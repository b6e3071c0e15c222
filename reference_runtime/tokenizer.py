"""The byte-level BPE tokenizer that a GGUF carries in its keys, run by the `tokenizers` library."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFReader, TokenType
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from moeplan.errors import InputError, nearest
from reference_runtime.gguf_weights import open_gguf, value_of

QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PRE_TYPES = ("gpt-2", "qwen2")


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """
    Text to token ids and back.

    bos_id is put before a text where the file says so (add_bos); eos_id ends a generation; -1: there is none.
    n_bytes: (vocab,) UTF-8 bytes of each token, 0 for control tokens.
    """

    library: LibraryTokenizer
    bos_id: int
    eos_id: int
    add_bos: bool
    n_bytes: np.ndarray

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return len(self.n_bytes)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; a control token's own spelling becomes that token."""
        ids = self.library.encode(text, add_special_tokens=False).ids
        return [self.bos_id, *ids] if self.add_bos and self.bos_id >= 0 else ids

    def decode(self, ids: list[int]) -> str:
        """The text of token ids, control tokens left out; a cut character becomes U+FFFD."""
        return self.library.decode(ids, skip_special_tokens=True)


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF file. Raises InputError for an absent, damaged or unknown one."""
    return tokenizer_of(open_gguf(Path(path)), Path(path))


def tokenizer_of(reader: GGUFReader, path: Path) -> Tokenizer:
    """The tokenizer of an open GGUF file. Raises InputError."""

    def key(name: str, kind: type, default: object = None) -> object:
        return value_of(reader, path, f"tokenizer.ggml.{name}", kind, default)

    model, pre_type = key("model", str), key("pre", str)
    if model != "gpt2":
        raise InputError(f"{path}: tokenizer.ggml.model", "must be 'gpt2' (byte-level BPE)", repr(model))
    if pre_type not in PRE_TYPES:
        raise InputError(
            f"{path}: tokenizer.ggml.pre", "must be a known one", repr(pre_type), nearest(str(pre_type), PRE_TYPES)
        )
    tokens: list[str] = key("tokens", list)  # type: ignore[assignment]
    merges: list[str] = key("merges", list)  # type: ignore[assignment]
    kinds: list[int] = key("token_type", list, [int(TokenType.NORMAL)] * len(tokens))  # type: ignore[assignment]
    if len(set(tokens)) != len(tokens) or len(kinds) != len(tokens):
        raise InputError(f"{path}: tokenizer.ggml.tokens", "must be distinct, each with a token_type", len(kinds))
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == TokenType.CONTROL]
    return Tokenizer(
        library=_library(tokens, merges, special, str(pre_type), path),
        bos_id=int(key("bos_token_id", int, -1)),  # type: ignore[call-overload]
        eos_id=int(key("eos_token_id", int, -1)),  # type: ignore[call-overload]
        add_bos=bool(key("add_bos_token", bool, False)),
        n_bytes=np.array([0 if token in special else len(token) for token in tokens]),  # a character is a byte here
    )


def _library(tokens: list[str], merges: list[str], special: list[str], pre_type: str, path: Path) -> LibraryTokenizer:
    ids = {token: i for i, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    for merge, (left, right) in zip(merges, pairs, strict=True):
        if left not in ids or right not in ids or left + right not in ids:
            raise InputError(f"{path}: tokenizer.ggml.merges", "must join two known tokens to a third", repr(merge))
    library = LibraryTokenizer(models.BPE(ids, pairs))
    library.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    if pre_type == "qwen2":
        library.normalizer = normalizers.NFC()
        split = pre_tokenizers.Split(Regex(QWEN2_PATTERN), behavior="isolated")
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        library.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
    else:
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # the GPT-2 pattern is built in
    library.decoder = decoders.ByteLevel()
    return library
