"""What PostgreSQL complains about, in words for people: never a stack trace, never a password.

A failure that may pass by itself keeps its SQLSTATE in its cause, by which the runner tells that it may try again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, InputError, LakewrightError, SchemaChangeError, TargetError
from lakewright.model.secrets import mask

if TYPE_CHECKING:
    import psycopg

__all__ = [
    "UNKNOWN_STATE",
    "DatabaseFailure",
    "explain_database_error",
    "explain_text",
    "state_of",
    "state_of_text",
]

UNKNOWN_STATE = "XX000"

_LOST = (
    "terminating connection",
    "server closed the connection",
    "connection is lost",
    "connection already closed",
    "the connection is closed",
    "I/O error occurred while sending",
    "This connection has been closed",
    "consuming input failed",
    "Connection reset",
    "Broken pipe",
    "EOF detected",
    "SSL connection has been closed unexpectedly",
)
_UNREACHABLE = (
    "Connection refused",
    "timeout expired",
    "timed out",
    "could not translate host",
    "failed to resolve host",
    "No route to host",
    "Network is unreachable",
    "The connection attempt failed",
)
_NOT_NOW = ("the database system is starting up", "the database system is shutting down", "in recovery mode")
_FULL = ("No space left on device", "File too large", "Disk quota exceeded")
_STATE = re.compile(r"SQLSTATE (\w{5})")


class DatabaseFailure(Exception):
    """The cause of an error of ours: PostgreSQL's own words, masked, after their SQLSTATE."""

    def __init__(self, state: str, text: str) -> None:
        super().__init__(f"SQLSTATE {state}: {_first(text)}")
        self.state = state


def state_of(error: BaseException) -> str:
    """The SQLSTATE of a failure; a lost or refused connection has one of class 08, as the server would say."""
    state = getattr(error, "sqlstate", None)
    return str(state) if state else state_of_text(str(error))


def explain_database_error(error: psycopg.Error, *, what: str, effect: str, reading: bool = False) -> LakewrightError:
    """The error to raise for one of psycopg's; ``effect`` says what became of the rows."""
    return explain_text(state_of(error), str(error), what=what, effect=effect, reading=reading)


def explain_text(state: str | None, text: str, *, what: str, effect: str, reading: bool = False) -> LakewrightError:
    """The same for a message that came by another way (Spark's JDBC reader, a worker)."""
    state = state or state_of_text(text)
    said = _first(text)
    kind, problem, hint = _problem(state, said, InputError if reading else TargetError)
    error = kind(f"{what}: {problem} {effect}".strip(), hint=hint)
    error.__cause__ = DatabaseFailure(state, text)
    return error


def _problem(state: str, said: str, other: type[LakewrightError]) -> tuple[type[LakewrightError], str, str | None]:
    if state in ("28P01", "28000"):
        return (
            ConfigurationError,
            f"the database refuses the user or the password ({said}).",
            "Correct the connection's url, or the secret that its password names.",
        )
    if state == "3D000":
        return ConfigurationError, f"there is no such database ({said}).", "Correct the connection's url."
    if state.startswith("08"):
        if any(word in said for word in _UNREACHABLE):
            return TargetError, f"the database does not answer ({said}).", "Is it running, and is the url right?"
        return TargetError, f"the connection to the database was lost ({said}).", "Run again once it is back."
    if state == "53100" or any(word in said for word in _FULL):
        return (
            TargetError,
            f"the disk of the database is full ({said}).",
            "Free some space on the disk of the database, then run again.",
        )
    if state == "53300":
        return (
            TargetError,
            f"the database takes no more connections ({said}).",
            "Allow it more of them, or run with less in parallel.",
        )
    if state.startswith(("40", "53", "57")):
        return TargetError, f"the database stopped the work ({said}).", "Run again once it is back."
    if state == "55P03":
        return (
            TargetError,
            "another session holds a lock on the table or on its ledger, and did not give it back in time.",
            "See who in pg_stat_activity; run again when it has ended.",
        )
    if state == "42501":
        return (
            ConfigurationError,
            f"{said}.",
            "Grant the right to the connection's user, or leave that column or table out.",
        )
    if state in ("42P01", "42703"):
        return (InputError if other is InputError else SchemaChangeError), f"{said}.", None
    if state.startswith(("22", "23")):
        return (InputError if other is InputError else TargetError), f"a row does not fit ({said}).", None
    return other, f"{said}.", None


def state_of_text(text: str) -> str:
    """The SQLSTATE that a message stands for where it came without one."""
    if found := _STATE.search(text):
        return found.group(1)
    for words, state in ((_LOST, "08006"), (_UNREACHABLE, "08001"), (_NOT_NOW, "57P03")):
        if any(word in text for word in words):
            # A server that stops says so once; whoever reads on meets a closed connection.
            return "57P01" if "administrator command" in text else state
    for word, state in (
        ("password authentication failed", "28P01"),
        ("no password supplied", "28P01"),
        ("permission denied", "42501"),
        ("too many clients", "53300"),
        ("too many connections", "53300"),
        ("remaining connection slots are reserved", "53300"),
        ("conflict with recovery", "40001"),
        ("could not serialize access", "40001"),
        ("deadlock detected", "40P01"),
    ):
        if word in text:
            return state
    if re.search(r'database "[^"]*" does not exist', text):
        return "3D000"
    if re.search(r'relation "[^"]*" does not exist', text):
        return "42P01"
    return "42703" if re.search(r"column .* does not exist", text) else UNKNOWN_STATE


def _first(text: str) -> str:
    """The line that tells most, without the words in front of it; masked before it is cut."""
    lines = [line.strip() for line in mask(text).splitlines() if line.strip()]
    told = next((line for line in lines if "FATAL:" in line or "ERROR:" in line), lines[0] if lines else "")
    return re.sub(r"^.*?(?:FATAL|ERROR):\s+", "", told).rstrip(".")[:300]
