"""Dynamic Joiner: two streams of different speed, each pair once, and nothing held for ever."""

from __future__ import annotations

import json
import os

import pytest
from tests.patterns.delta import rows

from lakewright import DynamicJoiner, join_as_of, join_report, join_streams
from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.patterns.data_value.join_report import report_of_join
from lakewright.patterns.data_value.newest_match import untold_rows

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
        ({"pick": "first"}, "pick is 'all' or 'latest'"),
        ({"pick": "latest", "within": "1 hour"}, "'row_id' is missing"),
        ({"pick": "latest", "row_id": ["visit"]}, "'within' cannot reach after it"),
        ({"pick": "latest", "row_id": ["visit"], "how": "full"}, "goes with how='inner' or 'left'"),
        ({"row_id": ["visit"]}, 'says nothing without pick="latest"'),
        ({"idle": "long"}, "idle: 'long' is not a length"),
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
        ({}, visits.withColumnRenamed("visit", "Ad"), ConfigurationError, "both sides have a column ad"),
        ({}, visits.selectExpr("page", "date(seen) AS seen"), ConfigurationError, "seen of the left side is date"),
        ({}, spark.readStream.format("rate").load(), ConfigurationError, "one side is a stream"),
    ):
        with pytest.raises(error, match=words):
            join_streams(left, ads, **{**OPTIONS, **options})


def land(folder, name, *files):
    """Files of one side, in the order in which they came: one micro-batch each."""
    (folder / name).mkdir(parents=True)
    for place, given in enumerate(files):
        file = folder / name / f"{place}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in given))
        os.utime(file, (1_000_000 + place, 1_000_000 + place))


def read(spark, folder, name, columns):
    return spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).json(str(folder / name))


def drained(frame, folder, sink="noop"):
    """The query that has read everything that is there."""
    writer = frame.writeStream.format(sink).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "out"))
    query.awaitTermination()
    return query


@pytest.mark.shows("05.dynamic-joiner", 4)
def test_what_is_held_stays_bounded_and_would_grow_without_bounds(spark, tmp_path):
    def batch(column, hour):
        return [{"page": f"/{hour}{n}", column: at(f"{hour}:00:0{n}")} for n in range(3)]

    hours = (10, 11, 12, 13, 14)
    land(tmp_path, "visits", *[batch("seen", hour) for hour in hours])
    land(tmp_path, "ads", *[batch("shown", hour) for hour in hours])
    visits = read(spark, tmp_path, "visits", "page string, seen timestamp")
    ads = read(spark, tmp_path, "ads", "page string, shown timestamp")
    bounded = join_report(drained(join_streams(visits, ads, **OPTIONS), tmp_path / "bounded"))
    control = join_report(drained(visits.join(ads, "page"), tmp_path / "control"))
    # Two micro-batches of both sides at most: the last one, and the one before until the watermark has passed it.
    assert bounded.most_state_rows <= 12
    assert bounded.state_rows == 6
    assert control.state_rows == 2 * 3 * len(hours)
    assert (bounded.late_rows, bounded.idle, sorted(bounded.rows.values())) == (0, (), [15, 15])
    assert bounded.watermark == "2026-01-01T13:50:02.000Z"


@pytest.mark.shows("05.dynamic-joiner", 5)
def test_as_of_its_own_time_a_row_gets_the_newest_match_and_waits_until_it_is_sure(spark, tmp_path):
    def visit(name, time, user=1):
        return {"visit": name, "user": user, "at": None if time is None else at(time)}

    def update(email, time, user=1):
        return {"user": user, "email": email, "changed": at(time)}

    # The updates come later than the visits, the newer one first; the last files only move the watermark.
    land(
        tmp_path,
        "visits",
        [
            visit("v1", "10:03:00"),
            visit("v2", "10:06:00"),
            visit("v3", None),
            visit("v4", "10:00:00", user=None),
            visit(None, "10:03:00"),
            visit(None, "10:03:00"),
        ],  # who cannot be told from others is not lost
        [visit("v5", "10:05:00"), visit("v6", "09:30:00")],
        [visit("later", "12:00:00")],
    )
    updates = [update("new", "10:05:00"), update("old", "10:00:00"), update("ancient", "08:00:00")]
    land(tmp_path, "users", [update("other", "10:00:00", user=2)], updates, [update("later", "12:00:00")])
    visits = read(spark, tmp_path, "visits", "visit string, user int, at timestamp")
    users = read(spark, tmp_path, "users", "user int, email string, changed timestamp")
    options = {
        "keys": ["user"], "left_time": "at", "right_time": "changed", "within": "1 hour", "how": "left",
        "pick": "latest", "row_id": ["visit"], "left_watermark": "30 minutes", "right_watermark": "30 minutes",
    }  # fmt: skip
    drained(join_streams(visits, users, **options), tmp_path, sink="delta")
    expected = [("v1", "old"), ("v2", "new"), ("v3", None), ("v4", None), ("v5", "new"), ("v6", None)]
    expected += [(None, None), (None, None)]
    assert rows(spark.read.format("delta").load(str(tmp_path / "out")).select("visit", "email")) == expected

    # At rest it gives the same, and so does a table of versions.
    still = [
        spark.read.schema(one.schema).json(str(tmp_path / name)) for one, name in ((visits, "visits"), (users, "users"))
    ]
    at_rest = join_streams(*still, **options).where("NOT (visit <=> 'later')")
    assert rows(at_rest.select("visit", "email")) == expected
    versions = still[1].selectExpr("*", "lead(changed) OVER (PARTITION BY user ORDER BY changed) AS until")
    as_of = join_as_of(still[0], versions, keys=["user"], at="at", valid_from="changed", valid_to="until")
    known = dict(rows(as_of.select("visit", "email")))
    assert (known["v1"], known["v2"], known["v5"]) == ("old", "new", "new")


def test_a_report_names_the_side_that_is_silent():
    def batch(left, right, held, late):
        sides = [{"description": "left", "numInputRows": left}, {"description": "right", "numInputRows": right}]
        state = [{"numRowsTotal": held, "memoryUsedBytes": 10 * held, "numRowsDroppedByWatermark": late}]
        return {"sources": sides, "stateOperators": state, "eventTime": {"watermark": "w"}}

    told = report_of_join([batch(3, 0, 5, 1), batch(2, 0, 4, 2)])
    assert (told.state_rows, told.most_state_rows, told.state_bytes, told.late_rows) == (4, 5, 40, 3)
    assert (told.idle, told.watermark) == (("right",), "w")
    assert report_of_join([batch(3, 1, 5, 0)]).idle == report_of_join([]).idle == ()


def test_a_row_without_a_time_gets_matches_whose_fields_have_any_name(spark):
    visits = spark.sql("SELECT 'v1' AS visit, CAST(NULL AS TIMESTAMP) AS seen")
    pairs = visits.selectExpr("*", "named_struct('ad-id', array(1)) AS ad")
    assert rows(untold_rows(visits, pairs, ["seen"])) == [("v1", None, None)]
