"""
Run a sweep in its folder: what is there stays, the rest is computed, and the table is made when all is there.
"""

from functools import cache
from pathlib import Path

from moeplan.progress import OnProgress, ignore_progress
from simulator.result import SweepRow
from simulator.sweeps.conditions import sweep_conditions
from simulator.sweeps.definition import SweepDefinition
from simulator.sweeps.scenarios import chunks, content_of, load_inputs
from simulator.sweeps.schedulers import Scheduler
from simulator.sweeps.store import TABLE, opened, read_table


def run_sweep(
    definition: SweepDefinition, folder: Path, scheduler: Scheduler, *, on_progress: OnProgress = ignore_progress
) -> None:
    """
    Bring the folder to a whole sweep.parquet.

    A chunk of scenarios whose part is on disk is never computed again, so killed at any moment and called again it
    goes on.  on_progress watches the rows; its first call tells those found on disk.  Raises InputError.
    """
    content, n_rows = content_of(definition), definition.n_scenarios
    with opened(folder, definition, content) as store:
        if store.finished():
            on_progress(n_rows, n_rows)
            store.tidy()
            return
        all_chunks = chunks(definition)
        done = store.done(all_chunks, definition)
        n_done = sum(chunk.n_rows for chunk in all_chunks if chunk.number in done)
        on_progress(n_done, n_rows)
        load = cache(lambda: load_inputs(definition))
        texts: dict[str, str] = {}
        left = [chunk for chunk in all_chunks if chunk.number not in done]

        def on_started() -> None:
            texts.update(sweep_conditions(definition, load()))

        for chunk, rows in scheduler(definition, load, left, on_started):
            store.write_part(chunk, rows)
            n_done += chunk.n_rows
            on_progress(n_done, n_rows)
        store.merge(all_chunks, texts or sweep_conditions(definition, load()))
        store.tidy()


def read_rows(folder: Path) -> list[SweepRow]:
    """The rows of a finished sweep, in order."""
    return [SweepRow(**row) for row in read_table(folder / TABLE).to_pylist()]
