"""Secret: a reference to a password or key that lies elsewhere, looked up at the last moment.

Guarantee:
    Whatever is written down (settings, a repr, a pickle for a worker, an error) holds the reference alone. `reveal`
    reads the value where it is used, and from then on `mask` takes it out of every text for people. An error names
    the variable or file that is missing, never a value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from lakewright.errors import ConfigurationError, did_you_mean
from lakewright.masking import mask, remember

__all__ = ["PREFIX", "Secret", "is_reference", "mask", "secrets_folder", "secrets_in"]

PREFIX = "secret://"
_KINDS = ("env", "file")
_FORMS = "Write secret://env/VARIABLE, or secret://file/PATH (a second slash before an absolute path)."
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_folder: ContextVar[Path | None] = ContextVar("secrets_folder", default=None)


@contextmanager
def secrets_in(folder: Path) -> Iterator[None]:
    """References that are made within, as in the files of a project, have paths that begin at this folder."""
    before = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(before)


def secrets_folder() -> Path | None:
    """The folder of the project whose files are being read; None else."""
    return _folder.get()


def is_reference(text: str) -> bool:
    """Whether a text is meant as a reference; a wrong one is refused by `Secret`.

    >>> is_reference("secret://env/BLOG_DB_PASSWORD"), is_reference("hunter2")
    (True, False)
    """
    return text.startswith(PREFIX)


@dataclass(frozen=True, slots=True)
class Secret:
    """One reference, such as ``secret://env/BLOG_DB_PASSWORD``.

    >>> Secret("secret://env/BLOG_DB_PASSWORD")
    Secret('secret://env/BLOG_DB_PASSWORD')
    """

    reference: str
    folder: Path | None = field(default_factory=secrets_folder, compare=False)
    """Where a relative path of a file begins: the folder of the project whose file is read when the reference is made;
    else where the process runs."""

    def __post_init__(self) -> None:
        if not is_reference(self.reference):
            # Not shown: it is most likely the password itself.
            raise ConfigurationError("A secret is given by its value; only a reference may stand here.", hint=_FORMS)
        kind, _, name = self.reference.removeprefix(PREFIX).partition("/")
        if kind not in _KINDS:
            near = did_you_mean(kind, _KINDS)
            raise ConfigurationError(
                f"{self.reference}: there is no kind of secret '{kind}'.", hint=f"{near} {_FORMS}" if near else _FORMS
            )
        if not name.strip("/ "):
            what = "variable" if kind == "env" else "file"
            raise ConfigurationError(f"{self.reference}: the name of the {what} is missing.", hint=_FORMS)
        if kind == "env" and not _VARIABLE.fullmatch(name):
            raise ConfigurationError(f"{self.reference}: '{name}' is no name of an environment variable.", hint=_FORMS)

    @property
    def file(self) -> Path | None:
        """The file that holds it; None where it is in the environment."""
        kind, _, name = self.reference.removeprefix(PREFIX).partition("/")
        return None if kind == "env" else (self.folder or Path.cwd()) / Path(name).expanduser()

    def reveal(self) -> str:
        """The value, read now. From here on it is masked in every text for people."""
        value = self._from_environment() if self.file is None else self._from_file(self.file)
        remember(value)
        return value

    def _from_environment(self) -> str:
        name = self.reference.rpartition("/")[2]
        value = os.environ.get(name)
        if not value:
            raise ConfigurationError(
                f"{self.reference}: the environment variable {name} is {'not set' if value is None else 'empty'}.",
                hint=f"Set it where the command is started: export {name}=...",
            )
        return value

    def _from_file(self, file: Path) -> str:
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigurationError(
                f"{self.reference}: there is no file {file}.", hint="Put the secret, and nothing else, into that file."
            ) from None
        except UnicodeDecodeError as error:
            raise ConfigurationError(
                f"{self.reference}: {file} is not UTF-8 text (byte {error.start}).",
                hint="Put the secret as text, and nothing else, into that file.",
            ) from None  # the cause holds the bytes
        except OSError as error:
            raise ConfigurationError(
                f"{self.reference}: {file} cannot be read: {error.strerror}.",
                hint="Give this user the right to read that file.",
            ) from error
        value = text.removesuffix("\n").removesuffix("\r")  # as editors and `echo` leave it
        if not value:
            raise ConfigurationError(
                f"{self.reference}: {file} is empty.", hint="Put the secret, and nothing else, into that file."
            )
        return value

    def __repr__(self) -> str:
        return f"Secret({self.reference!r})"

    def __str__(self) -> str:
        return self.reference
