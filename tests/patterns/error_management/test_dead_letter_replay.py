"""Dead letters on frames: replayed with a history, and functions that fail one row and no other."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession
from tests.patterns.delta import rows

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.lake.delta_errors import is_transient
from lakewright.patterns.error_management.dead_letter import mark_replayed, split_dead_letters
from lakewright.patterns.error_management.dead_letter_replay import replay_dead_letters
from lakewright.patterns.error_management.tolerant_function import tolerant

AT = datetime(2026, 1, 5, tzinfo=UTC)


@pytest.mark.shows("03.dead-letter", 6)
def test_a_replay_on_frames_marks_what_is_repaired_and_keeps_the_history_of_the_rest(spark: SparkSession) -> None:
    visits = spark.sql(
        "SELECT * FROM VALUES ('v1', 'home', 1), ('v2', NULL, 1), ('v3', '/a', 2) AS t(visit, page, day)"
    )
    known = {"known_page": "page LIKE '/%'"}
    split = split_dead_letters(visits, rules=known)
    options = {"rules": known, "job": "visits", "version": "2", "replay_time": AT}

    def fix(df):  # type: ignore[no-untyped-def]
        return df.selectExpr("* EXCEPT (page)", "'/' || page AS page")

    again = replay_dead_letters(split.rejected, fix=fix, known=split.valid, keys=["visit"], **options)  # type: ignore[arg-type]
    (repaired,) = again.repaired.collect()
    assert (repaired["visit"], repaired["page"], repaired["was_dead_lettered"]) == ("v1", "/home", True)
    assert (repaired["replay_job"], repaired["replay_version"]) == ("visits", "2")
    assert repaired["replayed_at"] == AT.replace(tzinfo=None)
    assert [tuple(row) for row in again.touched("day").collect()] == [(1, 1)]
    third = replay_dead_letters(again.rejected, **options)  # type: ignore[arg-type]
    (left,) = third.rejected.collect()
    assert (left["visit"], left["broken_rules"], left["replay_attempts"]) == ("v2", ["known_page"], 2)
    assert left["earlier_rules"] == [["known_page"], ["known_page"]]
    # What is there is not given again: a second replay adds nothing.
    written = split.valid.unionByName(again.repaired.select("visit", "page", "day"))
    twice = replay_dead_letters(split.rejected, fix=fix, known=written, keys=["visit"], **options)  # type: ignore[arg-type]
    assert rows(twice.repaired) == []
    # So it is where the key is NULL: such a row is known by all of its columns. And a row tells its last replay.
    lost = spark.sql(
        "SELECT NULL AS visit, '/b' AS page, 1 AS day, false AS was_dead_lettered, array('x') AS broken_rules"
    )
    same, other = spark.sql("SELECT NULL, '/b', 1"), spark.sql("SELECT NULL, '/b', 2L")
    for there, added in ((written, 1), (written.union(same), 0), (written.union(other), 1)):
        back = replay_dead_letters(lost, known=there, keys=["visit"], **options).repaired  # type: ignore[arg-type]
        assert [row["was_dead_lettered"] for row in back.collect()] == [True] * added

    with pytest.raises(MissingColumnsError):
        replay_dead_letters(visits, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="both or none"):
        replay_dead_letters(split.rejected, known=visits, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="Replayed_At"):
        mark_replayed(visits.selectExpr("*", "now() AS Replayed_At"))


def test_a_function_that_raises_or_gives_something_else_fails_one_row(spark: SparkSession) -> None:
    def poisoned(text: str) -> int:
        if text == "poison":
            raise RuntimeError("it kills the batch")
        return json.loads(text)  # type: ignore[no-any-return]

    texts = ["7", "poison", "{", '"many"', "99999999999", None, "null"]
    frame = spark.createDataFrame([(n, text) for n, text in enumerate(texts)], "n int, text string")
    read = tolerant(poisoned, returns="int")
    found = frame.select("n", read("text").alias("found")).orderBy("n").collect()
    assert [row["found"]["value"] for row in found] == [7, None, None, None, None, None, None]
    errors = [row["found"]["error"] for row in found]
    assert errors[1] == "RuntimeError: it kills the batch"
    assert [None if error is None else error.partition(":")[0] for error in errors] == [
        None, "RuntimeError", "JSONDecodeError", "ArrowInvalid", "ArrowInvalid", "TypeError", None,
    ]  # fmt: skip

    # As a rule: the row is set aside with what the function said; a NULL that it may give is no error.
    rules = {"readable": read.rule("text"), "small": "n < 100"}
    split = split_dead_letters(frame, rules=rules, error_column="error")
    assert rows(split.valid) == [(0, "7"), (6, "null")]
    told = {row["n"]: (row["broken_rules"], row["error"]) for row in split.rejected.collect()}
    assert told[1] == (["readable"], "RuntimeError: it kills the batch")
    assert len(told) == 5
    assert split_dead_letters(frame, rules={"a": "n > 0"}, error_column="e").rejected.first()["e"] is None

    # A batched one is called once per batch, and row by row only where that raises.
    def doubled(numbers):  # type: ignore[no-untyped-def]
        import pyarrow.compute as pc

        if pc.any(pc.greater(numbers, 5)).as_py():
            raise ValueError(f"{len(numbers)} at once")
        return pc.multiply(numbers, 2)

    batched = tolerant(doubled, returns="int", batched=True)
    found = frame.coalesce(1).select(batched("n").alias("found")).collect()
    assert [row["found"]["value"] for row in found] == [0, 2, 4, 6, 8, 10, None]
    assert found[6]["found"]["error"] == "ValueError: 1 at once"

    # What is no fault of the row fails the work, and is known as transient: by row, and batched.
    class Busy(Exception):
        pass

    def asks(number):  # type: ignore[no-untyped-def]
        raise Busy("come back later")

    for given in (tolerant(asks, returns="int", transient=(Busy,)),
                  tolerant(asks, returns="int", transient=(Busy,), batched=True)):  # fmt: skip
        with pytest.raises(Exception, match="worth another attempt: Busy: come back later") as caught:
            frame.select(given("n")).collect()
        assert is_transient(caught.value)
    wrongs = [{"function": 3, "returns": "int"}, {"function": int, "returns": " "}]
    wrongs += [{"function": int, "returns": "int", "transient": wrong} for wrong in (Busy, ("Busy",), (SystemExit,))]
    for wrong in wrongs:
        with pytest.raises(ConfigurationError):
            tolerant(**wrong)  # type: ignore[arg-type]


def test_an_error_that_cannot_be_told_fails_its_row_alone_and_a_secret_in_it_is_masked(spark: SparkSession) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    def odd(number):  # type: ignore[no-untyped-def]
        if number == 1:
            raise ValueError("half a pair: \ud800")
        if number == 2:
            raise Unspeakable
        if number == 3:
            from lakewright.masking import remember

            remember("t0p-s3cret-w0rd")
            raise ValueError(f"{'x' * 986}t0p-s3cret-w0rd")
        return number

    read = tolerant(odd, returns="int")
    found = spark.range(4).coalesce(1).select(read("id").alias("found")).select("found.value", "found.error").collect()
    assert [tuple(row) for row in found] == [
        (0, None),
        (None, "ValueError: half a pair: \\ud800"),
        (None, "Unspeakable: its message cannot be read"),
        (None, f"ValueError: {'x' * 986}**"),  # masked, and only then cut
    ]
