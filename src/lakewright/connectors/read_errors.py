"""Spark's errors about a file it could not read, in words for people."""

from __future__ import annotations

import re
from urllib.parse import unquote

from lakewright.connectors.jdbc_errors import explain_jdbc_error
from lakewright.connectors.kafka_errors import explain_kafka_error
from lakewright.connectors.postgres_log_reading import explain_log_error
from lakewright.connectors.rest_errors import explain_rest_error
from lakewright.errors import InputError, LakewrightError, SchemaChangeError

__all__ = ["explain_read_error"]

_READING = re.compile(r"\[FAILED_READ_FILE[.\w]*\] Encountered error while reading file (\S+?)\.\s")
_NOT_FOUND = re.compile(r"\[PATH_NOT_FOUND\] Path does not exist: (\S.*?)\. SQLSTATE")
_RETYPED = re.compile(r"Parquet column \[(.+?)\]\. Expected Spark type (.+?), actual Parquet type (.+?)\. ?SQLSTATE")
_AGAIN = "Deliver the file again, whole. Producers write aside and rename when they are done."


def explain_read_error(error: BaseException) -> LakewrightError | None:
    """An error that names the file and the cure, for a failed read of a source; None for any other failure.

    A read is lazy, so its failure comes out of the write that it feeds: ask this before anything that
    explains write errors. Since a commit is all or nothing, nothing was published.
    """
    if (kafka := explain_kafka_error(error)) is not None:
        return kafka
    if (failed := explain_jdbc_error(error) or explain_rest_error(error) or explain_log_error(error)) is not None:
        return failed
    text = str(error)
    trace = getattr(error, "getStackTrace", lambda: None)()  # where a Connect server keeps the causes
    if trace and trace not in text:
        text = f"{text}\n{trace}"
    found = _READING.search(text) or _NOT_FOUND.search(text)
    if found is None:
        if "[MALFORMED_CHARACTER_CODING]" in text:
            return InputError(
                "A file of the source is not in the declared encoding. Nothing was published.",
                hint="Set the source's 'encoding' to that of the files.",
            )
        return None
    file = re.sub(r"^file:/+", "/", unquote(found.group(1)) if found.re is _READING else found.group(1))
    causes = text[found.start() :]
    retyped = _RETYPED.search(causes)
    if retyped is not None:
        column, declared, actual = retyped.groups()
        return SchemaChangeError(
            f"The column '{column}' of {file} is {actual}, but is declared as {declared}. Nothing was published.",
            hint="Deliver the file with the declared type, or declare a column of the new type.",
        )
    if "CSV header does not conform to the schema" in causes:
        names = re.search(r"Header: (.*)\n Schema: (.*)\n", causes)
        said = f" It is {names.group(1)}; declared is {names.group(2)}." if names else ""
        return SchemaChangeError(
            f"The header of {file} does not fit the schema.{said} Nothing was published.",
            hint="Deliver the columns in the declared order, or correct the schema.",
        )
    problem, hint = _problem(causes)
    return InputError(f"{file} cannot be read: {problem}. Nothing was published.", hint=hint)


def _problem(causes: str) -> tuple[str, str]:
    if any(word in causes for word in ("PATH_NOT_FOUND", "FILE_NOT_EXIST", "FileNotFoundException")):
        if "Permission denied" in causes:
            return "permission denied", "Give the user that runs Spark the right to read it."
        return (
            "it is no longer there",
            "Put it back, or, if the arrival is already in bronze, repeat from bronze.",
        )
    if "Permission denied" in causes or "AccessControlException" in causes:
        return "permission denied", "Give the user that runs Spark the right to read it."
    if "not a gzip file" in causes or "not in GZIP format" in causes:
        return "its name ends in .gz, but it is no gzip file", "Compress it, or take .gz off its name."
    if "Unexpected end of input stream" in causes or "unexpected end of file" in causes or "EOFException" in causes:
        return "it ends in the middle (a truncated compressed file)", _AGAIN
    if any(
        word in causes for word in ("ZipException", "invalid stored block", "incorrect data check", "bad block header")
    ):
        return "its compressed data is damaged", _AGAIN
    if "is not a Parquet file" in causes or "CANNOT_READ_FILE_FOOTER" in causes:
        return "it is no Parquet file, or its end is missing", _AGAIN
    cause = re.findall(r"^Caused by: (?:[\w.$]+: )?(.+)$", causes, re.MULTILINE)
    return (cause[-1].strip().rstrip(".") if cause else "Spark gave no reason"), _AGAIN
