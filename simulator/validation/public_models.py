"""The models of the public rows: a shipped spec, or one that only this table needs; stored as the row says."""

from pathlib import Path

from moeplan.strict_yaml import load_model
from simulator.model.catalog import load_model_spec
from simulator.model.spec import ModelSpec, with_quantisation

SPECS = Path(__file__).with_name("public_models")
AS_SHIPPED = "as shipped"

# What a quantiser's mix of types comes to: the groups that differ from the mix's main type.  Q4_K_M stores every second
# down matrix (and value matrix) in 6 bits, 4.84 bits on average; q4_1 has 5.0 and is the nearest type of one size.
# A mix of 2.70 bits is nearest to q2_k, 2.63.  The LM head is kept in 6 bits by all of them.
MIXES: dict[str, tuple[str, dict[str, str]]] = {
    "q4_k_m": ("q4_k", {"experts": "q4_1", "dense_ffn": "q4_1", "lm_head": "q6_k"}),
    "iq4_xs": ("iq4_xs", {"attention": "q6_k", "lm_head": "q6_k"}),
    "q2_k": ("q2_k", {"attention": "q4_k", "lm_head": "q6_k"}),
}


def row_model(spec: str, quantisation: str) -> ModelSpec:
    """The spec of a name, with its tensors in the types of a quantisation. Raises InputError."""
    own = SPECS / f"{spec}.yaml"
    model = load_model(own, ModelSpec) if own.is_file() else load_model_spec(spec)
    if quantisation == AS_SHIPPED:
        return model
    main, others = MIXES.get(quantisation, (quantisation, {}))
    quantised = with_quantisation(model, main)
    if model.tied_embeddings:  # one matrix, stored as an LM head
        others = {**others, "embedding": others.get("lm_head", main)}
    return quantised.model_copy(update={"tensor_types": quantised.tensor_types.model_copy(update=others)})
