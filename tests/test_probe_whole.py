"""The probe from end to end, in seconds: a profile that loads, that predicts, and nothing left behind."""

import hashlib
import multiprocessing
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from command_line import app
from hardware_profiles.catalog import load_profile
from hardware_profiles.kernel_table import KERNEL_OPS, Call
from hardware_profiles.rates import rates
from hardware_profiles.schema import HardwareProfile
from moeplan.errors import InputError
from reference_runtime import conditions
from reference_runtime.conditions import code_fingerprint
from reference_runtime.kernels.fast import FastKernels
from reference_runtime.matrix import matrix_bytes
from reference_runtime.probe import probe as probe_module
from reference_runtime.probe.machine import this_machine
from reference_runtime.probe.memory import WeightArena
from reference_runtime.probe.plan import FEWEST_SECONDS, Plan, make_plan
from reference_runtime.probe.probe import probe
from reference_runtime.probe.sampling import repeated
from simulator import costs
from simulator.model.catalog import load_model_spec
from tests.conftest import Outcome

MIB = 2**20


def small_plan(directory: Path, read: Path | None = None) -> Plan:
    """Two small shapes, one thread, small arenas: one round in seconds; read: a file that is there."""
    plan = make_plan(directory, FEWEST_SECONDS, [1], read)
    tiny = load_model_spec("tiny-smallthinker")
    assert tiny.experts is not None
    experts = tiny.experts.model_copy(update={"n_experts": 8, "ffn_size": 128})
    wider = tiny.model_copy(update={"name": "wider", "hidden_size": 256, "n_layers": 4, "experts": experts})
    return replace(
        plan,
        seconds=1.0,
        spot_arena_bytes=16 * MIB,
        shapes=(tiny.model_copy(update={"n_layers": 2}), wider),
        arena_bytes=16 * MIB,
        middle_bytes=4 * MIB,
        warm_bytes=MIB,
        file_bytes=16 * MIB if read is None else plan.file_bytes,
        chunks=(16,),
        contexts=(16, 64),
        request_bytes=(4096, 65536, MIB, 4 * MIB),
        depths=(1, 2, 4),
        burst_bytes=(4096, 65536, MIB),
        burst_requests=(1, 2, 4),
        burst_idle_s=(0.0003, 0.001),
        cell_s=0.03,
        n_bursts=2,
    )


@dataclass(frozen=True)
class Probed:
    """A folder after the command, and what it said."""

    folder: Path
    out: str
    err: str

    @property
    def path(self) -> Path:
        """The profile."""
        return self.folder / "mine.yaml"


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Probed:
    """The command on a small plan, once for all tests."""
    folder, out, err = tmp_path_factory.mktemp("probe"), StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr("reference_runtime.probe.plan.make_plan", lambda directory, *_: small_plan(directory))
        patch.setattr(sys, "argv", ["moeplan", "hardware", "probe", "--output", str(folder / "mine.yaml")])
        with pytest.raises(SystemExit) as stop:
            app.main()
    assert not stop.value.code, err.getvalue()
    return Probed(folder, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def profile(probed: Probed) -> HardwareProfile:
    """The profile as it is read."""
    return load_profile(str(probed.path))


def test_every_operation_was_measured(profile: HardwareProfile) -> None:
    """The table has a time for each op on one thread, so no model of such types falls back to the roofline."""
    assert profile.cpu.kernels is not None
    assert {row.op for row in profile.cpu.kernels.rows} == set(KERNEL_OPS)
    device = rates(profile)
    spec = load_model_spec("tiny-smallthinker")
    for work in (
        costs.router_work(spec), costs.attention_work(spec, 0, 40), costs.attention_work(spec, 0, 40, 16),
        costs.expert_ffn_work(spec, 4), costs.expert_ffn_work(spec, 4, 16), costs.lm_head_work(spec, False),
        costs.embedding_work(spec),
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


def test_spot_checks_and_idle_times_are_in_it(profile: HardwareProfile) -> None:
    """Each check once with its spread; bursts after each idle time; notes name the code that was timed."""
    names = [check.name for check in profile.spot_checks]
    assert sorted(names) == ["burst_2MiB", "burst_64KiB", "large_token_t1", "small_token_t1"]
    assert profile.storage.bursts is not None
    assert {row.idle for row in profile.storage.bursts.rows} == {0.0003, 0.001}
    assert profile.cpu.kernels is not None
    assert profile.cpu.kernels.uncertainty >= min(check.spread for check in profile.spot_checks)
    for words in (code_fingerprint(), "GOMP_SPINCOUNT", "clock governor", "numba", "noise: "):
        assert words in profile.notes


def test_the_fingerprint_is_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes with a byte of what a run's time depends on and with nothing else."""
    alone = ("forward.py", "runtime.py", "packing.py", "matrix.py", "core_affinity.py", "routing_replay.py")
    timed = ("kernels/fast.py", "streaming/reads.py", *alone)
    for folder in ("kernels", "streaming"):
        (tmp_path / folder).mkdir()
    for name in (*timed, "other.py"):
        (tmp_path / name).write_text("a")
    monkeypatch.setattr(conditions, "__file__", str(tmp_path / "conditions.py"))
    found = [code_fingerprint()]
    for name in (*timed, "other.py"):
        (tmp_path / name).write_text("b")
        found.append(code_fingerprint())
    assert len(set(found)) == 1 + len(timed)
    assert found[-1] == found[-2]


@pytest.mark.parametrize("n_steps", [2, 8])
def test_an_interrupted_probe_leaves_nothing_behind(tmp_path: Path, n_steps: int) -> None:
    """Neither a file nor a process nor a thread, whether it ends while the file is written or in a round."""
    before, steps = threading.active_count(), iter(range(n_steps))

    seconds: list[int] = []

    def stop(done_s: int, _: int) -> None:
        seconds.append(done_s)
        if next(steps, None) is None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probe(small_plan(tmp_path), "here", stop)
    assert seconds == sorted(seconds)
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() == before
    assert not multiprocessing.active_children()


def test_the_command_writes_a_profile_that_check_and_show_take(probed: Probed, moeplan) -> None:  # type: ignore[no-untyped-def]
    """It says beforehand what it writes; the profile is in the file alone, and nothing else in the folder."""
    assert "writes 17 MB" in probed.err
    assert probed.out.startswith(f"{probed.path}: ")
    assert [file.name for file in probed.folder.iterdir()] == ["mine.yaml"]
    assert load_profile(str(probed.path)).name == "mine"
    assert "0 of" in moeplan("hardware", "check", str(probed.path)).out
    shown = moeplan("hardware", "show", str(probed.path)).out
    assert "Kernels: moeplan reference runtime" in shown
    assert "Bursts: " in shown


def test_a_file_that_is_there_is_read_and_nothing_is_written(
    moeplan: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--read FILE: it stays as it is, no file comes to stand beside it, and the profile says what was read."""

    def smaller(directory: Path, _: float, __: object, read: Path | None) -> Plan:
        plan = small_plan(directory, read)
        sizes = {"request_bytes": (4096, MIB), "depths": (1, 4), "burst_bytes": (65536, MIB), "burst_requests": (1, 4)}
        return replace(plan, shapes=plan.shapes[:1], contexts=(16,), burst_idle_s=(0.001,), **sizes)

    disk, output = tmp_path / "disk", tmp_path / "mine.yaml"
    disk.mkdir()
    path = disk / "experts.bundle"
    path.write_bytes(np.random.default_rng(0).bytes(20 * MIB))
    before = hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns
    monkeypatch.setattr("reference_runtime.probe.plan.FILE_BYTES", 8 * 16 * MIB)  # the least that is read: an eighth
    monkeypatch.setattr("reference_runtime.probe.plan.make_plan", smaller)
    written: list[object] = []
    monkeypatch.setattr("reference_runtime.probe.storage._fill", lambda *args: written.append(args))
    done = moeplan("hardware", "probe", "--output", str(output), "--read", str(path))
    assert done.status == 0, done.err
    assert f"reads {path} and writes nothing" in done.err
    assert not written
    assert (hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns) == before
    assert list(disk.iterdir()) == [path]
    assert sorted(tmp_path.iterdir()) == [disk, output]
    profile = load_profile(str(output))
    assert "disk: read from experts.bundle, 20" in profile.notes
    assert profile.storage.table is not None
    assert {row.request for row in profile.storage.table.rows} >= {4096, MIB}


def test_too_little_memory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the file is written: a probe that the system ends for it would leave no word."""
    machine = replace(this_machine(tmp_path), ram_available_bytes=MIB)
    monkeypatch.setattr(probe_module, "this_machine", lambda _: machine)
    with pytest.raises(InputError, match=r"memory: must have .* free, got 1\.00 MiB; give fewer"):
        probe(small_plan(tmp_path), "here")
    assert list(tmp_path.iterdir()) == []
