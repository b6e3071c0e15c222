"""`moeplan sweep`: many scenarios into one folder, on local processes or a Dask cluster; killed, it can go on."""

import gc
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from command_line.console import answer_console
from command_line.progress import resumed_bar
from moeplan.errors import InputError

if TYPE_CHECKING:
    from simulator.result import SweepRow
    from simulator.sweeps.definition import SweepDefinition
    from simulator.sweeps.schedulers import Scheduler

MAX_SHOWN_ROWS = 20_000  # that are looked through for a terminal; the table has them all
GARBAGE_OBJECTS = 200_000  # new objects between two looks for unreachable ones: a tenth of the time of a short sweep


Models = Annotated[str | None, typer.Option("--model", metavar="M,...", help="Shipped model names or YAML files.")]
Devices = Annotated[str | None, typer.Option("--hardware", metavar="H,...", help="Shipped device names or YAML files.")]
Traces = Annotated[
    str | None, typer.Option("--trace", metavar="T,...", help="Shipped trace names or files; none for a dense model.")
]
Caps = Annotated[
    str | None,
    typer.Option(
        "--ram-cap",
        metavar="SIZES",
        help='E.g. "1GiB,2GiB", "1GiB..16GiB:20" (a range in 20 steps) or own (all there is).',
    ),
]
Reads = Annotated[
    str | None,
    typer.Option(
        "--storage-read",
        metavar="RATES",
        help='Sequential reads, e.g. "0.5GB/s,2GB/s", "0.5GB/s..8GB/s:20"; default: own.',
    ),
]
Latencies = Annotated[
    str | None,
    typer.Option("--storage-latency", metavar="TIMES", help='Latencies of a request, e.g. "50us,200us"; default: own.'),
]
Bandwidths = Annotated[
    str | None,
    typer.Option("--ram-bandwidth", metavar="RATES", help="Sustained reads of weights from RAM; default: own."),
]
Flops = Annotated[
    str | None,
    typer.Option(
        "--flops", metavar="RATES", help='Decode rates, e.g. "50GFLOP/s"; prefill and overheads go along; default: own.'
    ),
]
ThreadCounts = Annotated[
    str | None,
    typer.Option("--threads", metavar="N,...", help="Threads for which the device has figures; default: own."),
]
Contexts = Annotated[
    str | None,
    typer.Option("--context", metavar="N,...", help="Tokens in the KV cache when decode begins; default: the trace's."),
]
TopKs = Annotated[
    str | None,
    typer.Option(
        "--top-k",
        metavar="N,...",
        help="Experts a token and layer; rows of the trace are cut; more need --adapt-trace.",
    ),
]
Quantisations = Annotated[
    str | None,
    typer.Option("--quantisation", metavar="TYPES", help="Types of the big matrices, e.g. q4_0,q8_0; default: own."),
]
Layouts = Annotated[str | None, typer.Option("--layout", metavar="NAMES", help="bundle, split; default: bundle.")]
Caches = Annotated[
    str | None, typer.Option("--cache", metavar="NAMES", help="Cache policies, belady as a bound too; default: lru.")
]
Prefetches = Annotated[
    str | None, typer.Option("--prefetch", metavar="NAMES", help="Prefetch policies; default: what the router allows.")
]

Target = Annotated[
    float | None,
    typer.Option("--target-tokens-per-s", help="The speed wished for: where it is reached is marked."),
]


def sweep(
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="Folder for sweep.parquet and report.html.")],
    model: Models = None, hardware: Devices = None, trace: Traces = None, ram_cap: Caps = None,
    storage_read: Reads = None, storage_latency: Latencies = None, ram_bandwidth: Bandwidths = None,
    flops: Flops = None, threads: ThreadCounts = None, context: Contexts = None, top_k: TopKs = None,
    quantisation: Quantisations = None, layout: Layouts = None, cache: Caches = None, prefetch: Prefetches = None,
    file: Annotated[Path | None, typer.Option("--file", metavar="YAML", help="The axes; options go before it.")] = None,
    start: Annotated[str | None, typer.Option("--start", help="warm or cold; default: warm.")] = None,
    lm_head_predictor: Annotated[
        bool | None, typer.Option("--lm-head-predictor", help="Use the model's LM-head predictor (lossy).")
    ] = None,
    adapt_trace: Annotated[
        bool | None, typer.Option("--adapt-trace", help="Stretch a trace of another shape over the model.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed of the interval's draws; default: 0.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes; default: all cores.")] = None,
    target_tokens_per_s: Target = None,
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", metavar="ADDRESS", help="A running Dask cluster computes instead.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the sweep in DIR; what it is need not be said again.")
    ] = False,
    with_report: Annotated[
        bool, typer.Option("--report/--no-report", help="Draw report.html, a second or two for a large map.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:  # fmt: skip
    """The speed over a grid of anything: RAM caps, storage speeds, policies, contexts, models, devices."""
    given = {
        "model": model, "hardware": hardware, "trace": trace, "quantisation": quantisation, "top_k": top_k,
        "layout": layout, "context": context, "ram_cap": ram_cap, "cache": cache, "prefetch": prefetch,
        "threads": threads, "ram_bandwidth": ram_bandwidth, "flops": flops, "storage_latency": storage_latency,
        "storage_read": storage_read,
    }  # fmt: skip
    settings = {
        "start": start, "lm_head_predictor": lm_head_predictor, "adapt_trace": adapt_trace, "seed": seed,
    }  # fmt: skip
    check_target(target_tokens_per_s)
    gc.set_threshold(GARBAGE_OBJECTS)
    from command_line.sweep_folder import read_conditions, write_sweep_report_of
    from simulator.sweeps.run import read_rows, run_sweep

    definition = _definition(output, file, given, settings, resume)
    with resumed_bar("simulating scenarios") as on_progress:
        chosen = _scheduler(workers, scheduler)
        run_sweep(definition, output, chosen, on_progress=on_progress)
    rows, small_print = read_rows(output), read_conditions(output)
    without = "not asked for"
    if with_report:
        without = write_sweep_report_of(output, rows, small_print, target_tokens_per_s)
    if as_json:
        print(json.dumps(_document(rows, small_print), indent=1))
        return
    _show(rows, small_print, target_tokens_per_s, output)
    print(f"report: {output / 'report.html'}" if not without else f"no report.html: {without}")


def check_target(target_tokens_per_s: float | None) -> None:
    """Raises InputError for a speed that nobody can wish for."""
    if target_tokens_per_s is not None and not 0 < target_tokens_per_s < math.inf:
        raise InputError("--target-tokens-per-s", "must be above zero", target_tokens_per_s)


def _definition(
    output: Path, file: Path | None, given: dict[str, str | None], settings: dict[str, Any], resume: bool
) -> "SweepDefinition":
    """What is to be computed: said now, or found in the folder."""
    from simulator.sweeps.axes import AXES, parse_axis
    from simulator.sweeps.definition import SweepDefinition, define
    from simulator.sweeps.store import read_manifest

    said = {axis.name: text for axis in AXES if (text := given[axis.name]) is not None}
    chosen = {name: value for name, value in settings.items() if value is not None}
    if resume and not said and not chosen and file is None:
        found = read_manifest(output)
        if found is None:
            raise InputError("--resume", "must have a sweep in the folder to go on with", str(output))
        return SweepDefinition.from_json(found["definition"])
    axes = {axis.name: parse_axis(axis, said[axis.name], axis.option) for axis in AXES if axis.name in said}
    return define(file, axes, chosen)


def _scheduler(workers: int | None, address: str | None) -> "Scheduler":
    if address is None:
        from simulator.sweeps.schedulers import local

        return local(workers)
    if workers is not None:
        raise InputError("--workers", "must be left out with --scheduler", workers, "the cluster has its own")
    from simulator.sweeps.dask_scheduler import dask

    return dask(address)


def _document(rows: "list[SweepRow]", small_print: dict[str, str]) -> dict[str, Any]:
    """The JSON answer."""
    return {"schema_version": 1, "rows": [asdict(row) for row in rows], "small_print": small_print}


def _show(rows: "list[SweepRow]", small_print: dict[str, str], target_tokens_per_s: float | None, output: Path) -> None:
    """The answer on the terminal; of very many rows the fastest alone."""
    if len(rows) > MAX_SHOWN_ROWS:
        from reports.sweep_findings import fastest, split
        from reports.sweep_inputs import said_all

        found = split(rows)
        best = fastest(found)
        if best is None:
            print(f"{len(rows):,} scenarios, none runs")
        else:
            kind = " (a bound)" if best.is_upper_bound else ""
            where = said_all(best, found.inputs)
            print(f"{len(rows):,} scenarios, at best {best.tokens_per_s:.3g} tokens/s{kind}: {where}")
        print(f"all rows: {output / 'sweep.parquet'}")
        return
    from reports.sweep_terminal import render_sweep

    render_sweep(rows, answer_console(), small_print, target_tokens_per_s)
