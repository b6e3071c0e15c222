"""Record routing traces: run requests through the forward pass, prompt as prefill and then decode token by token."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moeplan.errors import InputError
from reference_runtime.forward import ForwardResult, KVCache, forward
from reference_runtime.gguf_weights import ModelConfig, Weights
from reference_runtime.sampling import Chooser, greedy
from traces.routing_trace import DECODE, PREFILL, RoutingTrace, TraceHeader

ENGINE = "moeplan reference_runtime, numpy float32"


@dataclass(frozen=True, eq=False)
class Request:
    """
    One request of n_prompt + n_decode tokens.

    tokens: the prompt alone, decode then takes what the chooser says (sampled), or all n_prompt + n_decode tokens,
    decode then takes these whatever the model would say (teacher-forced).
    domain: (n_prompt + n_decode,) index into the trace's domains.
    """

    tokens: np.ndarray
    n_prompt: int
    n_decode: int
    domain: np.ndarray

    def __post_init__(self) -> None:
        total = self.n_prompt + self.n_decode
        if self.n_prompt < 1 or self.n_decode < 0:
            raise InputError("request", "must have a prompt", f"{self.n_prompt} + {self.n_decode} tokens")
        if len(self.tokens) not in (self.n_prompt, total):
            raise InputError("request: tokens", f"must be {self.n_prompt} (sampled) or {total}", len(self.tokens))
        if len(self.domain) != total:
            raise InputError("request: domain", f"must name each of the {total} tokens", len(self.domain))

    @property
    def is_forced(self) -> bool:
        """Whether decode takes the given tokens."""
        return len(self.tokens) == self.n_prompt + self.n_decode


@dataclass(frozen=True, eq=False)
class RequestRun:
    """What a request did: every token that was fed in and the routing it caused, (n, n_layers, k) twice."""

    token_ids: np.ndarray
    expert_ids: np.ndarray
    expert_weights: np.ndarray


def run_request(
    weights: Weights, request: Request, choose: Chooser = greedy, prefill_chunk: int | None = None
) -> RequestRun:
    """Run one request; the prompt goes in as chunks of prefill_chunk tokens, None: as one. Raises InputError."""
    cache = KVCache(weights.config, request.n_prompt + request.n_decode)
    prompt = np.asarray(request.tokens[: request.n_prompt])
    size = prefill_chunk or len(prompt)
    steps = [forward(weights, prompt[at : at + size], cache) for at in range(0, len(prompt), size)]
    fed = prompt.tolist()
    for _ in range(request.n_decode):
        token = int(request.tokens[len(fed)]) if request.is_forced else choose(steps[-1].logits[-1])
        steps.append(_without_logits(steps.pop()))  # logits of a long request would fill the memory
        steps.append(forward(weights, np.array([token]), cache))
        fed.append(token)
    return RequestRun(
        token_ids=np.array(fed, dtype=np.int32),
        expert_ids=np.concatenate([step.expert_ids for step in steps]),
        expert_weights=np.concatenate([step.expert_weights for step in steps]),
    )


def _without_logits(step: ForwardResult) -> ForwardResult:
    return ForwardResult(np.empty((0, 0), np.float32), step.expert_ids, step.expert_weights, step.zero_gate_frac)


def record(
    weights: Weights,
    requests: Sequence[Request],
    header: TraceHeader,
    choose: Chooser = greedy,
    prefill_chunk: int | None = None,
) -> RoutingTrace:
    """Run the requests one after the other, each from an empty KV cache, as one trace. Raises InputError."""
    if not requests:
        raise InputError("requests", "must be at least one", "none")
    runs = [run_request(weights, request, choose, prefill_chunk) for request in requests]
    lengths = [len(run.token_ids) for run in runs]
    phases = [np.repeat([PREFILL, DECODE], [request.n_prompt, request.n_decode]) for request in requests]
    return RoutingTrace(
        header=header,
        expert_ids=np.concatenate([run.expert_ids for run in runs]),
        phase=np.concatenate(phases).astype(np.uint8),
        request_id=np.repeat(np.arange(len(runs)), lengths).astype(np.int32),
        position=np.concatenate([np.arange(n) for n in lengths]).astype(np.int32),
        domain=np.concatenate([request.domain for request in requests]).astype(np.int16),
        token_id=np.concatenate([run.token_ids for run in runs]),
        weights=np.concatenate([run.expert_weights for run in runs]).astype(np.float16),
    )


def trace_header(
    config: ModelConfig, model_fingerprint: str, *, source: str, licence: str, domains: Sequence[str], conditions: dict
) -> TraceHeader:
    """The header of a trace that this runtime records; every layer of this architecture is a MoE layer."""
    return TraceHeader(
        model=config.name,
        model_fingerprint=model_fingerprint,
        n_experts=config.n_experts,
        layer_ids=tuple(range(config.n_layers)),
        engine=ENGINE,
        source=source,
        licence=licence,
        domains=tuple(domains),
        conditions=conditions,
    )
