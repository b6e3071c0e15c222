"""
How weights are stored: the block sizes of the ggml types and of the plain types of safetensors.

Sizes: ggml's block structs, as https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/constants.py lists them.
"""

from moeplan.errors import InputError, nearest

# name -> (weights per block, bytes per block)
BLOCKS: dict[str, tuple[int, int]] = {
    "f64": (1, 8),
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "f8": (1, 1),
    "i8": (1, 1),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q8_0": (32, 34),
    "q2_k": (256, 84),
    "q3_k": (256, 110),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
    "iq1_s": (256, 50),
    "iq1_m": (256, 56),
    "iq2_xxs": (256, 66),
    "iq2_xs": (256, 74),
    "iq2_s": (256, 82),
    "iq3_xxs": (256, 98),
    "iq3_s": (256, 110),
    "iq4_xs": (256, 136),
    "iq4_nl": (32, 18),
    "tq1_0": (256, 54),
    "tq2_0": (256, 66),
    "mxfp4": (32, 17),
    "nvfp4": (64, 36),
}

# What llama.cpp's quantiser writes when a row is no whole number of 256-weight blocks.
FALLBACKS = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
SMALL_FALLBACK = "iq4_nl"  # for the other types of 256-weight blocks
LAST_FALLBACK = "f16"  # for a row that is no whole number of 32-weight blocks either


def check_type(name: str, where: str) -> str:
    """The name itself. Raises InputError for an unknown tensor type."""
    if name not in BLOCKS:
        raise InputError(where, "must be a known tensor type", repr(name), nearest(name, BLOCKS))
    return name


def bytes_per_weight(name: str) -> float:
    """Bytes per weight of a whole block: 18/32 for q4_0. Raises InputError for an unknown type."""
    n_weights, n_bytes = BLOCKS[check_type(name, "tensor type")]
    return n_bytes / n_weights


def fitting_type(name: str, n_cols: int) -> str:
    """The type that rows of n_cols weights get when a file is quantised to `name`, by llama.cpp's rule."""
    if n_cols % BLOCKS[check_type(name, "tensor type")][0] == 0:
        return name
    fallback = FALLBACKS.get(name, SMALL_FALLBACK)
    if BLOCKS[name][0] == 256 and n_cols % BLOCKS[fallback][0] == 0:
        return fallback
    return LAST_FALLBACK


def tensor_bytes(n_rows: int, n_cols: int, name: str) -> int:
    """
    Bytes of a matrix of n_rows rows of n_cols weights.

    Blocks run along a row, so a row that is no whole number of blocks gets the type that fits (`fitting_type`).
    """
    n_weights, n_bytes = BLOCKS[fitting_type(name, n_cols)]
    return n_rows * (n_cols // n_weights) * n_bytes
