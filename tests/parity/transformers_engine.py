"""transformers in float32 on the CPU, its plainest attention and experts."""

from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()


class Transformers:
    """A safetensors folder in transformers."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
        ).eval()

    def logits(self, token_ids: np.ndarray) -> np.ndarray:
        """Logits of a sequence, float32 (n, vocab)."""
        with torch.no_grad():
            return self._model(torch.tensor(token_ids)[None]).logits[0].float().numpy()

    def save(self, folder: Path) -> Path:
        """The model as this version of transformers writes it."""
        self._model.save_pretrained(folder)
        return folder


def version() -> str:
    """The package with its version."""
    return f"transformers {transformers.__version__}"
