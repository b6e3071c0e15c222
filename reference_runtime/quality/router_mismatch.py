"""
Router mismatch: do a pre-attention router's experts differ from those it would choose after attention?

    python -m reference_runtime.quality.router_mismatch MODEL.gguf TEXT...

SmallThinker's router reads x, the raw residual that enters the layer, so that experts can be fetched while attention
runs.  Here the SAME router matrix is also shown what a post-attention router would see, in a model that otherwise runs
exactly as it is:
    y = x + attention                  (an RMS norm of y without weights gives the same order, so the same experts)
    z = rms_norm(y) * ffn_norm         what the experts compute on, and what other families' routers read
    u = rms_norm(x) * ffn_norm         to tell the norm's weights from attention
Then the model runs with each choice, which gives its perplexity.  The router was trained on x: this says how far the
choice moves and what that costs this model, not how a model would do that was trained to route after attention.

How: `forward` multiplies the state that its router reads with the router's matrix and hands the product to a Router
object.  With a unit matrix in the router's place that product is the state itself.  The model runs once as it is, which
gives x; then its own experts and weights are replayed while `forward` shows the later state, which gives y of the very
same residual.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from moeplan.errors import InputError
from reference_runtime.forward import OWN_ROUTER, Router, forward, rms_norm, route
from reference_runtime.kv_cache import KVCache
from reference_runtime.loading.token_files import text_tokens
from reference_runtime.loading.tokenizer import read_tokenizer
from reference_runtime.model import DenseLayer, Model
from reference_runtime.model_config import ModelConfig
from reference_runtime.quality.perplexity import (
    CHUNK_TOKENS,
    Quality,
    TokenScores,
    join_texts,
    quality,
    score_tokens,
    standard_error,
)
from reference_runtime.quality.table import TextOptions, known, resident_model

STATES = ("y", "z", "u")
REAL_ATTENTION = 0.1  # below this a layer's attention hardly moves the state, and so hardly the choice
COLUMNS = ("x", *STATES, "attention_size")


@dataclass(frozen=True, eq=False)
class Choices:
    """
    Experts (n, n_layers, k) that the router chooses on each state, best first; `x` is what the model ran on.

    attention_size: (n, n_layers) |y - x| / |x|: a layer whose attention adds little cannot change the choice much.
    """

    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    u: np.ndarray
    attention_size: np.ndarray


@dataclass(frozen=True, eq=False)
class LayerMismatch:
    """
    The experts on a state against those on x, per layer: (n_layers,) each.

    overlap: mean share of x's k experts that are chosen on the state too; same_set: share of tokens where all are;
    same_first: share of tokens whose best expert is the same.
    chance: the overlap with the experts on the state of another token, half the text away: what the popularity of
    experts alone gives.
    """

    overlap: np.ndarray
    same_set: np.ndarray
    same_first: np.ndarray
    chance: np.ndarray


@dataclass(frozen=True)
class ChoiceQuality:
    """The model when it runs with a choice; the difference to its own is on the same tokens, with its error."""

    choice: str
    quality: Quality
    difference_nat: float
    difference_error_nat: float | None


class _States:
    """A Router for a model of unit matrices as routers: notes the states, and chooses or repeats a choice."""

    def __init__(self, layers: Sequence[DenseLayer], n_tokens: int, repeat: "_States | None" = None) -> None:
        self.layers, self.repeat = layers, repeat
        shape = (n_tokens, len(layers), layers[0].router.shape[1])
        self.states = np.empty(shape, dtype=np.float32)  # (n, n_layers, hidden)
        self.chosen: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}  # (layer, first position)

    def choose(
        self, layer: int, scores: np.ndarray, first_position: int, config: ModelConfig
    ) -> tuple[np.ndarray, np.ndarray]:
        self.states[first_position : first_position + len(scores), layer] = scores
        if self.repeat is not None:
            return self.repeat.chosen[layer, first_position]
        choice = route(scores @ self.layers[layer].router.T, config)
        self.chosen[layer, first_position] = choice
        return choice


class RandomRouter:
    """Experts at random, with equal weights: what the choice is worth at all. Repeats from run to run."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def choose(
        self, layer: int, scores: np.ndarray, first_position: int, config: ModelConfig
    ) -> tuple[np.ndarray, np.ndarray]:
        """Distinct ids (n, k) and weights 1 / k."""
        rng = np.random.default_rng([self.seed, layer, first_position])
        ids = rng.permuted(np.tile(np.arange(config.n_experts), (len(scores), 1)), axis=1)[:, : config.top_k]
        return ids, np.full(ids.shape, 1 / config.top_k, dtype=np.float32)


def choices(model: Model, token_ids: np.ndarray) -> Choices:
    """
    What the router says on each state over one sequence that fits the context, (n,) ids.

    Memory: two states (n, n_layers, hidden) float32.  Raises InputError for a model that routes after attention.
    """
    config, layers = model.config, model.dense.layers
    if not config.pre_attention_router:
        raise InputError(config.name, "must have a pre-attention router", "one after attention")
    unit = np.eye(config.hidden_size, dtype=np.float32)
    dense = replace(model.dense, layers=tuple(replace(layer, router=unit) for layer in layers))
    bare = replace(model, dense=dense)
    before = _States(layers, len(token_ids))
    _run(bare, token_ids, before)
    after = _States(layers, len(token_ids), repeat=before)
    _run(_after_attention(bare, "residual"), token_ids, after)
    x, y = before.states, after.states

    def experts(states: np.ndarray, normed: bool) -> np.ndarray:
        ids = []
        for i, layer in enumerate(layers):
            seen = rms_norm(states[:, i], layer.ffn_norm, config.rms_norm_eps) if normed else states[:, i]
            ids.append(route(seen @ layer.router.T, config)[0])
        return np.stack(ids, axis=1)

    size = np.linalg.norm(y - x, axis=-1) / np.linalg.norm(x, axis=-1)
    return Choices(experts(x, False), experts(y, False), experts(y, True), experts(x, True), size)


def _after_attention(model: Model, state: Literal["residual", "normed"]) -> Model:
    config = replace(model.config, pre_attention_router=False, post_attention_input=state)
    return replace(model, config=config)


def _run(model: Model, token_ids: np.ndarray, router: Router) -> None:
    cache = KVCache(model.config, len(token_ids))
    for at in range(0, len(token_ids), CHUNK_TOKENS):
        forward(model, token_ids[at : at + CHUNK_TOKENS], cache, router=router, last_logits_only=True)


def mismatch(own: np.ndarray, other: np.ndarray) -> LayerMismatch:
    """Compare two choices, ids (n, n_layers, k) each, distinct within a row."""
    overlap = _overlap(own, other)  # (n, n_layers)
    return LayerMismatch(
        overlap=overlap.mean(axis=0),
        same_set=(overlap == 1).mean(axis=0),
        same_first=(own[..., 0] == other[..., 0]).mean(axis=0),
        chance=_overlap(own, np.roll(other, len(other) // 2, axis=0)).mean(axis=0),
    )


def _overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Share of a's experts that are in b, (n, n_layers)."""
    return (a[..., :, None] == b[..., None, :]).any(axis=-1).mean(axis=-1)


def choice_quality(
    model: Model, texts: Sequence[np.ndarray], n_bytes: np.ndarray | None, options: TextOptions
) -> list[ChoiceQuality]:
    """The model run with its own choice, with the later ones and with experts at random. Raises InputError."""
    variants: list[tuple[str, Model, Router]] = [
        ("x, as trained", model, OWN_ROUTER),
        ("y, after attention", _after_attention(model, "residual"), OWN_ROUTER),
        ("z, after attention and norm", _after_attention(model, "normed"), OWN_ROUTER),
        ("experts at random", model, RandomRouter()),
    ]
    scores = [_scores(variant, texts, options, router) for _, variant, router in variants]
    rows = []
    for (name, _, _), found in zip(variants, scores, strict=True):
        difference = found.losses - scores[0].losses
        error = standard_error(difference, found.window)
        rows.append(ChoiceQuality(name, quality(found, n_bytes), float(difference.mean()), error))
    return rows


def _scores(model: Model, texts: Sequence[np.ndarray], options: TextOptions, router: Router) -> TokenScores:
    each = [
        score_tokens(model, text, n_context=options.n_context, window_tokens=options.window_tokens, router=router)
        for text in texts
    ]
    return join_texts([scores[""] for scores in each])


def mismatch_table(found: Choices) -> str:
    """Per-layer figures for y and z, and the means over layers for each state."""
    against = {state: mismatch(found.x, getattr(found, state)) for state in STATES}
    size = found.attention_size.mean(axis=0)  # (n_layers,)
    head = f"{'layer':<7}{'|y - x|/|x|':>13}" + "".join(f"{f'{s} {what}':>13}" for s in ("y", "z") for what in SHORT)
    lines = [f"The same router on later states, against its choice on x; {len(found.x)} tokens", head]
    for layer in range(found.x.shape[1]):
        cells = [getattr(against[s], name)[layer] for s in ("y", "z") for name in SHORT.values()]
        lines.append(f"{layer:<7}{size[layer]:>13.3f}" + "".join(f"{cell:>13.1%}" for cell in cells))
    lines += _means("all layers", against, np.ones(len(size), dtype=bool))
    if (size > REAL_ATTENTION).any():
        lines += _means(f"layers with |y - x|/|x| above {REAL_ATTENTION:.0%}", against, size > REAL_ATTENTION)
    return "\n".join(lines)


def _means(which: str, against: dict[str, LayerMismatch], layers: np.ndarray) -> list[str]:
    lines = ["", f"Mean over {which}, {layers.sum()} of them", f"{'state':<7}" + "".join(f"{w:>13}" for w in SHORT)]
    for state, found in against.items():
        lines.append(f"{state:<7}" + "".join(f"{getattr(found, n)[layers].mean():>13.1%}" for n in SHORT.values()))
    return lines


SHORT = {"overlap": "overlap", "same set": "same_set", "same best": "same_first", "chance": "chance"}


def quality_lines(rows: Sequence[ChoiceQuality]) -> str:
    """The perplexities as text."""
    head = (
        f"{'router reads':<30}{'nat/token':>10}{'+-':>7}{'perplexity':>12}{'bits/byte':>10}{'difference':>12}{'+-':>8}"
    )
    lines = [
        f"{row.choice:<30}{row.quality.nat_per_token:>10.4f}{known(row.quality.standard_error_nat, 7, 3)}"
        f"{row.quality.perplexity:>12.3f}{known(row.quality.bits_per_byte, 10)}{row.difference_nat:>+12.4f}"
        f"{known(row.difference_error_nat, 8)}"
        for row in rows
    ]
    return "\n".join([head, *lines])


def main(argv: list[str] | None = None) -> None:
    """Command line; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("texts", type=Path, nargs="+", metavar="TEXT", help="UTF-8 text, or token ids: .npy, .json")
    parser.add_argument("--n-tokens", type=int, default=1024, help="of each text the first so many")
    args = parser.parse_args(argv)
    try:
        options = TextOptions(n_tokens=args.n_tokens)
        tokenizer, model = read_tokenizer(args.gguf), resident_model(args.gguf)
        texts = [text_tokens(path, tokenizer, args.n_tokens) for path in args.texts]
        found = [choices(model, text) for text in texts]
        joined = Choices(*(np.concatenate([getattr(each, state) for each in found]) for state in COLUMNS))
        print(mismatch_table(joined))
        print(f"\n{quality_lines(choice_quality(model, texts, tokenizer.n_bytes, options))}")
    except InputError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
