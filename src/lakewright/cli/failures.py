"""Errors as people and scripts see them: what happened, what to do, and the exit code."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from typer import TyperException

from lakewright.errors import LakewrightError, first_words, name_and_words

__all__ = ["Failure", "describe"]


@dataclass(frozen=True, slots=True)
class Failure:
    """An error in words; its keys are those of ``--json``."""

    type: str
    message: str
    hint: str | None
    exit_code: int

    def lines(self) -> list[str]:
        """What standard error shows."""
        shown = [f"error: {self.message}"]
        return shown if self.hint is None else [*shown, f"hint: {self.hint}"]

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def describe(error: BaseException) -> Failure:
    """What to tell about an error; never a stack trace."""
    if isinstance(error, LakewrightError):
        return Failure(type(error).__name__, error.message, error.hint, error.exit_code)
    if isinstance(error, TyperException):
        return _usage(error)
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"{error.filename}: "
        return Failure(type(error).__name__, f"{where}{error.strerror}", None, 1)
    if type(error).__module__.startswith("pyspark.errors"):
        return Failure(type(error).__name__, first_words(error, most=None), _LOOK_CLOSER, 1)
    return Failure(type(error).__name__, name_and_words(error), _LOOK_CLOSER, 1)


_LOOK_CLOSER = "The same command with --debug shows where it happened."


def _usage(error: TyperException) -> Failure:
    """Wrong usage. The attributes belong to Typer's own parser, which has no public types for them."""
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "lakewright")
    option = getattr(error, "option_name", None)
    near = getattr(error, "possibilities", None)
    message = error.format_message().removesuffix(".")
    hint = f"`{path} --help` lists its options and an example."
    if near is not None and option is not None:
        message = f"`{path}` has no option `{option}`"
        hint = f"Did you mean `{near[0]}`? {hint}" if near else hint
    return Failure("UsageError", f"{message}.", hint, 2)
