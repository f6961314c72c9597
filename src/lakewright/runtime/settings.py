"""The settings of a project: ``lakewright.toml``, its targets, and the environment on top.

Guarantee:
    What `load_settings` returns is complete and frozen, and every path in it is absolute (relative ones
    are resolved against the folder of the file, not against where the command was typed). A wrong file
    is refused with its name, the key, what was expected and, for an unknown key, the nearest known one.
    Loading starts nothing: neither Spark nor the store is imported.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, PositiveInt, ValidationError, field_validator

from lakewright.errors import ConfigurationError, UnknownNameError, did_you_mean
from lakewright.model.connections import Connection, Connections
from lakewright.model.secrets import Secret, is_reference
from lakewright.runtime.compute_settings import MEMORY, ComputeTable, check_compute, dotted, overlaid
from lakewright.runtime.connection_settings import ConnectionTable, connections_of
from lakewright.runtime.secret_settings import (
    check_master,
    check_references,
    references_of_master,
    reveal_master,
    reveal_spark,
    with_password,
)

__all__ = ["FILE_NAME", "Settings", "Target", "find_file", "load_settings"]

FILE_NAME = "lakewright.toml"
ENVIRONMENT_PREFIX = "LAKEWRIGHT_"

_Model = TypeVar("_Model", bound=BaseModel)
_MAY_BE_SECRET = {"store", "store_password", "master", "spark", "connections"}
"""Keys below which a wrong value is not repeated to the user: it may be a password that was typed."""
_TABLES = ("spark", "compute")
"""Keys that are tables: no variable of the environment holds one."""


class _TargetKeys(BaseModel):
    """The keys of ``[targets.NAME]`` that are the same in the file and in use."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lake: str = ".lakewright/lake"
    # A URL may carry a password, so it stays out of every repr; `shown_store` is for people.
    store: str = Field("sqlite:///.lakewright/store.db", repr=False)
    store_password: str | None = Field(None, repr=False)
    master: str = "local[*]"
    spark: Mapping[str, str] = Field(default_factory=dict, repr=False)
    driver_memory: str = Field("2g", pattern=MEMORY)
    parallel: PositiveInt = 2
    outdated: Literal["show", "run"] = "show"
    outdated_limit: PositiveInt = 31
    upstream: str | None = None
    logstore: str | None = None
    fast_start: bool = False
    compute: Mapping[str, ComputeTable] = Field(default_factory=dict, repr=False)
    """What steps may ask for in place of the target's own Spark, by name."""

    @field_validator("spark", mode="before")
    @classmethod
    def _flatten_spark_keys(cls, table: object) -> object:
        return dotted(table)


class _TargetTable(_TargetKeys):
    """What may stand in ``[targets.NAME]``."""

    connections: Mapping[str, ConnectionTable] = Field(default_factory=dict, repr=False)


class Target(_TargetKeys):
    """One place where a project can run: a lake, a store and a way to reach Spark. Paths are absolute."""

    name: str
    folder: Path
    """The project's folder."""
    connections: InstanceOf[Connections] = Field(default_factory=Connections)
    """Those of the project, and those of this target in place of them."""

    @classmethod
    def at(cls, folder: Path, *, name: str = "local", **options: object) -> Self:
        """A target without a file, for tests and notebooks: options are the keys of ``[targets.NAME]``."""
        table = _TargetTable.model_validate(options)
        return cls._resolved(table, name=name, folder=folder, place=f"target {name}")

    @classmethod
    def _resolved(
        cls,
        table: _TargetTable,
        *,
        name: str,
        folder: Path,
        place: str,
        connections: Mapping[str, ConnectionTable] | None = None,
    ) -> Self:
        home = folder.absolute()
        check_master(table.master, place=place)
        check_references(table.store, table.store_password, table.spark, place=place)
        for compute, asked in table.compute.items():
            check_compute(compute, asked, place=place)
        values = table.model_dump(exclude={"connections"}) | {
            "lake": _absolute(table.lake, home),
            "store": _absolute_store(table.store, home),
        }
        # A target replaces a connection as a whole: half of one and half of the other would reach the wrong place.
        known = {**(connections or {}), **table.connections}
        return cls(name=name, folder=home, connections=connections_of(known, folder=home, place=place), **values)

    @property
    def state(self) -> Path:
        """Where everything goes that a run leaves beside the lake: logs, the default store, scratch."""
        return self.folder / ".lakewright"

    @property
    def is_local(self) -> bool:
        """Whether Spark runs inside this process's own JVM."""
        return self.master == "local" or self.master.startswith("local[")

    @property
    def shown_store(self) -> str:
        """The store's address without a password, or the reference to it."""
        return re.sub(r"(://[^:/@]*):.*@", r"\1:***@", self.store)

    def reveal_store(self) -> str:
        """The store's address, with its password where one is needed: for opening it, never to be shown."""
        address = Secret(self.store, self.folder).reveal() if is_reference(self.store) else self.store
        address = _absolute_store(address, self.folder)
        if self.store_password is None:
            return address
        return with_password(address, Secret(self.store_password, self.folder))

    def reveal_master(self) -> str:
        """Where Spark is reached, with the token where a parameter names one: for connecting, never to be shown."""
        return reveal_master(self.master, self.folder)

    def reveal_spark(self) -> dict[str, str]:
        """The values of the Spark settings that are references, by their keys."""
        return reveal_spark(self.spark, self.folder)

    def with_compute(self, name: str) -> Self:
        """The same lake and store with the Spark of one of its computes; itself, where that one changes nothing."""
        changes = overlaid(self.compute[name], master=self.master, spark=self.spark)
        if all(getattr(self, key) == value for key, value in changes.items()):
            return self
        return self.model_copy(update=changes)

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """Every reference that the target may need; none is looked up."""
        texts = [self.store, self.store_password or "", *references_of_master(self.master), *self.spark.values()]
        for compute in self.compute.values():
            texts += [*references_of_master(compute.master or ""), *compute.spark.values()]
        own = [Secret(text, self.folder) for text in texts if is_reference(text)]
        declared = [one for one in self.connections.declared.values() if isinstance(one, Connection)]
        given = [value for one in declared for value in (one.password, *one.options.values())]
        return tuple(dict.fromkeys([*own, *(value for value in given if isinstance(value, Secret))]))

    @property
    def lake_path(self) -> Path | None:
        """The lake's folder, or nothing where it is an object store."""
        parts = urlsplit(self.lake)
        if parts.scheme == "file":
            return Path(parts.path)
        return None if _is_uri(self.lake) else Path(self.lake)


class _ProjectTable(BaseModel):
    """What may stand at the top of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None = None
    pipelines: tuple[str, ...] = ("pipelines/*.py",)
    default_target: str | None = None
    pools: Mapping[str, PositiveInt] = Field(default_factory=dict)
    connections: Mapping[str, ConnectionTable] = Field(default_factory=dict, repr=False)
    targets: Mapping[str, _TargetTable] = Field(default_factory=lambda: {"dev": _TargetTable()})


class Settings(BaseModel):
    """A project's settings with one target chosen."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: Path
    name: str
    pipelines: tuple[str, ...]
    target: Target
    targets: Mapping[str, Target]
    """All targets of the file; environment overrides are in the chosen one only."""
    pools: Mapping[str, PositiveInt] = Field(default_factory=dict)
    """How many runs of each pool may be at work at once."""

    @property
    def folder(self) -> Path:
        """The project's folder, which holds the file."""
        return self.file.parent

    @property
    def upstreams(self) -> tuple[Target, ...]:
        """The targets whose tables stand in for what this one has not made itself, the nearest first."""
        found: list[Target] = []
        at = self.target
        while at.upstream is not None:
            at = self.targets[at.upstream]
            found.append(at)
        return tuple(found)

    def scratch(self, kind: str) -> Settings:
        """The same project on a throw-away target under ``.lakewright/KIND``, which reads from the chosen one.

        All of its steps are made in the target's own session: it is for little data, and lies on this machine.
        """
        folder = self.target.state / kind
        place = {"lake": str(folder / "lake"), "store": f"sqlite:///{folder / 'store.db'}", "store_password": None}
        own = {"name": f"{self.target.name}, {kind}", "upstream": self.target.name, "outdated": "show"}
        here = {"compute": {name: ComputeTable() for name in self.target.compute}}
        target = self.target.model_copy(update=place | own | here)
        return self.model_copy(update={"target": target, "targets": {**self.targets, target.name: target}})


def find_file(start: Path) -> Path:
    """The nearest ``lakewright.toml`` in ``start`` or a folder above it."""
    here = start.absolute()
    looked = [folder / FILE_NAME for folder in (here, *here.parents)]
    for file in looked:
        if file.is_file():
            return file
    places = "".join(f"\n  {file}" for file in looked)
    raise ConfigurationError(
        f"There is no project here: no {FILE_NAME}. Looked, in this order, at:{places}",
        hint="To start a project: lakewright init NAME",
    )


def load_settings(
    start: Path | None = None, target: str | None = None, *, environ: Mapping[str, str] | None = None
) -> Settings:
    """Read the project that ``start`` (by default the current folder) is in, and choose a target.

    The target is ``target``, else ``LAKEWRIGHT_TARGET``, else ``default_target`` of the file, else the
    one named ``dev``, else the only one.
    """
    env = os.environ if environ is None else environ
    file = find_file(Path.cwd() if start is None else start)
    project = _validate(_ProjectTable, _read(file), place=str(file))
    chosen = _choose(project, target or env.get("LAKEWRIGHT_TARGET"), file)
    tables = dict(project.targets) | {chosen: _override(project.targets[chosen], env)}
    targets = {
        name: Target._resolved(
            table, name=name, folder=file.parent, place=f"{file}, target {name}", connections=project.connections
        )
        for name, table in tables.items()
    }
    for target_ in targets.values():
        _check_upstream(target_, targets, file)
    return Settings(
        file=file,
        name=project.name or file.parent.name,
        pipelines=project.pipelines,
        target=targets[chosen],
        targets=targets,
        pools=project.pools,
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        what, _, place = str(error).rpartition(" (at ")
        numbers = re.findall(r"\d+", place)
        position = ":".join(numbers) if numbers else "end"  # "(at end of document)" has no numbers
        raise ConfigurationError(f"{file}:{position}: this is not TOML: {what or error}.") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file}: this is not UTF-8 text (byte {error.start}).") from error
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}.") from error


def _choose(project: _ProjectTable, wanted: str | None, file: Path) -> str:
    names = list(project.targets)
    name = wanted or project.default_target or ("dev" if "dev" in names else None)
    if name is None and len(names) == 1:
        name = names[0]
    if name is None:
        raise ConfigurationError(
            f"{file}: there are several targets ({', '.join(names)}) and none is the default.",
            hint="Set default_target in the file, or say --target NAME.",
        )
    if name not in project.targets:
        raise UnknownNameError("target", name, names)
    return name


def _check_upstream(target: Target, targets: Mapping[str, Target], file: Path) -> None:
    """Follow the upstreams of a target to their end: each is known, and has a lake and a store of its own."""
    passed = [target]
    while (name := passed[-1].upstream) is not None:
        if name not in targets:
            raise UnknownNameError(f"target (the 'upstream' of {passed[-1].name} in {file})", name, targets)
        for earlier in passed:
            shared = [key for key in ("lake", "store") if getattr(earlier, key) == getattr(targets[name], key)]
            if earlier.name == name or shared:
                what = " and the ".join(shared) or "name"
                raise ConfigurationError(
                    f"{file}: '{name}', the upstream of the target '{passed[-1].name}', has the {what} of "
                    f"'{earlier.name}': nothing would keep the two apart.",
                    hint="Give each of them a 'lake' and a 'store' of its own.",
                )
        passed.append(targets[name])


def _override(table: _TargetTable, env: Mapping[str, str]) -> _TargetTable:
    """``LAKEWRIGHT_LAKE`` and its kind, for every key but the tables."""
    values = {
        key: env[variable]
        for key in _TargetKeys.model_fields
        if key not in _TABLES and (variable := ENVIRONMENT_PREFIX + key.upper()) in env
    }
    if not is_reference(values.get("store_password", "secret://")):
        # The variable holds the password itself: it is what a reference would name.
        values["store_password"] = f"secret://env/{ENVIRONMENT_PREFIX}STORE_PASSWORD"
    check_master(values.get("master", ""), place=f"environment, {ENVIRONMENT_PREFIX}MASTER")
    checked = _validate(_TargetTable, values, place="environment", key_as_variable=True)
    return table.model_copy(update=checked.model_dump(include=set(values)))


def _validate(model: type[_Model], values: Mapping[str, Any], *, place: str, key_as_variable: bool = False) -> _Model:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems = []
        for detail in error.errors(include_url=False):
            where = [str(part) for part in detail["loc"]]
            key = ENVIRONMENT_PREFIX + where[-1].upper() if key_as_variable else ".".join(where)
            problems.append(f"{place}: {_problem(key, where, detail['type'], detail['msg'], detail['input'])}")
        raise ConfigurationError("\n".join(problems)) from None


def _problem(key: str, where: list[str], kind: str, expected: str, given: object) -> str:
    if kind == "extra_forbidden":
        table: type[BaseModel] = _TargetTable if where[0] == "targets" else _ProjectTable
        table = ConnectionTable if "connections" in where[:-1] else table
        table = ComputeTable if where[0] == "targets" and where[2:3] == ["compute"] and len(where) > 4 else table
        if table is _ProjectTable and len(where) == 1 and key in _TargetTable.model_fields:
            return f"unknown key '{key}'. It belongs to a target: write it below [targets.dev]."
        return f"unknown key '{key}'. {did_you_mean(where[-1], table.model_fields) or _known(table)}"
    wanted = expected.removeprefix("Input should be ")
    if where[-1] == "driver_memory":
        wanted = 'a size such as "2g" or "512m"'
    shown = type(given).__name__ if _MAY_BE_SECRET.intersection(where) else repr(given)
    return f"'{key}' should be {wanted}, and is {shown}."


def _known(table: type[BaseModel]) -> str:
    return f"Known: {', '.join(table.model_fields)}."


def _is_uri(text: str) -> bool:
    return re.match(r"^[a-zA-Z][a-zA-Z0-9+.-]*:/", text) is not None


def _absolute(path: str, folder: Path) -> str:
    return path if _is_uri(path) else os.path.normpath(folder / Path(path).expanduser())


def _absolute_store(store: str, folder: Path) -> str:
    prefix = "sqlite:///"
    if store.startswith(prefix):
        return prefix + _absolute(store.removeprefix(prefix), folder)
    return store if "://" in store else prefix + _absolute(store, folder)
