"""
Evaluate a trained model: its loss against the trigram baseline, and whether its routing means something.

    python -m reference_runtime.training.evaluate MODEL.gguf CORPUS [--n-windows 64] [--n-tokens 256] [--json]

CORPUS is the folder that reference_runtime.training.corpus builds.  The model and the baseline predict the same
held-out tokens; both see what stands before a window, the model the last --n-context tokens of it.
The matrices are small: OMP_NUM_THREADS=1 makes this faster on a busy machine.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from moeplan.errors import InputError
from reference_runtime.forward import forward
from reference_runtime.kernels.plain import PlainKernels
from reference_runtime.kv_cache import KVCache
from reference_runtime.loading.gguf_weights import read_weights
from reference_runtime.loading.tokenizer import read_tokenizer
from reference_runtime.loading.weight_loading import model_of
from reference_runtime.model import Model
from reference_runtime.quality.perplexity import token_losses
from reference_runtime.training.baseline import fit_trigram
from reference_runtime.training.corpus import DOMAINS
from reference_runtime.training.routing_statistics import DomainRouting, RoutingReport, routing_report


@dataclass(frozen=True)
class DomainLoss:
    """Losses on one domain's held-out tokens in nat per token; standard_error is that of the margin, over windows."""

    domain: str
    n_tokens: int
    model_nat: float
    trigram_nat: float
    margin_nat: float
    standard_error_nat: float
    model_bits_per_byte: float
    trigram_bits_per_byte: float


@dataclass(frozen=True, eq=False)
class WindowResults:
    """The model on the held-out windows of one domain, (n_windows, n_tokens) losses in nat."""

    losses: np.ndarray
    routing: DomainRouting


def load_tokens(corpus: Path, domain: str, split: str) -> np.ndarray:
    """uint16 token ids of one split. Raises InputError."""
    path = corpus / f"{domain}.{split}.npy"
    try:
        return np.load(path)
    except (OSError, ValueError, EOFError) as error:
        advice = "build it with reference_runtime.training.corpus"
        raise InputError(str(path), "must be a token array", error, advice) from error


def window_starts(n_stream: int, n_windows: int, n_tokens: int, n_context: int) -> np.ndarray:
    """
    Evenly spaced places in the stream of the first token that a window feeds; its n_tokens targets begin one later,
    n_context tokens stand before it.  Raises InputError.
    """
    before = max(2, n_context)  # the baseline looks two tokens back
    room = n_stream - n_tokens - 1 - before
    if room < 0:
        must = f"and --n-context together must be at most {n_stream - 3}, the held-out text's length"
        raise InputError("--n-tokens", must, n_tokens + n_context)
    return np.linspace(before, before + room, n_windows).astype(int)


def run_windows(model: Model, stream: np.ndarray, starts: np.ndarray, n_tokens: int, n_context: int) -> WindowResults:
    """Each window after its context from an empty KV cache."""
    losses, ids, zero = [], [], []
    for start in starts:
        window = stream[start - n_context : start + n_tokens + 1].astype(np.int64)
        cache = KVCache(model.config, n_context + n_tokens)
        if n_context:
            forward(model, window[:n_context], cache, last_logits_only=True)
        result = forward(model, window[n_context:-1], cache)
        losses.append(token_losses(result.logits, window[n_context + 1 :]))
        ids.append(result.expert_ids)
        zero.append(result.zero_gate_frac)
    routing = DomainRouting.of(np.stack(ids), np.mean(zero, axis=0), model.config.n_experts)
    return WindowResults(np.stack(losses), routing)


def domain_loss(domain: str, model: np.ndarray, trigram: np.ndarray, n_bytes: int) -> DomainLoss:
    """Compare the losses, each (n_windows, n_tokens) in nat, of text that takes n_bytes of UTF-8."""
    margins = (trigram - model).mean(axis=1)  # (n_windows,)
    bits_per_nat = 1 / np.log(2)
    return DomainLoss(
        domain=domain,
        n_tokens=model.size,
        model_nat=float(model.mean()),
        trigram_nat=float(trigram.mean()),
        margin_nat=float(margins.mean()),
        standard_error_nat=float(margins.std(ddof=1) / len(margins) ** 0.5),
        model_bits_per_byte=float(model.sum() * bits_per_nat / n_bytes),
        trigram_bits_per_byte=float(trigram.sum() * bits_per_nat / n_bytes),
    )


def evaluate(
    gguf: Path, corpus: Path, n_windows: int, n_tokens: int, n_context: int
) -> tuple[list[DomainLoss], RoutingReport]:
    """Losses and routing of all domains. Raises InputError."""
    model, n_bytes = model_of(read_weights(gguf), PlainKernels()), read_tokenizer(gguf).n_bytes
    if n_context < 0:
        raise InputError("--n-context", "must be at least 0", n_context)
    if n_windows < 2:
        raise InputError("--n-windows", "must be at least 2, the halves are compared", n_windows)
    losses, routings = [], {}
    for domain in DOMAINS:
        stream = load_tokens(corpus, domain, "validation")
        starts = window_starts(len(stream), n_windows, n_tokens, n_context)
        windows = run_windows(model, stream, starts, n_tokens, n_context)
        targets = (starts[:, None] + np.arange(1, n_tokens + 1)).ravel()  # places in the stream
        train, development = (load_tokens(corpus, domain, split) for split in ("train", "development"))
        trigram = fit_trigram(train, development, model.config.vocab_size).losses(stream, targets)
        text_bytes = int(n_bytes[stream[targets]].sum())
        losses.append(domain_loss(domain, windows.losses, trigram.reshape(n_windows, -1), text_bytes))
        routings[domain] = windows.routing
    return losses, routing_report(routings)


def loss_table(losses: list[DomainLoss]) -> str:
    """The losses as text; a positive margin: the model is better."""
    head = f"{'domain':<10}{'tokens':>8}{'model':>9}{'trigram':>9}{'margin':>9}{'+-':>7}{'bits/byte':>11}{'trigram':>9}"
    rows = [
        f"{r.domain:<10}{r.n_tokens:>8}{r.model_nat:>9.4f}{r.trigram_nat:>9.4f}{r.margin_nat:>+9.4f}"
        f"{r.standard_error_nat:>7.3f}{r.model_bits_per_byte:>11.3f}{r.trigram_bits_per_byte:>9.3f}"
        for r in losses
    ]
    return "\n".join(["Loss on held-out text, nat per token", head, *rows])


def main(argv: list[str] | None = None) -> None:
    """Command line; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--n-windows", type=int, default=64, help="windows of a domain")
    parser.add_argument("--n-tokens", type=int, default=256, help="tokens of a window")
    parser.add_argument("--n-context", type=int, default=256, help="tokens that the model sees before a window")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the tables")
    args = parser.parse_args(argv)
    try:
        losses, routing = evaluate(args.gguf, args.corpus, args.n_windows, args.n_tokens, args.n_context)
    except InputError as error:
        parser.exit(2, f"{error}\n")
    if args.json:
        print(json.dumps({"loss": [asdict(loss) for loss in losses], "routing": asdict(routing)}, indent=1))
    else:
        print(loss_table(losses), routing.table(), sep="\n\n")


if __name__ == "__main__":
    main()
