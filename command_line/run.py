"""`moeplan run`: really execute a model, really stream its experts, and say what happened."""

import json
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from command_line.progress import progress_bar, step_bar
from moeplan.errors import InputError
from moeplan.quantity import parse_quantity

if TYPE_CHECKING:
    from moeplan.quantity import Dimension
    from reference_runtime.loading.tokenizer import Tokenizer
    from reference_runtime.quality.evaluation import Evaluation, HeldOutText
    from reference_runtime.run import RunOutput, Task
    from reference_runtime.runtime import Runtime
    from reference_runtime.runtime_options import RuntimeOptions
    from reference_runtime.saved_state import SavedState


RECORD_FILES = ("trace.parquet", "ops.parquet", "run.json")


def _option(help_text: str, metavar: str | None = None, **checks: Any) -> Any:
    return typer.Option(help=help_text, metavar=metavar, **checks)


ModelPath = Annotated[str, _option("GGUF file, safetensors folder, or the shipped tiny-smallthinker.", "M")]
PromptText = Annotated[str | None, _option("The prompt.", "TEXT")]
PromptFile = Annotated[Path | None, _option("A UTF-8 text file: the prompt.", "FILE")]
TokenIds = Annotated[Path | None, _option("Token ids instead of text: JSON list or .npy.", "FILE")]
MaxTokens = Annotated[int, _option("Decode tokens.", min=0)]
Forced = Annotated[bool, _option("Decode takes the last --max-tokens of the prompt, whatever the model says.")]
WarmUp = Annotated[int, _option("Decode tokens that run first and do not count.", min=0)]
RamCap = Annotated[str | None, _option("RAM for all that the model needs; none: everything is resident.", "SIZE")]
Limit = Annotated[str | None, _option('Stand in for a slower drive, e.g. "200 MB/s".', "RATE")]
Latency = Annotated[str | None, _option('Latency of every read of that drive, e.g. "80 us".', "TIME")]
Cache = Annotated[str, _option("lru, lru-per-layer, lfu, lfu-decay, fifo, clock, s3-fifo or sieve.")]
Prefetch = Annotated[str | None, _option("none or pre-attention; default: what the router allows.")]
Layout = Annotated[
    str | None, _option("bundle (1 read an expert) or split (3 of the model file); default: bundle once prepared.")
]
Store = Annotated[Path | None, _option("The prepared bundle; default: in a folder beside the model.", "FILE")]
Prepare = Annotated[bool, _option("Write the bundle of experts first if need be; without a prompt: only that.")]
Threads = Annotated[int | None, _option("Compute threads; default: all cores.", min=1)]
KernelName = Annotated[str, _option("fast (compiled) or plain (the numpy reference).")]
Chunk = Annotated[int, _option("Prompt tokens that run together.", min=1)]
Temperature = Annotated[float, _option("0 is greedy.")]
TopP = Annotated[float, _option("Nucleus of a draw.")]
Seed = Annotated[int, _option("Seed of the draws.", min=0)]
Replay = Annotated[str | None, _option("Take experts from this trace, not the router (labelled); random weights.", "T")]
Evaluate = Annotated[Path | None, _option("Score held-out text too: UTF-8, or .npy or .json of ids.", "FILE")]
EvaluateTokens = Annotated[int | None, _option("Score that text's first N tokens; default: all.", "N", min=2)]
TopK = Annotated[int | None, _option("Fewer experts per token than the model's own.", "K", min=1)]
Predictor = Annotated[Path | None, _option("Score the text with this LM-head predictor (.npz) as well.", "FILE")]
SaveState = Annotated[Path | None, _option("Write keys and values of the prompt there, to go on from later.", "FILE")]
LoadState = Annotated[Path | None, _option("Take the prompt from such a file instead of feeding it.", "FILE")]
Record = Annotated[Path | None, _option("Write trace.parquet, ops.parquet and run.json there.", "DIR")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


def run(
    model: ModelPath = "tiny-smallthinker", prompt: PromptText = None, prompt_file: PromptFile = None,
    token_ids: TokenIds = None, max_tokens: MaxTokens = 64, forced: Forced = False, warm_up: WarmUp = 0,
    ram_cap: RamCap = None, storage_limit: Limit = None, storage_latency: Latency = None, cache: Cache = "lru",
    prefetch: Prefetch = None, layout: Layout = None, store: Store = None, prepare: Prepare = False,
    threads: Threads = None, kernels: KernelName = "fast", prefill_chunk: Chunk = 512,
    temperature: Temperature = 0.0, top_p: TopP = 0.95, seed: Seed = 0, replay_routing: Replay = None,
    evaluate: Evaluate = None, evaluate_tokens: EvaluateTokens = None, top_k: TopK = None,
    lm_head_predictor: Predictor = None, save_state: SaveState = None, load_state: LoadState = None,
    record: Record = None, as_json: Json = False,
) -> None:  # fmt: skip
    """
    Execute a model, stream its experts from disk under a RAM cap, and say how fast and why.

    With --evaluate the text's quality stands beside the speed; without a prompt the text itself is decoded.
    With --load-state the answer is that of the same command without it, the prompt's own time and reads left out.
    """
    from reference_runtime.run import run as run_task
    from reference_runtime.runtime import open_runtime
    from reference_runtime.runtime_options import RuntimeOptions, find_model, prepare_store

    options = RuntimeOptions(
        model=find_model(model),
        ram_cap_bytes=_bytes(ram_cap, "--ram-cap"),
        storage_bytes_per_s=_quantity(storage_limit, "byte/second", "--storage-limit"),
        storage_latency_s=_quantity(storage_latency, "second", "--storage-latency") or 0.0,
        cache_policy=cache, prefetch=prefetch, layout=layout, store=store, n_threads=threads, kernels=kernels,
        chunk_tokens=prefill_chunk, bind_threads=True,
    )  # fmt: skip
    if record is not None:
        check_record(record)
    held_out = _held_out(options.model, evaluate, evaluate_tokens, lm_head_predictor, replay_routing)
    state = _state(save_state, load_state)
    has_prompt = any(given is not None for given in (prompt, prompt_file, token_ids, state))
    if prepare:
        with step_bar("preparing experts") as on_expert:
            target = prepare_store(options, on_expert)
        if not has_prompt and held_out is None:
            print(f"prepared {target}")
            return
    if held_out is not None and not has_prompt:
        task = held_out.task(max_tokens, warm_up)
    else:
        task = _task(
            options, prompt, prompt_file, token_ids, max_tokens, forced, warm_up, temperature, top_p, seed, state
        )
    if held_out is None:  # the memory plan holds no chunk that is longer than what will be fed
        options = replace(options, chunk_tokens=min(prefill_chunk, max(1, len(task.prompt))))
    task = replace(task, state=state, save_state=save_state)
    capacity = max(len(task.prompt) + task.n_decode, held_out.window_tokens if held_out else 0)
    with ExitStack() as stack:
        with step_bar("loading (the first run also compiles)") as on_load:
            runtime = stack.enter_context(open_runtime(options, capacity, on_load))
        runtime = runtime if top_k is None else runtime.with_top_k(top_k)
        task = _with_replay(task, runtime, replay_routing)
        with step_bar("reading the prompt") as on_prompt, progress_bar("decoding", max(1, task.n_decode)) as on_token:
            n_prompt = len(task.prompt)
            output = run_task(runtime, task, on_prompt=lambda done: on_prompt(done, n_prompt), on_token=on_token)
        quality = None
        if held_out is not None:
            with step_bar("scoring") as on_scored:
                quality = held_out.evaluate(runtime, on_scored)
    _answer(output, quality, record, as_json)


def _held_out(
    model: Path, text: Path | None, n_tokens: int | None, predictor: Path | None, replay_routing: str | None
) -> "HeldOutText | None":
    if text is None:
        for name, value in {"--evaluate-tokens": n_tokens, "--lm-head-predictor": predictor}.items():
            if value is not None:
                raise InputError(name, "must come with --evaluate", value)
        return None
    if replay_routing is not None:
        raise InputError("--evaluate", "must be without --replay-routing", "both", "a replayed choice has no quality")
    from reference_runtime.quality.evaluation import HeldOutText

    return HeldOutText.read(model, text, n_tokens, predictor)


def _state(save_to: Path | None, load_from: Path | None) -> "SavedState | None":
    """The state to begin from. Raises InputError, also where one could not be written, so that nothing runs in vain."""
    from moeplan.files import output_target
    from reference_runtime.saved_state import open_state

    if save_to is not None:
        output_target(save_to)
        if load_from is not None:
            raise InputError("--save-state", "must be without --load-state", "both", "copy the file")
    return None if load_from is None else open_state(load_from)


def _answer(output: "RunOutput", quality: "Evaluation | None", record: Path | None, as_json: bool) -> None:
    from command_line.evaluate import quality_lines
    from command_line.run_answer import render_run

    result, answer = output.result, output.result.as_json()
    if quality is not None:
        answer["quality"] = quality.as_json()
    if record is not None:
        _write_record(output, answer, record)
    if as_json:
        print(json.dumps(answer, indent=1))
    else:
        render_run(result, record, quality_lines(quality) if quality else ())


def _task(
    options: "RuntimeOptions", prompt: str | None, prompt_file: Path | None, token_ids: Path | None, max_tokens: int,
    forced: bool, warm_up: int, temperature: float, top_p: float, seed: int, state: "SavedState | None",
) -> "Task":  # fmt: skip
    from reference_runtime.loading.token_files import read_token_ids
    from reference_runtime.loading.tokenizer import read_tokenizer
    from reference_runtime.loading.weight_loading import open_model
    from reference_runtime.run import Task
    from reference_runtime.sampling import seeded

    if prompt is not None and not prompt.isascii():
        _check_text(prompt)
    given = {"--prompt": prompt, "--prompt-file": prompt_file, "--token-ids": token_ids}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1 and not (state and not named):
        raise InputError("--prompt", "must be given once: --prompt, --prompt-file or --token-ids", named or "nothing")
    end_id = -1
    if state is not None and not named:
        ids = state.token_ids.tolist()
    elif token_ids is not None:
        ids = read_token_ids(token_ids, open_model(options.model).config.vocab_size).tolist()
    else:
        tokenizer = read_tokenizer(options.model)
        ids, end_id = _encode(tokenizer, prompt, prompt_file), tokenizer.eos_id
    choose = seeded(seed, temperature, top_p)
    if forced:
        if len(ids) <= max_tokens:
            must = f"must leave a prompt before the {max_tokens} tokens of decode"
            raise InputError("--forced", must, f"{len(ids)} tokens", "give more text or a smaller --max-tokens")
        at = len(ids) - max_tokens
        return Task(ids[:at], max_tokens, choose, forced=ids[at:], n_warm_up=warm_up)
    how = "greedy" if temperature == 0 else f"temperature {temperature}, top-p {top_p}, seed {seed}"
    return Task(ids, max_tokens, choose, end_id=end_id, n_warm_up=warm_up, conditions={"sampling": how})


def _encode(tokenizer: "Tokenizer", prompt: str | None, prompt_file: Path | None) -> list[int]:
    from moeplan.files import read_text

    text = prompt if prompt_file is None else read_text(prompt_file)
    if not text:
        raise InputError("--prompt", "must be a text", "an empty one")
    return tokenizer.encode(text)


def _check_text(prompt: str) -> None:
    try:
        prompt.encode()
    except UnicodeEncodeError as error:  # bytes of the shell that were no UTF-8
        got = f"a bad byte at {error.start}"
        raise InputError("--prompt", "must be UTF-8 text", got, "give it with --token-ids") from None


def _with_replay(task: "Task", runtime: "Runtime", name: str | None) -> "Task":
    if name is None:
        return task
    from reference_runtime.routing_replay import ReplayRouter
    from traces.catalog import load_trace

    trace, n_tokens = load_trace(name), len(task.prompt) + task.n_decode
    # of a long prompt's state, made here or loaded, the trace may begin again; the label then says so
    has_state = task.state is not None or task.save_state is not None
    router = ReplayRouter(trace, runtime.model.config, name, wrap=has_state and n_tokens > trace.n_tokens)
    router.check_length(n_tokens)
    return replace(task, router=router, label=router.label)


def _write_record(output: "RunOutput", answer: dict[str, Any], folder: Path) -> None:
    """trace.parquet, ops.parquet and run.json, each whole or absent."""
    from moeplan.files import atomic_path, write_text
    from traces.store import write_trace

    trace, operations, figures = (folder / name for name in RECORD_FILES)
    write_trace(output.trace, trace)
    with atomic_path(operations) as temporary:
        output.records.to_parquet(temporary)
    write_text(figures, json.dumps(answer, indent=1))


def check_record(folder: Path) -> None:
    """Raises InputError where no record could be written, so that nothing runs in vain."""
    from moeplan.files import output_target

    if folder.exists() and not folder.is_dir():
        raise InputError("--record", "must be a folder or a new name", str(folder))
    for name in RECORD_FILES:
        output_target(folder / name)
    made = [place for place in (folder, *folder.parents) if not place.exists()]  # deepest first; a run may yet fail
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        for place in made:
            place.rmdir()
    except OSError as error:
        raise InputError(str(folder), "must be a folder that can be written", error.strerror or error) from error


def _bytes(text: str | None, where: str) -> int | None:
    return None if text is None else round(parse_quantity(text, "byte", where))


def _quantity(text: str | None, dimension: "Dimension", where: str) -> float | None:
    return None if text is None else parse_quantity(text, dimension, where, allow_zero=dimension == "second")
