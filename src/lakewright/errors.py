"""What can go wrong, by what a caller can do about it.

Every message says what happened, where, and what to do next; the facts are attributes. The exit code
of the command line belongs to the class, so that a script can tell a wrong project from a failed run.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from lakewright.masking import mask

__all__ = [
    "MAY_PASS",
    "ConfigurationError",
    "DefinitionError",
    "InputError",
    "InterruptedRun",
    "LakewrightError",
    "LeaseHeldError",
    "LimitExceeded",
    "MadeMeanwhileError",
    "MissingColumnsError",
    "NotReady",
    "SchemaChangeError",
    "StepFailed",
    "StoreBusyError",
    "StoreError",
    "TargetError",
    "TooManyRunsError",
    "UnknownNameError",
    "did_you_mean",
    "first_words",
    "name_and_words",
]

MAY_PASS = "no fault of the row, worth another attempt:"
"""How an error that is raised far away, and comes back as text only, says that it is transient."""


class LakewrightError(Exception):
    """The root of all our errors: a message for people and, where there is one, a hint.

    ``exit_code`` is what the command line ends with: 1 the run failed, 2 wrong usage or configuration
    (nothing was started), 3 a guard refused (nothing was published), 4 not ready yet, 130 interrupted.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        # A message often repeats what a driver or a step's own code said, which may hold a password.
        self.message = mask(message)
        self.hint = None if hint is None else mask(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message} {self.hint}"


class ConfigurationError(LakewrightError):
    """A setting, an option or an argument is wrong. Nothing was started."""

    exit_code = 2


class DefinitionError(ConfigurationError):
    """A project file declares something that cannot work; carries the place of the definition."""

    def __init__(
        self, message: str, *, file: str | None = None, line: int | None = None, hint: str | None = None
    ) -> None:
        place = "" if file is None else f"{file}:{line}: " if line is not None else f"{file}: "
        super().__init__(f"{place}{message}", hint=hint)
        self.file = file
        self.line = line


class UnknownNameError(ConfigurationError):
    """A name that nobody declared; the message offers the nearest one."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = sorted(known)
        listed = ", ".join(self.known[:12]) or "none"
        more = f" and {len(self.known) - 12} more" if len(self.known) > 12 else ""
        super().__init__(f"There is no {what} '{name}'. Known: {listed}{more}.", hint=did_you_mean(name, self.known))


class InputError(LakewrightError):
    """The data that came in cannot be used as it is. Nothing was published."""

    exit_code = 3


class MissingColumnsError(InputError):
    """A column that a pattern was told to use is not there."""

    def __init__(self, *, pattern: str, missing: Sequence[str], present: Sequence[str]) -> None:
        self.pattern = pattern
        self.missing = list(missing)
        self.present = list(present)
        hints = [
            f"Did you mean '{near[0]}' for '{name}'?"
            for name in missing
            if (near := difflib.get_close_matches(name, self.present, n=1))
        ]
        noun = "column" if len(self.missing) == 1 else "columns"
        super().__init__(
            f"{pattern}: the input has no {noun} {', '.join(self.missing)}. "
            f"It has {', '.join(self.present) or 'no columns'}.",
            hint=" ".join(hints) or None,
        )


class SchemaChangeError(InputError):
    """A column was lost or changed its type. Refused before the write."""


class NotReady(LakewrightError):
    """What was asked for is not complete yet, or no longer. Nothing was read: wait, and ask again."""

    exit_code = 4


class LimitExceeded(LakewrightError):
    """A guard's stop limit fired. Nothing was published; the rows set aside stay as evidence."""

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        dataset: str,
        slice_id: str,
        share: float | None = None,
        rows: int | None = None,
    ) -> None:
        super().__init__(message)
        self.dataset = dataset
        self.slice_id = slice_id
        self.share = share
        self.rows = rows


class TargetError(LakewrightError):
    """A table, folder or database that we write to refused. The message says whether anything was written."""


class StepFailed(LakewrightError):
    """A step's own code raised, or returned what is no frame."""


class StoreError(LakewrightError):
    """The control store cannot be used as it is."""

    exit_code = 2


class StoreBusyError(StoreError):
    """The control store cannot be used just now: it is held by others, or its disk is full. The same may pass later."""

    exit_code = 1


class LeaseHeldError(LakewrightError):
    """Somebody else works on the same thing just now."""

    def __init__(self, message: str, *, name: str, owner: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.name = name
        self.owner = owner


class MadeMeanwhileError(LakewrightError):
    """Somebody else has made the slice since it was found to be due."""


class TooManyRunsError(LeaseHeldError):
    """As many runs as may wait for the active one are waiting already. This one was not started."""


class InterruptedRun(LakewrightError):
    """The run was asked to stop (SIGTERM, SIGINT, ``lakewright cancel``)."""

    exit_code = 130


_FROM_JAVA = "An error occurred while calling"


def first_words(error: BaseException | str, *, most: int | None = 400) -> str:
    r"""The first line of a message that says something, cut to ``most`` characters; without one, the error's type.

    Spark puts plans and stack traces below it, and Py4J words of its own above. Secrets are masked before it is cut:
    the first half of one would not be known again in the middle of a longer text.

    >>> first_words(ValueError("An error occurred while calling o1.save.\n: no such disk\n\tat Disk.java"))
    'no such disk'
    >>> first_words(ConnectionError())
    'ConnectionError'
    """
    lines = [line.strip().removeprefix(": ") for line in mask(str(error)).splitlines() if line.strip(" :")]
    said = next((line for line in lines if not line.startswith(_FROM_JAVA)), "")[:most]
    return said or ("" if isinstance(error, str) else type(error).__name__)


def name_and_words(error: BaseException) -> str:
    """One line of an error that nobody has explained: what it is, without a stack trace."""
    name, said = type(error).__name__, first_words(error)
    return name if said == name else f"{name}: {said}"


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A hint that names the closest known word, or nothing.

    >>> did_you_mean("raw_visit", ["raw_visits", "users"])
    "Did you mean 'raw_visits'?"
    """
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean '{near[0]}'?" if near else None
