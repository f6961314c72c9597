"""The versions of rows as chains: of the changes of a batch and what is known of the same keys; all of it lazy.

A version lies in its chain by the place of its change in the source's log, and is valid until the next one begins. By
its clock a later change may have been made before an earlier one (a snapshot is stamped when it is read, a clock is set
back): at each moment the row is what the last change in the log's order, of those made up to then, has left. So no
version begins later than one that follows it, and one that was never to be seen is there with a validity of no length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewright.model.columns import DELETED_COLUMN, POSITION_COLUMN, SYSTEM_PREFIX
from lakewright.model.sql import quoted, text_literal
from lakewright.patterns.ingestion.captured_changes import IS_ROW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["NOT_SENT_COLUMN", "Chain"]

NOT_SENT_COLUMN = f"{SYSTEM_PREFIX}not_sent"
"""The columns that a version takes over from the one before it, because its change left them out; NULL: none."""
_NEW = f"{SYSTEM_PREFIX}new"
_AGAIN = f"{SYSTEM_PREFIX}again"
_FROM, _TO = f"{SYSTEM_PREFIX}from", f"{SYSTEM_PREFIX}to"
_OLD_FROM, _OLD_TO = f"{SYSTEM_PREFIX}old_from", f"{SYSTEM_PREFIX}old_to"
_NOBODY = "CAST(NULL AS TIMESTAMP)"
_NO_NAMES = "CAST(NULL AS ARRAY<STRING>)"


@dataclass(frozen=True, slots=True)
class Chain:
    """How the columns of a table of versions are called, and SQL for the time of a change."""

    keys: Sequence[str]
    others: Sequence[str]
    valid_from: str
    valid_to: str
    current: str
    time: str

    @property
    def columns(self) -> list[str]:
        """The columns of the table, quoted."""
        own = (self.valid_from, self.valid_to, self.current, POSITION_COLUMN, DELETED_COLUMN, NOT_SENT_COLUMN)
        return [quoted(name) for name in (*self.keys, *self.others, *own)]

    def changed(self, changes: DataFrame, known: DataFrame | None, *, emptied: bool) -> DataFrame:
        """The versions that are new, or differ from what is known of them, of every key that the changes name.

        ``emptied`` says that there is a TRUNCATE among them, which names no key: every row that is older ends.
        """
        made = self._made(changes)
        if emptied:
            made = made.unionByName(self._ends(changes, made, known))
        versions = made
        if known is not None:
            keys = made.select(*self._keys).distinct()
            versions = made.unionByName(self._known(known).join(keys, on=list(self.keys), how="left_semi"))
        return self._chained(versions)

    @property
    def _keys(self) -> list[str]:
        return [quoted(key) for key in self.keys]

    def _made(self, changes: DataFrame) -> DataFrame:
        """Each change as a version, or the end of one."""
        gone = "_op = 'delete'"
        left_out = f"CASE WHEN NOT {gone} AND size(_not_sent) > 0 THEN CAST(_not_sent AS ARRAY<STRING>) END"
        return changes.where(IS_ROW).selectExpr(
            *self._keys,
            *[f"CASE WHEN NOT {gone} THEN {quoted(name)} END AS {quoted(name)}" for name in self.others],
            f"{self.time} AS {quoted(self.valid_from)}",
            f"_lsn AS {POSITION_COLUMN}",
            f"{gone} AS {DELETED_COLUMN}",
            f"{left_out if '_not_sent' in changes.columns else _NO_NAMES} AS {NOT_SENT_COLUMN}",
            f"{_NOBODY} AS {_OLD_FROM}",
            f"{_NOBODY} AS {_OLD_TO}",
            f"1 AS {_NEW}",
        )

    def _known(self, table: DataFrame) -> DataFrame:
        kept = (*self.keys, *self.others, self.valid_from, POSITION_COLUMN, DELETED_COLUMN, NOT_SENT_COLUMN)
        return table.selectExpr(
            *[quoted(name) for name in kept],
            f"{quoted(self.valid_from)} AS {_OLD_FROM}",
            f"{quoted(self.valid_to)} AS {_OLD_TO}",
            f"0 AS {_NEW}",
        )

    def _ends(self, changes: DataFrame, made: DataFrame, known: DataFrame | None) -> DataFrame:
        """The end of every row that is older than a TRUNCATE."""
        older = made.select(*self._keys, POSITION_COLUMN)
        if known is not None:
            older = older.unionByName(known.select(*self._keys, POSITION_COLUMN))
        first = older.groupBy(*self._keys).agg({POSITION_COLUMN: "min"}).toDF(*self.keys, _FROM)
        cuts = changes.where("_op = 'truncate' AND _lsn IS NOT NULL").selectExpr(
            f"_lsn AS {POSITION_COLUMN}", f"{self.time} AS {quoted(self.valid_from)}"
        )
        kinds = {field.name: field.dataType.simpleString() for field in made.schema}
        told = (*self.keys, self.valid_from, POSITION_COLUMN)
        rest = [name for name in made.columns if name not in (*told, DELETED_COLUMN, _NEW)]
        ended = first.crossJoin(cuts).where(f"{_FROM} < {POSITION_COLUMN}")
        return ended.selectExpr(
            *[quoted(name) for name in told],
            *[f"CAST(NULL AS {kinds[name]}) AS {quoted(name)}" for name in rest],
            f"true AS {DELETED_COLUMN}",
            f"1 AS {_NEW}",
        )

    def _chained(self, versions: DataFrame) -> DataFrame:
        by = f"PARTITION BY {', '.join(self._keys)}"
        # At one place there is one change of a key: what is known already, and of two that are new always the same.
        in_order = f"{by} ORDER BY {POSITION_COLUMN}, {_NEW}, {DELETED_COLUMN}"
        again = f"lag({POSITION_COLUMN}) OVER ({in_order}) <=> {POSITION_COLUMN} AS {_AGAIN}"
        one_each = versions.selectExpr("*", again).where(f"NOT {_AGAIN}")
        # Backwards, because Spark sums up what follows a row anew for each row.
        backwards = f"{by} ORDER BY {POSITION_COLUMN} DESC ROWS BETWEEN UNBOUNDED PRECEDING AND"
        begins = quoted(self.valid_from)
        values = [_filled(name, in_order) for name in self.others]
        chained = one_each.selectExpr(
            "*",
            f"min({begins}) OVER ({backwards} CURRENT ROW) AS {_FROM}",
            f"min({begins}) OVER ({backwards} 1 PRECEDING) AS {_TO}",
            *[f"{sql} AS {_value(place)}" for place, sql in enumerate(values)],
        )
        kinds = {field.name: field.dataType.simpleString() for field in versions.schema}
        differs = [f"NOT ({_OLD_FROM} <=> {_FROM})", f"NOT ({_OLD_TO} <=> {_TO})"]
        differs += [
            f"({_is_left_out(name)} AND NOT ({_compared(quoted(name), kinds[name])} <=> "
            f"{_compared(_value(place), kinds[name])}))"
            for place, name in enumerate(self.others)
        ]
        return chained.where(f"{_NEW} = 1 OR {' OR '.join(differs)}").selectExpr(
            *self._keys,
            *[f"{_value(place)} AS {quoted(name)}" for place, name in enumerate(self.others)],
            f"{_FROM} AS {quoted(self.valid_from)}",
            f"{_TO} AS {quoted(self.valid_to)}",
            f"({_TO} IS NULL AND NOT {DELETED_COLUMN}) AS {quoted(self.current)}",
            POSITION_COLUMN,
            DELETED_COLUMN,
            NOT_SENT_COLUMN,
        )


def _value(place: int) -> str:
    return f"{SYSTEM_PREFIX}value_{place}"


def _is_left_out(name: str) -> str:
    return f"coalesce(array_contains({NOT_SENT_COLUMN}, {text_literal(name)}), false)"


def _filled(name: str, in_order: str) -> str:
    """SQL for a version's value: its own, or the last one that was sent before it. The end of a row sends NULL."""
    left_out = _is_left_out(name)
    sent = f"last_value(CASE WHEN NOT {left_out} THEN named_struct('value', {quoted(name)}) END, true)"
    so_far = f"{in_order} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
    return f"CASE WHEN {left_out} THEN ({sent} OVER ({so_far})).value ELSE {quoted(name)} END"


def _compared(sql: str, kind: str) -> str:
    """SQL for a value of which Spark can tell whether it is the same."""
    return f"CAST({sql} AS STRING)" if "map<" in kind or "variant" in kind else sql
