"""The commands that answer: simulate, plan, sweep and report."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from command_line.console import answer_console
from command_line.progress import progress_bar, step_bar
from moeplan.errors import InputError
from moeplan.files import output_target
from moeplan.quantity import format_bytes, parse_quantity

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
Cache = Annotated[str, typer.Option("--cache", help="Cache policy: lru, lru-per-layer.")]
Prefetch = Annotated[
    str | None, typer.Option("--prefetch", help="none or pre-attention; default: what the router allows.")
]
Layout = Annotated[str, typer.Option("--layout", help="Expert layout on storage: bundle (1 read) or split (3 reads).")]
Context = Annotated[int | None, typer.Option("--context", help="Tokens in the KV cache when decode begins.")]
StartOption = Annotated[str, typer.Option("--start", help="warm or cold.")]
Predictor = Annotated[bool, typer.Option("--lm-head-predictor", help="Use the model's LM-head predictor (lossy).")]
AdaptTrace = Annotated[
    bool, typer.Option("--adapt-trace", help="Stretch a trace of another shape over the model; labelled as a stand-in.")
]
EngineOption = Annotated[str, typer.Option("--engine", help="simpy (event by event) or fast (closed form).")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="Compute threads that the profile measured.")]
StorageLimit = Annotated[
    str | None, typer.Option("--storage-limit", metavar="RATE", help="A limiter before the drive, as in moeplan run.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the interval's draws.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


def simulate(
    model: Model, hardware: Hardware, trace: Trace = None, ram_cap: RamCap = None, storage_read: StorageRead = None,
    cache: Cache = "lru", prefetch: Prefetch = None, layout: Layout = "bundle", context: Context = None,
    start: StartOption = "warm", lm_head_predictor: Predictor = False, adapt_trace: AdaptTrace = False,
    threads: Threads = None, storage_limit: StorageLimit = None, engine: EngineOption = "simpy", seed: Seed = 0,
    timeline: Annotated[Path | None, typer.Option("--timeline", help="Parquet file for every operation.")] = None,
    output: Annotated[Path | None, typer.Option("--output", help="Write an HTML report to this file.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """How fast is this model on this device, and does storage feed the experts in time?"""
    _check_outputs((timeline, ".parquet"), (output, ".html"))
    from simulator import simulate as simulation

    question = _question(
        model, hardware, trace, ram_cap, storage_read, cache, prefetch, layout, context, start, lm_head_predictor,
        adapt_trace,
    )  # fmt: skip
    limit = None if storage_limit is None else parse_quantity(storage_limit, "byte/second", "--storage-limit")
    question = replace(question, n_threads=threads, storage_limit_bytes_per_s=limit)
    with step_bar("simulating tokens") as on_step:
        result = simulation.simulate(question, engine=simulation.checked_engine(engine), seed=seed, on_step=on_step)
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
    _say_where(output)


def plan(
    model: Model, hardware: Hardware,
    target_tokens_per_s: Annotated[float, typer.Option("--target-tokens-per-s", help="The speed wished for.")],
    trace: Trace = None, ram_cap: RamCap = None, storage_read: StorageRead = None,
    cache: Cache = "lru", prefetch: Prefetch = None, layout: Layout = "bundle", context: Context = None,
    start: StartOption = "warm", lm_head_predictor: Predictor = False, adapt_trace: AdaptTrace = False,
    engine: EngineOption = "simpy", seed: Seed = 0,
    output: Annotated[Path | None, typer.Option("--output", help="Write an HTML report to this file.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Does it reach a target speed, and what would have to change?"""
    _check_outputs((output, ".html"))
    from simulator import planner
    from simulator.simulate import checked_engine

    question = _question(
        model, hardware, trace, ram_cap, storage_read, cache, prefetch, layout, context, start, lm_head_predictor,
        adapt_trace,
    )  # fmt: skip
    n_scenarios = planner.default_grid(question).n_scenarios
    chosen = checked_engine(engine)
    # one bar after the other: the scenario's own tokens, then the grid
    with step_bar("simulating tokens") as on_step, progress_bar("simulating the grid", n_scenarios) as on_row:
        answer = planner.plan(question, target_tokens_per_s, engine=chosen, seed=seed, on_row=on_row, on_step=on_step)
    if output is not None:
        from reports.html import write_plan_report

        write_plan_report(answer, output)
    if as_json:
        print(json.dumps(answer.as_json(), indent=1))
        return
    from reports.terminal import render_plan

    render_plan(answer, answer_console())
    _say_where(output)


def sweep(
    model: Model, hardware: Hardware,
    ram_cap: Annotated[str, typer.Option("--ram-cap", metavar="SIZES", help="RAM caps, e.g. 1GiB,2GiB,4GiB.")],
    storage_read: Annotated[str, typer.Option("--storage-read", metavar="RATES", help='e.g. "0.5GB/s,2GB/s,7GB/s".')],
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="Folder for sweep.parquet and report.html.")],
    trace: Trace = None,
    cache: Annotated[str, typer.Option("--cache", help="Cache policies, separated by commas.")] = "lru",
    prefetch: Annotated[str | None, typer.Option("--prefetch", help="Prefetch policies, separated by commas.")] = None,
    layout: Layout = "bundle", context: Context = None, start: StartOption = "warm",
    lm_head_predictor: Predictor = False, adapt_trace: AdaptTrace = False, seed: Seed = 0, as_json: Json = False,
) -> None:  # fmt: skip
    """The speed over a grid of RAM caps, storage speeds and policies."""
    from simulator import sweep as sweeping

    question = _question(
        model, hardware, trace, None, None, "lru", None, layout, context, start, lm_head_predictor, adapt_trace
    )
    grid = sweeping.Grid(
        tuple(round(parse_quantity(text, "byte", "--ram-cap")) for text in _items(ram_cap, "--ram-cap")),
        tuple(parse_quantity(text, "byte/second", "--storage-read") for text in _items(storage_read, "--storage-read")),
        tuple(_items(cache, "--cache")),
        tuple(_items(prefetch, "--prefetch")) if prefetch else (question.prefetch,),
    )
    with progress_bar("simulating the grid", grid.n_scenarios) as done:
        rows = sweeping.sweep(question, grid, seed=seed, on_row=done)
    from command_line.sweep_folder import write_sweep

    write_sweep(question, rows, output, seed)
    if as_json:
        print(json.dumps({"schema_version": 1, "rows": [asdict(row) for row in rows]}, indent=1))
        return
    from reports.terminal import render_sweep
    from simulator.question import prepare
    from simulator.small_print import warnings_of

    render_sweep(rows, answer_console())
    smallest = min(grid.ram_caps_bytes)
    for warning in warnings_of(prepare(replace(question, ram_cap_bytes=smallest))):
        print(f"! at {format_bytes(smallest)}: {warning}")
    _say_where(output / "report.html")


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a sweep.")],
    output: Annotated[Path, typer.Option("--output", metavar="FILE", help="The HTML file to write.")],
) -> None:
    """Write the HTML report of a sweep that is on disk."""
    _check_outputs((output, ".html"))
    from command_line.sweep_folder import read_sweep
    from reports.html import write_sweep_report

    rows, conditions = read_sweep(folder)
    write_sweep_report(rows, output, conditions)
    _say_where(output)


def _question(
    model: str, hardware: str, trace: str | None, ram_cap: str | None, storage_read: str | None, cache: str,
    prefetch: str | None, layout: str, context: int | None, start: str, lm_head_predictor: bool, adapt_trace: bool,
) -> "Question":  # fmt: skip
    """The options as a Question."""
    from hardware_profiles.catalog import load_profile
    from simulator.model.catalog import load_model_spec
    from simulator.question import Question
    from traces.catalog import load_trace
    from traces.synthetic import adapt

    if start not in ("warm", "cold"):
        raise InputError("--start", "must be warm or cold", repr(start))
    spec = load_model_spec(model)
    routing = load_trace(trace) if trace is not None else None
    if adapt_trace and routing is not None and spec.experts is not None:
        shape = (spec.n_moe_layers, spec.experts.n_experts, spec.experts.top_k)
        if shape != (routing.n_moe_layers, routing.header.n_experts, routing.top_k):
            routing = adapt(routing, layer_ids=spec.moe_layer_ids, n_experts=shape[1], top_k=shape[2])
    return Question(
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
    )


def _check_outputs(*outputs: tuple[Path | None, str]) -> None:
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
    with step_bar("recording operations") as on_step:
        _, records = simulate_with_records(scenario, on_step)
    with atomic_path(path) as temporary:
        records_frame(records).to_parquet(temporary)


def _items(text: str, where: str) -> list[str]:
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise InputError(where, "must be values separated by commas", repr(text))
    return items


def _say_where(path: Path | None) -> None:
    if path is not None:
        print(f"report: {path}")
