"""Prefetch policies: when the reads of a row's missing experts are issued. A registry of two for now."""

from moeplan.errors import InputError, nearest
from simulator.model.spec import ModelSpec

NONE, PRE_ATTENTION = "none", "pre-attention"

PREFETCH_POLICIES = {
    NONE: "on demand: a missing expert is read when the expert FFN asks for it",
    PRE_ATTENTION: "the router runs before attention: the exact missing experts are read while attention computes",
}


def default_prefetch(model: ModelSpec) -> str:
    """What the model's own engine would do."""
    has_early_router = model.experts is not None and model.experts.router.placement == "pre_attention"
    return PRE_ATTENTION if has_early_router else NONE


def check_prefetch(model: ModelSpec, name: str) -> None:
    """Raises InputError for an unknown policy, or one that the model's router cannot serve."""
    if name not in PREFETCH_POLICIES:
        raise InputError("--prefetch", "must be a known prefetch policy", repr(name), nearest(name, PREFETCH_POLICIES))
    if name == PRE_ATTENTION and model.experts is None:
        raise InputError("--prefetch", f"must be none: the dense model {model.name} has no experts to read", repr(name))
    if name == PRE_ATTENTION and default_prefetch(model) != PRE_ATTENTION:
        raise InputError(
            "--prefetch",
            f"must be none: the router of {model.name} runs after attention",
            repr(name),
            "the exact experts are not known earlier",
        )
