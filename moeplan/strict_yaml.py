"""
YAML that a person edits by hand: read strictly, and every complaint names file, line and key.

Refused: unknown keys, duplicate keys, anchors and aliases (the "billion laughs"), tags, a document that is no
mapping.  Validation itself is pydantic's; this file turns its first complaint into one line.
"""

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from moeplan.errors import InputError, nearest
from moeplan.files import read_text

Model = TypeVar("Model", bound=BaseModel)
MAX_DEPTH = 32  # PyYAML is recursive, and quadratic in the depth
MAX_YAML_BYTES = 2**18  # the longest shipped file has 5 KiB; a parser in Python takes seconds for megabytes
KeyPath = tuple[str | int, ...]


class _Composer:
    """Turns YAML nodes into plain values and remembers the line of every key."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[KeyPath, int] = {}
        self.loader: Any = yaml.SafeLoader("")  # types-pyyaml leaves its methods untyped

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            return self.loader.construct_object(node)
        except (ValueError, OverflowError) as error:  # a date like 2024-13-45, a number of 5000 digits
            where = f"{self.source}:{node.start_mark.line + 1}"
            raise InputError(where, "must be a valid value", repr(node.value)[:40], "quote it if it is text") from error

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise InputError(f"{self.source}:{line}", "a key must be a word", "a list or mapping")
            key = str(key_node.value)
            if key in result:
                raise InputError(f"{self.source}:{line}", f"key {key!r} must stand once", "it twice", "remove one")
            self.lines[(*path, key)] = line
            result[key] = self.value(value_node, (*path, key))
        return result


def load_mapping(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """The mapping in a YAML file and the line of every key path. Raises InputError."""
    text = read_text(path, MAX_YAML_BYTES)
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise InputError(str(path), "must be a YAML mapping", "one nested too deeply")
            _refuse_cleverness(event, path)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            raise InputError(str(path), "must be a YAML mapping", "an empty file")
        composer = _Composer(str(path))
        value = composer.value(node, ())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise InputError(where, "must be valid YAML", getattr(error, "problem", None) or error) from error
    if not isinstance(value, dict):
        raise InputError(str(path), "must be a YAML mapping", f"a {type(value).__name__}", "write `key: value` lines")
    return value, composer.lines


def _refuse_cleverness(event: Any, path: Path) -> None:
    """Anchors and aliases can grow a small file without bound; tags can turn text into something else."""
    for what in ("anchor", "tag"):  # an alias has an anchor too
        if getattr(event, what, None) is not None:
            where = f"{path}:{event.start_mark.line + 1}"
            raise InputError(where, "must have no anchors, aliases and tags", "one", "write the value out")


def load_model(path: Path, model: type[Model]) -> Model:
    """A pydantic model from a YAML file. Raises InputError that names file, line, key and the nearest known key."""
    value, lines = load_mapping(path)
    return validate(value, model, str(path), lines)


def validate(value: dict[str, Any], model: type[Model], source: str, lines: dict[KeyPath, int]) -> Model:
    """Validate a mapping; the first complaint becomes one InputError line."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _as_input_error(error, model, source, lines) from error


def _as_input_error(
    error: ValidationError, model: type[BaseModel], source: str, lines: dict[KeyPath, int]
) -> InputError:
    complaints = error.errors(include_url=False)
    # a key that is missing, or a list that is too short, is often the echo of another complaint: those come last
    first = min(complaints, key=lambda c: (c["type"] in {"missing", "too_short"}, _line(c["loc"], lines)))
    more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
    line = _line(first["loc"], lines)
    key = ".".join(str(part) for part in first["loc"])
    where = f"{source}:{line}" if line else source
    if first["type"] == "extra_forbidden":
        known = _known_keys(model, first["loc"][:-1])
        return InputError(where, "every key must be known", f"{key!r}{more}", nearest(str(first["loc"][-1]), known))
    if first["type"] == "missing":
        return InputError(where, f"key {key!r} must be given", f"nothing{more}")
    inner = first.get("ctx", {}).get("error")
    place = f"{where}: {key}" if key else source  # a rule over several parts stands at no line
    if isinstance(inner, InputError):
        return InputError(place, inner.must, inner.got + more, inner.advice)
    return InputError(
        place,
        first["msg"].replace("Value error, ", "").replace("Input should", "must"),
        f"{first['input']!r}{more}",
    )


def _line(location: KeyPath, lines: dict[KeyPath, int]) -> int:
    """The line of the longest known part of a location; pydantic adds parts that no file has."""
    for length in range(len(location), -1, -1):
        if location[:length] in lines:
            return lines[location[:length]]
    return 0


def _known_keys(model: type[BaseModel], path: KeyPath) -> list[str]:
    """The field names of the model at a path, followed through nested models."""
    current: Any = model
    for part in path:
        candidate = current.model_fields[part].annotation if part in current.model_fields else None
        nested = [t for t in _flat_types(candidate) if isinstance(t, type) and issubclass(t, BaseModel)]
        if not nested:
            return list(current.model_fields)
        current = nested[0]
    return list(current.model_fields)


def _flat_types(annotation: Any) -> list[Any]:
    """A type and the types inside its union, list or dict."""
    inner = [t for argument in getattr(annotation, "__args__", ()) for t in _flat_types(argument)]
    return [annotation, *inner]
