"""
From a training checkpoint to a GGUF of arch `smallthinker` that stock llama.cpp runs, and back.

    python -m reference_runtime.training.export gguf CHECKPOINT TOKENIZER.json OUT.gguf        Q8_0, as shipped
    python -m reference_runtime.training.export dequantise IN.gguf OUT.gguf                    the F32 one from it
    python -m reference_runtime.training.export checkpoint IN.gguf OUT.pt                      to train on from it

`gguf` and `checkpoint` need PyTorch, `dequantise` does not.  Router and norms always stay F32: a quantised router
changes which experts are chosen.  The optimiser's state is not in a GGUF, so training starts its momentum anew.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize

from moeplan.errors import InputError
from moeplan.files import atomic_path
from reference_runtime.loading.gguf_model import NOPE_PERIOD
from reference_runtime.loading.gguf_stream import TensorPlan, add_config_keys, requantise, stays_exact, write_streamed
from reference_runtime.loading.gguf_weights import LayerWeights, Weights, layer_tensors, read_weights
from reference_runtime.model_config import ModelConfig

F32, Q8_0 = GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0
PINNED_WINDOW = 4096  # llama.cpp takes this whatever the key says, as long as there is a key
CONTEXT_LENGTH = 4096
MODEL_NAME = "tiny-smallthinker"
DESCRIPTION = (
    "A stand-in with the routing shape of SmallThinker-4B-A0.6B, trained from scratch by moeplan on "
    "An Anarchist FAQ (GFDL-1.2+ / GPL-2+), the Python standard library (PSF-2.0), set.mm (CC0-1.0), "
    "LibreOffice help in Russian (MPL-2.0) and the Debian handbook in Russian (GPL-2+ / CC-BY-SA-3.0)."
)


@dataclass(frozen=True)
class Vocabulary:
    """Byte-level BPE tables as GGUF keeps them; merges are `left right`, the end-of-text token is a control token."""

    tokens: tuple[str, ...]
    merges: tuple[str, ...]
    end_of_text: int
    pre_type: str = "gpt-2"


def read_vocabulary(path: Path) -> Vocabulary:
    """The tables of a tokenizer.json of the `tokenizers` library. Raises InputError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        ids, merges = content["model"]["vocab"], content["model"]["merges"]
        special = [token["id"] for token in content["added_tokens"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(str(path), "must be a tokenizer.json with a BPE model", error) from error
    if sorted(ids.values()) != list(range(len(ids))) or len(special) != 1:
        raise InputError(str(path), "must have ids without gaps and one special token", f"{len(ids)}, {len(special)}")
    joined = (merge if isinstance(merge, str) else " ".join(merge) for merge in merges)
    return Vocabulary(tuple(sorted(ids, key=ids.__getitem__)), tuple(joined), special[0])


def checkpoint_weights(checkpoint: Path) -> Weights:
    """The weights of a training checkpoint as numpy arrays in GGUF's orientation. Needs PyTorch."""
    import torch

    try:
        state = torch.load(checkpoint, weights_only=True, map_location="cpu")
        shape, tensors = state["config"], {name: t.numpy() for name, t in state["network"].items()}
    except (OSError, RuntimeError, KeyError, EOFError) as error:
        raise InputError(str(checkpoint), "must be a whole training checkpoint", error) from error
    config = ModelConfig(
        **shape,
        name=MODEL_NAME,
        context_length=CONTEXT_LENGTH,
        window=PINNED_WINDOW,
        nope_period=NOPE_PERIOD,
        scoring="sigmoid",
    )
    embedding = tensors["embedding.weight"]
    layers = tuple(_layer_from_torch(tensors, f"layers.{i}.") for i in range(config.n_layers))
    return Weights(config, embedding, layers, tensors["final_norm.weight"], embedding)


TORCH_NAMES = {
    "attn_norm": "input_norm.weight",
    "q": "attention.q.weight",
    "k": "attention.k.weight",
    "v": "attention.v.weight",
    "o": "attention.o.weight",
    "ffn_norm": "post_norm.weight",
    "router": "router.weight",
    "gate": "experts.gate",
    "up": "experts.up",
    "down": "experts.down",
}


def _turned(field: str, array: np.ndarray) -> np.ndarray:
    """Expert banks are (experts, in, out) in training and (experts, out, in) in GGUF; the rest is the same."""
    return np.ascontiguousarray(array.transpose(0, 2, 1)) if field in ("gate", "up", "down") else array


def _layer_from_torch(tensors: dict[str, np.ndarray], prefix: str) -> LayerWeights:
    return LayerWeights(**{field: _turned(field, tensors[prefix + name]) for field, name in TORCH_NAMES.items()})


def write_gguf(weights: Weights, vocabulary: Vocabulary, path: Path, matrix_type: GGMLQuantizationType = Q8_0) -> None:
    """
    Write the weights as GGUF: matrices in matrix_type, router and norms in F32.

    Raises InputError where a row is not a whole number of blocks, the vocabulary does not fit the embedding, or the
    model has a layer pattern that no key of this architecture says.
    """
    if weights.config.nope_period != (NOPE_PERIOD if weights.config.window else None):
        must = f"must have NoPE every {NOPE_PERIOD} layers with a window, and none without"
        raise InputError(weights.config.name, must, f"a period of {weights.config.nope_period}")
    if len(vocabulary.tokens) != weights.config.vocab_size:
        must = f"must have the model's {weights.config.vocab_size} tokens"
        raise InputError("tokenizer", must, len(vocabulary.tokens), "take the tokenizer it was trained with")
    tensors = named_tensors(weights)
    plans = [
        TensorPlan(name, array.shape, F32 if stays_exact(name, array.shape) else matrix_type)
        for name, array in tensors.items()
    ]

    def add_keys(writer: GGUFWriter) -> None:
        add_config_keys(writer, weights.config, matrix_type, DESCRIPTION)
        _add_vocabulary(writer, vocabulary)

    def pieces(plan: TensorPlan) -> Iterator[np.ndarray]:
        yield quantize(np.ascontiguousarray(tensors[plan.name], dtype=np.float32), plan.kind)

    write_streamed(path, add_keys, plans, pieces)


def named_tensors(weights: Weights) -> dict[str, np.ndarray]:
    """GGUF name -> array, a tied head left out."""
    tensors = {"token_embd.weight": weights.token_embd}
    for i, layer in enumerate(weights.layers):
        for field, (name, _) in layer_tensors(weights.config).items():
            tensors[f"blk.{i}.{name}"] = getattr(layer, field)
    tensors["output_norm.weight"] = weights.output_norm
    if not weights.is_tied:
        tensors["output.weight"] = weights.output
    return tensors


def _add_vocabulary(writer: GGUFWriter, vocabulary: Vocabulary) -> None:
    kinds = [int(TokenType.NORMAL)] * len(vocabulary.tokens)
    kinds[vocabulary.end_of_text] = int(TokenType.CONTROL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.pre_type)
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types(kinds)
    writer.add_token_merges(list(vocabulary.merges))
    writer.add_bos_token_id(vocabulary.end_of_text)  # llama.cpp would otherwise take token 11
    writer.add_eos_token_id(vocabulary.end_of_text)
    writer.add_add_bos_token(False)


def dequantise(source: Path, target: Path) -> None:
    """Write the same model with every tensor in F32; all keys but the file type are carried over. Raises InputError."""
    read_weights(source)  # checks the model as a whole
    requantise(source, target, F32)


def to_checkpoint(source: Path, target: Path) -> None:
    """Write a checkpoint with the weights of a GGUF, without optimiser state. Needs PyTorch. Raises InputError."""
    import torch

    weights = read_weights(source)
    with atomic_path(target) as temporary:
        torch.save(
            {
                "config": torch_config(weights),
                "network": {name: torch.tensor(array) for name, array in torch_arrays(weights).items()},
                "progress": {},
            },
            temporary,
        )


TORCH_FIELDS = (
    "n_layers",
    "hidden_size",
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "n_experts",
    "top_k",
    "expert_ffn_size",
    "vocab_size",
    "rope_theta",
    "rms_norm_eps",
)


def torch_config(weights: Weights) -> dict[str, Any]:
    """
    The fields of training.network.NetworkConfig.

    Raises InputError for what the training network cannot be: untied, softmax, without the hybrid layout.
    """
    config = weights.config
    is_hybrid = config.window is not None and config.nope_period == NOPE_PERIOD
    if not weights.is_tied or config.scoring != "sigmoid" or not is_hybrid:
        raise InputError(config.name, f"must be tied, sigmoid and hybrid (NoPE every {NOPE_PERIOD})", "another kind")
    return {name: getattr(config, name) for name in TORCH_FIELDS}


def torch_arrays(weights: Weights) -> dict[str, np.ndarray]:
    """Name in the training network's state -> array."""
    arrays = {"embedding.weight": weights.token_embd, "final_norm.weight": weights.output_norm}
    for i, layer in enumerate(weights.layers):
        for field, name in TORCH_NAMES.items():
            arrays[f"layers.{i}.{name}"] = _turned(field, getattr(layer, field))
    return arrays


def main(argv: list[str] | None = None) -> None:
    """Command line; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, places in {"gguf": ["checkpoint", "tokenizer"], "dequantise": ["gguf"], "checkpoint": ["gguf"]}.items():
        command = commands.add_parser(name)
        for place in [*places, "output"]:
            command.add_argument(place, type=Path)
    args = parser.parse_args(argv)
    try:
        if args.command == "gguf":
            write_gguf(checkpoint_weights(args.checkpoint), read_vocabulary(args.tokenizer), args.output)
        else:
            (dequantise if args.command == "dequantise" else to_checkpoint)(args.gguf, args.output)
    except InputError as error:
        parser.exit(2, f"{error}\n")
    print(f"{args.output}: {args.output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
