"""
The quality that stands beside a speed: an open runtime, as it is run, scored on held-out text.

A window is llama.cpp's: 512 tokens from an empty KV cache, of which the second half is scored, so every token but the
first of the text counts once and has at least 256 before it where the text has them.  A model whose context is shorter
has shorter windows.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import isinf
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from moeplan.errors import InputError
from reference_runtime.loading.token_files import is_token_file, read_token_ids, text_tokens
from reference_runtime.loading.tokenizer import read_tokenizer
from reference_runtime.loading.weight_loading import open_model
from reference_runtime.process_memory import peak_rss_bytes, reset_peak, rss_bytes
from reference_runtime.quality.lm_head_predictor import LmHeadPredictor, MaskedHead
from reference_runtime.quality.perplexity import N_CONTEXT, WINDOW_TOKENS, Quality, TokenScores, quality, score_tokens
from reference_runtime.run import Task
from reference_runtime.runtime import Runtime

PROMPT_TOKENS = 128  # of the text, before the tokens that the speed is measured on
LOGITS_AT_ONCE = 2**18  # in memory; some 30 bytes each while they are scored, beside the RAM cap
LEAST_ROWS = 8  # tokens whose logits are computed at once, however large the vocabulary: one by one is slow
FILLS = {"0": 0.0, "-inf": -np.inf}  # the authors' engine sets masked logits to 0


@dataclass(frozen=True)
class PredictorQuality:
    """
    The model with the LM-head predictor: exact logits for the rows that it picks, masked_logits ("0" as the authors'
    engine does, or "-inf") for the others.

    exact_frac: mean share of the vocabulary with exact logits; missed_frac: share of tokens whose most probable token
    was masked; ruled_out_frac: share of tokens to which it gave no probability at all, which makes the loss infinite.
    """

    masked_logits: str
    quality: Quality
    exact_frac: float
    missed_frac: float
    ruled_out_frac: float

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values, the quality's own fields beside the others, null for what is not finite."""
        return _finite({name: value for name, value in asdict(self).items() if name != "quality"}, self.quality)


@dataclass(frozen=True)
class Evaluation:
    """
    The answer of `moeplan run --evaluate`; in JSON it stands under `quality`.

    n_tokens, nat_per_token, standard_error_nat, perplexity, bits_per_byte, top_1_accuracy: see perplexity.Quality.
    text: the file; scoring_s: seconds of the scoring alone; scored_tokens_per_s = n_tokens / scoring_s, prefill in
    chunks, each window's context included in the time; scoring_bytes: what scoring took at its peak beside all that was
    resident before, KV and logits above all, None where the system does not say.
    lm_head_predictor: one entry a masking, none without a predictor.
    """

    text: str
    quality: Quality
    n_context: int
    window_tokens: int
    scoring_s: float
    scoring_bytes: int | None
    lm_head_predictor: tuple[PredictorQuality, ...] = ()

    @property
    def scored_tokens_per_s(self) -> float:
        """Tokens scored in a second."""
        return self.quality.n_tokens / self.scoring_s

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values, the quality's own fields beside the others, null for what is not finite."""
        own = asdict(self)
        own = {name: own[name] for name in ("text", "n_context", "window_tokens", "scoring_s", "scoring_bytes")}
        own["scored_tokens_per_s"] = self.scored_tokens_per_s
        return _finite(own, self.quality) | {
            "lm_head_predictor": [masked.as_json() for masked in self.lm_head_predictor]
        }


@dataclass(frozen=True, eq=False)
class HeldOutText:
    """Token ids (n,) of a text that a model has not seen, cut into windows that fit the model."""

    name: str
    token_ids: np.ndarray
    window_tokens: int
    context_length: int
    predictor: LmHeadPredictor | None

    @staticmethod
    def read(model: Path, text: Path, n_tokens: int | None = None, predictor: Path | None = None) -> "HeldOutText":
        """
        The first n_tokens of a UTF-8 text or of a file of ids (.npy, .json), and the predictor's .npz.

        Raises InputError for what cannot be read, another model's ids or predictor and fewer than 2 tokens.
        """
        config = open_model(model).config
        if is_token_file(text):
            ids = read_token_ids(text, config.vocab_size)[:n_tokens]
        else:
            ids = text_tokens(text, read_tokenizer(model), n_tokens)
        if len(ids) < 2:
            raise InputError(str(text), "must have at least 2 tokens", len(ids))
        head = None if predictor is None else LmHeadPredictor.load(predictor, config.hidden_size, config.vocab_size)
        window_tokens = min(WINDOW_TOKENS, config.context_length, len(ids))
        return HeldOutText(str(text), ids, window_tokens, config.context_length, head)

    def task(self, n_decode: int, n_warm_up: int = 0) -> Task:
        """A run to measure the speed on: the text's first tokens as prompt, the next ones forced."""
        n_decode = min(n_decode, len(self.token_ids) - 1, self.context_length - 1)
        n_prompt = min(PROMPT_TOKENS, len(self.token_ids) - n_decode, self.context_length - n_decode)
        forced = self.token_ids[n_prompt : n_prompt + n_decode].tolist()
        said = {"prompt": f"the first tokens of {Path(self.name).name}"}
        return Task(self.token_ids[:n_prompt].tolist(), n_decode, forced=forced, n_warm_up=n_warm_up, conditions=said)

    def evaluate(self, runtime: Runtime, progress: Callable[[int, int], None] | None = None) -> Evaluation:
        """
        Score the text with an open runtime whose capacity is at least window_tokens.

        progress is called with the tokens done and all of them.  Raises InputError.
        """
        heads = {} if self.predictor is None else {k: MaskedHead(self.predictor, fill) for k, fill in FILLS.items()}
        n_context, vocab_size = min(N_CONTEXT, self.window_tokens // 2), runtime.model.config.vocab_size
        before, can_tell, start_s = rss_bytes(), reset_peak(), perf_counter()
        scores = score_tokens(
            runtime.model,
            self.token_ids,
            n_context=n_context,
            window_tokens=self.window_tokens,
            chunk_tokens=runtime.options.chunk_tokens,
            logit_rows=max(LEAST_ROWS, LOGITS_AT_ONCE // vocab_size),
            heads=dict(heads),
            progress=progress,
        )
        scoring_s = perf_counter() - start_s
        n_bytes = _token_bytes(runtime)
        masked = tuple(_masked(name, head, scores[name], n_bytes) for name, head in heads.items())
        return Evaluation(
            text=self.name,
            quality=quality(scores[""], n_bytes),
            n_context=n_context,
            window_tokens=self.window_tokens,
            scoring_s=scoring_s,
            scoring_bytes=max(0, peak_rss_bytes() - before) if can_tell else None,
            lm_head_predictor=masked,
        )


def _masked(name: str, head: MaskedHead, scores: TokenScores, n_bytes: np.ndarray | None) -> PredictorQuality:
    ruled_out = float(np.isinf(scores.losses).mean())
    return PredictorQuality(name, quality(scores, n_bytes), head.active_frac, head.missed_frac, ruled_out)


def _token_bytes(runtime: Runtime) -> np.ndarray | None:
    """(vocab,) bytes of each token's text, None where the tokenizer does not know them all."""
    tokenizer = runtime.tokenizer
    if tokenizer is None or tokenizer.vocab_size < runtime.model.config.vocab_size:
        return None
    return tokenizer.n_bytes


def _finite(own: dict[str, Any], found: Quality) -> dict[str, Any]:
    values = own | asdict(found)
    return {name: None if isinstance(v, float) and isinf(v) else v for name, v in values.items()}
