"""
A ModelSpec from the header of a GGUF file: keys and tensor infos; no weight is read.

Shapes come from the tensors where both a key and a tensor say them, since the tensor is what an engine computes with.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moeplan.errors import InputError
from moeplan.strict_yaml import validate
from simulator.model.imports.architectures import SMALLTHINKER_WINDOW, Architecture, architecture_of, sparsity_of
from simulator.model.imports.gguf_header import GgufHeader
from simulator.model.imports.gguf_split import describe_files, read_split
from simulator.model.imports.imported import ImportedModel
from simulator.model.imports.tensors import (
    GGUF_RULES,
    Groups,
    TensorInfo,
    check_layers,
    compare_bytes,
    moe_layout,
    shortest_period,
    tensor_types_of,
)
from simulator.model.spec import ModelSpec

GATING = {1: "softmax", 2: "sigmoid"}
LAYER_TENSOR = re.compile(r"^blk\.(\d+)\.(.+)$")
OLD_EXPERT = re.compile(r"^ffn_(gate|up|down)\.(\d+)\.weight$")


def import_gguf(path: Path) -> ImportedModel:
    """The spec of a GGUF file or of a set of shards, and the report. Raises InputError."""
    files, header = read_split(path, whole=False)
    return _Importer(header, path, describe_files(files, header)).imported()


class _Importer:
    """One import: the header, the layers' tensors by name, and the report that grows."""

    def __init__(self, header: GgufHeader, path: Path, report: list[str]) -> None:
        self.header, self.path, self.report = header, path, report
        self.arch_name = header.value("general.architecture", str)
        self.arch: Architecture = architecture_of(self.arch_name, report)
        n_extra = self.count("nextn_predict_layers", 0)
        self.n_layers = check_layers(self.count("block_count") - n_extra, f"{path}: {self.arch_name}.block_count")
        self.layers: dict[int, dict[str, TensorInfo]] = defaultdict(dict)
        self.top: dict[str, TensorInfo] = {}
        for tensor in (placed.info for placed in header.tensors.values()):
            match = LAYER_TENSOR.match(tensor.name)
            if match is None:
                self.top[tensor.name] = tensor
            elif int(match[1]) < self.n_layers:
                self.layers[int(match[1])][match[2]] = tensor
        if n_extra:
            report.append(f"nextn_predict_layers: the last {n_extra} blocks predict further tokens: left out")
        if not self.layers:
            raise InputError(str(path), "must hold the tensors of a model", "no layer", "is it a vocabulary file?")

    # Keys

    def key(self, name: str, default: Any = None) -> Any:
        """The value of an architecture key; default None means that it must be there."""
        value = self.header.get(f"{self.arch_name}.{name}")
        if value is not None:
            return value
        if default is None:
            where, must = f"{self.path}: {self.arch_name}.{name}", "must be in the file, nothing else says it"
            raise InputError(where, must, "no such key", "convert the model again")
        return default

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number; of a per-layer array the largest, which the report says where they differ."""
        value = self.key(name, default)
        if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
            if len(set(value)) > 1:
                self.report.append(f"{name}: layers differ, {value}: the largest is taken, so bytes are an upper bound")
            value = max(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InputError(f"{self.path}: {self.arch_name}.{name}", "must be a whole number", repr(value))
        return value

    def has(self, name: str) -> bool:
        """Whether an architecture key is there."""
        return self.header.get(f"{self.arch_name}.{name}") is not None

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of the first layer tensor of that name."""
        return next((layer[name].shape for _, layer in sorted(self.layers.items()) if name in layer), None)

    def any_layer_has(self, name: str) -> bool:
        return self.shape(name) is not None

    # Parts of the spec

    def imported(self) -> ImportedModel:
        embedding = self.top.get("token_embd.weight")
        if embedding is None:
            raise InputError(str(self.path), "must hold the tensor token_embd.weight", "none", "is it a whole model?")
        tied = "output.weight" not in self.top
        if tied:
            self.report.append("tied_embeddings: no output.weight in the file, so the LM head is the embedding")
        groups = Groups.of([*self.top.values(), *(t for la in self.layers.values() for t in la.values())], GGUF_RULES)
        name = str(self.header.get("general.name") or self.path.stem)
        body: dict[str, Any] = {
            "schema_version": 1,
            "name": re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-") or "model",
            "title": name,
            "source": f"{self.path.name} (GGUF header, architecture {self.arch_name})",
            "hidden_size": embedding.shape[1],
            "n_layers": self.n_layers,
            "vocab_size": embedding.shape[0],
            "tied_embeddings": tied,
            "context_length": self.count("context_length"),
            "attention": self.attention(),
            "experts": self.experts(),
            "dense_ffn_size": (self.shape("ffn_up.weight") or (None,))[0],
            "tensor_types": tensor_types_of(groups, tied),
        }
        self.check_embedding(embedding)
        self.note_predictor()
        spec = validate(body, ModelSpec, str(self.path), {})
        compare_bytes(spec, groups, self.report)
        spec = spec.model_copy(update={"notes": " ".join(f"{line}." for line in self.report)})
        return ImportedModel(spec, tuple(self.report))

    def check_embedding(self, embedding: TensorInfo) -> None:
        for name, found in (("embedding_length", embedding.shape[1]), ("vocab_size", embedding.shape[0])):
            if self.has(name) and self.count(name) != found:
                self.report.append(
                    f"{name}: the key says {self.count(name)}, token_embd.weight {found}: the tensor counts"
                )

    def note_predictor(self) -> None:
        predictor = self.top.get("lm_head_profiler.weight")
        if predictor is not None:
            self.report.append(
                f"lm_head_predictor: the file holds one of {predictor.n_params} weights, but not its share of active "
                "rows: add lm_head_predictor by hand to use it"
            )

    def attention(self) -> dict[str, Any]:
        n_heads = self.count("attention.head_count")
        if n_heads == 0:
            raise InputError(f"{self.path}: {self.arch_name}.attention.head_count", "must be above 0", 0)
        n_kv_heads = self.count("attention.head_count_kv", n_heads)
        if not self.has("attention.head_count_kv"):
            self.report.append(f"attention.head_count_kv: not in the file; {n_heads} taken, as many as heads")
        mla = self.latent()
        kinds, window = self.layer_kinds()
        norm = self.shape("attn_q_norm.weight")
        head_dim = (
            self.head_dim(n_heads, n_kv_heads) if mla is None else mla["qk_nope_head_dim"] + mla["qk_rope_head_dim"]
        )
        return {
            "n_heads": n_heads,
            "n_kv_heads": n_heads if mla else n_kv_heads,
            "head_dim": head_dim,
            "window": window,
            "layer_kinds": kinds,
            "qkv_bias": self.any_layer_has("attn_q.bias") or self.any_layer_has("attn_qkv.bias"),
            "output_bias": self.any_layer_has("attn_output.bias"),
            "qk_norm": "none" if norm is None else "per_head" if norm[-1] == head_dim else "all_heads",
            "sinks": any(self.any_layer_has(name) for name in ("attn_sinks.weight", "attn_sinks")),
            "mla": mla,
        }

    def head_dim(self, n_heads: int, n_kv_heads: int) -> int:
        fused, query = self.shape("attn_qkv.weight"), self.shape("attn_q.weight")
        from_tensor = fused[0] // (n_heads + 2 * n_kv_heads) if fused else query[0] // n_heads if query else 0
        head_dim = self.count("attention.key_length", from_tensor)
        if head_dim == 0:
            raise InputError(f"{self.path}: attention.key_length", "must be in the file, or attn_q", "neither")
        if not self.has("attention.key_length"):
            self.report.append(f"attention.key_length: not in the file; {head_dim} follows from the shape of attn_q")
        if self.count("attention.value_length", head_dim) != head_dim:
            self.report.append("attention.value_length: differs from key_length; KV bytes are counted with key_length")
        return head_dim

    def latent(self) -> dict[str, Any] | None:
        if not self.has("attention.kv_lora_rank"):
            return None
        key_name, value_name = "attention.key_length_mla", "attention.value_length_mla"
        if not self.has(key_name):  # older conversions; they also store full keys and values
            key_name, value_name = "attention.key_length", "attention.value_length"
            self.report.append(
                "attention.key_length_mla: not in the file (an older conversion): an engine may keep full keys and "
                "values; the spec counts the latent cache"
            )
        rope = self.count("rope.dimension_count")
        return {
            "q_lora_rank": self.count("attention.q_lora_rank", 0) or None,
            "kv_lora_rank": self.count("attention.kv_lora_rank"),
            "qk_nope_head_dim": self.count(key_name) - rope,
            "qk_rope_head_dim": rope,
            "v_head_dim": self.count(value_name),
        }

    def layer_kinds(self) -> tuple[list[str], int | None]:
        """The repeating layer kinds and the window."""
        window = self.count("attention.sliding_window", 0)
        if window == 0:
            return ["full_rope"], None
        if self.arch.name == "smallthinker" and window != SMALLTHINKER_WINDOW:
            self.report.append(f"attention.sliding_window: {window} in the file, engines take {SMALLTHINKER_WINDOW}")
            window = SMALLTHINKER_WINDOW
        pattern = self.header.get(f"{self.arch_name}.attention.sliding_window_pattern")
        if isinstance(pattern, list):
            return self._kinds_or_full(["sliding_rope" if slides else "full_rope" for slides in pattern], window)
        if isinstance(pattern, int) and pattern > 0:
            return self._kinds_or_full(["sliding_rope"] * (pattern - 1) + ["full_rope"], window)
        if self.arch.windowed_kinds is not None:
            kinds = self.arch.windowed_kinds
            self.report.append(f"layer_kinds: not in the file; {', '.join(kinds)} is the pattern of {self.arch_name}")
            return self._kinds_or_full(kinds, window)
        self.report.append(
            f"layer_kinds: the file has a window of {window} and does not say which layers slide; full attention is "
            "assumed everywhere, so KV bytes are an upper bound"
        )
        return ["full_rope"], None

    def _kinds_or_full(self, kinds: Sequence[str], window: int) -> tuple[list[str], int | None]:
        period = shortest_period(kinds)
        return period, window if "sliding_rope" in period else None

    def experts(self) -> dict[str, Any] | None:
        moe_ids = [i for i, layer in self.layers.items() if any(_is_expert(name) for name in layer)]
        if not moe_ids:
            if self.count("expert_count", 0):
                must = f"must hold the {self.count('expert_count')} experts that its keys name"
                raise InputError(str(self.path), must, "no expert tensor", "is a shard missing?")
            return None
        first_dense, step = moe_layout(moe_ids, self.n_layers, str(self.path))
        n_experts, ffn_size = self.expert_shape(self.layers[min(moe_ids)])
        shared = (self.shape("ffn_up_shexp.weight") or (0,))[0]
        if shared and not self.has("expert_shared_count"):
            self.report.append("expert_shared_count: not in the file; 1 taken, the total width is in the tensors")
        self.report.append(f"activation: GGUF does not hold it; {self.arch.activation} taken from {self.arch_name}")
        self.report.append(
            f"router.placement: GGUF does not hold it; {self.arch.placement} taken from {self.arch_name}"
        )
        return {
            "n_experts": n_experts,
            "top_k": self.count("expert_used_count"),
            "ffn_size": ffn_size,
            "n_shared": self.count("expert_shared_count", 1) if shared else 0,
            "shared_ffn_size": shared,
            "first_dense_layers": first_dense,
            "layer_step": step,
            "expert_bias": self.any_layer_has("ffn_up_exps.bias"),
            "router_bias": self.any_layer_has("ffn_gate_inp.bias") or self.any_layer_has("exp_probs_b.bias"),
            "router": {"placement": self.arch.placement, "scoring": self.scoring(), "normalised": self.normalised()},
            "activation": self.arch.activation,
            "gate_sparsity": sparsity_of(self.arch.activation, self.report),
        }

    def expert_shape(self, layer: dict[str, TensorInfo]) -> tuple[int, int]:
        """(n_experts, ffn_size) from a layer's tensors; the keys are only compared."""
        if "ffn_up_exps.weight" in layer:
            n_experts, ffn_size = layer["ffn_up_exps.weight"].shape[:2]
        elif "ffn_gate_up_exps.weight" in layer:
            n_experts, ffn_size = (
                layer["ffn_gate_up_exps.weight"].shape[0],
                layer["ffn_gate_up_exps.weight"].shape[1] // 2,
            )
        else:  # one tensor per expert, as old conversions have it
            old = [name for name in layer if (match := OLD_EXPERT.match(name)) and match[1] == "up"]
            if not old:
                raise InputError(str(self.path), "must hold the up projection of its experts", "none")
            n_experts, ffn_size = len(old), layer[old[0]].shape[0]
        for key, found in (("expert_count", n_experts), ("expert_feed_forward_length", ffn_size)):
            if not self.has(key):
                self.report.append(f"{key}: not in the file; {found} follows from the expert tensors")
            elif self.count(key) != found:
                self.report.append(f"{key}: the key says {self.count(key)}, the tensors {found}: the tensors count")
        return n_experts, ffn_size

    def scoring(self) -> str:
        gating = self.count("expert_gating_func", 0)
        if gating in GATING:
            return GATING[gating]
        said = f"{gating}, which a spec does not know" if gating else "not in the file"
        self.report.append(f"expert_gating_func: {said}; {self.arch.scoring} taken from {self.arch_name}")
        return self.arch.scoring

    def normalised(self) -> bool:
        if self.has("expert_weights_norm"):
            return bool(self.key("expert_weights_norm"))
        self.report.append(f"expert_weights_norm: not in the file; {self.arch.normalised} taken from {self.arch_name}")
        return self.arch.normalised


def _is_expert(name: str) -> bool:
    return name == "ffn_down_exps.weight" or OLD_EXPERT.match(name) is not None
