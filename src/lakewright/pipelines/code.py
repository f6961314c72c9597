"""A hash of what a step does: the syntax tree of its function and of the project's functions that it calls, and
its options. Comments, layout and docstrings do not count, so that only a change of meaning makes a slice outdated.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any

from lakewright.pipelines.definitions import Dataset

__all__ = ["code_hash"]


def code_hash(dataset: Dataset, *, original: Dataset | None = None) -> str:
    """Sixteen hex digits that change when the dataset's rows could; of a replica, also with the original's contract."""
    parts = [f"sql:{' '.join((dataset.sql or '').split())}"]
    if dataset.function is not None:
        parts += sorted(_functions(dataset.function))
    for name in ("writer", "event_time", "own_grid", "rows", "schema", "source"):
        parts.append(f"{name}={_text(getattr(dataset, name))}")
    if dataset.layout is not None and (dataset.layout.derive or dataset.layout.default):
        # By which columns rows lie in folders does not change them; what is derived for that does.
        parts.append(f"layout={_text((dataset.layout.derive, dataset.layout.default))}")
    if dataset.replica is not None:
        parts.append(f"replica={_text(dataset.replica)}:{_text(None if original is None else original.contract)}")
    if dataset.sessions is not None:
        parts.append(f"sessions={_text(dataset.sessions)}")
    if dataset.fan_in is not None:  # by which rule a slice is made does not change its rows
        parts.append(f"fan_in={dataset.fan_in.flag}:{dataset.fan_in.publish}")
    if dataset.into is not None:
        parts.append(f"into={_text(dataset.into)}")
    if dataset.wrap is not None:  # a new release alone changes no row
        parts.append(f"wrap={_text(dataclasses.replace(dataset.wrap, version=None))}")
    for given in dataset.inputs:
        joined = "" if given.join is None else f":{given.join!r}"
        parts.append(f"{given.parameter}:{given.dataset}:{given.reference!r}:{_text(given.guards)}{joined}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _functions(function: Callable[..., Any]) -> set[str]:
    """The trees of a function and of the functions of the same project that it names, however deep."""
    root = Path(function.__code__.co_filename).parent
    found: dict[int, str] = {}
    todo: list[Any] = [inspect.unwrap(function)]
    while todo:
        at = todo.pop()
        if not isinstance(at, FunctionType) or id(at) in found:
            continue
        if root not in Path(at.__code__.co_filename).parents:
            continue
        found[id(at)] = _tree(at)
        for name in _names(at.__code__):
            todo.append(inspect.unwrap(value) if callable(value := at.__globals__.get(name)) else None)
    return set(found.values())


def _names(code: Any) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            names |= _names(constant)
    return names


@lru_cache(maxsize=4096)
def _tree(function: FunctionType) -> str:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return function.__code__.co_code.hex()
    node = tree.body[0]
    if isinstance(node, ast.FunctionDef):
        node.decorator_list = []
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(node)


def _at_default(value: Any, field: dataclasses.Field[Any]) -> bool:
    if field.default is not dataclasses.MISSING:
        return bool(getattr(value, field.name) == field.default)
    made = field.default_factory
    return made is not dataclasses.MISSING and bool(getattr(value, field.name) == made())


def _text(value: Any) -> str:
    if isinstance(value, FunctionType):
        return _tree(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # A field at its default is left out: a new option of ours must not make everybody's slices outdated.
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if not _at_default(value, f)}
        return f"{type(value).__name__}({_text(fields)})"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_text(item) for item in value) + "]"
    return repr(value)
