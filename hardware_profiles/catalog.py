"""Profiles by name: the shipped devices, or any YAML file."""

import os
from pathlib import Path

from hardware_profiles.schema import HardwareProfile
from hardware_profiles.storage_fit import check_table
from moeplan.errors import InputError, nearest
from moeplan.strict_yaml import load_model

DEVICES = Path(__file__).parent / "devices"


def profile_names() -> list[str]:
    """Names of the shipped devices."""
    return sorted(path.stem for path in DEVICES.glob("*.yaml"))


def profile_path(name_or_path: str) -> Path:
    """The YAML file of a shipped name or a path. Raises InputError for neither."""
    if name_or_path in profile_names():
        return DEVICES / f"{name_or_path}.yaml"
    if os.path.exists(name_or_path):  # unlike Path.exists it also takes a name that is too long
        return Path(name_or_path)
    advice = nearest(name_or_path, profile_names())
    raise InputError("--hardware", "must be a shipped device or a YAML file", repr(name_or_path), advice)


def load_profile(name_or_path: str) -> HardwareProfile:
    """A shipped profile or a profile file. Raises InputError."""
    path = profile_path(name_or_path)
    profile = load_model(path, HardwareProfile)
    check_table(profile.storage, str(path))
    return profile
