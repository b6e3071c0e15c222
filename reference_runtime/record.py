"""Record routing traces: run requests through the forward pass, prompt as prefill and then decode token by token."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moeplan.errors import InputError
from reference_runtime.forward import NO_WATCH, Watch
from reference_runtime.model import Model
from reference_runtime.model_config import ModelConfig
from reference_runtime.sampling import Chooser, greedy
from reference_runtime.session import PREFILL_CHUNK_TOKENS, Session, SessionRecord
from traces.routing_trace import DECODE, PREFILL, RoutingTrace, TraceHeader

ENGINE = "moeplan reference_runtime, numpy float32"


@dataclass(frozen=True, eq=False)
class Request:
    """
    One request of n_prompt + n_decode tokens.

    tokens: the prompt alone, decode then takes what the chooser says (sampled), or all n_prompt + n_decode tokens,
    decode then takes these whatever the model would say (teacher-forced).
    domain: (n_prompt + n_decode,) index into the trace's domains.
    n_before: tokens that were in the KV cache before; only there the prompt may be empty.
    """

    tokens: np.ndarray
    n_prompt: int
    n_decode: int
    domain: np.ndarray
    n_before: int = 0

    def __post_init__(self) -> None:
        total = self.n_prompt + self.n_decode
        if self.n_before + self.n_prompt < 1 or self.n_decode < 0:
            raise InputError("request", "must have a prompt", f"{self.n_prompt} + {self.n_decode} tokens")
        if len(self.tokens) not in (self.n_prompt, total):
            raise InputError("request: tokens", f"must be {self.n_prompt} (sampled) or {total}", len(self.tokens))
        if len(self.domain) != total:
            raise InputError("request: domain", f"must name each of the {total} tokens", len(self.domain))

    @property
    def is_forced(self) -> bool:
        """Whether decode takes the given tokens."""
        return len(self.tokens) == self.n_prompt + self.n_decode


def run_request(
    model: Model,
    request: Request,
    choose: Chooser = greedy,
    chunk_tokens: int = PREFILL_CHUNK_TOKENS,
    watch: Watch = NO_WATCH,
) -> SessionRecord:
    """Run one request from an empty KV cache; the prompt goes in as chunks. Raises InputError."""
    session = Session(model, request.n_prompt + request.n_decode, chunk_tokens=chunk_tokens, watch=watch)
    logits = session.feed(request.tokens[: request.n_prompt])
    forced = request.tokens[request.n_prompt :] if request.is_forced else None
    session.decode(logits, request.n_decode, choose, forced=forced)
    return session.record()


def record(
    model: Model,
    requests: Sequence[Request],
    header: TraceHeader,
    choose: Chooser = greedy,
    chunk_tokens: int = PREFILL_CHUNK_TOKENS,
) -> RoutingTrace:
    """Run the requests one after the other, each from an empty KV cache, as one trace. Raises InputError."""
    if not requests:
        raise InputError("requests", "must be at least one", "none")
    runs = [run_request(model, request, choose, chunk_tokens) for request in requests]
    return trace_of(runs, requests, header)


def trace_of(runs: Sequence[SessionRecord], requests: Sequence[Request], header: TraceHeader) -> RoutingTrace:
    """The routing of requests that have run, as one trace; predictors that see only earlier state stand beside it."""
    lengths = [len(run.token_ids) for run in runs]
    phases = [np.repeat([PREFILL, DECODE], [request.n_prompt, request.n_decode]) for request in requests]
    positions = [request.n_before + np.arange(n) for request, n in zip(requests, lengths, strict=True)]
    names = runs[0].predicted.keys()
    return RoutingTrace(
        header=header,
        expert_ids=np.concatenate([run.expert_ids for run in runs]),
        phase=np.concatenate(phases).astype(np.uint8),
        request_id=np.repeat(np.arange(len(runs)), lengths).astype(np.int32),
        position=np.concatenate(positions).astype(np.int32),
        domain=np.concatenate([request.domain for request in requests]).astype(np.int16),
        token_id=np.concatenate([run.token_ids for run in runs]),
        weights=np.concatenate([run.expert_weights for run in runs]).astype(np.float16),
        predicted={name: np.concatenate([run.predicted[name] for run in runs]) for name in names},
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
