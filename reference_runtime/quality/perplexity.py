"""
How well a model predicts a text it has not seen: nat per token, perplexity and bits per byte.

    nat per token = mean of -ln p(token | the tokens before it);  perplexity = e^that

The text is cut into overlapping windows, each run from an empty KV cache, so that a text may be longer than the
model's context.  Every token but the first is scored exactly once, and with at least `n_context` tokens before it
where the text has them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from moeplan.errors import InputError
from reference_runtime.forward import OWN_ROUTER, Router, forward, lm_head
from reference_runtime.kv_cache import KVCache
from reference_runtime.model import Model

N_CONTEXT, WINDOW_TOKENS = 256, 512  # a window of llama.cpp's perplexity, whose second half is scored
CHUNK_TOKENS = 256  # tokens that go through the model at once
LEAST_WINDOWS = 5  # with fewer the standard error is itself off by 1 / sqrt(2 (w - 1)), more than a third


class Window(NamedTuple):
    """Tokens start to end - 1 of a text are run, and those from first_scored on are scored."""

    start: int
    first_scored: int
    end: int


class Head(Protocol):
    """Another LM head than the model's own: from hidden states (n, hidden) and exact logits (n, vocab) to logits."""

    def __call__(self, hidden: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """float32 (n, vocab)."""
        ...


@dataclass(frozen=True, eq=False)
class TokenScores:
    """What a model said about each scored token of a text, in the text's order."""

    losses: np.ndarray  # float64 (n,): -ln p(token) in nat
    top_ids: np.ndarray  # int64 (n,): the most probable token, the lowest id of equals
    target_ids: np.ndarray  # int64 (n,): the token that came
    window: np.ndarray  # int64 (n,): the window it was scored in


@dataclass(frozen=True)
class Quality:
    """
    A model on a text; standard_error_nat is that of nat_per_token, over windows as the independent draws.

    It is None for a single window or an infinite loss, bits_per_byte where the bytes of a token are unknown.
    """

    n_tokens: int
    nat_per_token: float
    standard_error_nat: float | None
    perplexity: float
    bits_per_byte: float | None
    top_1_accuracy: float


def windows(n_tokens: int, n_context: int, length: int) -> Iterator[Window]:
    """
    Windows of at most length tokens over a text of n_tokens; the next one begins n_context before what it scores.

    Raises InputError for a text of fewer than 2 tokens and a window that leaves nothing to score.
    """
    if n_tokens < 2:
        raise InputError("text", "must have at least 2 tokens", n_tokens)
    if not 1 <= n_context < length:
        raise InputError("--n-context", f"must be 1 to {length - 1}, below the window of {length} tokens", n_context)
    start, scored = 0, 1
    while scored < n_tokens:
        end = min(start + length, n_tokens)
        yield Window(start, scored, end)
        start, scored = end - n_context, end


def token_losses(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """-ln softmax(logits)[target] in nat, float64 (n,); logits: (n, vocab), -inf for a token that cannot come."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=-1)) - shifted[np.arange(len(targets)), targets]


def score_tokens(
    model: Model,
    token_ids: np.ndarray,
    *,
    n_context: int,
    window_tokens: int,
    chunk_tokens: int | None = None,
    logit_rows: int | None = None,
    heads: dict[str, Head] | None = None,
    router: Router = OWN_ROUTER,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, TokenScores]:
    """
    Score a text, (n_tokens,) ids, with the model's own head ("") and others by name, in one pass.

    chunk_tokens: tokens that go through the layers at once; logit_rows: of them, tokens whose logits are in memory at
    once, None for all.  progress: called with the tokens done and all of them.  Raises InputError.
    """
    token_ids = np.asarray(token_ids).astype(np.int64)
    chunk_tokens = chunk_tokens or CHUNK_TOKENS
    all_heads: dict[str, Head] = {"": lambda hidden, logits: logits} | (heads or {})
    rows: dict[str, list[TokenScores]] = {name: [] for name in all_heads}
    for index, window in enumerate(windows(len(token_ids), n_context, window_tokens)):
        for hidden, targets in _run_window(model, token_ids, window, router, chunk_tokens, logit_rows):
            logits = lm_head(model, hidden)
            for name, head in all_heads.items():
                said = head(hidden, logits)
                scores = TokenScores(
                    token_losses(said, targets), said.argmax(axis=-1), targets, np.full(len(targets), index)
                )
                rows[name].append(scores)
        if progress is not None:
            progress(window.end, len(token_ids))
    return {name: join(parts) for name, parts in rows.items()}


def _run_window(
    model: Model, token_ids: np.ndarray, window: Window, router: Router, chunk_tokens: int, logit_rows: int | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Hidden states (n, hidden) and targets (n,) of the scored tokens, at most logit_rows at a time."""
    inputs = token_ids[window.start : window.end - 1]  # the last token is a target only
    cache = KVCache(model.config, len(inputs))
    n_unscored = window.first_scored - 1 - window.start  # inputs whose prediction another window has scored
    cuts = [*range(0, n_unscored, chunk_tokens), *range(n_unscored, len(inputs), chunk_tokens), len(inputs)]
    for at, stop in pairwise(cuts):
        hidden = forward(model, inputs[at:stop], cache, router=router, hidden_only=True).hidden
        if at >= n_unscored:
            targets = token_ids[window.start + at + 1 : window.start + stop + 1]
            rows = logit_rows or len(hidden)
            for first in range(0, len(hidden), rows):
                yield hidden[first : first + rows], targets[first : first + rows]


def join(parts: Sequence[TokenScores]) -> TokenScores:
    """The scores of several chunks of a text as one."""
    columns = ("losses", "top_ids", "target_ids", "window")
    return TokenScores(*(np.concatenate([getattr(part, name) for part in parts]) for name in columns))


def join_texts(texts: Sequence[TokenScores]) -> TokenScores:
    """The scores of several texts as one, their windows kept apart."""
    firsts = np.cumsum([0, *(int(text.window.max()) + 1 for text in texts[:-1])])
    parts = [
        TokenScores(text.losses, text.top_ids, text.target_ids, text.window + first)
        for text, first in zip(texts, firsts, strict=True)
    ]
    return join(parts)


def quality(scores: TokenScores, n_bytes: np.ndarray | None = None) -> Quality:
    """Sum the scores up; n_bytes: (vocab,) bytes of each token's text."""
    mean = float(scores.losses.mean())
    text_bytes = 0 if n_bytes is None else int(n_bytes[scores.target_ids].sum())
    with np.errstate(over="ignore"):
        perplexity = float(np.exp(np.float64(mean)))
    return Quality(
        n_tokens=len(scores.losses),
        nat_per_token=mean,
        standard_error_nat=standard_error(scores.losses, scores.window),
        perplexity=perplexity,
        bits_per_byte=float(scores.losses.sum() / np.log(2) / text_bytes) if text_bytes else None,
        top_1_accuracy=float((scores.top_ids == scores.target_ids).mean()),
    )


def standard_error(values: np.ndarray, window: np.ndarray) -> float | None:
    """
    Standard error of the mean of values (n,), windows as clusters; None for fewer than LEAST_WINDOWS and for values
    that are not finite.

        sqrt(w / (w - 1) * sum over windows of (sum - mean * count)^2) / n,  w windows
    """
    numbers, place = np.unique(window, return_inverse=True)
    n_windows = len(numbers)
    if n_windows < LEAST_WINDOWS or not np.isfinite(values).all():
        return None
    residuals = np.bincount(place, weights=values - values.mean())
    return float(np.sqrt(n_windows / (n_windows - 1) * np.square(residuals).sum()) / len(values))
