"""Whether routing differs between domains and is spread over the experts: entropy and Jensen-Shannon divergence."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np


@dataclass(frozen=True, eq=False)
class DomainRouting:
    """
    Counts of how often each expert was chosen, int64 (2, n_layers, n_experts), and the share of shut gates (n_layers,).

    The two halves are the even and the odd windows of the domain: their divergence is what chance alone gives.
    """

    halves: np.ndarray
    zero_gate_frac: np.ndarray

    @classmethod
    def of(cls, expert_ids: np.ndarray, zero_gate_frac: np.ndarray, n_experts: int) -> "DomainRouting":
        """From ids (n_windows, n_tokens, n_layers, top_k)."""
        n_layers = expert_ids.shape[2]
        halves = np.zeros((2, n_layers, n_experts), dtype=np.int64)
        for half in (0, 1):
            for layer in range(n_layers):
                halves[half, layer] = np.bincount(expert_ids[half::2, :, layer].ravel(), minlength=n_experts)
        return cls(halves, zero_gate_frac)

    @property
    def counts(self) -> np.ndarray:
        """Both halves together, (n_layers, n_experts)."""
        return self.halves.sum(axis=0)


def entropy_bits(counts: np.ndarray) -> np.ndarray:
    """-sum p log2 p over the last axis of counts."""
    p = counts / counts.sum(axis=-1, keepdims=True)
    return -np.sum(p * np.log2(np.where(p > 0, p, 1)), axis=-1)


def divergence_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """
    Jensen-Shannon divergence over the last axis of two arrays of counts: 0 (the same) to 1 (no expert in common).

        JS = H((p + q) / 2) - (H(p) + H(q)) / 2                                    (Lin 1991)
    """
    p, q = a / a.sum(axis=-1, keepdims=True), b / b.sum(axis=-1, keepdims=True)
    return entropy_bits(p + q) - (entropy_bits(p) + entropy_bits(q)) / 2


@dataclass(frozen=True)
class RoutingReport:
    """
    Entropies in bits, pooled over domains of equal size; divergences in bits, means over layers.

    between: a pair of domains -> divergence of half against half, so it compares with `within` at equal sample size.
    """

    n_experts: int
    uniform_bits: float
    layer_load_bits: list[float]
    layer_busiest_frac: list[float]
    domain_load_bits: dict[str, float]
    within_bits: dict[str, float]
    between_bits: dict[str, float]
    layer_between_bits: list[float]
    layer_within_bits: list[float]
    domain_zero_gate_frac: dict[str, float]
    layer_zero_gate_frac: list[float]

    def table(self) -> str:
        """The report as text."""
        between, within = list(self.between_bits.values()), list(self.within_bits.values())
        lines = [
            f"Routing over {len(self.layer_load_bits)} layers of {self.n_experts} experts",
            f"load entropy, all domains: {_spread(self.layer_load_bits, '.3f')} bits, uniform {self.uniform_bits:.0f}",
            f"busiest expert's share: {_spread(self.layer_busiest_frac, '.1%')} (uniform: {1 / self.n_experts:.1%})",
            "load entropy of one domain, mean of layers, bits: " + _named(self.domain_load_bits, ".3f"),
            "",
            f"Jensen-Shannon divergence between domains: mean {np.mean(between):.4f} bits, "
            f"within a domain (split halves, the noise floor): {np.mean(within):.4f}, "
            f"ratio {np.mean(between) / np.mean(within):.1f}",
            *(f"  {pair:<20}{value:>8.4f}" for pair, value in self.between_bits.items()),
            *(f"  within {name:<13}{value:>8.4f}" for name, value in self.within_bits.items()),
            "",
            f"{'layer':>5}{'load bits':>11}{'between':>9}{'within':>9}{'gate zero':>11}",
            *(
                f"{i:>5}{load:>11.3f}{between:>9.4f}{within:>9.4f}{zero:>11.1%}"
                for i, (load, between, within, zero) in enumerate(
                    zip(
                        self.layer_load_bits,
                        self.layer_between_bits,
                        self.layer_within_bits,
                        self.layer_zero_gate_frac,
                        strict=True,
                    )
                )
            ),
            "",
            f"Gate neurons at zero: {np.mean(self.layer_zero_gate_frac):.1%}; "
            + _named(self.domain_zero_gate_frac, ".1%"),
        ]
        return "\n".join(lines)


def _spread(values: list[float], style: str) -> str:
    return f"mean {np.mean(values):{style}}, lowest layer {min(values):{style}}, highest {max(values):{style}}"


def _named(values: dict[str, float], style: str) -> str:
    return ", ".join(f"{name} {value:{style}}" for name, value in values.items())


def routing_report(routings: dict[str, DomainRouting]) -> RoutingReport:
    """Compare the routing of at least two domains, each with the same number of tokens."""
    pooled = np.sum([routing.counts for routing in routings.values()], axis=0)  # (n_layers, n_experts)
    within = {name: divergence_bits(*routing.halves) for name, routing in routings.items()}  # (n_layers,) each
    between = {
        f"{a} / {b}": _half_against_half(routings[a].halves, routings[b].halves) for a, b in combinations(routings, 2)
    }
    zero = {name: routing.zero_gate_frac for name, routing in routings.items()}
    return RoutingReport(
        n_experts=pooled.shape[1],
        uniform_bits=float(np.log2(pooled.shape[1])),
        layer_load_bits=entropy_bits(pooled).tolist(),
        layer_busiest_frac=(pooled.max(axis=1) / pooled.sum(axis=1)).tolist(),
        domain_load_bits={name: float(entropy_bits(r.counts).mean()) for name, r in routings.items()},
        within_bits={name: float(value.mean()) for name, value in within.items()},
        between_bits={name: float(value.mean()) for name, value in between.items()},
        layer_between_bits=np.mean(list(between.values()), axis=0).tolist(),
        layer_within_bits=np.mean(list(within.values()), axis=0).tolist(),
        domain_zero_gate_frac={name: float(value.mean()) for name, value in zero.items()},
        layer_zero_gate_frac=np.mean(list(zero.values()), axis=0).tolist(),
    )


def _half_against_half(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Mean over the four pairings of halves, (n_layers,)."""
    return np.mean([divergence_bits(a[i], b[j]) for i in (0, 1) for j in (0, 1)], axis=0)
