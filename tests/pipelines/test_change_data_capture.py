"""A captured table in a pipeline: its whole history, and each row as it stands, with real services."""

from __future__ import annotations

import pytest

from lakewright import ChangeDataCapture
from lakewright.failpoints import arm
from tests.connectors.test_cdc import wait_for
from tests.pipelines.shop import ok, rows_of

LEGACY = """
    from lakewright import ChangeDataCapture, LatestValue, Pipeline

    legacy = Pipeline("legacy", start="2026-01-01")
    legacy.source("changes", ChangeDataCapture("blog_db", ["{table}"]).of("{table}"),
                  schema="id INT, page STRING, body STRING", mode="stream")

    @legacy.dataset(mode="stream", writer=LatestValue(keys=["id"]))
    def visits_now(changes):
        '''Visits as they stand.'''
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
        connection.execute("CREATE TABLE visits (id int PRIMARY KEY, page text NOT NULL, body text)")
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
    connections = shop.settings.target.connections
    feed = ChangeDataCapture("blog_db", ["visits"]).feed(connections, project=database.name, dataset="changes")
    assert feed.status().state == "absent"
    try:
        ok(shop.run(["changes"]))
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
    return sorted(shop.lake.read("visits_now", system_columns=True).collect())


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
