"""Several frames of changes in one transaction of PostgreSQL: all of them are published, or none.

Guarantee:
    Every frame is staged before anything is changed (each in a table of its own, made like the target); then one
    transaction applies them in their order. Where one of them breaks a rule of the table, or a task or the driver dies,
    the target is as it was.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

from lakewright.connectors.postgres_changes import drop_outdated, fold_staged, refuse_missing_columns
from lakewright.connectors.postgres_connection import TableName, connect, connection_arguments
from lakewright.connectors.postgres_errors import explain_database_error
from lakewright.connectors.postgres_settling import settled_transaction
from lakewright.connectors.postgres_staging import Stage, stage_name, staging
from lakewright.connectors.postgres_write import changed_rows, merge_staged
from lakewright.errors import ConfigurationError
from lakewright.model.connections import Connection
from lakewright.model.outside import KeyedChanges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["merge_together"]


def merge_together(
    changes: Sequence[DataFrame],
    connection: Connection,
    *,
    table: str,
    keys: Sequence[str],
    sequence: str | None = None,
    deleted: str | None = None,
    delete: Literal["hard", "soft"] = "hard",
) -> int:
    """Runs a job per frame and one transaction that applies all changes, in order: see ``merge_rows``.

    Within a frame several changes of one key are folded, or refused. Of two frames the later one counts; with
    ``sequence`` the later change does, in whichever frame it is. Returns the rows changed, a row that several frames
    change counted each time.
    """
    import psycopg

    if not changes:
        raise ConfigurationError("Transactional Writer: there are no changes to write.")
    target, rules = TableName.parse(table), KeyedChanges(keys, sequence, deleted, delete)
    what, extra = f"{connection.name}: {target}", {deleted: "boolean"} if deleted else {}
    for frame in changes:
        refuse_missing_columns(frame.columns, rules, what=what)
    arguments = connection_arguments(connection)
    try:
        with ExitStack() as opened:
            stages = []
            for frame in changes:
                stage = Stage(stage_name(target, secrets.token_hex(8), 1), target, what)
                # A session of its own holds each staging table: by its lock others see that it is in use.
                holder = opened.enter_context(connect(arguments))
                stages.append(opened.enter_context(staging(holder, stage, frame.columns, extra=extra)))
                stage.fill(frame, arguments)
            session = opened.enter_context(connect(arguments))
            with settled_transaction(session, arguments, what=what):
                for stage in stages:
                    stage.refuse_incomplete(session)
                    fold_staged(session, stage, rules)
                for number, stage in enumerate(stages):
                    drop_outdated(session, stages[:number], stage, rules)
                return sum(changed_rows(merge_staged(session, stage, rules)) for stage in stages)
    except psycopg.Error as error:
        explained = explain_database_error(error, what=what, effect="Nothing was written.")
        raise explained from explained.__cause__
