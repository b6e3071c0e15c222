"""Traces by name: the shipped samples, or any path."""

from pathlib import Path

from moeplan.errors import InputError
from moeplan.shipped import Shipped
from traces.routing_trace import RoutingTrace
from traces.store import read_trace

SAMPLES = Path(__file__).parent / "samples"
RECORDED = "trace.parquet"  # in the folder that `moeplan run --record` writes

_SHIPPED = Shipped(SAMPLES, ".parquet", "--trace", "a shipped trace or a file")
trace_names = _SHIPPED.names
trace_path = _SHIPPED.path


def trace_file(name_or_path: str) -> Path:
    """The file of a shipped trace, a trace file or the folder of a recorded run. Raises InputError."""
    path = trace_path(name_or_path)
    recorded = path / RECORDED
    if path.is_dir() and not recorded.is_file():
        must = "must be a trace file or the folder of a recorded run"
        raise InputError(str(path), must, f"a folder without {RECORDED}", "see `moeplan trace list`")
    return recorded if recorded.is_file() else path


def load_trace(name_or_path: str) -> RoutingTrace:
    """The trace of a name, a file or the folder of a recorded run. Raises InputError."""
    return read_trace(trace_file(name_or_path))
