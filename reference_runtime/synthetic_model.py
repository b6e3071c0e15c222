"""
Write a model of a real model's shape with random weights, to measure compute and reads at real size.

    moeplan model synthesize --model smallthinker-4b-a0.6b --quantisation Q4_0 --output OUT.gguf

Its words mean nothing and its routing is that of random matrices: near uniform, the worst case for a cache.  Replay a
recorded trace (reference_runtime.routing_replay) where the routing matters.  The file is a stock `smallthinker` GGUF
without a tokenizer.  What makes random weights usable:
- Each block of 32 weights sums to exactly 0: 16 random values, and their negatives turned by a number of places that
  changes from row to row.  Rows with a mean push the same direction into every token's residual, and all tokens then
  choose the same few experts.
- What attention and experts add to the residual is small beside it (BRANCH_GAIN): nothing overflows, and a token's
  state stays its own.  At full gain attention's average over the context, which is the same for all tokens, takes over.
- The last norm has random signs, so that a tied head does not answer every token with the token itself.
"""

import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

from moeplan.errors import InputError
from moeplan.progress import OnProgress
from reference_runtime.loading.gguf_stream import TensorPlan, add_config_keys, stays_exact, write_streamed
from reference_runtime.matrix import BLOCK
from reference_runtime.model_config import ModelConfig
from simulator.model.spec import ModelSpec

F32, Q8_0, Q4_0 = GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_0
KINDS = {"F32": F32, "Q8_0": Q8_0, "Q4_0": Q4_0}
LIMITS = {F32: 127, Q8_0: 127, Q4_0: 7}  # a weight is a whole number of -limit to limit times the tensor's scale
HALF = BLOCK // 2
PIECE_WEIGHTS = 2**21  # made at a time: a few MB, which stay in the caches; part of what a seed means
LOGIT_SIZE = 2.0  # root mean square of the logits
BRANCH_GAIN = {"attn_output": 0.25, "ffn_down_exps": 0.5}  # the other matrices have unit gain
CHANCE_SPARSITY = 0.5  # of the gates of random weights, half are below zero
NOPE_PERIOD = 4  # what the format can say: with a window, every fourth layer has no positions


def write_synthetic(
    spec: ModelSpec,
    target: Path,
    kind: GGMLQuantizationType = Q4_0,
    *,
    seed: int = 0,
    gate_sparsity: float = CHANCE_SPARSITY,
    progress: OnProgress | None = None,
) -> None:
    """
    Write the random model as GGUF, whole or not at all; the same arguments give the same bytes.

    gate_sparsity: expected share of gates at exactly zero, 0.5 to 1; see dead_rows.
    Raises InputError for a spec that is no SmallThinker, a type that is none of KINDS and a disk without the room.
    """
    if kind not in LIMITS:
        raise InputError("--quantisation", f"must be one of {', '.join(KINDS)}", kind.name)
    if not CHANCE_SPARSITY <= gate_sparsity <= 1:
        raise InputError("--gate-sparsity", f"must be {CHANCE_SPARSITY} to 1", gate_sparsity, "half are zero by chance")
    config = synthetic_config(spec, seed)

    def add_keys(writer: GGUFWriter) -> None:
        description = (
            f"RANDOM weights in the shape of {spec.name}, made by moeplan for timing, seed {seed}, "
            f"gate sparsity {gate_sparsity:g}. Its output means nothing."
        )
        add_config_keys(writer, config, kind, description)
        writer.add_vocab_size(config.vocab_size)
        writer.add_tokenizer_model("none")

    def pieces(plan: TensorPlan) -> Iterator[np.ndarray]:
        rng = np.random.Generator(np.random.PCG64([seed, zlib.crc32(plan.name.encode())]))
        if len(plan.shape) == 1:
            yield _norm(plan, rng)
            return
        dead = dead_rows(plan, gate_sparsity, rng) if "ffn_gate_exps" in plan.name else None
        yield from _matrix(plan, rng, _weight_size(plan), dead)

    write_streamed(target, add_keys, tensor_plans(config, kind, spec.tied_embeddings), pieces, progress)


def synthetic_config(spec: ModelSpec, seed: int) -> ModelConfig:
    """The runtime's view of a spec. Raises InputError for what a smallthinker file cannot say."""
    experts, attention = spec.experts, spec.attention
    is_family = (
        experts is not None
        and experts.router.placement == "pre_attention"
        and experts.activation == "reglu"
        and spec.n_moe_layers == spec.n_layers
        and not (experts.n_shared or experts.expert_bias or experts.router_bias or attention.qkv_bias)
        and not (attention.output_bias or attention.sinks or attention.mla or attention.qk_norm != "none")
        and attention.layer_kinds in (("full_rope",), ("full_nope",) + ("sliding_rope",) * (NOPE_PERIOD - 1))
    )
    if experts is None or not is_family:
        must = "must be of SmallThinker's architecture: a pre-attention router and ReLU experts in every layer"
        raise InputError(f"--model {spec.name}", must, spec.title, "take smallthinker-4b-a0.6b")
    return ModelConfig(
        name=f"{spec.name}-RANDOM-seed{seed}",
        n_layers=spec.n_layers,
        hidden_size=spec.hidden_size,
        n_heads=attention.n_heads,
        n_kv_heads=attention.n_kv_heads,
        head_dim=attention.head_dim,
        n_experts=experts.n_experts,
        top_k=experts.top_k,
        expert_ffn_size=experts.ffn_size,
        vocab_size=spec.vocab_size,
        context_length=spec.context_length,
        rope_theta=1.5e6,
        rms_norm_eps=1e-6,
        window=attention.window,
        scoring=experts.router.scoring,
        nope_period=None if attention.window is None else NOPE_PERIOD,
    )


def tensor_plans(config: ModelConfig, kind: GGMLQuantizationType, tied: bool) -> list[TensorPlan]:
    """All tensors in the order of the file; matrices in a kind, router and norms in F32."""
    hidden, ffn, n_experts = config.hidden_size, config.expert_ffn_size, config.n_experts
    width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    layer = {
        "attn_norm": (hidden,),
        "attn_q": (width, hidden),
        "attn_k": (kv_width, hidden),
        "attn_v": (kv_width, hidden),
        "attn_output": (hidden, width),
        "ffn_norm": (hidden,),
        "ffn_gate_inp": (n_experts, hidden),
        "ffn_gate_exps": (n_experts, ffn, hidden),
        "ffn_up_exps": (n_experts, ffn, hidden),
        "ffn_down_exps": (n_experts, hidden, ffn),
    }
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (config.vocab_size, hidden)}
    for i in range(config.n_layers):
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    shapes["output_norm"] = (hidden,)
    if not tied:
        shapes["output"] = (config.vocab_size, hidden)
    for name, shape in shapes.items():
        if shape[-1] % BLOCK:
            raise InputError(name, f"must have rows of a multiple of {BLOCK} weights", shape)
    full = {f"{name}.weight": shape for name, shape in shapes.items()}
    return [TensorPlan(name, shape, F32 if stays_exact(name, shape) else kind) for name, shape in full.items()]


def dead_rows(plan: TensorPlan, gate_sparsity: float, rng: np.random.Generator) -> np.ndarray:
    """
    bool (n_experts, ffn): the gate rows of zeros, which are shut for every token: exactly zero before the ReLU.

    A share of 2 * gate_sparsity - 1 of an expert's rows, at random places; of the others half are shut by chance, so
    gate_sparsity is the expected share of all.  A trained model shuts other neurons for every token; the work that a
    kernel can skip is the same, but here it is always the same rows.
    """
    n_experts, ffn, _ = plan.shape
    dead = np.zeros((n_experts, ffn), dtype=bool)
    dead[:, : round((2 * gate_sparsity - 1) * ffn)] = True
    return rng.permuted(dead, axis=1)


def zero_sum_blocks(rng: np.random.Generator, first_row: int, n_rows: int, n_columns: int, limit: int) -> np.ndarray:
    """
    int8 (n_rows, n_columns / 32, 32) of -limit to limit; each block sums to 0.

    The second half of a block is the negative of the first, turned by row % 16 places: there is no column whose twin
    is the same in all rows.
    """
    shape = (n_rows, n_columns // BLOCK, HALF)
    n_bytes = n_rows * n_columns // 2
    drawn = rng.bit_generator.random_raw(-(-n_bytes // 8)).view(np.uint8)[:n_bytes]
    values = (np.arange(256) % (2 * limit + 1) - limit).astype(np.int8)  # a random byte -> a value
    first_half = values[drawn].reshape(shape)
    blocks = np.empty((*shape[:2], BLOCK), dtype=np.int8)
    blocks[..., :HALF] = first_half
    for turn in range(HALF):
        rows = slice((turn - first_row) % HALF, None, HALF)
        np.negative(np.roll(first_half[rows], turn, axis=-1), out=blocks[rows, :, HALF:])
    return blocks


def pack_blocks(blocks: np.ndarray, scale: np.float16, kind: GGMLQuantizationType) -> np.ndarray:
    """The blocks times the scale as a file stores them: uint8 (n_rows, n_blocks, bytes of a block) or float32."""
    if kind == F32:
        return blocks * np.float32(scale)
    if kind == Q8_0:
        quants = blocks.view(np.uint8)
    else:  # Q4_0: value + 8; the low nibbles are the first half of the block, the high ones the second
        nibbles = (blocks + np.int8(8)).view(np.uint8)
        quants = nibbles[..., :HALF] | (nibbles[..., HALF:] << np.uint8(4))
    packed = np.empty((*blocks.shape[:2], 2 + quants.shape[-1]), dtype=np.uint8)
    packed[..., :2] = np.array([scale], dtype="<f2").view(np.uint8)
    packed[..., 2:] = quants
    return packed


def _matrix(
    plan: TensorPlan, rng: np.random.Generator, weight_size: float, dead: np.ndarray | None
) -> Iterator[np.ndarray]:
    n_rows, n_columns = int(np.prod(plan.shape[:-1])), plan.shape[-1]
    limit = LIMITS[plan.kind]
    scale = np.float16(weight_size / np.sqrt(limit * (limit + 1) / 3))  # over the size of whole numbers to the limit
    step = max(1, PIECE_WEIGHTS // n_columns)
    for first in range(0, n_rows, step):
        blocks = zero_sum_blocks(rng, first, min(step, n_rows - first), n_columns, limit)
        if dead is not None:
            blocks[dead.reshape(-1)[first : first + step]] = 0
        yield pack_blocks(blocks, scale, plan.kind)


def _weight_size(plan: TensorPlan) -> float:
    """Root mean square of a matrix's weights: 1 for the vocabulary, a gain over the width of a row for the others."""
    name = plan.name.split(".")[-2]
    return 1.0 if name in ("token_embd", "output") else BRANCH_GAIN.get(name, 1.0) * plan.shape[-1] ** -0.5


def _norm(plan: TensorPlan, rng: np.random.Generator) -> np.ndarray:
    if plan.name != "output_norm.weight":
        return np.ones(plan.shape, dtype=np.float32)
    signs = np.where(rng.random(plan.shape) < 0.5, -1, 1)
    return (signs * (LOGIT_SIZE * plan.shape[0] ** -0.5)).astype(np.float32)
