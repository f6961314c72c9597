"""`lakewright spark`: what a cluster or a Connect server needs to run a project."""

from __future__ import annotations

from typing import Annotated

from lakewright.cli.commands import flag
from lakewright.cli.opening import settings_of
from lakewright.cli.screen import Screen
from lakewright.errors import ConfigurationError

__all__ = ["archive", "packages"]


def archive(screen: Screen) -> None:
    """Keep Spark's classes in a file, so that every later session on this machine starts in half the time.

    About a minute and 200 MB, once for each Python environment and Java; `make setup` does it too. It lies with the
    jars in the cache, and nothing but the start depends on it.
    """
    from lakewright.runtime.class_archive import ensure_archive

    file = ensure_archive(screen.say)
    if screen.as_json:
        screen.show_json({"archive": str(file), "bytes": file.stat().st_size, "error": None})
    else:
        screen.write(f"Local sessions of this Python start with {file} ({file.stat().st_size / 1e6:.0f} MB).\n")


def packages(
    screen: Screen,
    joined: Annotated[
        bool, flag("--joined", help="Only the coordinates, on one line with commas, for spark-submit --packages.")
    ] = False,
) -> None:
    """Print what a cluster or a Spark Connect server needs: settings, Maven coordinates, jars; also outside a project.

    The text can be put into spark-defaults.conf as it is. In a project, or with --target, the settings are those for
    the target's lake. Nothing is fetched.
    """
    from lakewright.runtime.packages import needs_of

    found = needs_of(settings_of(screen).target if screen.target is not None or _in_a_project(screen) else None)
    if screen.as_json:
        told = {
            "packages": found.packages,
            "excluded": found.excluded,
            "overridden": found.overridden,
            "jars": [str(jar) for jar in found.jars],
            "settings": found.settings,
            "error": None,
        }
        screen.show_json(told)
    else:
        screen.write(",".join(found.packages) + "\n" if joined else found.as_properties())


def _in_a_project(screen: Screen) -> bool:
    from lakewright.runtime.settings import find_file

    try:
        find_file(screen.folder)
    except ConfigurationError:
        return False
    return True
