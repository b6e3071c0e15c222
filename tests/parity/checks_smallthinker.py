"""SmallThinker with random weights: exact files, the window's edge, quantised files, greedy continuations."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType

from parity.llama_cpp_engine import LlamaCpp
from parity.model_files import write_gguf
from parity.ours import Replay, greedy, load, run
from parity.ours_fast import FAST_CHUNKS, load_fast
from parity.random_models import EVERYWHERE_ROPE, LONG, SMALLTHINKER, RandomModel, random_model, random_tokens
from parity.rounded_activations import RoundedActivations
from parity.table import Row, compare, relative_error, share
from reference_runtime.kv_cache import KVCache
from reference_runtime.model import Model

ENGINE = "llama.cpp"
N_TOKENS = 64
N_LONG, EDGE = 4200, 4080  # the window is 4096: from EDGE on both sides of its edge
N_GREEDY, N_PROMPTS = 100, 3
ROUNDING_SEEDS, N_ROUNDING_TOKENS = range(70, 78), 16


def exact_models() -> dict[str, RandomModel]:
    """The F32 cases: both scorings, with the 1:3 pattern and without, tied and untied."""
    plain = replace(SMALLTHINKER, **EVERYWHERE_ROPE)
    softmax = replace(SMALLTHINKER, scoring="softmax")
    plain_softmax = replace(plain, scoring="softmax")
    return {
        "sigmoid, hybrid, tied": random_model(SMALLTHINKER, 1, tied=True),
        "sigmoid, RoPE everywhere, untied": random_model(plain, 2),
        "softmax, hybrid, untied": random_model(softmax, 3),
        "softmax, RoPE everywhere, tied": random_model(plain_softmax, 4, tied=True),
    }


def edge_model() -> RandomModel:
    """A thin model for thousands of tokens."""
    return random_model(LONG, 5)


def exact_rows(folder: Path) -> Iterator[Row]:
    """F32 over 64 positions, and greedy continuations."""
    for name, model in exact_models().items():
        path = write_gguf(model, folder / "exact.gguf")
        tokens = random_tokens(model.config, N_TOKENS, 10)
        engine, ours = LlamaCpp(path, N_TOKENS + N_GREEDY), load(path)
        logits, ids = run(ours, tokens)
        expected, expert_ids = engine.logits(tokens), engine.expert_ids(model.config.top_k)
        yield compare(f"F32, {name}", ENGINE, logits, expected, experts=(ids, expert_ids))
        if "output" in model.top:  # a tied random model repeats its last token
            yield greedy_row(f"F32, {name}", ours, engine)
        engine.close()


def greedy_row(name: str, ours: Model, engine: LlamaCpp) -> Row:
    """Greedy continuations of random prompts; the different tokens say that they are no mere repetition."""
    prompts = [random_tokens(ours.config, 16, 20 + i).tolist() for i in range(N_PROMPTS)]
    theirs = [token for prompt in prompts for token in engine.greedy(prompt, N_GREEDY)]
    found = [token for prompt in prompts for token in greedy(ours, prompt, N_GREEDY)]
    case = f"{name}: {N_PROMPTS} greedy continuations, {len(set(found))} different tokens"
    return share(case, ENGINE, np.array(found) == np.array(theirs))


def edge_rows(folder: Path) -> Iterator[Row]:
    """4,200 tokens; the same with a window one longer must be seen to differ."""
    model = edge_model()
    path = write_gguf(model, folder / "edge.gguf")
    tokens = random_tokens(model.config, N_LONG, 11)
    engine, ours = LlamaCpp(path, N_LONG), load(path)
    expected = engine.logits(tokens)[EDGE:]
    engine.close()
    cache = KVCache(ours.config, N_LONG)
    run(ours, tokens[:EDGE], cache=cache)
    yield compare(f"F32, positions {EDGE} to {N_LONG - 1}", ENGINE, run(ours, tokens[EDGE:], cache=cache)[0], expected)
    for window in (4095, 4097):
        cache.rewind(EDGE)
        other = replace(ours, config=replace(ours.config, window=window))
        found = run(other, tokens[EDGE:], cache=cache)[0]
        yield compare(f"the same with a window of {window}: must differ", ENGINE, found, expected, None, 1e-4)


def quantised_rows(folder: Path) -> Iterator[Row]:
    """
    Q8_0 and Q4_0: llama.cpp rounds activations to Q8_0 where the matrix is quantised, and that is all that differs.

    Shown in two ways.  On 8 layers most of the error is experts of nearly equal scores that the rounding tips over;
    with llama.cpp's experts taken over, about 1 % stays.  On 2 layers the same rounding here gives the same logits,
    at all positions but those where the order of a sum moves an activation across the border between two bytes; such
    a step of 1/127 then moves others, so deeper models with it end at the error of plain dequantisation.
    """
    model = random_model(SMALLTHINKER, 6)
    tokens = random_tokens(model.config, N_TOKENS, 12)
    for kind in (GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_0):
        path = write_gguf(model, folder / "quantised.gguf", kind)
        engine, ours = LlamaCpp(path, N_TOKENS), load(path)
        expected, expert_ids = engine.logits(tokens), engine.expert_ids(model.config.top_k)
        engine.close()
        logits, ids = run(ours, tokens)
        case, experts = f"{kind.name}, plain dequantisation", (ids, expert_ids)
        yield compare(case, ENGINE, logits, expected, 0.2, experts=experts, least_same_experts_frac=0.9)
        replayed = run(ours, tokens, Replay(expert_ids))[0]
        yield compare(f"{case}, llama.cpp's experts", ENGINE, replayed, expected, 0.02)
        yield _rounding_row(kind, folder)
        for chunk, how in FAST_CHUNKS:
            fast, fast_ids = run(load_fast(path), tokens, chunk=chunk)
            case = f"{kind.name}, fast kernels, {how}"
            yield compare(case, "our plain numpy", fast, logits, experts=(fast_ids, ids))


def _rounding_row(kind: GGMLQuantizationType, folder: Path) -> Row:
    errors = []
    for seed in ROUNDING_SEEDS:
        model = random_model(replace(SMALLTHINKER, **EVERYWHERE_ROPE, n_layers=2), seed)
        tokens = random_tokens(model.config, N_ROUNDING_TOKENS, 12)
        path = write_gguf(model, folder / "rounding.gguf", kind)
        engine = LlamaCpp(path, N_ROUNDING_TOKENS)
        found, expected = run(load(path, RoundedActivations()), tokens)[0], engine.logits(tokens)
        engine.close()
        errors += [relative_error(mine, theirs) for mine, theirs in zip(found, expected, strict=True)]
    case = f"{kind.name}, activations rounded as there: median of the positions of {len(ROUNDING_SEEDS)} models"
    return Row(case, ENGINE, len(errors), float(np.median(errors)))
