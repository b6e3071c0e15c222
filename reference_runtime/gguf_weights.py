"""
Read a `smallthinker` GGUF into frozen float32 numpy weights.

Keys and tensor names are those of stock llama.cpp (src/models/smallthinker.cpp).  A file is refused in one line
when it is of another architecture, truncated, of wrong shapes or holds a number that is not finite.
"""

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize

from moeplan.errors import InputError

ARCHITECTURE = "smallthinker"
NOPE_PERIOD = 4  # hard-coded in llama.cpp: no key of the file says it
GATING_FUNCS: dict[int, Literal["softmax", "sigmoid"]] = {1: "softmax", 2: "sigmoid"}
Shape = tuple[int, ...]


@dataclass(frozen=True)
class ModelConfig:
    """
    Shape of the model.

    window: tokens that a sliding layer sees, itself included; None: no layer slides and every layer has RoPE.
    scoring: what turns the router's top-k logits into weights that sum to 1.
    """

    name: str
    n_layers: int
    hidden_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_experts: int
    top_k: int
    expert_ffn_size: int
    vocab_size: int
    context_length: int
    rope_theta: float
    rms_norm_eps: float
    window: int | None
    scoring: Literal["softmax", "sigmoid"]

    def has_rope(self, layer: int) -> bool:
        """Whether a layer turns its queries and keys; layers 0, 4, 8, ... of a hybrid model have no positions."""
        return self.window is None or layer % NOPE_PERIOD != 0

    def layer_window(self, layer: int) -> int | None:
        """Tokens that a layer's attention reaches back, itself included; None: all of them."""
        return self.window if self.has_rope(layer) else None


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """float32 arrays of one layer; matrices are (out, in), so y = x @ matrix.T."""

    attn_norm: np.ndarray  # (hidden,)
    q: np.ndarray  # (n_heads * head_dim, hidden)
    k: np.ndarray  # (n_kv_heads * head_dim, hidden)
    v: np.ndarray  # (n_kv_heads * head_dim, hidden)
    o: np.ndarray  # (hidden, n_heads * head_dim)
    ffn_norm: np.ndarray  # (hidden,)
    router: np.ndarray  # (n_experts, hidden)
    gate: np.ndarray  # (n_experts, ffn, hidden)
    up: np.ndarray  # (n_experts, ffn, hidden)
    down: np.ndarray  # (n_experts, hidden, ffn)


@dataclass(frozen=True, eq=False)
class Weights:
    """The whole model; `output` is the very array `token_embd` where the head is tied."""

    config: ModelConfig
    token_embd: np.ndarray  # (vocab, hidden)
    layers: tuple[LayerWeights, ...]
    output_norm: np.ndarray  # (hidden,)
    output: np.ndarray  # (vocab, hidden)

    @property
    def is_tied(self) -> bool:
        """Whether the embedding is the LM head too."""
        return self.output is self.token_embd


def layer_tensors(config: ModelConfig) -> dict[str, tuple[str, Shape]]:
    """Field of LayerWeights -> (GGUF name after `blk.N.`, shape in numpy's order)."""
    hidden, ffn, experts = config.hidden_size, config.expert_ffn_size, config.n_experts
    width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    return {
        "attn_norm": ("attn_norm.weight", (hidden,)),
        "q": ("attn_q.weight", (width, hidden)),
        "k": ("attn_k.weight", (kv_width, hidden)),
        "v": ("attn_v.weight", (kv_width, hidden)),
        "o": ("attn_output.weight", (hidden, width)),
        "ffn_norm": ("ffn_norm.weight", (hidden,)),
        "router": ("ffn_gate_inp.weight", (experts, hidden)),
        "gate": ("ffn_gate_exps.weight", (experts, ffn, hidden)),
        "up": ("ffn_up_exps.weight", (experts, ffn, hidden)),
        "down": ("ffn_down_exps.weight", (experts, hidden, ffn)),
    }


class _StrictReader(GGUFReader):
    """The package's reader, which otherwise takes the end of the file for an empty array and reads on."""

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> np.ndarray:
        array = super()._get(offset, dtype, count, override_order)
        if len(array) != int(count):
            raise ValueError(f"the file ends at byte {len(self.data)}, a field at {offset} reaches beyond it")
        return array


def open_gguf(path: Path) -> GGUFReader:
    """The header and the mapped tensors of a GGUF file. Raises InputError."""
    try:
        reader = _StrictReader(path)
    except OSError as error:
        raise InputError(str(path), "must be a file that can be read", error.strerror or error) from error
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        reason = str(error).strip() or type(error).__name__
        raise InputError(str(path), "must be a whole GGUF file", reason, "fetch or export it again") from error
    if reader.byte_order != "I":
        raise InputError(str(path), "must have this machine's byte order", "the other one", "convert it")
    return reader


def value_of(reader: GGUFReader, path: Path, key: str, kind: type, default: Any = None) -> Any:
    """
    The value of a key as int, float, str, bool or list; the default where the key is absent.

    Raises InputError for a wrong type, and for an absent key without a default.
    """
    field = reader.get_field(key)
    if field is None:
        if default is None:
            raise InputError(str(path), f"must have the key {key}", "none", "is it a model, and a whole one?")
        return default
    try:
        value = field.contents()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: {key}", "must be UTF-8 text", f"a bad byte at {error.start}") from error
    if kind is float and isinstance(value, float | int) and not isinstance(value, bool):
        value = float(str(np.float32(value)))  # 1e-6 and not 9.99999997e-07: the number that was written as float32
    if type(value) is not kind:
        raise InputError(f"{path}: {key}", f"must be of type {kind.__name__}", type(value).__name__)
    return value


def read_config(reader: GGUFReader, path: Path) -> ModelConfig:
    """The model's shape from the keys. Raises InputError; warns where the gating function is not stated."""
    architecture = value_of(reader, path, "general.architecture", str)
    if architecture != ARCHITECTURE:
        raise InputError(
            f"{path}: general.architecture", f"must be {ARCHITECTURE!r}", repr(architecture), "no other model runs here"
        )

    def key(name: str, kind: type = int, default: Any = None) -> Any:
        return value_of(reader, path, f"{ARCHITECTURE}.{name}", kind, default)

    hidden_size, n_heads = key("embedding_length"), key("attention.head_count")
    head_dim = key("attention.key_length", default=hidden_size // max(n_heads, 1))
    shapes = {tensor.name: tensor.shape for tensor in reader.tensors}
    config = ModelConfig(
        name=value_of(reader, path, "general.name", str, default=path.stem),
        n_layers=key("block_count"),
        hidden_size=hidden_size,
        n_heads=n_heads,
        n_kv_heads=key("attention.head_count_kv", default=n_heads),
        head_dim=head_dim,
        n_experts=key("expert_count"),
        top_k=key("expert_used_count"),
        expert_ffn_size=key("expert_feed_forward_length"),
        vocab_size=int(shapes["token_embd.weight"][-1]) if "token_embd.weight" in shapes else 0,
        context_length=key("context_length"),
        rope_theta=key("rope.freq_base", float, 10_000.0),
        rms_norm_eps=key("attention.layer_norm_rms_epsilon", float),
        window=key("attention.sliding_window", default=0) or None,
        scoring=_scoring(key("expert_gating_func", default=0), path),
    )
    _check_config(config, path)
    only = {"attention.value_length": head_dim, "rope.dimension_count": head_dim, "rope.scaling.type": "none"}
    for name, expected in only.items():
        if (found := key(name, type(expected), expected)) != expected:
            raise InputError(f"{path}: {ARCHITECTURE}.{name}", f"must be {expected}", found, "nothing else runs here")
    return config


def _scoring(gating_func: int, path: Path) -> Literal["softmax", "sigmoid"]:
    if gating_func == 0:
        # PowerInfer's converter leaves the key out for sigmoid models, and engines then differ in what they assume.
        warnings.warn(f"{path}: no {ARCHITECTURE}.expert_gating_func; sigmoid is assumed", stacklevel=2)
        return "sigmoid"
    if gating_func not in GATING_FUNCS:
        raise InputError(f"{path}: expert_gating_func", "must be 1 (softmax) or 2 (sigmoid)", gating_func)
    return GATING_FUNCS[gating_func]


def _check_config(config: ModelConfig, path: Path) -> None:
    for name, value in vars(config).items():
        if isinstance(value, int | float) and not (0 < value < float("inf")):
            raise InputError(f"{path}: {name}", "must be a finite number above 0", value)
    if config.top_k > config.n_experts:
        raise InputError(f"{path}: expert_used_count", f"must be at most expert_count {config.n_experts}", config.top_k)
    if config.n_heads % config.n_kv_heads:
        must = f"must be a multiple of head_count_kv {config.n_kv_heads}"
        raise InputError(f"{path}: head_count", must, config.n_heads)
    if config.head_dim % 2:
        raise InputError(f"{path}: attention.key_length", "must be even for RoPE", config.head_dim)


def read_weights(path: Path) -> Weights:
    """All weights as read-only float32 arrays, whatever type the file stores them in. Raises InputError."""
    path = Path(path)
    reader = open_gguf(path)
    config = read_config(reader, path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}

    def read(name: str, shape: Shape) -> np.ndarray:
        if name not in tensors:
            raise InputError(str(path), f"must have the tensor {name}", "none", "is it a whole model?")
        return _as_float32(tensors[name], shape, path)

    token_embd = read("token_embd.weight", (config.vocab_size, config.hidden_size))
    layers = tuple(
        LayerWeights(**{f: read(f"blk.{i}.{name}", shape) for f, (name, shape) in layer_tensors(config).items()})
        for i in range(config.n_layers)
    )
    output_norm = read("output_norm.weight", (config.hidden_size,))
    output = read("output.weight", token_embd.shape) if "output.weight" in tensors else token_embd
    return Weights(config, token_embd, layers, output_norm, output)


def _as_float32(tensor: Any, shape: Shape, path: Path) -> np.ndarray:
    where = f"{path}: {tensor.name}"
    found = tuple(int(n) for n in reversed(tensor.shape))  # GGUF names the fastest axis first
    if found != shape:
        turned = tensor.name.endswith("ffn_down_exps.weight") and found == (shape[0], shape[2], shape[1])
        advice = "PowerInfer turned it; convert without --transpose-down" if turned else "does it fit its own keys?"
        raise InputError(where, f"must have the shape {shape}", found, advice)
    try:
        array = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32).reshape(shape)
    except (NotImplementedError, ValueError) as error:
        kind = GGMLQuantizationType(tensor.tensor_type).name
        raise InputError(where, "must be dequantisable", kind, "use Q8_0, Q4_0, F16 or F32") from error
    if not np.isfinite(array).all():
        raise InputError(where, "must hold finite numbers only", "NaN or infinity", "the file is damaged")
    array.setflags(write=False)
    return array


def fingerprint(path: Path) -> str:
    """sha256 of a file, in hexadecimal: names the very weights that a trace was recorded with."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(str(path), "must be a file that can be read", error.strerror or error) from error
