"""`lakewright consumers`: which pipeline follows which, by which dataset. Starts no Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakewright.cli.commands import flag
from lakewright.cli.opening import declared_pipelines, settings_of
from lakewright.cli.screen import Screen
from lakewright.cli.tables import plain_table
from lakewright.errors import ConfigurationError, UnknownNameError

if TYPE_CHECKING:
    from lakewright.patterns.data_flow.isolated_sequencer import WhenReady
    from lakewright.pipelines.declare import Pipeline

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
    check: Annotated[
        bool, flag("--check", help="Ask whether what is waited for elsewhere is still there; ends with 1 where not.")
    ] = False,
) -> None:
    """Show who waits for what: producer, dataset and consumer of every link between pipelines.

    The links are those that this project declares, also from other projects into it. What another project takes from
    this one, that project knows: --also asks it. Starts no Spark and changes nothing.
    """
    from lakewright.pipelines.linking import edges_of, made_by

    pipelines, here = declared_pipelines(screen), settings_of(screen).folder
    if check:
        _check(screen, pipelines, here)
        return
    owners = made_by(pipelines)
    edges = [{**edge.as_json(), "consumer_project": None} for edge in edges_of(pipelines)]
    for folder in also or ():
        edges += _from_elsewhere(Path(folder), here, owners)
    known = {*owners, *(str(edge["dataset"]) for edge in edges if edge["dataset"] is not None)}
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


def _check(screen: Screen, pipelines: Sequence[Pipeline], here: Path) -> None:
    """What each pipeline waits for outside this project, and what is wrong with it, as far as it can be seen here."""
    waits = [(one.name, wait) for one in pipelines for wait in one.settings.waits_for if not wait.is_here]
    found = [
        {"consumer": consumer, "dataset": wait.dataset, "where": _where(wait), "problem": _problem(wait, here)}
        for consumer, wait in waits
    ]
    broken = [one for one in found if one["problem"] is not None]
    if screen.as_json:
        screen.show_json({"checked": found, "error": None})
    for one in () if screen.as_json else broken:
        screen.warn(f"{one['consumer']} waits for {one['dataset']} ({one['where']}): {one['problem']}.")
    if not screen.as_json:
        screen.say(f"{len(found)} links to other projects, {len(broken)} broken.")
    raise typer.Exit(1 if broken else 0)


def _where(wait: WhenReady) -> str:
    return str(wait.project or wait.table or wait.flag)


def _problem(wait: WhenReady, here: Path) -> str | None:
    """Why a marker can no longer come; None where nothing is known against it, or nothing can be seen from here."""
    where = _where(wait)
    if "://" in where:
        return None
    if wait.project is not None:
        told = _asked(here / where, wait.dataset)
        return None if told["error"] is None else str(told["error"]["message"]).removesuffix(".")
    # A flag's own folder may come with its date: the one above what is filled in is always there.
    fixed = where.partition("{")[0]
    place = here / where / "_delta_log" if wait.table is not None else Path(here, fixed[: fixed.rfind("/") + 1])
    return None if place.is_dir() else f"there is no folder {place}"


def _follows_all(edge: dict[str, Any], producer: str | None) -> bool:
    return edge["dataset"] is None and producer is not None and edge["producer"] == producer


def _from_elsewhere(folder: Path, here: Path, owners: dict[str, str]) -> list[dict[str, Any]]:
    """The links of another project that begin in this one."""
    told = _asked(folder)
    if told["error"] is not None:
        raise ConfigurationError(f"The project {folder} cannot be asked: {told['error']['message']}")
    mine = [edge for edge in told["edges"] if edge["project"] is not None and _is_here(edge, folder, here)]
    return [
        {**edge, "producer": owners.get(edge["dataset"]), "project": None, "consumer_project": str(folder)}
        for edge in mine
    ]


def _asked(folder: Path, *words: str) -> dict[str, Any]:
    """What another project tells of its links, in a process of its own: its files are not ours."""
    command = [sys.executable, "-m", "lakewright", "consumers", *words, "--json", "--project", str(folder)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        told: dict[str, Any] = json.loads(answer.stdout)
    except ValueError:
        told = {"error": {"message": (answer.stderr.strip().splitlines() or ["it says nothing"])[-1]}}
    return told


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
