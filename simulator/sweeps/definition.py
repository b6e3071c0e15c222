"""
SweepDefinition: what a sweep is, on the command line, in a YAML file and in the manifest of its folder.

    schema_version: 1
    model: smallthinker-21b-a3b          # one value, or a list; every axis of axes.py by its name
    hardware: [rk3588, raspberry-pi-5-nvme]
    trace: recorded.parquet
    ram_cap: ["2GiB..12GiB:20", own]
    storage_read: "0.5GB/s..8GB/s:20"
    start: warm                          # and adapt_trace, lm_head_predictor, seed, n_samples
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from moeplan.errors import InputError, nearest
from moeplan.strict_yaml import load_mapping
from simulator.expert_layout import LAYOUTS
from simulator.interval import N_SAMPLES
from simulator.model.tensor_types import BLOCKS
from simulator.policies import OFFLINE_POLICIES, POLICIES
from simulator.prefetch import PREFETCH_POLICIES
from simulator.scenario import Start
from simulator.sweeps.axes import AXES, AXIS_NAMES, DEFAULTS, Value, n_combinations, parse_items

SCHEMA_VERSION = 1
MAX_SCENARIOS = 1_000_000  # a gigabyte of rows
MAX_SAMPLES = 10_000


@dataclass(frozen=True)
class SweepDefinition:
    """
    axes: the values of every axis in SI units, None for the device's, model's or trace's own; the rest holds for all.

    Raises InputError for values that no sweep can have; what one scenario cannot have becomes that scenario's row.
    """

    axes: dict[str, tuple[Value, ...]]
    start: Start = "warm"
    adapt_trace: bool = False
    lm_head_predictor: bool = False
    seed: int = 0
    n_samples: int = N_SAMPLES
    schema_version: int = field(default=SCHEMA_VERSION, init=False)

    def __post_init__(self) -> None:
        for axis in AXES:
            if axis.name not in self.axes:
                if not axis.has_own and axis.name not in DEFAULTS:
                    raise InputError(axis.option, "must be given", "nothing", "or stand in the file of --file")
                self.axes[axis.name] = (DEFAULTS.get(axis.name),)
        if self.start not in ("warm", "cold"):
            raise InputError("--start", "must be warm or cold", repr(self.start))
        for name in ("adapt_trace", "lm_head_predictor"):
            if type(getattr(self, name)) is not bool:
                raise InputError(name, "must be true or false", repr(getattr(self, name)))
        for name, most in (("seed", 2**63), ("n_samples", MAX_SAMPLES)):
            if type(getattr(self, name)) is not int or not 0 <= getattr(self, name) <= most:
                raise InputError(name, f"must be a whole number from 0 to {most}", repr(getattr(self, name)))
        _check_names(self.axes)
        if self.n_scenarios > MAX_SCENARIOS:
            raise InputError("sweep", f"must have at most {MAX_SCENARIOS} scenarios", self.n_scenarios)

    @property
    def n_scenarios(self) -> int:
        """Rows of the sweep."""
        return n_combinations(self.axes)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; from_json makes the same definition of them."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "SweepDefinition":
        """The definition of as_json's values. Raises InputError, KeyError or TypeError for others."""
        kept = {name: value[name] for name in SETTINGS}
        return SweepDefinition({name: tuple(value["axes"][name]) for name in AXIS_NAMES}, **kept)


def _check_names(axes: dict[str, tuple[Value, ...]]) -> None:
    """A word that no scenario can have is a slip of the pen."""
    known: dict[str, Collection[str]] = {
        "cache": [*POLICIES, *OFFLINE_POLICIES],
        "prefetch": PREFETCH_POLICIES,
        "layout": LAYOUTS,
        "quantisation": BLOCKS,
    }
    for axis in AXES:
        for value in axes[axis.name] if axis.name in known else ():
            if value is not None and value not in known[axis.name]:
                must = f"must be a known {axis.name.replace('_', ' ')}"
                raise InputError(axis.option, must, repr(value), nearest(str(value), known[axis.name]))
    if "mmap" in axes["layout"]:
        raise InputError("--layout", "must be bundle or split in a sweep", "'mmap'", "simulate knows mmap")


SETTINGS = tuple(item.name for item in fields(SweepDefinition) if item.init and item.name != "axes")


def define(file: Path | None, options: Mapping[str, tuple[Value, ...]], settings: Mapping[str, Any]) -> SweepDefinition:
    """A definition from a YAML file, if any, and options, which go before the file. Raises InputError."""
    axes, others = ({}, {}) if file is None else read_definition(file)
    return SweepDefinition({**axes, **options}, **{**others, **settings})


def read_definition(path: Path) -> tuple[dict[str, tuple[Value, ...]], dict[str, Any]]:
    """The axes and the settings in a YAML file. Raises InputError that names file, line and key."""
    value, lines = load_mapping(path)
    if value.pop("schema_version", None) != SCHEMA_VERSION:
        raise InputError(str(path), "must begin with schema_version: 1", "another or none")
    axes: dict[str, tuple[Value, ...]] = {}
    by_name = {axis.name: axis for axis in AXES}
    for key, given in value.items():
        where = f"{path}:{lines[(key,)]}"
        if key not in by_name and key not in SETTINGS:
            raise InputError(where, "every key must be known", repr(key), nearest(key, [*by_name, *SETTINGS]))
        if key in by_name:
            axes[key] = parse_items(by_name[key], given if isinstance(given, list) else [given], f"{where}: {key}")
    return axes, {key: given for key, given in value.items() if key in SETTINGS}


def fingerprint(definition: SweepDefinition, content: Mapping[str, str]) -> str:
    """sha256 over the definition and the contents of its files (content: name of a file to its sha256)."""
    text = json.dumps([definition.as_json(), dict(content)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The first thing in which two definitions' JSON forms differ, in words; empty where they are equal."""
    flat_old, flat_new = ({**one, **one["axes"]} for one in (old, new))
    for name in (*AXIS_NAMES, *SETTINGS):
        if flat_old[name] != flat_new[name]:
            return f"{name} {_short(flat_new[name])} where the folder has {_short(flat_old[name])}"
    return ""


def _short(value: Any) -> str:
    text = ",".join("own" if item is None else str(item) for item in value) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
