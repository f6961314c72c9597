"""Why a connector does not run, in words for people: from the trace of its task, or the worker's refusal.

What is not known is told with the first line of the trace and its innermost cause; never a whole trace, and never a
password, which errors mask.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from lakewright.masking import mask

__all__ = ["Failure", "RunState", "failure_of", "run_state", "trace_of"]

RunState = Literal["running", "waiting", "starting", "failed", "paused", "stopped", "absent"]


class Failure(NamedTuple):
    """What is wrong, and what to do about it."""

    problem: str
    hint: str


_NO_ROLE = "The database's user has no right to replicate"
_KNOWN: tuple[tuple[str, Failure], ...] = (
    (
        r'replication slot "(?P<slot>[^"]+)" is active for PID (?P<pid>\d+)',
        Failure(
            "The replication slot '{slot}' is taken: process {pid} of the database reads it.",
            "End that reader (SELECT pg_terminate_backend({pid});), or give this capture another slot: slot='...'.",
        ),
    ),
    (
        r"(?:password authentication failed|no password was provided|requested password-based authentication)",
        Failure(
            "The database refuses the user or the password.",
            "Correct the connection's url, or the secret that its password names, then register again.",
        ),
    ),
    (
        r'can no longer (?:access|get changes from) replication slot "(?P<slot>[^"]+)"'
        r'|(?:replication )?slot "(?P<slot2>[^"]+)" (?:has been|was) invalidated',
        Failure(
            "The replication slot '{slot}' is lost: the database has removed the log that it stood on. Changes since "
            "then cannot be had from it.",
            "Decommission the capture, then register it again with snapshot=True; raise max_slot_wal_keep_size.",
        ),
    ),
    (
        r"requested WAL segment \S+ has already been removed|no longer available on the server",
        Failure(
            "The database no longer has the log from which the capture would go on: its slot was dropped or is lost. "
            "Changes since then cannot be had from it.",
            "Decommission the capture, then register it again with snapshot=True.",
        ),
    ),
    (
        r"wal_level",
        Failure(
            "The database does not write what logical replication needs: wal_level is not 'logical'.",
            "ALTER SYSTEM SET wal_level = 'logical'; then restart PostgreSQL.",
        ),
    ),
    (
        r"(?:must be superuser or replication role|permission denied to (?:use replication slots|start WAL sender))",
        Failure(f"{_NO_ROLE}.", 'ALTER ROLE "USER" REPLICATION;'),
    ),
    (
        r"all replication slots are in use",
        Failure(
            "All replication slots of the database are in use.",
            "Drop one that nobody needs (SELECT pg_drop_replication_slot('...');), or raise max_replication_slots.",
        ),
    ),
    (
        r"number of requested standby connections exceeds max_wal_senders",
        Failure("All WAL senders of the database are in use.", "Raise max_wal_senders, and restart PostgreSQL."),
    ),
    (
        r'publication "(?P<slot>[^"]+)" does not exist',
        Failure(
            "The publication '{slot}' is gone.",
            "Register again, or make it: CREATE PUBLICATION ... FOR TABLE ...;",
        ),
    ),
    (
        r"must be owner of (?:table|publication) (?P<slot>\S+)",
        Failure(
            "The database's user may not publish '{slot}': it is not its owner.",
            "Let the owner make the publication: CREATE PUBLICATION ... FOR TABLE ...;",
        ),
    ),
    (
        r"permission denied for (?:table|schema|database) (?P<slot>\S+)",
        Failure("The database's user has no right to '{slot}'.", "Grant it, as the preflight says."),
    ),
    (
        r'(?:FATAL: )?database "(?P<slot>[^"]+)" does not exist',
        Failure("There is no database '{slot}'.", "Correct the connection's url."),
    ),
    (
        r"Connection to \S+ refused|Connection refused|UnknownHostException|No route to host",
        Failure(
            "The worker cannot reach the database.",
            "Is it running, and does the connection's host mean the same where the worker runs?",
        ),
    ),
)


def failure_of(text: str) -> Failure:
    """What a trace or a refusal means.

    >>> failure_of('ERROR: replication slot "lw_blog" is active for PID 41').problem
    "The replication slot 'lw_blog' is taken: process 41 of the database reads it."
    """
    for pattern, failure in _KNOWN:
        if found := re.search(pattern, text, re.IGNORECASE):
            facts = {"slot": "", "pid": "", **{k.rstrip("2"): v for k, v in found.groupdict().items() if v}}
            return Failure(failure.problem.format(**facts), failure.hint.format(**facts))
    return Failure(_first_words(mask(text)), "The worker's log tells more.")


def run_state(status: Mapping[str, Any] | None) -> RunState:
    """One word for the states of a connector and its only task."""
    if status is None:
        return "absent"
    states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
    if "FAILED" in states:
        return "failed"
    for word in ("STOPPED", "PAUSED"):
        if word in states:
            return "stopped" if word == "STOPPED" else "paused"
    return "running" if states == ["RUNNING", "RUNNING"] else "starting"


def trace_of(status: Mapping[str, Any]) -> str:
    """The trace of what failed."""
    parts = [status["connector"], *status["tasks"]]
    return next((str(one.get("trace") or "") for one in parts if one["state"] == "FAILED"), "")


def _first_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "It failed without a word."
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    told = [_plain(lines[0]), *([_plain(causes[-1])] if causes else [])]
    return " ".join(f"{one.rstrip('.')}." for one in dict.fromkeys(told))[:600]


def _plain(line: str) -> str:
    """A line of a trace without the names of Java's classes in front."""
    return re.sub(r"^(?:[\w$]+\.)+[\w$]+(?:Exception|Error): ", "", line)
