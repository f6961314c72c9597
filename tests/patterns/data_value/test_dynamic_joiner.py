"""Dynamic Joiner: two streams of different speed, each pair once, and nothing held for ever."""

from __future__ import annotations

import json

import pytest
from tests.patterns.delta import rows

from lakewright import DynamicJoiner, join_streams
from lakewright.errors import ConfigurationError, MissingColumnsError

OPTIONS = {
    "keys": ["page"],
    "left_time": "seen",
    "right_time": "shown",
    "within": ("0 seconds", "2 minutes"),
    "left_watermark": "10 minutes",
    "right_watermark": "10 minutes",
}


class Streams:
    """Visits and ads that come as files, joined by one query that can be stopped and started."""

    def __init__(self, spark, folder):
        self.spark, self.folder, self.files, self.query = spark, folder, 0, None
        for name in ("visits", "ads"):
            (folder / name).mkdir(parents=True)
        self.start()

    def start(self):
        def read(name, columns):
            return self.spark.readStream.schema(columns).json(str(self.folder / name))

        visits = read("visits", "page string, visit string, seen timestamp")
        ads = read("ads", "page string, ad string, shown timestamp")
        writer = join_streams(visits, ads, how="left", **OPTIONS).select("visit", "ad").writeStream.format("delta")
        self.query = writer.option("checkpointLocation", str(self.folder / "checkpoint")).start(
            str(self.folder / "out")
        )

    def come(self, visits=(), ads=()):
        """A micro-batch with these rows; then what is there."""
        for name, given, columns in (
            ("visits", visits, ("page", "visit", "seen")),
            ("ads", ads, ("page", "ad", "shown")),
        ):
            if given:
                self.files += 1
                lines = [json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in given]
                draft = self.folder / name / f".{self.files}.json"
                draft.write_text("".join(lines))
                draft.rename(self.folder / name / f"{self.files}.json")
        self.query.processAllAvailable()
        return rows(self.spark.read.format("delta").load(str(self.folder / "out")))


def at(time):
    return f"2026-01-01T{time}Z"


@pytest.mark.shows("05.dynamic-joiner", 1, 2, 6)
@pytest.mark.shows("02.change-data-capture", 6)
def test_the_late_side_finds_its_match_within_the_bound_and_what_has_none_is_released_once(spark, tmp_path):
    streams = Streams(spark, tmp_path)
    try:
        # Without a key or a time nothing can match: nobody waits for it.
        first = [("/a", "v1", at("10:00:00")), ("/b", "v2", at("10:00:00"))]
        lost = [("v8", None), ("v9", None)]
        assert streams.come([*first, (None, "v8", at("10:00:00")), ("/a", "v9", None)]) == lost
        assert streams.come([("/c", "v3", at("10:05:00"))]) == lost
        assert streams.come(ads=[("/d", "early", at("10:07:00")), (None, "nobody's", at("10:01:00"))]) == lost
        streams.query.stop()
        streams.start()
        # The ads are late by three micro-batches, and one came before its visit. 90 seconds are within, 130 are not.
        late = [("/a", "in time", at("10:01:30")), ("/b", "too late", at("10:02:10"))]
        matched = [("v1", "in time"), ("v5", "early")]
        assert streams.come([("/d", "v5", at("10:06:00"))], late) == sorted([*matched, *lost], key=str)
        # Both sides are beyond the bound: what found no match is released once, and nothing of it is held.
        now = [*matched, ("v2", None), ("v3", None), *lost]
        assert streams.come([("/e", "v6", at("10:30:00"))], [("/f", "other", at("10:30:00"))]) == sorted(now, key=str)
        assert streams.query.lastProgress.stateOperators[0].numRowsTotal == 2
    finally:
        streams.query.stop()


@pytest.mark.shows("05.dynamic-joiner", 7)
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"within": None}, "'within' is missing.*held for ever"),
        ({"left_watermark": None}, "'left_watermark' is missing"),
        ({"right_watermark": None}, "'right_watermark' is missing"),
        ({"keys": "page"}, "at least one column"),
        ({"keys": []}, "at least one column"),
        ({"how": "outer"}, "how is one of 'inner'"),
        ({"within": ("1 minute",)}, "one length of time, or two"),
        ({"within": ("0 seconds", "soon")}, "within: 'soon' is not a length"),
        ({"right_watermark": "late"}, "right_watermark: 'late' is not a length"),
    ],
)
def test_a_join_that_would_wait_for_ever_is_refused(wrong, words):
    with pytest.raises(ConfigurationError, match=words):
        DynamicJoiner(**{**OPTIONS, **wrong})


def test_frames_at_rest_give_the_same_pairs_and_columns_are_looked_at_first(spark):
    def frame(columns, *given):
        names = [one.split()[0] for one in columns.split(", ")]
        casts = [f"CAST({one.split()[0]} AS {one.split()[1]}) AS {one.split()[0]}" for one in columns.split(", ")]
        return spark.createDataFrame(list(given), [f"{name}" for name in names]).selectExpr(*casts)

    visits = frame("page string, visit string, seen timestamp", ("/a", "v1", "2026-01-01 10:00:00"))
    ads = frame(
        "page string, ad string, shown timestamp",
        ("/a", "x", "2026-01-01 10:02:00"),
        ("/a", "y", "2026-01-01 09:59:59"),
        ("/b", "z", "2026-01-01 10:00:00"),
    )

    def pairs(**options):
        return rows(join_streams(visits, ads, **{**OPTIONS, **options}).select("page", "visit", "ad"))

    assert pairs() == [("/a", "v1", "x")]  # both ends belong to it
    both = [("/a", "v1", "x"), ("/a", "v1", "y")]
    assert pairs(within="2 minutes") == both
    assert pairs(within="2 minutes", how="full") == [*both, ("/b", None, "z")]
    for options, left, error, words in (
        ({"keys": ["site"]}, visits, MissingColumnsError, "left side.* no column site"),
        ({"right_time": "show"}, visits, MissingColumnsError, "right side.*Did you mean 'shown'"),
        ({}, visits.withColumnRenamed("visit", "ad"), ConfigurationError, "both sides have a column ad"),
        ({}, visits.selectExpr("page", "date(seen) AS seen"), ConfigurationError, "seen of the left side is date"),
        ({}, spark.readStream.format("rate").load(), ConfigurationError, "one side is a stream"),
    ):
        with pytest.raises(error, match=words):
            join_streams(left, ads, **{**OPTIONS, **options})
