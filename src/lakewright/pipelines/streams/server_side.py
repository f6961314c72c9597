"""A micro-batch over Spark Connect: its function travels to the server and runs there, without the store.

What it needs goes with it as values: the graph, the names of the lake, the identity of the attempt, the versions of
tables of another target, the arrivals of references that were taken back. What the store alone can judge is judged
here, before it leaves. It only writes, with identity; the client, which holds the lease, reads the receipts from the
log. The server's Python needs the same release of Lakewright; the project's own functions are sent along.

Of an error only words come back. One of ours carries itself among them, as `told_to_client` writes it, so that the
client has its class, its hint and its facts: a guard's refusal is no failure there either.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from lakewright.errors import (
    ConfigurationError,
    InputError,
    LakewrightError,
    SchemaChangeError,
    StepFailed,
    TargetError,
)
from lakewright.lake.corrections import arrival_key, corrections_of
from lakewright.masking import mask
from lakewright.model.connections import Connections
from lakewright.model.times import utc_now
from lakewright.pipelines.compute_messages import ToldError
from lakewright.pipelines.corrections import withdrawn_arrivals
from lakewright.pipelines.harvest import refuse_lost_histories
from lakewright.pipelines.workshop import Attempt
from lakewright.store import Store

__all__ = ["is_remote", "server_side", "told_by_server", "told_to_client"]

_PLAIN = (ConfigurationError, InputError, SchemaChangeError, StepFailed, TargetError)
_OURS = re.compile(r"lakewright\.errors\.(\w+): (.+)")
_TOLD = re.compile(r"\[lakewright-error:([A-Za-z0-9_=-]+)\]")


def is_remote(frame: Any) -> bool:
    """Whether a frame belongs to a Connect server."""
    return getattr(frame.sparkSession, "newSession", None) is None


def server_side(current: Attempt) -> Attempt:
    """The same attempt, with nothing that cannot leave this process.

    Refused here, since nobody there could: a reference whose log was cut off before its commits were indexed.
    """
    lake, store = current.shop.lake, current.shop.store
    references = {given.dataset for given in current.dataset.inputs if given.reference is not None}
    refuse_lost_histories(lake, store, references)
    borrowed = {name: store.receipts.last_version(name) for name in references & lake.borrowed}
    known = current.shop.graph.datasets  # an adopted table is none of them, nor is a private output
    sources = {name for name in references - lake.borrowed if name in known and known[name].is_source}
    withdrawn = {corrections_of(name): withdrawn_arrivals(store, name) for name in sources}
    shop = replace(
        current.shop,
        store=cast(Store, _NoStore(borrowed, withdrawn)),
        connections=Connections(),
        now=utc_now,
        stopping=_never,
    )
    return replace(current, shop=shop)


@contextmanager
def told_to_client() -> Iterator[None]:
    """Around a micro-batch on the server: an error of ours leaves it with all that the client needs to make it anew."""
    try:
        yield
    except LakewrightError as error:
        told = ToldError.of(error)
        facts = json.dumps([told.kind, told.message, told.facts], default=str)
        packed = base64.urlsafe_b64encode(mask(facts).encode()).decode()
        raise RuntimeError(f"{error} [lakewright-error:{packed}]") from error


def told_by_server(error: BaseException) -> LakewrightError | None:
    """The error of ours that ended a micro-batch on the server, of which only the words came back."""
    text = str(error)
    if (told := _TOLD.search(text)) is not None:
        kind_name, message, facts = json.loads(base64.urlsafe_b64decode(told.group(1)))
        return ToldError(kind_name, message, facts).error()
    # Raised where Spark itself calls our code, such as in a function of a column: its class and its first line.
    found = _OURS.search(text)
    if found is None:
        return None
    kind: type[LakewrightError] = next((one for one in _PLAIN if one.__name__ == found.group(1)), LakewrightError)
    return kind(found.group(2).strip())


def _never() -> bool:
    return False


class _NoStore:
    """What a micro-batch asks of the store, answered without one: the client keeps the lease and sees to receipts."""

    def __init__(self, borrowed: Mapping[str, int | None], withdrawn: Mapping[str, Sequence[int]]) -> None:
        self._borrowed, self._withdrawn = borrowed, withdrawn

    @property
    def leases(self) -> _NoStore:
        return self

    @property
    def receipts(self) -> _NoStore:
        return self

    def check(self, *_: object) -> bool:
        return True

    def gaps(self, *_: object) -> Sequence[int]:
        """Every commit counts: a reference is read as it stands."""
        return ()

    def last_version(self, name: str, *, below: int | None = None) -> int | None:
        """Of a table of another target: what is read of it, as long as this query runs.

        What was indexed ``below`` the log's beginning tells whether commits are lost: the client has looked at that.
        """
        return self._borrowed.get(name) if below is None else None

    def cells(self, name: str) -> Mapping[str, None]:
        """Of corrections: the arrivals of which some are there and do not count, as the client knew when it began."""
        return {arrival_key(number): None for number in self._withdrawn.get(name, ())}

    def live_slices(self, _: str) -> Mapping[str, None]:
        """None of the arrivals that `cells` tells is live."""
        return {}
