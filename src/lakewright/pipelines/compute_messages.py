"""What a run and the process that works for it on another compute tell each other.

Both are the same release of Lakewright, so they are pickles of our own values. An error travels as its class, its words
and its facts: where a class takes other arguments than a message, a pickle of it could not be read back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from lakewright import errors
from lakewright.errors import LakewrightError
from lakewright.model.runs import Run
from lakewright.pipelines.states import SliceState
from lakewright.pipelines.workshop import Made
from lakewright.runtime.settings import Settings
from lakewright.store import Known

__all__ = ["Begin", "Done", "End", "Failed", "Interrupt", "MakeSlice", "Ready", "Said", "ToldError"]

_PLAIN = (str, int, float, bool, type(None), list, tuple)


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message: whose work it is. The settings are those of the run, with the compute's Spark."""

    settings: Settings
    run: Run
    owner_id: str
    borrowed: Mapping[str, str]
    """Dataset -> where it is read in the lake of another target."""
    parallel: int
    path: tuple[str, ...] = ()
    """Where the run's process looks for modules."""


@dataclass(frozen=True, slots=True)
class MakeSlice:
    """Make one slice; the answer has the same number."""

    number: int
    dataset: str
    state: SliceState
    attempt: int
    code: str | None
    """The hash of the step's code that the run knows."""
    places: Mapping[str, str]
    """Where the tables lie that it reads and writes, as the run knows them."""
    known: Known | None = None
    tags: tuple[str, ...] = ()
    """What marks its Spark work, so that it can be interrupted."""
    ahead: timedelta = timedelta(0)
    """How far the run's clock is ahead of the machine's."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Stop the Spark work with this mark; with ``stop`` the run as a whole was asked to stop."""

    tag: str
    stop: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """Nothing more will come."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The project is loaded, and Spark has started."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a step printed."""

    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """A slice was made."""

    number: int
    made: Made


@dataclass(frozen=True, slots=True)
class ToldError:
    """An error of ours on its way to the other process."""

    kind: str
    message: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, error: LakewrightError) -> ToldError:
        """The error by the nearest class that both sides know."""
        kind = next(one.__name__ for one in type(error).__mro__ if getattr(errors, one.__name__, None) is one)
        facts = {key: value for key, value in vars(error).items() if isinstance(value, _PLAIN)}
        return cls(kind, error.message, facts)

    def error(self) -> LakewrightError:
        """The error as it was, without the ones that caused it."""
        kind: type[LakewrightError] = getattr(errors, self.kind)
        made = kind.__new__(kind, self.message)
        vars(made).update(self.facts)
        return made


@dataclass(frozen=True, slots=True)
class Failed:
    """A slice could not be made."""

    number: int
    error: ToldError
    transient: bool = False
    """Whether it may succeed when it is tried again."""
    ended: str = ""
    """What became of the Spark of the process, where it has ended and the process can make nothing more."""
