"""
The keys of a Hugging Face config.json, each read once and strictly.

Families spell the same thing differently (`num_local_experts`, `num_experts`, `n_routed_experts`, ...): the tables
below list the spellings; none of them is guessed from a value.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from moeplan.errors import InputError
from moeplan.files import read_text
from simulator.model.imports.architectures import Architecture, architecture_of
from simulator.model.imports.tensors import check_layers

Kind = TypeVar("Kind")

N_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "moe_num_primary_experts")
TOP_K = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
    "moe_k",
    "moe_topk",
    "moe_num_active_primary_experts",
)
EXPERT_SIZE = ("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size")
N_SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")


class HfConfig:
    """The values of a config and the report of what it does not say."""

    def __init__(self, config: dict[str, Any], path: Path, report: list[str]) -> None:
        self.config, self.path, self.report = config, path, report
        self.arch: Architecture = architecture_of(self.model_type(), report)
        self.n_layers = check_layers(self.count(("num_hidden_layers",)), f"{path}: num_hidden_layers")

    @classmethod
    def read(cls, path: Path) -> Self:
        """A config.json; of a multimodal one the language model. Raises InputError."""
        report: list[str] = []
        try:
            config = json.loads(read_text(path))
        except RecursionError as error:
            raise InputError(str(path), "must be a config.json", "JSON nested too deeply") from error
        except json.JSONDecodeError as error:
            raise InputError(f"{path}:{error.lineno}", "must be valid JSON", error.msg) from error
        if not isinstance(config, dict):
            raise InputError(str(path), "must be a JSON object", f"a {type(config).__name__}")
        if isinstance(config.get("text_config"), dict):
            report.append("text_config: the language model of a multimodal one; the other parts are left out")
            config = {**config, **config["text_config"]}
        return cls(config, path, report)

    def model_type(self) -> str:
        """The family's name as transformers has it. Raises InputError where none is given."""
        if "moe_num_primary_experts" in self.config:  # the 21B of the family states no model_type
            return "smallthinker"
        model_type = self.config.get("model_type")
        if not isinstance(model_type, str):
            raise InputError(f"{self.path}: model_type", "must be given", "nothing", "add it as transformers names it")
        return model_type

    def count(self, names: Sequence[str], default: int | None = None) -> int:
        """The first whole number under one of the names. Raises InputError for none, or for another value."""
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InputError(f"{self.path}: {name}", "must be one whole number", repr(value))
            return value
        if default is None:
            raise InputError(f"{self.path}: {names[0]}", "must be given", "nothing", f"looked for {', '.join(names)}")
        return default

    def typed(self, name: str, kind: type[Kind]) -> Kind | None:
        """A value of one type, None where it is absent or null. Raises InputError for another type."""
        value = self.config.get(name)
        if value is not None and type(value) is not kind:
            raise InputError(f"{self.path}: {name}", f"must be of type {kind.__name__}", repr(value))
        return value

    def flag(self, name: str, default: bool, why: str) -> bool:
        """A truth value; an absent one is reported."""
        value = self.typed(name, bool)
        if value is None:
            self.report.append(f"{name}: not in config.json; {str(default).lower()} taken {why}")
            return default
        return value

    def title(self) -> str:
        """The model's name, or its folder's."""
        name = self.config.get("model_name") or self.config.get("_name_or_path") or self.path.resolve().parent.name
        return str(name).rstrip("/").rsplit("/", 1)[-1] or self.arch.name
