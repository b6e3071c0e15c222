"""What a probe measures, and for how long."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gguf import GGMLQuantizationType

from moeplan.errors import InputError
from moeplan.quantity import format_bytes
from reference_runtime.conditions import ram_bytes, usable_cores
from reference_runtime.kernels.fast import MOST_ONE_BY_ONE, MOST_THREADS
from reference_runtime.probe.machine import last_level_cache_bytes
from simulator.model.catalog import load_model_spec
from simulator.model.size import lm_head_bytes
from simulator.model.spec import ModelSpec

KIB, MIB = 2**10, 2**20
Kind = GGMLQuantizationType
KINDS = (Kind.Q4_0, Kind.Q8_0)  # what the kernels read packed
STREAM_SHAPE = (1536, 1536)  # the product that runs beside reads and between bursts, from RAM
SHAPES = ("tiny-smallthinker", "smallthinker-4b-a0.6b", "smallthinker-21b-a3b")  # small, middle and large matrices
LONGEST_SECONDS = 3600.0
ROUGH_SECONDS = 60.0  # below, two rounds of everything would not fit
FEWEST_SECONDS = 20.0  # what processes, file and one round of a rough probe take on two idle cores
ARENA_BYTES = 256 * MIB  # several times the last-level cache of a desktop processor
N_ARENAS = 13  # that live at a time for each number of threads: weights, keys and values, models, spot checks
ARENA_OF_RAM = 4 * N_ARENAS  # so that all of them are a quarter of a small machine's RAM
FILE_BYTES = 512 * MIB  # reads lie at random places in it
CHUNKS = (MOST_ONE_BY_ONE, 16, 128, 512)


@dataclass(frozen=True)
class Plan:
    """
    arena_bytes: weights that are cycled through, so that each use comes from RAM; warm_bytes: what stays in a cache.
    chunks: tokens of a prompt's piece.  contexts: keys that a token sees.  request_bytes, depths: closed loops.
    burst_bytes: an expert of the tiny model and one of the 4B's shape are among them.
    """

    directory: Path
    seconds: float
    threads: tuple[int, ...]
    arena_bytes: int
    middle_bytes: int
    warm_bytes: int
    file_bytes: int
    shapes: tuple[ModelSpec, ...]
    chunks: tuple[int, ...] = CHUNKS
    contexts: tuple[int, ...] = (16, 512, 2048)
    request_bytes: tuple[int, ...] = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 2 * MIB, 4 * MIB)
    depths: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    burst_bytes: tuple[int, ...] = (4 * KIB, 20 * KIB, 64 * KIB, 512 * KIB, 1944 * KIB, 4 * MIB)
    burst_requests: tuple[int, ...] = (1, 2, 4, 8)
    burst_idle_s: tuple[float, ...] = (0.0003, 0.002, 0.008)
    cell_s: float = 0.05  # a closed loop runs so long at least, each round
    n_bursts: int = 5  # of each kind a round
    spot_arena_bytes: int | None = None  # see SpotChecks; other takes compare only with those of None
    read_file: Path | None = None  # that is read instead of a new one: see make_plan


def make_plan(directory: Path, seconds: float, threads: Sequence[int] = (), read_file: Path | None = None) -> Plan:
    """
    The plan for a machine; threads: (): one, all usable cores and powers of two between; read_file: a large file that
    is there, so that nothing is written: some disks read a file that was just written faster than an old one.

    A short probe measures small and middle shapes only, over a smaller arena and file.  Raises InputError.
    """
    if not FEWEST_SECONDS <= seconds <= LONGEST_SECONDS:
        must = f"must be {FEWEST_SECONDS:g} to {LONGEST_SECONDS:g}"
        advice = "one round of everything takes the least of it" if seconds < FEWEST_SECONDS else ""
        raise InputError("--seconds", must, f"{seconds:g}", advice)
    if read_file is not None:
        _check_read_file(read_file)
    cores = min(usable_cores(), MOST_THREADS)
    chosen = tuple(sorted(set(threads))) or thread_counts(cores)
    if not 1 <= chosen[0] <= chosen[-1] <= cores:
        raise InputError("--threads", f"must be 1 to {cores}, the cores that can be used", ",".join(map(str, chosen)))
    cache = last_level_cache_bytes()
    is_rough = seconds < ROUGH_SECONDS
    arena = arena_bytes_of(ram_bytes(), cores) // (4 if is_rough else 1)
    names = SHAPES[:2] if is_rough else SHAPES
    return Plan(
        directory=directory,
        seconds=seconds,
        threads=chosen,
        arena_bytes=arena,
        middle_bytes=min(max(cache * 3 // 4, 4 * MIB), arena // 8),
        warm_bytes=min(max(cache // 4, 2 * MIB), arena // 16, 8 * MIB),
        file_bytes=_file_bytes(is_rough, read_file),
        read_file=read_file,
        shapes=tuple(spec_that_fits(load_model_spec(name), arena) for name in names),
        chunks=CHUNKS[:-1] if is_rough else CHUNKS,
    )


def _file_bytes(is_rough: bool, read_file: Path | None) -> int:
    if read_file is not None:
        return read_file.stat().st_size
    return FILE_BYTES // 8 if is_rough else FILE_BYTES


def _check_read_file(path: Path) -> None:
    n_bytes = path.stat().st_size if path.is_file() else 0
    if n_bytes < FILE_BYTES // 8:
        must = f"must be a file of {format_bytes(FILE_BYTES // 8)} at least"
        raise InputError(f"--read {path}", must, format_bytes(n_bytes) if path.is_file() else "no file")


def arena_bytes_of(machine_bytes: int, n_cores: int) -> int:
    """Bytes of weights that are cycled through on a machine with so much RAM and so many usable cores."""
    share = machine_bytes // (ARENA_OF_RAM * len(thread_counts(n_cores)))
    return min(ARENA_BYTES, max(16 * MIB, share // MIB * MIB))


def thread_counts(n_cores: int) -> tuple[int, ...]:
    """The numbers of threads that are measured unless others are given: one, powers of two, all."""
    return tuple(sorted({1, *_powers_of_two(n_cores), n_cores}))


def spec_that_fits(spec: ModelSpec, arena_bytes: int) -> ModelSpec:
    """The shape with a vocabulary whose matrix fits into the arena."""
    row_bytes = lm_head_bytes(spec) / spec.vocab_size
    return spec.model_copy(update={"vocab_size": min(spec.vocab_size, int(arena_bytes / row_bytes))})


def _powers_of_two(most: int) -> list[int]:
    return [2**i for i in range(most.bit_length()) if 2**i <= most]
