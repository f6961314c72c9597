"""Export: the files of a project for Airflow 3, and what becomes of those that are there.

Guarantee:
    The same project and options give the same files, byte for byte. The first line of each holds a hash of the rest: a
    file that was edited, or that somebody else has written, is not overwritten unless that is asked for, and then
    nothing else is written either. Each file appears whole, by one rename.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lakewright.errors import TargetError
from lakewright.pipelines.airflow.dags import Granularity, dags_of, slug
from lakewright.pipelines.airflow.render import Worker, render_dag

if TYPE_CHECKING:
    from lakewright.pipelines.declare import Pipeline

__all__ = ["OPERATOR", "ExportedFile", "Fate", "airflow_files", "left_over", "look_at", "write_files"]

OPERATOR = "lakewright_airflow.py"
Fate = Literal["new", "changed", "same", "edited"]

_MARK = "# Made by `lakewright export airflow`; sha256 of the rest: "
_HEAD = re.compile(re.escape(_MARK) + r"([0-9a-f]{64})\n")


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """One file, and what the one in its place is to it."""

    name: str
    text: str
    fate: Fate


def airflow_files(
    project: str,
    pipelines: Sequence[Pipeline],
    *,
    folder: Path,
    worker: Worker,
    tasks: Granularity = "pipeline",
) -> dict[str, str]:
    """The files by their names: one for each pipeline, and the operator that they share.

    ``folder`` is the project's folder here, in which the pipelines were declared.
    """
    dags = dags_of(project, pipelines, tasks=tasks, folder=folder)
    found = {f"{slug(project)}_{dag.pipeline}.py": _marked(render_dag(dag, worker)) for dag in dags}
    return {**found, OPERATOR: _marked(Path(__file__).with_name(OPERATOR).read_text(encoding="utf-8"))}


def look_at(files: Mapping[str, str], to: Path) -> list[ExportedFile]:
    """What writing the files would do."""
    return [ExportedFile(name, text, _fate(to / name, text)) for name, text in files.items()]


def left_over(files: Mapping[str, str], to: Path, project: str) -> list[str]:
    """The files of an earlier export of the project whose pipelines are gone."""
    others = [file for file in sorted(to.glob(f"{slug(project)}_*.py")) if file.name not in files]
    texts = {file.name: file.read_text(encoding="utf-8", errors="replace") for file in others}
    return [name for name, text in texts.items() if _HEAD.match(text) and f'dag_id="{slug(project)}.' in text]


def write_files(found: Sequence[ExportedFile], to: Path, *, force: bool = False) -> None:
    """Write those that are new or changed; where one was edited, none is written unless ``force`` says so."""
    edited = [one.name for one in found if one.fate == "edited"]
    if edited and not force:
        raise TargetError(
            f"{to / edited[0]} was edited since it was exported, or is not ours"
            + (f", and so are {len(edited) - 1} more" if len(edited) > 1 else "")
            + ". Nothing was written.",
            hint="Put the change into the pipeline, or move the file away; --force overwrites it.",
        )
    to.mkdir(parents=True, exist_ok=True)
    for one in found:
        if one.fate == "same":
            continue
        beside = to / f".{one.name}.{os.getpid()}"
        beside.write_text(one.text, encoding="utf-8", newline="\n")
        os.replace(beside, to / one.name)


def _marked(text: str) -> str:
    return f"{_MARK}{hashlib.sha256(text.encode()).hexdigest()}\n{text}"


def _fate(file: Path, text: str) -> Fate:
    try:
        there = file.read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return "new"
    if there == text:
        return "same"
    head = _HEAD.match(there)
    untouched = head is not None and hashlib.sha256(there[head.end() :].encode()).hexdigest() == head[1]
    return "changed" if untouched else "edited"
