"""The tensors of a model file: their groups, the dominant storage type of each group, and the exact bytes."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod

from moeplan.errors import InputError
from simulator.model import size as model_size
from simulator.model.spec import MAX_LAYERS, ModelSpec
from simulator.model.tensor_types import BLOCKS, bytes_per_weight

OTHER = "other"  # tensors that a ModelSpec does not describe
Rules = Sequence[tuple[re.Pattern[str], str]]


@dataclass(frozen=True)
class TensorInfo:
    """One entry of a file's header; shape in numpy's order, so a matrix is (rows, columns)."""

    name: str
    shape: tuple[int, ...]
    tensor_type: str
    n_bytes: int

    @property
    def n_params(self) -> int:
        """Weights of the tensor."""
        return prod(self.shape)


def _rules(*pairs: tuple[str, str]) -> Rules:
    return [(re.compile(pattern), group) for pattern, group in pairs]


# The first rule that matches decides.
GGUF_RULES = _rules(
    (r"^token_embd\.weight$", "embedding"),
    (r"^output\.weight$", "lm_head"),
    (r"_norm(\.\d+)?\.(weight|bias)$|\.bias$|attn_sinks|_norm_enc", "norm"),
    (r"\.ffn_gate_inp", "router"),
    (r"\.ffn_(gate|up|down|gate_up)_exps\.weight$|\.ffn_(gate|up|down)\.\d+\.weight$", "experts"),
    (r"\.ffn_(gate|up|down)_shexp\.weight$", "shared_experts"),
    (r"\.ffn_(gate|up|down)\.weight$", "dense_ffn"),
    (r"\.attn_(q|k|v|qkv|output|q_a|q_b|kv_a_mqa|kv_b|k_b|v_b)\.weight$", "attention"),
)
SAFETENSORS_RULES = _rules(
    (r"embed_tokens\.weight$", "embedding"),
    (r"lm_head\.weight$", "lm_head"),
    (r"norm[^.]*\.weight$|bias$|sinks$", "norm"),
    (r"\.shared_experts?\.", "shared_experts"),
    (r"\.experts\.", "experts"),
    (r"\.(primary_router|router|gate|shared_expert_gate)\.weight$", "router"),
    (r"\.self_attn\.", "attention"),
    (r"\.mlp\.(gate|up|down|gate_up)_proj\.", "dense_ffn"),
)


def group_by(rules: Rules) -> Callable[[str], str]:
    """A function from a tensor's name to its group, OTHER where no rule matches."""

    def group_of(name: str) -> str:
        return next((group for pattern, group in rules if pattern.search(name)), OTHER)

    return group_of


@dataclass(frozen=True)
class Groups:
    """Bytes of each storage type in each tensor group."""

    bytes_by_type: dict[str, Counter[str]]

    @staticmethod
    def of(tensors: Iterable[TensorInfo], rules: Rules) -> "Groups":
        """Sum the tensors up."""
        group_of, sums = group_by(rules), {group: Counter[str]() for group in (*model_size.GROUPS, OTHER)}
        for tensor in tensors:
            sums[group_of(tensor.name)][tensor.tensor_type] += tensor.n_bytes
        return Groups(sums)

    def n_bytes(self, group: str) -> int:
        """Exact bytes of a group."""
        return self.bytes_by_type[group].total()

    def dominant_type(self, group: str) -> str | None:
        """The type that holds most bytes of a group, None for an empty group."""
        sums = self.bytes_by_type[group]
        return max(sorted(sums), key=lambda name: sums[name]) if sums else None

    def describe(self, group: str) -> str:
        """'q4_k 71 %, q6_k 29 %' by bytes."""
        total = self.n_bytes(group)
        return ", ".join(f"{name} {n / total:.0%}" for name, n in self.bytes_by_type[group].most_common() if total)


def tensor_types_of(groups: Groups, tied: bool) -> dict[str, str]:
    """The dominant type of each group; a group without tensors takes the type of the group that it would resemble."""
    found = {group: groups.dominant_type(group) for group in model_size.GROUPS}
    embedding = found["embedding"] or "f16"
    attention = found["attention"] or embedding
    body = found["experts"] or found["dense_ffn"] or attention
    return {
        "embedding": embedding,
        "attention": attention,
        "experts": body,
        "shared_experts": found["shared_experts"] or body,
        "dense_ffn": found["dense_ffn"] or body,
        "router": found["router"] or "f32",
        "norm": found["norm"] or "f32",
        "lm_head": embedding if tied else found["lm_head"] or embedding,
    }


def nearest_type(bytes_per_weight_found: float) -> str:
    """The type whose bytes per weight are nearest, for packed integers that have no type here."""
    return min(BLOCKS, key=lambda name: abs(bytes_per_weight(name) - bytes_per_weight_found))


def compare_bytes(spec: ModelSpec, groups: Groups, report: list[str]) -> None:
    """Report every group whose bytes in the file are not what the spec's shapes and types give."""
    for group, expected in model_size.group_bytes(spec).items():
        found = groups.n_bytes(group)
        if found != expected:
            advice = f"; the spec keeps the dominant type {groups.dominant_type(group)}" if found else ""
            report.append(
                f"tensor_types.{group}: the file holds {found} bytes ({groups.describe(group) or 'no tensor'}), "
                f"the spec gives {expected}{advice}"
            )
    if groups.n_bytes(OTHER):
        report.append(f"tensors: {groups.n_bytes(OTHER)} bytes are of kinds that a spec does not describe: left out")


def check_layers(n_layers: int, where: str) -> int:
    """The number of layers itself. Raises InputError for none, and for more than any model has."""
    if not 1 <= n_layers <= MAX_LAYERS:
        raise InputError(where, f"must be between 1 and {MAX_LAYERS} layers", n_layers)
    return n_layers


def moe_layout(moe_layer_ids: Sequence[int], n_layers: int, where: str) -> tuple[int, int]:
    """(first_dense_layers, layer_step) of the layers that have experts. Raises InputError for no such pattern."""
    ids = sorted(moe_layer_ids)
    if not ids:
        raise InputError(where, "must have a layer with experts", "none")
    first, step = ids[0], ids[1] - ids[0] if len(ids) > 1 else n_layers
    if ids != list(range(first, n_layers, step)):
        must = "must have experts in every n-th layer from some layer on"
        raise InputError(where, must, f"experts in layers {ids}", "a spec cannot describe this model yet")
    return first, step


def shortest_period(items: Sequence[str]) -> list[str]:
    """The shortest head of a list that repeats to the whole list."""
    for length in range(1, len(items) + 1):
        if all(item == items[index % length] for index, item in enumerate(items)):
            return list(items[:length])
    return list(items)
