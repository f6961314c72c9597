"""HTTP requests that are patient: what may pass by itself is tried again, a limit of the server's is kept.

Guarantee:
    Too many requests (429), errors of the server (5xx) and lost connections are tried again with growing pauses, or
    after the time that the server asks for (``Retry-After``); any other answer that is no success is an error at once.
    No more than ``per_second`` requests are sent. Another host than the first is never asked: it would get our headers.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from lakewright.masking import remember
from lakewright.model.secrets import Secret, is_reference

__all__ = ["Answer", "Caller", "HttpFailure", "mask_values", "revealed_headers", "secret_headers"]

_LONGEST = 60.0
"""Seconds that a server may ask us to wait; one that asks for more is left to the next run."""


class HttpFailure(Exception):
    """A request that was not answered as it should; ``passes`` tells whether a later one may be."""

    def __init__(self, place: str, problem: str, *, passes: bool, pause: float | None = None) -> None:
        super().__init__(f"{place} {problem}")
        self.problem = problem
        """Without the address, which may itself be a secret."""
        self.passes = passes
        self.pause = pause
        """Seconds that the server asks us to wait."""


def revealed_headers(headers: Mapping[str, str], folder: Path | None) -> dict[str, str]:
    """Headers with the values of their references, looked up now."""
    return {name: Secret(text, folder).reveal() if is_reference(text) else text for name, text in headers.items()}


def secret_headers(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the headers whose values are references.

    >>> secret_headers({"Accept": "text/csv", "Authorization": "secret://env/API_TOKEN"})
    ('Authorization',)
    """
    return tuple(name for name, text in headers.items() if is_reference(text))


def mask_values(headers: Mapping[str, str], secret: Iterable[str]) -> None:
    """Let the values of these headers be masked in this process too: a worker has not looked them up itself."""
    for name in secret:
        remember(headers[name])


@dataclass(frozen=True, slots=True)
class Answer:
    """The body of an answer, and the address of the next page where its ``Link`` header names one."""

    body: bytes
    next_link: str | None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could lead our headers to somebody else."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


@dataclass
class Caller:
    """Sends requests; one per reader, since it counts them."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tries: int = 5
    timeout_seconds: float = 30.0
    per_second: float = 10.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _earliest: float = 0.0

    def get(self, url: str) -> Answer:
        """The answer to a GET; raises `HttpFailure`."""
        return self._call(url, None)

    def post(self, url: str, body: bytes) -> Answer:
        """The answer to a POST of JSON; raises `HttpFailure`."""
        return self._call(url, body)

    def _call(self, url: str, body: bytes | None) -> Answer:
        for attempt in range(self.tries):
            self._keep_pace()
            try:
                return self._ask(url, body)
            except HttpFailure as failure:
                if not failure.passes or attempt == self.tries - 1:
                    raise
                self.sleep(0.5 * 2**attempt if failure.pause is None else failure.pause)
        raise AssertionError("tries is at least 1")

    def _keep_pace(self) -> None:
        if (wait := self._earliest - self.clock()) > 0:
            self.sleep(wait)
        self._earliest = max(self._earliest, self.clock()) + 1 / self.per_second

    def _ask(self, url: str, body: bytes | None) -> Answer:
        own = {"User-Agent": "lakewright"} | ({} if body is None else {"Content-Type": "application/json"})
        place = _without_query(url)
        if (wrong := next((name for name, text in self.headers.items() if not _can_be_sent(text)), None)) is not None:
            unsent = f"the value of the header {wrong} holds a line break, or a letter that HTTP cannot send"
            raise HttpFailure(place, f"was not asked: {unsent}", passes=False)
        request = urllib.request.Request(url, data=body, headers={**own, **self.headers})
        try:
            with _OPENER.open(request, timeout=self.timeout_seconds) as answer:
                return Answer(answer.read(), _next_link(answer.headers.get("Link")))
        except urllib.error.HTTPError as error:
            error.close()
            passes = error.code == 429 or error.code >= 500
            pause = _asked_for(error.headers.get("Retry-After"))
            raise HttpFailure(place, f"answers HTTP {error.code} {error.reason}", passes=passes, pause=pause) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise HttpFailure(place, f"cannot be reached ({reason})", passes=True) from None


def _without_query(url: str) -> str:
    """An address for people: what comes after the ``?`` may be long, or secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _can_be_sent(text: str) -> bool:
    r"""Whether a text may be the value of a header; Python's own refusal would repeat it.

    >>> _can_be_sent("Bearer abc"), _can_be_sent("abc\n"), _can_be_sent("€")
    (True, False, False)
    """
    return not {"\r", "\n"} & set(text) and all(ord(letter) < 256 for letter in text)


def _asked_for(text: str | None) -> float | None:
    if text is None or not text.strip().isdigit():
        return None
    return min(float(text), _LONGEST)


def _next_link(header: str | None) -> str | None:
    """The address of ``rel="next"`` in a Link header.

    >>> _next_link('<https://api.example/v?page=2>; rel="next", <https://api.example/v>; rel="first"')
    'https://api.example/v?page=2'
    """
    for part in (header or "").split(","):
        address, _, rest = part.strip().partition(";")
        if 'rel="next"' in rest.replace(" ", "") and address.startswith("<"):
            return address.strip("<> ")
    return None
