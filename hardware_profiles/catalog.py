"""Profiles by name: the shipped devices, or any YAML file."""

from pathlib import Path

from hardware_profiles.schema import HardwareProfile
from hardware_profiles.storage_fit import check_table
from moeplan.shipped import Shipped
from moeplan.strict_yaml import load_model

DEVICES = Path(__file__).parent / "devices"

_SHIPPED = Shipped(DEVICES, ".yaml", "--hardware", "a shipped device or a YAML file")
profile_names = _SHIPPED.names
profile_path = _SHIPPED.path


def load_profile(name_or_path: str) -> HardwareProfile:
    """A shipped profile or a profile file. Raises InputError."""
    path = profile_path(name_or_path)
    profile = load_model(path, HardwareProfile)
    check_table(profile.storage, str(path))
    return profile
