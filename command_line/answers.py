"""The commands that answer: simulate, plan and report."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from command_line.console import answer_console
from command_line.progress import step_bar
from moeplan.errors import InputError
from moeplan.files import output_target
from moeplan.quantity import parse_quantity

if TYPE_CHECKING:
    from simulator.question import Question

Model = Annotated[str, typer.Option("--model", metavar="M", help="Shipped model name or a YAML file.")]
Hardware = Annotated[str, typer.Option("--hardware", metavar="H", help="Shipped device name or a YAML file.")]
Trace = Annotated[
    str | None, typer.Option("--trace", metavar="T", help="Shipped trace name or a file; none for a dense model.")
]
RamCap = Annotated[str | None, typer.Option("--ram-cap", metavar="SIZE", help="RAM for the model, e.g. 1GiB.")]
StorageRead = Annotated[
    str | None, typer.Option("--storage-read", metavar="RATE", help='Sequential read, e.g. "3 GB/s"; latencies stay.')
]
Cache = Annotated[
    str,
    typer.Option("--cache", help="lru, lru-per-layer, lfu, lfu-decay, fifo, clock, s3-fifo, sieve; belady: a bound."),
]
Prefetch = Annotated[
    str | None, typer.Option("--prefetch", help="none or pre-attention; default: what the router allows.")
]
Layout = Annotated[str, typer.Option("--layout", help="Expert layout: bundle (1 read), split (3 reads) or mmap.")]
ReadAhead = Annotated[
    str | None,
    typer.Option("--read-ahead", metavar="SIZE", help='With --layout mmap: of the device, e.g. "128 KiB", or none.'),
]
Context = Annotated[int | None, typer.Option("--context", help="Tokens in the KV cache when decode begins.")]
StartOption = Annotated[str, typer.Option("--start", help="warm or cold.")]
Predictor = Annotated[bool, typer.Option("--lm-head-predictor", help="Use the model's LM-head predictor (lossy).")]
AdaptTrace = Annotated[
    bool, typer.Option("--adapt-trace", help="Stretch a trace of another shape over the model; labelled as a stand-in.")
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine", help="simpy (event by event, the default) or fast (closed form); --layout mmap has one of its own."
    ),
]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="Compute threads that the profile measured.")]
KvType = Annotated[str | None, typer.Option("--kv-type", help="Type of keys and values; moeplan run keeps f32.")]
StorageLimit = Annotated[
    str | None, typer.Option("--storage-limit", metavar="RATE", help="A limiter before the drive, as in moeplan run.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the interval's draws.")]
ReportFile = Annotated[
    Path | None, typer.Option("--output", help="Write an HTML report to this file; missing folders are made.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


def simulate(
    model: Model, hardware: Hardware, trace: Trace = None, ram_cap: RamCap = None, storage_read: StorageRead = None,
    cache: Cache = "lru", prefetch: Prefetch = None, layout: Layout = "bundle", context: Context = None,
    start: StartOption = "warm", lm_head_predictor: Predictor = False, adapt_trace: AdaptTrace = False,
    threads: Threads = None, storage_limit: StorageLimit = None, kv_type: KvType = None,
    engine: EngineOption = None, seed: Seed = 0,
    timeline: Annotated[Path | None, typer.Option("--timeline", help="Parquet file for every operation.")] = None,
    output: ReportFile = None,
    read_ahead: ReadAhead = None, as_json: Json = False,
) -> None:  # fmt: skip
    """How fast is this model on this device, and does storage feed the experts in time?"""
    check_outputs((timeline, ".parquet"), (output, ".html"))
    from simulator import simulate as simulation
    from simulator.model.spec import with_kv_type

    question = _question(
        model, hardware, trace, ram_cap, storage_read, cache, prefetch, layout, context, start, lm_head_predictor,
        adapt_trace,
    )  # fmt: skip
    limit = None if storage_limit is None else parse_quantity(storage_limit, "byte/second", "--storage-limit")
    question = replace(question, n_threads=threads, storage_limit_bytes_per_s=limit)
    if kv_type is not None:
        question = replace(question, model=with_kv_type(question.model, kv_type))
    read_ahead_bytes = _mapped_read_ahead(layout, read_ahead, timeline)
    chosen = None if engine is None else simulation.checked_engine(engine)
    with step_bar("simulating tokens") as on_progress:
        result = simulation.simulate(
            question, engine=chosen, seed=seed, on_progress=on_progress, read_ahead_bytes=read_ahead_bytes
        )
    if timeline is not None:
        _write_timeline(question, timeline)
    if output is not None:
        from reports.html import write_result_report

        write_result_report(result, output)
    if as_json:
        print(json.dumps(result.as_json(), indent=1))
        return
    from reports.terminal import render_result

    render_result(result, answer_console())
    say_where(output)


def plan(
    model: Model, hardware: Hardware,
    target_tokens_per_s: Annotated[float, typer.Option("--target-tokens-per-s", help="The speed wished for.")],
    trace: Trace = None, ram_cap: RamCap = None, storage_read: StorageRead = None,
    cache: Cache = "lru", prefetch: Prefetch = None, layout: Layout = "bundle", context: Context = None,
    start: StartOption = "warm", lm_head_predictor: Predictor = False, adapt_trace: AdaptTrace = False,
    prices: Annotated[
        Path | None, typer.Option("--prices", metavar="YAML", help="Prices of RAM, storage and compute.")
    ] = None,
    engine: EngineOption = None, seed: Seed = 0,
    output: ReportFile = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Does it reach a target speed, what would have to change, and what does the target ask at least?"""
    check_outputs((output, ".html"))
    _refuse_mmap(layout)
    from simulator import planner
    from simulator.inverse.prices import load_prices
    from simulator.simulate import checked_engine

    price_list = None if prices is None else load_prices(prices)

    question = _question(
        model, hardware, trace, ram_cap, storage_read, cache, prefetch, layout, context, start, lm_head_predictor,
        adapt_trace,
    )  # fmt: skip
    chosen = checked_engine(engine or "simpy")
    with step_bar("simulating tokens") as on_progress, step_bar("searching") as on_search:
        answer = planner.plan(
            question, target_tokens_per_s, prices=price_list, engine=chosen, seed=seed, on_progress=on_progress,
            on_search=on_search,
        )  # fmt: skip
    if output is not None:
        from reports.html import write_plan_report

        write_plan_report(answer, output)
    if as_json:
        print(json.dumps(answer.as_json(), indent=1))
        return
    from reports.terminal import render_plan

    render_plan(answer, answer_console())
    say_where(output)


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a sweep.")],
    output: Annotated[Path, typer.Option("--output", metavar="FILE", help="The HTML file to write.")],
    target_tokens_per_s: Annotated[
        float | None, typer.Option("--target-tokens-per-s", help="A speed wished for: where it is reached is marked.")
    ] = None,
) -> None:
    """Write the HTML report of a sweep that is on disk."""
    check_outputs((output, ".html"))
    from command_line.sweep import check_target
    from command_line.sweep_folder import MAX_PAGE_ROWS, read_sweep
    from reports.sweep_page import write_sweep_report

    check_target(target_tokens_per_s)
    rows, conditions = read_sweep(folder)
    if len(rows) > MAX_PAGE_ROWS:
        must = f"must have at most {MAX_PAGE_ROWS:,} scenarios for a page"
        raise InputError(str(folder), must, f"{len(rows):,}", "read its sweep.parquet")
    with step_bar("drawing maps"):
        write_sweep_report(rows, output, conditions, target_tokens_per_s)
    say_where(output)


def _question(
    model: str, hardware: str, trace: str | None, ram_cap: str | None, storage_read: str | None, cache: str,
    prefetch: str | None, layout: str, context: int | None, start: str, lm_head_predictor: bool, adapt_trace: bool,
) -> "Question":  # fmt: skip
    """The options as a Question."""
    from hardware_profiles.catalog import load_profile
    from simulator.model.catalog import load_model_spec
    from simulator.question import Question, check_storage_read
    from traces.catalog import load_trace
    from traces.synthetic import adapt

    if start not in ("warm", "cold"):
        raise InputError("--start", "must be warm or cold", repr(start))
    spec = load_model_spec(model)
    routing, recorded = load_trace(trace) if trace is not None else None, None
    if adapt_trace and routing is not None and spec.experts is not None:
        shape = (spec.n_moe_layers, spec.experts.n_experts, spec.experts.top_k)
        if shape != (routing.n_moe_layers, routing.header.n_experts, routing.top_k):
            recorded = routing if shape[:2] != (routing.n_moe_layers, routing.header.n_experts) else None
            routing = adapt(routing, layer_ids=spec.moe_layer_ids, n_experts=shape[1], top_k=shape[2])
    question = Question(
        model=spec,
        profile=load_profile(hardware),
        trace=routing,
        ram_cap_bytes=None if ram_cap is None else round(parse_quantity(ram_cap, "byte", "--ram-cap")),
        storage_read_bytes_per_s=None
        if storage_read is None
        else parse_quantity(storage_read, "byte/second", "--storage-read"),
        cache_policy=cache,
        prefetch_policy=prefetch,
        layout=layout,
        context=context,
        start=start,  # type: ignore[arg-type]
        lm_head_predictor=lm_head_predictor,
        recorded=recorded,
    )
    check_storage_read(question)
    return question


def _mapped_read_ahead(layout: str, read_ahead: str | None, timeline: Path | None) -> int | None:
    """Bytes of --read-ahead, 0 for none, None where nothing was said; --layout mmap keeps no records of operations."""
    if layout == "mmap" and timeline is not None:
        raise InputError("--timeline", "must be left out with --layout mmap", str(timeline))
    if read_ahead is None:
        return None
    if layout != "mmap":
        raise InputError("--read-ahead", "must be left out unless --layout is mmap", repr(read_ahead))
    return 0 if read_ahead == "none" else round(parse_quantity(read_ahead, "byte", "--read-ahead"))


def _refuse_mmap(layout: str) -> None:
    if layout == "mmap":
        raise InputError("--layout", "must be bundle or split here", repr(layout), "simulate knows mmap")


def check_outputs(*outputs: tuple[Path | None, str]) -> None:
    """Before anything runs: every output can be a file of its kind."""
    for path, suffix in outputs:
        if path is not None:
            output_target(path, suffix)


def _write_timeline(question: "Question", path: Path) -> None:
    from moeplan.files import atomic_path
    from simulator.engine_simpy import simulate_with_records
    from simulator.question import prepare
    from traces.op_record import records_frame

    scenario = prepare(question).scenario
    if scenario is None:
        raise InputError("--timeline", "must be left out for a model that cannot run", str(path))
    with step_bar("recording operations") as on_progress:
        _, records = simulate_with_records(scenario, on_progress)
    with atomic_path(path) as temporary:
        records_frame(records).to_parquet(temporary)


def say_where(path: Path | None) -> None:
    if path is not None:
        print(f"report: {path}")
