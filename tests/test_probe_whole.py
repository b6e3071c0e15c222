"""The probe from end to end, in seconds: a profile that loads, that predicts, and nothing left behind."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from command_line.hardware_probe import agreeing
from hardware_profiles.catalog import load_profile
from hardware_profiles.kernel_table import KERNEL_OPS, Call
from hardware_profiles.rates import rates
from hardware_profiles.schema import HardwareProfile
from moeplan.errors import InputError
from reference_runtime.kernels.fast import FastKernels
from reference_runtime.matrix import matrix_bytes
from reference_runtime.probe import probe as probe_module
from reference_runtime.probe.memory import WeightArena
from reference_runtime.probe.plan import Plan, make_plan
from reference_runtime.probe.probe import probe
from reference_runtime.probe.sampling import repeated
from reference_runtime.probe.writer import profile_yaml
from simulator import costs
from simulator.model.catalog import load_model_spec
from tests.conftest import assert_one_line

MIB = 2**20


def small_plan(directory: Path) -> Plan:
    """Two small shapes, one thread, small arenas: one round in a second or two."""
    plan = make_plan(directory, 1.0, [1])
    tiny = load_model_spec("tiny-smallthinker")
    assert tiny.experts is not None
    experts = tiny.experts.model_copy(update={"n_experts": 8, "ffn_size": 128})
    wider = tiny.model_copy(update={"name": "wider", "hidden_size": 256, "n_layers": 4, "experts": experts})
    return replace(
        plan,
        shapes=(tiny.model_copy(update={"n_layers": 2}), wider),
        arena_bytes=16 * MIB,
        middle_bytes=4 * MIB,
        warm_bytes=MIB,
        file_bytes=16 * MIB,
        chunks=(16,),
        contexts=(16, 64),
        request_bytes=(4096, 65536, MIB, 4 * MIB),
        depths=(1, 2, 4),
        bursts=(1, 2),
        cell_s=0.01,
        n_bursts=2,
    )


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> HardwareProfile:
    """A probed profile, written and read."""
    directory = tmp_path_factory.mktemp("probe")
    seconds: list[tuple[int, int]] = []
    mapping = probe(small_plan(directory), "here", lambda *pair: seconds.append(pair))
    assert list(directory.iterdir()) == []
    assert seconds == sorted(seconds)
    path = directory / "here.yaml"
    path.write_text(profile_yaml(agreeing(mapping), "a test"), "utf-8")
    return load_profile(str(path))


def test_every_operation_was_measured(profile: HardwareProfile) -> None:
    """The table has a time for each op on one thread, so no model of such types falls back to the roofline."""
    assert profile.cpu.kernels is not None
    assert {row.op for row in profile.cpu.kernels.rows} == set(KERNEL_OPS)
    device = rates(profile)
    spec = load_model_spec("tiny-smallthinker")
    for work in (
        costs.router_work(spec), costs.attention_work(spec, 0, 40), costs.attention_work(spec, 0, 40, 16),
        costs.expert_ffn_work(spec, 4), costs.lm_head_work(spec, False), costs.embedding_work(spec),
    ):  # fmt: skip
        assert device.kernels is not None
        assert work.calls
        assert all(device.kernels.has(call) for call in work.calls)


def test_the_whole_profile_is_measured(profile: HardwareProfile) -> None:
    """Contention, the timer's lag and bursts are there, and every spread is above zero."""
    assert profile.contention is not None
    assert profile.cpu.timer_lag is not None
    assert profile.storage.bursts is not None
    assert profile.storage.table is not None
    assert profile.cpu.kernels is not None
    for part in (profile.contention.compute_speed, profile.cpu.timer_lag, profile.storage.bursts, profile.cpu.kernels):
        assert part.kind == "measured"
        assert part.uncertainty > 0


def test_the_table_predicts_a_product_that_it_did_not_measure(profile: HardwareProfile) -> None:
    """A Q8_0 matrix between two measured sizes: within a factor of four of its own time (a round is one sample)."""
    kind, shape = GGMLQuantizationType.Q8_0, (160, 192)
    n_bytes = matrix_bytes(kind, *shape)
    assert profile.cpu.kernels is not None
    sizes = {row.size for row in profile.cpu.kernels.rows if (row.op, row.type) == ("gemv", "q8_0")}
    assert min(sizes) < n_bytes < max(sizes)
    assert n_bytes not in sizes
    following, kernels = WeightArena(16 * MIB, seed=5).cycle(kind, shape, 16 * MIB), FastKernels(1)
    x = np.ones((1, shape[1]), np.float32)
    sample = repeated(lambda: kernels.matmul(x, following()))
    measured = float(np.median([sample() for _ in range(9)]))
    device = rates(profile)
    assert device.kernels is not None
    predicted = device.kernels.seconds(Call("gemv", "q8_0", n_bytes, working_set=16 * MIB))
    assert measured / 4 < predicted < measured * 4


def test_an_interrupted_probe_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a file nor a thread of its readers."""
    import threading

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    monkeypatch.setattr(probe_module, "closed_loop", stop)
    with pytest.raises(KeyboardInterrupt):
        probe(small_plan(tmp_path), "here")
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() == before


def test_the_command_writes_a_profile_that_check_and_show_take(
    moeplan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    """It says beforehand what it writes; the profile is in the file alone."""
    monkeypatch.setattr("reference_runtime.probe.plan.make_plan", lambda directory, *_: small_plan(directory))
    path = tmp_path / "mine.yaml"
    done = moeplan("hardware", "probe", "--output", str(path), "--seconds", "1")
    assert done.status == 0, done.err
    assert "writes 17 MB" in done.err
    assert [file.name for file in tmp_path.iterdir()] == ["mine.yaml"]
    assert load_profile(str(path)).name == "mine"
    assert "0 of" in moeplan("hardware", "check", str(path)).out
    shown = moeplan("hardware", "show", str(path)).out
    assert "Kernels: moeplan reference runtime" in shown
    assert "Bursts: " in shown


def test_a_full_disk_is_one_line(moeplan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """Nothing is measured and nothing written."""

    def refuse(*_: object) -> None:
        raise InputError("--directory D", "must have 1 GiB free", "4 KiB")

    monkeypatch.setattr("reference_runtime.probe.storage.check_room", refuse)
    done = moeplan("hardware", "probe", "--output", str(tmp_path / "p.yaml"), "--seconds", "1", "--threads", "1")
    assert_one_line(done, "--directory D")
    assert list(tmp_path.iterdir()) == []


def test_wrong_options_are_one_line(moeplan, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Before anything runs."""
    output = ("hardware", "probe", "--output", str(tmp_path / "p.yaml"))
    assert_one_line(moeplan(*output, "--threads", "1,x"), "--threads", "1,x")
    assert_one_line(moeplan(*output, "--seconds", "0"), "--seconds")
    assert_one_line(moeplan("hardware", "probe", "--output", str(tmp_path / "p.txt")), ".yaml")
