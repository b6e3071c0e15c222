"""
Shapes of a hypothetical model: another one's layers with other experts, at a fixed size or a fixed size per token.

    N = rest + n_moe_layers * n_experts * (expert + router row)       parameters in all
    A = rest_active + n_moe_layers * (top_k * expert + n_experts * router row)      of one token
    expert = 3 * hidden_size * ffn_size

With N and A fixed one of top_k and ffn_size is free; with N alone both; with A alone n_experts and ffn_size are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from moeplan.errors import InputError
from moeplan.quantity import format_params
from simulator.model import size as model_size
from simulator.model.spec import ModelSpec

FFN_MULTIPLE = 32  # weights of the smallest block of the quantised types
FFN_SIZES = (64, 128, 256, 384, 512, 768, 1024, 1536, 2048)
TOP_KS = (1, 2, 4, 6, 8, 12, 16, 24, 32)
SOME_TOP_KS = (2, 4, 8)  # where the width of the experts is varied too
SOME_N_EXPERTS = (16, 32, 64, 128)
MAX_DEVIATION_FRAC = 0.05  # of N and A: n_experts, top_k are whole numbers and widths multiples of FFN_MULTIPLE
MAX_EXPERTS = 1024  # a layer; beyond the router alone takes most of the work
MAX_SHAPES = 200


@dataclass(frozen=True)
class Wish:
    """What is fixed, and the values of what is free; empty: defaults of this file, or what follows."""

    like: ModelSpec
    n_params: float | None = None
    n_active_params: float | None = None
    n_experts: tuple[int, ...] = ()
    top_k: tuple[int, ...] = ()
    ffn_size: tuple[int, ...] = ()

    @property
    def fixed(self) -> str:
        """What is the same for all shapes, in words; empty where nothing is."""
        parts = [
            f"{format_params(n)} {word}"
            for n, word in ((self.n_params, "parameters"), (self.n_active_params, "active per token"))
            if n is not None
        ]
        return " and ".join(parts)


def shapes(wish: Wish) -> list[ModelSpec]:
    """
    The models of a wish, largest experts first. Raises InputError where the lists do not go with what is fixed, or
    where no shape comes near it.
    """
    if wish.like.experts is None:
        raise InputError("--like", "must be a model with experts", wish.like.name)
    if wish.n_params is not None and (wish.n_active_params or 0) > wish.n_params:
        must = f"must be at most the {format_params(wish.n_params)} of --params"
        raise InputError("--active", must, format_params(wish.n_active_params or 0), "a token uses a part of all")
    found = {
        (n, k, size): _model(wish.like, n, k, size)
        for n, k, size in _combinations(wish)
        if 1 <= k <= n <= MAX_EXPERTS and size >= FFN_MULTIPLE
    }
    near = [model for model in found.values() if _is_near(wish, model)]
    if not near and not wish.fixed:
        must = f"must leave a shape of at most {MAX_EXPERTS} experts a layer and a top-k of as many"
        raise InputError("design", must, "none")
    if not near:
        raise InputError(
            "design",
            f"must leave a shape within {MAX_DEVIATION_FRAC:.0%} of {wish.fixed}",
            f"none with the layers of {wish.like.name}",
            "take --like with a model of about that size, or other lists",
        )
    missing = sorted(set(wish.top_k) - {_shape(model)[1] for model in near})
    if missing:
        must = "must each leave a shape" + (f" within {MAX_DEVIATION_FRAC:.0%} of {wish.fixed}" if wish.fixed else "")
        raise InputError("--top-k", must, ", ".join(map(str, missing)), "leave these out")
    if len(near) > MAX_SHAPES:
        raise InputError("design", f"must have at most {MAX_SHAPES} shapes", len(near))
    return sorted(near, key=lambda model: (-model_size.expert_bytes(model), *_shape(model)))


def _combinations(wish: Wish) -> Iterator[tuple[int, int, int]]:
    """(n_experts, top_k, ffn_size) as what is fixed and what is free give them."""
    fixed = (wish.n_params is not None, wish.n_active_params is not None)
    if fixed == (True, True):
        _only(wish, "n_experts", "--params and --active")
        if wish.top_k and wish.ffn_size:
            raise InputError("--ffn-size", "must be left out with --top-k, --params and --active", "both")
        for size in wish.ffn_size or ({_width_of(wish, k) for k in TOP_KS} if not wish.top_k else ()):
            yield _n_experts_of(wish, size), _top_k_of(wish, size), size
        for k in wish.top_k:
            size = _width_of(wish, k)
            yield _n_experts_of(wish, size), k, size
    elif fixed == (True, False):
        _only(wish, "n_experts", "--params")
        for k, size in product(wish.top_k or SOME_TOP_KS, wish.ffn_size or FFN_SIZES):
            yield _n_experts_of(wish, size), k, size
    elif fixed == (False, True):
        _only(wish, "top_k", "--active")
        for n, size in product(wish.n_experts or SOME_N_EXPERTS, wish.ffn_size or FFN_SIZES):
            yield n, _top_k_of(wish, size, n), size
    else:
        if not (wish.n_experts and wish.top_k and wish.ffn_size):
            advice = "or give all of --n-experts, --top-k and --ffn-size"
            raise InputError("design", "must have --params, --active or both", "neither", advice)
        yield from product(wish.n_experts, wish.top_k, wish.ffn_size)


def _only(wish: Wish, name: str, fixed: str) -> None:
    if getattr(wish, name):
        raise InputError(f"--{name.replace('_', '-')}", f"must be left out with {fixed}", "a list", "it follows")


def _model(like: ModelSpec, n_experts: int, top_k: int, ffn_size: int) -> ModelSpec:
    assert like.experts is not None
    experts = like.experts.model_copy(update={"n_experts": n_experts, "top_k": top_k, "ffn_size": ffn_size})
    title = f"hypothetical {n_experts} x {ffn_size}, top-{top_k}, layers of {like.title}"
    return like.model_copy(
        update={"name": f"hypothetical-{n_experts}x{ffn_size}-top{top_k}", "title": title, "experts": experts}
    )


def _shape(model: ModelSpec) -> tuple[int, int, int]:
    assert model.experts is not None
    return model.experts.n_experts, model.experts.top_k, model.experts.ffn_size


def with_router(model: ModelSpec, placement: str) -> ModelSpec:
    """The model with its router before or after attention. Raises InputError for another place, or a dense model."""
    places = {"pre-attention": "pre_attention", "post-attention": "post_attention"}
    if placement not in places:
        raise InputError("--router", f"must be {' or '.join(places)}", repr(placement))
    if model.experts is None:
        raise InputError("--like", "must be a model with experts", model.name)
    router = model.experts.router.model_copy(update={"placement": places[placement]})
    return model.model_copy(update={"experts": model.experts.model_copy(update={"router": router})})


def active_params(model: ModelSpec) -> int:
    """Parameters of one token, counted as the vendor of the layers counts them."""
    return model_size.vendor_active_params(model)


def _is_near(wish: Wish, model: ModelSpec) -> bool:
    pairs = ((wish.n_params, model_size.n_params(model)), (wish.n_active_params, active_params(model)))
    return all(wanted is None or abs(found / wanted - 1) <= MAX_DEVIATION_FRAC for wanted, found in pairs)


def _n_experts_of(wish: Wish, ffn_size: int) -> int:
    """The number of experts that brings the model nearest to N; 0 where its layers alone are larger."""
    assert wish.n_params is not None
    one, two = (model_size.n_params(_model(wish.like, n, 1, ffn_size)) for n in (1, 2))
    return max(0, round(1 + (wish.n_params - one) / (two - one)))


def _top_k_of(wish: Wish, ffn_size: int, n_experts: int | None = None) -> int:
    """The top-k that brings a token nearest to A; 0 where the layers alone take more."""
    assert wish.n_active_params is not None
    n = _n_experts_of(wish, ffn_size) if n_experts is None else n_experts
    if n < 2:
        return 0
    one, two = (active_params(_model(wish.like, n, k, ffn_size)) for k in (1, 2))
    return max(0, round(1 + (wish.n_active_params - one) / (two - one)))


def _width_of(wish: Wish, top_k: int) -> int:
    """The width of experts, a multiple of FFN_MULTIPLE, that brings a token nearest to A; 0 where none does."""
    assert wish.n_active_params is not None
    best, width = 0, FFN_MULTIPLE
    for _ in range(3):  # the number of experts and so the router follow from the width: a few rounds settle it
        n = max(2, top_k, min(MAX_EXPERTS, _n_experts_of(wish, width)))
        narrow, wide = (active_params(_model(wish.like, n, top_k, size)) for size in (FFN_MULTIPLE, 2 * FFN_MULTIPLE))
        steps = round(1 + (wish.n_active_params - narrow) / (wide - narrow))
        best, width = max(0, steps) * FFN_MULTIPLE, max(1, steps) * FFN_MULTIPLE
    return best
