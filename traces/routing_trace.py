"""
RoutingTrace: which experts a model's router chose, token by token and layer by layer.

It validates itself when it is made, so a trace that exists is a trace that can be replayed.  Nothing is
repaired: a bad row is refused with its place.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from moeplan.errors import InputError

PREFILL, DECODE = 0, 1
CHECKED_TOKENS = 256  # tokens a block: some 100 kB of ids
MAX_COMPARED = 12  # slots up to which comparing each with each is faster than sorting


@dataclass(frozen=True)
class TraceHeader:
    """
    Where a trace comes from.

    model, model_fingerprint: whose routing it is (sha256 of the weights, or "" where unknown);
    layer_ids: the model's own index of every MoE layer, in order; domains: names that RoutingTrace.domain indexes;
    engine: what recorded it; source: the text that was run; conditions: whatever else a reader must know.
    """

    model: str
    model_fingerprint: str
    n_experts: int
    layer_ids: tuple[int, ...]
    engine: str
    source: str
    licence: str
    domains: tuple[str, ...] = ("unspecified",)
    conditions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class RoutingTrace:
    """
    expert_ids  int16   (n_tokens, n_moe_layers, top_k), distinct within a row
    phase       uint8   (n_tokens,)  PREFILL or DECODE
    request_id  int32   (n_tokens,)  tokens of one request stand together, in order
    position    int32   (n_tokens,)  absolute position in the request
    domain      int16   (n_tokens,)  index into header.domains
    token_id    int32   (n_tokens,)  or None
    weights     float16 like expert_ids, or None
    predicted   name -> int16 like expert_ids: what a predictor said before the router spoke
    """

    header: TraceHeader
    expert_ids: np.ndarray
    phase: np.ndarray
    request_id: np.ndarray
    position: np.ndarray
    domain: np.ndarray
    token_id: np.ndarray | None = None
    weights: np.ndarray | None = None
    predicted: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_shapes(self)
        _check_expert_ids(self)
        _check_tokens(self)

    @property
    def n_tokens(self) -> int:
        """Tokens of both phases."""
        return int(self.expert_ids.shape[0])

    @property
    def n_moe_layers(self) -> int:
        """MoE layers, the middle axis of expert_ids."""
        return int(self.expert_ids.shape[1])

    @property
    def top_k(self) -> int:
        """Experts a token and layer."""
        return int(self.expert_ids.shape[2])

    @property
    def is_decode(self) -> np.ndarray:
        """(n_tokens,) bool."""
        return self.phase == DECODE

    def select(self, tokens: np.ndarray | slice) -> "RoutingTrace":
        """The trace of some tokens only: a mask, an index array or a slice over the token axis."""
        return replace(
            self,
            expert_ids=self.expert_ids[tokens],
            phase=self.phase[tokens],
            request_id=self.request_id[tokens],
            position=self.position[tokens],
            domain=self.domain[tokens],
            token_id=None if self.token_id is None else self.token_id[tokens],
            weights=None if self.weights is None else self.weights[tokens],
            predicted={name: ids[tokens] for name, ids in self.predicted.items()},
        )


def _check_shapes(trace: RoutingTrace) -> None:
    ids = trace.expert_ids
    if ids.ndim != 3 or 0 in ids.shape or ids.dtype != np.int16:
        raise InputError(
            "trace: expert_ids",
            "must be int16 of shape (n_tokens, n_moe_layers, top_k), none of them 0",
            f"{ids.dtype} {ids.shape}",
        )
    if len(trace.header.layer_ids) != ids.shape[1]:
        raise InputError(
            "trace: layer_ids", f"must name each of the {ids.shape[1]} MoE layers", len(trace.header.layer_ids)
        )
    per_token = {"phase": trace.phase, "request_id": trace.request_id, "position": trace.position}
    per_token["domain"] = trace.domain
    if trace.token_id is not None:
        per_token["token_id"] = trace.token_id
    for name, column in per_token.items():
        if column.shape != ids.shape[:1]:
            raise InputError(f"trace: {name}", f"must have the shape ({ids.shape[0]},)", column.shape)
    like_ids = dict(trace.predicted) if trace.weights is None else {**trace.predicted, "weights": trace.weights}
    for name, array in like_ids.items():
        if array.shape != ids.shape:
            raise InputError(f"trace: {name}", f"must have the shape {ids.shape} of expert_ids", array.shape)


def _check_expert_ids(trace: RoutingTrace) -> None:
    """In blocks of tokens, so that what is compared stays in the processor's caches."""
    n_experts = trace.header.n_experts
    for first in range(0, trace.n_tokens, CHECKED_TOKENS):
        ids = trace.expert_ids[first : first + CHECKED_TOKENS]
        if ids.min() < 0 or ids.max() >= n_experts:
            token, layer, slot = np.argwhere((ids < 0) | (ids >= n_experts))[0]
            raise InputError(
                f"trace: token {first + token}, layer {layer}",
                f"expert ids must be 0 to {n_experts - 1}",
                int(ids[token, layer, slot]),
                "padding and shared experts must be left out",
            )
        if _has_repeats(ids):
            ordered = np.sort(ids, axis=2)
            token, layer = np.argwhere((ordered[:, :, 1:] == ordered[:, :, :-1]).any(axis=2))[0]
            where = f"trace: token {first + token}, layer {layer}"
            raise InputError(where, "expert ids must be distinct", ids[token, layer].tolist())


def _has_repeats(ids: np.ndarray) -> bool:
    """Whether a row of (n_tokens, n_layers, top_k) holds an expert twice."""
    top_k = ids.shape[2]
    if top_k > MAX_COMPARED:
        ordered = np.sort(ids, axis=2)
        return bool((ordered[:, :, 1:] == ordered[:, :, :-1]).any())
    slots = np.ascontiguousarray(ids.reshape(-1, top_k).T)
    return any((slots[slot + 1 :] == slots[slot]).any() for slot in range(top_k - 1))


def _check_tokens(trace: RoutingTrace) -> None:
    if not np.isin(trace.phase, (PREFILL, DECODE)).all():
        raise InputError("trace: phase", "must be 0 (prefill) or 1 (decode)", int(trace.phase.max()))
    if trace.domain.min() < 0 or trace.domain.max() >= len(trace.header.domains):
        raise InputError(
            "trace: domain", f"must index the {len(trace.header.domains)} domains", int(trace.domain.max())
        )
    same = trace.request_id[1:] == trace.request_id[:-1]
    if (same & (np.diff(trace.position) <= 0)).any() or trace.position.min() < 0:
        token = int(np.argmax(same & (np.diff(trace.position) <= 0))) + 1
        raise InputError(f"trace: token {token}", "positions must rise within a request", int(trace.position[token]))
    if (same & (trace.phase[1:] < trace.phase[:-1])).any():
        token = int(np.argmax(same & (trace.phase[1:] < trace.phase[:-1]))) + 1
        raise InputError(
            f"trace: token {token}", "prefill must come before decode in a request", "prefill after decode"
        )
    n_blocks = 1 + int((~same).sum())
    if n_blocks != len(np.unique(trace.request_id)):
        raise InputError("trace: request_id", "the tokens of a request must stand together", "a request in two places")
