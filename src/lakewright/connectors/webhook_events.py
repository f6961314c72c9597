"""A signed webhook whose requests start runs.

Guarantee:
    A request is answered with 202 when its event is kept, and not before; whatever happens then, it is handled. One
    without the right signature, or whose time lies too far off, leaves nothing behind (401). A malformed one is kept as
    a dead letter (400). Where the event could not be kept the answer is 503: send it again.
"""

from __future__ import annotations

import hashlib
import hmac
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lakewright.errors import ConfigurationError, LakewrightError, TargetError
from lakewright.model.secrets import Secret
from lakewright.model.times import parse_duration
from lakewright.model.triggers import ChannelContext, Malformed, Message

__all__ = ["SIGNATURE", "TIMESTAMP", "WebhookEvents", "sign"]

SIGNATURE = "X-Lakewright-Signature"
TIMESTAMP = "X-Lakewright-Timestamp"


def sign(body: bytes, *, secret: str, timestamp: int) -> str:
    """What a sender puts into the header: HMAC-SHA256 of the time, a dot and the body.

    >>> sign(b"{}", secret="s3cret", timestamp=1767571200)[:20]
    'sha256=3144716ad5204'
    """
    mac = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256)
    return f"sha256={mac.hexdigest()}"


@dataclass(frozen=True, slots=True)
class WebhookEvents:
    """Takes events by POST at ``http://host:port/path``; ``secret`` is a reference to the key of the signatures."""

    path: str
    _: KW_ONLY
    secret: str
    host: str = "127.0.0.1"
    port: int = 8787
    tolerance: str = "5 minutes"
    """How far the time of a request may be off; a later repeat of it is refused."""
    max_bytes: int = 1_000_000
    clock: Callable[[], float] = field(default=time.time, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise ConfigurationError(f"WebhookEvents: the path '{self.path}' does not begin with '/'.")
        if not 0 <= self.port < 65_536:
            raise ConfigurationError(f"WebhookEvents: {self.port} is no port.")
        Secret(self.secret)
        parse_duration(self.tolerance)

    @property
    def name(self) -> str:
        return f"webhook {self.path}"

    def open(self, ctx: ChannelContext) -> OpenWebhook:
        """Listen; where only what is there is asked for, nothing is opened."""
        return OpenWebhook(self, ctx)


class OpenWebhook:
    """A small HTTP server in threads of its own."""

    def __init__(self, channel: WebhookEvents, ctx: ChannelContext) -> None:
        self._queue: queue.Queue[Message] = queue.Queue()
        self._server: ThreadingHTTPServer | None = None
        self._once = ctx.once
        if ctx.once:
            return
        secret = Secret(channel.secret, ctx.project).reveal()
        handler = type("Handler", (_Handler,), {"channel": channel, "key": secret, "ctx": ctx, "kept": self._queue})
        try:
            self._server = ThreadingHTTPServer((channel.host, channel.port), handler)
        except OSError as error:
            raise TargetError(
                f"The trigger '{ctx.trigger}' cannot listen at {channel.host}:{channel.port}: {error.strerror}.",
                hint="Another process may have the port: choose another one in WebhookEvents(port=...).",
            ) from error
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True, name="lakewright-webhook").start()
        ctx.say(f"listening at {self.url(channel.path)}")

    def url(self, path: str) -> str:
        """The address that it has in fact: port 0 means a free one."""
        assert self._server is not None
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}{path}"

    def take(self, timeout_seconds: float) -> Message | None:
        """The next one that was kept."""
        try:
            return self._queue.get(block=not self._once, timeout=timeout_seconds)
        except queue.Empty:
            return None

    def done(self, message: Message) -> None:
        """Nothing: it was answered when it was kept."""

    def reject(self, body: bytes, event_id: str, reason: str) -> None:
        """Nothing: dead letters are in the store."""

    def close(self) -> None:
        """Take no more requests."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    channel: WebhookEvents
    key: str
    ctx: ChannelContext
    kept: queue.Queue[Message]
    timeout = 10
    server_version = "lakewright"
    sys_version = ""

    def do_POST(self) -> None:
        """Judge the signature, keep the event, answer."""
        self._answer(*self._judged())

    def _judged(self) -> tuple[int, str]:
        if self.path.partition("?")[0] != self.channel.path:
            return 404, "there is nothing at this path"
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            return 411, "Content-Length is missing"
        if int(length) > self.channel.max_bytes:
            return 413, f"more than {self.channel.max_bytes} bytes"
        body = self.rfile.read(int(length))
        if (problem := self._problem(body)) is not None:
            return 401, problem
        message = Message(body, f"sha256:{hashlib.sha256(body).hexdigest()[:32]}")
        assert self.ctx.receive is not None
        try:
            found = self.ctx.receive(message)
        except LakewrightError:
            return 503, "the event could not be kept; send it again"
        if isinstance(found, Malformed):
            return 400, found.reason
        self.kept.put(message)
        return 202, found.id

    def do_GET(self) -> None:
        """Events come by POST."""
        self._answer(405, "send events by POST")

    def _problem(self, body: bytes) -> str | None:
        stamp = self.headers.get(TIMESTAMP, "")
        if not stamp.isascii() or not stamp.isdecimal() or len(stamp) > 12:
            return f"{TIMESTAMP} is missing, or no time in seconds"
        expected = sign(body, secret=self.key, timestamp=int(stamp))
        if not hmac.compare_digest(expected.encode(), self.headers.get(SIGNATURE, "").encode()):
            return f"{SIGNATURE} is missing or wrong"
        if abs(self.channel.clock() - int(stamp)) > parse_duration(self.channel.tolerance).total_seconds():
            return f"{TIMESTAMP} is more than {self.channel.tolerance} off"
        return None

    def _answer(self, code: int, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: the listener tells of events, not of requests."""
