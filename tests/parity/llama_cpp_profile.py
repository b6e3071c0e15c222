"""llama.cpp on this machine as a HardwareProfile: a profile whose kernel times are llama.cpp's own."""

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from hardware_profiles.kernel_table import KernelTable
from hardware_profiles.schema import HardwareProfile
from parity.ggml_kernels import NO_TIME_S, Kernels
from parity.llama_cpp_in_ram import ROOM, InRam, distinct_tokens
from parity.undisturbed import Turn, take_turns
from reference_runtime.synthetic_model import KINDS, write_synthetic
from simulator.model.spec import ModelSpec

STEP_VOCABULARY = 1024
STEP_CONTEXT = 16
Key = tuple[int, int]  # layers, threads


class Step:
    """
    What a token costs beside its layers: the call, the inputs, waking the threads, the head.

    From random models of one and two layers in a small shape: twice the first less the second.
    """

    def __init__(self, tiny: ModelSpec) -> None:
        self._models: dict[int, InRam] = {}
        tokens = distinct_tokens(STEP_VOCABULARY, STEP_CONTEXT + ROOM)
        with tempfile.TemporaryDirectory() as folder:
            for n_layers in (1, 2):
                path = Path(folder) / f"{n_layers}.gguf"
                attention = tiny.attention.model_copy(update={"window": None, "layer_kinds": ("full_rope",)})
                update = {"n_layers": n_layers, "vocab_size": STEP_VOCABULARY, "attention": attention}
                write_synthetic(tiny.model_copy(update=update), path, KINDS["Q8_0"])
                self._models[n_layers] = InRam(path, 256, repack=False)
                self._models[n_layers].read(tokens, (STEP_CONTEXT,))

    def turns(self, threads: Sequence[int]) -> dict[Key, Turn]:
        """Tokens of both models."""
        return {(m, n): partial(llama.turn, STEP_CONTEXT, n) for m, llama in self._models.items() for n in threads}

    def seconds(self, taken: Mapping[Key, Sequence[float]], threads: Sequence[int]) -> dict[int, float]:
        """From the seconds that the turns took, by number of threads."""
        return {n: max(NO_TIME_S, 2 * median(taken[1, n]) - median(taken[2, n])) for n in threads}

    def close(self) -> None:
        """Free both models."""
        for llama in self._models.values():
            llama.close()


def measured_beside(
    runs: Mapping[Key, Turn], machine: HardwareProfile, kernels: Kernels, step: Step, threads: Sequence[int]
) -> tuple[HardwareProfile, dict[Key, list[float]]]:
    """
    The machine with llama.cpp's kernels, and the seconds of the runs, all measured in the same rounds.

    No time of a run enters the profile: they only share the state of a machine that drifts.
    """
    groups = {"runs": runs, "kernels": kernels.turns(threads), "step": step.turns(threads)}
    taken = take_turns({(group, key): turn for group, turns in groups.items() for key, turn in turns.items()})
    of_group = {name: {key: taken[name, key] for key in turns} for name, turns in groups.items()}
    table = kernels.table(of_group["kernels"], threads, step.seconds(of_group["step"], threads))
    return with_kernels(machine, table), of_group["runs"]


def with_kernels(machine: HardwareProfile, table: KernelTable) -> HardwareProfile:
    """The machine with another engine's kernel times, and the RAM rate that goes with them."""
    ram = machine.ram.model_copy(
        update={"gemv_bandwidth": machine.ram.gemv_bandwidth.model_copy(update={"value": table.ram_bandwidth})}
    )
    return machine.model_copy(
        update={"cpu": machine.cpu.model_copy(update={"kernels": table, "threads": table.threads()[-1]}), "ram": ram}
    )
