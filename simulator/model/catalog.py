"""Models by name: the shipped specs, or the path of a spec."""

from pathlib import Path

from moeplan.errors import InputError, nearest
from moeplan.strict_yaml import load_model
from simulator.model.spec import ModelSpec

MODELS = Path(__file__).parent / "specs"


def model_names() -> list[str]:
    """Names of the shipped model specs."""
    return sorted(path.stem for path in MODELS.glob("*.yaml"))


def model_path(name_or_path: str) -> Path:
    """The YAML file of a shipped name or a path. Raises InputError for neither, and for a file to be imported first."""
    shipped = MODELS / f"{name_or_path}.yaml"
    if "/" not in name_or_path and shipped.is_file():
        return shipped
    path = Path(name_or_path)
    if path.suffix in {".gguf", ".json", ".safetensors"} or path.is_dir():
        advice = f"run `moeplan model import {name_or_path} --output FILE.yaml` first and read its report"
        raise InputError("--model", "must be a shipped model or a model spec (YAML)", repr(name_or_path), advice)
    if path.exists():
        return path
    must = "must be a shipped model or the path of a model spec"
    raise InputError("--model", must, repr(name_or_path), nearest(name_or_path, model_names()))


def load_model_spec(name_or_path: str) -> ModelSpec:
    """A shipped spec or a spec file. Raises InputError that names file, line and key."""
    return load_model(model_path(name_or_path), ModelSpec)
