"""The conditions of a Filter Interceptor as SQL, for those who filter in a warehouse or a notebook.

Guarantee:
    Generated from the same definitions, the statements keep the same rows and give the same counts as
    ``intercept_filters``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakewright.errors import ConfigurationError
from lakewright.patterns.error_management.filter_conditions import check_conditions

__all__ = ["FilterSql", "filter_sql"]


@dataclass(frozen=True, slots=True)
class FilterSql:
    """``flagged`` adds ``status_flag``: the filter that removes a row, or NULL; the others read such a query."""

    flagged: str
    kept: str
    counts: str


def filter_sql(filters: Mapping[str, str], *, table: str) -> FilterSql:
    """Three statements over a table or view: flag its rows, keep those without a flag, count by flag.

    >>> print(filter_sql({"has_type": "type IS NOT NULL"}, table="devices").flagged)
    SELECT *, CASE
      WHEN NOT (type IS NOT NULL) THEN 'has_type'
      WHEN (type IS NOT NULL) IS NULL THEN 'has_type'
    END AS status_flag
    FROM devices
    """
    check_conditions(filters)
    for name, condition in filters.items():
        if not isinstance(condition, str):
            raise ConfigurationError(
                f"Filter Interceptor: the filter '{name}' is not SQL text, so no SQL can be made of it."
            )
    false = [f"  WHEN NOT ({condition}) THEN '{name}'" for name, condition in filters.items()]
    unknown = [f"  WHEN ({condition}) IS NULL THEN '{name}'" for name, condition in filters.items()]
    flagged = "\n".join(["SELECT *, CASE", *false, *unknown, "END AS status_flag", f"FROM {table}"])
    inner = f"(\n{flagged}\n) AS input_with_flags"
    return FilterSql(
        flagged=flagged,
        kept=f"SELECT * EXCEPT (status_flag) FROM {inner}\nWHERE status_flag IS NULL",
        counts=f"SELECT status_flag AS filter, count(*) AS removed FROM {inner}\nGROUP BY status_flag",
    )
