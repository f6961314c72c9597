"""`lakewright show` and `lakewright sql`: read datasets by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from lakewright.cli.frames import FormatOption, show_frame
from lakewright.cli.opening import open_project
from lakewright.cli.screen import Screen
from lakewright.errors import ConfigurationError, UnknownNameError, did_you_mean, first_words

if TYPE_CHECKING:
    from lakewright.pipelines.project import Project

__all__ = ["refuse_writes", "show", "sql"]

_READS = ("SELECT", "WITH", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "VALUES")
_WRITES = re.compile(r"\b(INSERT|MERGE|UPDATE|DELETE)\b", re.IGNORECASE)
_VIEWS = ("dead_letters", "dead_letter_life", "late_rows", "repeats", "completeness")


def show(
    screen: Screen,
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="A dataset, or dead_letters, late_rows, repeats, completeness.")
    ],
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="At most so many rows.")] = 20,
    form: FormatOption = None,
) -> None:
    """Show the first rows of a dataset, without the columns of the system."""
    with open_project(screen) as project:
        known = [*project.graph.owners, *project.graph.adopted, *_VIEWS]
        if dataset not in known:
            raise UnknownNameError("dataset", dataset, set(known))
        screen.say("Starting Spark ...", "dim")
        with _files_there(dataset):
            show_frame(screen, project.show(dataset, limit=limit + 1), limit=limit, form=form)


def sql(
    screen: Screen,
    query: Annotated[
        str,
        typer.Argument(
            metavar="QUERY", help="A query over datasets, dead_letters, late_rows, repeats and completeness by name."
        ),
    ],
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="At most so many rows.")] = 100,
    form: FormatOption = None,
) -> None:
    """Run a query over the project's datasets. It only reads."""
    refuse_writes(query)
    with open_project(screen) as project:
        known = {*project.graph.owners, *project.graph.adopted, *_VIEWS}
        screen.say("Starting Spark ...", "dim")
        try:
            with _files_there("The query"):
                show_frame(screen, project.sql(query), limit=limit, form=form)
        except Exception as error:
            if not type(error).__module__.startswith("pyspark.errors"):
                raise
            raise _explained(error, known, project) from error


@contextmanager
def _files_there(what: str) -> Iterator[None]:
    """Tell in words of a data file that somebody has deleted."""
    try:
        yield
    except Exception as error:
        from lakewright.lake.delta_errors import explain_gone_file

        explained = explain_gone_file(error, dataset=what)
        if explained is None:
            raise
        raise explained from error


def refuse_writes(query: str) -> None:
    """Let only statements through that read: data is written by steps, which leave receipts."""
    plain = re.sub(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|\"[^\"]*\"|`[^`]*`", " ", query, flags=re.DOTALL)
    first = re.match(r"[\s(]*(\w*)", plain)
    word = "" if first is None else first.group(1).upper()
    if word in _READS and not (word == "WITH" and _WRITES.search(plain)):
        return
    what = f"begins with {word}" if word not in ("", *_READS) else "writes" if word else "is empty"
    raise ConfigurationError(
        f"`lakewright sql` only reads, and this statement {what}. Nothing was run.",
        hint="Write a SELECT. What changes data belongs into a step, so that every row has its receipt.",
    )


def _explained(error: Exception, known: set[str], project: Project) -> Exception:
    """Spark's first line, and for an unknown table the nearest one; what fails while it runs stays as it is."""
    if type(error).__name__ not in ("AnalysisException", "ParseException"):
        return error
    message = re.sub(r" SQLSTATE: \w+.*| Verify the spelling.*", "", first_words(error, most=None))
    unknown = re.search(r"table or view `?([^`]+?)`? cannot be found", message)
    if unknown is None:
        return ConfigurationError(message)
    name = unknown.group(1)
    if name in known:
        hint: str | None = "It is declared, but has no table yet: `lakewright run` makes it."
    else:
        hint = did_you_mean(name, known) or f"There are: {', '.join(sorted(known))}."
    return ConfigurationError(f"There is no dataset '{name}'.", hint=hint)
