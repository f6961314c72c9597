"""Versioned tables behind a view: readers see a whole version, a repeat doubles nothing, going back is a switch."""

from __future__ import annotations

import pytest
from tests.connectors.test_postgres_table import Database
from tests.pipelines.shop import made, ok
from tests.pipelines.test_full_loader import HEADER, ONE, TWO, deliver, lines

from lakewright.connectors.postgres_full_load import copy_version, load_version, show_earlier_version
from lakewright.connectors.postgres_versions import PostgresVersions
from lakewright.errors import ConfigurationError, InputError, LeaseHeldError, SchemaChangeError, TargetError
from lakewright.failpoints import FailpointReached, arm
from lakewright.model.ddl import schema_from_ddl
from lakewright.model.identity import Identity

DEVICES = "type string, full_name string, version string"


@pytest.fixture
def database(postgres, monkeypatch) -> Database:
    monkeypatch.setenv("PG_TEST_PASSWORD", postgres.password)
    return Database(postgres.database())


def shown(database, view="devices"):
    return sorted(database.rows(f"SELECT * FROM {view}"))


def tables(database):
    return [name for (name,) in database.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")]


def failing_at(name: str):
    arm({"LAKEWRIGHT_FAILPOINT": name, "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})


@pytest.fixture(autouse=True)
def disarmed():
    yield
    arm({})


def copied(database, tmp_path, text: str, version: int, **options) -> bool:
    file = tmp_path / "devices.csv"
    file.write_text(text)
    schema = schema_from_ddl(options.pop("ddl", DEVICES))
    return copy_version(
        [file], database.connection, view="devices", version=version, schema=schema, delimiter=";", **options
    )


def opened(spark, database, number: int, kind="data", of="whole"):
    identity = Identity("devices", of, number, f"run-{number}", kind)
    into = PostgresVersions("db", "devices")
    return into.open("devices", identity, connections=database.connections, spark=spark, still_mine=lambda: True)


@pytest.mark.shows("02.full-loader", 4)
@pytest.mark.shows("02.full-loader", 5)
@pytest.mark.shows("02.full-loader", 6)
@pytest.mark.shows("02.full-loader", 7)
def test_copy_loads_a_version_and_the_view_shows_it_only_when_it_is_whole(database, tmp_path):
    assert copied(database, tmp_path, ONE, 1)
    failing_at("loaded")
    with pytest.raises(FailpointReached):
        copied(database, tmp_path, TWO, 2)
    arm({})
    assert sorted(database.rows("SELECT * FROM devices_2")) == lines(TWO), "it was loaded"
    assert shown(database) == lines(ONE), "and is not shown"
    assert copied(database, tmp_path, TWO, 2)
    assert (shown(database), sorted(database.rows("SELECT * FROM devices_2"))) == (lines(TWO), lines(TWO))
    assert copied(database, tmp_path, TWO, 2), "the version that is shown is loaded again beside itself"
    assert shown(database) == lines(TWO)

    assert not copied(database, tmp_path, ONE + "tv;Big;3\n", 1), "an older version is loaded, and not shown"
    assert shown(database) == lines(TWO)
    assert show_earlier_version(database.connection, view="devices") == 1
    assert len(shown(database)) == 4
    assert show_earlier_version(database.connection, view="devices", version=2) == 2
    with pytest.raises(TargetError, match="Kept: 1, 2"):
        show_earlier_version(database.connection, view="devices", version=9)

    bad = {
        "": "devices.csv is empty, without even a header",
        HEADER: "the load has 0 rows, and min_rows is 1",
        HEADER + "phone;Galaxy;1.0\ntablet;Sl": r"devices.csv cannot be loaded: missing data.*line 3",
        "kind;full_name;version\nphone;Galaxy;1.0\n": "devices.csv cannot be loaded: column name mismatch in header",
        HEADER + 'phone;"Galaxy;1.0\n': "devices.csv cannot be loaded: unterminated CSV quoted field",
    }
    for text, message in bad.items():
        with pytest.raises(InputError, match=message):
            copied(database, tmp_path, text, 3)
        assert shown(database) == lines(TWO)
    with pytest.raises(InputError, match="1 row of 3 breaks the rule 'known'"):
        copied(database, tmp_path, TWO, 3, rules={"known": "type <> 'laptop'"})

    assert copied(database, tmp_path, TWO, 3, keep=2)
    assert [name for name in tables(database) if name.startswith("devices")] == ["devices_2", "devices_3"]


def test_an_old_version_that_somebody_still_reads_holds_up_no_load(database, tmp_path):
    assert copied(database, tmp_path, ONE, 1, keep=1)
    with database.at.connect() as reader, reader.transaction():
        reader.execute("LOCK TABLE devices_1 IN ACCESS SHARE MODE")
        assert copied(database, tmp_path, TWO, 2, keep=1)
        assert shown(database) == lines(TWO)
        assert tables(database) == ["devices_1", "devices_2"]
    assert copied(database, tmp_path, ONE, 3, keep=1)
    assert tables(database) == ["devices_3"]


def test_a_load_of_another_shape_makes_the_view_anew_and_keeps_who_may_read_it(database, tmp_path):
    database.rows("CREATE ROLE reader_of_devices")
    copied(database, tmp_path, ONE, 1)
    database.rows("GRANT SELECT ON devices TO reader_of_devices")
    copied(database, tmp_path, "version;type\n1;phone\n", 2, ddl="version int, type string")
    assert shown(database) == [(1, "phone")]
    asked = "SELECT has_table_privilege('reader_of_devices', 'devices', 'SELECT')"
    assert database.rows(asked) == [(True,)]
    database.rows("CREATE VIEW phones AS SELECT type FROM devices")
    with pytest.raises(SchemaChangeError, match=r"version is gone, moved or of another type.*phones is built on"):
        copied(database, tmp_path, ONE, 3)
    assert shown(database) == [(1, "phone")]
    copied(database, tmp_path, "version;type;more\n2;tv;x\n", 3, ddl="version int, type string, more string")
    assert shown(database, "phones") == [("tv",)]
    database.rows("DROP ROLE IF EXISTS reader_of_devices_2")
    database.rows("REVOKE ALL ON devices FROM reader_of_devices; DROP ROLE reader_of_devices")


def test_what_others_made_is_left_alone(database, tmp_path):
    database.rows("CREATE TABLE devices (type text)")
    with pytest.raises(TargetError, match="devices is a table, and versions are shown by a view"):
        copied(database, tmp_path, ONE, 1)
    database.rows("DROP TABLE devices; CREATE VIEW devices AS SELECT 1 AS n")
    with pytest.raises(TargetError, match="does not show a version that was loaded for it"):
        copied(database, tmp_path, ONE, 1)
    database.rows("DROP VIEW devices; CREATE TABLE devices_1 (n int)")
    with pytest.raises(TargetError, match="devices_1 is there already, and was not loaded for devices"):
        copied(database, tmp_path, ONE, 1)
    with pytest.raises(ConfigurationError, match="keep is at least 1"):
        PostgresVersions("db", "devices", keep=0)


def test_a_frame_is_loaded_like_a_file_and_an_attempt_that_was_overtaken_shows_nothing(spark, database):
    def load(rows, number):
        return opened(spark, database, number).replace(spark.createDataFrame(rows, DEVICES), where="true")

    assert load(lines(ONE), 5).metrics == {"numOutputRows": 3, "version": 1}
    assert load(lines(TWO), 4) is None
    assert shown(database) == lines(ONE)
    failing_at("loaded")
    with pytest.raises(FailpointReached):
        load(lines(TWO)[:1], 6)
    arm({})
    assert load(lines(TWO), 7).metrics["version"] == 2, "what died on the way is loaded anew under its own version"
    assert shown(database) == lines(TWO)
    assert load_version(spark.createDataFrame(lines(ONE), DEVICES), database.connection, view="devices", version=3)
    assert shown(database) == lines(ONE)


@pytest.mark.parametrize(("asleep_at", "of"), [("staged", "whole"), ("loaded", "whole"), ("loaded", "arrival-3")])
def test_a_load_that_wakes_after_a_rollback_shows_nothing(spark, database, monkeypatch, asleep_at, of):
    def load(rows, number):
        return opened(spark, database, number, of=of).replace(spark.createDataFrame(rows, DEVICES), where="true")

    first = load(lines(ONE), 1)
    load(lines(TWO), 2)
    went_back = []

    def overtaken(name: str) -> None:
        if name == asleep_at:
            went_back.append(opened(spark, database, 4, "restore").show_earlier(first.version))

    with monkeypatch.context() as asleep:
        asleep.setattr("lakewright.connectors.postgres_version_load.failpoint", overtaken)
        with pytest.raises(LeaseHeldError, match="another run has taken over"):
            load([*lines(ONE), ("tv", "Big", "3")], 3)
    assert [commit.metrics["version"] for commit in went_back] == [1]
    assert shown(database) == lines(ONE), "what the rollback shows"
    assert load(lines(TWO), 3) is None
    assert opened(spark, database, 3, "restore").show_earlier(went_back[0].version - 1) is None, "nor forward again"
    assert shown(database) == lines(ONE)
    log = PostgresVersions("db", "devices").log("devices", connections=database.connections)
    assert [(c.version, c.metrics["version"]) for c in log.commits()] == [(1, 1), (2, 2), (3, 1)]
    assert load(lines(TWO), 5).metrics["version"] == 3
    assert shown(database) == lines(TWO)


PIPELINE = """
    from lakewright import CsvFiles, FullLoader, Pipeline, PostgresVersions

    shop = Pipeline("shop", schedule="@daily", start="2026-01-01")
    shop.source("devices", CsvFiles("provider", delimiter=";"), load=FullLoader(),
                schema="type string, full_name string, version string")
    shop.source("copied", CsvFiles("provider", delimiter=";"), load=FullLoader(),
                schema="type string, full_name string, version string", into=PostgresVersions("db", "copied"))

    @shop.dataset(into=PostgresVersions("db", "devices", keep=2))
    def published(devices):
        return devices
"""


@pytest.mark.shows("02.full-loader", 4)
@pytest.mark.shows("02.full-loader", 5)
def test_a_pipeline_publishes_versions_and_rolls_them_back_without_a_load(project, database):
    at = database.at
    toml = f'name = "shop"\n[connections.db]\nurl = "postgresql://{at.user}@{at.host}:{at.port}/{at.name}"\n'
    shop = project(
        {"pipelines/shop.py": PIPELINE, "lakewright.toml": toml + 'password = "secret://env/PG_TEST_PASSWORD"'}
    )
    deliver(shop, ONE)
    first = {("devices", "arrival-1"), ("copied", "arrival-1"), ("published", "whole")}
    assert made(ok(shop.run(at="2026-01-02"))) == first
    assert not ok(shop.run(at="2026-01-02")).outcomes
    deliver(shop, TWO)
    failing_at("loaded")
    assert isinstance(shop.run(["copied"], at="2026-01-02").errors[0], FailpointReached)
    arm({})
    assert (shown(database, "copied"), shown(database, "copied_2")) == (lines(ONE), lines(TWO))
    ok(shop.run(at="2026-01-02"))
    assert shown(database) == shown(database, "copied") == shown(database, "copied_2") == lines(TWO)
    for name in ("published", "copied"):
        shop.rollback(name)
    assert shown(database) == shown(database, "copied") == lines(ONE)
    assert not ok(shop.run(at="2026-01-02")).outcomes, "nothing comes back by itself"
    deliver(shop, HEADER + "tv;Big;3\n")
    ok(shop.run(at="2026-01-02"))
    assert shown(database) == shown(database, "copied") == [("tv", "Big", "3")]
    known = {name: shop.store.receipts.live_slices(name).keys() for name in ("devices", "copied", "published")}
    shop.rebuild_store()
    assert {name: shop.store.receipts.live_slices(name).keys() for name in known} == known
    assert not ok(shop.run(at="2026-01-02")).outcomes
