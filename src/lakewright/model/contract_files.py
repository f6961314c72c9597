"""Contracts as YAML files: a mistake is told with its line, and what is written reads as the same again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from lakewright.errors import ConfigurationError, DefinitionError, did_you_mean
from lakewright.model.contracts import Contract, ContractColumn, ContractError

__all__ = ["dump_contract", "load_contract", "parse_contract"]

Place = tuple[str | int, ...]
_LINE_ENDS = {"\x85", "\u2028", "\u2029"}


class _ColumnFile(BaseModel):
    """A column, as the file says it."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: str
    type: str
    nullable: bool = True
    description: str = ""
    tags: list[str] = []


class _ContractFile(BaseModel):
    """A contract, as the file says it; the order is that in which it is written."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: str
    version: int = 1
    description: str = ""
    owner: str | None = None
    layer: str | None = None
    columns: list[_ColumnFile]
    keys: list[str] = []
    event_time: str | None = None
    retention: str | None = None
    tags: list[str] = []


def load_contract(path: str | Path) -> Contract:
    """The contract in a YAML file; a mistake is told with its line."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigurationError(f"There is no contract at {path}.") from None
    except UnicodeDecodeError:
        raise DefinitionError("the file is not UTF-8", file=str(path), hint="Save it as UTF-8.") from None
    return parse_contract(text, file=str(path))


def parse_contract(text: str, *, file: str = "contract") -> Contract:
    """The contract in a YAML text."""
    lines: dict[Place, int] = {}
    data = _read_yaml(text, file, lines)
    try:
        read = _ContractFile.model_validate(data)
        return _contract(read)
    except ValidationError as error:
        raise _in_words(error, file, lines) from None
    except ContractError as error:
        raise DefinitionError(error.message, file=file, line=_line(lines, error.where), hint=error.hint) from None


def dump_contract(contract: Contract) -> str:
    """The contract as YAML, without what is not said; ``parse_contract`` gives it back."""
    columns = [
        _ColumnFile(name=c.name, type=c.type, nullable=c.nullable, description=c.description, tags=[*c.tags])
        for c in contract.columns
    ]
    written = _ContractFile(
        name=contract.name,
        version=contract.version,
        description=contract.description,
        owner=contract.owner,
        layer=contract.layer,
        columns=columns,
        keys=[*contract.keys],
        event_time=contract.event_time,
        retention=contract.retention,
        tags=[*contract.tags],
    )
    said = written.model_dump(exclude_defaults=True)
    text = str(yaml.safe_dump(said, sort_keys=False, allow_unicode=True, width=100))
    if _LINE_ENDS & set(text):  # PyYAML writes these as they are and reads them as a line end: escape them
        text = str(yaml.safe_dump(said, sort_keys=False, allow_unicode=False, width=100))
    return text


def _contract(read: _ContractFile) -> Contract:
    columns: list[ContractColumn] = []
    for place, column in enumerate(read.columns):
        try:
            columns.append(ContractColumn(**{**column.model_dump(), "tags": tuple(column.tags)}))
        except ContractError as error:
            raise ContractError(error.message, where=("columns", place, *error.where), hint=error.hint) from error
    values = {
        **read.model_dump(),
        "columns": tuple(columns),
        "keys": tuple(read.keys),
        "tags": tuple(read.tags),
    }
    return Contract(**values)


def _read_yaml(text: str, file: str, lines: dict[Place, int]) -> object:
    """The values of a YAML text; notes the line of each, and refuses a key that is there twice."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            raise DefinitionError("the file is empty", file=file, hint="A contract has a name and columns.")
        _note_lines(node, (), lines, file)
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        line = None if mark is None else mark.line + 1
        raise DefinitionError(
            f"this is no valid YAML: {problem}",
            file=file,
            line=line,
            hint="Check indents, quotes and colons.",
        ) from None


def _note_lines(node: yaml.Node, place: Place, lines: dict[Place, int], file: str) -> None:
    lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            _note_lines(item, (*place, number), lines, file)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = str(key.value)
            line = key.start_mark.line + 1
            if (*place, name) in lines:
                first = lines[(*place, name)]
                raise DefinitionError(f"'{name}' is there twice, first in line {first}", file=file, line=line)
            lines[(*place, name)] = line
            _note_lines(value, (*place, name), lines, file)


def _line(lines: dict[Place, int], where: Place) -> int | None:
    """The line of a value, or of the nearest thing around it."""
    for length in range(len(where), -1, -1):
        if where[:length] in lines:
            return lines[where[:length]]
    return None


def _in_words(error: ValidationError, file: str, lines: dict[Place, int]) -> DefinitionError:
    first = min(error.errors(), key=lambda one: _line(lines, one["loc"]) or 0)
    where: Place = first["loc"]
    name = ".".join(str(part + 1) if isinstance(part, int) else part for part in where) or "the file"
    hint = None
    if first["type"] == "extra_forbidden":
        known = list((_ColumnFile if len(where) > 1 else _ContractFile).model_fields)
        problem = f"'{where[-1]}' is not known here. Known: {', '.join(known)}"
        hint = did_you_mean(str(where[-1]), known)
    elif first["type"] == "missing":
        problem = f"'{where[-1]}' is missing" + (f" in {name.rpartition('.')[0]}" if len(where) > 1 else "")
    else:
        wanted = _WANTED.get(first["type"], first["msg"])
        problem = f"'{name}' must be {wanted}, but is {_shown(first['input'])}"
    return DefinitionError(problem, file=file, line=_line(lines, where), hint=hint)


_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "list_type": "a list",
    "model_type": "a mapping of names to values",
}


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return "empty" if value is None else f"{value!r} (put it in quotes if it is meant as text)"
