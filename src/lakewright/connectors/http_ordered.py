"""An address that ordered records are posted to, by the tasks that hold them.

A request is ``{"records": [{"id", "key", "sequence", "value"}, ...]}``. The answer of a target that may take a part of
it (``commits="partial"``) lists what it did not take: ``{"failed": [{"id": "...", "error": "..."}]}``; an answer
without such a list means that all was taken. The id is the same at every attempt, and the header ``Idempotency-Key``
tells that of the request.

Guarantee:
    Too many requests (429), errors of the server and lost connections are tried again by the orderer, in their place;
    any other answer that is no success stops the delivery at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from lakewright.connectors.http_calls import Caller, HttpFailure, mask_values, revealed_headers, secret_headers
from lakewright.errors import ConfigurationError, TargetError
from lakewright.model.secrets import mask
from lakewright.patterns.data_value.ordered_sinks import Commits, Outgoing, RequestLostError

__all__ = ["HttpSink"]

_WHO = "HttpSink"


@dataclass(frozen=True, slots=True)
class HttpSink:
    """An address: ``HttpSink("https://partner.example/visits")``."""

    url: str
    _: KW_ONLY
    urls: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Output -> its address, where there are several outputs."""
    commits: Commits = "partial"
    """What the target makes of a request of several records."""
    bulk_limit: int = 100
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    """Sent with each request; secrets are references (``secret://env/TOKEN``)."""
    tells: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What each request tells beside its records, such as the number of the sending."""
    timeout_seconds: float = 30.0
    per_second: float = 100.0
    hidden: tuple[str, ...] = field(default=(), repr=False)
    """The names of the headers whose values were secrets, filled in when they are looked up."""

    def __post_init__(self) -> None:
        for url in (*([self.url] if self.url else []), *self.urls.values()) or ("",):
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.password:
                raise ConfigurationError(
                    f"{_WHO}: the url is an address such as https://partner.example/visits, without a password."
                )
        if self.commits not in ("full", "partial", "each"):
            raise ConfigurationError(f"{_WHO}: commits is 'full', 'partial' or 'each', not {self.commits!r}.")
        if self.bulk_limit < 1 or self.per_second <= 0:
            raise ConfigurationError(f"{_WHO}: bulk_limit is at least 1, per_second more than 0.")

    @property
    def shown(self) -> str:
        return self.url.partition("?")[0] or ", ".join(self.urls)

    @property
    def pipelined(self) -> bool:
        return False

    def prepared(self, producer: Mapping[str, str], folder: Path | None = None) -> HttpSink:
        """The same, its secrets looked up: tasks may run where they cannot be."""
        hidden = (*self.hidden, *secret_headers(self.headers))
        return replace(self, headers=revealed_headers(self.headers, folder), hidden=hidden)

    def open(self, output: str = "") -> OpenAddress:
        if output and self.urls and output not in self.urls:
            raise ConfigurationError(f"{_WHO}: no address is named for '{output}': {', '.join(self.urls)}.")
        return OpenAddress(self, self.urls.get(output, self.url))


class OpenAddress:
    """An address being posted to: fulfils ``OpenSink``."""

    def __init__(self, sink: HttpSink, url: str) -> None:
        mask_values(sink.headers, sink.hidden)
        self._sink, self._url = sink, url
        # The orderer tries again: it knows what may be sent before.
        self._caller = Caller(
            dict(sink.headers), tries=1, timeout_seconds=sink.timeout_seconds, per_second=sink.per_second
        )

    def send(self, records: Sequence[Outgoing]) -> Mapping[int, str]:
        name = hashlib.sha256("\n".join(record.id for record in records).encode()).hexdigest()[:32]
        self._caller.headers = {**self._sink.headers, "Idempotency-Key": name}
        body = {**self._sink.tells, "records": [_told(record) for record in records]}
        try:
            answer = self._caller.post(self._url, json.dumps(body).encode())
        except HttpFailure as failure:
            if failure.passes:
                raise RequestLostError(mask(str(failure)), pause_seconds=failure.pause or 0.0) from None
            raise TargetError(
                f"{mask(str(failure))}. What was acknowledged before stays; nothing after it was sent.",
                hint="Correct the address, the headers or the records, then run again.",
            ) from None
        return self._refused(answer.body, records) if self._sink.commits == "partial" else {}

    def close(self) -> None:
        """Nothing is kept open between two requests."""

    def _refused(self, body: bytes, records: Sequence[Outgoing]) -> dict[int, str]:
        """The places of the records that the answer lists as not taken."""
        if not body.strip():
            return {}
        try:
            listed = json.loads(body).get("failed", [])
            reasons = {str(one["id"]): str(one.get("error", "no reason given"))[:200] for one in listed}
        except (ValueError, TypeError, KeyError, AttributeError):
            raise RequestLostError("the answer cannot be read, so nobody knows what was taken") from None
        return {place: reasons[record.id] for place, record in enumerate(records) if record.id in reasons}


def _told(record: Outgoing) -> dict[str, object]:
    text = record.value.decode(errors="replace")
    try:
        value: object = json.loads(text)
    except ValueError:
        value = text
    return {"id": record.id, "key": record.key, "sequence": record.sequence, "value": value}
