"""Targets that records are delivered to: fakes that fail as they are told, and a real HTTP server. For tests only."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from lakewright.patterns.data_value.ordered_delivery import Patience
from lakewright.patterns.data_value.ordered_sinks import Outgoing, RequestLostError

AT_ONCE = Patience(tries=5, pause_seconds=0)


def records(**counts: int) -> list[Outgoing]:
    """``records(A=2, B=1)``: A1, A2 and B1, sorted by entity and time."""
    return [
        Outgoing(key, n, f"{key}{n}", f'"{key}{n}"'.encode())
        for key, count in counts.items()
        for n in range(1, count + 1)
    ]


@dataclass
class FakeSink:
    """A store that takes what ``refuses`` does not refuse; it keeps what it took, and every request."""

    refuses: Callable[[Outgoing], bool] = lambda record: False
    commits: Literal["full", "partial", "each"] = "partial"
    bulk_limit: int = 100
    pipelined: bool = False
    lost: Callable[[int], bool] = lambda request: False
    """Whether a request, by its number, is lost after it was taken."""
    taken: list[str] = field(default_factory=list)
    requests: list[list[str]] = field(default_factory=list)
    opened: int = 0
    closed: int = 0

    shown = "the fake"

    def prepared(self, producer: Mapping[str, str]) -> FakeSink:
        return self

    def open(self, output: str = "") -> FakeSink:
        self.opened += 1
        return self

    def close(self) -> None:
        self.closed += 1

    def send(self, sent: Sequence[Outgoing]) -> Mapping[int, str]:
        self.requests.append([record.id for record in sent])
        refused = {place: "busy" for place, record in enumerate(sent) if self.refuses(record)}
        if refused and self.commits == "full":
            raise RequestLostError("rolled back")
        self.taken += [record.id for place, record in enumerate(sent) if place not in refused]
        if self.lost(len(self.requests)):
            raise RequestLostError("no answer")
        return refused


class FakeBroker:
    """A partition that is sent to with several requests on their way, the first of which fails once.

    With idempotence it takes requests in the order of their numbers alone, as KIP-98 says; without, in that of arrival.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.in_flight = int(settings["max.in.flight.requests.per.connection"])
        self.numbered = settings["enable.idempotence"] == "true"
        self.log: list[int] = []

    def deliver(self, messages: Sequence[int]) -> list[int]:
        waiting, failed = list(enumerate(messages)), False
        while waiting:
            window, again = waiting[: self.in_flight], []
            for number, message in window:
                if number == 0 and not failed:
                    failed = True
                    again.append((number, message))
                elif self.numbered and number != len(self.log):
                    again.append((number, message))  # OUT_OF_ORDER_SEQUENCE_NUMBER: sent again, in its turn
                else:
                    self.log.append(message)
            waiting = again + waiting[self.in_flight :]
        return self.log


class Partner:
    """An HTTP server that takes records, by path."""

    def __init__(self) -> None:
        self.taken: dict[str, list[dict[str, Any]]] = {}
        self.told: list[dict[str, Any]] = []
        self.answers: list[tuple[int, bytes]] = []
        """What the next requests get instead, whatever they hold; with a status of 0 nothing at all."""
        self.refuses: Callable[[dict[str, Any]], bool] = lambda record: False
        self._lock = threading.Lock()
        partner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer = partner._take(self.path, json.loads(body), self.headers)
                if not status:
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _take(self, path: str, body: dict[str, Any], headers: Any) -> tuple[int, bytes]:
        with self._lock:
            if self.answers:
                return self.answers.pop(0)
            failed = []
            for record in body["records"]:
                if self.refuses(record):
                    failed.append({"id": record["id"], "error": "throttled"})
                else:
                    self.taken.setdefault(path, []).append(record)
            self.told.append({**body, "token": headers.get("Authorization"), "name": headers.get("Idempotency-Key")})
            return 200, json.dumps({"failed": failed}).encode()
