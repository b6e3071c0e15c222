"""
How far the machine went from the probe while a grid ran, told by spot checks: short micro-benchmarks that the probe
takes in every round and that the grid takes before and after each run.

    drift = standard deviation of ln(take / the probe's time of the same check) about zero, over all takes

It widens an interval and moves no prediction.  No time of a run enters.  What is left out: contention, and how late a
sleeper wakes, stay the probe's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hardware_profiles.rates import DeviceRates
from hardware_profiles.schema import HardwareProfile

# The checks read 64 KiB and 2 MiB, and run tokens of models with experts of 20 KB and 2 MB; a model takes those that
# are nearer to its own experts.  The geometric mean of the two requests, bytes.
SMALL_UP_TO_BYTES = 362_000
COMPUTE, READ = "compute", "read"


@dataclass(frozen=True)
class SpotPair:
    """Spot checks around a run: seconds by name."""

    before: Mapping[str, float]
    after: Mapping[str, float]


@dataclass(frozen=True)
class MachineState:
    """How much longer than in the probe things take, 1: as long. compute: operations; read: bursts of reads."""

    compute: float = 1.0
    read: float = 1.0

    def on(self, rates: DeviceRates) -> DeviceRates:
        """The device in this state."""
        slower = rates.faster_compute(1 / self.compute)
        storage = rates.storage
        return replace(
            slower,
            ram_bytes_per_s=rates.ram_bytes_per_s / self.compute,
            storage=replace(
                storage,
                latency_s=storage.latency_s * self.read,
                request_overhead_s=storage.request_overhead_s * self.read,
                lane_s_per_byte=storage.lane_s_per_byte * self.read,
                bus_s_per_byte=storage.bus_s_per_byte * self.read,
            ),
            sequential_read_bytes_per_s=rates.sequential_read_bytes_per_s / self.read,
        )


@dataclass(frozen=True)
class MachineDrift:
    """How far the machine's state goes from the probe's: standard deviations of the logarithms of both factors."""

    compute_sigma: float = 0.0
    read_sigma: float = 0.0

    def drawn(self, rng: np.random.Generator) -> MachineState:
        """One state of such a machine."""
        compute, read = rng.standard_normal(2)
        return MachineState(math.exp(self.compute_sigma * compute), math.exp(self.read_sigma * read))


STEADY = MachineDrift()


def check_names(expert_bytes: int, threads: int) -> dict[str, str]:
    """The checks that tell the state of a model whose experts are read in so many bytes, on so many threads."""
    small = expert_bytes <= SMALL_UP_TO_BYTES
    token = f"{'small' if small else 'large'}_token_t{threads}"
    return {COMPUTE: token, READ: "burst_64KiB" if small else "burst_2MiB"}


def grid_drift(pairs: Sequence[SpotPair], profile: HardwareProfile) -> dict[str, float]:
    """
    The drift by check, from the checks around each run in time order; a steady change counts as well as one to and fro.

    What was taken after one run may be what was taken before the next, and is one take.
    """
    takes: list[Mapping[str, float]] = []
    for pair in pairs:
        takes += [pair.after] if takes and takes[-1] == pair.before else [pair.before, pair.after]
    drift = {}
    for check in profile.spot_checks:
        logs = [math.log(take[check.name] / check.time) for take in takes if check.name in take]
        if logs:
            drift[check.name] = float(np.sqrt(np.mean(np.square(logs))))
    return drift


def drift_of(drift: Mapping[str, float], names: Mapping[str, str]) -> MachineDrift:
    """That of a model's own checks."""
    return MachineDrift(drift.get(names[COMPUTE], 0.0), drift.get(names[READ], 0.0))
