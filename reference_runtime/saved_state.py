"""
The state of a sequence on disk: keys and values of every layer, so that a long prompt is fed once and used often.

A safetensors file: keys, values F32 (n_layers, kv, n_tokens, dim), logits F32 (vocab), token_ids I32 (n_tokens).  The
metadata say which model file it was (see source_fingerprint.py: samples, not the sha256 of all of it), how the prompt
was fed, the crc32 of keys and values, and the sha256 of all else.  Rows go straight from the file into the cache: no
second copy.
"""

import hashlib
import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from moeplan.errors import InputError
from moeplan.files import atomic_path
from reference_runtime.forward import Router
from reference_runtime.kv_cache import KVCache
from reference_runtime.loading.model_file import ModelFile
from reference_runtime.model_config import ModelConfig
from reference_runtime.routing_replay import WRAPS
from reference_runtime.streaming.source_fingerprint import Fingerprint, check_source, source_fingerprint
from simulator.model.imports.safetensors_header import header_entries

FORMAT, VERSION = "moeplan saved state", "2"  # 1 had no sha256
ITEM_BYTES = 4  # float32 and int32
DTYPES = {"token_ids": "I32"}  # the others are F32
HEADER_ALIGNMENT_BYTES = 8  # the format pads its header so
ROUTING, ROUTING_SHA256 = "routing", "routing_sha256"  # conditions: what a routing is called, and what it chose
SAME_EXPERTS = (ROUTING, "top_k")  # conditions that decide which experts made the keys and values
N_DIGITS = 12  # hexadecimal, of a routing's sha256
AGAIN = "save it again with moeplan run --save-state"


@dataclass(frozen=True, eq=False)
class SavedState:
    """
    What a file says of itself; keys and values stay on disk until `load_into`.

    token_ids: int32 (n_tokens,), the prompt; logits: float32 (vocab,) after its last token; source: the model's files;
    fed_with: conditions under which the prompt ran; cache_shape: of keys and of values; data_start: the keys' first
    byte; crc32: of keys and values.
    """

    path: Path
    token_ids: np.ndarray
    logits: np.ndarray
    source: list[Fingerprint]
    fed_with: dict[str, str]
    cache_shape: tuple[int, ...]
    data_start: int
    crc32: int

    @property
    def n_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.token_ids)

    @property
    def label(self) -> str:
        """What the conditions of a run that begins here say."""
        how = ", ".join(f"{name} {value}" for name, value in self.fed_with.items())
        return f"saved state of {self.n_tokens} tokens, fed with {how}"

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Raises InputError where a prompt is not the one of this state."""
        given, own = np.asarray(prompt), self.token_ids
        n_both = min(len(given), len(own))
        other = np.flatnonzero(given[:n_both] != own[:n_both])
        if len(given) == len(own) and not len(other):
            return
        got = f"one of {len(given)} tokens"
        if len(other):
            got = f"token {given[other[0]]} at position {other[0]}, the state has {own[other[0]]}"
        must = f"must be of the prompt that is given, it holds {len(own)} tokens"
        raise InputError(str(self.path), must, got, "give the prompt that was saved")

    def check_model(self, model_file: ModelFile) -> None:
        """Raises InputError where the model is not the one of this state, or its file has changed since."""
        check_source(self.path, self.source, model_file, AGAIN)

    def check_fed_with(self, conditions: Mapping[str, str]) -> None:
        """
        Raises InputError where the prompt was fed with other experts than a run of these conditions takes.

        A replayed routing is known by what it chose, whatever its trace is called (see routing_fingerprint).  Another
        kernel or another chunk size changes last digits only, and where a replayed trace begins again comes after the
        prompt.
        """
        chosen, needed = self.fed_with.get(ROUTING_SHA256), conditions.get(ROUTING_SHA256)
        for name in SAME_EXPERTS:
            if name == ROUTING and chosen == needed is not None:
                continue
            fed, wanted = (found.get(name, "nothing").removesuffix(WRAPS) for found in (self.fed_with, conditions))
            if fed != wanted:
                raise InputError(str(self.path), f"must have been fed with {name} {wanted}", f"{name} {fed}", AGAIN)
        if chosen != needed:
            must = f"must have been fed with the experts of {conditions[ROUTING]}"
            raise InputError(str(self.path), must, "other experts of that name", AGAIN)

    def load_into(
        self, cache: KVCache, model_file: ModelFile, conditions: Mapping[str, str] | None = None
    ) -> np.ndarray:
        """
        Fill an empty cache; the logits (vocab,) after the prompt's last token.

        conditions: of the run that goes on from here, None: whatever they are.  Raises InputError where the model is
        another one, the prompt was fed with other experts, the shapes differ, the cache is too small or the file is
        damaged; the cache then still counts no token.
        """
        self.check_model(model_file)
        if conditions is not None:
            self.check_fed_with(conditions)
        n_layers, n_kv, capacity, dim = cache.keys.shape
        needed, vocab_size = (n_layers, n_kv, self.n_tokens, dim), model_file.config.vocab_size
        if self.cache_shape != needed or len(self.logits) != vocab_size:
            must = f"must hold keys of shape {needed} and {vocab_size} logits"
            raise InputError(str(self.path), must, f"{self.cache_shape} and {len(self.logits)}", AGAIN)
        if self.n_tokens > capacity:
            must = f"must fit the cache's {capacity} tokens"
            raise InputError(str(self.path), must, self.n_tokens, "give a longer context")
        if self._read_rows(cache) != self.crc32:
            raise InputError(str(self.path), "must have its checksum", "other bytes", f"it is damaged; {AGAIN}")
        cache.n_tokens = self.n_tokens
        return self.logits

    def _read_rows(self, cache: KVCache) -> int:
        """The crc32 of what was read; a file cut short meanwhile has another."""
        crc = 0
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(self.data_start)
                for row in _rows(cache, self.n_tokens):
                    file.readinto(row)
                    crc = zlib.crc32(row, crc)
        except OSError as error:
            raise InputError(str(self.path), "must be a file that can be read", error.strerror or error) from error
        return crc


def save_state(
    path: Path,
    cache: KVCache,
    token_ids: Sequence[int],
    logits: np.ndarray,
    model_file: ModelFile,
    fed_with: Mapping[str, str],
) -> None:
    """
    Write a cache that holds the tokens given, whole or not at all; logits: (vocab,) after the last of them.

    Raises InputError where the file cannot be written.
    """
    n_layers, n_kv, _, dim = cache.keys.shape
    shape = n_layers, n_kv, len(token_ids), dim
    crc = 0
    for row in _rows(cache, len(token_ids)):
        crc = zlib.crc32(row, crc)
    told = {
        "format": FORMAT,
        "version": VERSION,
        "crc32": str(crc),
        "source": json.dumps(source_fingerprint(model_file)),
        "fed_with": json.dumps(dict(fed_with)),
    }
    ids, last = np.asarray(token_ids, np.int32), logits.astype(np.float32)
    metadata = told | {"sha256": _sha256(told, ids, last)}
    parts = {"keys": shape, "values": shape, "logits": logits.shape, "token_ids": (len(token_ids),)}
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        file.write(_header(parts, metadata))
        for row in _rows(cache, len(token_ids)):
            file.write(row)
        file.write(last.tobytes())
        file.write(ids.tobytes())


def routing_fingerprint(router: Router, n_tokens: int, config: ModelConfig) -> str:
    """
    N_DIGITS hexadecimal digits of the experts and weights that a router chooses for the first n_tokens positions
    whatever the scores, as a replayed trace does.  Raises InputError as the router does.
    """
    digest, scores = hashlib.sha256(), np.zeros((n_tokens, config.n_experts), np.float32)
    for layer in range(config.n_layers):
        for chosen in router.choose(layer, scores, 0, config):
            digest.update(np.ascontiguousarray(chosen).tobytes())
    return digest.hexdigest()[:N_DIGITS]


def open_state(path: Path) -> SavedState:
    """The state in a file, keys and values unread. Raises InputError for anything but a whole saved state."""
    if path.exists() and not path.is_file():
        raise InputError(str(path), "must be a file that can be read", "a folder, a pipe or a device")
    try:
        with safe_open(path, framework="numpy") as file:  # it checks that the parts fill the file
            metadata = file.metadata() or {}
            if (metadata.get("format"), metadata.get("version")) != (FORMAT, VERSION):
                got = f"{metadata.get('format', 'another kind')} {metadata.get('version', '')}"
                raise InputError(str(path), f"must be a {FORMAT} of version {VERSION}", got, AGAIN)
            token_ids, logits = file.get_tensor("token_ids"), file.get_tensor("logits")
        if metadata.pop("sha256") != _sha256(metadata, token_ids, logits):
            raise InputError(str(path), "must have its checksum", "other tokens or metadata", f"it is damaged; {AGAIN}")
        entries, data_start = header_entries(path)
        return SavedState(
            path,
            token_ids,
            logits,
            source=json.loads(metadata["source"]),
            fed_with=json.loads(metadata["fed_with"]),
            cache_shape=tuple(entries["keys"]["shape"]),
            data_start=data_start + entries["keys"]["data_offsets"][0],
            crc32=int(metadata["crc32"]),
        )
    except OSError as error:
        raise InputError(str(path), "must be a file that can be read", error.strerror or error) from error
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(str(path), f"must be a whole {FORMAT}", error, AGAIN) from error


def _sha256(metadata: Mapping[str, str], token_ids: np.ndarray, logits: np.ndarray) -> str:
    """Of what is not keys and values; those have their crc32 in the metadata."""
    digest = hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode())
    for part in (token_ids, logits):
        digest.update(part.tobytes())
    return digest.hexdigest()


def _rows(cache: KVCache, n_tokens: int) -> Iterator[memoryview]:
    """The bytes of the first tokens, in the file's order: keys, then values, a layer's KV heads one by one."""
    for cube in (cache.keys, cache.values):  # (n_layers, kv, capacity, dim)
        for head in cube.reshape(-1, *cube.shape[2:]):
            yield head[:n_tokens].reshape(-1).view(np.uint8).data


def _header(shapes: Mapping[str, tuple[int, ...]], metadata: dict[str, str]) -> bytes:
    """The header of a safetensors file whose parts follow one another; all items have ITEM_BYTES."""
    entries: dict[str, object] = {"__metadata__": metadata}
    start = 0
    for name, shape in shapes.items():
        stop = start + ITEM_BYTES * prod(shape)
        entries[name] = {"dtype": DTYPES.get(name, "F32"), "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT_BYTES)
    return struct.pack("<Q", len(text)) + text
