"""Traces by name: the shipped samples, or any path."""

from pathlib import Path

from moeplan.errors import InputError, nearest
from traces.routing_trace import RoutingTrace
from traces.store import read_trace

SAMPLES = Path(__file__).parent / "samples"


def trace_names() -> list[str]:
    """Names of the shipped sample traces."""
    return sorted(path.stem for path in SAMPLES.glob("*.parquet"))


def trace_path(name_or_path: str) -> Path:
    """The file of a shipped name or a path. Raises InputError for neither."""
    shipped = SAMPLES / f"{name_or_path}.parquet"
    if "/" not in name_or_path and shipped.is_file():
        return shipped
    if Path(name_or_path).exists():
        return Path(name_or_path)
    raise InputError(
        "--trace", "must be a shipped trace or a file", repr(name_or_path), nearest(name_or_path, trace_names())
    )


def load_trace(name_or_path: str) -> RoutingTrace:
    """A shipped trace or a trace file. Raises InputError."""
    return read_trace(trace_path(name_or_path))
