"""The mmap layout: where tensors lie, what a token touches, what the plan and the answer say; counted by hand."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from typer.testing import CliRunner

from command_line.app import app
from hardware_profiles.catalog import load_profile
from hardware_profiles.storage import StorageModel
from simulator.mapped import MappedEngine, Mapping
from simulator.mapped_file import mapped_file
from simulator.model.catalog import load_model_spec
from simulator.model.size import dense_bytes, expert_bytes, file_bytes
from simulator.model.spec import ModelSpec
from simulator.page_cache import PAGE_BYTES
from simulator.question import Question, prepare
from simulator.simulate import simulate, simulate_mapped
from traces.routing_trace import RoutingTrace
from traces.synthetic import synthesize

MB = 10**6
KIB = 2**10


@pytest.fixture(scope="module")
def model() -> ModelSpec:
    """The 4B's spec."""
    return load_model_spec("smallthinker-4b-a0.6b")


@pytest.fixture(scope="module")
def routing() -> RoutingTrace:
    """A synthetic trace of the 4B's shape: 8 prompt and 24 decode tokens."""
    return synthesize(
        n_tokens=32, n_prefill=8, n_moe_layers=32, n_experts=32, top_k=4, zipf=0.8, repeat_frac=0.4, seed=1
    )


@pytest.fixture(scope="module")
def question(model: ModelSpec, routing: RoutingTrace) -> Question:
    """The 4B mapped on a Raspberry Pi 5 with NVMe at 1.5 GB."""
    profile = load_profile("raspberry-pi-5-nvme")
    return Question(model, profile, routing, ram_cap_bytes=1500 * MB, layout="mmap", prefetch_policy="none")


def test_the_file_holds_every_tensor_once(model: ModelSpec) -> None:
    """Ranges follow one another without overlap, and are together as large as the model."""
    file = mapped_file(model)
    ranges = [file.embedding, *[one for layer in file.layers for one in (layer.dense, *layer.parts)]]
    assert all(before[1] <= after[0] < before[1] + 32 for before, after in pairwise(ranges))
    assert sum(stop - start for start, stop in ranges) == pytest.approx(file_bytes(model), abs=8 * model.hidden_size)
    assert file.n_pages == -(-ranges[-1][1] // PAGE_BYTES)
    assert file.head == file.embedding  # tied


def test_a_token_touches_its_dense_part_and_its_experts(model: ModelSpec) -> None:
    """Pages of one token: the dense part and 4 experts a layer, a page more for each range that begins within one."""
    file = mapped_file(model)
    runs = file.runs([[3, 0, 7, 31]] * 32, [5])
    touched = int((runs[:, 1] - runs[:, 0]).sum()) * PAGE_BYTES
    needed = dense_bytes(model) + 32 * 4 * expert_bytes(model) - 4 * model.hidden_size  # without the last norm
    assert needed <= touched <= needed + 2 * len(runs) * PAGE_BYTES
    gates = runs[2:6, 0]  # after the embedding's row and the first layer's dense part
    assert (np.diff(gates) > 0).all()  # experts ascending, as the engine walks through them
    assert len(runs) == 1 + 32 * (1 + 3 * 4) + 1


def test_the_plan_leaves_the_page_cache_what_the_process_does_not_hold(question: Question) -> None:
    """Nothing of the file is pinned; the cap less keys, values and activations is the page cache."""
    plan = prepare(question).plan
    assert plan.verdict == "streams"
    memory = plan.memory
    assert memory.dense_bytes == memory.buffer_bytes == 0
    assert memory.cache_bytes == 1500 * MB - memory.kv_bytes - memory.activation_bytes
    assert memory.resident_bytes == 1500 * MB


def test_a_file_that_fits_is_never_read_again(question: Question) -> None:
    """Resident and warm: no miss, no byte, and the speed is that of all experts in RAM."""
    mapped = simulate(replace(question, ram_cap_bytes=4000 * MB), n_samples=0)
    bundle = simulate(replace(question, ram_cap_bytes=4000 * MB, layout="bundle"), engine="fast", n_samples=0)
    assert mapped.verdict == "resident"
    assert mapped.page_cache is not None
    assert mapped.page_cache.bytes_read_per_token == mapped.page_cache.misses_per_token == 0
    assert mapped.tokens_per_s is not None
    assert bundle.tokens_per_s is not None
    assert mapped.tokens_per_s.value == pytest.approx(bundle.tokens_per_s.value, rel=1e-9)


def test_less_memory_than_the_dense_part_still_runs_and_no_page_does_not(question: Question) -> None:
    """A mapping thrashes where the runtime's plan refuses; without a page left the answer is the arithmetic."""
    small = simulate(replace(question, ram_cap_bytes=150 * MB), n_samples=0, read_ahead_bytes=0)
    assert small.verdict == "streams"
    assert small.page_cache is not None
    assert small.page_cache.bytes_read_per_token > 0.9 * small.page_cache.bytes_touched_per_token
    none = simulate(replace(question, ram_cap_bytes=MB), n_samples=0)
    assert (none.verdict, none.reason) == ("cannot_run", "ram_floor")
    assert "no page of the mapped file" in none.arithmetic


def test_the_time_of_a_token_is_compute_and_its_reads(question: Question) -> None:
    """Without read-ahead every missing page takes (a + b) / threads; with it a window takes a, b and its bytes."""
    prepared = prepare(question)
    storage = StorageModel(80e-6, 0.0, 20e-6, 1e-9, 4)
    threads = question.profile.cpu.threads
    single = MappedEngine(prepared, Mapping(0, storage=storage))
    pages = np.array([touched.n_pages_read for touched in single.touched])
    per_page_s = max((100e-6 + PAGE_BYTES * 1e-9) / min(threads, 4), 20e-6 + PAGE_BYTES * 1e-9)
    assert single.read_s(single.scenario.rates) == pytest.approx(pages * per_page_s)
    around = MappedEngine(prepared, Mapping(128 * KIB, storage=storage))
    by_hand = [t.n_windows * 80e-6 + t.n_requests * 20e-6 + t.bytes_read * 1e-9 for t in around.touched]
    assert around.read_s(around.scenario.rates) == pytest.approx(by_hand)
    timeline = around.timeline(around.scenario.rates)
    compute_s = timeline.step_s - timeline.op_s["wait"]
    assert timeline.step_s == pytest.approx(compute_s + by_hand)
    assert sum(timeline.op_s.values()) == pytest.approx(timeline.step_s)


@pytest.mark.parametrize("read_ahead_bytes", [0, 128 * KIB])
def test_storage_of_its_own_is_as_uncertain_as_the_devices(question: Question, read_ahead_bytes: int) -> None:
    """The device's storage given as the mapping's gives the same answer; one half as slow has as wide an interval."""
    prepared = prepare(question)
    storage = MappedEngine(prepared, Mapping(read_ahead_bytes)).scenario.rates.storage
    names = ("latency_s", "request_overhead_s", "lane_s_per_byte", "bus_s_per_byte")
    slower = replace(storage, **{name: 2 * getattr(storage, name) for name in names})
    devices, given, twice = (
        simulate_mapped(MappedEngine(prepared, Mapping(read_ahead_bytes, storage=own)), n_samples=100)
        for own in (None, storage, slower)
    )
    assert devices.tokens_per_s is not None
    assert twice.tokens_per_s is not None
    assert given.tokens_per_s == devices.tokens_per_s
    assert given.bound_by == devices.bound_by
    assert devices.tokens_per_s.high > 1.05 * devices.tokens_per_s.low
    assert twice.tokens_per_s.high > 1.05 * twice.tokens_per_s.low


def test_three_effects_at_one_limit(question: Question) -> None:
    """Read-ahead reads more the larger it is; without it the bytes are few and the requests many."""
    results = {kib: simulate(question, n_samples=0, read_ahead_bytes=kib * KIB) for kib in (0, 128, 8192)}
    caches = {kib: result.page_cache for kib, result in results.items()}
    none, usual, large = (caches[kib] for kib in (0, 128, 8192))
    assert none is not None
    assert usual is not None
    assert large is not None
    assert none.bytes_read_per_token < usual.bytes_read_per_token < large.bytes_read_per_token
    assert none.reads_per_token == pytest.approx(none.bytes_read_per_token / PAGE_BYTES)
    assert none.reads_per_token > 10 * usual.reads_per_token
    assert usual.window_bytes == 2 * 128 * KIB  # the engine advises sequential reads
    assert results[0].bound_by == "storage_latency"
    assert results[8192].bound_by == "storage_bandwidth"


def test_other_memory_of_the_process_is_taken_from_the_page_cache(question: Question) -> None:
    """other_bytes shrinks the page cache by as much and reads more."""
    prepared = prepare(question)
    less, more = (MappedEngine(prepared, Mapping(0, other_bytes=n)) for n in (0, 400 * MB))
    assert less.capacity_pages - more.capacity_pages == pytest.approx(400 * MB / PAGE_BYTES, abs=1)
    read = [simulate_mapped(engine, n_samples=0).page_cache for engine in (less, more)]
    assert read[0] is not None
    assert read[1] is not None
    assert read[0].bytes_read_per_token < read[1].bytes_read_per_token


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["simulate", "--read-ahead", "128 KiB"], "--read-ahead"),
        (["simulate", "--layout", "mmap", "--read-ahead", "much"], "--read-ahead"),
        (["simulate", "--layout", "mmap", "--timeline", "x.parquet"], "--timeline"),
        (["simulate", "--layout", "mmap", "--storage-limit", "50 MB/s"], "--storage-limit"),
        (["plan", "--layout", "mmap", "--target-tokens-per-s", "5"], "--layout"),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], complaint: str) -> None:
    """One line that names the option, exit status 2."""
    more = ["--model", "smallthinker-4b-a0.6b", "--hardware", "raspberry-pi-5-nvme"]
    done = CliRunner().invoke(app, [*arguments, *more, "--trace", "tiny-smallthinker-switching"])
    assert done.exit_code == 2 or complaint in str(done.exception)
    assert complaint in done.output + str(done.exception)
