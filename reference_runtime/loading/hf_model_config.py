"""
ModelConfig from the config.json of a Hugging Face folder, for the four families that run here.

Keys as in transformers' configuration_{olmoe,qwen3_moe,mixtral}.py and the SmallThinker repository's own; what their
modeling files would compute and ours would not is refused in one line.
"""

from pathlib import Path
from typing import Any

from moeplan.errors import InputError
from reference_runtime.loading.model_shapes import TRAITS, check_config
from reference_runtime.model_config import ModelConfig, Scoring
from simulator.model.imports.hf_config import N_SHARED, HfConfig

ARCHITECTURES = {"smallthinker": "smallthinker", "olmoe": "olmoe", "qwen3_moe": "qwen3moe", "mixtral": "mixtral"}
# transformers 5 renames num_experts to num_local_experts for Qwen3-MoE, and may for others
N_EXPERTS = ("num_experts", "num_local_experts", "moe_num_primary_experts")
TOP_K = ("num_experts_per_tok", "moe_num_active_primary_experts")
EXPERT_FFN = {"smallthinker": "moe_ffn_hidden_size", "qwen3moe": "moe_intermediate_size"}  # others: intermediate_size
# Keys that change what a model computes -> the values with which they change nothing; absent and null never do.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "quantization_config": (),
    "text_config": (),
    "attention_bias": (False,),
    "qkv_bias": (False,),
    "mlp_bias": (False,),
    "clip_qkv": (),
    "use_qk_norm": (False,),
    "use_sliding_window": (False,),
    "partial_rotary_factor": (1.0,),
    "final_logit_softcapping": (),
    "attn_logit_softcapping": (),
    "mlp_only_layers": ([],),
    "decoder_sparse_step": (1,),
    "shared_expert_intermediate_size": (0,),
    "moe_shared_primary_experts": (0,),
    "moe_enable_secondary_experts": (False,),
    "moe_enable_early_router": (True,),
    **dict.fromkeys(N_SHARED, (0,)),
}


def read_config(path: Path, notes: list[str]) -> tuple[ModelConfig, bool | None]:
    """The model's shape, and whether the head is tied (None: not said); notes take assumptions. Raises InputError."""
    hf = HfConfig.read(path)
    model_type = hf.model_type()
    if model_type not in ARCHITECTURES:
        raise InputError(f"{path}: model_type", f"must be one of {', '.join(ARCHITECTURES)}", repr(model_type))
    architecture = ARCHITECTURES[model_type]
    _check_neutral(hf, architecture)
    hidden_size, n_heads = hf.count(("hidden_size",)), hf.count(("num_attention_heads",))
    fields: dict[str, Any] = {
        "name": hf.title(),
        "n_layers": hf.n_layers,
        "hidden_size": hidden_size,
        "n_heads": n_heads,
        "n_kv_heads": hf.count(("num_key_value_heads",)),
        "head_dim": hf.count(("head_dim",), hidden_size // max(n_heads, 1)),
        "n_experts": hf.count(N_EXPERTS),
        "top_k": hf.count(TOP_K),
        "expert_ffn_size": hf.count((EXPERT_FFN.get(architecture, "intermediate_size"),)),
        "vocab_size": hf.count(("vocab_size",)),
        "context_length": hf.count(("max_position_embeddings",)),
        "rope_theta": _rope_theta(hf),
        "rms_norm_eps": _number(hf, "rms_norm_eps", hf.config),
        "window": None,
        "architecture": architecture,
    }
    own = _smallthinker(hf, notes) if architecture == "smallthinker" else _normalised(hf, architecture, notes)
    config = ModelConfig(**(fields | TRAITS[architecture] | own))
    return check_config(config, path), hf.typed("tie_word_embeddings", bool)


def _check_neutral(hf: HfConfig, architecture: str) -> None:
    own: dict[str, tuple[Any, ...]] = {"hidden_act": ("relu",) if architecture == "smallthinker" else ("silu",)}
    own["moe_layer_layout"] = ([1] * hf.n_layers,)
    own["layer_types"] = (["full_attention"] * hf.n_layers,)
    if architecture == "mixtral":
        own["sliding_window"] = ()
    for name, allowed in (NEUTRAL | own).items():
        found = hf.config.get(name)
        if found is not None and found not in allowed:
            must = " or ".join(["must be absent", *(str(value) for value in allowed)])
            raise InputError(f"{hf.path}: {name}", must, _short(found), "nothing else runs here")


def _rope_theta(hf: HfConfig) -> float:
    """From the key of old configs or from the rope_parameters of new ones. Raises InputError for a scaled RoPE."""
    parameters = hf.typed("rope_parameters", dict) or {}
    for name, scaling in {"rope_scaling": hf.typed("rope_scaling", dict) or {}, "rope_parameters": parameters}.items():
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind != "default" or scaling.get("partial_rotary_factor", 1.0) != 1.0:
            raise InputError(
                f"{hf.path}: {name}", "must leave RoPE as it is", _short(scaling), "nothing else runs here"
            )
    return _number(hf, "rope_theta", parameters if "rope_theta" in parameters else hf.config)


def _number(hf: HfConfig, name: str, values: dict[str, Any]) -> float:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{hf.path}: {name}", "must be a number", "nothing" if value is None else repr(value))
    return float(value)


def _normalised(hf: HfConfig, architecture: str, notes: list[str]) -> dict[str, Any]:
    """Whether the weights of the chosen experts are divided by their sum; Mixtral always does."""
    if architecture == "mixtral":
        return {}
    normalised = hf.typed("norm_topk_prob", bool)
    if normalised is None:
        notes.append("no norm_topk_prob; false is assumed, as transformers does")
    return {"normalised": bool(normalised)}


def _smallthinker(hf: HfConfig, notes: list[str]) -> dict[str, Any]:
    """Scoring, window and NoPE period."""
    apply_softmax = hf.typed("moe_primary_router_apply_softmax", bool)
    if apply_softmax is None:
        notes.append("no moe_primary_router_apply_softmax; sigmoid is assumed, as the model's own code does")
    scoring: Scoring = "softmax" if apply_softmax else "sigmoid"
    rope, slides = _layout(hf, "rope_layout", 1, notes), _layout(hf, "sliding_window_layout", 0, notes)
    period = _nope_period(rope)
    expressible = [period is None or i % period != 0 for i in range(len(rope))] == rope
    if not expressible or (any(slides) and slides != rope):
        must = "must have NoPE at layers 0, p, 2p, ... only, and slide in no layer or in exactly those with RoPE"
        raise InputError(f"{hf.path}: rope_layout", must, _short([int(x) for x in rope]), "nothing else runs here")
    window = hf.count(("sliding_window_size",)) if any(slides) else None
    return {"scoring": scoring, "window": window, "nope_period": period}


def _layout(hf: HfConfig, name: str, default: int, notes: list[str]) -> list[bool]:
    values = hf.typed(name, list)
    if values is None:
        notes.append(f"no {name}; {default} is assumed for every layer")
        return [bool(default)] * hf.n_layers
    if len(values) != hf.n_layers or any(value not in (0, 1) for value in values):
        raise InputError(f"{hf.path}: {name}", f"must be {hf.n_layers} zeros and ones", _short(values))
    return [bool(value) for value in values]


def _nope_period(rope: list[bool]) -> int | None:
    """The distance of the first two layers without RoPE; None where all have it."""
    if all(rope):
        return None
    return next((i for i in range(1, len(rope)) if not rope[i]), len(rope))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
