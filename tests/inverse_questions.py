"""Random small questions on several devices, and what the engine says of them, for the tests of inverse planning."""

from conftest import random_trace, tiny_model
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from test_sweep_rows import measured_device

from hardware_profiles.catalog import load_profile
from simulator.engine_fast import FastEngine
from simulator.policies import STACK_POLICIES
from simulator.question import Question, prepare
from simulator.simulate import intervals

N_SAMPLES = 5
DEVICES = ("raspberry-pi-5-nvme", "rk3588", "raspberry-pi-5-sd")
PROFILES = [*(load_profile(name) for name in DEVICES), measured_device()]
quick = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
quicker = settings(quick, max_examples=5)


@st.composite
def questions(draw: st.DrawFn, policies: tuple[str, ...] = STACK_POLICIES) -> Question:
    """A small model, a random trace with a prompt and a device, with random what-ifs."""
    n_layers, n_experts, top_k = draw(st.integers(1, 4)), draw(st.integers(4, 9)), draw(st.integers(1, 3))
    n_prefill = draw(st.sampled_from([0, 3, 20]))
    trace = random_trace(draw(st.integers(0, 99)), n_prefill + 24, n_layers, n_experts, top_k, n_prefill)
    return Question(
        tiny_model(n_layers, n_experts, top_k),
        draw(st.sampled_from(PROFILES)),
        trace,
        ram_cap_bytes=draw(st.integers(150, 400)) * 2**10,
        storage_read_bytes_per_s=draw(st.sampled_from([None, 2e7, 3e9])),
        cache_policy=draw(st.sampled_from(policies)),
        prefetch_policy=draw(st.sampled_from(["none", "pre-attention"])),
        layout=draw(st.sampled_from(["bundle", "split"])),
        start=draw(st.sampled_from(["cold", "warm"])),
        compute_factor=draw(st.sampled_from([1.0, 0.1])),
    )


def simulated(question: Question, n_samples: int = N_SAMPLES) -> tuple[float, float]:
    """Value and low end from whole timelines of the fast engine, draw by draw; 0 where it cannot run."""
    scenario = prepare(question).scenario
    if scenario is None:
        return 0.0, 0.0
    engine, counted = FastEngine(scenario), scenario.is_counted
    speed, _ = intervals(
        lambda *drawn: float(engine.timeline(*drawn).step_s[counted].sum()), int(counted.sum()), question, n_samples,
        seed=0, prompt=None,
    )  # fmt: skip
    return speed.value, speed.low


def between(speeds: list[float], place: float) -> float:
    """A target between the extremes of some speeds, off every one of them."""
    some = sorted({round(speed, 9) for speed in speeds if speed > 0})
    low, high = some[0], some[-1]
    return (low + place * (high - low)) * (1 + 1e-6)


def quiet_question() -> Question:
    """Three layers of eight experts, top-2, in a cache of half of them."""
    trace = random_trace(5, 48, 3, 8, 2, 8)
    return Question(tiny_model(), PROFILES[0], trace, ram_cap_bytes=330 * 2**10)
