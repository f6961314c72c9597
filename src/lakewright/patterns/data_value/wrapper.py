"""Wrapper: keep the record as it came and put what was computed beside it.

Problem:
    Visits come from several providers, each with columns of its own. Consumers need the same fields of all of them, and
    whoever looks for a mistake needs to tell what was sent from what we made of it.
Guarantee:
    The raw part holds what came in, untouched, in each of the four forms: byte for byte where it is text, also of a
    record that cannot be parsed; that one has no computed values, and ``error`` says why. The computed part has the
    same columns for every record. What is known of the run (``context``) is in the computed part alone.
Consequences:
    - One thing lives in two structures: keep wrapped rows in silver, and give readers ``unwrap_records``, which shows
      one row without the split.
    - Records grow. A reader of computed columns alone reads nothing of the raw part: the files are columnar.
    - The flat form needs names that tell both parts apart: all computed columns begin with ``prefix``.
    - Two tables need a key that is unique: ``wrap_apart`` refuses another one before anything is written.
    - An expression that raises (ANSI: ``CAST('x' AS INT)``) stops the job: write ``try_cast``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lakewright.errors import ConfigurationError, InputError, MissingColumnsError
from lakewright.model.columns import SYSTEM_PREFIX, business_columns, taken_names
from lakewright.model.ddl import schema_from_ddl
from lakewright.model.sql import quoted
from lakewright.patterns.data_value.context_facts import FACTS, check_facts
from lakewright.patterns.data_value.json_text import JSON_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "Apart",
    "Form",
    "Wrapper",
    "unwrap_records",
    "wrap_apart",
    "wrap_as_json",
    "wrap_providers",
    "wrap_records",
]

Form: TypeAlias = Literal["raw_nested", "computed_nested", "flat", "two_tables"]
_PARSED, _CORRUPT, _ERROR = "parsed", "_lw_corrupt", "error"


@dataclass(frozen=True, slots=True)
class Wrapper:
    """What is computed of a record, and how both parts lie in a row; in a pipeline ``wrap=Wrapper(...)``."""

    computed: Mapping[str, str] = field(hash=False)
    """Name -> SQL over the record's columns; with ``parse``, over ``parsed.FIELD`` as well."""
    form: Form = "raw_nested"
    """``raw_nested``: computed columns and a struct of what came; ``computed_nested``: the reverse; ``flat``: all at
    one level, the computed ones with ``prefix``; ``two_tables``: apart, by ``keys``."""
    text: str | None = None
    """The column whose text is the record, where it is to be parsed."""
    parse: str | None = None
    """The fields to parse out of that text (JSON), as ``"visit_id STRING, page STRING"``."""
    context: Sequence[str] = ()
    """What of the run goes with each record, such as ``job_version``: see Metadata Decorator."""
    version: str | None = None
    """In a pipeline, the ``job_version``; where none is given, the hash of the step's code."""
    keys: Sequence[str] = ()
    raw_name: str = "raw"
    computed_name: str = "computed"
    prefix: str = "computed_"

    def __post_init__(self) -> None:
        if self.form not in get_args(Form):
            raise ConfigurationError(f"Wrapper: form is one of {', '.join(get_args(Form))}, not {self.form!r}.")
        if not self.computed and not self.context:
            raise ConfigurationError("Wrapper: nothing is computed. Name at least one column in 'computed'.")
        if (self.text is None) != (self.parse is None):
            raise ConfigurationError("Wrapper: 'text' names the column and 'parse' its fields; give both or neither.")
        if self.form == "two_tables" and not self.keys:
            raise ConfigurationError("Wrapper: two tables are joined by 'keys', and none is named.")
        if self.form == "flat" and not self.prefix:
            raise ConfigurationError("Wrapper: in the flat form a 'prefix' tells computed columns from raw ones.")
        check_facts("Wrapper", self.context)
        if twice := [name for name in self.context if name in self.computed]:
            raise ConfigurationError(f"Wrapper: '{twice[0]}' is both computed and of the context.")
        if self.parse is not None and _ERROR in self.computed:
            raise ConfigurationError(
                f"Wrapper: '{_ERROR}' tells why a record could not be parsed. Choose another name."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the computed part, in order."""
        return (*self.computed, *self.context, *(() if self.parse is None else (_ERROR,)))


@dataclass(frozen=True, slots=True)
class Apart:
    """The two tables of the form that leaves the original as it is."""

    raw: DataFrame
    computed: DataFrame


def wrap_records(df: DataFrame, *, wrapper: Wrapper, context: Mapping[str, object] | None = None) -> DataFrame:
    """Put what is computed beside each record, in one of the forms that make one table. Lazy.

    >>> visits = spark.createDataFrame([("v1", "/home", None)], "visit string, page string, since string")
    >>> wrapped = wrap_records(visits, wrapper=Wrapper({"is_connected": "since IS NOT NULL"}))
    >>> wrapped.collect()
    [Row(is_connected=False, raw=Row(visit='v1', page='/home', since=None))]
    """
    if wrapper.form == "two_tables":
        raise ConfigurationError("Wrapper: two tables come from wrap_apart(...); wrap_records makes one.")
    raw, computed, judged = _parts(df, wrapper, context)
    return _shaped(judged, raw, computed, wrapper, [name for name in df.columns if name.startswith(SYSTEM_PREFIX)])


def wrap_apart(df: DataFrame, *, wrapper: Wrapper, context: Mapping[str, object] | None = None) -> Apart:
    """Runs a job that refuses a key that is NULL or not unique; then both frames are lazy, joined by ``keys``."""
    from pyspark.sql import functions as F

    _, computed, judged = _parts(df, wrapper, context)
    keys = [quoted(key) for key in wrapper.keys]
    none = " OR ".join(f"{key} IS NULL" for key in keys)
    bad = df.groupBy(*keys).agg(F.count(F.lit(1)).alias("_lw_times")).where(f"_lw_times > 1 OR {none}").limit(5)
    if found := bad.select(*keys).collect():
        shown = ", ".join(str(tuple(row)) for row in found)
        raise InputError(
            f"Wrapper: two tables are joined by ({', '.join(wrapper.keys)}), which is NULL or there more than once: "
            f"{shown}. Nothing was written.",
            hint="Choose keys that tell a record, or keep both parts in one table (another 'form').",
        )
    made = [one.alias(name) for name, one in computed.items() if name not in wrapper.keys]
    return Apart(df, judged.select(*[F.col(key) for key in keys], *made))


def wrap_providers(
    frames: Mapping[str, DataFrame],
    *,
    wrappers: Mapping[str, Wrapper],
    context: Mapping[str, object] | None = None,
    provider: str = "provider",
) -> DataFrame:
    """The records of several providers in one frame; lazy. Each has a wrapper of its own, all with the same columns.

    The raw part is one text (``record``): the provider's own, or its columns as JSON. ``provider`` tells whose it is.
    """
    from pyspark.sql import functions as F

    if not frames or set(frames) != set(wrappers):
        raise ConfigurationError("Wrapper: each provider has a frame and a wrapper, under the same name.")
    found: DataFrame | None = None
    for name, df in frames.items():
        wrapper = wrappers[name]
        raw, computed, judged = _parts(df, wrapper, context)
        columns = F.to_json(F.struct(*raw.values()), JSON_OPTIONS)
        text = columns if wrapper.text is None else raw[wrapper.text].cast("string")
        one = _shaped(judged, {"record": text.alias("record")}, {provider: F.lit(name), **computed}, wrapper, [])
        if found is not None and (told := one.schema.simpleString()) != found.schema.simpleString():
            raise ConfigurationError(
                f"Wrapper: the records of '{name}' would be {told}, those before {found.schema.simpleString()}.",
                hint="Give all wrappers the same form and names, and cast what differs in type.",
            )
        found = one if found is None else found.union(one)
    assert found is not None
    return found


def wrap_as_json(
    df: DataFrame, *, wrapper: Wrapper, context: Mapping[str, object] | None = None, into: str = "value"
) -> DataFrame:
    """The envelope as one text, for the value of a message: ``{"raw": ..., "computed": {...}}``. Lazy.

    With ``text`` the raw part is that text as it came; else an object of the record's columns. The other columns of the
    frame stay, so that a key can be taken from them.
    """
    from pyspark.sql import functions as F

    raw, computed, judged = _parts(df, wrapper, context)
    record = F.col(quoted(wrapper.text)).cast("string") if wrapper.text is not None else F.struct(*raw.values())
    made = F.struct(*[one.alias(name) for name, one in computed.items()])
    envelope = F.struct(record.alias(wrapper.raw_name), made.alias(wrapper.computed_name))
    value = F.to_json(envelope, JSON_OPTIONS)
    kept = [name for name in df.columns if name != into]
    return judged.select(*[F.col(quoted(name)) for name in kept], value.alias(into))


def unwrap_records(
    df: DataFrame, *, wrapper: Wrapper, raw: DataFrame | None = None, columns: Sequence[str] = ()
) -> DataFrame:
    """One row per record without a sign of the two parts; lazy. Of a name in both, the computed value is shown.

    ``columns`` chooses what is shown (all, where none is named); ``raw`` is the second table of ``two_tables``.

    >>> visits = spark.createDataFrame([("v1", "/a")], "visit string, page string")
    >>> wrapper = Wrapper({"section": "substring(page, 2)"}, form="computed_nested")
    >>> unwrap_records(wrap_records(visits, wrapper=wrapper), wrapper=wrapper).collect()
    [Row(visit='v1', page='/a', section='a')]
    """
    from pyspark.sql import functions as F

    found: dict[str, Column] = {}
    if wrapper.form == "two_tables":
        if raw is None:
            raise ConfigurationError("Wrapper: of two tables the raw one is needed too: unwrap_records(..., raw=...).")
        both = list(wrapper.keys)
        computed = df.select(*[quoted(name) for name in (*both, *[n for n in wrapper.names if n not in both])])
        kept = [name for name in raw.columns if name in both or name not in wrapper.names]
        df = raw.select(*[quoted(name) for name in kept]).join(computed, both)
        found = {name: F.col(quoted(name)) for name in df.columns}
    else:
        _refuse_other_shape(df, wrapper)
        nested = {"raw_nested": wrapper.raw_name, "computed_nested": wrapper.computed_name}.get(wrapper.form)
        inside = df.schema[nested].dataType.fieldNames() if nested else []  # type: ignore[attr-defined]
        inner = {name: F.col(f"{quoted(nested)}.{quoted(name)}") for name in inside} if nested else {}
        outer = {name: F.col(quoted(name)) for name in business_columns(df.columns) if name != nested}
        made = [f"{wrapper.prefix}{name}" for name in wrapper.names]
        if wrapper.form == "flat":
            inner = {name.removeprefix(wrapper.prefix): outer.pop(name) for name in made}
        found = {**inner, **outer} if wrapper.form == "raw_nested" else {**outer, **inner}
    if unknown := [name for name in columns if name not in found]:
        raise MissingColumnsError(pattern="Wrapper", missing=unknown, present=list(found))
    return df.select(*[found[name].alias(name) for name in (columns or found)])


def _shaped(
    judged: DataFrame, raw: Mapping[str, Column], computed: Mapping[str, Column], wrapper: Wrapper, hidden: list[str]
) -> DataFrame:
    """Both parts in one row, as the form says; columns of the system stay beside them."""
    from pyspark.sql import functions as F

    prefix = wrapper.prefix if wrapper.form == "flat" else ""
    made = [one.alias(f"{prefix}{name}") for name, one in computed.items()]
    kept = [F.col(quoted(name)) for name in hidden]
    if wrapper.form == "computed_nested":
        return judged.select(*raw.values(), F.struct(*made).alias(wrapper.computed_name), *kept)
    if wrapper.form == "raw_nested":
        return judged.select(*made, F.struct(*raw.values()).alias(wrapper.raw_name), *kept)
    return judged.select(*raw.values(), *made, *kept)


def _parts(
    df: DataFrame, wrapper: Wrapper, context: Mapping[str, object] | None
) -> tuple[dict[str, Column], dict[str, Column], DataFrame]:
    """The raw columns, the computed ones by name, and the frame that both are told from."""
    from pyspark.sql import functions as F

    known = business_columns(df.columns)
    _check(wrapper, known, context or {})
    raw = {name: F.col(quoted(name)) for name in known}
    judged, failed = df, F.lit(None).cast("string")
    if wrapper.text is not None and wrapper.parse is not None:
        fields = f"{wrapper.parse}, {_CORRUPT} STRING"
        text = F.col(quoted(wrapper.text)).cast("string")
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        judged = df.select("*", F.from_json(text, schema_from_ddl(fields), options).alias(_PARSED))
        failed = F.when(text.isNull(), F.lit("there is no text")).when(
            F.col(f"{_PARSED}.{_CORRUPT}").isNotNull() | F.col(_PARSED).isNull(), F.lit("it is no JSON of these fields")
        )
    told = {name: F.lit((context or {})[name]) for name in wrapper.context}
    made = {name: F.when(failed.isNull(), F.expr(sql)) if wrapper.parse else F.expr(sql)
            for name, sql in wrapper.computed.items()}  # fmt: skip
    return raw, {**made, **told, **({} if wrapper.parse is None else {_ERROR: failed})}, judged


def _check(wrapper: Wrapper, known: Sequence[str], context: Mapping[str, object]) -> None:
    wanted = [*([] if wrapper.text is None else [wrapper.text]), *wrapper.keys]
    if missing := [name for name in wanted if name not in known]:
        raise MissingColumnsError(pattern="Wrapper", missing=missing, present=list(known))
    if untold := [name for name in wrapper.context if name not in context]:
        raise ConfigurationError(
            f"Wrapper: the context wants '{untold[0]}' and nobody gives it.",
            hint=f"wrap_records(..., context={{'{untold[0]}': ...}}). A pipeline knows {', '.join(FACTS)}.",
        )
    taken = {
        "raw_nested": taken_names([wrapper.raw_name], wrapper.names),
        "computed_nested": taken_names([wrapper.computed_name], known),
        "flat": taken_names([f"{wrapper.prefix}{name}" for name in wrapper.names], known),
        "two_tables": [],
    }[wrapper.form]
    taken += [] if wrapper.parse is None else taken_names([_PARSED], known)
    if taken:
        raise ConfigurationError(
            f"Wrapper: the record already has a column '{taken[0]}'.",
            hint="Choose another 'raw_name', 'computed_name' or 'prefix', or rename the column.",
        )


def _refuse_other_shape(df: DataFrame, wrapper: Wrapper) -> None:
    wanted = {
        "raw_nested": [*wrapper.names, wrapper.raw_name],
        "computed_nested": [wrapper.computed_name],
        "flat": [f"{wrapper.prefix}{name}" for name in wrapper.names],
    }[wrapper.form]
    columns = df.columns
    if missing := [name for name in wanted if name not in columns]:
        raise MissingColumnsError(pattern=f"Wrapper ({wrapper.form})", missing=missing, present=columns)
