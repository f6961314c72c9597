"""Proxy: every load is written once, one name shows the newest, and the store itself protects the others."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from tests.connectors.test_postgres_table import Database
from tests.pipelines.test_full_loader import HEADER, ONE, TWO, deliver, lines

from lakewright.connectors.file_proxy import FileProxy
from lakewright.connectors.postgres_connection import TableName
from lakewright.connectors.postgres_filling import CsvFilling
from lakewright.connectors.postgres_keeper import set_up_keeper
from lakewright.connectors.postgres_proxy import PostgresProxy
from lakewright.connectors.postgres_proxy_load import WriteOnceLoad
from lakewright.errors import ConfigurationError, InputError, SchemaChangeError, TargetError
from lakewright.failpoints import FailpointReached, arm
from lakewright.model.connections import Connection, Connections
from lakewright.model.ddl import schema_from_ddl
from lakewright.model.identity import Identity
from lakewright.model.loads import LoadLimits
from lakewright.model.secrets import Secret
from lakewright.patterns.idempotency.data_overwrite import overwrite_slice
from lakewright.patterns.idempotency.file_swap import overwrite_files
from lakewright.patterns.idempotency.merger import Merger
from lakewright.patterns.idempotency.proxy import (
    copy_hidden_table,
    keep_versions,
    load_hidden_table,
    point_view_at,
    publish_load,
    read_latest_load,
    read_manifest,
    write_load,
)
from lakewright.patterns.idempotency.versions import read_version, remove_unused_files

DEVICES = "type string, full_name string, version string"
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
BITS = "SELECT xmin::text, ctid::text, * FROM {} ORDER BY ctid"


class Loading(Database):
    """A database with a loader that may only create, and a keeper that it hands its tables to."""

    def __init__(self, at, monkeypatch) -> None:
        super().__init__(at)
        self.loader, self.keeper = f"loader_{at.name}", f"keeper_{at.name}"
        self.rows(f"CREATE ROLE {self.loader} LOGIN PASSWORD 'of-this-test'")
        self.rows(f"GRANT USAGE, CREATE ON SCHEMA public TO {self.loader}")
        monkeypatch.setenv("PG_LOADER_PASSWORD", "of-this-test")
        url = f"postgresql://{self.loader}@{at.host}:{at.port}/{at.name}"
        self.as_loader = Connection("db", url, Secret("secret://env/PG_LOADER_PASSWORD"))

    def try_as_loader(self, statement: str) -> None:
        url = f"postgresql://{self.loader}:of-this-test@{self.at.host}:{self.at.port}/{self.at.name}"
        with psycopg.connect(url, autocommit=True) as session:
            session.execute(statement.encode())

    def tables(self) -> list[str]:
        return [name for (name,) in self.rows(TABLES)]


@pytest.fixture
def database(postgres, monkeypatch) -> Loading:
    monkeypatch.setenv("PG_TEST_PASSWORD", postgres.password)
    return Loading(postgres.database(), monkeypatch)


@pytest.fixture(autouse=True)
def disarmed():
    yield
    arm({})


def failing_at(name: str) -> None:
    arm({"LAKEWRIGHT_FAILPOINT": name, "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})


def loaded(database: Loading, tmp_path: Path, text: str, *, ddl: str = DEVICES, **options) -> int:
    file = tmp_path / "devices.csv"
    file.write_text(text)
    options = {"keeper": database.keeper, **options}
    schema = schema_from_ddl(ddl)
    return copy_hidden_table([file], database.as_loader, view="devices", schema=schema, delimiter=";", **options)


def shown(database: Loading) -> list[tuple[object, ...]]:
    return sorted(database.rows("SELECT * FROM devices"))


@pytest.mark.shows("04.proxy", 1, 2, 3, 4, 7)
def test_each_load_is_written_once_and_the_database_denies_the_loader_to_change_it(database, tmp_path):
    with pytest.raises(ConfigurationError, match="takes over what was loaded, is not there") as refused:
        loaded(database, tmp_path, ONE)
    assert "set_up_keeper" in str(refused.value.hint)
    for _ in range(2):
        set_up_keeper(database.connection, keeper=database.keeper, loader=database.loader)

    for expected, text in ((1, ONE), (2, TWO)):
        assert loaded(database, tmp_path, text) == expected
        point_view_at(database.as_loader, view="devices", version=expected)
    assert shown(database) == lines(TWO)
    assert database.tables() == ["devices_1", "devices_2"]

    before = [database.rows(BITS.format(name)) for name in database.tables()]
    assert loaded(database, tmp_path, TWO) == 3, "the same execution again"
    assert shown(database) == lines(TWO)
    for _ in range(2):
        point_view_at(database.as_loader, view="devices", version=3)
    assert database.tables() == ["devices_1", "devices_2", "devices_3"]
    assert [database.rows(BITS.format(name)) for name in database.tables()[:2]] == before

    for table in database.tables():
        for statement in (
            "DELETE FROM {}", "UPDATE {} SET type = 'x'", "TRUNCATE {}", "DROP TABLE {}",
            "INSERT INTO {} DEFAULT VALUES",
            "ALTER TABLE {} OWNER TO CURRENT_USER", "ALTER TABLE {} RENAME TO mine", f"SET ROLE {database.keeper}",
        ):  # fmt: skip
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                database.try_as_loader(statement.format(table))
    assert [database.rows(BITS.format(name)) for name in database.tables()[:2]] == before

    failing_at("staged")  # half-way
    with pytest.raises(FailpointReached):
        loaded(database, tmp_path, ONE)
    arm({})
    with pytest.raises(InputError, match="missing data"):
        loaded(database, tmp_path, HEADER + "phone;Galaxy;1.0\ntablet;Sl")
    assert (shown(database), database.tables()) == (lines(TWO), ["devices_1", "devices_2", "devices_3"])

    database.rows("CREATE VIEW phones AS SELECT full_name FROM devices")
    fourth = loaded(database, tmp_path, "version;type\n1;phone\n", ddl="version int, type string")
    with pytest.raises(SchemaChangeError, match="phones is built on the view"):
        point_view_at(database.as_loader, view="devices", version=fourth)
    assert shown(database) == lines(TWO)
    untouched = database.rows(BITS.format("devices_4"))
    database.rows("DROP VIEW phones")
    point_view_at(database.as_loader, view="devices", version=fourth)
    assert shown(database) == [(1, "phone")]
    assert (database.rows(BITS.format("devices_4")), len(database.tables())) == (untouched, 4)
    with pytest.raises(TargetError, match=r"no version 9 to point at\. There are: 1, 2, 3, 4"):
        point_view_at(database.as_loader, view="devices", version=9)


@pytest.mark.shows("04.proxy", 3)
@pytest.mark.parametrize("right", ["INSERT", "UPDATE", "DELETE", "TRUNCATE"])
def test_a_right_that_the_database_grants_by_itself_is_found_before_anything_is_written(database, tmp_path, right):
    set_up_keeper(database.connection, keeper=database.keeper, loader=database.loader)
    by_itself = f"ALTER DEFAULT PRIVILEGES FOR ROLE {database.loader} {{}} {right} ON TABLES {{}} PUBLIC"
    database.rows(by_itself.format("GRANT", "TO"))
    with pytest.raises(ConfigurationError, match="could still change what it has loaded: it was granted the right to"):
        loaded(database, tmp_path, ONE)
    assert database.tables() == []
    database.rows(by_itself.format("REVOKE", "FROM"))
    assert loaded(database, tmp_path, ONE) == 1


def test_a_protection_that_would_not_protect_is_refused_and_dead_loads_are_cleared_away(database, tmp_path):
    set_up_keeper(database.connection, keeper=database.keeper, loader=database.loader)
    database.rows('CREATE TABLE "_lw_new_dead" (n int)')
    database.rows(f'ALTER TABLE "_lw_new_dead" OWNER TO {database.loader}')
    database.rows(f"ALTER SCHEMA public OWNER TO {database.loader}")
    with pytest.raises(ConfigurationError, match="could still change what it has loaded: it owns the schema"):
        loaded(database, tmp_path, ONE)
    database.rows(f"ALTER SCHEMA public OWNER TO {database.at.user}")
    database.rows(f"GRANT USAGE, CREATE ON SCHEMA public TO {database.loader}")
    assert database.tables() == []
    database.rows('CREATE TABLE "_lw_new_read" (n int)')
    database.rows(f'ALTER TABLE "_lw_new_read" OWNER TO {database.loader}')
    database.rows("CREATE TABLE devices_1 (n int)")
    with database.at.connect() as backup, backup.transaction():
        backup.execute('LOCK TABLE "_lw_new_read" IN ACCESS SHARE MODE')
        with pytest.raises(TargetError, match="devices_1 is there already"):
            loaded(database, tmp_path, ONE)
    with pytest.raises(TargetError, match="devices_1 is there already, and was not loaded for devices"):
        loaded(database, tmp_path, ONE)
    with pytest.raises(ConfigurationError, match="belongs to"):
        loaded(database, tmp_path, ONE, keeper="somebody")
    with pytest.raises(ConfigurationError, match="written once"):
        PostgresProxy("db", "devices").check_writer("devices", Merger(keys=["type"]))
    for wrong in ({"view": "_lw_x"}, {"connection": ""}, {"keeper": ""}):
        with pytest.raises(ConfigurationError):
            PostgresProxy(**{"connection": "db", "view": "devices", **wrong})


def test_a_number_that_was_shown_is_not_given_again_when_its_table_was_dropped(database, tmp_path):
    file = tmp_path / "devices.csv"
    file.write_text(ONE)
    filling = CsvFilling([file], schema_from_ddl(DEVICES), "devices", delimiter=";")
    for number, version in ((1, 1), (2, 2), (4, 3)):
        load = WriteOnceLoad(
            connection=database.connection,
            view=TableName("devices"),
            dataset="devices",
            identity=Identity("devices", "whole", number, f"run-{number}"),
            what="devices",
            still_mine=lambda: True,
            keep=1,
            limits=LoadLimits(1, None, {}),
        )
        commit = load.run(filling)
        assert commit.metrics["version"] == version
        if version == 2:
            replace(load, identity=Identity("devices", "whole", 3, "run-3")).show_earlier(commit.version - 1)
            database.rows("DROP TABLE devices_2")


@pytest.mark.shows("04.proxy", 5, 6, 7, 8)
def test_files_are_shown_by_a_manifest_and_delta_keeps_its_versions(spark, database, tmp_path):
    path = str(tmp_path / "devices")
    frames = [spark.createDataFrame(lines(text), DEVICES).coalesce(1) for text in (ONE, TWO)]

    def read(**options) -> list[tuple[object, ...]]:
        return sorted(tuple(row) for row in read_latest_load(spark, path, schema=DEVICES, **options).collect())

    with pytest.raises(TargetError, match="no load was published yet"):
        read()
    first = write_load(frames[0], path)
    assert publish_load(path, first) == publish_load(path, first) == read_manifest(path)
    failing_at("staged")
    with pytest.raises(FailpointReached):
        write_load(frames[1], path)
    second = (arm({}), write_load(frames[1], path))[1]
    failing_at("manifest")
    with pytest.raises(FailpointReached):
        publish_load(path, second)
    arm({})
    assert (read_manifest(path).load, read()) == (first, lines(ONE))
    place = tmp_path / "devices" / "loads" / second
    kept = sorted(place.glob("*.parquet"))
    place.chmod(0o755)
    (place / "early.parquet").write_bytes(b"not written by the load")
    manifest = publish_load(path, second)
    stray = place / "stray.parquet"
    assert stat.S_IMODE(place.stat().st_mode) == 0o555, "whoever left it open, it is closed now"
    assert [str(tmp_path / "devices" / one.path) for one in manifest.files] == [str(file) for file in kept]
    assert {stat.S_IMODE(file.stat().st_mode) for file in kept} == {0o444}
    stray.parent.chmod(0o755)
    stray.write_bytes(b"not listed, not read")
    assert (manifest.number, read(verify="checksums"), read(number=1)) == (2, lines(TWO), lines(ONE))
    with pytest.raises(TargetError, match="has no load nothing"):
        publish_load(path, "nothing")

    content = kept[0].read_bytes()
    kept[0].chmod(0o644)
    kept[0].write_bytes(content[:-1] + b"x")
    with pytest.raises(TargetError, match=f"{kept[0].name} has another content"):
        read(verify="checksums")
    kept[0].unlink()
    with pytest.raises(TargetError, match=f"{kept[0].name} is missing; manifest 2 lists it"):
        read()
    assert publish_load(path, first).number == 3, "going back is a manifest too"
    assert read() == lines(ONE)
    with pytest.raises(TargetError, match=f"{kept[0].name} is missing; manifest 2 lists it. Readers see what they saw"):
        publish_load(path, second)
    kept[0].write_bytes(content[:-1] + b"x")
    with pytest.raises(TargetError, match=f"{kept[0].name} has another content .*; manifest 2 lists it"):
        publish_load(path, second)
    kept[0].write_bytes(content)
    assert (publish_load(path, second).files, read(verify="checksums")) == (manifest.files, lines(TWO))
    assert publish_load(path, first).number == 5
    with pytest.raises(ConfigurationError, match="log is the manifest"):
        read_manifest("s3://bucket/devices")
    with pytest.raises(ConfigurationError, match="verify is"):
        read(verify="nothing")

    table = str(tmp_path / "delta")
    overwrite_slice(frames[0], table)
    keep_versions(spark, table, keep="3650 days")
    properties = spark.sql(f"DESCRIBE DETAIL delta.`{table}`").first()["properties"]
    ten_years = f"interval {3650 * 86_400} seconds"
    for name in ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration"):
        assert properties[name] == ten_years, "without its log a version cannot be read, nor without its files"
    overwrite_slice(frames[1], table)
    versions = [sorted(tuple(row) for row in read_version(spark, table, number).collect()) for number in (0, 2)]
    assert versions == [lines(ONE), lines(TWO)]
    unchecked = "spark.databricks.delta.retentionDurationCheck.enabled"
    spark.conf.set(unchecked, "false")  # by somebody in the same session, for a table of his own
    try:
        with pytest.raises(ConfigurationError, match="keeps replaced files for longer than 30 days"):
            remove_unused_files(spark, table, keep="30 days")
    finally:
        spark.conf.unset(unchecked)
    with pytest.raises(ConfigurationError, match="at least 7 days"):
        keep_versions(spark, table, keep="1 day")

    set_up_keeper(database.connection, keeper=database.keeper, loader=database.loader)
    number = load_hidden_table(frames[0], database.as_loader, view="devices", keeper=database.keeper)
    point_view_at(database.as_loader, view="devices", version=number)
    assert (shown(database), database.tables()) == (lines(ONE), ["devices_1"])


class Frame:
    """A frame whose job leaves these files in the driver's folder."""

    def __init__(self, *files: str) -> None:
        self.files = files
        self.write = self

    def take(self, count: int) -> list[int]:
        return [1] * count

    def format(self, name: str) -> Frame:
        return self

    def options(self, **options: str) -> Frame:
        return self

    def save(self, path: str) -> None:
        Path(path).mkdir()
        for name in ("_SUCCESS", *self.files):
            (Path(path) / name).write_text(name)


def test_a_load_is_shown_as_it_was_written_or_not_at_all(tmp_path):
    path = str(tmp_path / "exports")
    shown = write_load(Frame("a.json", "b.json"), path, file_format="json")
    assert [(one.path, one.bytes) for one in publish_load(path, shown).files] == [
        (f"loads/{shown}/{name}", len(name)) for name in ("a.json", "b.json")
    ]
    for spoil, why in (
        (Path.unlink, "is missing"),
        (lambda file: file.write_text("b"), "has 1 bytes instead of 6"),
        (lambda file: (file.parent / "_format.json").unlink(), "_format.json is missing or cannot be read"),
    ):
        load = tmp_path / "exports" / "loads" / write_load(Frame("a.json", "b.json"), path, file_format="json")
        for place in (load, load / "b.json", load / "_format.json"):
            place.chmod(0o755)
        spoil(load / "b.json")
        with pytest.raises(TargetError, match=f"{why}.*Readers see what they saw"):
            publish_load(path, load.name)
        assert read_manifest(path).load == shown


def test_what_workers_have_written_to_disks_of_their_own_is_no_load(tmp_path):
    before = write_load(Frame("a.json"), str(tmp_path / "exports"))
    publish_load(str(tmp_path / "exports"), before)
    overwrite_files(Frame("a.json"), str(tmp_path / "visits"))
    for write, path in ((write_load, "exports"), (overwrite_files, "visits")):
        with pytest.raises(TargetError, match="none of its files lies in the folder on this machine"):
            write(Frame(), str(tmp_path / path))
        write(Frame(), str(tmp_path / "empty" / path), empty="allow")
    assert [file.name for file in (tmp_path / "exports" / "loads").iterdir()] == [before]
    assert (tmp_path / "visits" / "a.json").exists()


def test_a_manifest_outlasts_a_loss_of_power_and_one_that_was_cut_short_is_named_and_followed(tmp_path, monkeypatch):
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode)))
    path = str(tmp_path / "exports")
    load = write_load(Frame("a.json"), path)
    publish_load(path, load)
    assert synced == [False, True], "the draft, and then the folder with its name"
    cut = tmp_path / "exports" / "manifests" / "00000002.json"
    cut.write_text(f'{{"number": 2, "load": "{load}", ')
    with pytest.raises(TargetError, match=r"00000002\.json cannot be read: it was cut short"):
        read_manifest(path)
    assert (read_manifest(path, number=1).load, publish_load(path, load).number) == (load, 3)
    assert read_manifest(path).number == 3


PIPELINE = """
    from lakewright import CsvFiles, FullLoader, Pipeline, PostgresProxy

    shop = Pipeline("shop", schedule="@daily", start="2026-01-01")
    shop.source("devices", CsvFiles("provider", delimiter=";"), load=FullLoader(),
                schema="type string, full_name string, version string")

    @shop.dataset(into=PostgresProxy("db", "published", keeper="KEEPER"))
    def published(devices):
        return devices
"""


@pytest.mark.shows("04.proxy", 1, 2, 4)
def test_a_pipeline_publishes_write_once_tables_and_shows_what_waits_without_a_load(project, database):
    at = database.at
    set_up_keeper(database.connection, keeper=database.keeper, loader=database.loader)
    toml = f'name = "shop"\n[connections.db]\nurl = "postgresql://{database.loader}@{at.host}:{at.port}/{at.name}"\n'
    files = {
        "pipelines/shop.py": PIPELINE.replace("KEEPER", database.keeper),
        "lakewright.toml": toml + 'password = "secret://env/PG_LOADER_PASSWORD"',
    }
    shop = project(files)

    def tables() -> list[str]:
        return [name for name in database.tables() if name.startswith("published")]

    def view() -> list[tuple[object, ...]]:
        return sorted(database.rows("SELECT * FROM published"))

    deliver(shop, ONE)
    assert not shop.run(at="2026-01-02").errors
    deliver(shop, TWO)
    failing_at("loaded")
    assert isinstance(shop.run(at="2026-01-02").errors[0], FailpointReached)
    arm({})
    assert (tables(), view()) == (["published_1", "published_2"], lines(ONE))
    bits = database.rows(BITS.format("published_2"))
    assert not shop.run(at="2026-01-02").errors
    assert (tables(), view()) == (["published_1", "published_2"], lines(TWO))
    assert database.rows(BITS.format("published_2")) == bits, "it was not loaded again"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        database.try_as_loader("DROP TABLE published_1")
    shop.rollback("published")
    assert view() == lines(ONE)
    assert not shop.run(["published"], again=True, at="2026-01-02").errors
    assert (tables(), view()) == (["published_1", "published_2", "published_3"], lines(TWO))


FILES = """
    from lakewright import CsvFiles, FileProxy, FullLoader, Pipeline

    shop = Pipeline("shop", schedule="@daily", start="2026-01-01")
    shop.source("devices", CsvFiles("provider", delimiter=";"), load=FullLoader(),
                schema="type string, full_name string, version string")

    @shop.dataset(into=FileProxy("exports/devices"))
    def published(devices):
        return devices
"""


@pytest.mark.shows("04.proxy", 1, 2, 5, 7)
def test_a_pipeline_publishes_write_once_files_behind_a_manifest_and_goes_back_without_a_load(spark, project):
    shop = project({"pipelines/shop.py": FILES})
    folder = shop.folder / "exports" / "devices"

    def shown() -> list[tuple[object, ...]]:
        return sorted(tuple(row) for row in read_latest_load(spark, str(folder), schema=DEVICES).collect())

    def written() -> dict[Path, bytes]:
        return {file: file.read_bytes() for file in (folder / "loads").rglob("*.parquet")}

    def loads() -> int:
        return len(list((folder / "loads").iterdir()))

    deliver(shop, ONE)
    assert not shop.run(at="2026-01-02").errors
    assert (shown(), shop.store.receipts.live("published", "whole").rows) == (lines(ONE), 3)
    assert not shop.run(at="2026-01-02").outcomes
    first = written()
    deliver(shop, TWO)
    for place in ("staged", "loaded", "manifest"):  # half-way, whole, and before it can be seen
        failing_at(place)
        assert isinstance(shop.run(at="2026-01-02").errors[0], FailpointReached)
        arm({})
        assert (shown(), loads()) == (lines(ONE), 1 if place == "staged" else 2)
    waiting = written()
    assert not shop.run(at="2026-01-02").errors
    assert (shown(), read_manifest(str(folder)).number) == (lines(TWO), 2)
    assert shop.store.receipts.live("published", "whole").rows == len(lines(TWO))
    assert (written(), loads()) == (waiting, 2), "it was not loaded again"
    assert first.items() <= written().items(), "what was written stays as it was"

    before = written()
    shop.rollback("published")
    assert (shown(), read_manifest(str(folder)).number, written()) == (lines(ONE), 3, before)
    assert not shop.run(at="2026-01-02").outcomes, "nothing comes back by itself"
    for number in (3, 4):  # the same execution again, which had completed
        assert not shop.run(["published"], again=True, at="2026-01-02").errors
        assert (shown(), loads()) == (lines(TWO), number)
        assert before.items() <= written().items(), "the former ones are bit for bit what they were"
    into, zombie = FileProxy(str(folder)), Identity("published", "whole", 1, "zombie")
    opened = into.open("published", zombie, connections=Connections(), spark=spark)
    assert opened.replace(spark.createDataFrame(lines(ONE), DEVICES), where="true") is None
    assert shown() == lines(TWO)
    known = shop.store.receipts.live_slices("published").keys()
    shop.rebuild_store()
    assert shop.store.receipts.live_slices("published").keys() == known
    manifest = read_manifest(str(folder))
    earlier = next((folder / "loads" / read_manifest(str(folder), number=manifest.number - 1).load).glob("*.parquet"))
    earlier.parent.chmod(0o755)
    earlier.unlink()
    with pytest.raises(TargetError, match=f"{earlier.name} is missing; manifest .* Readers see what they saw"):
        shop.rollback("published")
    assert read_manifest(str(folder)) == manifest
    with pytest.raises(ConfigurationError, match="a version behind a manifest is whole"):
        opened.replace(None, where="_lw_event = '2026-01-01'")
    with pytest.raises(ConfigurationError, match="written once"):
        into.check_writer("published", Merger(keys=["type"]))
    for wrong in ({"folder": "s3://b/x"}, {"folder": ""}, {"file_format": "xml"}, {"empty": "maybe"}):
        with pytest.raises(ConfigurationError):
            FileProxy(**{"folder": "x", **wrong})


@pytest.mark.shows("04.proxy", 5)
def test_files_that_wait_for_their_manifest_are_shown_only_where_they_are_whole_and_made_from_the_same(spark, project):
    shop = project({"pipelines/shop.py": FILES})
    folder = shop.folder / "exports" / "devices"

    def loads() -> set[Path]:
        return set((folder / "loads").iterdir())

    def fails() -> Path:
        before = loads() if folder.exists() else set()
        failing_at("manifest")
        assert isinstance(shop.run(at="2026-01-02").errors[0], FailpointReached)
        arm({})
        (new,) = loads() - before
        return new

    def shown() -> tuple[list[tuple[object, ...]], str]:
        rows = read_latest_load(spark, str(folder), schema=DEVICES, verify="checksums").collect()
        return sorted(tuple(row) for row in rows), read_manifest(str(folder)).load

    # Other inputs: the waiting load is not what would be made now.
    deliver(shop, ONE)
    old = fails()
    deliver(shop, TWO)
    assert not shop.run(at="2026-01-02").errors
    assert (shown()[0], len(loads())) == (lines(TWO), 2)
    assert shown()[1] != old.name
    # A file of it is gone, or was cut short, since.
    for spoil in (Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-1])):
        deliver(shop, ONE if shown()[0] == lines(TWO) else TWO)
        spoiled = fails()
        spoiled.chmod(0o755)
        file = next(spoiled.glob("*.parquet"))
        file.chmod(0o644)
        spoil(file)
        known = len(loads())
        assert not shop.run(at="2026-01-02").errors
        assert (shown()[1] != spoiled.name, len(loads())) == (True, known + 1)
    # Shown, and killed before the ledger knew: it is recorded, and not written once more.
    deliver(shop, ONE)
    waiting = fails()
    publish_load(str(folder), waiting.name)
    assert not shop.run(at="2026-01-02").errors
    assert shown() == (lines(ONE), waiting.name)
    assert not shop.run(at="2026-01-02").outcomes
