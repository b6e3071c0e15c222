"""
A model opened under a RAM cap: dense weights in memory, experts streaming through what is left.

The cap counts all that the model needs resident: dense weights, KV cache, activations, read buffers, expert cache;
the interpreter and its libraries are the baseline, measured before any weight is loaded.  Who gets which bytes is
decided by the simulator's own memory plan, so both count the same number of slots.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from threadpoolctl import threadpool_limits

from moeplan.errors import InputError
from moeplan.progress import OnProgress, ignore_progress
from moeplan.quantity import format_bytes
from reference_runtime.conditions import file_system, ram_bytes, read_ahead_bytes, usable_cores
from reference_runtime.core_affinity import bound_threads
from reference_runtime.kernels.fast import BLAS_THREADS, MOST_THREADS, FastKernels
from reference_runtime.kernels.plain import PlainKernels
from reference_runtime.kv_cache import check_capacity
from reference_runtime.loading.gguf_weights import fingerprint
from reference_runtime.loading.model_file import ModelFile
from reference_runtime.loading.tokenizer import Tokenizer, read_tokenizer
from reference_runtime.loading.weight_loading import load_dense, open_model
from reference_runtime.model import DenseWeights, Kernels, Model
from reference_runtime.op_clock import OpClock
from reference_runtime.process_memory import reset_peak, rss_bytes
from reference_runtime.runtime_options import (
    IN_THREE_PARTS,
    RuntimeOptions,
    check_options,
    chosen_prefetch,
    chosen_store,
)
from reference_runtime.streaming.expert_cache import StreamedExperts
from reference_runtime.streaming.expert_store import ExpertStore
from reference_runtime.streaming.storage_limiter import StorageLimiter
from simulator.memory import MemoryPlan, plan_memory
from simulator.model.imports.dispatch import import_model
from simulator.policies import make_policy

UNLIMITED_BYTES = 2**60
Identity = tuple[int, int, int]  # inode, bytes and modification time in ns of a file


@dataclass(frozen=True, eq=False)
class Runtime:
    """An open model; close it by leaving `open_runtime`."""

    options: RuntimeOptions
    model: Model
    model_file: ModelFile
    experts: StreamedExperts
    plan: MemoryPlan
    clock: OpClock
    tokenizer: Tokenizer | None
    baseline_rss_bytes: int
    prefetch: str
    layout: str
    n_threads: int
    warnings: tuple[str, ...]
    threads_bound: bool = False
    opened_as: Identity | None = None  # of the model's first file

    def fingerprint(self) -> str:
        """sha256 of the model file, of the first one where there are several; "" where it is no more what was run."""
        path = self.model_file.files[0]
        if self.opened_as is None or _identity(path) != self.opened_as:
            return ""
        return fingerprint(path)

    def with_top_k(self, top_k: int) -> "Runtime":
        """The same open model with fewer experts per token than it was trained with. Raises InputError."""
        own = self.model_file.config.top_k
        if not 1 <= top_k <= own:
            raise InputError("--top-k", f"must be 1 to {own}, the model's own", top_k)
        return replace(self, model=replace(self.model, config=replace(self.model.config, top_k=top_k)))

    def memory(self) -> dict[str, int]:
        """The plan in bytes, and the slots that came out of it."""
        memory = self.plan.memory
        parts = {
            name: getattr(memory, f"{name}_bytes")
            for name in ("storage", "resident", "dense", "kv", "cache", "buffer", "activation")
        }
        return {**{f"{name}_bytes": n_bytes for name, n_bytes in parts.items()}, "slots": self.plan.n_slots}

    def conditions(self) -> dict[str, str]:
        """How the model was run."""
        options, path = self.options, self.model_file.path
        limit = "none"
        if options.is_limited:
            rate = options.storage_bytes_per_s
            limit = f"{'no limit' if rate is None else f'{rate:.0f} bytes/s'}, latency {options.storage_latency_s} s"
        read_ahead = read_ahead_bytes(self.experts.store.files[0].path)
        return {
            "model": str(path.name),
            "kernels": f"{options.kernels} kernels",
            "threads": str(self.n_threads),
            "threads_bound": "each to a core" if self.threads_bound else "no",
            "top_k": f"{self.model.config.top_k} of the model's {self.model_file.config.top_k}",
            "ram_cap_bytes": "none" if options.ram_cap_bytes is None else str(options.ram_cap_bytes),
            "verdict": self.plan.verdict,
            "cache": options.cache_policy,
            "slots": str(self.plan.n_slots),
            "prefetch": self.prefetch,
            "layout": self.layout,
            "reads": self.experts.read_mode,
            "readers": str(self.experts.n_readers),
            "storage_limit": limit,
            "file_system": file_system(path),
            "read_ahead_bytes": "unknown" if read_ahead is None else str(read_ahead),
            "prefill_chunk": str(options.chunk_tokens),
            "start": "all experts resident before the first token"
            if self.plan.verdict == "resident"
            else "empty expert cache",
            "kv_type": "F32",
        }


@contextmanager
def open_runtime(options: RuntimeOptions, capacity: int, progress: OnProgress | None = None) -> Iterator[Runtime]:
    """
    Open a model for sequences of at most `capacity` tokens.

    The baseline of memory is taken when imports, kernels, header and tokenizer are there, and the peak starts anew.
    Raises InputError; with a cap below what must be resident it carries the arithmetic.
    """
    check_options(options)
    model_file = open_model(options.model)
    opened_as = _identity(model_file.files[0])
    check_capacity(model_file.config, capacity)
    prefetch = chosen_prefetch(options, model_file)
    n_threads = options.n_threads or min(usable_cores(), MOST_THREADS)
    kernels = _kernels(options.kernels, n_threads)
    tokenizer = _tokenizer_or_none(options.model)
    store, layout, warnings = chosen_store(options, model_file)
    baseline = rss_bytes()
    if not reset_peak():
        warnings = (*warnings, "this system cannot reset the peak of memory: it is of the whole process")
    try:
        plan = _plan(options, store, capacity)
        dense = load_dense(model_file, pack=options.kernels == "fast")
        clock = OpClock()
        experts = StreamedExperts(
            store,
            make_policy(options.cache_policy, plan.n_slots, model_file.config.n_layers),
            n_slots=plan.n_slots,
            top_k=model_file.config.top_k,
            prefetch=prefetch == "pre-attention" or not model_file.config.pre_attention_router,
            limiter=StorageLimiter(options.storage_bytes_per_s, options.storage_latency_s)
            if options.is_limited
            else None,
            on_row=clock.row_read,
        )
    except BaseException:
        store.close()
        raise
    binding = bound_threads(n_threads) if options.bind_threads else nullcontext(False)
    n_blas = BLAS_THREADS if _is_packed(dense, store) else n_threads
    with experts, threadpool_limits(n_blas, user_api="blas"), binding as is_bound:
        if plan.verdict == "resident":
            warnings = tuple(text for text in warnings if text != IN_THREE_PARTS)  # they were read once, before
            experts.preload(progress or ignore_progress)
        model = Model(model_file.config, dense, experts, kernels)
        yield Runtime(
            options, model, model_file, experts, plan, clock, tokenizer, baseline, prefetch, layout, n_threads,
            (*model_file.warnings, *warnings), is_bound, opened_as,
        )  # fmt: skip


def _identity(path: Path) -> Identity | None:
    """None where there is no such file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _is_packed(dense: DenseWeights, store: ExpertStore) -> bool:
    """Whether the fast kernels multiply every matrix, so that BLAS has next to nothing to do."""
    layers = [matrix for layer in dense.layers for matrix in (layer.q, layer.k, layer.v, layer.o)]
    packings = [matrix.packing for matrix in (dense.output, *layers)]
    return "ggml" not in (*packings, *(place.packing for places in store.places for place in places))


def _kernels(name: str, n_threads: int) -> Kernels:
    if name == "plain":
        return PlainKernels()
    kernels = FastKernels(n_threads)
    kernels.warm_up()
    return kernels


def _tokenizer_or_none(path: Path) -> Tokenizer | None:
    try:
        return read_tokenizer(path)
    except InputError:  # a model of random weights has none; text was refused before
        return None


def _plan(options: RuntimeOptions, store: ExpertStore, capacity: int) -> MemoryPlan:
    spec = import_model(options.model).spec
    # the KV cache keeps what has left the window too, so it is planned as without one
    attention = spec.attention.model_copy(update={"window": spec.attention.window and max(capacity, 1)})
    spec = spec.model_copy(update={"kv_type": "f32", "attention": attention})
    plan = plan_memory(
        spec,
        store.layout,
        ram_cap_bytes=UNLIMITED_BYTES if options.ram_cap_bytes is None else options.ram_cap_bytes,
        free_storage_bytes=UNLIMITED_BYTES,
        context=capacity,
        chunk_tokens=min(options.chunk_tokens, capacity),
    )
    if plan.verdict == "cannot_run":
        cap, takes = format_bytes(options.ram_cap_bytes or 0), plan.arithmetic.removeprefix("resident: ")
        raise InputError("--ram-cap", "must hold what has to be resident", cap, f"it takes {takes}")
    resident, machine = plan.memory.resident_bytes, ram_bytes()
    if 0 < machine < resident:
        must = f"must leave the model within the machine's {format_bytes(machine)}"
        raise InputError("--ram-cap", must, f"{format_bytes(resident)} to be resident", "give a lower cap")
    return plan
