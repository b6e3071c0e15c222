"""How to open a model: the options, which model, which store of experts and which prefetch they mean."""

from dataclasses import dataclass
from pathlib import Path

from moeplan.errors import InputError, nearest
from moeplan.progress import OnProgress
from reference_runtime.loading.model_file import ModelFile
from reference_runtime.loading.weight_loading import open_model
from reference_runtime.session import PREFILL_CHUNK_TOKENS
from reference_runtime.streaming.expert_store import ExpertStore, SplitSource, default_store_path, open_store
from reference_runtime.streaming.prepare_store import prepare
from simulator.model.catalog import model_names
from simulator.policies import make_policy

SHIPPED = {"tiny-smallthinker": Path(__file__).parent / "weights" / "tiny-smallthinker-q8_0.gguf"}
KERNELS = ("fast", "plain")
LAYOUTS = ("bundle", "split")
PREFETCH = ("none", "pre-attention")
IN_THREE_PARTS = "experts are read from the model file in three parts each; --prepare writes them together once"


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


def find_model(name: str) -> Path:
    """A shipped model's file, or the path itself. Raises InputError."""
    if name in SHIPPED:
        return SHIPPED[name]
    path = Path(name)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError("--model", "must be a file or a folder", f"{name}, a pipe or a device")
    if not path.exists():
        must = "must be a GGUF file, a safetensors folder or a shipped model"
        if name in model_names():
            advice = (
                "that is a shape without weights: give a GGUF file of it, or make one with moeplan model synthesize"
            )
            raise InputError("--model", must, repr(name), advice)
        raise InputError("--model", must, repr(name), nearest(name, SHIPPED))
    return path


def prepare_store(options: RuntimeOptions, progress: OnProgress) -> Path:
    """The model's bundle, written where it is missing or not the model's. Raises InputError."""
    model_file = open_model(options.model)
    try:
        open_store(options.store_path, model_file).close()
    except InputError:
        return prepare(model_file, options.store_path, progress)
    return options.store_path


def check_options(options: RuntimeOptions) -> None:
    """Raises InputError, which names what is known, for kernels, layout, prefetch or a policy that is not."""
    for name, value, known in (
        ("--kernels", options.kernels, KERNELS),
        ("--layout", options.layout, LAYOUTS),
        ("--prefetch", options.prefetch, PREFETCH),
    ):
        if value is not None and value not in known:
            raise InputError(name, f"must be one of {', '.join(known)}", repr(value), nearest(value, known))
    make_policy(options.cache_policy, 1, 1)


def chosen_prefetch(options: RuntimeOptions, model_file: ModelFile) -> str:
    """What is asked for, else what the router allows. Raises InputError where it does not allow it."""
    is_early = model_file.config.pre_attention_router
    if options.prefetch == "pre-attention" and not is_early:
        must = f"must be none: {model_file.config.architecture} routes after attention"
        raise InputError("--prefetch", must, options.prefetch)
    return options.prefetch or ("pre-attention" if is_early else "none")


def chosen_store(options: RuntimeOptions, model_file: ModelFile) -> tuple[ExpertStore, str, tuple[str, ...]]:
    """The open store, its layout, and advice where there is any. Raises InputError where it is not the model's."""
    if options.layout == "split":
        if options.store is not None:
            raise InputError("--store", "must be left out with --layout split", str(options.store))
        return SplitSource(model_file), "split", ()
    if options.layout == "bundle" or options.store is not None or options.store_path.exists():
        return open_store(options.store_path, model_file), "bundle", ()
    return SplitSource(model_file), "split", (IN_THREE_PARTS,)
