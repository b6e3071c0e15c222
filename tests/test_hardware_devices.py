"""The shipped devices: complete, sourced, and sampled as their uncertainties say."""

import dataclasses

import numpy as np
import pytest

from hardware_profiles.catalog import DEVICES, load_profile, profile_names
from hardware_profiles.rates import DeviceRates, rates, sample_rates
from hardware_profiles.schema import figures

WANTED = {
    "apple-m4", "i9-14900", "intel-n100", "jetson-orin-nano", "oneplus-13", "raspberry-pi-5-nvme",
    "raspberry-pi-5-nvme-gen3", "raspberry-pi-5-sd", "rdk-x5", "rk3566", "rk3576", "rk3588", "ryzen-7840u",
    "steam-deck",
}  # fmt: skip


def test_the_wanted_devices_are_shipped() -> None:
    """At least these fourteen."""
    assert set(profile_names()) >= WANTED


@pytest.mark.parametrize("name", sorted(WANTED))
def test_a_shipped_device_is_complete_and_sourced(name: str) -> None:
    """Its name is its file's; every figure has a source; what is assumed says so and is uncertain."""
    profile = load_profile(name)
    assert profile.name == name
    found = dict(figures(profile))
    assert len(found) >= 13
    for key, figure in found.items():
        assert len(figure.source) >= 20, key
        assert figure.uncertainty > 0, key
        if figure.kind == "measured":
            assert "https://" in figure.source, key
        if figure.kind == "assumed" and key.startswith(("cpu", "ram")):
            assert figure.uncertainty >= 0.2, key
    device = rates(profile)
    rates_of_it = {key: value for key, value in dataclasses.asdict(device).items() if isinstance(value, float)}
    assert all(value > 0 for key, value in rates_of_it.items() if key != "timer_lag_s")
    assert profile.cpu.threads <= profile.cpu.cores
    assert profile.ram.os_reserved_bytes < profile.ram.size_bytes / 2


@pytest.mark.parametrize("name", sorted(WANTED))
def test_no_figure_comes_from_what_is_to_be_predicted(name: str) -> None:
    """A rate that was worked out from a model's tokens per second would make the prediction circular."""
    text = (DEVICES / f"{name}.yaml").read_text(encoding="utf-8").lower()
    for word in ("implied", "decode", "tokens/s", "tok/s", " t/s"):
        assert word not in text


# public decode speeds that the predictions are compared with: no figure may come from the same page
PAGES_TO_PREDICT = (
    "https://byteshape.com/blogs/Qwen3-30B-A3B-Instruct-2507",
    "https://github.com/Helldez/BigMoeOnEdge/blob/main/docs/benchmarks.md",
    "https://github.com/Helldez/BigMoeOnEdge/pull/187",
    "https://github.com/JustVugg/colibri/issues/1070",
    "https://github.com/JustVugg/colibri/issues/486",
    "https://github.com/JustVugg/colibri/issues/93",
    "https://github.com/SJTU-IPADS/PowerInfer",
    "https://github.com/geerlingguy/ai-benchmarks",
    "https://github.com/ggml-org/llama.cpp/issues/19480",
    "https://github.com/ikawrakow/ik_llama.cpp",
    "https://inventivehq.com/blog/moe-on-cpu-benchmark",
    "https://philippe-anel.fr/en/blog/2025/08/10/qwen3-vs-gpt-oss-benchmark-cpu",
)


@pytest.mark.parametrize("name", sorted(WANTED))
def test_no_source_is_a_page_of_decode_speeds(name: str) -> None:
    """The devices stay independent of the measurements that they are to predict."""
    text = "".join((DEVICES / f"{name}.yaml").read_text(encoding="utf-8").split())
    assert not [page for page in PAGES_TO_PREDICT if page in text]


def test_cards_and_emmc_gain_nothing_from_depth() -> None:
    """Without command queueing one request runs at a time."""
    for name in profile_names():
        storage = load_profile(name).storage
        if storage.kind.startswith(("microSD", "eMMC")):
            assert storage.queue_depth == 1


def draws(name: str, n: int, seed: int) -> list[DeviceRates]:
    """n draws from one generator."""
    rng = np.random.default_rng(seed)
    profile = load_profile(name)
    return [sample_rates(profile, rng) for _ in range(n)]


def test_the_same_seed_gives_the_same_draws() -> None:
    """Sampling depends on the generator alone."""
    assert draws("oneplus-13", 5, 7) == draws("oneplus-13", 5, 7)
    assert draws("oneplus-13", 5, 7) != draws("oneplus-13", 5, 8)


def test_eighty_per_cent_of_the_draws_lie_within_the_uncertainty() -> None:
    """The 10 % and 90 % quantiles are value / (1 + u) and value * (1 + u), the median is the value."""
    profile, drawn = load_profile("raspberry-pi-5-nvme"), draws("raspberry-pi-5-nvme", 20_000, 1)
    pairs = {
        "gemv_flop_per_s": profile.cpu.gemv_flop_per_s,
        "gemm_flop_per_s": profile.cpu.gemm_flop_per_s,
        "ram_bytes_per_s": profile.ram.gemv_bandwidth,
        "op_overhead_s": profile.cpu.op_overhead,
        "sequential_read_bytes_per_s": profile.storage.sequential_read,
    }
    for name, figure in pairs.items():
        low, middle, high = np.quantile([getattr(d, name) for d in drawn], [0.1, 0.5, 0.9])
        factor = 1 + figure.uncertainty
        assert (low, middle, high) == pytest.approx(
            (figure.value / factor, figure.value, figure.value * factor), rel=0.03
        ), name


def test_a_draw_moves_the_whole_storage_model() -> None:
    """Per-byte times go with the sequential rate, latencies with the 4K rate; the depth stays."""
    central = rates(load_profile("i9-14900"))
    for drawn in draws("i9-14900", 50, 2):
        faster = drawn.sequential_read_bytes_per_s / central.sequential_read_bytes_per_s
        assert drawn.storage.bus_s_per_byte * faster == pytest.approx(central.storage.bus_s_per_byte)
        assert drawn.storage.lane_s_per_byte * faster == pytest.approx(central.storage.lane_s_per_byte)
        ratio = drawn.storage.latency_s / central.storage.latency_s
        assert drawn.storage.request_overhead_s == pytest.approx(central.storage.request_overhead_s * ratio)
        assert drawn.storage.queue_depth == central.storage.queue_depth
        assert 0.5 <= drawn.contended_compute_frac == drawn.contended_read_frac <= 1


def test_overlap_efficiency_is_normal_and_clipped() -> None:
    """0.85 +- 0.15: a tenth of the draws lies below 0.70, and the upper tenth is cut off at 1."""
    overlap = np.array([2 - 1 / d.contended_read_frac for d in draws("rk3588", 20_000, 3)])
    assert np.quantile(overlap, 0.1) == pytest.approx(0.70, abs=0.01)
    assert np.mean(overlap > 1 - 1e-12) == pytest.approx(0.10, abs=0.01)
