"""`lakewright init`: a small working project to start from."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from lakewright.cli.commands import flag
from lakewright.cli.screen import Screen
from lakewright.errors import ConfigurationError, TargetError

__all__ = ["init", "write_scaffold"]

TEMPLATE = Path(__file__).with_name("templates") / "shop"
_PLACEHOLDER = "__PROJECT_NAME__"
# A file of this name would already count in our own repository.
_RENAMED = {"gitignore": ".gitignore"}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def init(
    screen: Screen,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the project and of its folder.")],
    force: Annotated[bool, flag("--force", help="Write into a folder that is not empty; other files stay.")] = False,
) -> None:
    """Make a project: a pipeline that works, sample data, a contract and a unit test."""
    folder = Path(name)
    written = write_scaffold(folder, force=force)
    if screen.as_json:
        screen.show_json({"folder": str(folder.absolute()), "files": written, "error": None})
        return
    screen.say(f"Made {folder} with {len(written)} files.", "bold")
    screen.say(f"Next: cd {shlex.quote(name)} && lakewright run")


def write_scaffold(folder: Path, *, force: bool = False) -> list[str]:
    """Write the template's files; returns their paths inside the folder."""
    if not _NAME.fullmatch(folder.name):
        raise ConfigurationError(
            f"'{folder.name}' is no name for a project.", hint="Use letters, digits, _ and -: lakewright init shop"
        )
    if folder.is_file():
        raise ConfigurationError(f"{folder} is a file. Nothing was written.", hint="Choose another name.")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise ConfigurationError(
            f"The folder {folder} is there and not empty. Nothing was written.",
            hint="Choose another name, or --force to write the files into it (other files stay).",
        )
    written = []
    for source in sorted(TEMPLATE.rglob("*")):
        if source.is_dir() or "__pycache__" in source.parts:
            continue
        inside = source.relative_to(TEMPLATE)
        inside = inside.with_name(_RENAMED.get(inside.name, inside.name))
        _write(folder / inside, source.read_text(encoding="utf-8").replace(_PLACEHOLDER, folder.name))
        written.append(str(inside))
    return written


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TargetError(f"{file} cannot be written: {error.strerror}.") from error
