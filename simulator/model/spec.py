"""
ModelSpec: what a model is, as far as its speed depends on it. Shapes and storage types, no derived number.

Everything that follows from the shapes (parameters, bytes) is in size.py.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from moeplan.errors import InputError
from simulator.model.tensor_types import check_type

LayerKind = Literal["full_rope", "full_nope", "sliding_rope"]
Provenance = Literal["measured", "datasheet", "theoretical", "assumed"]
MAX_LAYERS = 10_000  # far above any model; a typing error must not make endless loops
MAX_COUNT = 2**40

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
CountOrZero = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Frac = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class SpecError(InputError, ValueError):
    """An InputError that pydantic catches as a ValueError, so that strict_yaml adds file and line."""


def _known_type(name: str) -> str:
    try:
        return check_type(name, "tensor type")
    except InputError as error:
        raise SpecError(error.where, error.must, error.got, error.advice) from error


TensorType = Annotated[str, AfterValidator(_known_type)]

# The groups that a quantiser changes; routers and norms are small and sensitive and stay as they are.
QUANTISED_GROUPS = ("embedding", "attention", "experts", "shared_experts", "dense_ffn", "lm_head")


class Frozen(BaseModel):
    """Base of all parts of a spec: unknown keys are errors, nothing changes after construction."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class LatentAttention(Frozen):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): the cache holds one latent vector a token."""

    q_lora_rank: Count | None  # None: queries are projected directly
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Count
    v_head_dim: Count


class Attention(Frozen):
    """
    Heads, and the kind of every layer: `layer_kinds` repeats over the layers.

    window: tokens that a sliding layer sees, the current one included.
    qk_norm: an RMS norm of queries and keys, one weight per element of a head or of all heads together.
    """

    n_heads: Count
    n_kv_heads: Count
    head_dim: Count
    window: Count | None = None
    layer_kinds: Annotated[tuple[LayerKind, ...], Field(min_length=1)]
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["none", "per_head", "all_heads"] = "none"
    sinks: bool = False
    mla: LatentAttention | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.n_heads % self.n_kv_heads:
            raise SpecError("attention", f"n_heads must be a multiple of n_kv_heads {self.n_kv_heads}", self.n_heads)
        if ("sliding_rope" in self.layer_kinds) != (self.window is not None):
            raise SpecError("attention", "window must be given if and only if a layer is sliding_rope", self.window)
        return self


class Router(Frozen):
    """Where the router reads and how scores become weights; normalised: the top-k weights sum to 1."""

    placement: Literal["pre_attention", "post_attention"]
    scoring: Literal["sigmoid", "softmax"]
    normalised: bool


class GateSparsity(Frozen):
    """Share of an expert's neurons whose gate is exactly zero; uncertainty is an absolute half-width."""

    value: Frac
    kind: Provenance
    source: str
    uncertainty: Frac = 0.0


class Experts(Frozen):
    """
    The routed experts of a MoE layer and the shared ones.

    Layer i has experts if i >= first_dense_layers and (i - first_dense_layers) % layer_step == 0.
    shared_ffn_size: total width of the n_shared shared experts.
    """

    n_experts: Count
    top_k: Count
    ffn_size: Count
    n_shared: CountOrZero = 0
    shared_ffn_size: CountOrZero = 0
    first_dense_layers: CountOrZero = 0
    layer_step: Count = 1
    expert_bias: bool = False
    router_bias: bool = False
    router: Router
    activation: Literal["reglu", "swiglu"]
    gate_sparsity: GateSparsity

    def has_layer(self, layer: int) -> bool:
        """Whether a layer has routed experts."""
        return layer >= self.first_dense_layers and (layer - self.first_dense_layers) % self.layer_step == 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.top_k > self.n_experts:
            raise SpecError("experts", f"top_k must be at most n_experts {self.n_experts}", self.top_k)
        if (self.n_shared == 0) != (self.shared_ffn_size == 0):
            raise SpecError("experts", "shared_ffn_size must be 0 if and only if n_shared is 0", self.shared_ffn_size)
        return self


class LmHeadPredictor(Frozen):
    """A low-rank predictor of the vocabulary rows that matter; active_rows_frac: share of rows it lets through."""

    rank: Count
    active_rows_frac: Frac
    source: str


class TensorTypes(Frozen):
    """Storage type of each tensor group; `norm` holds norms, biases and attention sinks."""

    embedding: TensorType
    attention: TensorType
    experts: TensorType
    shared_experts: TensorType
    dense_ffn: TensorType
    router: TensorType
    norm: TensorType
    lm_head: TensorType


class VendorFigures(Frozen):
    """What the vendor states, rounded as the vendor rounds; compared with the shapes, never used."""

    n_params: Count
    n_active_params: Count
    source: str


class ModelSpec(Frozen):
    """
    A model. `experts` None: a dense model.

    active_convention: what the vendor counts as active: the body, the body and the LM head, or the body and both
    vocabulary matrices (a tied one once).
    """

    schema_version: Literal[1]
    name: str
    title: str
    source: str
    notes: str = ""
    hidden_size: Count
    n_layers: Annotated[int, Field(ge=1, le=MAX_LAYERS)]
    vocab_size: Count
    tied_embeddings: bool
    context_length: Count
    attention: Attention
    experts: Experts | None = None
    dense_ffn_size: Count | None = None
    lm_head_predictor: LmHeadPredictor | None = None
    tensor_types: TensorTypes
    kv_type: TensorType = "f16"
    active_convention: Literal["body", "body_and_head", "body_and_both"] = "body_and_head"
    vendor: VendorFigures | None = None

    @field_validator("experts")
    @classmethod
    def _has_moe_layers(cls, experts: Experts | None, info: ValidationInfo) -> Experts | None:
        n_layers = info.data.get("n_layers")
        if experts is not None and n_layers is not None and experts.first_dense_layers >= n_layers:
            must = f"first_dense_layers must be below n_layers {n_layers}"
            raise SpecError("experts", must, experts.first_dense_layers, "a dense model has no experts key")
        return experts

    @field_validator("dense_ffn_size")
    @classmethod
    def _given_for_dense_layers(cls, size: int | None, info: ValidationInfo) -> int | None:
        if size is None and {"n_layers", "experts"} <= info.data.keys():
            experts, n_layers = info.data["experts"], info.data["n_layers"]
            if experts is None or not all(experts.has_layer(layer) for layer in range(n_layers)):
                raise SpecError("dense_ffn_size", "must be given, some layers have no experts", "nothing")
        return size

    def is_moe_layer(self, layer: int) -> bool:
        """Whether a layer has routed experts."""
        return self.experts is not None and self.experts.has_layer(layer)

    @property
    def moe_layer_ids(self) -> tuple[int, ...]:
        """The layers with routed experts, ascending."""
        return tuple(layer for layer in range(self.n_layers) if self.is_moe_layer(layer))

    @property
    def n_moe_layers(self) -> int:
        """Number of layers with routed experts."""
        return len(self.moe_layer_ids)

    def layer_kind(self, layer: int) -> LayerKind:
        """Attention kind of a layer."""
        return self.attention.layer_kinds[layer % len(self.attention.layer_kinds)]

    def layer_window(self, layer: int) -> int | None:
        """Tokens that a layer's attention sees, the current one included; None: all."""
        return self.attention.window if self.layer_kind(layer) == "sliding_rope" else None


def with_quantisation(spec: ModelSpec, tensor_type: str) -> ModelSpec:
    """The model with its big tensor groups stored as tensor_type. Raises InputError for an unknown type."""
    check_type(tensor_type, "quantisation")
    types = spec.tensor_types.model_copy(update=dict.fromkeys(QUANTISED_GROUPS, tensor_type))
    return spec.model_copy(update={"tensor_types": types})


def with_top_k(spec: ModelSpec, top_k: int) -> ModelSpec:
    """The model with another number of experts per token. Raises InputError when it has not that many, or none."""
    if spec.experts is None:
        raise InputError("top_k", f"must be left out for the dense model {spec.name}", top_k)
    if not 1 <= top_k <= spec.experts.n_experts:
        raise InputError("top_k", f"must be between 1 and {spec.experts.n_experts}", top_k)
    return spec.model_copy(update={"experts": spec.experts.model_copy(update={"top_k": top_k})})


def with_kv_type(spec: ModelSpec, kv_type: str) -> ModelSpec:
    """The model with keys and values stored as another type. Raises InputError for an unknown one."""
    return spec.model_copy(update={"kv_type": check_type(kv_type, "--kv-type")})
