"""ImportedModel: what every importer returns."""

from dataclasses import dataclass

from simulator.model.spec import ModelSpec


@dataclass(frozen=True)
class ImportedModel:
    """A spec and what a person should know about how it came about, one line each."""

    spec: ModelSpec
    report: tuple[str, ...]
