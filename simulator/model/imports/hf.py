"""
A ModelSpec from a Hugging Face config.json and, where safetensors lie beside it, from their headers.
"""

import re
from pathlib import Path
from typing import Any

from moeplan.errors import InputError
from moeplan.strict_yaml import validate
from simulator.model.imports.architectures import sparsity_of
from simulator.model.imports.hf_config import EXPERT_SIZE, N_EXPERTS, N_SHARED, TOP_K, HfConfig
from simulator.model.imports.imported import ImportedModel
from simulator.model.imports.safetensors_header import PACKED_TYPES, read_folder
from simulator.model.imports.tensors import (
    SAFETENSORS_RULES,
    Groups,
    compare_bytes,
    moe_layout,
    nearest_type,
    shortest_period,
    tensor_types_of,
)
from simulator.model.size import group_params, n_params
from simulator.model.spec import ModelSpec, TensorTypes

ACTIVATIONS = {"silu": "swiglu", "swiglu": "swiglu", "relu": "reglu"}
DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def import_config(path: Path) -> ImportedModel:
    """The spec of a config.json and the report. Raises InputError."""
    return _Importer(HfConfig.read(path)).imported()


class _Importer(HfConfig):
    """One import: the config and the report that grows."""

    def __init__(self, config: HfConfig) -> None:
        super().__init__(config.config, config.path, config.report)

    def imported(self) -> ImportedModel:
        why = f"as transformers takes it for {self.arch.name}"
        tied = self.flag("tie_word_embeddings", self.arch.tied_default, why)
        tensors = read_folder(self.path.parent)
        groups = Groups.of(tensors, SAFETENSORS_RULES) if tensors else None
        if groups and tied and groups.n_bytes("lm_head"):
            self.report.append("tied_embeddings: the files hold a second copy as lm_head; it is not counted")
        experts = self.experts()
        attention = self.attention()
        spec = validate(
            {
                "schema_version": 1,
                "name": re.sub(r"[^a-z0-9.]+", "-", self.title().lower()).strip("-") or "model",
                "title": self.title(),
                "source": f"{self.path.name}, model_type {self.model_type()}",
                "hidden_size": self.count(("hidden_size",)),
                "n_layers": self.n_layers,
                "vocab_size": self.count(("vocab_size",)),
                "tied_embeddings": tied,
                "context_length": self.count(("max_position_embeddings",)),
                "attention": attention,
                "experts": experts,
                "dense_ffn_size": self.dense_size(experts),
                "tensor_types": self.types_of(groups, tied),
            },
            ModelSpec,
            str(self.path),
            {},
        )
        if groups is not None:
            spec = self.with_packed(spec, groups)
            compare_bytes(spec, groups, self.report)
            self.compare_params(spec, sum(tensor.n_params for tensor in tensors))
        notes = " ".join(f"{line}." for line in self.report)
        return ImportedModel(spec.model_copy(update={"notes": notes}), tuple(self.report))

    # Attention

    def attention(self) -> dict[str, Any]:
        n_heads = self.count(("num_attention_heads",))
        if n_heads == 0:
            raise InputError(f"{self.path}: num_attention_heads", "must be above 0", 0)
        n_kv_heads = self.count(("num_key_value_heads",), 0)
        if n_kv_heads == 0:
            self.report.append(f"num_key_value_heads: not in config.json; {n_heads} taken, as many as heads")
        mla = self.latent()
        kinds, window = self.layer_kinds()
        bias = self.typed("attention_bias", bool)
        if bias is None and self.arch.qkv_bias:
            self.report.append(
                f"attention_bias: not in config.json; query, key and value biases of {self.arch.name} taken"
            )
        head_dim = mla["qk_nope_head_dim"] + mla["qk_rope_head_dim"] if mla else self.head_dim(n_heads)
        return {
            "n_heads": n_heads,
            "n_kv_heads": n_heads if mla else n_kv_heads or n_heads,
            "head_dim": head_dim,
            "window": window,
            "layer_kinds": kinds,
            "qkv_bias": self.arch.qkv_bias if bias is None else bool(bias),
            "output_bias": self.arch.output_bias if bias is None else bool(bias),
            "qk_norm": self.arch.qk_norm,
            "sinks": self.arch.sinks,
            "mla": mla,
        }

    def head_dim(self, n_heads: int) -> int:
        head_dim = self.count(("head_dim",), 0)
        if head_dim:
            return head_dim
        hidden = self.count(("hidden_size",))
        if hidden % n_heads:
            raise InputError(
                f"{self.path}: head_dim", "must be given, hidden_size is no multiple of the heads", "nothing"
            )
        self.report.append(
            f"head_dim: not in config.json; hidden_size / num_attention_heads = {hidden // n_heads} taken"
        )
        return hidden // n_heads

    def latent(self) -> dict[str, Any] | None:
        if self.config.get("kv_lora_rank") is None:
            return None
        names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        return {"q_lora_rank": self.config.get("q_lora_rank"), **{name: self.count((name,)) for name in names}}

    def layer_kinds(self) -> tuple[list[str], int | None]:
        """The repeating layer kinds and the window."""
        window = self.count(("sliding_window", "sliding_window_size"), 0)
        kinds = self.stated_kinds()
        if kinds is None and window == 0:
            return ["full_rope"], None
        if kinds is None and self.typed("use_sliding_window", bool) is False:
            return ["full_rope"], None
        if kinds is None and self.arch.windowed_kinds is not None:
            kinds = list(self.arch.windowed_kinds)
            self.report.append(f"layer_kinds: not in config.json; {kinds} is the pattern of {self.arch.name}")
        if kinds is None:
            self.report.append(
                f"layer_kinds: config.json has a window of {window} and does not say which layers slide; full "
                "attention is assumed everywhere, so KV bytes are an upper bound"
            )
            return ["full_rope"], None
        kinds = shortest_period(kinds)
        return kinds, window or None if "sliding_rope" in kinds else None

    def stated_kinds(self) -> list[str] | None:
        slides, rope = self.typed("sliding_window_layout", list), self.typed("rope_layout", list)
        if isinstance(slides, list) and isinstance(rope, list) and len(slides) == len(rope) == self.n_layers:
            if any(s and not r for s, r in zip(slides, rope, strict=True)):
                raise InputError(f"{self.path}: rope_layout", "must be 1 where a layer slides", "a sliding NoPE layer")
            return [
                "sliding_rope" if s else "full_rope" if r else "full_nope" for s, r in zip(slides, rope, strict=True)
            ]
        types = self.typed("layer_types", list)
        if types is None:
            return None
        known = {"full_attention": "full_rope", "sliding_attention": "sliding_rope"}
        types = [str(kind) for kind in types]
        unknown = sorted(set(types) - known.keys())
        if unknown or len(types) != self.n_layers:
            got = f"{unknown}" if unknown else f"{len(types)} entries for {self.n_layers} layers"
            raise InputError(f"{self.path}: layer_types", f"must name {' or '.join(known)} for every layer", got)
        return [known[kind] for kind in types]

    # FFN

    def experts(self) -> dict[str, Any] | None:
        n_experts = self.count(N_EXPERTS, 0)
        if n_experts == 0:
            return None
        first_dense, step = moe_layout(self.moe_layer_ids(), self.n_layers, str(self.path))
        size = self.count(EXPERT_SIZE, 0)
        if size == 0:
            size = self.count(("intermediate_size",))
            self.report.append(f"expert FFN size: no key of its own; intermediate_size {size} taken")
        n_shared, shared_size = self.shared(size)
        act = self.typed("hidden_act", str)
        activation = ACTIVATIONS.get(str(act), self.arch.activation)
        if act not in ACTIVATIONS:
            self.report.append(
                f"hidden_act: {act or 'not in config.json'}; {self.arch.activation} of {self.arch.name} taken"
            )
        return {
            "n_experts": n_experts,
            "top_k": self.count(TOP_K),
            "ffn_size": size,
            "n_shared": n_shared,
            "shared_ffn_size": shared_size,
            "first_dense_layers": first_dense,
            "layer_step": step,
            "expert_bias": self.arch.expert_bias,
            "router_bias": self.arch.router_bias,
            "router": self.router(),
            "activation": activation,
            "gate_sparsity": sparsity_of(activation, self.report),
        }

    def shared(self, expert_size: int) -> tuple[int, int]:
        """(number of shared experts, their total width)."""
        width = self.count(("shared_expert_intermediate_size",), 0)
        if width:
            return 1, width
        n_shared = self.count(N_SHARED, 0)
        return n_shared, n_shared * expert_size

    def moe_layer_ids(self) -> list[int]:
        """The layers with experts, by whichever rule the config states; without one every layer."""
        layout = self.config.get("moe_layer_layout") or self.config.get("moe_layer_freq")
        if isinstance(layout, list):
            return [i for i, has_experts in enumerate(layout[: self.n_layers]) if has_experts]
        first = self.count(("first_k_dense_replace", "num_dense_layers"), 0)
        step = self.count(("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq"), 1) or 1
        if "moe_layer_freq" in self.config:  # DeepSeek counts from layer 0
            ids = [i for i in range(first, self.n_layers) if i % step == 0]
        else:  # Qwen and Llama 4 count from layer 1
            ids = [i for i in range(first, self.n_layers) if (i + 1) % step == 0]
        dense = self.typed("mlp_only_layers", list) or []
        return [i for i in ids if i not in dense]

    def router(self) -> dict[str, Any]:
        self.report.append(f"router.placement: not in config.json; {self.arch.placement} of {self.arch.name} taken")
        scoring = self.typed("scoring_func", str)
        if self.arch.name == "smallthinker":
            why = "the default of its config class"
            softmax = self.flag("moe_primary_router_apply_softmax", False, f"as {why} has it")
            scoring = "softmax" if softmax else "sigmoid"
        elif scoring not in ("softmax", "sigmoid"):
            self.report.append(f"scoring_func: {scoring or 'not in config.json'}; {self.arch.scoring} taken")
            scoring = self.arch.scoring
        normalised = self.flag("norm_topk_prob", self.arch.normalised, f"as {self.arch.name} has it")
        return {"placement": self.arch.placement, "scoring": scoring, "normalised": normalised}

    def dense_size(self, experts: dict[str, Any] | None) -> int | None:
        """Width of the FFN of layers without experts, None where every layer has experts."""
        if experts is not None and experts["first_dense_layers"] == 0 and experts["layer_step"] == 1:
            return None
        return self.count(("intermediate_size", "dense_ffn_hidden_size"))

    # Storage types

    def types_of(self, groups: Groups | None, tied: bool) -> dict[str, str]:
        """From the files' headers; without files from the config's dtype and quantisation method, which is reported."""
        if groups is not None:
            return {name: _known(value) for name, value in tensor_types_of(groups, tied).items()}
        dtype = DTYPES.get(str(self.config.get("torch_dtype") or self.config.get("dtype")))
        if dtype is None:
            self.report.append("torch_dtype: not in config.json; bf16 taken for all tensors")
        base = dtype or "bf16"
        self.report.append(f"tensor_types: no safetensors beside config.json; {base} taken as it states")
        types = dict.fromkeys(TensorTypes.model_fields, base)
        method = (self.typed("quantization_config", dict) or {}).get("quant_method")
        if method == "mxfp4":
            return {**types, "experts": "mxfp4"}
        if method is not None:
            self.report.append(
                f"quantization_config: {method} is not a size; {base} is an upper bound without the files"
            )
        return types

    def with_packed(self, spec: ModelSpec, groups: Groups) -> ModelSpec:
        """Groups of packed integers get the type whose bytes per weight are nearest to those found."""
        types = {}
        for group, n_weights in group_params(spec).items():
            if groups.dominant_type(group) in PACKED_TYPES and n_weights:
                per_weight = groups.n_bytes(group) / n_weights
                types[group] = nearest_type(per_weight)
                self.report.append(
                    f"tensor_types.{group}: packed, {per_weight:.3f} bytes a weight; {types[group]} is nearest"
                )
        return spec.model_copy(update={"tensor_types": spec.tensor_types.model_copy(update=types)}) if types else spec

    def compare_params(self, spec: ModelSpec, n_found: int) -> None:
        expected = n_params(spec)
        if abs(n_found - expected) > 0.001 * expected:
            self.report.append(f"parameters: the files hold {n_found}, the spec's shapes give {expected}")


def _known(tensor_type: str) -> str:
    """A packed type gets its place holder; `with_packed` replaces it."""
    return "i8" if tensor_type in PACKED_TYPES else tensor_type
