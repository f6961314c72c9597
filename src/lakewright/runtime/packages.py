"""What a Spark that is not ours needs: coordinates, jars and settings, for a cluster, an image or a Connect server.

Guarantee:
    All of it comes from the descriptor by which Lakewright's own jars are resolved, and from the settings of its own
    sessions, so that both run the same. Asking fetches nothing.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from lakewright.runtime.jars import SPARK_JARS, jar_folder, packages, present_jars
from lakewright.runtime.secret_settings import TEXT_REDACTION, text_redaction
from lakewright.runtime.session import DELTA, logstore_setting
from lakewright.runtime.settings import Target

__all__ = ["Needs", "needs_of"]


@dataclass(frozen=True, slots=True)
class Needs:
    """What to give to a Spark, so that it can do what Lakewright asks of it."""

    packages: list[str]
    """Maven coordinates, for ``spark.jars.packages``."""
    excluded: list[str]
    """``group:artifact`` that Spark ships already, for ``spark.jars.excludes``."""
    overridden: list[str]
    """Coordinates that stand in for the release that a package asks for."""
    jars: list[Path]
    """The files in the cache; none before the first run."""
    folder: Path
    """Where the files are, or will be."""
    settings: dict[str, str]

    def as_properties(self) -> str:
        """A text that can be put into ``spark-defaults.conf`` as it is."""
        lines = [
            "# Settings that Spark needs when it starts",
            *(f"{name} {_in_properties(value)}" for name, value in self.settings.items()),
            "",
            "# Jars by their Maven coordinates; Spark ships what is excluded",
            f"spark.jars.packages {','.join(self.packages)}",
            f"spark.jars.excludes {','.join(self.excluded)}",
            *(f"# Stands in for the newer release that a package asks for: {one}" for one in self.overridden),
            "",
        ]
        if self.jars:
            lines.append(f"# Or, instead of the two lines above, the {len(self.jars)} files, which need no network")
            lines.append(f"# spark.jars {','.join(map(str, self.jars))}")
        else:
            lines += [f"# The files are not in {self.folder} yet: the first run fetches them"]
        return "\n".join(lines) + "\n"


def _in_properties(value: str) -> str:
    """A value as a file of Java's properties holds it."""
    return value.replace("\\", "\\\\")


def needs_of(target: Target | None = None) -> Needs:
    """What Lakewright needs anywhere and, with a target, for its lake."""
    tree = ET.parse(SPARK_JARS.descriptor)
    return Needs(
        packages=packages(),
        excluded=[f"{one.get('org')}:{one.get('module') or '*'}" for one in tree.iterfind("dependencies/exclude")],
        overridden=[
            f"{one.get('org')}:{one.get('module')}:{one.get('rev')}" for one in tree.iterfind("dependencies/override")
        ],
        jars=present_jars(),
        folder=jar_folder(),
        settings={**DELTA, TEXT_REDACTION: text_redaction([]), **({} if target is None else logstore_setting(target))},
    )
