"""Random models, devices, traces and sweeps, on which the fast engine and the sweep must equal the SimPy engine."""

from dataclasses import dataclass, fields, replace
from unittest import mock

import numpy as np
from hypothesis import strategies as st

from hardware_profiles.catalog import load_profile
from hardware_profiles.kernel_table import KernelTable, KernelTimes
from hardware_profiles.schema import HardwareProfile
from simulator import engine_fast
from simulator.engine_simpy import simulate_simpy
from simulator.expert_layout import ExpertLayout
from simulator.model.catalog import load_model_spec
from simulator.model.spec import ModelSpec, with_quantisation
from simulator.policies import OFFLINE_POLICIES, POLICIES
from simulator.question import Question, prepare
from simulator.result import SweepRow
from simulator.scenario import Scenario, dense_steps, steps_of
from simulator.sweeps.definition import SweepDefinition
from simulator.sweeps.rows import ChunkRunner
from simulator.sweeps.scenarios import Cell, Inputs, chunks
from simulator.timeline import Timeline
from tests.conftest import device_rates, random_trace, storage_model, tiny_model
from traces.routing_trace import RoutingTrace

TOLERANCE_S = 1e-9
CACHES = (*POLICIES, *OFFLINE_POLICIES)


def kernel_table(n_threads: int) -> KernelTable:
    """Times of made-up kernels, what reads cost beside compute included, in microseconds at two sizes and counts."""
    times = {
        "gemv": 20, "gemm": 60, "experts": 40, "experts_chunk": 55, "attend": 9, "attend_chunk": 15,
        "attention_rest": 7, "router": 11, "issue": 60, "delay": 35, "wake": 25, "wake_on_demand": 31,
        "wake_attention": 17, "row": 3, "step": 13,
    }  # fmt: skip
    rows = [
        {"op": op, "type": tensor_type, "size": size, "count": count, "working_set": "256 MiB", "threads": n_threads,
         "time": f"{us * (1 + 0.3 * (min(count, 4) - 1)) * (1 if size == 64 else 4)} us"}
        for op, us in times.items() for size in (64, 65536)
        for count in ((50, 900, 9000) if op.startswith("wake") else (1, 4))
        for tensor_type in (("q8_0", "q4_0") if op in ("gemv", "gemm", "experts", "experts_chunk") else ("f32",))
    ]  # fmt: skip
    head = {"kind": "measured", "source": "this test", "uncertainty": 0.1, "engine": "test", "ram_bandwidth": "1 GB/s"}
    return KernelTable.model_validate(head | {"rows": rows})


KERNELS = KernelTimes(kernel_table(1), 1)


def measured_device() -> HardwareProfile:
    """A shipped device as a probe would have left it."""
    profile = load_profile("rk3588")
    table = kernel_table(profile.cpu.threads)
    return profile.model_copy(update={"cpu": profile.cpu.model_copy(update={"kernels": table})})


PROFILES = {name: load_profile(name) for name in ("raspberry-pi-5-nvme", "raspberry-pi-5-sd", "jetson-orin-nano")}
PROFILES["measured"] = measured_device()

STORAGE = st.builds(
    storage_model,
    latency_s=st.sampled_from([0.0, 2e-5, 3e-4]),
    lane_s_per_byte=st.sampled_from([0.0, 1e-9]),
    request_overhead_s=st.sampled_from([0.0, 1e-5]),
    bus_s_per_byte=st.floats(1e-10, 1e-7),
    queue_depth=st.integers(1, 6),
    max_request_bytes=st.sampled_from([None, 3000]),
    limit_bytes_per_s=st.sampled_from([None, 2e7, 1e9]),
    limit_lag_s=st.sampled_from([0.0, 1e-4]),
)
FLOP_PER_S = st.floats(1e8, 1e11)
RATES = st.builds(
    lambda storage, flop, **others: device_rates(storage, gemv_flop_per_s=flop, gemm_flop_per_s=3 * flop, **others),
    storage=STORAGE,
    flop=FLOP_PER_S,
    ram_bytes_per_s=st.floats(1e7, 1e10),
    op_overhead_s=st.floats(0, 1e-5),
    contended_compute_frac=st.floats(0.2, 1),
    contended_read_frac=st.floats(0.2, 1),
    kernels=st.sampled_from([None, KERNELS]),
    kernel_factor=st.floats(0.1, 10),
)


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    """Full, sliding and latent attention; dense layers first or between; shared experts; both places of the router."""
    n_layers, n_experts = draw(st.integers(1, 4)), draw(st.integers(2, 8))
    top_k = draw(st.integers(1, min(3, n_experts)))
    experts = {"first_dense_layers": draw(st.integers(0, n_layers - 1)), "layer_step": draw(st.integers(1, 2))}
    experts |= draw(st.sampled_from([{}, {"n_shared": 1, "shared_ffn_size": 32}]))
    model = tiny_model(n_layers, n_experts, top_k, experts=experts, dense_ffn_size=64)
    assert model.experts is not None
    router = model.experts.router.model_copy(
        update={"placement": draw(st.sampled_from(["pre_attention", "post_attention"]))}
    )
    attention = draw(st.sampled_from([model.attention, LATENT, model.attention.model_copy(update={"window": 5})]))
    return model.model_copy(
        update={"attention": attention, "experts": model.experts.model_copy(update={"router": router})}
    )


LATENT = load_model_spec("deepseek-v2-lite").attention


@st.composite
def traces(draw: st.DrawFn, model: ModelSpec) -> RoutingTrace:
    """A few tokens in two requests, the first without decode, with or without a prompt."""
    n_tokens = draw(st.integers(2, 14))
    n_prefill = draw(st.integers(0, n_tokens - 1))
    assert model.experts is not None
    shape = model.n_moe_layers, model.experts.n_experts, model.experts.top_k
    trace = random_trace(draw(st.integers(0, 10**6)), n_tokens, *shape, n_prefill)
    cut = draw(st.integers(0, n_prefill))
    return replace(trace, request_id=(np.arange(n_tokens) >= cut).astype(np.int32))


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Random models, traces, policies, prefetchers, layouts, contexts and devices."""
    model = draw(models())
    context, chunk = draw(st.sampled_from([None, 0, 5000])), draw(st.sampled_from([3, 512]))
    if draw(st.integers(0, 19)) == 0:
        model, steps = model.model_copy(update={"experts": None}), dense_steps(3, draw(st.integers(1, 5)), context)
    else:
        steps = steps_of(draw(traces(model)), context=context, chunk_tokens=chunk)
    return Scenario(
        model=model,
        rates=draw(RATES),
        steps=steps,
        n_slots=draw(st.integers(0, 4 * 8)),
        cache_policy=draw(st.sampled_from(CACHES)),
        prefetch_policy=draw(st.sampled_from(["none", "pre-attention"])),
        layout=draw(st.sampled_from([ExpertLayout("bundle", 1, 8192), ExpertLayout("split", 3, 4096)])),
        preloaded=draw(st.booleans()),
    )


def assert_equal(first: Timeline, second: Timeline) -> None:
    """Every array of two timelines agrees to TOLERANCE_S; counts agree exactly."""
    for item in fields(Timeline):
        one, other = getattr(first, item.name), getattr(second, item.name)
        if item.name.startswith("n_"):
            assert np.array_equal(one, other), item.name
        elif item.name == "op_s":
            for op in one.keys() | other.keys():
                np.testing.assert_allclose(one[op], other[op], rtol=0, atol=TOLERANCE_S, err_msg=op)
        else:
            np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE_S, err_msg=item.name)


def check_fast_engine(scenario: Scenario, compiled: bool) -> None:
    """The fast engine, its decisions taken by the policy or in a compiled pass, equals the SimPy engine."""
    with mock.patch.object(engine_fast, "MANY_ACCESSES", 0 if compiled else np.inf):
        assert_equal(engine_fast.simulate_fast(scenario), simulate_simpy(scenario))


@dataclass(frozen=True)
class RandomSweep:
    """A sweep over one model and trace; its axes name them `model` and `trace`."""

    axes: dict[str, tuple]
    model: ModelSpec
    trace: RoutingTrace
    start: str

    @property
    def inputs(self) -> Inputs:
        """What the names of the axes stand for."""
        return Inputs({"model": self.model}, PROFILES, {"trace": self.trace})


def some(*values: object, most: int = 1) -> st.SearchStrategy[tuple[object, ...]]:
    """Different values of an axis, at most so many."""
    return st.lists(st.sampled_from(values), min_size=1, max_size=most, unique=True).map(tuple)


@st.composite
def sweeps(draw: st.DrawFn) -> RandomSweep:
    """One to some dozen scenarios over every axis that changes times or decisions; most of them stream."""
    model = draw(models())
    axes: dict = {"model": ("model",), "trace": ("trace",)}
    axes |= draw(
        st.fixed_dictionaries(
            {
                "hardware": some(*PROFILES, most=2), "cache": some(*CACHES, most=2),
                "storage_read": some(5e6, 5e7, 1e9, 1.5e10, None, most=2), "storage_latency": some(None, 1e-6, 1e-3),
                "prefetch": some("none", None, most=2), "layout": some("bundle", "split"),
                "context": some(None, 0, 300, 4000), "quantisation": some(None, "q4_0"),
                "ram_bandwidth": some(None, 1e7, 2e8), "flops": some(None, 1e7, 1e9),
            }
        )
    )  # fmt: skip
    sweep = RandomSweep(axes, model, draw(traces(model)), draw(st.sampled_from(["cold", "warm"])))
    first = {name: values[0] for name, values in axes.items()} | {"ram_cap": None}
    memory = prepare(_question(first, sweep)).plan.memory
    caps = [memory.resident_bytes - int(frac * memory.cache_bytes) for frac in (0.9, 0.6, 0.4, 0.25, 0.15, 0.05)]
    axes["ram_cap"] = draw(some(*caps, None, most=3))
    return sweep


def check_sweep(sweep: RandomSweep) -> int:
    """Every row of the sweep equals the SimPy engine on the row's own inputs; the number of rows that ran."""
    definition = SweepDefinition(sweep.axes, start=sweep.start, n_samples=0)  # type: ignore[arg-type]
    runner, n_ran = ChunkRunner(definition, sweep.inputs), 0
    for chunk in chunks(definition):
        cells = dict(chunk.cells(definition))
        for item in runner.rows(chunk):
            n_ran += _check_row(_question(cells[item.scenario], sweep), item.row)
    return n_ran


def _question(cell: Cell, sweep: RandomSweep) -> Question:
    """What a cell asks, put together here once more."""
    model = sweep.model if cell["quantisation"] is None else with_quantisation(sweep.model, cell["quantisation"])
    return Question(
        model, PROFILES[cell["hardware"]], sweep.trace, ram_cap_bytes=cell["ram_cap"], start=sweep.start,  # type: ignore[arg-type]
        storage_read_bytes_per_s=cell["storage_read"], cache_policy=cell["cache"], prefetch_policy=cell["prefetch"],
        layout=cell["layout"], context=cell["context"], storage_latency_s=cell["storage_latency"],
        ram_bytes_per_s=cell["ram_bandwidth"], gemv_flop_per_s=cell["flops"],
    )  # fmt: skip


def _check_row(question: Question, row: SweepRow) -> bool:
    prepared = prepare(question)
    assert row.verdict == prepared.plan.verdict, row
    if prepared.scenario is None:
        return False
    timeline, counted = simulate_simpy(prepared.scenario), prepared.scenario.is_counted
    n_tokens, missed = counted.sum(), timeline.n_misses[counted] > 0
    assert abs(1 / row.tokens_per_s - timeline.step_s[counted].mean()) < TOLERANCE_S
    assert abs(row.wait_s_per_token - timeline.op_s["wait"][counted].mean()) < TOLERANCE_S
    assert row.misses == timeline.n_misses[counted].sum()
    assert row.hits == (timeline.n_used - timeline.n_misses)[counted].sum()
    assert row.bytes_read_per_token == row.misses * prepared.layout.padded_bytes / n_tokens
    slack_s = (timeline.attention_s - timeline.prefetch_s)[counted][missed]
    surely, perhaps = (slack_s > TOLERANCE_S).sum(), (slack_s > -TOLERANCE_S).sum()  # rounding decides a tie
    assert surely <= round(row.hidden_frac * max(1, slack_s.size), 6) <= max(perhaps, slack_s.size == 0)
    return True
