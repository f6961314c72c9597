"""What a request that failed in a worker means: only text survives the way to the driver."""

from __future__ import annotations

import re

from lakewright.connectors.http_calls import HttpFailure
from lakewright.errors import InputError
from lakewright.model.secrets import mask

__all__ = ["as_text", "explain_rest_error", "unanswered"]

_MARK, _END = "lakewright-http-failed", "lakewright-http-end"
_FAILED = re.compile(rf"{_MARK} (.*?) {_END}", re.DOTALL)


def as_text(failure: HttpFailure) -> RuntimeError:
    """The error to raise in a worker."""
    return RuntimeError(f"{_MARK} {mask(str(failure))} {_END}")


def explain_rest_error(error: BaseException) -> InputError | None:
    """The error for people; None where the failure was something else."""
    found = _FAILED.search(str(error))
    return None if found is None else unanswered(found.group(1))


def unanswered(problem: str) -> InputError:
    return InputError(
        f"{problem}. Nothing was published.",
        hint="Look whether the service is up and the token is valid; the next run goes on from here.",
    )
