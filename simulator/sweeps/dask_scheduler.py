"""
A sweep on a Dask cluster that is running already; moeplan must be installed on its workers.

The files of the sweep are one task, which every worker fetches once; a chunk is a task that depends on it.  When a
worker dies the scheduler runs its tasks elsewhere, the files' one included; rows are written here, as they come.
"""

import logging
import pickle
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any

import pyarrow as pa

from moeplan.errors import InputError
from simulator.sweeps.definition import SweepDefinition
from simulator.sweeps.rows import ChunkRunner, IndexedRow
from simulator.sweeps.scenarios import Chunk, Inputs
from simulator.sweeps.schedulers import Done, Load, Scheduler

CONNECT_S = 5.0  # patience with a scheduler that does not answer


def dask(address: str) -> Scheduler:
    """The cluster whose scheduler listens at the address. Raises InputError where distributed is not installed."""
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        advice = "pip install 'moeplan[dask]'"
        raise InputError("--scheduler", "needs the package distributed", "none installed", advice) from error

    def run(definition: SweepDefinition, load: Load, chunks: Sequence[Chunk], on_started: Callable[[], object]) -> Done:
        from distributed import KilledWorker, as_completed
        from distributed.comm import CommClosedError

        with _client(address) as client:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # of large arguments: sent once, compressed
                    source = client.submit(_unpack, definition, *_pack(load()), pure=False)
                    client.replicate(source)  # a worker that waits for a dead one's copy would wait half a minute
                    futures = {client.submit(_rows, source, chunk, pure=False): chunk for chunk in chunks}
                on_started()
                for future in as_completed(list(futures)):
                    yield futures.pop(future), future.result()
            except ImportError as error:
                must = "workers must have moeplan installed, the same version"
                raise InputError("--scheduler", must, error, "install it there") from error
            except (CancelledError, CommClosedError, TimeoutError) as error:
                advice = "start the same command again, it goes on"
                raise InputError("--scheduler", "must live to the end", "one that went away", advice) from error
            except KilledWorker as error:
                advice = "start the same command again, it goes on; give the workers more memory"
                raise InputError("--scheduler", "workers must live", "several that died on one task", advice) from error

    return run


def _client(address: str) -> Any:
    from distributed import Client

    for name in ("distributed", "distributed.client"):  # what goes wrong is said in one line, by us
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        return Client(address, timeout=CONNECT_S)
    except (OSError, ValueError, TimeoutError) as error:
        must = "must be the address of a running Dask scheduler, like tcp://10.0.0.1:8786"
        raise InputError("--scheduler", must, repr(address), "start one with `dask scheduler`") from error


def _pack(inputs: Inputs) -> tuple[bytes, int]:
    """The files' contents, compressed, and their size."""
    whole = pickle.dumps(inputs, protocol=pickle.HIGHEST_PROTOCOL)
    return pa.compress(whole, codec="zstd", asbytes=True), len(whole)


def _unpack(definition: SweepDefinition, packed: bytes, n_bytes: int) -> "_Source":
    return _Source(definition, pickle.loads(pa.decompress(packed, n_bytes, codec="zstd", asbytes=True)))


class _Source:
    """What a worker keeps of a sweep: its files, and the traces cut into steps from chunk to chunk."""

    def __init__(self, definition: SweepDefinition, inputs: Inputs) -> None:
        self._definition, self._inputs = definition, inputs
        self._runner: ChunkRunner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_definition": self._definition, "_inputs": self._inputs, "_runner": None}

    def runner(self) -> ChunkRunner:
        """The runner of this worker."""
        if self._runner is None:
            self._runner = ChunkRunner(self._definition, self._inputs)
        return self._runner


def _rows(source: _Source, chunk: Chunk) -> list[IndexedRow]:
    return source.runner().rows(chunk)
