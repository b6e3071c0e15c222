"""The rows of a chunk: from the values of its axes to questions on the right model, device and trace."""

import threading
from dataclasses import dataclass, replace
from functools import lru_cache

from moeplan.errors import InputError
from simulator.closed_form.replay import LeanReplay, lean_replay
from simulator.model.spec import ModelSpec, with_quantisation, with_top_k
from simulator.question import Question
from simulator.result import SweepRow
from simulator.sweeps.definition import SweepDefinition
from simulator.sweeps.devices import Devices
from simulator.sweeps.scenarios import Cell, Chunk, Inputs
from simulator.sweeps.timing import cell_rows, failed_row
from traces.routing_trace import RoutingTrace
from traces.synthetic import adapt


@dataclass(frozen=True)
class IndexedRow:
    """A row and its number in the whole sweep."""

    scenario: int
    row: SweepRow


class ChunkRunner:
    """Runs chunks of one sweep, in any number of threads; keeps what the next chunk will want too."""

    def __init__(self, definition: SweepDefinition, inputs: Inputs) -> None:
        self.definition, self.inputs = definition, inputs
        self._lock = threading.Lock()
        self._adapted = lru_cache(maxsize=1)(self._adapt)
        self._replay = lru_cache(maxsize=1)(self._make_replay)
        self._devices = lru_cache(maxsize=1)(self._make_devices)

    def rows(self, chunk: Chunk) -> list[IndexedRow]:
        """The rows of a chunk in the order of their numbers."""
        cells = list(chunk.cells(self.definition))
        try:
            base, replay = self.asked(cells[0][1])
        except InputError as error:  # no scenario of the chunk can be asked
            return [IndexedRow(index, failed_row(cell, error)) for index, cell in cells]
        questions = [self._on(base, cell) for _, cell in cells]
        devices = self._devices_of(cells[0][1], base)
        found = cell_rows(questions, [cell for _, cell in cells], replay, devices)
        return [IndexedRow(index, row) for (index, _), row in zip(cells, found, strict=True)]

    def asked(self, cell: Cell) -> tuple[Question, LeanReplay]:
        """The question of one cell and what it replays. Raises InputError where nobody can ask it."""
        with self._lock:  # one replay for all threads
            base = self._base(cell)
            return self._on(base, cell), self._replay(cell["trace"], base.model, base.context)

    def _devices_of(self, cell: Cell, base: Question) -> Devices:
        with self._lock:
            return self._devices(cell["trace"], base.model, base.context, base.layout)

    def _on(self, base: Question, cell: Cell) -> Question:
        """The question of one cell, on the model and trace of another one of its chunk."""
        return replace(
            base,
            profile=self.inputs.profiles[str(cell["hardware"])],
            ram_cap_bytes=cell["ram_cap"],
            prefetch_policy=cell["prefetch"],
            n_threads=cell["threads"],
            ram_bytes_per_s=cell["ram_bandwidth"],
            gemv_flop_per_s=cell["flops"],
            storage_latency_s=cell["storage_latency"],
            storage_read_bytes_per_s=cell["storage_read"],
        )

    def _base(self, cell: Cell) -> Question:
        model = self.inputs.models[str(cell["model"])]
        if cell["quantisation"] is not None:
            model = with_quantisation(model, str(cell["quantisation"]))
        if cell["top_k"] is not None:
            model = with_top_k(model, int(cell["top_k"]))
        return Question(
            model=model,
            profile=self.inputs.profiles[str(cell["hardware"])],
            trace=self._adapted(cell["trace"], model),
            cache_policy=str(cell["cache"]),
            layout=str(cell["layout"]),
            context=cell["context"],
            start=self.definition.start,
            lm_head_predictor=self.definition.lm_head_predictor,
        )

    def _adapt(self, name: str | None, model: ModelSpec) -> RoutingTrace | None:
        trace = self.inputs.traces[name]
        if trace is None or not self.definition.adapt_trace or model.experts is None:
            return trace
        shape = (model.n_moe_layers, model.experts.n_experts, model.experts.top_k)
        if shape == (trace.n_moe_layers, trace.header.n_experts, trace.top_k):
            return trace
        return adapt(trace, layer_ids=model.moe_layer_ids, n_experts=shape[1], top_k=shape[2])

    def _make_replay(self, name: str | None, model: ModelSpec, context: int | None) -> LeanReplay:
        trace = self._adapted(name, model)
        profile = next(iter(self.inputs.profiles.values()))
        return lean_replay(Question(model, profile, trace, context=context))

    def _make_devices(self, name: str | None, model: ModelSpec, context: int | None, layout: str) -> Devices:
        return Devices(self.definition.n_samples, self.definition.seed)
