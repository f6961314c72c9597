"""A hash of what a step does: the syntax tree of its function and of the project's functions that it calls, and
its options, rules and filters that are functions among them. Comments, layout and docstrings do not count, so that only
a change of meaning makes a slice outdated; nor does anything that another process would see otherwise.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import inspect
import linecache
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from datetime import date, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from lakewright.patterns.error_management.tolerant_function import FunctionRule, Tolerant
from lakewright.pipelines.definitions import Dataset

__all__ = ["code_hash"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_PLAIN = (str, bytes, int, float, complex, type(None), date, timedelta, Decimal, re.Pattern)
_DEEPEST = 5
"""So deep is looked into what an object holds, which may hold itself."""


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


def _functions(function: Callable[..., Any], owner: type | None = None) -> set[str]:
    """The trees of a function and of the functions of the same project that it names, however deep.

    Of a method (``owner`` is its class) also those of the methods that it names.
    """
    root = Path(function.__code__.co_filename).parent
    found: dict[int, str] = {}
    todo: list[tuple[Any, type | None]] = [(inspect.unwrap(function), owner)]
    while todo:
        at, of = todo.pop()
        if not isinstance(at, FunctionType) or id(at) in found:
            continue
        if root not in Path(at.__code__.co_filename).parents:
            continue
        found[id(at)] = _tree(at)
        for name in _names(at.__code__):
            todo += _within(at.__globals__.get(name))
            todo += [(one, of) for one, _ in _within(getattr(of, name, None))]
    return set(found.values())


def _within(value: Any) -> Iterator[tuple[FunctionType, type | None]]:
    """The functions that are called where a value is, each with the class whose method it is."""
    if isinstance(value, partial):
        yield from _within(value.func)
    elif isinstance(value, FunctionRule | Tolerant):
        yield from _within(value.function)
    elif isinstance(value, MethodType) and isinstance(value.__func__, FunctionType):
        yield value.__func__, value.__self__ if isinstance(value.__self__, type) else type(value.__self__)
    elif callable(value) and isinstance(found := inspect.unwrap(value), FunctionType):
        yield found, None


def _names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


@lru_cache(maxsize=4096)
def _tree(function: FunctionType) -> str:
    is_lambda = function.__name__ == "<lambda>"
    try:
        source = textwrap.dedent(inspect.getsource(function))
        tree = ast.parse(source)
    except (OSError, SyntaxError, TypeError):
        return _lambda_tree(function) if is_lambda else _compiled(function.__code__)
    node = tree.body[0]
    if isinstance(node, ast.FunctionDef):
        node.decorator_list = []
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    if is_lambda and not _is_whole(function, node, source):
        return _lambda_tree(function)
    return ast.dump(node)


def _is_whole(function: FunctionType, node: ast.stmt, source: str) -> bool:
    """Whether the text that Python gives for a lambda has it to its end: within brackets it stops where a line does."""
    first = function.__code__.co_firstlineno
    last = max((line for _, _, line in function.__code__.co_lines() if line is not None), default=first)
    return last - first < len(source.splitlines()) and any(isinstance(one, ast.Lambda) for one in ast.walk(node))


def _lambda_tree(function: FunctionType) -> str:
    """The trees of the lambdas that begin on the line of this one: within brackets its text alone is no Python."""
    code = function.__code__
    try:
        module = ast.parse("".join(linecache.getlines(code.co_filename, function.__globals__)))
    except SyntaxError:
        return _compiled(code)
    lambdas = [one for one in ast.walk(module) if isinstance(one, ast.Lambda) and one.lineno == code.co_firstlineno]
    return "".join(map(ast.dump, lambdas)) or _compiled(code)


def _compiled(code: CodeType) -> str:
    """What a function does where nobody has its text: what it is compiled to, its constants and the names in it."""
    constants = [_compiled(one) if isinstance(one, CodeType) else _held(one) for one in code.co_consts]
    return f"{code.co_code.hex()}({','.join(constants)})({','.join((*code.co_names, *code.co_freevars))})"


def _at_default(value: Any, field: dataclasses.Field[Any]) -> bool:
    if field.default is not dataclasses.MISSING:
        return bool(getattr(value, field.name) == field.default)
    made = field.default_factory
    return made is not dataclasses.MISSING and bool(getattr(value, field.name) == made())


def _text(value: Any) -> str:
    if isinstance(value, FunctionType):
        return _of_function(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # A field at its default is left out: a new option of ours must not make everybody's slices outdated.
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if not _at_default(value, f)}
        return f"{type(value).__name__}({_text(fields)})"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_text(item) for item in value) + "]"
    if isinstance(value, set | frozenset):
        return "{" + ",".join(sorted(map(_text, value))) + "}"
    if isinstance(value, partial):
        return f"partial({_text(value.func)},{_text(value.args)},{_text(value.keywords)})"
    if isinstance(value, MethodType) and isinstance(value.__func__, FunctionType):
        mine = value.__self__ if isinstance(value.__self__, type) else type(value.__self__)
        return f"{_of_object(value.__self__)}.{_of_function(value.__func__, mine)}"
    if isinstance(wrapped := inspect.getattr_static(value, "__wrapped__", None), FunctionType):
        return _of_function(wrapped)
    called = inspect.getattr_static(type(value), "__call__", None)
    if isinstance(called, FunctionType) and not _is_ours(called):
        return f"{_of_object(value)}.{_of_function(called, type(value))}"
    return _ADDRESS.sub("", repr(value))


def _of_function(function: FunctionType, owner: type | None = None) -> str:
    """The tree of a function that is an option, those of the project's functions that it calls, and what it holds."""
    tree = _tree(function)
    if _is_ours(function):
        return tree
    called = sorted(_functions(function, owner) - {_tree(inspect.unwrap(function))})
    held = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    # The text of `lambda low=low: ...` is the same whatever it was given.
    held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return "".join([tree, *called, *map(_held, held)])


def _of_object(value: Any) -> str:
    """Whose method it is: the class, and what it was made with as far as that can be told in words."""
    if isinstance(value, type):
        return value.__qualname__
    if dataclasses.is_dataclass(value):
        return (
            f"{type(value).__qualname__}({_held({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})})"
        )
    return f"{type(value).__qualname__}({_held(getattr(value, '__dict__', {}))})"


def _held(value: Any, depth: int = 0) -> str:
    """What a function or an object holds, where that is the same in every process; of all else only its type."""
    if isinstance(value, FunctionType | MethodType):
        return _tree(value) if isinstance(value, FunctionType) else str(value.__func__.__qualname__)
    if isinstance(value, _PLAIN):
        return repr(value)
    if depth < _DEEPEST and isinstance(value, Mapping):
        return "{" + ",".join(f"{key!r}:{_held(item, depth + 1)}" for key, item in value.items()) + "}"
    if depth < _DEEPEST and isinstance(value, list | tuple | set | frozenset):
        told = [_held(item, depth + 1) for item in value]
        return "[" + ",".join(told if isinstance(value, list | tuple) else sorted(told)) + "]"
    return type(value).__qualname__


def _is_ours(function: Any) -> bool:
    """Whether it is the library's own: what a new release of it calls inside changes nothing of what was asked for."""
    return str(function.__module__).split(".")[0] in ("lakewright", "pyspark")
