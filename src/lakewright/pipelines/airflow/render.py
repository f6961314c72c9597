"""Rendering: a DAG as a file of plain Python. The same DAG and the same place give the same text, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from lakewright.pipelines.airflow.dags import Dag, DagTask

__all__ = ["Worker", "render_dag"]

_WIDTH = 120
_SENSORS = "airflow.providers.standard.sensors.external_task"
Argument = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Worker:
    """Where a task finds Lakewright and the project: values, or templates such as ``{{ var.value.blog_folder }}``."""

    python: str
    folder: str
    target: str


def render_dag(dag: Dag, worker: Worker) -> str:
    """The file of one pipeline."""
    place = f"PLACE = {{{', '.join(f'{_text(key)}: {_text(value)}' for key, value in _place(worker))}}}"
    if len(place) > _WIDTH:
        rows = [f"    {_text(key)}: {_text(value)}," for key, value in _place(worker)]
        place = "\n".join(["PLACE = {", *rows, "}"])
    asset = f'    return Asset(f"lakewright://{dag.project}/{{name}}")'
    blocks = [
        _docstring(dag),
        "from __future__ import annotations",
        _imports(dag),
        place,
        "",
        f'def dataset(name: str) -> Asset:\n    """A table of the lake."""\n{asset}',
        "",
        f"with {_call('DAG', _of_dag(dag), 0)}:\n" + "\n".join(_tasks(dag)),
    ]
    return "\n\n".join(blocks).replace("\n\n\n\n", "\n\n\n") + "\n"


def _place(worker: Worker) -> list[Argument]:
    return [("python", worker.python), ("project", worker.folder), ("target", worker.target)]


def _docstring(dag: Dag) -> str:
    lines = [
        f"The pipeline {dag.pipeline} of the project {dag.project}, from {dag.file}.",
        "",
        "| dataset | layer | by | what it is |",
        "| --- | --- | --- | --- |",
        *(f"| {one.name} | {one.layer} | {one.kind} | {_cell(one.description)} |" for one in dag.datasets),
    ]
    if dag.triggers:
        lines += ["", f"Its triggers ({', '.join(dag.triggers)}) are heard by `lakewright listen`, not by Airflow."]
    if dag.pool is not None:
        lines += ["", f"Its runs come out of the pool {dag.pool}, which Airflow has to know."]
    body = "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{body}\n"""'


def _imports(dag: Dag) -> str:
    names = ["DAG", "Asset"] + (["CronTriggerTimetable"] if dag.cron is not None else [])
    if len(dag.upstream) > 1:
        names.append("AssetAny" if dag.rule == "any" else "AssetAll")
    times = (["UTC", "datetime"] if dag.start is not None else []) + ["timedelta"]
    return "\n".join(
        [
            f"from datetime import {', '.join(times)}",
            "",
            *([f"from {_SENSORS} import ExternalTaskSensor"] if dag.follows is not None else []),
            f"from airflow.sdk import {', '.join(sorted(names, key=lambda name: (not name.isupper(), name)))}",
            "from lakewright_airflow import LakewrightRun",
        ]
    )


def _of_dag(dag: Dag) -> list[Argument]:
    found = [("dag_id", _text(dag.dag_id)), ("schedule", _schedule(dag))]
    if dag.start is not None:
        found.append(("start_date", _time(dag.start)))
    found += [("catchup", str(dag.catch_up)), ("max_active_runs", str(dag.runs))]
    if len(dag.tasks) > 1:
        # They are one run of the pipeline, which takes one place.
        found.append(("max_active_tasks", "1"))
    defaults = [
        ("owner", _text(dag.owner)),
        ("depends_on_past", str(dag.depends_on_past)),
        ("retries", str(dag.retries)),
        ("retry_delay", "timedelta(minutes=1)"),
        ("retry_exponential_backoff", "2"),
        ("max_retry_delay", "timedelta(hours=1)"),
    ]
    inner = "".join(f"        {_text(key)}: {value},\n" for key, value in defaults)
    return [
        *found,
        ("default_args", f"{{\n{inner}    }}"),
        ("tags", _listed(map(_text, dag.tags), 4, "tags=")),
        ("doc_md", "__doc__"),
    ]


def _schedule(dag: Dag) -> str:
    if dag.cron is not None:
        words = [_text(dag.cron), f"timezone={_text(dag.timezone)}"]
        if dag.start is None:
            words.append(f"run_immediately={_length(dag.run_first)}")
        return f"CronTriggerTimetable({', '.join(words)})"
    assets = [f"dataset({_text(name)})" for name in dag.upstream]
    if len(assets) < 2:
        return _listed(assets, 4, "schedule=") if assets else "None"
    return f"Asset{dag.rule.capitalize()}({', '.join(assets)})"


def _tasks(dag: Dag) -> list[str]:
    several = len(dag.tasks) > 1
    names = {task.task_id: f"tasks[{_text(task.task_id)}]" if several else "run" for task in dag.tasks}
    lines = ["    tasks = {}"] if several else []
    for task in dag.tasks:
        named = f"{names[task.task_id]} = " if several or dag.follows is not None else ""
        lines.append(f"    {named}{_call('LakewrightRun', _of_task(dag, task), 4)}")
    if dag.follows is not None:
        lines.append(f"    followed = {_call('ExternalTaskSensor', _of_sensor(dag.follows, dag.follows_task), 4)}")
        first = [names[task.task_id] for task in dag.tasks if not task.after]
        lines.append(f"    followed >> {first[0] if len(first) == 1 else _listed(first, 4, 'followed >> ')}")
    for task in dag.tasks:
        if task.after:
            before = names[task.after[0]] if len(task.after) == 1 else f"[{', '.join(names[n] for n in task.after)}]"
            lines.append(f"    {before} >> {names[task.task_id]}")
    return lines


def _of_sensor(dag_id: str, task_id: str | None) -> list[Argument]:
    """The run of another DAG for the same time: its failure is ours, and no worker is held while it is waited for."""
    named = [("task_id", _text(f"after-{dag_id.rpartition('.')[2]}")), ("external_dag_id", _text(dag_id))]
    if task_id is not None:
        named += [("external_task_id", _text(task_id)), ("allowed_states", '["success", "skipped"]')]
    return [
        *named,
        ("failed_states", '["failed", "upstream_failed"]' if task_id is not None else '["failed"]'),
        ("mode", _text("reschedule")),
        ("poke_interval", "30"),
    ]


def _of_task(dag: Dag, task: DagTask) -> list[Argument]:
    found = [("task_id", _text(task.task_id)), ("select", _listed(map(_text, task.select), 8, "select="))]
    if not task.whole:
        found.append(("whole", "False"))
    if dag.grace is not None:
        found.append(("grace", _length(dag.grace)))
    if dag.pool is not None:
        found.append(("pool", _text(dag.pool)))
    if task.after or dag.follows is not None:
        # A task that had nothing to make is skipped; those below it may have something.
        found.append(("trigger_rule", _text("all_done" if task.whatever_happened and task.after else "none_failed")))
    if task.inlets:
        found.append(("inlets", _datasets(task.inlets, "inlets=")))
    found.append(("outlets", _datasets(task.outlets, "outlets=")))
    if task.side_outputs:
        pairs = (f"{_text(name)}: {_text(maker)}" for name, maker in task.side_outputs)
        found.append(("side_outputs", f"{{{', '.join(pairs)}}}"))
    return [*found, ("", "**PLACE")]


def _datasets(names: Iterable[str], before: str) -> str:
    return _listed((f"dataset({_text(name)})" for name in names), 8, before)


def _call(name: str, arguments: Sequence[Argument], indent: int) -> str:
    pad = " " * indent
    rows = [f"{pad}    {key}={value}," if key else f"{pad}    {value}," for key, value in arguments]
    return "\n".join([f"{name}(", *rows, f"{pad})"])


def _listed(items: Iterable[str], indent: int, before: str) -> str:
    """A list on one line where it fits, else with an item on each."""
    found = list(items)
    line = f"[{', '.join(found)}]"
    if indent + len(before) + len(line) + 1 <= _WIDTH:
        return line
    pad = " " * indent
    return "\n".join(["[", *(f"{pad}    {item}," for item in found), f"{pad}]"])


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _time(moment: datetime) -> str:
    parts = [moment.year, moment.month, moment.day, moment.hour, moment.minute, moment.second]
    while len(parts) > 3 and not parts[-1]:
        parts.pop()
    return f"datetime({', '.join(map(str, parts))}, tzinfo=UTC)"


def _length(value: bool | timedelta) -> str:
    return str(value) if isinstance(value, bool) else f"timedelta(minutes={value.total_seconds() / 60:g})"
