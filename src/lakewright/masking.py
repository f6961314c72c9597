"""What no text for people may hold: the values of secrets that this process has used.

Guarantee:
    After `remember`, `mask` replaces a value wherever it stands in a text: as it is, percent-encoded, escaped as in
    JSON, or as Python shows a string. The password inside an address is such a value by itself, and so is each line
    of a value of several lines. The beginning of a value at the end of a text that was cut is masked too. Values
    shorter than four characters are not: they would hit every other word. In a Python worker of Spark, what it raises
    or prints after `remember` leaves it masked: Spark writes it as it comes into its log, event log and pages.

Every way out masks by itself (errors, the screen, the store's texts, Spark's log), so that nobody has to remember it;
docs/decisions/0015 tells where.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TextIO
from urllib.parse import quote, quote_plus, unquote, urlsplit

__all__ = ["MASK", "MaskedStream", "mask", "masked_copy", "remember", "watch"]

MASK = "***"
_SHORTEST = 4
_SHORTEST_LINE = 8
_MAY_BE_CUT = 79
"""From this length on a text may have been cut to fit."""
_OF_A_SERVER = "SPARK_CONNECT_LOCAL_URL"
"""By this a Connect server tells its own Python processes, which have no task, where to find it."""

_lock = threading.Lock()
_forms: tuple[str, ...] = ()  # replaced as a whole, so that other threads may read it without the lock
_pattern: re.Pattern[str] | None = None
_watchers: list[Callable[[tuple[str, ...]], None]] = []


def remember(value: str) -> None:
    """From now on this value is masked, in every form in which it may appear."""
    global _forms, _pattern
    wanted = {form for part in _parts(value) for form in _written(part) if len(form) >= _SHORTEST}
    with _lock:
        if wanted.issubset(_forms):
            return
        # The longest first: a value may begin with another one.
        _forms = tuple(sorted(wanted.union(_forms), key=lambda form: (-len(form), form)))
        _pattern = re.compile("|".join(map(re.escape, _forms)))
        forms, watchers = _forms, tuple(_watchers)
    _mask_worker()
    for watcher in watchers:
        watcher(forms)


def watch(watcher: Callable[[tuple[str, ...]], None]) -> None:
    """Tell somebody who writes by other means than ours, now and at each new value, all that is to be masked."""
    with _lock:
        _watchers.append(watcher)
        forms = _forms
    if forms:
        watcher(forms)


def mask(text: str) -> str:
    """The text with ``***`` in place of every value that was used.

    >>> remember("s3cret/word")
    >>> mask("cannot log in with s3cret/word (s3cret%2Fword)")
    'cannot log in with *** (***)'
    """
    if _pattern is None:
        return text
    masked = _pattern.sub(MASK, text)
    return masked if len(text) < _MAY_BE_CUT else _without_cut_value(masked)


def masked_copy(value: Any) -> Any:
    """Lists and mappings with every text in them masked; the keys of a mapping are ours and stay."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {key: masked_copy(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [masked_copy(one) for one in value]
    return value


class MaskedStream:
    """A text stream whose writes are masked; everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text without the values of secrets."""
        self._stream.write(mask(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line without the values of secrets."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _mask_worker() -> None:
    """Where this is a worker of Spark: mask its tracebacks, which Spark sends to the driver, and its output."""
    if not _is_worker() or isinstance(sys.stderr, MaskedStream):
        return
    sys.stdout, sys.stderr = MaskedStream(sys.stdout), MaskedStream(sys.stderr)
    for name in ("format", "format_exception_only"):
        plain = getattr(traceback.TracebackException, name)
        setattr(traceback.TracebackException, name, _masked_lines(plain))


def _is_worker() -> bool:
    """Whether Spark started this process: for a task, or on a Connect server for the micro-batches of a stream."""
    pyspark = sys.modules.get("pyspark.taskcontext")
    if pyspark is None:
        return False
    return pyspark.TaskContext.get() is not None or _OF_A_SERVER in os.environ


def _masked_lines(plain: Callable[..., Iterable[str]]) -> Callable[..., Iterable[str]]:
    return lambda *values, **options: map(mask, plain(*values, **options))


def _parts(value: str) -> list[str]:
    """The value itself, the password of an address, and the lines of a longer text such as a key file."""
    found = [value]
    if "://" in value:
        with contextlib.suppress(ValueError):
            password = urlsplit(value).password
            found += [] if password is None else [password, unquote(password)]
    if (bare := value.strip()) != value:  # as others may show it
        found.append(bare)
    lines = [line.strip() for line in value.splitlines()]
    return found if len(lines) < 2 else [*found, *(line for line in lines if len(line) >= _SHORTEST_LINE)]


def _written(part: str) -> set[str]:
    """How a value looks in an address, in JSON, and inside quotes in a message."""
    in_json = {json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1]}
    return {part, quote(part), quote(part, safe=""), quote_plus(part), repr(part)[1:-1], *in_json}


def _without_cut_value(masked: str) -> str:
    """Messages are often cut to a length: what they end with may be the first part of a value."""
    shown = masked.rstrip("….")
    for form in _forms:
        begins = form[:_SHORTEST]
        at = shown.find(begins, max(0, len(shown) - len(form) + 1))
        while at >= 0:
            if form.startswith(shown[at:]):
                return shown[:at] + MASK + masked[len(shown) :]
            at = shown.find(begins, at + 1)
    return masked
