"""Delta's and Spark's write errors in words for people: what happened, whether anything was written, the cure."""

from __future__ import annotations

import re
from urllib.parse import unquote

from lakewright.errors import MAY_PASS, InputError, LakewrightError, SchemaChangeError, TargetError, first_words

__all__ = [
    "OUTSIDE_SLICE",
    "explain_gone_file",
    "explain_gone_version",
    "explain_lost_java",
    "explain_lost_server",
    "explain_write_error",
    "has_other_columns",
    "is_lost_answer",
    "is_lost_server",
    "is_transient",
    "root_message",
]

OUTSIDE_SLICE = "a row lies outside the slice:"
"""How a row that fails on its way to the write says so."""

# Spark Connect: the server does not answer, or was started anew and does not know the session any more.
_LOST_SERVER = (
    "StatusCode.UNAVAILABLE",
    "failed to connect to all addresses",
    "NO_ACTIVE_SESSION",
    "INVALID_HANDLE.SESSION_",
    "INVALID_HANDLE.OPERATION_",
    "RESPONSE_ALREADY_RECEIVED",
    "Received incorrect server side session identifier",
)
_LOST_JAVA = ("Py4JError", "Py4JNetworkError")
"""What a Java process that was killed leaves behind."""
# A stream reads a table by the columns that it had when the query began.
_OTHER_COLUMNS = "DELTA_SCHEMA_CHANGED"
_TRANSIENT = (
    "ConcurrentAppendException",
    "ConcurrentDeleteReadException",
    "ConcurrentDeleteDeleteException",
    "ConcurrentTransactionException",
    "ConcurrentWriteException",
    "DELTA_CONCURRENT_",
    "MetadataChangedException",
    "ProtocolChangedException",
    "DELTA_METADATA_CHANGED",
    "Python worker failed to connect back",
    "Connection refused",
    "Connection reset",
    "ConnectionResetError",
    "timed out",
    # PostgreSQL, by way of Spark's JDBC reader or of the store, where the SQLSTATE is left out
    "terminating connection due to administrator command",
    "terminating connection because of crash of another server process",
    "server closed the connection unexpectedly",
    "connection timeout expired",
    "the database system is starting up",
    "the database system is shutting down",
    "the database system is in recovery mode",
    "the database system is not yet accepting connections",
    "An I/O error occurred while sending to the backend",
    # Kafka's own, of librdkafka and of the Java client, that it calls retriable
    "code=_TRANSPORT,",
    "code=_TIMED_OUT,",
    "code=_ALL_BROKERS_DOWN,",
    "code=_MSG_TIMED_OUT,",
    "code=_FENCED,",  # of a producer whose lease still holds: see connectors/kafka_producer.py
    "code=REQUEST_TIMED_OUT,",
    "code=NETWORK_EXCEPTION,",
    "code=LEADER_NOT_AVAILABLE,",
    "code=NOT_LEADER_FOR_PARTITION,",
    "code=NOT_ENOUGH_REPLICAS",
    "code=COORDINATOR_",
    "code=NOT_COORDINATOR,",
    "code=CONCURRENT_TRANSACTIONS,",
    "org.apache.kafka.common.errors.TimeoutException",
    "org.apache.kafka.common.errors.DisconnectException",
    "org.apache.kafka.common.errors.NotLeaderOrFollowerException",
    MAY_PASS,  # of a tolerant function
    _OTHER_COLUMNS,
    *_LOST_SERVER,
)
_GONE_FILE = ("DELTA_FILE_NOT_FOUND", "FILE_NOT_EXIST", "Not all files from version")
_GONE_VERSION = ("DELTA_VERSION_NOT_FOUND", "DELTA_UNSUPPORTED_TIME_TRAVEL")
_FILE = re.compile(r"(?:file:)?/\S+?\.parquet")
_MOST_OF_RULE = 200
_SQLSTATE = re.compile(r"SQLSTATE:? ?\(?(08|40|53|57)[0-9A-Z]{3}")


def is_transient(error: BaseException) -> bool:
    """Whether the same work may succeed if it is simply done again: an explicit list, nothing else."""
    if isinstance(error, LakewrightError):
        return error.__cause__ is not None and is_transient(error.__cause__)
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    text = f"{type(error).__name__}: {error}"
    return any(word in text for word in _TRANSIENT) or _SQLSTATE.search(text) is not None


def has_other_columns(error: BaseException) -> bool:
    """Whether a stream has ended since the table that it reads has other columns by now.

    A new query reads on where some were added; where some are lost or retyped, it ends with the same words at once.
    """
    if isinstance(error, LakewrightError):
        return error.__cause__ is not None and has_other_columns(error.__cause__)
    return _OTHER_COLUMNS in str(error)


def is_lost_server(error: BaseException) -> bool:
    """Whether a Spark Connect server went away under the work, or was started anew."""
    text = str(error)
    if any(sign in text for sign in _LOST_SERVER):
        return True
    return isinstance(error, LakewrightError) and error.__cause__ is not None and is_lost_server(error.__cause__)


def is_lost_answer(error: BaseException) -> bool:
    """Whether Spark never said how its work ended, for it went away: what it was to commit may have been committed."""
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, ConnectionError) or type(at).__name__ in _LOST_JAVA:
            return True
        at = at.__cause__ or at.__context__
    return is_lost_server(error)


def explain_write_error(
    error: BaseException, *, dataset: str, path: str, where: str | None = None
) -> LakewrightError | None:
    """A kind error for a known cause, or None."""
    text = root_message(error)
    if found := re.search(OUTSIDE_SLICE + r" (.{1,80}?)(?: SQLSTATE|\n|$)", text):
        return InputError(
            f"{dataset}: a row lies outside the slice that is being replaced ({where}): {found.group(1)}. "
            "Nothing was written.",
            hint="Filter the step's output to its slice, or correct the column that tells the event time.",
        )
    # One that Delta names EXPRESSION(...) is the slice. Names may hold any sign, and a generated column is one, too.
    if found := re.search(r"CHECK constraint (?!EXPRESSION\()(\S.*?) (\(.+\)) violated by row", text):
        name, rule = found.group(1), found.group(2)
        rule = rule if len(rule) <= _MOST_OF_RULE else f"{rule[:_MOST_OF_RULE]} ..."
        return InputError(  # which row, is not told: its values may be private
            f"{dataset}: a row breaks the table's own constraint {name} {rule}. Nothing was written.",
            hint="Set such rows aside with a Dead-Letter rule, or correct the constraint.",
        )
    if "DELTA_REPLACE_WHERE_MISMATCH" in text or "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES" in text:
        values = re.findall(r"^ - (\S+) : (.*)$", text, re.MULTILINE)
        # Of the other columns nothing is told: they may be private.
        cut = [(name, value) for name, value in values if re.search(rf"\b{re.escape(name)}\b", where or "")]
        row = ", ".join(f"{name} = {value}" for name, value in cut)
        return InputError(
            f"{dataset}: a row lies outside the slice that is being replaced ({where}){': ' + row if row else ''}. "
            "Nothing was written.",
            hint="Filter the step's output to its slice, or correct the column that tells the event time.",
        )
    if found := re.search(r"the (contract is broken:|partition column) \S+ is NULL in a row", text):
        return InputError(
            f"{dataset}: {found.group(0)}. Nothing was written.",
            hint="Set such rows aside with a Dead-Letter rule, or say what stands for NULL.",
        )
    if found := re.search(r"Static Joiner: the reference has .{1,300}?\.(?= SQLSTATE|\s|$)", text):
        return InputError(
            f"{dataset}: {found.group(0)} Rows would be multiplied. Nothing was written.",
            hint="Correct the reference, so that a row finds at most one match, and run again.",
        )
    if "No space left on device" in text or "File too large" in text or "Disk quota exceeded" in text:
        return TargetError(
            f"{dataset}: no room to write to {path} ({first_words(text)}). The table is unchanged.",
            hint="Free some space, then run again: nothing that was done is lost.",
        )
    if "Permission denied" in text or "AccessDenied" in text or "Mkdirs failed" in text:
        return TargetError(
            f"{dataset}: no permission to write to {path}. The table is unchanged.",
            hint="Give this user write permission on that folder, or set another `lake` in lakewright.toml.",
        )
    if "DELTA_FAILED_TO_MERGE_FIELDS" in text or "DELTA_METADATA_MISMATCH" in text:
        return SchemaChangeError(f"{dataset}: the rows do not fit the table {path}: {first_words(text)}")
    return explain_gone_file(error, dataset=dataset, effect=" Nothing was written.")


def explain_gone_file(error: BaseException, *, dataset: str, effect: str = "") -> TargetError | None:
    """For a read or write that met a table whose files somebody has deleted; None for any other failure."""
    text = root_message(error)
    if not any(sign in text for sign in _GONE_FILE):
        return None
    found = _FILE.search(text)
    which = "a data file that the log names" if found is None else re.sub(r"^file:/+", "/", unquote(found.group(0)))
    return TargetError(
        f"{dataset}: {which} is gone.{effect}",
        hint="Somebody deleted or vacuumed files of a table. Bring them back, go back to a version that is whole with "
        "`lakewright rollback`, or make the slice again from its inputs with `lakewright backfill`.",
    )


def explain_gone_version(error: BaseException, *, dataset: str, version: int) -> TargetError | None:
    """For a version that the log can no longer give: it was cleaned, or its retention has passed."""
    text = root_message(error)
    if not any(sign in text for sign in _GONE_VERSION):
        return None
    return TargetError(
        f"{dataset}: version {version} can no longer be read: {_plain(first_words(text))} Nothing was written.",
        hint=f"Read a newer version. `history` on {dataset} keeps versions for longer, from now on.",
    )


def explain_lost_server(error: BaseException, *, what: str) -> TargetError | None:
    """For work that was under way on a Spark Connect server that went away, or was started anew; None for any other."""
    if not any(sign in str(error) for sign in _LOST_SERVER):
        return None
    return TargetError(
        f"{what}: the Spark Connect server went away. Whether its commit was made, the next run finds in the log.",
        hint="Start the server again; `lakewright run` goes on from here.",
    )


def explain_lost_java(what: str) -> TargetError:
    """For work whose own Java process was killed: Python cannot go on without it, a new run can."""
    return TargetError(
        f"{what}: Spark's Java process has ended, by a kill or for lack of memory. Whether its last commit was made, "
        "the next run finds in the log.",
        hint="Start the command again: it goes on from here. If memory was short, give it more: `driver_memory` of the "
        "target.",
    )


def root_message(error: BaseException) -> str:
    """The text of an error and of what caused it, down to the bottom."""
    texts, seen = [], set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        texts.append(str(at))
        # A Connect server may keep the causes out of the message; they are in its stack trace.
        trace = getattr(at, "getStackTrace", lambda: None)()
        if trace and trace not in texts[-1]:
            texts.append(trace)
        java = getattr(at, "java_exception", None) or getattr(at, "_origin", None)
        while java is not None:
            texts.append(str(java.toString()) if hasattr(java, "toString") else str(java))
            java = java.getCause() if hasattr(java, "getCause") else None
        at = at.__cause__ or at.__context__
    return "\n".join(texts)


def _plain(line: str) -> str:
    """A line of Delta's without its codes.

    >>> _plain("[DELTA_VERSION_NOT_FOUND] Cannot time travel to version 0. SQLSTATE: 22003")
    'Cannot time travel to version 0.'
    """
    return re.sub(r"^\[[\w.]+\] | SQLSTATE: \w+.*$", "", line)
