"""
What an architecture's name implies and no model file says: router placement, activation, biases, layer pattern.

Sources: the model definitions of llama.cpp (src/models) and of transformers (src/transformers/models); SmallThinker:
arXiv:2507.20984.  Importers report every value that they take from here.
"""

from dataclasses import dataclass
from typing import Any, Literal

from simulator.model.spec import LayerKind


@dataclass(frozen=True)
class Architecture:
    """
    Traits of an architecture.

    windowed_kinds: the repeating layer kinds where the model has a window (None: not known);
    tied_default: what transformers takes when config.json has no tie_word_embeddings.
    """

    name: str
    placement: Literal["pre_attention", "post_attention"] = "post_attention"
    scoring: Literal["sigmoid", "softmax"] = "softmax"
    normalised: bool = True
    activation: Literal["reglu", "swiglu"] = "swiglu"
    qk_norm: Literal["none", "per_head", "all_heads"] = "none"
    qkv_bias: bool = False
    output_bias: bool = False
    sinks: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    windowed_kinds: tuple[LayerKind, ...] | None = None
    tied_default: bool = False


NOPE_HYBRID: tuple[LayerKind, ...] = ("full_nope", "sliding_rope", "sliding_rope", "sliding_rope")
SMALLTHINKER_WINDOW = 4096  # llama.cpp takes this whatever the key says

_SMALLTHINKER = Architecture(
    "smallthinker",
    placement="pre_attention",
    scoring="sigmoid",
    activation="reglu",
    windowed_kinds=NOPE_HYBRID,
    tied_default=True,
)
_LLAMA = Architecture("llama", windowed_kinds=("sliding_rope",))
_QWEN2 = Architecture("qwen2", qkv_bias=True)
_QWEN2_MOE = Architecture("qwen2moe", qkv_bias=True, normalised=False)
_QWEN3 = Architecture("qwen3", qk_norm="per_head")
_QWEN3_MOE = Architecture("qwen3moe", qk_norm="per_head")
_OLMOE = Architecture("olmoe", qk_norm="all_heads", normalised=False)
_DEEPSEEK2 = Architecture("deepseek2", normalised=False)
_DEEPSEEK3 = Architecture("deepseek3", scoring="sigmoid")
_GPT_OSS = Architecture(
    "gpt-oss",
    qkv_bias=True,
    output_bias=True,
    sinks=True,
    expert_bias=True,
    router_bias=True,
    windowed_kinds=("sliding_rope", "full_rope"),
)

# Names of GGUF's general.architecture and of config.json's model_type.
ARCHITECTURES: dict[str, Architecture] = {
    "smallthinker": _SMALLTHINKER,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _LLAMA,
    "qwen2": _QWEN2,
    "qwen2moe": _QWEN2_MOE,
    "qwen2_moe": _QWEN2_MOE,
    "qwen3": _QWEN3,
    "qwen3moe": _QWEN3_MOE,
    "qwen3_moe": _QWEN3_MOE,
    "olmoe": _OLMOE,
    "gpt-oss": _GPT_OSS,
    "gpt_oss": _GPT_OSS,
    "deepseek2": _DEEPSEEK2,
    "deepseek_v2": _DEEPSEEK2,
    "deepseek_v3": _DEEPSEEK3,
}


def architecture_of(name: str, report: list[str]) -> Architecture:
    """The traits of a name; an unknown one is taken as a plain SwiGLU transformer, which the report says."""
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    report.append(
        f"architecture: {name!r} is not known here: assumed a router after attention, softmax scores normalised over "
        "the top-k, SwiGLU and no biases; check the spec"
    )
    return Architecture(name)


def sparsity_of(activation: str, report: list[str]) -> dict[str, Any]:
    """SwiGLU has none; that of ReGLU is in no model file, and 0 (no row is skipped) is the cautious value."""
    if activation == "swiglu":
        return {"value": 0.0, "kind": "theoretical", "source": "SiLU has a single exact zero"}
    report.append("gate_sparsity: not in the file; 0 assumed, so no row is skipped; set it to what was measured")
    return {"value": 0.0, "kind": "assumed", "source": "not in the model file: no row is skipped"}
