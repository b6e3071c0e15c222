"""
Train the tiny SmallThinker model on the corpus: checkpointed, resumable, growing in depth.

    python -m reference_runtime.training.train CORPUS CHECKPOINT --n-layers 8 --n-steps 3000
    python -m reference_runtime.training.train CORPUS CHECKPOINT --n-layers 16 --n-steps 2000
    python -m reference_runtime.training.train CORPUS CHECKPOINT --n-layers 32 --n-steps 2000 --cool-down

A run goes on from the checkpoint where there is one; a deeper --n-layers grows the stack first.
With --cool-down the learning rate falls linearly to zero over the run's steps, otherwise it is constant
after a warm-up.  Matrices are trained with Muon (orthogonalised momentum), the rest with AdamW.
"""

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from reference_runtime.training.corpus import DOMAINS
from reference_runtime.training.network import Network, NetworkConfig, calm_routers, grown

BALANCE_WEIGHT = 0.01
ROUTER_SCORE_WEIGHT = 1e-3  # on the mean square of the router's scores: a saturated sigmoid does not learn
CALM_SCORE_RMS = 2.0
WARM_UP_STEPS = 50
EVALUATE_EVERY = 100
CHECKPOINT_EVERY_S = 120.0
N_VALIDATION_SEQUENCES = 8


def orthogonalised(matrix: Tensor, n_iterations: int = 5) -> Tensor:
    """Nearest semi-orthogonal matrix by a quintic Newton-Schulz iteration; batches over leading axes."""
    a, b, c = 3.4445, -4.7750, 2.0315  # coefficients of Jordan's Muon
    x = matrix / (matrix.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.transpose(-2, -1)
    for _ in range(n_iterations):
        gram = x @ x.transpose(-2, -1)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(-2, -1) if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum orthogonalised per matrix; for stacks of matrices over the leading axis."""

    def __init__(self, params: list[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.2) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                momentum = state.setdefault("momentum", torch.zeros_like(param))
                momentum.lerp_(param.grad, 1 - group["momentum"])
                update = param.grad.lerp(momentum, group["momentum"])  # Nesterov
                rows, columns = param.shape[-2:]
                scale = 0.2 * math.sqrt(max(rows, columns))  # the root mean square of an AdamW update
                param.mul_(1 - group["lr"] * group["weight_decay"])
                param.add_(orthogonalised(update), alpha=-group["lr"] * scale)


class Batches:
    """Seeded random windows, a stated number from every domain, mixed in one group."""

    def __init__(self, corpus: Path, n_sequences: list[int], n_tokens: int, seed: int) -> None:
        self.tokens = [np.load(corpus / f"{domain}.train.npy", mmap_mode="r") for domain in DOMAINS]
        self.n_sequences, self.n_tokens = n_sequences, n_tokens
        self.rng = np.random.default_rng(seed)

    def draw(self) -> Tensor:
        """(sum of n_sequences, n_tokens + 1) int64."""
        rows = [
            tokens[start : start + self.n_tokens + 1]
            for tokens, n_rows in zip(self.tokens, self.n_sequences, strict=True)
            for start in self.rng.integers(0, len(tokens) - self.n_tokens - 1, n_rows)
        ]
        return torch.from_numpy(np.stack(rows).astype(np.int64))


def validation_windows(corpus: Path, domain: str, n_tokens: int, n_sequences: int) -> Tensor:
    """Evenly spaced windows of the held-out tokens: (n_sequences, n_tokens + 1)."""
    tokens = np.load(corpus / f"{domain}.validation.npy")
    starts = np.linspace(0, len(tokens) - n_tokens - 1, n_sequences).astype(int)
    return torch.from_numpy(np.stack([tokens[s : s + n_tokens + 1] for s in starts]).astype(np.int64))


@torch.no_grad()
def validation_loss(network: Network, corpus: Path, n_tokens: int) -> dict[str, float]:
    """Mean negative log-likelihood in nat per token, a domain each."""
    losses = {}
    for domain in DOMAINS:
        windows = validation_windows(corpus, domain, n_tokens, N_VALIDATION_SEQUENCES)
        logits, *_ = network(windows[:, :-1])
        losses[domain] = float(F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()))
    return losses


def optimisers(network: Network, muon_lr: float, adam_lr: float) -> list[torch.optim.Optimizer]:
    """Muon for attention and expert matrices; AdamW for embedding, norms and routers."""
    matrices, others = [], []
    for name, param in network.named_parameters():
        is_matrix = param.ndim >= 2 and "embedding" not in name and "router" not in name
        (matrices if is_matrix else others).append(param)
    return [Muon(matrices, lr=muon_lr), torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0)]


def save(checkpoint: Path, network: Network, optimizers: list[torch.optim.Optimizer], progress: dict) -> None:
    """Write the checkpoint to a temporary file and rename it."""
    temporary = checkpoint.with_suffix(".tmp")
    torch.save(
        {
            "config": network.config.as_dict(),
            "network": network.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
            "progress": progress,
        },
        temporary,
    )
    os.replace(temporary, checkpoint)


def load(checkpoint: Path) -> tuple[Network, dict]:
    """The network and the rest of a checkpoint."""
    state = torch.load(checkpoint, weights_only=True)
    network = Network(NetworkConfig(**state["config"]))
    network.load_state_dict(state["network"])
    return network, state


def start(args: argparse.Namespace) -> tuple[Network, list[torch.optim.Optimizer], dict]:
    """A fresh network, or the checkpoint's one, grown where a deeper one is asked for."""
    progress = {"n_tokens_seen": 0, "n_steps": 0}
    if not args.checkpoint.exists():
        torch.manual_seed(args.seed)
        network = Network(NetworkConfig(n_layers=args.n_layers))
        return network, optimisers(network, args.muon_lr, args.adam_lr), progress
    network, state = load(args.checkpoint)
    progress |= state.get("progress", {})
    if network.config.n_layers != args.n_layers:
        network = grown(network, args.n_layers)
        return network, optimisers(network, args.muon_lr, args.adam_lr), progress
    result = optimisers(network, args.muon_lr, args.adam_lr)
    for optimizer, optimizer_state in zip(result, state.get("optimizers", []), strict=False):
        optimizer.load_state_dict(optimizer_state)
    return network, result, progress


def learning_rate_frac(step: int, done_frac: float, cool_down: bool) -> float:
    """Warm-up, then constant, or falling linearly to zero over the whole run, of which done_frac is over."""
    warm = min(1.0, (step + 1) / WARM_UP_STEPS)
    return warm * (1 - done_frac if cool_down else 1.0)


def train(args: argparse.Namespace) -> None:
    """Train until the steps or the seconds are used up; every record is one JSON line on standard output."""
    network, optimizers, progress = start(args)
    batches = Batches(args.corpus, args.n_sequences, args.n_tokens, args.seed + progress["n_steps"])
    calm_routers(network, batches.draw()[:, :-1], CALM_SCORE_RMS)
    rates = [args.muon_lr, args.adam_lr]
    began = saved = time.monotonic()
    for step in range(args.n_steps):
        spent_frac = (time.monotonic() - began) / args.max_seconds
        if spent_frac >= 1:
            break
        done_frac = max(step / args.n_steps, spent_frac)  # a cool-down that time cuts short still reaches zero
        frac = learning_rate_frac(step, done_frac, args.cool_down)
        for optimizer, rate in zip(optimizers, rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * frac
        windows = batches.draw()
        logits, balance, mean_square, _ = network(windows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        (loss + BALANCE_WEIGHT * balance + ROUTER_SCORE_WEIGHT * mean_square).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        progress["n_steps"] += 1
        progress["n_tokens_seen"] += sum(args.n_sequences) * args.n_tokens
        if step % 10 == 0:
            record = {"step": progress["n_steps"], "loss": round(loss.item(), 4), "balance": round(balance.item(), 4)}
            record |= {
                "score_rms": round(mean_square.item() ** 0.5, 2),
                "tokens": progress["n_tokens_seen"],
                "seconds": round(time.monotonic() - began, 1),
            }
            print(json.dumps(record), flush=True)
        if (step + 1) % EVALUATE_EVERY == 0:
            print(json.dumps({"validation": validation_loss(network, args.corpus, args.n_tokens)}), flush=True)
        if time.monotonic() - saved > CHECKPOINT_EVERY_S:
            save(args.checkpoint, network, optimizers, progress)
            saved = time.monotonic()
    save(args.checkpoint, network, optimizers, progress)
    print(json.dumps({"validation": validation_loss(network, args.corpus, args.n_tokens)}), flush=True)


def main(argv: list[str] | None = None) -> None:
    """Command line; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--n-layers", type=int, default=32)
    parser.add_argument("--n-steps", type=int, default=1000)
    parser.add_argument(
        "--n-sequences",
        type=int,
        nargs=len(DOMAINS),
        default=[8] * len(DOMAINS),
        metavar=DOMAINS,
        help="sequences in a group, of each domain",
    )
    parser.add_argument("--n-tokens", type=int, default=256, help="tokens in a sequence")
    parser.add_argument("--muon-lr", type=float, default=0.004)
    parser.add_argument("--adam-lr", type=float, default=0.004)
    parser.add_argument("--max-seconds", type=float, default=math.inf)
    parser.add_argument("--cool-down", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
