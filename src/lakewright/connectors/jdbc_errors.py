"""Errors of Spark's JDBC reader in words for people."""

from __future__ import annotations

import re

from lakewright.connectors.postgres_errors import UNKNOWN_STATE, explain_text, state_of_text
from lakewright.errors import LakewrightError

__all__ = ["explain_jdbc_error"]

_SAID = re.compile(r"PSQLException: (.+)|((?:ERROR|FATAL): .+?)(?:\n|$)")


def explain_jdbc_error(error: BaseException) -> LakewrightError | None:
    """The error to raise for a failed read of a database; None for any other failure."""
    text = str(error)
    if "FAILED_JDBC.CONNECTION" in text and "PSQLException" not in text:
        # Spark leaves the reason out here.
        return explain_text("08001", "Spark could not connect: Connection refused", what="The source", effect="")
    if "org.postgresql" not in text and "JDBC_EXTERNAL_ENGINE" not in text:
        return None
    found = _SAID.search(text)
    said = "the read failed" if found is None else (found.group(1) or found.group(2))
    state = state_of_text(said)
    if state == UNKNOWN_STATE and (below := state_of_text(text)).startswith("08"):
        state = below  # the driver's words are general, and what it met (a reset connection) stands below them
    return explain_text(state, said, what="The source", effect="Nothing was published.", reading=True)
