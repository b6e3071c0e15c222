"""
The SmallThinker architecture (arXiv:2507.20984) in PyTorch, written apart from the numpy forward pass.

Router on the raw residual before the input norm and before attention; sigmoid scores normalised over the
top-k; gated ReLU experts; every fourth layer (i % 4 == 0) without positions and with full attention, the
others with RoPE (NEOX pairing); grouped-query attention; RMSNorm; tied head.

The sliding window of the other layers is left out of training: sequences are far shorter than 4,096.
"""

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NOPE_PERIOD = 4  # llama.cpp hard-codes the same period for this architecture


@dataclass(frozen=True)
class NetworkConfig:
    """Shape of the network: the routing shape of the 4B (32 layers, 32 experts, top-4) at a small width."""

    n_layers: int = 32
    hidden_size: int = 96
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 32
    n_experts: int = 32
    top_k: int = 4
    expert_ffn_size: int = 64
    vocab_size: int = 1024
    rope_theta: float = 1.5e6
    rms_norm_eps: float = 1e-6

    def as_dict(self) -> dict[str, float]:
        """The fields as plain numbers, for a checkpoint."""
        return asdict(self)


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rope_tables(n_positions: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin, each (n_positions, head_dim / 2)."""
    inverse = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.arange(n_positions, dtype=torch.float64)[:, None] * inverse
    return angles.cos().float(), angles.sin().float()


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """NEOX pairing: dimension j turns with j + head_dim / 2.  x: (batch, heads, time, head_dim)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Attention(nn.Module):
    """Causal grouped-query attention, with RoPE or without positions."""

    def __init__(self, config: NetworkConfig, use_rope: bool) -> None:
        super().__init__()
        self.config, self.use_rope = config, use_rope
        width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        self.q = nn.Linear(config.hidden_size, width, bias=False)
        self.k = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o = nn.Linear(width, config.hidden_size, bias=False)

    def forward(self, h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, time, _ = h.shape
        dim = self.config.head_dim
        q = self.q(h).view(batch, time, -1, dim).transpose(1, 2)
        k = self.k(h).view(batch, time, -1, dim).transpose(1, 2)
        v = self.v(h).view(batch, time, -1, dim).transpose(1, 2)
        if self.use_rope:
            q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(mixed.transpose(1, 2).reshape(batch, time, -1))


class Experts(nn.Module):
    """The expert bank of a layer; tokens are sorted by expert and multiplied as one padded batch."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        shape = (config.n_experts, config.hidden_size, config.expert_ffn_size)
        self.gate = nn.Parameter(torch.randn(shape) * config.hidden_size**-0.5)
        self.up = nn.Parameter(torch.randn(shape) * config.hidden_size**-0.5)
        self.down = nn.Parameter(torch.randn(shape[0], shape[2], shape[1]) * config.expert_ffn_size**-0.5)

    def forward(self, z: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        """z: (tokens, hidden); expert_ids, weights: (tokens, top_k).  Returns (tokens, hidden)."""
        top_k = expert_ids.shape[1]
        flat = expert_ids.reshape(-1)  # (tokens * top_k,)
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=self.config.n_experts)
        starts = counts.cumsum(0) - counts
        capacity = int(counts.max())
        sorted_ids = flat[order]
        place = sorted_ids * capacity + torch.arange(len(flat)) - starts[sorted_ids]
        rows = z.new_zeros(self.config.n_experts * capacity, z.shape[1])
        rows = rows.index_copy(0, place, z.index_select(0, order // top_k)).view(self.config.n_experts, capacity, -1)
        hidden = F.relu(torch.bmm(rows, self.gate)) * torch.bmm(rows, self.up)
        out = torch.bmm(hidden, self.down).view(-1, z.shape[1]).index_select(0, place)
        out = out * weights.reshape(-1)[order, None]
        return torch.zeros_like(z).index_add(0, order // top_k, out)


class Layer(nn.Module):
    """One decoder layer; the router sees the residual that enters the layer."""

    def __init__(self, config: NetworkConfig, index: int) -> None:
        super().__init__()
        self.config = config
        self.router = nn.Linear(config.hidden_size, config.n_experts, bias=False)
        self.input_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attention = Attention(config, use_rope=index % NOPE_PERIOD != 0)
        self.post_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.experts = Experts(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """
        x: (batch, time, hidden).

        Returns the new residual, the load-balance loss of the group, the mean square of the router's scores and the
        expert ids (tokens, top_k).
        """
        batch, time, hidden = x.shape
        scores = self.router(x).view(-1, self.config.n_experts)  # (tokens, experts), x is the RAW residual
        top_scores, expert_ids = scores.topk(self.config.top_k, dim=-1)
        weights = torch.sigmoid(top_scores)
        weights = weights / weights.sum(-1, keepdim=True)
        y = x + self.attention(self.input_norm(x), cos, sin)
        z = self.post_norm(y).view(-1, hidden)
        out = self.experts(z, expert_ids, weights).view(batch, time, hidden)
        return y + out, self.balance_loss(scores, expert_ids), scores.square().mean(), expert_ids

    def balance_loss(self, scores: Tensor, expert_ids: Tensor) -> Tensor:
        """
        Load-balance loss over the whole group of sequences in the batch, all domains mixed:
        n_experts * sum_e (share of assignments of e) * (mean normalised score of e); 1 when uniform.

        Taken over the group and not per sequence, so an expert may serve one domain alone.
        """
        n_experts = self.config.n_experts
        load = torch.bincount(expert_ids.reshape(-1), minlength=n_experts) / expert_ids.numel()
        shares = torch.sigmoid(scores)
        shares = (shares / shares.sum(-1, keepdim=True)).mean(0)
        return n_experts * (load * shares).sum()


class Network(nn.Module):
    """The whole model: embedding, layers, final norm, tied head."""

    def __init__(self, config: NetworkConfig, n_positions: int = 4096) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.n_layers))
        self.final_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        cos, sin = rope_tables(n_positions, config.head_dim, config.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        nn.init.normal_(self.embedding.weight, std=0.1)
        scale = (2 * self.config.n_layers) ** -0.5
        for layer in self.layers:
            with torch.no_grad():
                layer.attention.o.weight.mul_(scale)
                layer.experts.down.mul_(scale)
            nn.init.normal_(layer.router.weight, std=self.config.hidden_size**-0.5)
        nn.init.constant_(self.final_norm.weight, 0.5)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """
        tokens: (batch, time).

        Returns logits (batch, time, vocab), mean balance loss, mean square of the router scores (a saturated sigmoid
        has no gradient, so training keeps it small) and the expert ids per layer.
        """
        time = tokens.shape[1]
        cos, sin = self.cos[:time], self.sin[:time]
        x = self.embedding(tokens)
        balance = mean_square = torch.zeros(())
        routing = []
        for layer in self.layers:
            x, layer_balance, layer_square, expert_ids = layer(x, cos, sin)
            balance = balance + layer_balance
            mean_square = mean_square + layer_square
            routing.append(expert_ids)
        logits = F.linear(self.final_norm(x), self.embedding.weight)
        n_layers = len(self.layers)
        return logits, balance / n_layers, mean_square / n_layers, routing


def grown(network: Network, n_layers: int) -> Network:
    """
    A deeper network that computes the same: copies of the stack go on top, with their output matrices zeroed.

    A copy keeps its place in the NoPE / RoPE pattern.  Scaling all copies down instead cost 1.2 nat at once (8 to 32
    layers); this costs nothing, and the zeroed matrices have a gradient from the first step.
    """
    old = network.config.n_layers
    if n_layers % old or old % NOPE_PERIOD:
        raise ValueError(f"n_layers: must be a multiple of {old} (itself one of {NOPE_PERIOD}), got {n_layers}")
    deeper = Network(NetworkConfig(**{**network.config.as_dict(), "n_layers": n_layers}))
    deeper.embedding.load_state_dict(network.embedding.state_dict())
    deeper.final_norm.load_state_dict(network.final_norm.state_dict())
    for index, layer in enumerate(deeper.layers):
        layer.load_state_dict(network.layers[index % old].state_dict())
        with torch.no_grad():
            is_original = float(index < old)
            layer.attention.o.weight.mul_(is_original)
            layer.experts.down.mul_(is_original)
    return deeper


@torch.no_grad()
def calm_routers(network: Network, tokens: Tensor, max_rms: float) -> None:
    """
    Divide each router whose scores exceed max_rms (root mean square over the tokens): the choice of experts stays,
    the weights leave the flat end of the sigmoid.  tokens: (batch, time).
    """
    cos, sin = network.cos[: tokens.shape[1]], network.sin[: tokens.shape[1]]
    x = network.embedding(tokens)
    for layer in network.layers:
        rms = layer.router(x).square().mean().sqrt()
        layer.router.weight.div_(max(1.0, float(rms) / max_rms))
        x = layer(x, cos, sin)[0]
