"""
A model's tokenizer, run by the `tokenizers` library: the byte-level BPE in the keys of a GGUF, or a tokenizer.json.

The pre-tokenizer of a GGUF is known by name only; here are those of SmallThinker and Qwen (qwen2), OLMoE (olmo, which
llama.cpp splits as GPT-2 does) and our own models (gpt-2).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import TokenType
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from moeplan.errors import InputError, nearest
from moeplan.files import read_text
from simulator.model.imports.gguf_header import GgufHeader, read_header
from simulator.model.imports.gguf_split import shard_paths

QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PRE_TYPES = ("gpt-2", "olmo", "qwen2")
COMPOSES_ACCENTS = ("olmo", "qwen2")  # Unicode NFC first, as their tokenizer.json says
MAX_JSON_BYTES = 2**26  # a tokenizer.json of 150,000 tokens has some 11 MB
GIVE_IDS = "give token ids instead of a text: --token-ids FILE"


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
    """
    The tokenizer of a GGUF file (of any shard of a split one) or of a Hugging Face folder.

    Raises InputError for an absent, damaged or unknown one; a model without one can still run on token ids.
    """
    path = Path(path)
    return _of_folder(path) if path.is_dir() else _of_gguf(read_header(shard_paths(path)[0], whole=True))


def _of_gguf(header: GgufHeader) -> Tokenizer:
    def key(name: str, kind: type, default: Any = None) -> Any:
        return header.value(f"tokenizer.ggml.{name}", kind, default)

    where, model = f"{header.path}: tokenizer.ggml", key("model", str, "none")
    if model == "none":
        raise InputError(f"{where}.model", "must be a tokenizer to turn text into tokens", "none", GIVE_IDS)
    if model != "gpt2":
        raise InputError(f"{where}.model", "must be 'gpt2' (byte-level BPE)", repr(model), GIVE_IDS)
    pre_type = key("pre", str)
    if pre_type not in PRE_TYPES:
        raise InputError(f"{where}.pre", "must be a known one", repr(pre_type), nearest(pre_type, PRE_TYPES))
    tokens, merges = key("tokens", list), key("merges", list)
    kinds = key("token_type", list, [int(TokenType.NORMAL)] * len(tokens))
    if len(set(tokens)) != len(tokens) or len(kinds) != len(tokens):
        raise InputError(f"{where}.tokens", "must be distinct, each with a token_type", len(kinds))
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == TokenType.CONTROL]
    verbatim = [token for token, kind in zip(tokens, kinds, strict=True) if kind == TokenType.USER_DEFINED]
    library = _byte_level_bpe(tokens, merges, pre_type, where)
    library.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    library.add_tokens([AddedToken(token, special=False, normalized=False) for token in verbatim])
    return Tokenizer(
        library=library,
        bos_id=key("bos_token_id", int, -1),
        eos_id=key("eos_token_id", int, -1),
        add_bos=key("add_bos_token", bool, False),
        n_bytes=_n_bytes(tokens, special, verbatim, is_byte_level=True),
    )


def _byte_level_bpe(tokens: list[str], merges: list[str], pre_type: str, where: str) -> LibraryTokenizer:
    ids = {token: i for i, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    for merge, (left, right) in zip(merges, pairs, strict=True):
        if left not in ids or right not in ids or left + right not in ids:
            raise InputError(f"{where}.merges", "must join two known tokens to a third", repr(merge))
    library = LibraryTokenizer(models.BPE(ids, pairs))
    if pre_type in COMPOSES_ACCENTS:
        library.normalizer = normalizers.NFC()
    if pre_type == "qwen2":
        split = pre_tokenizers.Split(Regex(QWEN2_PATTERN), behavior="isolated")
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        library.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
    else:
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # the GPT-2 pattern is built in
    library.decoder = decoders.ByteLevel()
    return library


def _n_bytes(tokens: Sequence[str], special: Sequence[str], verbatim: Sequence[str], is_byte_level: bool) -> np.ndarray:
    """UTF-8 bytes of each token: of a byte-level one a character is a byte, SentencePiece writes a space as U+2581."""
    unseen, as_written = set(special), set(verbatim)

    def size(token: str) -> int:
        if token in unseen:
            return 0
        if token in as_written:
            return len(token.encode())
        if is_byte_level:
            return len(token)
        is_one_byte = len(token) == 6 and token.startswith("<0x") and token.endswith(">")
        return 1 if is_one_byte else len(token.replace("\u2581", " ").encode())

    return np.array([size(token) for token in tokens])


def _of_folder(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(str(folder), "must hold a tokenizer.json to turn text into tokens", "none", GIVE_IDS)
    text = read_text(path, MAX_JSON_BYTES)
    content = _checked(_json(path), path)
    library = LibraryTokenizer.from_str(text)
    said = _json(folder / "tokenizer_config.json") | {"model": _json(folder / "config.json")}
    ids = library.get_vocab(with_added_tokens=True)
    tokens = [""] * max([int(said["model"].get("vocab_size") or 0), *(i + 1 for i in ids.values())])
    for token, i in ids.items():
        tokens[i] = token
    added = library.get_added_tokens_decoder().values()
    special = ["", *(token.content for token in added if token.special)]
    verbatim = [token.content for token in added if not token.special]
    return Tokenizer(
        library=library,
        bos_id=_id_of("bos_token", said, library),
        eos_id=_id_of("eos_token", said, library),
        add_bos=said.get("add_bos_token") is True,
        n_bytes=_n_bytes(tokens, special, verbatim, "ByteLevel" in json.dumps(content.get("decoder"))),
    )


def _checked(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """
    A tokenizer.json whose BPE tables fit each other.

    Checked here, for the library says what it cannot read with the base of all exceptions.  Raises InputError.
    """
    model = content.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        got = repr(model.get("type")) if isinstance(model, dict) else "none"
        raise InputError(f"{path}: model", "must be a BPE model", got, GIVE_IDS)
    vocab, merges, added = model.get("vocab"), model.get("merges"), content.get("added_tokens") or []
    if not isinstance(vocab, dict) or not isinstance(merges, list) or not isinstance(added, list):
        raise InputError(f"{path}: model", "must have a vocab, merges and a list of added_tokens", "others")
    if not all(type(i) is int and i >= 0 for i in vocab.values()):
        raise InputError(f"{path}: model.vocab", "must map tokens to ids", "something else")
    if not all(isinstance(token, dict) and {"id", "content", "special"} <= token.keys() for token in added):
        raise InputError(f"{path}: added_tokens", "must have id, content and special each", "something else")
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or any(part not in vocab for part in (*pair, "".join(pair))):
            raise InputError(f"{path}: model.merges", "must join two known tokens to a third", repr(merge))
    return content


def _json(path: Path) -> dict[str, Any]:
    """The object of a file, an empty one where there is no file. Raises InputError."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(read_text(path, MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise InputError(str(path), "must be valid JSON", error) from error
    if not isinstance(content, dict):
        raise InputError(str(path), "must be a JSON object", f"a {type(content).__name__}")
    return content


def _id_of(name: str, said: dict[str, Any], library: LibraryTokenizer) -> int:
    """The id of a token that tokenizer_config.json spells or config.json numbers (the first of several), else -1."""
    token = said.get(name)
    token = token.get("content") if isinstance(token, dict) else token
    number = said["model"].get(f"{name}_id")
    number = number[0] if isinstance(number, list) and number else number
    found = library.token_to_id(token) if isinstance(token, str) else number
    return found if isinstance(found, int) else -1
