"""A captured table in a pipeline: its whole history, each row as it stands, and every version, with real services."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from lakewright import ChangeDataCapture
from lakewright.errors import ConfigurationError
from lakewright.failpoints import FailpointReached, arm
from tests.connectors.test_cdc import wait_for
from tests.pipelines.shop import ok, rows_of
from tests.pipelines.topics import fresh_topic

LEGACY = """
    from lakewright import ChangeDataCapture, LatestValue, Pipeline, RowVersions

    legacy = Pipeline("legacy", start="2026-01-01")
    legacy.source("changes", ChangeDataCapture("blog_db", ["{table}"]).of("{table}"),
                  schema="id INT, page STRING, body STRING", mode="stream")

    @legacy.dataset(mode="stream", writer=LatestValue(keys=["id"]))
    def visits_now(changes):
        '''Visits as they stand.'''
        return changes

    @legacy.dataset(mode="stream", writer=RowVersions(keys=["id"]))
    def visit_versions(changes):
        '''Visits as they ever stood.'''
        return changes

    legacy.sql("pages", "SELECT page, count(*) AS visits FROM visits_now GROUP BY 1")
"""
SETTINGS = """
    name = "{name}"
    [connections.blog_db]
    url = "postgresql://{user}@{host}:{port}/{name}"
    password = "secret://file/{password_file}"
    [connections.broker]
    url = "kafka://{bootstrap}"
    [connections.cdc]
    url = "{worker}"
    options = {{ "password_folder" = "{password_folder}" }}
"""


@pytest.fixture
def database(postgres):
    made = postgres.database()
    with made.connect() as connection:
        connection.execute("CREATE TABLE visits (id int NOT NULL, page text NOT NULL, body text)")
        connection.execute("ALTER TABLE visits ALTER body SET STORAGE EXTERNAL")  # large values are not packed
        connection.execute("INSERT INTO visits SELECT g, 'p' || g, repeat('x', 3000) FROM generate_series(1, 3) g")
    return made


@pytest.fixture
def files(database, kafka, debezium, tmp_path):
    (tmp_path / "password").write_text(database.password)
    settings = SETTINGS.format(
        name=database.name,
        user=database.user,
        host=database.host,
        port=database.port,
        password_file=tmp_path / "password",
        bootstrap=kafka.bootstrap,
        worker=debezium.connection().url,
        password_folder=debezium.password_folder,
    )
    return lambda table: {"lakewright.toml": settings, "pipelines/legacy.py": LEGACY.replace("{table}", table)}


@pytest.mark.shows("02.change-data-capture", 2, 4)
def test_the_latest_values_equal_the_source_and_the_history_keeps_every_change(spark, project, database, kafka, files):
    wrong = project(files("visit"), folder="wrong").run(["changes"])
    assert "table public.visit" in str(wrong.errors[0])
    assert "Nothing was started" in str(wrong.errors[0])

    shop = project(files("visits"))
    refused = shop.run(["changes"])
    assert "has neither primary key nor REPLICA IDENTITY" in str(refused.errors[0])
    with database.connect() as connection:
        connection.execute("ALTER TABLE visits ADD PRIMARY KEY (id)")
    feed = shop.capture("changes")
    assert feed.names == ChangeDataCapture("blog_db", ["visits"]).names(database.name, "changes")
    assert feed.status().state == "absent"
    try:
        ok(shop.retry())  # what was refused goes on once it is cured
        assert feed.status().state != "absent"
        with database.connect() as connection:
            for statement in (
                "UPDATE visits SET page = 'kept its body' WHERE id = 1",
                "DELETE FROM visits WHERE id = 2",
                "INSERT INTO visits VALUES (10, 'new', NULL)",
                "UPDATE visits SET page = 'newer' WHERE id = 10",
                "INSERT INTO visits VALUES (11, 'short', NULL)",
                "DELETE FROM visits WHERE id = 11",
                "INSERT INTO visits VALUES (99, 'sentinel', NULL)",
            ):
                connection.execute(statement)
            source = [tuple(row) for row in connection.execute("SELECT id, page, body FROM visits ORDER BY id")]
        wait_for(kafka, feed.topics["public.visits"], b"sentinel")

        # Cut short after a commit, of the history and of the latest values: what follows goes on from there.
        states = [_cut_short(shop, name) for name in ("changes", "visits_now")]
        if getattr(spark, "newSession", None) is not None:  # a Connect server's own process is not cut short
            assert states == ["failed", "failed"]
        ok(shop.run())
        _check(shop, source)
        states = {one.dataset: one for one in shop.streams()}
        assert states["changes"].held_back is not None, "what the database keeps for the capture"
        assert states["visits_now"].held_back is None
        assert [one.problem for one in states.values()] == ["", "", ""]
        with pytest.raises(ConfigurationError, match="visits_now: no captured table"):
            shop.capture("visits_now")

        # Every change is delivered once more: the history has each once, and no latest value is touched.
        stored = _stored(shop)
        shop.rewind("changes")
        assert shop.lake.read("changes").isEmpty()
        ok(shop.run())
        assert _stored(shop) == stored
        _check(shop, source)
    finally:
        feed.decommission()


def _cut_short(shop, name):
    arm({"LAKEWRIGHT_FAILPOINT": "batch_done", "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    try:
        return shop.run([name]).state
    finally:
        arm({})


def _stored(shop):
    """With the position of each row, and the marks of deleted ones."""
    kept = [shop.lake.read(name, system_columns=True) for name in ("visits_now", "visit_versions")]
    return [sorted(frame.collect(), key=str) for frame in kept]


def _check(shop, source):
    assert [tuple(row) for row in sorted(shop.lake.read("visits_now").collect())] == source
    assert sum(row["visits"] for row in rows_of(shop, "pages")) == len(source), "no mark of a deleted row is read"
    history = {}
    for row in shop.lake.read("changes").orderBy("_lsn").collect():
        history.setdefault(row["id"], []).append((row["_op"], row["page"]))
    assert history == {
        1: [("snapshot", "p1"), ("update", "kept its body")],
        2: [("snapshot", "p2"), ("delete", None)],
        3: [("snapshot", "p3")],
        10: [("insert", "new"), ("update", "newer")],
        11: [("insert", "short"), ("delete", None)],
        99: [("insert", "sentinel")],
    }
    chains = {}
    for row in shop.lake.read("visit_versions").orderBy("valid_from").collect():
        chains.setdefault(row["id"], []).append(row)
    told = {key: [page for op, page in changes if op != "delete"] for key, changes in history.items()}
    assert {key: [row["page"] for row in chain] for key, chain in chains.items()} == told
    for key, chain in chains.items():
        assert [row["valid_to"] for row in chain[:-1]] == [row["valid_from"] for row in chain[1:]], "no gap, no overlap"
        assert [row["is_current"] for row in chain] == [False] * (len(chain) - 1) + [key not in (2, 11)]
        assert chain[-1]["is_current"] is (chain[-1]["valid_to"] is None)
    assert {len(row["body"]) for row in chains[1]} == {3000}, "what an update does not send is taken over"


ONE_TOPIC = """
    from lakewright import DeadLetter, KafkaTopic, LatestValue, Pipeline, RowVersions

    legacy = Pipeline("legacy", start="2026-01-01")
    legacy.source("changes", KafkaTopic("broker", "{topic}"), mode="stream",
                  schema="id INT, page STRING, body STRING, _op STRING, _lsn BIGINT, _committed_at TIMESTAMP, "
                         "_not_sent ARRAY<STRING>")

    in_time = DeadLetter(rules={"in_time": "coalesce(page, '') <> 'late'"})  # it would be passed over in any case

    @legacy.dataset(mode="stream", writer=LatestValue(keys=["id"]), guards_in={"changes": [in_time]})
    def visits_now(changes):
        return changes

    @legacy.dataset(mode="stream", writer=RowVersions(keys=["id"]))
    def visit_versions(changes):
        return changes
"""
TWO_HOURS_AGO = [
    (1, "home", "X", "insert", 10, []),
    (2, "about", "B", "insert", 11, []),
    (3, "p", "K", "insert", 12, []),
    (1, "blog", None, "update", 13, ["body"]),
    (3, "q", "L", "update", 25, []),
]
HALF_AN_HOUR_AGO = [
    (2, None, None, "delete", 20, []),
    (1, "news", None, "update", 22, ["body"]),  # these two are delivered out of order
    (1, "mid", "Y", "update", 21, []),
    (3, "late", "M", "update", 24, []),  # and this one after the micro-batch of its successor
    (4, "new", "N", "insert", 23, []),
]
NOW = [(2, "again", "Z", "insert", 30, [])]
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def _deliver(kafka, topic, changes, *, hours_ago):
    """Send changes as the capture unwraps them, with a time of the broker that has passed."""
    from confluent_kafka import Producer

    sent_at = int((datetime.now(UTC) - timedelta(hours=hours_ago)).timestamp() * 1000)
    names = ("id", "page", "body", "_op", "_lsn", "_not_sent")
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    for change in changes:
        told = {**dict(zip(names, change, strict=True)), "_committed_at": _at(change[4]).isoformat()}
        producer.produce(topic, value=json.dumps(told), timestamp=sent_at)
    assert producer.flush(30) == 0


def _at(minutes):
    return NOON + timedelta(minutes=minutes)


@pytest.mark.classic_only("the failpoints are armed here, and a micro-batch runs on the server")
def test_latest_values_and_versions_of_one_topic_are_right_after_a_rewind_by_an_hour_that_was_killed(project, kafka):
    topic = fresh_topic(kafka)
    settings = f'name = "legacy"\n[connections.broker]\nurl = "kafka://{kafka.bootstrap}"\n'
    shop = project({"lakewright.toml": settings, "pipelines/legacy.py": ONE_TOPIC.replace("{topic}", topic)})
    for changes, hours_ago in ((TWO_HOURS_AGO, 2), (HALF_AN_HOUR_AGO, 0.5)):
        _deliver(kafka, topic, changes, hours_ago=hours_ago)
        ok(shop.run())
    _deliver(kafka, topic, NOW, hours_ago=0)

    arm({"LAKEWRIGHT_FAILPOINT": "generation_recorded", "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    with pytest.raises(FailpointReached):
        shop.rewind("changes", to=datetime.now(UTC) - timedelta(hours=1))
    for place, name in (("rewound", "changes"), ("batch_done", "changes"), ("batch_done", "visit_versions")):
        arm({"LAKEWRIGHT_FAILPOINT": place, "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
        assert shop.run([name]).state == "failed"
    arm({})
    ok(shop.run())

    taken = shop.lake.read("changes", system_columns=True).select("_lw_offset").collect()
    assert sorted(row[0] for row in taken) == list(range(11)), "each record once"
    latest = [(1, "news", "Y"), (2, "again", "Z"), (3, "q", "L"), (4, "new", "N")]
    assert sorted(tuple(row) for row in shop.lake.read("visits_now").collect()) == latest
    assert [row["offset"] for row in shop.sql("SELECT * FROM dead_letters").collect()] == [8], "read twice, told once"
    versions = shop.lake.read("visit_versions").collect()
    minutes = {_at(m).replace(tzinfo=None): m for m in range(60)}
    assert sorted((*row[:3], minutes[row[3]], row[4] and minutes[row[4]], row[5]) for row in versions) == sorted(
        [
            (1, "home", "X", 10, 13, False),
            (1, "blog", "X", 13, 21, False),
            (1, "mid", "Y", 21, 22, False),
            (1, "news", "Y", 22, None, True),
            (2, "about", "B", 11, 20, False),
            (2, "again", "Z", 30, None, True),
            (3, "p", "K", 12, 24, False),
            (3, "late", "M", 24, 25, False),
            (3, "q", "L", 25, None, True),
            (4, "new", "N", 23, None, True),
        ]
    )
    # Who reads the versions as of a time learns since when they differ; one that changed nothing says nothing.
    receipts = [one for one in shop.store.receipts.history("visit_versions") if one.kind == "data"]
    assert {one.valid_from for one in receipts} == {_at(10), _at(20)}
