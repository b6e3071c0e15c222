"""Timeline: the times and counts of every step and MoE layer; both engines produce it, statistics are read from it."""

from dataclasses import dataclass

import numpy as np

COMPUTE_OPS = ("embedding", "router", "attention", "wait", "dense_ffn", "expert_ffn", "lm_head")


@dataclass(frozen=True, eq=False)
class Timeline:
    """
    step_s       float64 (n_steps,)             duration of each step
    op_s         op -> float64 (n_steps,)       seconds of each op within the step; they sum to step_s
    attention_s  float64 (n_steps, n_moe_layers) from the known top-k to the moment the FFN could start
    prefetch_s   float64 (n_steps, n_moe_layers) from the known top-k to the last missing expert; 0 without a miss
    bubble_s     float64 (n_steps, n_moe_layers) seconds the FFN waited
    n_misses     int32   (n_steps, n_moe_layers)
    n_used       int32   (n_steps, n_moe_layers) distinct experts of the row: hits + misses
    read_busy_s  float64 (n_steps,)             seconds during which storage was reading
    """

    step_s: np.ndarray
    op_s: dict[str, np.ndarray]
    attention_s: np.ndarray
    prefetch_s: np.ndarray
    bubble_s: np.ndarray
    n_misses: np.ndarray
    n_used: np.ndarray
    read_busy_s: np.ndarray
