"""Tolerant functions: a Python function that raises on one row fails that row, and no other.

Problem:
    One record on which a user's function raises (a poison pill) fails the whole batch, at every attempt.
Guarantee:
    Each row gets the function's value, or the type and message of what it raised; a value that does not fit the
    declared type counts as raised. The function is called once per row and evaluation of the column; a ``batched`` one
    once per batch, and row by row only within a batch on which it raised. A ``ConnectionError``, a ``TimeoutError`` or
    what ``transient`` names blames no row: it fails the step, which is tried again. In what was raised, a secret that
    the function revealed is masked.
Consequences:
    - Libraries have errors of their own for a server that does not answer (``requests.ConnectionError`` is no
      ``ConnectionError`` of Python): name them in ``transient``, or good rows are set aside while it is away.
    - A function that ends its process (a crash in C code, ``os._exit``) cannot be caught.
    - As a rule of Dead-Letter it judges rows in one pass and is called again where the step uses it: it must be
      deterministic, and what it costs it costs twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakewright.errors import MAY_PASS, ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["FunctionRule", "Tolerant", "tolerant"]

_LONGEST = 1000


@dataclass(frozen=True, slots=True)
class Tolerant:
    """A function of columns that gives ``struct<value, error>``."""

    function: Callable[..., Any]
    returns: str
    batched: bool = False
    transient: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigurationError(f"tolerant: {self.function!r} is no function.")
        if not self.returns.strip():
            raise ConfigurationError("tolerant: 'returns' is empty. Name a type, such as 'INT'.")
        given: object = self.transient
        if not isinstance(given, tuple) or not all(isinstance(o, type) and issubclass(o, Exception) for o in given):
            raise ConfigurationError(
                f"tolerant: 'transient' should be a tuple of exception classes, such as (MyError,), not {given!r}."
            )

    def __call__(self, *columns: str | Column) -> Column:
        """The column of ``value`` and ``error``; one of both is NULL, or both where the function gives None."""
        from pyspark.sql.pandas.functions import arrow_udf

        made: Column = arrow_udf(_guarded(self), f"struct<value: {self.returns}, error: string>")(*columns)  # type: ignore[call-overload]
        return made

    def rule(self, *columns: str) -> FunctionRule:
        """The rule of Dead-Letter that the function does not raise on a row."""
        return FunctionRule(self, columns)


@dataclass(frozen=True, slots=True)
class FunctionRule:
    """That a function does not raise on some columns of a row; ``error`` tells what it raised."""

    function: Tolerant
    columns: tuple[str, ...]

    def __call__(self) -> Column:
        return self.error().isNull()

    def error(self) -> Column:
        """The type and message of what the function raised; NULL where it did not."""
        return self.function(*self.columns)["error"]

    def __str__(self) -> str:
        return f"{getattr(self.function.function, '__name__', 'function')}({', '.join(self.columns)})"


def tolerant(
    function: Callable[..., Any],
    *,
    returns: str,
    batched: bool = False,
    transient: tuple[type[Exception], ...] = (),
) -> Tolerant:
    """Let a Python function fail row by row.

    ``returns`` is the type of its value, as SQL names it. The function gets the values of one row; a ``batched`` one
    gets arrays of pyarrow, and gives one, or a list. ``transient`` names exceptions that are no fault of the row,
    beside ``ConnectionError`` and ``TimeoutError``: they fail the step, and it is tried again.

    >>> visits = spark.createDataFrame([("7",), ("many",)], "pages string")
    >>> pages = tolerant(int, returns="int")
    >>> visits.select(pages("pages").alias("found")).select("found.value", "found.error").collect()
    [Row(value=7, error=None), Row(value=None, error="ValueError: invalid literal for int() with base 10: 'many'")]
    """
    return Tolerant(function, returns, batched, transient)


def _guarded(given: Tolerant) -> Callable[..., Any]:
    """The function for Arrow's batches. It travels to the workers by value: what it needs, it holds or imports."""
    import pyarrow as pa
    from pyspark.sql.types import DataType

    function, batched, longest, may_pass = given.function, given.batched, _LONGEST, MAY_PASS
    transient: tuple[type[Exception], ...] = (ConnectionError, TimeoutError, *given.transient)
    kind = DataType.fromDDL(given.returns)

    def told(error: Exception) -> str:
        try:
            said = str(error)
        except Exception:
            said = "its message cannot be read"
        # Text that is no UTF-8 (half a pair of signs) fits into no column.
        said = f"{type(error).__name__}: {said}".encode("utf-8", "backslashreplace").decode()
        try:
            from lakewright.masking import mask
        except ImportError:  # the machine of a cluster need not have it: then nothing was revealed there by it either
            return said[:longest]
        return mask(said)[:longest]  # before it is cut: half a secret would not be known again

    def passing(error: Exception) -> Exception:
        # By its words the run knows it again, whatever its class: of the worker's error only text comes back.
        return ConnectionError(f"{may_pass} {told(error)}")

    def by_row(columns: tuple[Any, ...], rows: int) -> tuple[list[Any], list[str | None]]:
        values: list[Any] = []
        errors: list[str | None] = []
        plain = [] if batched else [column.to_pylist() for column in columns]
        for place in range(rows):
            try:
                if batched:
                    one = function(*[column.slice(place, 1) for column in columns])
                    value = one[0].as_py() if hasattr(one[0], "as_py") else one[0]
                else:
                    value = function(*[column[place] for column in plain])
                values.append(value)
                errors.append(None)
            except transient as error:
                raise passing(error) from error
            except Exception as error:
                values.append(None)
                errors.append(told(error))
        return values, errors

    def fitted(values: list[Any], errors: list[str | None], arrow: Any) -> Any:
        import pyarrow as pa

        try:
            return pa.array(values, type=arrow)
        except Exception:
            fits = []
            for place, value in enumerate(values):
                try:
                    fits.append(pa.array([value], type=arrow)[0])
                except Exception as error:
                    fits.append(pa.scalar(None, type=arrow))
                    errors[place] = told(error)
            return pa.array([one.as_py() for one in fits], type=arrow)

    def run(*columns: pa.Array) -> pa.Array:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_type

        arrow, rows = to_arrow_type(kind), len(columns[0])
        value: Any = None
        errors: list[str | None] = [None] * rows
        if batched:
            try:
                value = pa.array(function(*columns), type=arrow)
                value = value if len(value) == rows else None
            except transient as error:
                raise passing(error) from error
            except Exception:
                value = None
        if value is None:
            values, errors = by_row(columns, rows)
            value = fitted(values, errors, arrow)
        said = pa.array(errors, type=pa.string())
        fields = [pa.field("value", arrow), pa.field("error", pa.string())]
        return pa.StructArray.from_arrays([value, said], fields=fields)

    # Spark reads the kind of a function from its hints, which here are only text.
    run.__annotations__ = {"columns": pa.Array, "return": pa.Array}
    return run
