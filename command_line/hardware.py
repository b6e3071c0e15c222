"""`moeplan hardware`: list the shipped devices, show one, check a profile file, probe this machine."""

import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from command_line.hardware_probe import probe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hardware_profiles.schema import HardwareProfile
    from hardware_profiles.schema_figures import Figure

app = typer.Typer(
    no_args_is_help=True, help="Devices: list, show with every source, check a profile file, probe this one."
)
app.command()(probe)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Name = Annotated[str, typer.Argument(help="A shipped name or the path of a hardware profile (YAML).")]

REQUEST_BYTES = (4 * 2**10, 64 * 2**10, 2**20, 2 * 2**20, 16 * 2**20)
QUEUE_DEPTHS = (1, 2, 4, 8, 16, 32)


@app.command("list")
def list_devices(as_json: JsonOption = False) -> None:
    """The shipped devices."""
    from rich.table import Table

    from command_line.console import answer_console
    from hardware_profiles.catalog import load_profile, profile_names
    from moeplan.quantity import format_bytes, format_rate

    profiles = [load_profile(name) for name in profile_names()]
    if as_json:
        print(json.dumps([{"name": p.name, "title": p.title} for p in profiles], indent=2))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("name", "RAM", "RAM read", "storage", "read", "4K read"):
        table.add_column(column, no_wrap=True)
    for p in profiles:
        ram_read, store = format_rate(p.ram.gemv_bandwidth.value), p.storage
        rates = (format_rate(store.sequential_read.value), format_rate(store.random_4k_read.value))
        table.add_row(p.name, format_bytes(p.ram.size), ram_read, store.kind, *rates)
    console = answer_console()
    console.print(table)
    console.print("RAM read: sustained reads of weights; read: large requests; 4K read: random, one at a time")


@app.command()
def show(name: Name, as_json: JsonOption = False) -> None:
    """Every figure of a device with its source, and how its storage behaves over request size and depth."""
    from command_line.console import answer_console
    from hardware_profiles.catalog import load_profile

    profile = load_profile(name)
    if as_json:
        print(json.dumps(as_dict(profile), indent=2))
        return
    console = answer_console()
    console.print(f"{profile.name}: {profile.title}", markup=False)
    if profile.notes:
        console.print(profile.notes, markup=False)
    cpu = profile.cpu
    console.print(f"CPU: {cpu.name}; {cpu.threads} of {cpu.cores} cores used ({cpu.cores_source})", markup=False)
    console.print(f"RAM: {_size(profile.ram.size)} ({profile.ram.size_source})", markup=False)
    store = profile.storage
    console.print(f"Storage: {store.kind}; depth {store.queue_depth} ({store.queue_depth_source})", markup=False)
    if store.max_request is not None:
        console.print(f"Largest request: {_size(store.max_request)} ({store.max_request_source})", markup=False)
    for line in _table_lines(profile):
        console.print(line, markup=False)
    console.print()
    console.print(_figure_table(profile))
    _print_storage(profile, console)


def _table_lines(profile: "HardwareProfile") -> list[str]:
    """A line for each table that a probe wrote; the rows themselves are in the file."""
    from moeplan.quantity import format_rate

    lines, kernels, bursts = [], profile.cpu.kernels, profile.storage.bursts
    if kernels is not None:
        counts = Counter(row.op for row in kernels.rows)
        ops = ", ".join(f"{op} {n}" for op, n in counts.items())
        threads = " and ".join(map(str, kernels.threads()))
        lines.append(
            f"Kernels: {kernels.engine}; {len(kernels.rows)} times ({ops}) on {threads} threads, RAM at "
            f"{format_rate(kernels.ram_bandwidth)} ({kernels.kind}, +-{kernels.uncertainty:.0%}): {kernels.source}"
        )
    if bursts is not None:
        sizes = sorted({row.request for row in bursts.rows})
        lines.append(
            f"Bursts: {len(bursts.rows)} times, requests of {_size(sizes[0])} to {_size(sizes[-1])} "
            f"({bursts.kind}, +-{bursts.uncertainty:.0%}): {bursts.source}"
        )
    return lines


def as_dict(profile: "HardwareProfile") -> dict[str, Any]:
    """The profile in SI units, the fitted storage constants, residuals and the bandwidth over size and depth."""
    from hardware_profiles.rates import rates
    from hardware_profiles.storage_fit import fit_residuals

    model = rates(profile).storage
    return {
        "schema_version": 1,
        "profile": profile.model_dump(),
        "storage_model": asdict(model),
        "storage_residuals": [
            asdict(row) | {"error_frac": row.error_frac} for row in fit_residuals(profile.storage)
        ],
        "effective_bandwidth": [
            {"request_bytes": s, "queue_depth": q, "bytes_per_s": model.effective_bandwidth(s, q)}
            for s in REQUEST_BYTES
            for q in QUEUE_DEPTHS
        ],
    }  # fmt: skip


def _figure_table(profile: "HardwareProfile") -> "Table":
    from rich.table import Table
    from rich.text import Text

    from hardware_profiles.schema import figures

    table = Table("figure", "value", "kind", "+-", box=None, pad_edge=False)
    table.add_column("source", overflow="fold")  # an address must stay whole
    for key, figure in figures(profile):
        table.add_row(key, _value(figure), figure.kind, _spread(figure), Text(figure.source))
    return table


def _value(figure: "Figure") -> str:
    """The value in the unit in which people read it."""
    from hardware_profiles import schema
    from moeplan.quantity import format_rate, format_seconds

    if isinstance(figure, schema.RateFigure):
        return format_rate(figure.value)
    if isinstance(figure, schema.SizeFigure):
        return _size(figure.value)
    if isinstance(figure, schema.TimeFigure):
        return format_seconds(figure.value)
    if isinstance(figure, schema.FlopFigure):
        return f"{figure.value / 1e9:.4g} GFLOP/s"
    if isinstance(figure, schema.WattFigure):
        return f"{figure.value:.3g} W"
    return f"{figure.value:g}"


def _size(n_bytes: float) -> str:
    """As it was probably written: storage in GB, RAM and requests in GiB, MiB or KiB."""
    from moeplan.quantity import format_bytes

    return f"{n_bytes / 1e9:g} GB" if n_bytes % 1e9 == 0 else format_bytes(n_bytes)


def _spread(figure: "Figure") -> str:
    """An absolute half-width for a fraction, otherwise per cent by which to divide and multiply."""
    from hardware_profiles.schema_figures import FracFigure

    return f"{figure.uncertainty:g}" if isinstance(figure, FracFigure) else f"{figure.uncertainty:.0%}"


def _print_storage(profile: "HardwareProfile", console: "Console") -> None:
    from hardware_profiles.rates import rates
    from hardware_profiles.storage_fit import fit_residuals
    from moeplan.quantity import format_seconds

    model, residuals = rates(profile).storage, fit_residuals(profile.storage)
    origin = "fitted to the table" if residuals else "from the sequential and the 4K rate"
    console.print(f"\nStorage model ({origin}), {model.queue_depth} lanes:")
    lane, bus = (f"{format_seconds(s * 2**20)} per MiB" for s in (model.lane_s_per_byte, model.bus_s_per_byte))
    console.print(f"  in a lane {format_seconds(model.latency_s)} + {lane}")
    console.print(f"  on the bus {format_seconds(model.request_overhead_s)} + {bus}")
    if residuals:
        assert profile.storage.table is not None
        table = profile.storage.table
        errors = [abs(row.error_frac) for row in residuals]
        mean = sum(errors) / len(errors)
        console.print(f"  {len(errors)} rows ({table.kind}, +-{table.uncertainty:.0%}): {table.source}", markup=False)
        console.print(f"  error of the fit: mean {mean:.1%}, largest {max(errors):.1%}\n")
        console.print(_residual_table(residuals))
    console.print("\nEffective bandwidth, request size by requests in flight:")
    console.print(_bandwidth_table(profile))


def _residual_table(residuals: list) -> "Table":
    from rich.table import Table

    from moeplan.quantity import format_rate, format_signed

    table = Table("request", "in flight", "table", "model", "error", box=None, pad_edge=False)
    for row in residuals:
        pair = (format_rate(row.measured_bytes_per_s), format_rate(row.model_bytes_per_s))
        error = f"{format_signed(100 * row.error_frac, 1)}%"
        table.add_row(_size(row.request_bytes), str(row.queue_depth), *pair, error)
    return table


def _bandwidth_table(profile: "HardwareProfile") -> "Table":
    from rich.table import Table

    from hardware_profiles.rates import rates
    from moeplan.quantity import format_rate

    model = rates(profile).storage
    table = Table("request", *map(str, QUEUE_DEPTHS), box=None, pad_edge=False)
    for size in REQUEST_BYTES:
        table.add_row(_size(size), *(format_rate(model.effective_bandwidth(size, q)) for q in QUEUE_DEPTHS))
    return table


@app.command()
def check(file: Annotated[str, typer.Argument(metavar="FILE", help="A hardware profile (YAML).")]) -> None:
    """Whether a profile can be used, and which of its figures are assumed."""
    from hardware_profiles.catalog import load_profile
    from hardware_profiles.rates import rates
    from hardware_profiles.schema import figures

    profile = load_profile(file)
    rates(profile)
    assumed = [(key, figure) for key, figure in figures(profile) if figure.kind == "assumed"]
    print(f"ok: {file}: {profile.title}")
    print(f"{len(assumed)} of {sum(1 for _ in figures(profile))} figures are assumed" + (":" if assumed else ""))
    for key, figure in assumed:
        print(f"  {key}: {_value(figure)} (+-{_spread(figure)}): {figure.source}")
    if profile.storage.table is not None and profile.storage.table.kind == "assumed":
        print(f"  storage.table: {len(profile.storage.table.rows)} rows: {profile.storage.table.source}")
