"""
The machine's state around a run, told by spot checks: short micro-benchmarks that the probe takes in every round and
that the grid takes before and after each run.

    factor = state of the check around the run / the probe's time of the same check

Compute times of a prediction are multiplied by the factor of a decode token, bursts of reads by that of a burst.  What
the state is, given that a check scatters by itself, says spot_series.py.  No time of a run enters.  What is left out:
contention, and how late a sleeper wakes, stay the probe's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hardware_profiles.rates import DeviceRates
from hardware_profiles.schema import HardwareProfile
from simulator.validation.spot_series import States, states_by_check

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
    """
    How much longer than in the probe things take, 1: as long; with the standard deviation of the logarithm.

    compute: operations of a run; read: bursts of reads.
    """

    compute: float = 1.0
    read: float = 1.0
    compute_sigma: float = 0.0
    read_sigma: float = 0.0

    def drawn(self, rng: np.random.Generator) -> "MachineState":
        """One draw, without spread."""
        compute, read = rng.standard_normal(2)
        return MachineState(
            self.compute * math.exp(self.compute_sigma * compute), self.read * math.exp(self.read_sigma * read)
        )

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


AS_PROBED = MachineState()


def check_names(expert_bytes: int, threads: int) -> dict[str, str]:
    """The checks that tell the state of a model whose experts are read in so many bytes, on so many threads."""
    small = expert_bytes <= SMALL_UP_TO_BYTES
    token = f"{'small' if small else 'large'}_token_t{threads}"
    return {COMPUTE: token, READ: "burst_64KiB" if small else "burst_2MiB"}


@dataclass(frozen=True, eq=False)
class GridStates:
    """
    What the spot checks of a whole grid tell, by check.

    drift: how far the machine went from the probe, the standard deviation of the logarithm about zero, so that a steady
    change counts as well as one to and fro; states: between a take and the next; takes: all, in their order.
    """

    drift: dict[str, float]
    states: dict[str, States]
    takes: tuple[Mapping[str, float], ...]

    def around(self, spots: SpotPair, names: Mapping[str, str]) -> MachineState | None:
        """The state of the machine while a run was made, None where a check is missing."""
        if any(name not in self.states for name in names.values()):
            return None
        at = next(i for i, pair in enumerate(pairwise(self.takes)) if pair == (spots.before, spots.after))
        compute, read = self.states[names[COMPUTE]], self.states[names[READ]]
        return MachineState(
            math.exp(float(compute.mean[at])),
            math.exp(float(read.mean[at])),
            float(compute.sigma[at]),
            float(read.sigma[at]),
        )


def grid_states(pairs: Sequence[SpotPair], profile: HardwareProfile) -> GridStates:
    """From the checks around each run in time order; what was taken after one may be what was taken before the next."""
    takes: list[Mapping[str, float]] = []
    for pair in pairs:
        takes += [pair.after] if takes and takes[-1] == pair.before else [pair.before, pair.after]
    references = {check.name: check.time for check in profile.spot_checks}
    drift = {}
    for name, seconds in references.items():
        logs = [math.log(take[name] / seconds) for take in takes if name in take]
        if logs:
            drift[name] = float(np.sqrt(np.mean(np.square(logs))))
    return GridStates(drift, states_by_check(takes, references), tuple(takes))


def drift_of(drift: Mapping[str, float], names: Mapping[str, str]) -> MachineState:
    """The probe's state, as uncertain as the machine drifted."""
    return MachineState(compute_sigma=drift.get(names[COMPUTE], 0.0), read_sigma=drift.get(names[READ], 0.0))
