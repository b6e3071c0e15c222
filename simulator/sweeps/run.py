"""
Run a sweep in its folder: what is there stays, the rest is computed, and the table is made when all is there.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from simulator.result import SweepRow
from simulator.sweeps.definition import SweepDefinition
from simulator.sweeps.scenarios import Inputs, chunks, content_of, load_inputs
from simulator.sweeps.schedulers import Scheduler
from simulator.sweeps.store import TABLE, opened, read_table

Conditions = Callable[[SweepDefinition, Inputs], dict[str, str]]


def run_sweep(
    definition: SweepDefinition,
    folder: Path,
    scheduler: Scheduler,
    *,
    conditions: Conditions,
    on_rows: Callable[[int], None] = lambda n_done: None,
) -> None:
    """
    Bring the folder to a whole sweep.parquet.

    A chunk of scenarios whose part is on disk is never computed again, so killed at any moment and called again it
    goes on.  on_rows sees the number of rows that are done, those found on disk first.  Raises InputError.
    """
    content = content_of(definition)
    with opened(folder, definition, content) as store:
        if store.finished():
            on_rows(definition.n_scenarios)
            store.tidy()
            return
        all_chunks = chunks(definition)
        done = store.done(all_chunks, definition)
        n_done = sum(chunk.n_rows for chunk in all_chunks if chunk.number in done)
        on_rows(n_done)
        load = cache(lambda: load_inputs(definition))
        texts: dict[str, str] = {}
        left = [chunk for chunk in all_chunks if chunk.number not in done]
        for chunk, rows in scheduler(definition, load, left, lambda: texts.update(conditions(definition, load()))):
            store.write_part(chunk, rows)
            n_done += chunk.n_rows
            on_rows(n_done)
        store.merge(all_chunks, texts or conditions(definition, load()))
        store.tidy()


def read_rows(folder: Path) -> list[SweepRow]:
    """The rows of a finished sweep, in order."""
    return [SweepRow(**row) for row in read_table(folder / TABLE).to_pylist()]
