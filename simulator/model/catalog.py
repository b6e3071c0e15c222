"""Models by name: the shipped specs, or the path of a spec."""

import os
from dataclasses import replace
from pathlib import Path

from moeplan.errors import InputError
from moeplan.shipped import Shipped
from moeplan.strict_yaml import load_model
from simulator.model.spec import ModelSpec

MODELS = Path(__file__).parent / "specs"

_SHIPPED = Shipped(MODELS, ".yaml", "--model", "a shipped model or the path of a model spec")
model_names = _SHIPPED.names


def model_path(name_or_path: str, option: str = "--model") -> Path:
    """
    The YAML file of a shipped name or a path.

    Raises InputError, which names the option, for neither and for a file to be imported first.
    """
    given = Path(name_or_path)
    if given.suffix in {".gguf", ".json", ".safetensors"} or os.path.isdir(name_or_path):
        advice = f"run `moeplan model import {name_or_path} --output FILE.yaml` first and read its report"
        raise InputError(option, "must be a shipped model or a model spec (YAML)", repr(name_or_path), advice)
    return replace(_SHIPPED, option=option).path(name_or_path)


def load_model_spec(name_or_path: str, option: str = "--model") -> ModelSpec:
    """A shipped spec or a spec file. Raises InputError that names the option, or file, line and key."""
    return load_model(model_path(name_or_path, option), ModelSpec)
