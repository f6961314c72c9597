"""Metadata Decorator: facts of the run beside each record, in nobody's way."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakewright import KafkaMessages, Merger, MetadataDecorator, Pipeline, PostgresTable, Scd2
from lakewright.connectors.postgres_hidden import hide_columns
from lakewright.errors import ConfigurationError, DefinitionError, InputError
from lakewright.model.connections import Connection
from lakewright.model.secrets import Secret
from lakewright.patterns.data_value.metadata_decorator import (
    add_headers,
    add_metadata,
    read_tags,
    tag_files,
    write_context,
)
from lakewright.testing.kafka import Kafka
from lakewright.testing.postgres import Postgres

RUN_TIME = datetime(2026, 1, 6, tzinfo=UTC)
FACTS = {"job_version": "v1.0.3", "batch": "42", "run_time": RUN_TIME}


@pytest.mark.shows("05.metadata-decorator", 1)
def test_headers_tell_the_run_and_the_value_keeps_its_bytes(spark: SparkSession, kafka: Kafka) -> None:
    topic = kafka.topic()
    plain = spark.createDataFrame([("k1", '{"visit": "v1"}')], "key string, value string")
    decorated = add_headers(add_headers(plain, facts={"batch": "42"}), facts={"job_version": "v1.0.3"})
    assert decorated.schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    to = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic}
    for frame in (plain, decorated):
        frame.write.format("kafka").options(**to).option("includeHeaders", "true").save()
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "t", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    first, second = consumer.consume(2, timeout=30)
    consumer.close()
    assert first.value() == second.value() == b'{"visit": "v1"}'
    assert first.headers() is None
    assert second.headers() == [("batch", b"42"), ("job_version", b"v1.0.3")]


@pytest.mark.shows("05.metadata-decorator", 2)
def test_a_business_role_sees_the_view_without_the_column_and_no_table(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PG_TEST_PASSWORD", postgres.password)
    at = postgres.database()
    url = f"postgresql://{at.user}@{at.host}:{at.port}/{at.name}"
    connection = Connection("db", url, Secret("secret://env/PG_TEST_PASSWORD"))
    role = f"analyst_{at.name}"
    with at.connect() as session:
        session.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'only-for-this-test'".encode())
        session.execute(b"CREATE TABLE visits (visit text, _lw_context text, secret text)")
        session.execute(b"""INSERT INTO visits VALUES ('v1', '{"job_version":"v1"}', 'x')""")
    hide_columns(connection, table="visits", view="visits_shown", readers=[role], columns=["secret"])
    business = f"postgresql://{role}:only-for-this-test@{at.host}:{at.port}/{at.name}"
    with psycopg.connect(business, autocommit=True) as session:
        cursor = session.execute("SELECT * FROM visits_shown")
        assert [column.name for column in cursor.description or ()] == ["visit"]
        assert cursor.fetchall() == [("v1",)]
        for denied in ("SELECT _lw_context FROM visits", "SELECT visit FROM visits"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(denied.encode())
    with at.connect() as session:
        session.execute(f"GRANT SELECT (secret) ON visits TO {role}".encode())
        hide_columns(connection, table="visits", view="visits_shown", readers=[role], columns=["secret"])
        assert session.execute("SELECT has_any_column_privilege(%s, 'visits', 'SELECT')", [role]).fetchone() == (False,)
        session.execute(b"ALTER TABLE visits ADD COLUMN page text")
    for _ in range(2):  # the second time there is nothing to do
        hide_columns(connection, table="visits", view="visits_shown", readers=[role], columns=["secret"])
    with psycopg.connect(business) as session:
        assert session.execute("SELECT * FROM visits_shown").fetchall() == [("v1", None)]
    later, readable = f"later_{at.name}", "SELECT has_table_privilege(%s, 'visits_shown', 'SELECT')"
    with at.connect() as session:
        session.execute(f"CREATE ROLE {later}".encode())
        hide_columns(connection, table="visits", view="visits_shown", readers=[role, later], columns=["secret"])
        assert session.execute(readable, [later]).fetchall() == [(True,)]
        # One column less: the view is made anew, and those who are not named any more keep what they were given.
        hide_columns(connection, table="visits", view="visits_shown", columns=["secret", "visit"])
        assert [session.execute(readable, [one]).fetchone() for one in (role, later)] == [(True,), (True,)]
    with at.connect() as session:
        for one in (role, later):
            session.execute(b"DROP OWNED BY " + one.encode())
            session.execute(b"DROP ROLE " + one.encode())
    with pytest.raises(ConfigurationError, match="no table visit that"):
        hide_columns(connection, table="visit", view="shown")


def test_a_batch_has_one_row_in_the_technical_table_and_loading_it_again_raises_its_attempt(
    spark: SparkSession, lake_folder: Path
) -> None:
    path = str(lake_folder / "contexts")
    write_context(spark, path, facts=FACTS)
    write_context(spark, path, facts={**FACTS, "job_version": "v1.0.4"})
    known = spark.read.format("delta").load(path)
    rows = add_metadata(spark.range(1), facts=FACTS, where="table", into="context_id").join(known, "context_id")
    told = rows.select("job_version", "attempt", F.col("run_time").cast("string"), F.lit(known.count()))
    assert [tuple(row) for row in told.collect()] == [("v1.0.4", 2, "2026-01-06 00:00:00", 1)]
    with pytest.raises(ConfigurationError, match="told by 'batch'"):
        write_context(spark, path, facts={"job_version": "1"})


@pytest.mark.shows("05.metadata-decorator", 5, 6)
def test_only_technical_facts_and_only_where_the_target_has_a_place() -> None:
    with pytest.raises(ConfigurationError, match="'invoice_amount' is no technical fact: only job_version"):
        MetadataDecorator(facts=["job_version", "invoice_amount"])
    with pytest.raises(ConfigurationError, match="Did you mean 'job_version'"):
        tag_files("/nowhere", facts={"job_versionn": "1"})
    for wrong in ({"where": "headers"}, {"fallback": "native"}, {"facts": []}):
        with pytest.raises(ConfigurationError, match="Metadata Decorator"):
            MetadataDecorator(**wrong)  # type: ignore[arg-type]
    shop = Pipeline("shop", start="2026-01-01")
    for options in ({}, {"into": PostgresTable("db", "visits")}):
        with pytest.raises(DefinitionError, match="no place of its own for metadata") as refused:
            shop.sql("visits", "SELECT * FROM raw", metadata=MetadataDecorator(where="native"), **options)
        assert 'where="column"' in str(refused.value.hint)
    shop.sql("a", "SELECT * FROM raw", metadata=MetadataDecorator(where="native", fallback="table"))
    assert list(shop.datasets[0].outputs) == ["a_context"]
    shop.sql(
        "b",
        "SELECT * FROM raw",
        metadata=MetadataDecorator(where="native"),
        into=KafkaMessages("broker", "b", key="id"),
    )
    assert shop.datasets[1].outputs == {}
    history = Merger(keys=["id"], history=Scd2(valid_from="at"))
    for options, word in (
        ({"metadata": "yes"}, "metadata is a MetadataDecorator"),
        ({"metadata": MetadataDecorator(), "writer": history}, "each run would be told by new rows"),
        ({"wrap": "yes"}, "wrap is a Wrapper"),
    ):
        with pytest.raises(DefinitionError, match=word):
            shop.sql("c", "SELECT * FROM raw", **options)

    def live(raw: Any) -> Any:
        return raw

    with pytest.raises(DefinitionError, match="a stream writes one table"):
        shop.add(live, mode="stream", metadata=MetadataDecorator(where="table"))
    with pytest.raises(ConfigurationError, match="no 'view' is named"):
        PostgresTable("db", "visits", readers=["analyst"])
    with pytest.raises(ConfigurationError, match="no name for a view"):
        PostgresTable("db", "visits", view="visits")


@pytest.mark.shows("05.metadata-decorator", 7)
def test_a_file_that_is_rewritten_gets_its_tag_anew(tmp_path: Path) -> None:
    folder = tmp_path / "day=1"
    folder.mkdir()
    one, two = folder / "part-1.parquet", folder / "part-2.parquet"
    one.write_bytes(b"first")
    two.write_bytes(b"second")
    assert tag_files(tmp_path, facts={"job_version": "v1"}) == 2
    one.write_bytes(b"other")
    os.utime(one, ns=(1, 1))
    assert read_tags(tmp_path) == {"day=1/part-1.parquet": None, "day=1/part-2.parquet": {"job_version": "v1"}}
    assert tag_files(tmp_path, facts={"job_version": "v2", "run_time": RUN_TIME}) == 1
    assert read_tags(tmp_path) == {
        "day=1/part-1.parquet": {"job_version": "v2", "run_time": "2026-01-06T00:00:00+00:00"},
        "day=1/part-2.parquet": {"job_version": "v1"},
    }
    two.unlink()
    tag_files(tmp_path, facts={"job_version": "v3"})
    assert [file.name for file in folder.iterdir() if "part-2" in file.name] == []
    with pytest.raises(InputError, match="no such folder"):
        read_tags(tmp_path / "gone")
