"""OLMoE, Qwen3-MoE and Mixtral with random weights, as safetensors and as GGUF."""

from collections.abc import Iterator
from pathlib import Path

from parity.checks_smallthinker import N_GREEDY, greedy_row
from parity.llama_cpp_engine import LlamaCpp
from parity.model_files import write_folder, write_gguf
from parity.ours import load, run
from parity.random_models import FAMILIES, RandomModel, random_model, random_tokens
from parity.table import Row, compare
from parity.transformers_engine import Transformers

N_TOKENS = 64
SEED = 34


def family_models() -> dict[str, RandomModel]:
    """A random model of each family."""
    return {name: random_model(config, SEED) for name, config in FAMILIES.items()}


def family_rows(folder: Path) -> Iterator[Row]:
    """Each family: our folder, the folder that transformers saves of it, and the GGUF against both engines."""
    for name, model in family_models().items():
        tokens = random_tokens(model.config, N_TOKENS, 40)
        published = write_folder(model, folder / name)
        transformers = Transformers(published)
        expected = transformers.logits(tokens)
        yield compare(f"{name}, safetensors as published", "transformers", run(load(published), tokens)[0], expected)
        saved = transformers.save(folder / f"{name}-saved")
        yield compare(f"{name}, safetensors as saved", "transformers", run(load(saved), tokens)[0], expected)

        path = write_gguf(model, folder / f"{name}.gguf")
        ours, engine = load(path), LlamaCpp(path, N_TOKENS + N_GREEDY)
        logits, ids = run(ours, tokens)
        yield compare(f"{name}, GGUF F32", "transformers", logits, expected)
        theirs, experts = engine.logits(tokens), (ids, engine.expert_ids(model.config.top_k))
        yield compare(f"{name}, GGUF F32", "llama.cpp", logits, theirs, experts=experts)
        yield greedy_row(name, ours, engine)
        engine.close()
