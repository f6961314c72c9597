"""Opening what a command works on: the project, or its store alone (without Spark and the project's files)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from lakewright.cli.screen import Screen

if TYPE_CHECKING:
    from lakewright.pipelines.declare import Pipeline
    from lakewright.pipelines.project import Project
    from lakewright.runtime.settings import Settings
    from lakewright.store import Store

__all__ = ["declared_pipelines", "open_existing_store", "open_project", "settings_of"]


@contextmanager
def open_project(screen: Screen) -> Iterator[Project]:
    """The project, until the command has its answer; whatever its files and steps print is no data of ours."""
    from lakewright.pipelines.project import Project

    with redirect_stdout(sys.stderr), Project(screen.folder, target=screen.target) as project:
        yield project


def declared_pipelines(screen: Screen) -> list[Pipeline]:
    """The pipelines that the project's files declare; needs neither Spark nor the lake."""
    from lakewright.pipelines.loading import load_pipelines

    settings = settings_of(screen)
    with redirect_stdout(sys.stderr):
        return load_pipelines(settings.folder, settings.pipelines, pools=settings.pools)


def settings_of(screen: Screen) -> Settings:
    """The settings of the project that the command was typed in."""
    from lakewright.runtime.settings import load_settings

    return load_settings(screen.folder, screen.target)


@contextmanager
def open_existing_store(screen: Screen) -> Iterator[Store | None]:
    """The store, or None before the first run: looking makes no file."""
    from lakewright.store import open_store

    address = settings_of(screen).target.reveal_store()
    file = address.removeprefix("sqlite:///")
    if file != address and not Path(file).exists():
        yield None
        return
    with open_store(address) as store:
        yield store
