"""
The prediction without the model's own shape: is the profile a table of answers, or does it carry over?

A probe measures kernels at the sizes of some models.  Here the rows that have exactly the sizes of one model go, in
every tensor type, so that its times come from what lies between other shapes.  An op keeps its own rows where no other
shape lies on each side of each of them: that would be extrapolation, which nobody promised.  Which ops those are is
told with the error, since there the profile stays a table of answers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from hardware_profiles.kernel_table import KernelRow
from hardware_profiles.schema import HardwareProfile
from simulator import kernel_calls
from simulator.expert_layout import expert_layout
from simulator.model.size import lm_head_bytes
from simulator.model.spec import ModelSpec

MISS_OPS = ("issue", "delay", "wake", "wake_on_demand", "wake_attention")
NOT_OF_THE_CALLS = ("row", "row_wait", "attend")  # of no shape, of no shape, and at the contexts of the probe
PROBED_CONTEXTS = tuple(2**power for power in range(3, 18))  # contexts that a probe times attention at are such


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A profile without a model's own shape; kept: the ops that the model uses and that kept rows of it, in order."""

    profile: HardwareProfile
    kept: tuple[str, ...]


@lru_cache(maxsize=64)
def without_shape(profile: HardwareProfile, spec: ModelSpec) -> HeldOut | None:
    """
    The profile without a model's own kernel rows, None where the products and experts of a decode token cannot do
    without.
    """
    table = profile.cpu.kernels
    if table is None or spec.experts is None:
        return None
    own = _own_sizes(spec, {row.type for row in table.rows})
    kinds = list(dict.fromkeys((row.op, row.type, row.threads) for row in table.rows))
    kept: list[KernelRow] = []
    kept_own: dict[tuple[str, str], None] = {}
    lost: set[tuple[str, str]] = set()
    for kind in kinds:
        rows = [row for row in table.rows if (row.op, row.type, row.threads) == kind]
        others = [row for row in rows if (row.op, row.size) not in own]
        mine = {row.size for row in rows if (row.op, row.size) in own}
        between = others and all(min(o.size for o in others) < size < max(o.size for o in others) for size in mine)
        kept += others if between else rows
        if mine and between:
            lost.add(kind[:2])
        elif mine:
            kept_own[kind[:2]] = None
    types = spec.tensor_types
    needed = {("gemv", types.attention), ("experts", types.experts)}  # most of a token: else nothing is to be learnt
    if not needed <= lost:
        return None
    cpu = profile.cpu.model_copy(update={"kernels": table.model_copy(update={"rows": tuple(kept)})})
    used = {kernel_calls.NO_TYPE, *types.model_dump().values()}
    ops = dict.fromkeys(op for op, tensor_type in kept_own if tensor_type in used)
    return HeldOut(profile.model_copy(update={"cpu": cpu}), tuple(ops))


def _own_sizes(spec: ModelSpec, tensor_types: Iterable[str]) -> frozenset[tuple[str, float]]:
    """(op, size) of all kernel calls of a model, as it is and in the other tensor types."""
    return frozenset(pair for name in sorted(tensor_types) for pair in _sizes(_retyped(spec, name)))


def _retyped(spec: ModelSpec, tensor_type: str) -> ModelSpec:
    groups = ("embedding", "attention", "experts", "shared_experts", "dense_ffn", "lm_head")
    types = spec.tensor_types.model_copy(update=dict.fromkeys(groups, tensor_type))
    return spec.model_copy(update={"tensor_types": types})


def _sizes(spec: ModelSpec) -> set[tuple[str, float]]:
    calls = [
        *kernel_calls.router_calls(spec),
        *kernel_calls.attention_calls(spec, 1.0),
        *kernel_calls.expert_ffn_calls(spec, 1, 1, 0.0),
        *kernel_calls.expert_ffn_calls(spec, 1, 16, 0.0),
        *kernel_calls.lm_head_calls(spec),
        *kernel_calls.step_calls(spec),
    ]
    sizes: set[tuple[str, float]] = {(call.op, float(call.size)) for call in calls if call.op not in NOT_OF_THE_CALLS}
    matrices = {size for op, size in sizes if op in ("gemv", "gemm")} - {float(lm_head_bytes(spec))}
    sizes |= {(op, size) for op in ("gemv", "gemm") for size in matrices}
    width = spec.attention.n_heads * spec.attention.head_dim
    sizes |= {("attend", float(width * context)) for context in PROBED_CONTEXTS}
    sizes |= {(op, float(expert_layout(spec, "bundle").padded_bytes)) for op in MISS_OPS}
    return sizes
