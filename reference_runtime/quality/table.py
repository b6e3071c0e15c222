"""
The quality that goes with a speed: a model on held-out text, and what each way of making it faster costs.

    python -m reference_runtime.quality.table MODEL.gguf TEXT... [--predictor-text OTHER...] [--also FILE.gguf]

A TEXT is a UTF-8 file, or an .npy or .json of token ids.  The rows: the model as its file has it, rounded once more to
Q4_0, fewer experts per token, and the LM-head predictor, which is fitted on the --predictor-text (never on a TEXT).
All rows score the same tokens, so the error of a difference is much below that of a row.  Arithmetic is plain float32.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType

from moeplan.errors import InputError
from reference_runtime.kernels.plain import PlainKernels
from reference_runtime.loading.gguf_stream import requantise
from reference_runtime.loading.token_files import text_tokens
from reference_runtime.loading.tokenizer import read_tokenizer
from reference_runtime.loading.weight_loading import ResidentExperts, load_dense, open_model
from reference_runtime.model import Model
from reference_runtime.quality.lm_head_predictor import HIDDEN_PER_RANK, LmHeadPredictor, MaskedHead, PredictorFit
from reference_runtime.quality.perplexity import (
    N_CONTEXT,
    WINDOW_TOKENS,
    Head,
    Quality,
    TokenScores,
    join_texts,
    quality,
    score_tokens,
    standard_error,
)

FULL = "as in the file"


@dataclass(frozen=True)
class TextOptions:
    """How texts are scored; n_tokens: of each text the first so many, None: all."""

    n_context: int = N_CONTEXT
    window_tokens: int = WINDOW_TOKENS
    n_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.n_tokens is not None and self.n_tokens < 2:
            raise InputError("--n-tokens", "must be at least 2, the first is only context", self.n_tokens)


@dataclass(frozen=True)
class QualityRow:
    """
    A variant on the texts.

    difference_nat: its nat per token less the full model's, on the same tokens, with its own standard error.
    top_1_agreement: share of tokens for which both call the same token the most probable.
    """

    variant: str
    quality: Quality
    difference_nat: float
    difference_error_nat: float | None
    top_1_agreement: float
    note: str = ""


def resident_model(path: Path) -> Model:
    """A model with all its weights in memory as its file has them, on the plain kernels. Raises InputError."""
    model_file = open_model(path)
    return Model(model_file.config, load_dense(model_file), ResidentExperts.read(model_file), PlainKernels())


def evaluate_text(
    model: Model, token_ids: np.ndarray, n_bytes: np.ndarray | None = None, options: TextOptions | None = None
) -> Quality:
    """One model on one text; n_bytes: (vocab,) bytes of each token, for bits per byte. Raises InputError."""
    return quality(_score(model, [token_ids], options or TextOptions())[""], n_bytes)


def fit_predictor(model: Model, texts: Sequence[np.ndarray], rank: int, options: TextOptions) -> LmHeadPredictor:
    """Fit an LM-head predictor on the model's own states over texts that nothing is scored on. Raises InputError."""
    fit = PredictorFit(model.config.hidden_size, model.config.vocab_size)

    def listen(hidden: np.ndarray, logits: np.ndarray) -> np.ndarray:
        fit.add(hidden, logits)
        return logits

    _score(model, texts, options, {"fit": listen})
    return fit.solve(rank)


def quality_table(
    path: Path,
    texts: Sequence[np.ndarray],
    n_bytes: np.ndarray | None = None,
    *,
    options: TextOptions | None = None,
    predictor: LmHeadPredictor | None = None,
    also: Sequence[Path] = (),
) -> Iterator[QualityRow]:
    """The rows, one by one as they are done: the first is the full model. Raises InputError."""
    options = options or TextOptions()
    model = resident_model(path)
    heads = {} if predictor is None else masked_heads(predictor)
    scores = _score(model, texts, options, dict(heads))
    full = scores.pop("")
    yield _row(FULL, full, full, n_bytes)
    for other in also:
        yield _row(other.name, _score(resident_model(other), texts, options)[""], full, n_bytes)
    with tempfile.TemporaryDirectory() as folder:
        rounded = Path(folder) / "rounded.gguf"
        requantise(path, rounded, GGMLQuantizationType.Q4_0)
        yield _row("rounded to Q4_0", _score(resident_model(rounded), texts, options)[""], full, n_bytes)
    for top_k in range(model.config.top_k - 1, 0, -1):
        fewer = replace(model, config=replace(model.config, top_k=top_k))
        yield _row(f"top-{top_k} experts", _score(fewer, texts, options)[""], full, n_bytes)
    for name, masked in scores.items():
        yield _row(name, masked, full, n_bytes, _head_note(heads[name], masked))


def masked_heads(predictor: LmHeadPredictor) -> dict[str, MaskedHead]:
    """The predictor as the authors' engine uses it, with a lower threshold, and with -inf instead of 0."""
    return {
        "LM-head predictor, others 0": MaskedHead(predictor, 0.0),
        "the same, threshold -2": MaskedHead(predictor, 0.0, threshold=-2.0),
        "the same, others -inf": MaskedHead(predictor, -np.inf),
        "-inf, threshold -2": MaskedHead(predictor, -np.inf, threshold=-2.0),
    }


def _head_note(head: MaskedHead, scores: TokenScores) -> str:
    note = f"{head.active_frac:.1%} of rows exact, best row masked on {head.missed_frac:.1%} of tokens"
    ruled_out = float(np.isinf(scores.losses).mean())
    return f"{note}, the token that came on {ruled_out:.1%}" if ruled_out else note


def _score(
    model: Model, texts: Sequence[np.ndarray], options: TextOptions, heads: dict[str, Head] | None = None
) -> dict[str, TokenScores]:
    """Scores by head over all texts."""
    if not texts:
        raise InputError("texts", "must be at least one", "none")
    each = [
        score_tokens(
            model,
            text[: options.n_tokens],
            n_context=options.n_context,
            window_tokens=options.window_tokens,
            heads=heads,
        )
        for text in texts
    ]
    return {name: join_texts([scores[name] for scores in each]) for name in each[0]}


def _row(
    variant: str, scores: TokenScores, full: TokenScores, n_bytes: np.ndarray | None, note: str = ""
) -> QualityRow:
    difference = scores.losses - full.losses
    return QualityRow(
        variant=variant,
        quality=quality(scores, n_bytes),
        difference_nat=float(difference.mean()),
        difference_error_nat=standard_error(difference, full.window),
        top_1_agreement=float((scores.top_ids == full.top_ids).mean()),
        note=note,
    )


HEADER = (
    f"{'variant':<28}{'nat/token':>10}{'+-':>7}{'perplexity':>12}{'bits/byte':>10}{'difference':>12}{'+-':>8}"
    f"{'top-1 as full':>15}"
)


def format_row(row: QualityRow) -> str:
    """A row under HEADER."""
    q = row.quality
    cells = [
        f"{row.variant:<28}{q.nat_per_token:>10.4f}{known(q.standard_error_nat, 7, 3)}{q.perplexity:>12.3f}",
        f"{known(q.bits_per_byte, 10)}{row.difference_nat:>+12.4f}{known(row.difference_error_nat, 8)}",
        f"{row.top_1_agreement:>15.1%}{'  ' + row.note if row.note else ''}",
    ]
    return "".join(cells)


def known(value: float | None, width: int, digits: int = 4) -> str:
    """A number in so many columns, "-" where it is not known."""
    return f"{'-':>{width}}" if value is None else f"{value:>{width}.{digits}f}"


def main(argv: list[str] | None = None) -> None:
    """Command line; see the top of this file."""
    args = _parser().parse_args(argv)
    try:
        options = TextOptions(args.n_context, args.window, args.n_tokens)
        tokenizer = read_tokenizer(args.gguf)
        texts = [text_tokens(path, tokenizer, args.n_tokens) for path in args.texts]
        predictor = None
        if args.predictor_text:
            model = resident_model(args.gguf)
            rank = max(1, model.config.hidden_size // HIDDEN_PER_RANK) if args.rank is None else args.rank
            others = [text_tokens(path, tokenizer, args.n_tokens) for path in args.predictor_text]
            predictor = fit_predictor(model, others, rank, options)
            print(f"LM-head predictor: rank {rank}, fitted on {sum(map(len, others))} tokens of other text")
        n_tokens = sum(len(text) - 1 for text in texts)
        print(f"{args.gguf}: {n_tokens} tokens, each with {args.n_context} before it where the text has them\n{HEADER}")
        table = quality_table(args.gguf, texts, tokenizer.n_bytes, options=options, predictor=predictor, also=args.also)
        for row in table:
            print(format_row(row), flush=True)
    except InputError as error:
        _parser().exit(2, f"{error}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("texts", type=Path, nargs="+", metavar="TEXT")
    parser.add_argument("--predictor-text", type=Path, nargs="+", default=[], help="what the predictor is fitted on")
    parser.add_argument("--rank", type=int, help=f"of the predictor; default: hidden size / {HIDDEN_PER_RANK}")
    parser.add_argument("--also", type=Path, nargs="+", default=[], help="other files of the same model, as F32")
    parser.add_argument("--n-tokens", type=int, help="of each text the first so many; default: all")
    parser.add_argument("--n-context", type=int, default=N_CONTEXT, help="tokens before a scored one, at least")
    parser.add_argument("--window", type=int, default=WINDOW_TOKENS, help="tokens that go in from an empty KV cache")
    return parser


if __name__ == "__main__":
    main()
