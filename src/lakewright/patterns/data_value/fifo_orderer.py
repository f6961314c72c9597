"""FIFO Orderer: send records one after another in the order in which they came.

Problem:
    A job finds particular events and must forward each as soon as it can, in the order in which they happened. With
    several requests on their way, the second may arrive while the first is being tried again.
Guarantee:
    A record is sent when the one before it was acknowledged (``individual``), or earlier where the target itself keeps
    the order: one request at a time that is taken whole or not at all (``bulk``), or a producer that numbers its
    requests (``idempotent``). What cannot keep order is refused before anything is sent: an idempotent producer with
    more than 5 requests on their way or without ``acks=all``, bulk requests to a target that may take a part of one. At
    the end nothing is left in a buffer, and what was not taken is an error.
Consequences:
    - One request per record is slow. ``per`` gives each entity an order of its own: entities are spread over tasks and
      ``workers``, each of which sends its own records one after another.
    - It is not exactly once. After a crash between the sending and the note that the input was read, the records come
      again, with the same key and id: pair it with Keyed Idempotency, or a consumer that leaves out known ids.
    - A topic keeps the order of a partition: the entity is the key of the message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lakewright.errors import ConfigurationError
from lakewright.model.sql import quoted
from lakewright.patterns.data_value.ordered_delivery import (
    Patience,
    Turns,
    deliver_bulk,
    deliver_each,
    deliver_pipelined,
    deliver_scopes,
)
from lakewright.patterns.data_value.ordered_rows import (
    as_names,
    check_names,
    number_rows,
    records_of,
    refuse_unordered,
    send_rows,
    sort_columns,
)
from lakewright.patterns.data_value.ordered_sinks import Delivered, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "FifoOrderer",
    "Variant",
    "check_producer",
    "deliver_bulk",
    "deliver_each",
    "deliver_pipelined",
    "deliver_scopes",
    "send_in_order",
]

Variant: TypeAlias = Literal["individual", "bulk", "idempotent"]
_WHAT = "FIFO Orderer"
_IN_FLIGHT = "max.in.flight.requests.per.connection"
_MOST_IN_FLIGHT = 5
_WAYS = {"individual": deliver_each, "bulk": deliver_bulk, "idempotent": deliver_pipelined}


@dataclass(frozen=True, slots=True)
class FifoOrderer:
    """How records are sent one after another; in a pipeline ``order=FifoOrderer(...)`` of a destination."""

    by: str | None = None
    """The column that tells the order; without it, rows are sent in the order in which they come."""
    per: str | Sequence[str] = ()
    """The entity that has an order of its own; without it, there is one order for all, and one task."""
    then: Sequence[str] = ()
    """Further columns, where times are equal; after them the content decides."""
    variant: Variant = "individual"
    """``individual``: one record, one request, one answer; ``bulk``: one request at a time, of many records;
    ``idempotent``: several at a time, which the producer numbers."""
    in_flight: int = _MOST_IN_FLIGHT
    """How many requests of an idempotent producer may be on their way."""
    workers: int = 1
    """How many connections a task sends through at once, each with entities of its own."""
    tries: int = 5
    """How often a record is sent before its task fails."""
    pause_seconds: float = 0.2
    """The wait before the second try; it doubles with each."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "per", as_names(self.per))
        object.__setattr__(self, "then", as_names(self.then))
        if self.variant not in get_args(Variant):
            raise ConfigurationError(
                f"{_WHAT}: variant is one of {', '.join(get_args(Variant))}, not {self.variant!r}."
            )
        if (self.per or self.then) and self.by is None:
            raise ConfigurationError(
                f"{_WHAT}: rows are moved to their entity, so 'by' must tell the order.",
                hint="Name the column of the time, or leave 'per' and 'then' out.",
            )
        if self.tries < 1 or self.workers < 1 or self.pause_seconds < 0:
            raise ConfigurationError(f"{_WHAT}: tries and workers are 1 or more, pause_seconds 0 or more.")
        if self.workers > 1 and not self.per:
            raise ConfigurationError(f"{_WHAT}: several workers need entities of their own: name them in 'per'.")
        if self.variant == "idempotent":
            check_producer({"enable.idempotence": "true", _IN_FLIGHT: str(self.in_flight)})

    @property
    def entity(self) -> tuple[str, ...]:
        return as_names(self.per)

    def check_sink(self, sink: Sink) -> None:
        """Refuse a way that would lose the order in this sink."""
        if self.variant == "bulk" and sink.commits != "full":
            raise ConfigurationError(
                f"{_WHAT}: {sink.shown} may take a part of a request ('{sink.commits}'), so bulk requests lose the "
                "order.",
                hint='Use variant="individual", or a BinPackOrderer, which is for such targets.',
            )
        if self.variant == "idempotent" and not sink.pipelined:
            raise ConfigurationError(
                f"{_WHAT}: {sink.shown} does not number requests, so only one may be on its way.",
                hint='Use variant="individual"'
                + (' or "bulk".' if sink.commits == "full" else ", or a BinPackOrderer."),
            )

    def producer_options(self) -> dict[str, str]:
        """What a Kafka producer needs to keep order in this way."""
        one = {"acks": "all", "enable.idempotence": "true"}
        if self.variant == "idempotent":
            return {**one, _IN_FLIGHT: str(self.in_flight), "linger.ms": "20"}
        return {**one, _IN_FLIGHT: "1", "linger.ms": "0" if self.variant == "individual" else "20"}

    def arrange(self, df: DataFrame, *, into: str) -> DataFrame:
        """All rows in one order, that of their time, for one sender; lazy. ``into`` gets the place in the entity."""
        from pyspark.sql import functions as F

        check_names(_WHAT, df, (*self.entity, *as_names(self.by), *self.then))
        if self.by is None:
            return df.withColumn(into, F.lit(None).cast("bigint"))
        numbered = df.withColumn(into, F.lit(None).cast("bigint"))
        if self.per:
            numbered = number_rows(df, per=self.entity, by=self.by, then=self.then, into=into, together=False)
        return numbered.orderBy(*sort_columns(df, self.by, self.then))


def check_producer(options: Mapping[str, str]) -> None:
    """Refuse settings of a Kafka producer that lose the order: see KIP-98.

    >>> check_producer({"enable.idempotence": "true", "max.in.flight.requests.per.connection": "6"})
    Traceback (most recent call last):
    lakewright.errors.ConfigurationError: FIFO Orderer: an idempotent producer keeps the order of at most 5 requests...
    """
    numbered = str(options.get("enable.idempotence", "true")).lower() == "true"
    in_flight = int(options.get(_IN_FLIGHT, options.get("max.in.flight", "5")))
    acks = str(options.get("acks", options.get("request.required.acks", "all"))).lower()
    if in_flight < 1 or (numbered and in_flight > _MOST_IN_FLIGHT):
        raise ConfigurationError(
            f"{_WHAT}: an idempotent producer keeps the order of at most {_MOST_IN_FLIGHT} requests that are on their "
            f"way, not of {in_flight}.",
            hint=f"Set in_flight to 1 to {_MOST_IN_FLIGHT}.",
        )
    if not numbered and in_flight > 1:
        raise ConfigurationError(
            f"{_WHAT}: {in_flight} requests on their way without idempotence: the second may be taken first.",
            hint=f"Set enable.idempotence to true, or {_IN_FLIGHT} to 1.",
        )
    if numbered and acks not in ("all", "-1"):
        raise ConfigurationError(
            f"{_WHAT}: an idempotent producer needs acks=all, not acks={acks}.", hint="Leave acks out of the options."
        )


def send_in_order(
    df: DataFrame,
    sink: Sink,
    *,
    orderer: FifoOrderer,
    value: str | None = None,
    record: Sequence[str] = (),
    output: str | None = None,
) -> Delivered:
    """Runs a job that refuses rows without a place in the order, and one whose tasks send the rows one after another.

    ``value`` is a column that is sent as it is (else all columns, as JSON), ``record`` the columns that tell a record
    (else its content), ``output`` the column that names which output of the sink gets it.
    """
    orderer.check_sink(sink)
    names = dict.fromkeys(
        (*orderer.entity, *as_names(orderer.by), *orderer.then, *record, *as_names(value), *as_names(output))
    )
    check_names(_WHAT, df, list(names))
    refuse_unordered(df, per=[*as_names(output), *orderer.entity], by=orderer.by, what=_WHAT)
    first = [quoted(name) for name in as_names(output)]
    sequence: str | None = None
    if orderer.per:
        assert orderer.by is not None
        sequence = "_lw_sequence"
        per = tuple(dict.fromkeys([*as_names(output), *orderer.entity]))
        numbered = number_rows(df, per=per, by=orderer.by, then=orderer.then, into=sequence, together=False)
        in_order = numbered.sortWithinPartitions(*first, *sort_columns(df, orderer.by, orderer.then))
    elif orderer.by is not None:
        in_order = df.repartition(1).sortWithinPartitions(*first, *sort_columns(df, orderer.by, orderer.then))
    else:
        in_order = df.coalesce(1)
    records = records_of(
        in_order, per=orderer.entity, sequence=sequence, value=value, record=record, output=output
    )  # fmt: skip
    patience = Patience(orderer.tries, orderer.pause_seconds)
    turns = Turns(_WAYS[orderer.variant], orderer.workers)
    return send_rows(records, sink, turns, patience, what=_WHAT, producer=orderer.producer_options())
