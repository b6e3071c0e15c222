"""
The golden logits of tests/fixtures: what llama.cpp and transformers said of random models that a seed names.

`python -m parity --write-golden` makes them; tests/test_parity_golden.py needs neither engine.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from parity.model_files import write_folder, write_gguf
from parity.random_models import (
    EVERYWHERE_ROPE,
    FAMILIES,
    LONG,
    SMALLTHINKER,
    RandomModel,
    random_model,
    random_tokens,
)

FIXTURES = Path(__file__).parent.parent / "fixtures"
N_TOKENS = 24
N_LONG, EDGE = 4104, 4092  # the window is 4096; these cost seconds


@dataclass(frozen=True, eq=False)
class GoldenCase:
    """A model, its tokens and from which position on the logits are kept."""

    name: str
    engine: str
    model: RandomModel
    token_ids: np.ndarray
    first: int = 0

    @property
    def fixture(self) -> Path:
        """Its file: logits (n, vocab) from `first` on, the digest of the weights, the engine's version."""
        return FIXTURES / f"parity_{self.name}.npz"


def golden_cases() -> dict[str, GoldenCase]:
    """All of them by name."""
    smallthinker = {
        "sigmoid_hybrid_tied": random_model(SMALLTHINKER, 50, tied=True),
        "softmax_rope_untied": random_model(replace(SMALLTHINKER, **EVERYWHERE_ROPE, scoring="softmax"), 51),
    }
    families = {name: random_model(config, 52) for name, config in FAMILIES.items()}
    cases = [
        *(GoldenCase(name, "llama.cpp", model, _tokens(model)) for name, model in smallthinker.items()),
        *(GoldenCase(name, "transformers", model, _tokens(model)) for name, model in families.items()),
    ]
    long = random_model(replace(LONG, n_heads=1), 53)
    cases.append(GoldenCase("window_edge", "llama.cpp", long, random_tokens(LONG, N_LONG, 60), EDGE))
    return {case.name: case for case in cases}


def _tokens(model: RandomModel) -> np.ndarray:
    return random_tokens(model.config, N_TOKENS, 60)


def write_golden(folder: Path) -> None:
    """Run each case through its engine and store what it says; the folder is for the models."""
    from parity.llama_cpp_engine import LlamaCpp
    from parity.llama_cpp_engine import version as llama_cpp_version
    from parity.transformers_engine import Transformers
    from parity.transformers_engine import version as transformers_version

    for case in golden_cases().values():
        if case.engine == "transformers":
            version, engine = transformers_version(), Transformers(write_folder(case.model, folder / case.name))
        else:
            path = write_gguf(case.model, folder / f"{case.name}.gguf")
            version, engine = llama_cpp_version(), LlamaCpp(path, len(case.token_ids))
        logits = engine.logits(case.token_ids)[case.first :]
        np.savez_compressed(case.fixture, logits=logits, weights_digest=case.model.digest(), engine=version)
        print(f"{case.fixture}: {case.fixture.stat().st_size:,} bytes, {version}")
