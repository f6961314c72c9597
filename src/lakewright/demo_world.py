"""What goes on outside the demo's platform: users register and move, web servers send visits, and somebody watches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakewright.demo_accounts import add_up
from lakewright.demo_project import load_part, shown
from lakewright.demo_stream import ContinuousStream
from lakewright.errors import TargetError
from lakewright.pipelines.accounts import Account

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

__all__ = ["World"]

_TOPIC, _RELEASES = "visits", "releases"
_FIGURES, _FEEDS = "page-figures", ("visit-feed", "user-changes")
_LEDGERS = ("page-figures-ledger", "feeds-ledger")
_STALLED_SECONDS = 120.0
_GLANCE_SECONDS = 0.25
_LOOK_SECONDS, _LINE_SECONDS = 1.0, 3.0
"""How often the line that tells how far it is changes, or is printed where none can change in place."""


class World:
    """The tables of users and devices and the topic of visits, which the generator's files are brought to."""

    def __init__(self, home: Path, *, database: str, servers: str, rate: float, console: Console) -> None:
        self._home, self._database, self._servers = home, database, servers
        self._rate, self._console = rate, console
        self._users: Any = load_part("services.users")
        self._devices: Any = load_part("services.devices")
        self._readers: Any = load_part("services.readers")
        self._producer: Any = load_part("services.producer")
        self._sending: Any = None
        self._batches: list[Account] = []
        self.users = 0
        """How many users have come or moved so far."""
        self.devices = 0
        """How many devices there are."""

    def begin(self) -> None:
        """Empty tables and empty topics, whatever an earlier demo has left."""
        self._users.fresh_table(self._database)
        self._producer.fresh_topic(self._servers, _TOPIC)
        for topic in (_RELEASES, _FIGURES, *_FEEDS):
            self._producer.fresh_topic(self._servers, topic, partitions=1)
        for topic in _LEDGERS:  # the first write makes them, to keep what they hold for ever
            self._producer.drop_topic(self._servers, topic)
        self._readers.fresh_schema(self._database)

    def release_devices(self, day: str) -> None:
        """Let the devices of a day be there, and tell of it."""
        file = self._home / "staged" / day / "devices" / "devices.csv"
        self.devices = int(self._devices.fresh_table(self._database, file))
        self._devices.announce(self._servers, _RELEASES, f"devices-{day}")

    def current_users(self) -> list[tuple[str, ...]]:
        """Users as they stand in PostgreSQL."""
        found: list[tuple[str, ...]] = self._users.rows(self._database)
        return found

    def figures(self) -> list[str]:
        """The keys of the messages that a reader of committed messages gets, as often as they come."""
        found: list[str] = self._readers.keys_of(self._servers, _FIGURES)
        return found

    def messages(self, topic: str) -> list[Any]:
        """What a reader of committed messages gets of a topic, in its order: key, value and headers of each."""
        found: list[Any] = self._readers.messages_of(self._servers, topic)
        return found

    def analysts_see(self, view: str) -> tuple[int, int]:
        """How many rows a view for analysts shows, and how many tables lie behind it."""
        rows, tables = self._readers.rows_and_tables(self._database, view)
        return int(rows), int(tables)

    def end(self) -> None:
        """Nothing is sent any more."""
        if self._sending is not None:
            self._sending.stop()

    def change_users(self, day: str) -> int:
        """Let the users of a day register or move; returns how many."""
        file = self._home / "staged" / day / "users" / f"users-{day}.json"
        changed = int(self._users.apply_changes(self._database, file))
        self.users += changed
        return changed

    def send_visits(self, day: str, lines: int, stream: ContinuousStream) -> Account:
        """Send the visits of a day and wait until the stream has read them; the account of its micro-batches."""
        before = sum(account.read or 0 for account in self._batches)
        self._send(self._home / "staged" / day / "visits", self._rate)
        self._watch(lines, before, stream)
        batches = stream.batches()
        fresh, self._batches = batches[len(self._batches) :], batches
        return add_up(fresh, f"{day}, {len(fresh)} micro-batch{'es' if len(fresh) != 1 else ''}")

    def send_late(self, day: str) -> None:
        """Send what was held back of a day."""
        self._send(self._home / "late" / "visits" / f"date={day}", 0.0)
        self._sending.join()
        self._refuse_failure()

    def _send(self, folder: Path, rate: float) -> None:
        lines = self._producer.lines_below(folder)
        self._sending = self._producer.Sending(lines, servers=self._servers, topic=_TOPIC, rate=rate)
        self._sending.start()

    def _watch(self, lines: int, before: int, stream: ContinuousStream) -> None:
        """Tell how far both are until everything was sent and read."""
        last, moved = (0, 0), time.monotonic()
        with _telling(self._console) as tell:
            while True:
                now = (self._sending.sent, stream.rows - before)
                if now != last:
                    last, moved = now, time.monotonic()
                sent, read = now
                done = read >= lines and not self._sending.is_alive() and stream.behind == 0
                tell(done, partial(_words, sent, read, lines, stream))
                if done:
                    return
                self._refuse_failure()
                stream.check()
                if time.monotonic() - moved > _STALLED_SECONDS:
                    raise TargetError(
                        f"Nothing was sent or read for {_STALLED_SECONDS:.0f} s: {sent:,} of {lines:,} visits were "
                        f"sent, {read:,} read.",
                        hint=f"`lakewright services status` in {shown(self._home)} tells how the broker stands.",
                    )
                time.sleep(_GLANCE_SECONDS)

    def _refuse_failure(self) -> None:
        if self._sending.failure is not None:
            raise TargetError(
                f"The producer could not send its visits to {self._servers}: {self._sending.failure}.",
                hint=f"`lakewright services status` in {shown(self._home)} tells how the broker stands.",
            )


def _words(sent: int, read: int, lines: int, stream: ContinuousStream) -> str:
    behind = stream.behind
    # Before its first micro-batch a stream has no position: all that was sent is ahead of it.
    return f"   sent {sent:,} of {lines:,}, read {read:,}, behind {sent - read if behind is None else behind:,}"


@contextmanager
def _telling(console: Console) -> Iterator[Callable[[bool, Callable[[], str]], None]]:
    """A line that changes in place on a terminal; elsewhere one now and then, and the last."""
    told = time.monotonic()

    def is_time(seconds: float) -> bool:
        nonlocal told
        if time.monotonic() - told < seconds:
            return False
        told = time.monotonic()
        return True

    def print_line(done: bool, words: Callable[[], str]) -> None:
        if done or is_time(_LINE_SECONDS):
            console.print(words())

    if not console.is_terminal:
        yield print_line
        return
    with console.status("   sending ...") as status:

        def change_line(done: bool, words: Callable[[], str]) -> None:
            if done:
                console.print(words())
            elif is_time(_LOOK_SECONDS):
                status.update(words())

        yield change_line
