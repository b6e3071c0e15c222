"""The shape of a model that this runtime executes: SmallThinker, and three families that route after attention."""

from dataclasses import dataclass
from typing import Literal

Scoring = Literal["softmax", "sigmoid"]


@dataclass(frozen=True)
class ModelConfig:
    """
    Shape of the model; the defaults are SmallThinker's.

    window: tokens that a sliding layer sees, itself included; None: no layer slides.
    nope_period: every so many layers one has no positions and full attention (0, 4, 8, ...); None: RoPE everywhere.
    scoring: what turns router scores into weights.  normalised: the weights of the chosen sum to 1 (softmax then is
    over the chosen alone); otherwise softmax is over all experts and the chosen keep their share.
    pre_attention_router: the router reads the raw residual that enters the layer; otherwise the normed state that
    enters the experts (post_attention_input "residual": the raw one, an experiment, no model does it).
    rope_style: "neox" turns dimension j with j + dim / 2, "interleaved" 2j with 2j + 1.
    qk_norm: an RMS norm of queries and keys before RoPE, per head or over all heads together.
    """

    name: str
    n_layers: int
    hidden_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_experts: int
    top_k: int
    expert_ffn_size: int
    vocab_size: int
    context_length: int
    rope_theta: float
    rms_norm_eps: float
    window: int | None
    scoring: Scoring
    nope_period: int | None = None
    normalised: bool = True
    pre_attention_router: bool = True
    post_attention_input: Literal["normed", "residual"] = "normed"
    activation: Literal["relu", "silu"] = "relu"
    rope_style: Literal["neox", "interleaved"] = "neox"
    qk_norm: Literal["none", "per_head", "all_heads"] = "none"
    architecture: str = "smallthinker"

    def has_rope(self, layer: int) -> bool:
        """Whether a layer turns its queries and keys."""
        return self.nope_period is None or layer % self.nope_period != 0

    def layer_window(self, layer: int) -> int | None:
        """Tokens that a layer's attention reaches back, itself included; None: all of them."""
        return self.window if self.has_rope(layer) else None
