"""`lakewright export airflow`: the project's pipelines as DAGs for Airflow 3. Starts no Spark."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lakewright.cli.commands import DryRun, flag
from lakewright.cli.opening import declared_pipelines, settings_of
from lakewright.cli.screen import Screen
from lakewright.errors import ConfigurationError

__all__ = ["airflow"]


def airflow(
    screen: Screen,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="Airflow's folder of DAGs.")] = Path("dags"),
    tasks: Annotated[
        str, typer.Option("--tasks", metavar="KIND", help="A task for each pipeline, or for each dataset.")
    ] = "pipeline",
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PATH", help="An interpreter with Lakewright on Airflow's workers."),
    ] = None,
    worker_folder: Annotated[
        str | None, typer.Option("--folder", metavar="PATH", help="The project's folder on Airflow's workers.")
    ] = None,
    force: Annotated[bool, flag("--force", help="Overwrite files that were edited.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Write a DAG for each pipeline: its schedule, datasets, run policy, retries and pool in Airflow's words.

    Each task runs `lakewright run` in a process of its own, so Airflow needs neither Lakewright nor Spark. --python and
    --folder are this interpreter and this folder unless they are given; both may be templates, such as
    "{{ var.value.blog_folder }}". The same project gives the same files. One that was edited is not overwritten.

    Exit codes: 0 written, 1 a file was edited and nothing was written, 2 wrong usage or project.
    """
    from lakewright.pipelines.airflow.export import airflow_files, left_over, look_at, write_files
    from lakewright.pipelines.airflow.render import Worker

    if tasks not in ("pipeline", "dataset"):
        raise ConfigurationError(f"--tasks is pipeline or dataset, not '{tasks}'.")
    settings = settings_of(screen)
    pipelines = declared_pipelines(screen)
    worker = Worker(python or sys.executable, worker_folder or str(settings.folder), settings.target.name)
    files = airflow_files(
        settings.name,
        pipelines,
        folder=settings.folder,
        worker=worker,
        tasks="pipeline" if tasks == "pipeline" else "dataset",
    )
    found = look_at(files, to)
    if not dry_run:
        write_files(found, to, force=force)
    gone = left_over(files, to, settings.name)
    used = {one.settings.runs.pool for one in pipelines} - {None}
    pools = {name: slots for name, slots in sorted(settings.pools.items()) if name in used}
    if screen.as_json:
        told = [{"file": str(to / one.name), "state": one.fate} for one in found]
        screen.show_json({"files": told, "left_over": gone, "pools": pools, "error": None})
        return
    for one in found:
        screen.say(f"{one.fate:<8} {to / one.name}")
    for name in gone:
        screen.warn(f"{to / name} is of a pipeline that is gone. Delete it: its runs would fail.")
    for name, slots in pools.items():
        screen.say(f'Airflow needs a pool: airflow pools set {name} {slots} "A pool of {settings.name}"')
    written = sum(one.fate != "same" for one in found)
    screen.say(f"{'Would write' if dry_run else 'Wrote'} {written} of {len(found)} files.", "bold")
