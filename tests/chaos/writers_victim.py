"""The process that is killed: it starts Spark, waits for a word, runs the whole project, and tells what it does."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from lakewright.patterns.idempotency.proxy import publish_load, write_load
from lakewright.pipelines.progress import Event, Note, SliceDone, SliceStarted
from lakewright.pipelines.project import Project
from tests.chaos.writers_project import AT

__all__ = ["LOADS", "main", "publish_numbers"]

LOADS = "loads"


def publish_numbers(project: Project, upto: int) -> None:
    """A manifest over files, as a program of its own would use it; in a pipeline it is ``FileProxy``."""
    place = str(project.folder / LOADS)
    numbers = project.spark().range(upto).toDF("n").coalesce(1)
    publish_load(place, write_load(numbers, place))


def main(folder: str) -> int:
    """Runs the project each time that its input says ``go NUMBER``; ends with 1 where a run fails."""
    with Project(Path(folder)) as project:
        _warm_up(project)
        _say("ready")
        for line in sys.stdin:
            number = int(line.split()[1])
            if number % 2:
                publish_numbers(project, number)
                _say(f"published {number}")
            summary = project.run(at=AT, listener=_listen)
            for error in summary.errors:
                _say(f"error {str(error).splitlines()[0]}")
            if summary.errors:
                return 1
            if not number % 2:
                publish_numbers(project, number)
                _say(f"published {number}")
            _say("done")
    return 0


def _warm_up(project: Project) -> None:
    """What takes Spark and Delta long the first time: a kill is to meet writers, not the loading of classes."""
    project.graph  # noqa: B018  (declares the names)
    with tempfile.TemporaryDirectory(prefix="lakewright-chaos-") as folder:
        project.spark().range(1).write.format("delta").save(f"{folder}/warm")
        project.spark().read.format("delta").load(f"{folder}/warm").collect()


def _listen(event: Event) -> None:
    if isinstance(event, SliceStarted):
        _say(f"begin {event.dataset} {event.slice_id}")
    elif isinstance(event, SliceDone):
        _say(f"end {event.outcome.dataset} {event.outcome.slice_id}")
    elif isinstance(event, Note):
        _say(f"note {event.message}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
