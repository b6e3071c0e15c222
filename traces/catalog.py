"""Traces by name: the shipped samples, or any path."""

from pathlib import Path

from moeplan.shipped import Shipped
from traces.routing_trace import RoutingTrace
from traces.store import read_trace

SAMPLES = Path(__file__).parent / "samples"

_SHIPPED = Shipped(SAMPLES, ".parquet", "--trace", "a shipped trace or a file")
trace_names = _SHIPPED.names
trace_path = _SHIPPED.path


def load_trace(name_or_path: str) -> RoutingTrace:
    """A shipped trace or a trace file. Raises InputError."""
    return read_trace(trace_path(name_or_path))
