"""PostgreSQL's own words for changes (the plug-in ``pgoutput``, protocol 1), read without a database.

Guarantee:
    Each insert, update, delete and truncate of the table is one `Change` with its place in the log; an update that
    gives a row another key is two, a delete and an insert at one place, as Debezium tells it. A large value that an
    update did not touch is named in ``not_sent`` and never taken for a NULL, unless the old row tells it (REPLICA
    IDENTITY FULL). Only transactions whose commit lies in ``[start, end)`` are told, each whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lakewright.errors import InputError

__all__ = ["Change", "Relation", "decode_changes", "relation_of"]

_SINCE_2000 = 946_684_800_000_000
"""Microseconds from 1970 to 2000, where PostgreSQL's clock begins."""


class _Unsent:
    """Stands for a value that was not sent."""


_UNSENT = _Unsent()
_Value = str | None | _Unsent
_Row = Mapping[str, _Value]


class Relation(NamedTuple):
    """A table as it was when the changes after it were made."""

    table: str
    columns: tuple[str, ...]
    identity: tuple[str, ...]
    """The columns by which PostgreSQL tells an old row; all of them with REPLICA IDENTITY FULL."""


class Change(NamedTuple):
    """One change of one row; of a TRUNCATE, of none."""

    op: str
    lsn: int
    transaction: int
    committed: int
    """In microseconds since 1970."""
    values: Mapping[str, str | None]
    """PostgreSQL's texts by column; of a deleted row its key, unless it is told in full."""
    not_sent: tuple[str, ...] = ()


class _Transaction(NamedTuple):
    number: int
    committed: int
    wanted: bool


_NOBODY = _Transaction(0, 0, False)


@dataclass(slots=True)
class _Bytes:
    """A message, read from its beginning to its end."""

    data: bytes
    at: int = 1
    """After the letter that tells its kind."""

    def number(self, form: str) -> int:
        (found,) = struct.unpack_from(f">{form}", self.data, self.at)
        self.at += struct.calcsize(f">{form}")
        return int(found)

    def letter(self) -> str:
        return chr(self.number("B"))

    def word(self) -> str:
        end = self.data.index(b"\0", self.at)
        found = self.data[self.at : end].decode()
        self.at = end + 1
        return found

    def row(self, columns: Sequence[str]) -> dict[str, _Value]:
        self.number("h")
        return {name: self._value() for name in columns}

    def _value(self) -> _Value:
        kind = self.letter()
        if kind == "n":
            return None
        if kind == "u":
            return _UNSENT
        if kind != "t":
            raise InputError(f"The log has a value of the kind '{kind}', which protocol 1 of pgoutput does not know.")
        length = self.number("i")
        self.at += length
        return self.data[self.at - length : self.at].decode()


def decode_changes(
    messages: Iterable[tuple[int, bytes]],
    *,
    table: str,
    keys: Sequence[str] = (),
    start: int = 0,
    end: int | None = None,
) -> Iterator[Change]:
    """The changes of a table (``schema.name``) in messages with their places; ``keys`` is its primary key.

    A transaction is wanted where its commit record begins at ``start`` or later, and before ``end``.
    """
    decoder = _Decoder(table, tuple(keys), start, end)
    for lsn, data in messages:
        yield from decoder.told(lsn, data)


def relation_of(data: bytes) -> Relation:
    """A table, from the message that describes it."""
    return _relation(_Bytes(data))[1]


def _relation(message: _Bytes) -> tuple[int, Relation]:
    number = message.number("I")
    table = f"{message.word()}.{message.word()}"
    full = message.letter() == "f"
    columns: list[tuple[str, bool]] = []
    for _ in range(message.number("h")):
        flags = message.number("B")
        columns.append((message.word(), full or bool(flags & 1)))
        message.at += 8  # its type: the declared one counts
    identity = tuple(name for name, belongs in columns if belongs)
    return number, Relation(table, tuple(name for name, _ in columns), identity)


@dataclass(slots=True)
class _Decoder:
    table: str
    keys: tuple[str, ...]
    start: int
    end: int | None
    relations: dict[int, Relation] = field(default_factory=dict)
    transaction: _Transaction = _NOBODY

    def told(self, lsn: int, data: bytes) -> Iterator[Change]:
        message, kind = _Bytes(data), chr(data[0])
        if kind == "B":
            commit, at, number = message.number("q"), message.number("q"), message.number("I")
            wanted = commit >= self.start and (self.end is None or commit < self.end)
            self.transaction = _Transaction(number, at + _SINCE_2000, wanted)
        elif kind == "R":
            number, relation = _relation(message)
            self.relations[number] = relation
        elif kind in "IUDT" and self.transaction.wanted:
            yield from self._change(lsn, kind, message)

    def _change(self, lsn: int, kind: str, message: _Bytes) -> Iterator[Change]:
        if kind == "T":
            count, _ = message.number("I"), message.number("B")
            tables = [self.relations[message.number("I")].table for _ in range(count)]
            if self.table in tables:
                yield self._made("truncate", lsn, {})
            return
        relation = self.relations[message.number("I")]
        if relation.table != self.table:
            return
        part = message.letter()
        old: dict[str, _Value] | None = None
        if part in "KO":
            old = message.row(relation.columns)
            if part == "K":
                old = {name: value for name, value in old.items() if name in relation.identity}
            if kind == "D":
                yield self._made("delete", lsn, old)
                return
            message.letter()
        new = message.row(relation.columns)
        if kind == "I":
            yield self._made("insert", lsn, new)
            return
        for name, value in (old or {}).items():
            if new[name] is _UNSENT:
                new[name] = value
        if old is not None and any(new[name] != old[name] for name in self._key(relation, old)):
            yield self._made("delete", lsn, old)
            yield self._made("insert", lsn, new)
            return
        yield self._made("update", lsn, new)

    def _key(self, relation: Relation, old: _Row) -> list[str]:
        """By what a row is told from others; nothing where the whole row is all that does."""
        if not self.keys and len(relation.identity) == len(relation.columns):
            return []
        return [name for name in self.keys or relation.identity if name in old]

    def _made(self, op: str, lsn: int, row: _Row) -> Change:
        number, committed, _ = self.transaction
        values = {name: value for name, value in row.items() if not isinstance(value, _Unsent)}
        left_out = tuple(name for name, value in row.items() if isinstance(value, _Unsent))
        return Change(op, lsn, number, committed, values, left_out)
