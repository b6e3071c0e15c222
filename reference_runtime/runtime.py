"""
A model opened under a RAM cap: dense weights in memory, experts streaming through what is left.

The cap counts all that the model needs resident: dense weights, KV cache, activations, read buffers, expert cache;
the interpreter and its libraries are the baseline, measured before any weight is loaded.  Who gets which bytes is
decided by the simulator's own memory plan, so both count the same number of slots.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from threadpoolctl import threadpool_limits

from moeplan.errors import InputError, nearest
from moeplan.quantity import format_bytes
from reference_runtime.conditions import file_system, ram_bytes, read_ahead_bytes, usable_cores
from reference_runtime.core_affinity import bound_threads
from reference_runtime.kernels.fast import MOST_THREADS, FastKernels
from reference_runtime.kernels.plain import PlainKernels
from reference_runtime.kv_cache import check_capacity
from reference_runtime.loading.gguf_weights import fingerprint
from reference_runtime.loading.model_file import ModelFile
from reference_runtime.loading.tokenizer import Tokenizer, read_tokenizer
from reference_runtime.loading.weight_loading import load_dense, open_model
from reference_runtime.model import Kernels, Model
from reference_runtime.op_clock import OpClock
from reference_runtime.process_memory import reset_peak, rss_bytes
from reference_runtime.session import PREFILL_CHUNK_TOKENS
from reference_runtime.streaming.expert_cache import StreamedExperts
from reference_runtime.streaming.expert_store import ExpertStore, SplitSource, default_store_path, open_store
from reference_runtime.streaming.prepare_store import prepare
from reference_runtime.streaming.storage_limiter import StorageLimiter
from simulator.memory import MemoryPlan, plan_memory
from simulator.model.catalog import model_names
from simulator.model.imports.dispatch import import_model
from simulator.policies import make_policy

UNLIMITED_BYTES = 2**60
SHIPPED = {"tiny-smallthinker": Path(__file__).parent / "weights" / "tiny-smallthinker-q8_0.gguf"}
KERNELS = ("fast", "plain")
LAYOUTS = ("bundle", "split")
PREFETCH = ("none", "pre-attention")
IN_THREE_PARTS = "experts are read from the model file in three parts each; --prepare writes them together once"

Progress = Callable[[int, int], object]
Identity = tuple[int, int, int]  # inode, bytes and modification time in ns of a file


@dataclass(frozen=True)
class RuntimeOptions:
    """
    How to open a model.

    ram_cap_bytes: None keeps everything resident; prefetch: None takes what the model's router allows; layout: None
    takes the bundle where it is prepared and the model file itself otherwise; store: the bundle, None beside the
    model; n_threads: None takes all cores that the process may use; bind_threads:
    where that is as many as there are cores, each thread stays on its own while the model is open (core_affinity.py),
    which a program that does other things meanwhile may not want.
    """

    model: Path
    ram_cap_bytes: int | None = None
    storage_bytes_per_s: float | None = None
    storage_latency_s: float = 0.0
    cache_policy: str = "lru"
    prefetch: str | None = None
    layout: str | None = None
    store: Path | None = None
    n_threads: int | None = None
    kernels: str = "fast"
    chunk_tokens: int = PREFILL_CHUNK_TOKENS
    bind_threads: bool = False

    @property
    def store_path(self) -> Path:
        """Where the bundle is or would be."""
        return self.store or default_store_path(self.model)

    @property
    def is_limited(self) -> bool:
        """Whether a slower drive is stood in for."""
        return self.storage_bytes_per_s is not None or self.storage_latency_s > 0


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


def find_model(name: str) -> Path:
    """A shipped model's file, or the path itself. Raises InputError."""
    if name in SHIPPED:
        return SHIPPED[name]
    path = Path(name)
    if not path.exists():
        must = "must be a GGUF file, a safetensors folder or a shipped model"
        if name in model_names():
            advice = (
                "that is a shape without weights: give a GGUF file of it, or make one with moeplan model synthesize"
            )
            raise InputError("--model", must, repr(name), advice)
        raise InputError("--model", must, repr(name), nearest(name, SHIPPED))
    return path


def prepare_store(options: RuntimeOptions, progress: Progress) -> Path:
    """The model's bundle, written where it is missing or not the model's. Raises InputError."""
    model_file = open_model(options.model)
    try:
        open_store(options.store_path, model_file).close()
    except InputError:
        return prepare(model_file, options.store_path, progress)
    return options.store_path


@contextmanager
def open_runtime(options: RuntimeOptions, capacity: int, progress: Progress | None = None) -> Iterator[Runtime]:
    """
    Open a model for sequences of at most `capacity` tokens.

    The baseline of memory is taken when imports, kernels, header and tokenizer are there, and the peak starts anew.
    Raises InputError; with a cap below what must be resident it carries the arithmetic.
    """
    _check(options)
    model_file = open_model(options.model)
    opened_as = _identity(model_file.files[0])
    check_capacity(model_file.config, capacity)
    prefetch = _prefetch(options, model_file)
    n_threads = options.n_threads or min(usable_cores(), MOST_THREADS)
    kernels = _kernels(options.kernels, n_threads)
    tokenizer = _tokenizer_or_none(options.model)
    store, layout, warnings = _store(options, model_file)
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
    with experts, threadpool_limits(n_threads, user_api="blas"), binding as is_bound:
        if plan.verdict == "resident":
            warnings = tuple(text for text in warnings if text != IN_THREE_PARTS)  # they were read once, before
            experts.preload(progress or (lambda done, total: None))
        model = Model(model_file.config, dense, experts, kernels)
        yield Runtime(
            options, model, model_file, experts, plan, clock, tokenizer, baseline, prefetch, layout, n_threads,
            (*model_file.warnings, *warnings), is_bound, opened_as,
        )  # fmt: skip


def _check(options: RuntimeOptions) -> None:
    for name, value, known in (
        ("--kernels", options.kernels, KERNELS),
        ("--layout", options.layout, LAYOUTS),
        ("--prefetch", options.prefetch, PREFETCH),
    ):
        if value is not None and value not in known:
            raise InputError(name, f"must be one of {', '.join(known)}", repr(value), nearest(value, known))
    make_policy(options.cache_policy, 1, 1)


def _identity(path: Path) -> Identity | None:
    """None where there is no such file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _prefetch(options: RuntimeOptions, model_file: ModelFile) -> str:
    is_early = model_file.config.pre_attention_router
    if options.prefetch == "pre-attention" and not is_early:
        must = f"must be none: {model_file.config.architecture} routes after attention"
        raise InputError("--prefetch", must, options.prefetch)
    return options.prefetch or ("pre-attention" if is_early else "none")


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


def _store(options: RuntimeOptions, model_file: ModelFile) -> tuple[ExpertStore, str, tuple[str, ...]]:
    if options.layout == "split":
        if options.store is not None:
            raise InputError("--store", "must be left out with --layout split", str(options.store))
        return SplitSource(model_file), "split", ()
    if options.layout == "bundle" or options.store is not None or options.store_path.exists():
        return open_store(options.store_path, model_file), "bundle", ()
    return SplitSource(model_file), "split", (IN_THREE_PARTS,)


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
        raise InputError("--ram-cap", "must hold what has to be resident", cap, f"that is {takes}")
    resident, machine = plan.memory.resident_bytes, ram_bytes()
    if 0 < machine < resident:
        must = f"must leave the model within the machine's {format_bytes(machine)}"
        raise InputError("--ram-cap", must, f"{format_bytes(resident)} to be resident", "give a lower cap")
    return plan
