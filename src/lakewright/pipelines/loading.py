"""Loading a project's files: ordinary Python modules that create ``Pipeline`` objects.

Whatever is wrong in a file comes out as one error with file, line and the cause, before Spark starts.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from lakewright.errors import ConfigurationError, DefinitionError, LakewrightError
from lakewright.model.secrets import secrets_in
from lakewright.pipelines.declare import Pipeline
from lakewright.pipelines.linking import check_links
from lakewright.pipelines.pooling import check_pools, check_shared_state
from lakewright.pipelines.timetables import check_upstreams

__all__ = ["let_functions_travel", "load_pipelines"]

_PREFIX = "lakewright_project_"


def load_pipelines(folder: Path, patterns: Sequence[str], *, pools: Mapping[str, int] | None = None) -> list[Pipeline]:
    """The pipelines that the project's files declare, in the order of the files; with ``pools`` theirs are checked."""
    files = sorted({file for pattern in patterns for file in folder.glob(pattern) if file.suffix == ".py"})
    if not files:
        raise ConfigurationError(
            f"The project {folder} has no pipeline file (looked for {', '.join(patterns)}).",
            hint="Write one, or set `pipelines` in lakewright.toml; `lakewright init NAME` makes an example.",
        )
    # A pipeline file may import its neighbours and the project's own packages.
    for place in dict.fromkeys([str(folder), *(str(file.parent) for file in files)]):
        if place not in sys.path:
            sys.path.insert(0, place)
    found: list[Pipeline] = []
    for file in files:
        module = _load(file, folder)
        for value in vars(module).values():
            if isinstance(value, Pipeline) and value not in found:
                found.append(value)
    if not found:
        raise ConfigurationError(f"No Pipeline is declared in {', '.join(str(f.relative_to(folder)) for f in files)}.")
    _check_names(found)
    check_upstreams(found)
    check_links(found, folder)
    check_shared_state(found)
    if pools is not None:
        check_pools(found, pools)
    return found


def let_functions_travel() -> None:
    """Let Spark send the functions of project files as they are: no worker could import these files by their names."""
    from pyspark import cloudpickle

    for name, module in list(sys.modules.items()):
        if name.startswith(_PREFIX):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


class _AsItStands(SourceFileLoader):
    """Loads a file from its text. Python's cache knows a file by its second and its size: an edit may keep both."""

    def path_stats(self, path: Any) -> NoReturn:
        raise OSError(f"{path} is not cached")


def _load(file: Path, folder: Path) -> ModuleType:
    name = f"{_PREFIX}{hashlib.sha256(str(file).encode()).hexdigest()[:8]}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file, loader=_AsItStands(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with secrets_in(folder):
            spec.loader.exec_module(module)
    except DefinitionError:
        del sys.modules[name]
        raise
    except LakewrightError as error:
        del sys.modules[name]
        place = _place(error, file, folder)
        raise DefinitionError(error.message, file=place[0], line=place[1], hint=error.hint) from None
    except SyntaxError as error:
        del sys.modules[name]
        raise DefinitionError(
            f"this is not valid Python: {error.msg}.", file=error.filename or str(file), line=error.lineno
        ) from None
    except SystemExit as error:
        del sys.modules[name]
        place = _place(error, file, folder)
        raise DefinitionError(
            f"the file ends the process (sys.exit({error.code!r})).",
            file=place[0],
            line=place[1],
            hint="Raise an error instead: a project file is read by every command.",
        ) from None
    except Exception as error:
        del sys.modules[name]
        raise _explained(error, file, folder) from error
    return module


def _explained(error: Exception, file: Path, folder: Path) -> DefinitionError:
    place, line = _place(error, file, folder)
    hint = None
    if (isinstance(error, AssertionError) and "SparkContext" in str(error)) or "active" in str(error).lower():
        hint = (
            "A Spark function at the top of a file needs a session, which does not run yet: use SQL text or a lambda."
        )
    return DefinitionError(
        f"loading failed: {type(error).__name__}: {error}",
        file=place,
        line=line,
        hint=hint,
    )


def _place(error: BaseException, file: Path, folder: Path) -> tuple[str, int | None]:
    """The innermost line of the project's own code that led to an error."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(folder)]
    return (frames[-1].filename, frames[-1].lineno) if frames else (str(file), None)


def _check_names(pipelines: Sequence[Pipeline]) -> None:
    seen: dict[str, Pipeline] = {}
    for pipeline in pipelines:
        if pipeline.name in seen:
            raise DefinitionError(
                f"the pipeline '{pipeline.name}' is declared twice; the first time at {seen[pipeline.name].place}.",
                file=pipeline.place.file,
                line=pipeline.place.line,
            )
        seen[pipeline.name] = pipeline
