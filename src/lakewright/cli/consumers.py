"""`lakewright consumers`: which pipeline follows which, by which dataset. Starts no Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lakewright.cli.opening import declared_pipelines, settings_of
from lakewright.cli.screen import Screen
from lakewright.cli.tables import plain_table
from lakewright.errors import ConfigurationError, UnknownNameError

__all__ = ["consumers"]

_BY = {"reads": "reads it", "change": "starts when it changes", "run": "starts after its run", "marker": "waits for it"}


def consumers(
    screen: Screen,
    dataset: Annotated[
        str | None, typer.Argument(metavar="[DATASET]", help="A dataset; all of them where it is left out.")
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option("--also", metavar="FOLDER", help="Another project, whose consumers count too. May be repeated."),
    ] = None,
) -> None:
    """Show who waits for what: producer, dataset and consumer of every link between pipelines.

    The links are those that this project declares, also from other projects into it. What another project takes from
    this one, that project knows: --also asks it. Starts no Spark and changes nothing.
    """
    from lakewright.pipelines.linking import edges_of, made_by

    pipelines, here = declared_pipelines(screen), settings_of(screen).folder
    owners = made_by(pipelines)
    edges = [{**edge.as_json(), "consumer_project": None} for edge in edges_of(pipelines)]
    for folder in also or ():
        edges += _from_elsewhere(Path(folder), here, owners)
    known = {*owners, *(str(edge["dataset"]) for edge in edges)}
    if dataset is not None and dataset not in known:
        raise UnknownNameError("dataset", dataset, known)
    # Whoever follows a whole run takes whatever the run makes.
    chosen = [e for e in edges if dataset is None or e["dataset"] == dataset or _follows_all(e, owners.get(dataset))]
    if screen.as_json:
        screen.show_json({"edges": chosen, "error": None})
        return
    if not chosen:
        screen.say("Nobody who is known here follows it." if dataset else "No pipeline follows another one.")
        return
    screen.show(plain_table(["producer", "dataset", "consumer", "how"], [_cells(edge) for edge in chosen]))


def _follows_all(edge: dict[str, Any], producer: str | None) -> bool:
    return edge["dataset"] is None and producer is not None and edge["producer"] == producer


def _from_elsewhere(folder: Path, here: Path, owners: dict[str, str]) -> list[dict[str, Any]]:
    """The links of another project that begin in this one; its own process tells, for its files are not ours."""
    command = [sys.executable, "-m", "lakewright", "consumers", "--json", "--project", str(folder)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        told = json.loads(answer.stdout)
    except ValueError:
        told = {"error": {"message": (answer.stderr.strip().splitlines() or ["it says nothing"])[-1]}}
    if told["error"] is not None:
        raise ConfigurationError(f"The project {folder} cannot be asked: {told['error']['message']}")
    mine = [edge for edge in told["edges"] if edge["project"] is not None and _is_here(edge, folder, here)]
    return [
        {**edge, "producer": owners.get(edge["dataset"]), "project": None, "consumer_project": str(folder)}
        for edge in mine
    ]


def _is_here(edge: dict[str, Any], folder: Path, here: Path) -> bool:
    """Whether a link comes out of this project: it names its folder, or a flag or a table below it."""
    place = (folder / str(edge["project"])).resolve()
    return place == here.resolve() or here.resolve() in place.parents


def _cells(edge: dict[str, Any]) -> list[str]:
    where = "" if edge["project"] is None else f" ({edge['project']})"
    consumer = (
        edge["consumer"] if edge["consumer_project"] is None else f"{edge['consumer']} ({edge['consumer_project']})"
    )
    return [f"{edge['producer'] or '?'}{where}", edge["dataset"] or "(its runs)", consumer, _BY[edge["by"]]]
