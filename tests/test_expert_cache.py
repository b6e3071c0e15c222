"""Streaming through a cache: the policy's hits and misses, the right weights at any capacity, never a deadlock."""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeplan.errors import InputError
from reference_runtime.loading.model_file import ModelFile
from reference_runtime.matrix import Packing
from reference_runtime.packing import pack
from reference_runtime.streaming.expert_cache import StreamedExperts
from reference_runtime.streaming.expert_store import ExpertStore, SplitSource, open_store
from reference_runtime.streaming.prepare_store import prepare
from reference_runtime.streaming.storage_limiter import StorageLimiter
from simulator.policies import POLICIES, make_policy
from tests.expert_files import Q4_0, Q8_0, make_model

N_LAYERS, N_EXPERTS, TOP_K = 3, 6, 2
LAYOUTS = ("bundle", "split")
Row = tuple[int, list[int]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    """Three layers of six experts, of two types; its store is prepared."""
    path = tmp_path_factory.mktemp("cache") / "model.gguf"
    model = make_model(path, (Q4_0, Q8_0, Q4_0), N_EXPERTS, TOP_K)
    prepare(model)
    return model


def store_of(model: ModelFile, layout: str) -> ExpertStore:
    """The model's experts in one of the layouts."""
    return open_store(prepare_path(model), model) if layout == "bundle" else SplitSource(model)


def prepare_path(model: ModelFile) -> Path:
    """Where the fixture's store lies."""
    return model.path.with_name("model.gguf.experts") / "experts.bundle"


@contextmanager
def streamed(
    model: ModelFile, n_slots: int, policy: str = "lru", layout: str = "bundle", **options: object
) -> Iterator[StreamedExperts]:
    """Streaming experts with a fresh policy."""
    cache = make_policy(policy, n_slots, N_LAYERS)
    store = store_of(model, layout)
    with StreamedExperts(store, cache, n_slots=n_slots, top_k=TOP_K, **options) as experts:  # type: ignore[arg-type]
        yield experts


def run(experts: StreamedExperts, layer: int, row: Sequence[int]) -> list[list[int]]:
    """One row; the experts of each wave."""
    experts.request(layer, row)
    return [[expert for expert, _ in wave] for wave in experts.waves(layer, row)]


def random_rows(seed: int, n_rows: int, longest: int) -> list[Row]:
    """Rows of distinct experts in any order, layers in turn as a model visits them."""
    rng = random.Random(seed)
    sizes = (rng.randint(1, longest) for _ in range(n_rows))
    return [(i % N_LAYERS, rng.sample(range(N_EXPERTS), size)) for i, size in enumerate(sizes)]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n_slots=st.sampled_from([0, 1, TOP_K - 1, TOP_K, 3, 5, 9, N_LAYERS * N_EXPERTS - 1, N_LAYERS * N_EXPERTS]),
    policy=st.sampled_from(sorted(POLICIES)),
    layout=st.sampled_from(LAYOUTS),
    prefetch=st.booleans(),
    longest=st.sampled_from([TOP_K, N_EXPERTS]),
    n_readers=st.integers(1, 4),
)
def test_any_rows_on_any_cache_give_the_right_experts_in_order(
    model: ModelFile,
    packed: dict[tuple[int, int], list[bytes]],
    seed: int,
    n_slots: int,
    policy: str,
    layout: str,
    prefetch: bool,
    longest: int,
    n_readers: int,
) -> None:
    """
    Every row comes whole, in its order, with its own weights, for every policy, capacity, layout and prefetch setting;
    hits, misses and bytes are those of the policy run alone.  A deadlock would hang here.
    """
    alone, rows = make_policy(policy, n_slots, N_LAYERS), random_rows(seed, 25, longest)
    with streamed(model, n_slots, policy, layout, prefetch=prefetch, n_readers=n_readers) as experts:
        n_misses = 0
        for layer, row in rows:
            missing, _ = alone.access_row(layer, row)
            n_misses += len(missing)
            experts.request(layer, row)
            served = []
            for wave in experts.waves(layer, row):
                assert wave
                assert all([m.data.tobytes() for m in found] == packed[layer, expert] for expert, found in wave)
                served += [expert for expert, _ in wave]
            assert served == row
            assert experts.last_row is not None
            n_bytes = sum(bytes_of(experts.store, layer) for _ in missing)
            assert experts.last_row[:4] == (layer, len(row) - len(missing), len(missing), n_bytes)
        assert (experts.n_hits, experts.n_misses) == (sum(len(row) for _, row in rows) - n_misses, n_misses)


@pytest.fixture(scope="module")
def packed(model: ModelFile) -> dict[tuple[int, int], list[bytes]]:
    """Gate, up and down of every expert as they must lie in memory."""
    content = np.frombuffer(model.path.read_bytes(), np.uint8)
    packings: tuple[Packing, ...] = ("rows", "rows", "columns")
    return {
        (layer, expert): [
            pack(content[part.offset : part.offset + part.n_bytes], part.kind, part.shape, packing).tobytes()
            for part, packing in zip(parts, packings, strict=True)
        ]
        for layer, experts in enumerate(model.experts)
        for expert, parts in enumerate(experts)
    }


def bytes_of(store: ExpertStore, layer: int) -> int:
    """Bytes that a miss in a layer asks for; the layers differ in type."""
    page, size = 4096, store.places[layer][2].start + store.places[layer][2].n_bytes
    if store.layout.name == "bundle":
        return -(-size // page) * page
    return sum((-(-place.n_bytes // page) + 1) * page for place in store.places[layer])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n_slots", [0, 1, 4, 18])
def test_one_token_is_always_one_wave(model: ModelFile, n_slots: int, layout: str) -> None:
    """top_k slots beside the cache: a decode row never comes in pieces."""
    with streamed(model, n_slots, layout=layout) as experts:
        for layer, row in random_rows(n_slots, 60, TOP_K):
            assert run(experts, layer, row) == [row]


def test_a_row_that_fits_beside_the_cache_is_one_wave(model: ModelFile) -> None:
    """4 slots and 2 beside them hold a row of 6, whatever was cached before; with 3 slots it takes several waves."""
    for n_slots, n_waves in ((4, 1), (3, 2), (0, 3)):
        with streamed(model, n_slots) as experts:
            run(experts, 1, [3, 4])
            run(experts, 2, [1, 2])
            assert len(run(experts, 0, list(range(6)))) == n_waves


class KeepsTheFirst:
    """Breaks the contract of CachePolicy: of a row that is too long the first experts stay, cached ones go."""

    def access_row(self, layer: int, experts: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
        """Two rows: [0, 1], which stays, and then all six, of which 2 to 5 are kept."""
        return (list(experts), []) if len(experts) == 2 else ([2, 3, 4, 5], [(0, 0), (0, 1)])


def test_a_policy_that_breaks_its_contract_is_an_error_and_no_deadlock(model: ModelFile) -> None:
    """Experts that are kept fill the arena before a cached one that is not kept: it cannot be served in order."""
    with StreamedExperts(store_of(model, "bundle"), KeepsTheFirst(), n_slots=2, top_k=1) as experts:
        run(experts, 0, [0, 1])
        with pytest.raises(RuntimeError, match="cache policy"):
            run(experts, 0, [2, 3, 4, 5, 0, 1])


def test_preloaded_experts_are_all_there_and_count_nothing(model: ModelFile) -> None:
    """Resident: only hits afterwards, no slots beside those of the experts; too few slots are refused."""
    n_experts, calls = N_LAYERS * N_EXPERTS, []
    rows: list = []
    with streamed(model, n_experts, on_row=rows.append) as experts:
        experts.preload(lambda done, total: calls.append((done, total)))
        assert rows == []
        assert calls == [(6, 18), (12, 18), (18, 18)]
        assert experts.arena_bytes == n_experts * experts.store.layout.padded_bytes
        for layer, row in random_rows(0, 9, N_EXPERTS):
            assert run(experts, layer, row) == [row]
        assert (experts.n_misses, experts.n_bytes, experts.waited_s) == (0, 0, 0.0)
        assert experts.n_hits == sum(len(row) for _, row in random_rows(0, 9, N_EXPERTS))
    with streamed(model, n_experts - 1) as experts, pytest.raises(InputError, match="18 slots to hold every expert"):
        experts.preload()


def test_memory_is_the_slots_of_the_cache_and_of_one_row(model: ModelFile) -> None:
    """(n_slots + top_k) padded experts; the split layout has a window a reader beside it, the bundle nothing."""
    for layout, windows in (("bundle", 0), ("split", 3)):
        with streamed(model, 5, layout=layout, n_readers=3) as experts:
            assert experts.arena_bytes == 7 * experts.store.layout.padded_bytes
            assert experts.buffer_bytes == windows * experts.store.buffer_bytes
            assert (experts.store.buffer_bytes > 0) == (windows > 0)


def test_reads_begin_at_the_request_with_prefetch_and_at_the_waves_without(model: ModelFile) -> None:
    """A device of 50 ms: after 0.1 s of other work a prefetched row needs no wait, the other one waits all of it."""
    for prefetch in (True, False):
        rows: list = []
        limiter = StorageLimiter(latency_s=0.05)
        with streamed(model, 4, prefetch=prefetch, limiter=limiter, on_row=rows.append) as experts:
            start = time.perf_counter()
            experts.request(0, [1, 5])
            time.sleep(0.1)
            between = time.perf_counter()
            assert [len(wave) for wave in experts.waves(0, [1, 5])] == [2]
            (row,) = rows
            assert row == experts.last_row
            assert row.arrived_s - row.issued_s >= 0.05
            assert (start <= row.issued_s < between) == prefetch
            assert experts.waited_s < 0.04 if prefetch else experts.waited_s > 0.0


def test_the_arrival_is_that_of_the_last_missing_expert(model: ModelFile) -> None:
    """One reader, 20 ms each: two misses arrive after 40 ms; a row of hits arrives when it is asked for."""
    with streamed(model, 4, n_readers=1, limiter=StorageLimiter(latency_s=0.02)) as experts:
        run(experts, 0, [1, 5])
        row = experts.last_row
        assert row is not None
        assert row.arrived_s - row.issued_s >= 0.0399
        run(experts, 0, [5, 1])
        assert experts.last_row is not None
        assert experts.last_row.arrived_s == experts.last_row.issued_s


def test_a_row_that_was_not_served_is_not_forgotten(model: ModelFile) -> None:
    """Calls out of order are the program's mistake and are said to be."""
    with streamed(model, 4) as experts:
        experts.request(0, [1, 2])
        with pytest.raises(RuntimeError, match="another row"):
            next(experts.waves(1, [1, 2]))
        with pytest.raises(RuntimeError, match="not taken to their end"):
            experts.request(1, [1, 2])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_matrices_are_made_once(model: ModelFile, layout: str) -> None:
    """A hit hands out the very objects of the miss; layers of one form share those of a slot."""
    with streamed(model, 4, layout=layout) as experts:
        (first,) = list(experts.waves(0, [1]))
        (second,) = list(experts.waves(0, [1]))
        assert first[0][1] is second[0][1]
