"""`moeplan hardware probe`: measure this machine and write its profile."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from command_line.progress import step_bar
from moeplan.errors import InputError

# A profile is refused where they are off by 1.35 and by 2.0: hardware_profiles.storage_fit.check_table.
BUSY_UNCERTAINTY = 0.5  # of the kernel table; a machine left alone shows 0.1 to 0.2, a shared one up to 0.3
MOST_OFF = {"sequential_read": 1.3, "random_4k_read": 1.9}
MOST_UNCERTAIN = 10.0  # a profile takes no more: hardware_profiles.schema_base.Provenance


def probe(
    output: Annotated[Path, typer.Option(help="The profile to write (YAML).", metavar="FILE")],
    directory: Annotated[
        Path | None, typer.Option(help="A folder on the disk to measure; default: that of FILE.", metavar="DIR")
    ] = None,
    read: Annotated[
        Path | None,
        typer.Option(help="A large file to read instead of writing one, best the model that will run.", metavar="FILE"),
    ] = None,
    threads: Annotated[
        str | None,
        typer.Option(help="Numbers of threads, e.g. 1,2,4; default: one, powers of two, all.", metavar="N,N"),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="About how long to measure, 20 at least; below 60 a rough profile.")
    ] = 150.0,
) -> None:
    """
    Measure this machine: the runtime's kernels, RAM, the disk, and both at once.  Takes under three minutes.

    A file of random bytes is written to the disk for that and removed, unless --read names one that is there: some
    disks read what was just written faster than what lies there for long.
    """
    from hardware_profiles.catalog import load_profile
    from moeplan.files import atomic_path, output_target
    from reference_runtime.probe.plan import make_plan
    from reference_runtime.probe.probe import announcement
    from reference_runtime.probe.probe import probe as probe_machine
    from reference_runtime.probe.storage import check_room
    from reference_runtime.probe.writer import profile_yaml

    target = output_target(output, ".yaml")
    if read is not None and directory is not None:
        raise InputError("--directory", "must be left out with --read, which names a file of the disk", str(directory))
    place = read.parent if read is not None else directory or target.parent
    plan = make_plan(place, seconds, _thread_counts(threads), read)
    if read is None:
        check_room(plan.directory, plan.file_bytes)
    print(f"measuring for about {plan.seconds:.0f} s; {announcement(plan)}", file=sys.stderr)
    with step_bar("probe") as progress:
        profile = probe_machine(plan, _name(target), progress)
    text = profile_yaml(agreeing(profile), "This machine as `moeplan hardware probe` measured it.")
    with atomic_path(target) as temporary:
        temporary.write_text(text, "utf-8")
        load_profile(str(temporary))
    print(f"{target}: {profile['title']}; {profile['notes']}")
    unsure = profile["cpu"]["kernels"]["uncertainty"]
    if unsure > BUSY_UNCERTAINTY:
        told = f"kernel times are known within a factor of {1 + unsure:.2g} only"
        print(f"moeplan: the machine was busy: {told}; probe again when nothing else runs", file=sys.stderr)


def agreeing(profile: dict[str, Any]) -> dict[str, Any]:
    """
    The mapping of a profile whose sequential and 4 KiB rates are what the fit to its table says where the measured
    ones are far from that, as a disk's are that other programs use; their uncertainty then holds both.

    Raises InputError where they are so far apart that no uncertainty of a profile holds both.
    """
    from hardware_profiles.schema_storage import RANDOM_READ_BYTES, StorageTable
    from hardware_profiles.storage_fit import LARGE_READ_BYTES, fit_table
    from moeplan.quantity import format_rate, parse_quantity

    storage = profile["storage"]
    depth = storage["queue_depth"]
    model = fit_table(StorageTable.model_validate(storage["table"]).rows, depth)
    changed = {}
    for key, request_bytes, in_flight, most in (
        ("sequential_read", LARGE_READ_BYTES, depth, MOST_OFF["sequential_read"]),
        ("random_4k_read", RANDOM_READ_BYTES, 1, MOST_OFF["random_4k_read"]),
    ):
        figure, fitted = storage[key], model.effective_bandwidth(request_bytes, in_flight)
        ratio = fitted / parse_quantity(figure["value"], "byte/second", key)
        off = max(ratio, 1 / ratio) - 1
        if off > MOST_UNCERTAIN:
            must = (
                f"must be within {MOST_UNCERTAIN + 1:g} times of {format_rate(fitted)}, which its table of reads says"
            )
            advice = "the disk was busy: probe again while nothing else uses it"
            raise InputError(f"storage.{key}", must, figure["value"], advice)
        if not 1 / most <= ratio <= most:
            changed[key] = figure | {
                "value": format_rate(fitted),
                "source": f"the fit to the table; measured {figure['value']}, {figure['source']}",
                "uncertainty": round(max(figure["uncertainty"], off), 3),
            }
    return profile | {"storage": storage | changed}


def _thread_counts(text: str | None) -> list[int]:
    if text is None:
        return []
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError("--threads", "must be whole numbers with commas between", repr(text)) from None


def _name(target: Path) -> str:
    return target.stem
