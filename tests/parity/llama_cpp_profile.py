"""llama.cpp on this machine as a HardwareProfile: a profile whose kernel times are llama.cpp's own."""

import tempfile
from pathlib import Path

from hardware_profiles.kernel_table import KernelTable
from hardware_profiles.schema import HardwareProfile
from parity.ggml_kernels import measured_table
from parity.llama_cpp_in_ram import InRam, distinct_tokens
from reference_runtime.synthetic_model import KINDS, write_synthetic
from simulator.model.spec import ModelSpec

STEP_VOCABULARY = 1024
STEP_CONTEXT = 16


def step_seconds(tiny: ModelSpec, threads: list[int]) -> dict[int, float]:
    """
    What a token costs beside its layers, by number of threads: the call, the inputs, waking the threads, the head.

    From random models of one and two layers in a small shape: twice the first less the second.
    """
    seconds: dict[tuple[int, int], float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for n_layers in (1, 2):
            path = Path(folder) / f"{n_layers}.gguf"
            attention = tiny.attention.model_copy(update={"window": None, "layer_kinds": ("full_rope",)})
            spec = tiny.model_copy(update={"n_layers": n_layers, "vocab_size": STEP_VOCABULARY, "attention": attention})
            write_synthetic(spec, path, KINDS["Q8_0"])
            llama = InRam(path, 256, repack=False)
            speeds = llama.speeds(distinct_tokens(STEP_VOCABULARY, 64), (STEP_CONTEXT,), threads)
            llama.close()
            seconds |= {(n_layers, n): 1 / sorted(speeds[STEP_CONTEXT, n])[-1] for n in threads}
    return {n: max(1e-9, 2 * seconds[1, n] - seconds[2, n]) for n in threads}


def llama_cpp_profile(
    machine: HardwareProfile, model: ModelSpec, threads: list[int], repack: bool, step_s: dict[int, float]
) -> HardwareProfile:
    """The machine with llama.cpp's kernels, measured now in the model's shapes."""
    return with_kernels(machine, measured_table(model, threads, repack, step_s.__getitem__))


def with_kernels(machine: HardwareProfile, table: KernelTable) -> HardwareProfile:
    """The machine with another engine's kernel times, and the RAM rate that goes with them."""
    ram = machine.ram.model_copy(
        update={"gemv_bandwidth": machine.ram.gemv_bandwidth.model_copy(update={"value": table.ram_bandwidth})}
    )
    return machine.model_copy(
        update={"cpu": machine.cpu.model_copy(update={"kernels": table, "threads": table.threads()[-1]}), "ram": ram}
    )
