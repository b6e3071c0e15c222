"""`moeplan model`: list the shipped models, show one, import one from a file, write one of random weights."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from simulator.model.spec import ModelSpec

app = typer.Typer(no_args_is_help=True, help="Models: list, show, import, synthesize.")

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Name = Annotated[str, typer.Argument(help="A shipped name or the path of a model spec (YAML).")]


def summary(spec: "ModelSpec") -> dict[str, Any]:
    """The figures of a model under the names of `model show --json`; 0 where a dense model has none."""
    from simulator.model import size as model_size

    experts = spec.experts
    return {
        "name": spec.name,
        "n_params": model_size.n_params(spec),
        "n_active_params": model_size.n_active_params(spec),
        "expert_bytes": model_size.expert_bytes(spec),
        "dense_bytes": model_size.dense_bytes(spec),
        "file_bytes": model_size.file_bytes(spec),
        "kv_bytes_per_token": model_size.kv_bytes_per_token(spec),
        "n_layers": spec.n_layers,
        "n_moe_layers": spec.n_moe_layers,
        "n_experts": 0 if experts is None else experts.n_experts,
        "top_k": 0 if experts is None else experts.top_k,
        "vendor_active_params": model_size.vendor_active_params(spec),
        "active_convention": spec.active_convention,
        "context_length": spec.context_length,
        "tensor_types": spec.tensor_types.model_dump(),
        "kv_type": spec.kv_type,
        "source": spec.source,
    }


@app.command("list")
def list_models(as_json: JsonOption = False) -> None:
    """The shipped models with their sizes."""
    from command_line.console import answer_console
    from simulator.model.catalog import load_model_spec, model_names

    specs = [load_model_spec(name) for name in model_names()]
    if as_json:
        print(json.dumps([summary(spec) for spec in specs], indent=2))
        return
    rows = [_list_row(spec, summary(spec)) for spec in specs]
    console = answer_console()
    console.print(_table(rows, ("name", "total", "active", "experts", "expert", "storage", "resident", "KV/token")))
    console.print("active: body + LM head; storage: the whole file; resident: all but the routed experts, before KV")


def _list_row(spec: "ModelSpec", figures: dict[str, Any]) -> tuple[str, ...]:
    from moeplan.quantity import format_bytes, format_params

    has_experts = spec.experts is not None
    return (
        spec.name,
        format_params(figures["n_params"]),
        format_params(figures["n_active_params"]),
        f"{figures['top_k']} of {figures['n_experts']}" if has_experts else "dense",
        format_bytes(figures["expert_bytes"]) if has_experts else "-",
        format_bytes(figures["file_bytes"]),
        format_bytes(figures["dense_bytes"]),
        format_bytes(figures["kv_bytes_per_token"]),
    )


@app.command("show")
def show_model(name: Name, as_json: JsonOption = False) -> None:
    """What a model is and what follows from its shapes."""
    from command_line.console import answer_console
    from simulator.model.catalog import load_model_spec

    spec = load_model_spec(name)
    if as_json:
        print(json.dumps(summary(spec), indent=2))
        return
    console = answer_console()
    console.print(f"[bold]{spec.title}[/bold] ({spec.name})")
    console.print(_table(_rows(spec)))
    console.print(_table(_group_rows(spec), ("tensor group", "type", "parameters", "bytes")))
    if spec.notes:
        console.print(spec.notes, markup=False)
    console.print(f"Source: {spec.source}", markup=False)


def _rows(spec: "ModelSpec") -> list[tuple[str, ...]]:
    from moeplan.quantity import format_bytes, format_params
    from simulator.model import size as model_size

    attention, experts = spec.attention, spec.experts
    window = f", window {attention.window}" if attention.window else ""
    kv_long = format_bytes(model_size.kv_bytes(spec, spec.context_length))
    rows: list[tuple[str, ...]] = [
        ("parameters", format_params(model_size.n_params(spec))),
        ("active per token", f"{format_params(model_size.n_active_params(spec))} (body + LM head)"),
        ("active, the vendor's way", f"{format_params(model_size.vendor_active_params(spec))} ({_convention(spec)})"),
        ("storage (whole file)", format_bytes(model_size.file_bytes(spec))),
        ("resident without experts", format_bytes(model_size.dense_bytes(spec))),
        ("KV per token", f"{format_bytes(model_size.kv_bytes_per_token(spec))} before any window ({spec.kv_type})"),
        (f"KV at context {spec.context_length}", kv_long),
        ("layers", f"{spec.n_layers}, of them {spec.n_moe_layers} with experts"),
        ("attention", f"{attention.n_heads} heads, {attention.n_kv_heads} KV heads of {attention.head_dim}"),
        ("layer kinds", ", ".join(attention.layer_kinds) + window),
    ]
    if experts is not None:
        sparsity = experts.gate_sparsity
        rows += [
            (
                "experts",
                f"top {experts.top_k} of {experts.n_experts}, width {experts.ffn_size}, {experts.n_shared} shared",
            ),
            ("one expert", f"{model_size.expert_bytes(spec)} B = {format_bytes(model_size.expert_bytes(spec))}"),
            ("router", f"{experts.router.placement.replace('_', ' ')}, {experts.router.scoring}"),
            ("activation", f"{experts.activation}, gate sparsity {sparsity.value:.2f} ({sparsity.kind})"),
        ]
    return rows


def _convention(spec: "ModelSpec") -> str:
    return (
        spec.active_convention.replace("_", " ").replace("head", "LM head").replace("both", "both vocabulary matrices")
    )


def _group_rows(spec: "ModelSpec") -> list[tuple[str, ...]]:
    from moeplan.quantity import format_bytes
    from simulator.model import size as model_size

    types, n_bytes = spec.tensor_types.model_dump(), model_size.group_bytes(spec)
    return [
        (group, types[group], f"{n:,}", format_bytes(n_bytes[group]))
        for group, n in model_size.group_params(spec).items()
        if n
    ]


def _table(rows: list[tuple[str, ...]], header: tuple[str, ...] = ()) -> Any:
    """A table without lines; with a header its columns are figures, flush right."""
    from rich.table import Table

    table = Table(show_header=bool(header), box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for index, column in enumerate(header or ("",) * len(rows[0])):
        table.add_column(column, justify="right" if header and index else "left", no_wrap=bool(header))
    for row in rows:
        table.add_row(*row)
    return table


@app.command("import")
def import_model_file(
    path: Annotated[Path, typer.Argument(help="A *.gguf file, a config.json or a folder with one.")],
    output: Annotated[Path, typer.Option("--output", help="Where the model spec (YAML) goes.")],
) -> None:
    """Write a model spec from a model file; what the file does not say goes to standard error and into the spec."""
    from rich.console import Console

    from moeplan.quantity import format_bytes, format_params
    from simulator.model import size as model_size
    from simulator.model.imports.dispatch import import_model, write_spec

    imported = import_model(path)
    write_spec(imported, output)
    stderr = Console(stderr=True, soft_wrap=True)
    for line in imported.report:
        stderr.print(f"note: {line}", markup=False, highlight=False)
    spec = imported.spec
    sizes = (
        f"{format_params(model_size.n_params(spec))} parameters, storage {format_bytes(model_size.file_bytes(spec))}"
    )
    print(f"{output}: {spec.name}, {sizes}, {len(imported.report)} notes")


@app.command("synthesize")
def synthesize_model(
    output: Annotated[Path, typer.Option("--output", help="The GGUF to write.")],
    model: Annotated[str, typer.Option("--model", help="A shipped name or a model spec.")] = "smallthinker-4b-a0.6b",
    quantisation: Annotated[str, typer.Option("--quantisation", help="F32, Q8_0 or Q4_0.")] = "Q4_0",
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    gate_sparsity: Annotated[float, typer.Option("--gate-sparsity", help="Share of gates at zero, 0.5 to 1.")] = 0.5,
) -> None:
    """Write random weights in a SmallThinker model's true shape, to time compute and reads at real size."""
    from command_line.progress import step_bar
    from moeplan.errors import InputError, nearest
    from moeplan.files import output_target
    from moeplan.quantity import format_bytes
    from reference_runtime.synthetic_model import KINDS, write_synthetic
    from simulator.model.catalog import load_model_spec

    if quantisation not in KINDS:
        must = f"must be one of {', '.join(KINDS)}"
        raise InputError("--quantisation", must, repr(quantisation), nearest(quantisation, KINDS))
    output_target(output, ".gguf")
    spec = load_model_spec(model)
    with step_bar("writing MiB") as on_step:
        write_synthetic(
            spec, output, KINDS[quantisation], seed=seed, gate_sparsity=gate_sparsity,
            progress=lambda done, total: on_step(done >> 20, total >> 20),
        )  # fmt: skip
    print(f"{output}: {format_bytes(output.stat().st_size)}, RANDOM weights in the shape of {spec.name}, seed {seed}")
