"""
One run: a prompt, decode token by token, and the figures.

Decode tokens after the warm-up count; a token's time is from the moment its id is known to the moment its logits are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from moeplan.errors import InputError
from reference_runtime.conditions import machine_conditions
from reference_runtime.forward import OWN_ROUTER, Router
from reference_runtime.process_memory import peak_rss_bytes
from reference_runtime.record import Request, trace_header, trace_of
from reference_runtime.run_result import TEACHER_FORCED, RunResult, hidden_share, layer_timings, seconds_per_token
from reference_runtime.runtime import Runtime
from reference_runtime.sampling import Chooser, greedy
from reference_runtime.saved_state import ROUTING_SHA256, SavedState, routing_fingerprint, save_state
from reference_runtime.session import Session, SessionRecord
from traces.routing_trace import RoutingTrace

if TYPE_CHECKING:
    import pandas as pd

FED_WITH = ("routing", "top_k", "kernels", "prefill_chunk")  # conditions that a prompt's state depends on


@dataclass(frozen=True, eq=False)
class Task:
    """
    What to run: the prompt, and how decode goes on.

    forced: decode takes these ids, whatever the model says (teacher forcing), else `choose` picks n_decode of them,
    fewer where end_id comes.  n_warm_up: decode tokens that run and do not count.  state: the prompt is not fed but
    taken from there; save_state: where to write the state after the prompt.
    """

    prompt: Sequence[int]
    n_decode: int
    choose: Chooser = greedy
    forced: Sequence[int] | None = None
    end_id: int = -1
    n_warm_up: int = 0
    router: Router = OWN_ROUTER
    label: str = ""
    conditions: dict[str, str] = field(default_factory=dict)
    state: SavedState | None = None
    save_state: Path | None = None

    def __post_init__(self) -> None:
        if len(self.prompt) == 0:
            raise InputError("--prompt", "must have at least one token", "none")
        if self.n_decode < 0:
            raise InputError("--max-tokens", "must be at least 0", self.n_decode)
        if self.forced is not None and len(self.forced) < self.n_decode:
            raise InputError("--max-tokens", f"must be at most the {len(self.forced)} tokens given", self.n_decode)
        if not 0 <= self.n_warm_up <= self.n_decode:
            raise InputError("--warm-up", f"must be 0 to the {self.n_decode} tokens of decode", self.n_warm_up)
        if self.state is not None:
            self.state.check_prompt(self.prompt)
            if self.n_decode == 0:
                raise InputError("--max-tokens", "must be at least 1 from a saved state", 0)

    @property
    def n_fed(self) -> int:
        """Prompt tokens that run: all of them, or none from a saved state."""
        return len(self.prompt) if self.state is None else 0


@dataclass(frozen=True, eq=False)
class RunOutput:
    """The figures, every operation, and the routing; the trace is made when it is asked for (it hashes the model)."""

    result: RunResult
    records: "pd.DataFrame"
    make_trace: Callable[[], RoutingTrace]

    @cached_property
    def trace(self) -> RoutingTrace:
        """The routing of prompt and decode, with its provenance."""
        return self.make_trace()


def run(
    runtime: Runtime,
    task: Task,
    *,
    on_prompt: Callable[[int], object] | None = None,
    on_token: Callable[[int], object] | None = None,
) -> RunOutput:
    """Run a task on an open runtime, from an empty KV cache or a saved state. Raises InputError."""
    session = Session(
        runtime.model,
        len(task.prompt) + task.n_decode,
        chunk_tokens=runtime.options.chunk_tokens,
        router=task.router,
        watch=runtime.clock,
    )
    logits = _prompt_logits(runtime, task, session, on_prompt)
    session.decode(logits, task.n_decode, task.choose, forced=task.forced, end_id=task.end_id, on_token=on_token)
    peak = peak_rss_bytes()
    record = session.record()
    records = runtime.clock.records()
    result = _result(runtime, task, record, records, peak)
    return RunOutput(result, records, partial(_trace, runtime, task, record))


def _prompt_logits(
    runtime: Runtime, task: Task, session: Session, on_prompt: Callable[[int], object] | None
) -> np.ndarray:
    """The logits (vocab,) after the prompt, which is fed or loaded, and saved where that is asked for."""
    found = _conditions(runtime, task)
    fed_with = {name: found[name] for name in FED_WITH}
    if task.router is not OWN_ROUTER and (task.state is not None or task.save_state is not None):
        fed_with[ROUTING_SHA256] = routing_fingerprint(task.router, len(task.prompt), runtime.model.config)
    if task.state is not None:
        return task.state.load_into(session.cache, runtime.model_file, fed_with)
    logits = session.feed(task.prompt, on_prompt)
    if task.save_state is not None:
        save_state(task.save_state, session.cache, task.prompt, logits, runtime.model_file, fed_with)
    return logits


def _result(runtime: Runtime, task: Task, record: SessionRecord, records: "pd.DataFrame", peak: int) -> RunResult:
    n_prompt, n_tokens = task.n_fed, len(record.token_ids)
    first = n_prompt + task.n_warm_up
    spans = runtime.clock.chunk_spans()
    n_chunks = len(spans) - (n_tokens - n_prompt)
    counted = spans[n_chunks + task.n_warm_up :]
    decode = records[records["token"] >= first]
    hits, misses, n_bytes = (int(decode[column].sum()) for column in ("n_hits", "n_misses", "n_bytes"))
    seconds = sum(end - start for _, start, end in counted)
    zero = record.zero_gate_frac[len(record.chunk_tokens) - len(counted) :]
    tokenizer = runtime.tokenizer
    return RunResult(
        token_ids=record.token_ids[n_prompt:].tolist(),
        text="" if tokenizer is None else tokenizer.decode(record.token_ids[n_prompt:].tolist()),
        n_prompt_tokens=n_prompt,
        n_decode_tokens=n_tokens - n_prompt,
        n_counted_tokens=len(counted),
        tokens_per_s=len(counted) / seconds if counted else None,
        prompt_s=spans[n_chunks - 1][2] - spans[0][1] if n_chunks else 0.0,
        hits=hits,
        misses=misses,
        hit_rate=hits / (hits + misses) if hits + misses else None,
        bytes_read=n_bytes,
        hidden_frac=hidden_share(decode),
        seconds_per_token=seconds_per_token(decode, len(counted)),
        layers=layer_timings(decode, zero.mean(axis=0)) if len(counted) else (),
        baseline_rss_bytes=runtime.baseline_rss_bytes,
        peak_rss_bytes=peak,
        ram_cap_bytes=runtime.options.ram_cap_bytes,
        memory=runtime.memory(),
        conditions=_conditions(runtime, task),
        warnings=runtime.warnings,
    )


def _conditions(runtime: Runtime, task: Task) -> dict[str, str]:
    decode = TEACHER_FORCED if task.forced is not None else "the model's own tokens"
    found = {**machine_conditions(), **runtime.conditions(), "decode": decode, **task.conditions}
    context = "empty" if task.state is None else task.state.label
    return {**found, "routing": task.label or "the model's own", "context_at_start": context}


def _trace(runtime: Runtime, task: Task, record: SessionRecord) -> RoutingTrace:
    n_prompt, n_tokens = task.n_fed, len(record.token_ids)
    header = trace_header(
        runtime.model.config,
        runtime.fingerprint(),
        source=task.conditions.get("prompt", "token ids of the person who ran it"),
        licence="unknown",
        domains=("unspecified",),
        conditions=_conditions(runtime, task),
    )
    domain, n_before = np.zeros(n_tokens, np.int16), len(task.prompt) - n_prompt
    request = Request(record.token_ids, n_prompt, n_tokens - n_prompt, domain, n_before)
    return trace_of([record], [request], header)
