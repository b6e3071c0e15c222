"""
YAML that a person edits by hand: read strictly, and every complaint names file, line and key.

Refused: unknown keys, duplicate keys, anchors and aliases (the "billion laughs"), tags, a document that is no
mapping.  Validation itself is pydantic's; this file turns its complaints into one line.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from moeplan.errors import InputError, close_to, nearest
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
    """Validate a mapping; the first complaint becomes one InputError line, which names the keys of the others."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _as_input_error(error, model, value, source, lines) from error


MUST = {  # pydantic's kind of complaint, in the words of a YAML file; a brace takes what the complaint carries
    "model_type": "must be a mapping, `key: value` lines",
    "model_attributes_type": "must be a mapping, `key: value` lines",
    "dict_type": "must be a mapping, `key: value` lines",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
    "string_type": "must be text",
    "string_too_short": "must be text of at least {min_length} characters",
    "string_too_long": "must be text of at most {max_length} characters",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
}
N_OTHERS = 3  # keys that are named beside the first one
N_SHOWN = 40  # characters of a wrong value


@dataclass(frozen=True)
class _Complaint:
    """A complaint of pydantic's about a value of the file; path: its keys as they stand there."""

    path: KeyPath
    kind: str
    raw: Any
    line: int

    @property
    def key(self) -> str:
        return ".".join(map(str, self.path))

    @property
    def place(self) -> str:
        return "missing" if self.kind == "missing" else f"line {self.line}"

    @property
    def is_echo(self) -> bool:
        """A key that is missing, or a list that is too short, is often the echo of another complaint."""
        return self.kind in {"missing", "too_short"}


def _as_input_error(
    error: ValidationError, model: type[BaseModel], value: dict[str, Any], source: str, lines: dict[KeyPath, int]
) -> InputError:
    found = [_complaint(raw, value, lines) for raw in error.errors(include_url=False)]
    found = _without_slips(found, model, value)
    first = min(found, key=lambda complaint: (complaint.is_echo, complaint.line))
    told = _told(first, model, value, f"{source}:{first.line}" if first.line else source, source)
    others = [complaint for complaint in found if complaint is not first]
    if not others:
        return told
    names = [f"{other.key or 'the whole'} ({other.place})" for other in others[:N_OTHERS]]
    more = f" and {len(others) - N_OTHERS} more" if len(others) > N_OTHERS else ""
    advice = f"{told.advice}{'' if told.advice.endswith('?') else ';'} " if told.advice else ""
    return InputError(told.where, told.must, told.got, f"{advice}also wrong: {', '.join(names)}{more}")


def _complaint(raw: Any, value: dict[str, Any], lines: dict[KeyPath, int]) -> _Complaint:
    """Of pydantic's location the keys of the file are kept, one that is missing too; it adds the members of unions."""
    path: list[str | int] = []
    current: Any = value
    for number, part in enumerate(raw["loc"], 1):
        is_item = isinstance(current, list | tuple) and isinstance(part, int)
        if is_item or (isinstance(current, dict) and part in current):
            path.append(part)
            current = current[part]
        elif isinstance(current, dict) and number == len(raw["loc"]):
            path.append(part)
    return _Complaint(tuple(path), raw["type"], raw, _line(tuple(path), lines))


def _without_slips(found: list[_Complaint], model: type[BaseModel], value: dict[str, Any]) -> list[_Complaint]:
    """Without the missing keys that stand there misspelt: a slip of the pen is one mistake."""
    meant = {
        (*complaint.path[:-1], close_to(str(complaint.path[-1]), _known_keys(model, complaint.path, value)))
        for complaint in found
        if complaint.kind == "extra_forbidden"
    }
    return [complaint for complaint in found if complaint.kind != "missing" or complaint.path not in meant]


def _told(complaint: _Complaint, model: type[BaseModel], value: dict[str, Any], where: str, source: str) -> InputError:
    """The line about one complaint."""
    if complaint.kind == "extra_forbidden":
        advice = nearest(str(complaint.path[-1]), _known_keys(model, complaint.path, value))
        return InputError(where, "every key must be known", repr(complaint.key), advice)
    if complaint.kind == "missing":
        return InputError(where, f"key {complaint.key!r} must be given", "nothing")
    context = complaint.raw.get("ctx", {})
    place = f"{where}: {complaint.key}" if complaint.key else source  # a rule over several parts stands at no line
    inner = context.get("error")
    if isinstance(inner, InputError):
        return InputError(place, inner.must, inner.got, inner.advice)
    must = MUST.get(complaint.kind, "").format_map({name: _whole(bound) for name, bound in context.items()})
    return InputError(place, must or complaint.raw["msg"].replace("Value error, ", ""), _shown(complaint.raw["input"]))


def _whole(bound: Any) -> Any:
    """A bound as a person would write it: 0 for 0.0."""
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound


def _shown(value: Any) -> str:
    """A wrong value, shortened; of a mapping or a list only what it is."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= N_SHOWN else f"{text[:N_SHOWN]}..."


def _line(path: KeyPath, lines: dict[KeyPath, int]) -> int:
    """The line of the longest known part of a path."""
    return next((lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in lines), 0)


def _known_keys(model: type[BaseModel], path: KeyPath, value: Any) -> list[str]:
    """
    The field names of the model that has, or lacks, the last key of a path.

    Where several models may stand, it is the one with most of the keys that are there.
    """
    candidates: list[type[BaseModel]] = [model]
    for part in path[:-1]:
        value = value[part]
        if isinstance(part, str):  # an item of a list has the model of the list's key
            fields = [known.model_fields[part] for known in candidates if part in known.model_fields]
            candidates = [kind for field in fields for kind in _models(field.annotation)] or candidates
    candidates = [known for known in candidates if path[-1] not in known.model_fields] or candidates
    given = set(value) if isinstance(value, dict) else set()
    return list(max(candidates, key=lambda known: len(given & known.model_fields.keys())).model_fields)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models inside a type's unions, lists and annotations, itself included."""
    inner = [model for argument in getattr(annotation, "__args__", ()) for model in _models(argument)]
    return [annotation, *inner] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else inner
