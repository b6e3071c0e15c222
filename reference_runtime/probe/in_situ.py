"""
Whole forward passes of made-up models in memory: what an operation takes where it stands, between the others.

Products alone do not add up to an operation: norms, RoPE, the cache's bookkeeping and the calls between take a good
part of a small model's token.  So models of the plan's shapes run, with random weights, random routing and every expert
resident, under the runtime's own clock, and what the table's products do not explain is the row for the rest:

    router           the operation as it is: scores, top-k and weights
    attention_rest   attention, asking the cache for the row included - q, k, v, o - scores and mix
    attend           over many keys: attention less that over few, where it is more than scores and mix alone, as keys
                     and values push out of a cache what the code around them needs
    row              wait + expert FFN - the row of experts alone
    step             embedding + LM head - the product of the LM head

A step's time is what the clock of a run has: from the known token to the logits.  A layer's weights come again after
one token, so a small model runs in the caches and a large one from RAM, as they do in a run.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from gguf import GGMLQuantizationType

from reference_runtime.forward import route
from reference_runtime.kernels.fast import FastKernels
from reference_runtime.matrix import Matrix
from reference_runtime.model import DenseLayer, DenseWeights, Model
from reference_runtime.model_config import ModelConfig
from reference_runtime.op_clock import OpClock
from reference_runtime.probe.memory import MemoryStore, WeightArena
from reference_runtime.probe.plan import Plan
from reference_runtime.probe.sampling import HICCUP_FRAC, Samples, trimmed_mean
from reference_runtime.session import Session
from reference_runtime.streaming.expert_cache import StreamedExperts
from reference_runtime.synthetic_model import synthetic_config
from simulator.model.size import expert_bytes
from simulator.model.spec import ModelSpec
from simulator.policies import make_policy

PROMPT_TOKENS = 10  # so that the counted tokens see 16 keys on average, one of the contexts that attention is timed at
SKIPPED_TOKENS, COUNTED_TOKENS = 2, 7
MOST_LAYERS = 16  # so many that the LM head's bytes, which empty the caches, are not felt in most of them
CHUNK_LAYERS = 2  # of a prompt's piece
OPS = ("embedding", "router", "attention", "wait", "expert_ffn", "lm_head")


class OpKey(NamedTuple):
    """Seconds of an operation of a model, for each layer (embedding and LM head: for each step)."""

    shape: str
    op: str
    n_tokens: int
    threads: int


class ContextKey(NamedTuple):
    """Seconds of attention for each layer, of a token that sees so many keys."""

    shape: str
    context: int
    threads: int


class ShutKey(NamedTuple):
    """Share of gates that were zero."""

    shape: str
    threads: int


class RandomRouting:
    """The model's own choice is made and thrown away: random weights would take the same experts again and again."""

    def __init__(self, n_experts: int, top_k: int) -> None:
        every = np.tile(np.arange(n_experts), (4096, 1))
        self._rows, self._at = np.random.default_rng(0).permuted(every, axis=1)[:, :top_k], 0

    def choose(
        self, layer: int, scores: np.ndarray, first_position: int, config: ModelConfig
    ) -> tuple[np.ndarray, np.ndarray]:
        """See forward.Router."""
        _, weights = route(scores, config)
        n = len(scores)
        if self._at + n > len(self._rows):
            self._at = 0
        self._at += n
        return self._rows[self._at - n : self._at], weights


class ModelInMemory:
    """
    A made-up model of a shape.  Its experts fill the arena's bytes or are all of the model's, whichever is less: where
    a layer has fewer than the model's, the router still scores as many.
    """

    def __init__(self, spec: ModelSpec, arena_bytes: int, arena: WeightArena) -> None:
        """arena: of the dense weights.  Raises InputError where the system has not so much memory."""
        assert spec.experts is not None
        n_layers, n_stored = layers_and_experts(spec, arena_bytes)
        top_k = spec.experts.top_k
        self.spec = spec
        self.config = replace(synthetic_config(spec, 0), n_layers=n_layers)
        kind = GGMLQuantizationType[spec.tensor_types.attention.upper()]
        self._dense = dense_weights(self.config, kind, arena)
        store, n_slots = MemoryStore(spec, kind, n_layers, n_stored), n_layers * n_stored
        policy = make_policy("lru", n_slots, n_layers)
        self.experts = StreamedExperts(store, policy, n_slots=n_slots, top_k=top_k)
        self.experts.preload()
        self._routing = RandomRouting(n_stored, top_k)

    def measure(self, kernels: FastKernels, n_tokens: int, samples: Samples) -> None:
        """One sample of each operation, for a decode token or for a chunk of n_tokens."""
        clock = OpClock()
        self.experts.on_row = clock.row_read
        n_layers = self.config.n_layers if n_tokens == 1 else min(CHUNK_LAYERS, self.config.n_layers)
        dense = replace(self._dense, layers=self._dense.layers[:n_layers])
        model = Model(replace(self.config, n_layers=n_layers), dense, self.experts, kernels)
        n_decode = SKIPPED_TOKENS + COUNTED_TOKENS if n_tokens == 1 else 0
        n_prompt = PROMPT_TOKENS if n_tokens == 1 else n_tokens
        session = Session(model, n_prompt + n_decode, router=self._routing, watch=clock)
        tokens = np.random.default_rng(0).integers(0, self.config.vocab_size, n_prompt + n_decode)
        session.feed(tokens[:n_prompt])
        for token in tokens[n_prompt:]:
            session.feed([token])
        n_skipped = 1 + SKIPPED_TOKENS if n_tokens == 1 else 0
        name, threads = self.spec.name, kernels.n_threads
        for op, seconds in op_seconds(clock, n_skipped).items():
            samples.add(OpKey(name, op, n_tokens, threads), seconds)
        record = session.record()
        if n_tokens == 1:
            samples.add(ShutKey(name, threads), float(record.zero_gate_frac[n_skipped:].mean()))

    def measure_context(self, kernels: FastKernels, context: int, samples: Samples) -> None:
        """One sample of attention over so many keys, which were never computed: their values cost nothing."""
        clock = OpClock()
        self.experts.on_row = clock.row_read
        n = SKIPPED_TOKENS + COUNTED_TOKENS
        model = Model(self.config, self._dense, self.experts, kernels)
        session = Session(model, context + n, router=self._routing, watch=clock)
        session.cache.keys.fill(0.1)
        session.cache.values.fill(0.1)
        session.cache.n_tokens = context - SKIPPED_TOKENS - (COUNTED_TOKENS + 1) // 2  # the middle one sees `context`
        for token in np.random.default_rng(0).integers(0, self.config.vocab_size, n):
            session.feed([token])
        seconds = op_seconds(clock, SKIPPED_TOKENS)["attention"]
        samples.add(ContextKey(self.spec.name, context, kernels.n_threads), seconds)

    def token_seconds(self, kernels: FastKernels, n_tokens: int) -> list[float]:
        """Seconds of each of n_tokens decode tokens after a short prompt."""
        clock = OpClock()
        self.experts.on_row = clock.row_read
        n = PROMPT_TOKENS + SKIPPED_TOKENS + n_tokens
        session = Session(Model(self.config, self._dense, self.experts, kernels), n, router=self._routing, watch=clock)
        tokens = np.random.default_rng(0).integers(0, self.config.vocab_size, n)
        session.feed(tokens[:PROMPT_TOKENS])
        for token in tokens[PROMPT_TOKENS:]:
            session.feed([token])
        return [end - start for _, start, end in clock.chunk_spans()[1 + SKIPPED_TOKENS :]]

    def close(self) -> None:
        """Stop the reader threads."""
        self.experts.close()


def op_seconds(clock: OpClock, n_skipped: int) -> dict[str, float]:
    """
    Seconds of each operation, the mean over layers and all steps but the first n_skipped.

    Layers are not all alike (RoPE or none), so what is trimmed (see trimmed_mean) is how far a step is from its layer's
    median.
    """
    seconds: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    step, last = -1, 0.0
    for op, layer, end_s in clock.marks:
        step += op == "start"
        if op != "start" and step >= n_skipped:
            seconds[op][layer].append(end_s - last)
        last = end_s
    return {op: _mean_of_layers(list(seconds[op].values())) for op in OPS}


def _mean_of_layers(seconds: list[list[float]]) -> float:
    medians = [float(np.median(values)) for values in seconds]
    off = [one - median for values, median in zip(seconds, medians, strict=True) for one in values]
    return float(np.mean(medians)) + trimmed_mean(off, HICCUP_FRAC)


def layers_and_experts(spec: ModelSpec, arena_bytes: int) -> tuple[int, int]:
    """Layers of a ModelInMemory, and the experts of each that it holds and chooses from."""
    assert spec.experts is not None
    n_experts, top_k = spec.experts.n_experts, spec.experts.top_k
    n_held = max(top_k, arena_bytes // expert_bytes(spec))
    n_layers = spec.n_layers if n_held >= spec.n_layers * n_experts else min(spec.n_layers, MOST_LAYERS)
    n_layers = max(1, min(n_layers, n_held // (top_k + 1)))
    return n_layers, min(n_experts, n_held // n_layers)


@contextmanager
def models_in_memory(plan: Plan, arena: WeightArena) -> Iterator[list[ModelInMemory]]:
    """The plan's shapes as models. Raises InputError where the system has not so much memory."""
    models: list[ModelInMemory] = []
    try:
        for spec in plan.shapes:
            models.append(ModelInMemory(spec, plan.arena_bytes, arena))
        yield models
    finally:
        for model in models:
            model.close()


def dense_weights(config: ModelConfig, kind: GGMLQuantizationType, arena: WeightArena) -> DenseWeights:
    rng = np.random.default_rng(0)
    hidden, width, kv_width = (
        config.hidden_size,
        config.n_heads * config.head_dim,
        config.n_kv_heads * config.head_dim,
    )
    shapes = {"q": (width, hidden), "k": (kv_width, hidden), "v": (kv_width, hidden), "o": (hidden, width)}
    following = arena.sequence(kind)
    ones = np.ones(hidden, np.float32)
    layers = []
    for _ in range(config.n_layers):
        matrices: dict[str, Matrix] = {name: following(shape) for name, shape in shapes.items()}
        router = rng.standard_normal((config.n_experts, hidden), np.float32) * np.float32(hidden**-0.5)
        layers.append(DenseLayer(attn_norm=ones, ffn_norm=ones, router=router, **matrices))  # type: ignore[arg-type]
    head = following((config.vocab_size, hidden))
    return DenseWeights(token_embd=head, layers=tuple(layers), output_norm=ones, output=head)
