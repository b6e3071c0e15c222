"""
An oracle for the forward pass, written apart from it: float64, one token, one head and one key at a time.

Also makes small random models for the tests of the reference runtime.
"""

import math
from dataclasses import replace

import numpy as np

from reference_runtime.kernels.plain import PlainKernels
from reference_runtime.loading.gguf_weights import LayerWeights, Weights, layer_tensors
from reference_runtime.loading.weight_loading import model_of
from reference_runtime.model import Model
from reference_runtime.model_config import ModelConfig
from reference_runtime.training.export import Vocabulary

SMALL = ModelConfig(
    name="small",
    n_layers=6,
    hidden_size=32,
    n_heads=4,
    n_kv_heads=2,
    head_dim=8,
    n_experts=8,
    top_k=2,
    expert_ffn_size=32,
    vocab_size=40,
    context_length=64,
    rope_theta=1.5e6,
    rms_norm_eps=1e-6,
    window=8,
    scoring="sigmoid",
    nope_period=4,
)


def plain_model(weights: Weights) -> Model:
    """The model on plain numpy kernels, all experts in memory."""
    return model_of(weights, PlainKernels())


def random_weights(config: ModelConfig = SMALL, seed: int = 0, tied: bool = True) -> Weights:
    """A random model whose layers matter: matrices of unit gain, norms around 1."""
    rng = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) == 1:
            return (1 + 0.2 * rng.standard_normal(shape)).astype(np.float32)
        return (rng.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)

    table = (config.vocab_size, config.hidden_size)
    embedding = rng.standard_normal(table).astype(np.float32)
    layers = tuple(
        LayerWeights(**{field: draw(shape) for field, (_, shape) in layer_tensors(config).items()})
        for _ in range(config.n_layers)
    )
    output = embedding if tied else rng.standard_normal(table).astype(np.float32)
    return Weights(config, embedding, layers, draw((config.hidden_size,)), output)


def random_tokens(n: int, config: ModelConfig = SMALL, seed: int = 1) -> np.ndarray:
    """Random token ids."""
    return np.random.default_rng(seed).integers(0, config.vocab_size, n)


def vocabulary(size: int) -> Vocabulary:
    """A vocabulary of the end-of-text token, single printable characters and one merged token."""
    characters = (chr(0x21 + i) for i in range(size - 2))
    return Vocabulary(("<|endoftext|>", *characters, '!"'), ('! "',), 0)


def oracle(weights: Weights, token_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits (n, vocab) and expert ids (n, n_layers, top_k) of a whole sequence."""
    config = weights.config
    residual = [weights.token_embd[t].astype(float) for t in token_ids]
    ids = np.zeros((len(token_ids), config.n_layers, config.top_k), dtype=int)
    for i, layer in enumerate(weights.layers):
        choices = [_choose(layer.router.astype(float) @ x, config) for x in residual]
        ids[:, i] = [[expert for expert, _ in choice] for choice in choices]
        normed = [_norm(x, layer.attn_norm, config) for x in residual]
        residual = [x + a for x, a in zip(residual, _attention(normed, layer, config, i), strict=True)]
        residual = [y + _experts(y, choice, layer, config) for y, choice in zip(residual, choices, strict=True)]
    logits = [weights.output.astype(float) @ _norm(x, weights.output_norm, config) for x in residual]
    return np.array(logits), ids


def _norm(x: np.ndarray, gain: np.ndarray, config: ModelConfig) -> np.ndarray:
    return x / math.sqrt(sum(v * v for v in x) / len(x) + config.rms_norm_eps) * gain


def _choose(scores: np.ndarray, config: ModelConfig) -> list[tuple[int, float]]:
    best = sorted(range(len(scores)), key=lambda e: -scores[e])[: config.top_k]
    if config.scoring == "softmax":  # over all experts, then renormalised over the chosen
        share = {e: math.exp(scores[e]) / sum(math.exp(s) for s in scores) for e in best}
    else:
        share = {e: 1 / (1 + math.exp(-scores[e])) for e in best}
    return [(e, share[e] / sum(share.values())) for e in best]


def _turn(vector: np.ndarray, position: int, theta: float) -> np.ndarray:
    half = len(vector) // 2
    turned = vector.copy()
    for j in range(half):
        angle = position / theta ** (2 * j / len(vector))
        pair = complex(vector[j], vector[j + half]) * complex(math.cos(angle), math.sin(angle))
        turned[j], turned[j + half] = pair.real, pair.imag
    return turned


def _attention(normed: list[np.ndarray], layer: LayerWeights, config: ModelConfig, index: int) -> list[np.ndarray]:
    rope = config.nope_period is None or index % config.nope_period != 0
    slides = config.window is not None and rope

    def heads(matrix: np.ndarray, h: np.ndarray, position: int, turn: bool) -> list[np.ndarray]:
        parts = np.split(matrix.astype(float) @ h, len(matrix) // config.head_dim)
        return [_turn(part, position, config.rope_theta) if turn else part for part in parts]

    keys = [heads(layer.k, h, j, rope) for j, h in enumerate(normed)]
    values = [heads(layer.v, h, j, False) for j, h in enumerate(normed)]
    result = []
    for i, h in enumerate(normed):
        outputs = []
        for head, query in enumerate(heads(layer.q, h, i, rope)):
            group = head // (config.n_heads // config.n_kv_heads)
            visible = [j for j in range(i + 1) if not slides or i - j < config.window]
            share = [math.exp(query @ keys[j][group] / math.sqrt(config.head_dim)) for j in visible]
            outputs.append(sum(s * values[j][group] for s, j in zip(share, visible, strict=True)) / sum(share))
        result.append(layer.o.astype(float) @ np.concatenate(outputs))
    return result


def _experts(y: np.ndarray, choice: list[tuple[int, float]], layer: LayerWeights, config: ModelConfig) -> np.ndarray:
    z = _norm(y, layer.ffn_norm, config)
    total = np.zeros_like(y)
    for expert, weight in choice:
        gate = [max(0.0, float(row @ z)) for row in layer.gate[expert].astype(float)]
        total += weight * (layer.down[expert].astype(float) @ (np.array(gate) * (layer.up[expert].astype(float) @ z)))
    return total


def with_config(weights: Weights, **changes: object) -> Weights:
    """The same arrays under another configuration."""
    return replace(weights, config=replace(weights.config, **changes))
