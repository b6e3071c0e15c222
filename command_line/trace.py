"""`moeplan trace`: list, stats, synthesize, import."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Routing traces: what is shipped, what a trace says, synthetic ones.", no_args_is_help=True)


@app.command("list")
def list_traces() -> None:
    """The shipped traces."""
    from rich.table import Column, Table

    from command_line.console import answer_console
    from traces.catalog import load_trace, trace_names

    table = Table(Column("name", no_wrap=True), "routing of", "tokens", "source (licence)", box=None, pad_edge=False)
    for name in trace_names():
        trace = load_trace(name)
        shape = f"{trace.header.model}: {trace.n_moe_layers} x {trace.header.n_experts}, top-{trace.top_k}"
        table.add_row(name, shape, str(trace.n_tokens), f"{trace.header.source} ({trace.header.licence})")
    answer_console().print(table)


@app.command()
def stats(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Shipped trace name or a file.")],
    carry_over: Annotated[
        bool, typer.Option("--carry-over", help="Keep the cache from one request to the next.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Locality of a trace: overlap of adjacent tokens and LRU hit rates over the capacity."""
    from command_line.progress import step_bar
    from traces import statistics
    from traces.catalog import load_trace

    with step_bar("reading the trace"):
        trace = load_trace(file)
    with step_bar("replaying tokens") as on_progress:
        curve = statistics.hit_rate_curve(trace, carry_over=carry_over, on_progress=on_progress)
    answer = {
        "schema_version": 1,
        "model": trace.header.model,
        "source": trace.header.source,
        "n_tokens": trace.n_tokens,
        "n_decode_tokens": int(trace.is_decode.sum()),
        "n_requests": len(set(trace.request_id.tolist())),
        "n_moe_layers": trace.n_moe_layers,
        "n_experts": trace.header.n_experts,
        "top_k": trace.top_k,
        "adjacent_overlap": statistics.adjacent_overlap(trace),
        "load_entropy_frac": statistics.load_entropy_frac(trace),
        "looks_uniform": statistics.looks_uniform(trace),
        "cache_start": "carried over between requests" if carry_over else "cold at each request",
        "hit_rate_curve": [asdict(point) for point in curve],
    }
    if as_json:
        print(json.dumps(answer, indent=1))
        return
    _print_stats(answer)


def _print_stats(answer: dict) -> None:
    from rich.table import Table

    from command_line.console import answer_console

    console = answer_console()
    console.print(f"{answer['model']}: {answer['source']}")
    console.print(
        f"{answer['n_tokens']} tokens ({answer['n_decode_tokens']} decode) in {answer['n_requests']} request(s), "
        f"{answer['n_moe_layers']} MoE layers x {answer['n_experts']} experts, top-{answer['top_k']}"
    )
    chance = answer["top_k"] / answer["n_experts"]
    console.print(f"adjacent tokens share {answer['adjacent_overlap']:.3f} of their experts (chance: {chance:.3f})")
    console.print(f"load entropy {answer['load_entropy_frac']:.3f} of uniform")
    if answer["looks_uniform"]:
        console.print("warning: no more locality than chance; no real model routes like this")
    table = Table("LRU scope", "capacity (experts)", "hit rate", box=None, title=f"cache {answer['cache_start']}")
    for point in answer["hit_rate_curve"]:
        table.add_row(point["scope"], str(point["capacity_experts"]), f"{point['hit_rate']:.4f}")
    console.print(table)


@app.command()
def synthesize(
    output: Annotated[Path, typer.Option("--output", help="The Parquet file to write.")],
    n_moe_layers: Annotated[int, typer.Option("--n-moe-layers")],
    n_experts: Annotated[int, typer.Option("--n-experts")],
    top_k: Annotated[int, typer.Option("--top-k")],
    n_tokens: Annotated[int, typer.Option("--n-tokens")] = 1000,
    n_prefill: Annotated[int, typer.Option("--n-prefill")] = 128,
    zipf: Annotated[float, typer.Option("--zipf", help="Skew of the experts' popularity; 0 is uniform.")] = 0.8,
    repeat: Annotated[float, typer.Option("--repeat", help="Chance to keep the previous token's expert.")] = 0.3,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
) -> None:
    """Write a synthetic trace, labelled as such: for shapes of which no recording is at hand."""
    from command_line.progress import step_bar
    from moeplan.files import output_target
    from traces.store import write_trace
    from traces.synthetic import synthesize as make

    output_target(output)
    with step_bar("drawing tokens") as on_progress:
        trace = make(
            n_tokens=n_tokens, n_prefill=n_prefill, n_moe_layers=n_moe_layers, n_experts=n_experts, top_k=top_k,
            zipf=zipf, repeat_frac=repeat, seed=seed, on_progress=on_progress,
        )  # fmt: skip
    with step_bar("writing"):
        write_trace(trace, output)
    print(f"trace: {output}")


@app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files of one format, a request each.")],
    format_name: Annotated[str, typer.Option("--format", help="gpt-oss-json, moe-cache-lab or npz.")],
    model: Annotated[str, typer.Option("--model", help="Whose routing it is.")],
    n_experts: Annotated[int, typer.Option("--n-experts", min=1, help="Routed experts a layer.")],
    output: Annotated[Path, typer.Option("--output", help="The Parquet file to write.")],
    source: Annotated[str, typer.Option("--source", help="Where it comes from, for every report.")] = "not stated",
    licence: Annotated[str, typer.Option("--licence", help="Under which licence.")] = "not stated",
) -> None:
    """Import traces that others recorded; nothing is repaired, a bad row is refused with its place."""
    from command_line.progress import step_bar
    from moeplan.files import output_target
    from traces.importers import import_trace
    from traces.store import write_trace

    output_target(output)
    with step_bar("importing"):
        trace = import_trace(files, format_name, model=model, n_experts=n_experts, source=source, licence=licence)
        write_trace(trace, output)
    print(f"trace: {output}")
