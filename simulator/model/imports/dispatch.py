"""
Model specs from files that others made: a GGUF file (or its first megabytes), a safetensors folder, a config.json.

There is no silent default: what the file does not say is in the report, with what was taken instead and from where.
"""

from pathlib import Path

import yaml

from moeplan.errors import InputError
from moeplan.files import write_text
from simulator.model.imports.gguf import import_gguf
from simulator.model.imports.hf import import_config
from simulator.model.imports.imported import ImportedModel


def import_model(path: Path) -> ImportedModel:
    """Read a *.gguf file (any shard of a split one), a config.json or a folder with one. Raises InputError."""
    path = Path(path)
    if not path.exists():
        raise InputError(str(path), "must be a GGUF file, a config.json or a folder with one", "nothing there")
    if path.suffix == ".gguf":
        return import_gguf(path)
    if path.is_dir():
        return _import_folder(path)
    if path.suffix == ".safetensors":
        return import_config(path.parent / "config.json")
    if path.suffix == ".json":
        return import_config(path)
    raise InputError(str(path), "must be a GGUF file, a config.json or a folder with one", f"a {path.suffix!r} file")


def _import_folder(folder: Path) -> ImportedModel:
    if (folder / "config.json").is_file():
        return import_config(folder / "config.json")
    n_gguf = len(list(folder.glob("*.gguf")))
    advice = "name one of its GGUF files" if n_gguf else "the headers alone do not say how many heads a model has"
    raise InputError(str(folder), "must hold a config.json", f"none ({n_gguf} GGUF files)", advice)


def write_spec(imported: ImportedModel, path: Path) -> None:
    """Write the spec as YAML, with the report as comments; `load_model_spec` reads it back. Raises InputError."""
    head = "".join(f"# {line}\n" for line in imported.report)
    body = imported.spec.model_dump(mode="json")
    text = yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=116)
    write_text(path, f"{head}{text}")
