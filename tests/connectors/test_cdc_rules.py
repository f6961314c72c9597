"""Change data capture without a server: options, names, what the preflight says, and failures in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakewright.connectors import cdc_reach
from lakewright.connectors.cdc_connector import ChangeDataCapture
from lakewright.connectors.cdc_facts import DatabaseFacts, PublicationFacts, ServerFacts, TableFacts
from lakewright.connectors.cdc_failures import failure_of, run_state
from lakewright.connectors.cdc_names import CaptureNames, derived_name
from lakewright.connectors.cdc_preflight import problems_of
from lakewright.connectors.cdc_rest import ConnectWorker
from lakewright.connectors.cdc_settings import CaptureOptions, connector_settings, keep_password
from lakewright.connectors.cdc_slot import SlotState
from lakewright.connectors.kafka_client import KafkaClient, TopicState
from lakewright.connectors.postgres_connection import ConnectionArguments
from lakewright.errors import ConfigurationError, InputError, TargetError
from lakewright.lake.delta_errors import is_transient
from lakewright.model.connections import Connection, Connections
from lakewright.model.protocols import SourceContext
from lakewright.model.secrets import Secret

NAMES = CaptureNames("lw_blog", "lw_blog", "lw_blog", "lw_blog")
SERVER = ServerFacts("blog", "writer", "logical", 8, 1, 8, 1, True, True)
VISITS = TableFacts("public.visits", "r", True, "d", True, True, True, True)
WELL = DatabaseFacts(SERVER, None, None, (VISITS,), ("public.visits",))
SLOT = SlotState("lw_blog", "pgoutput", "blog", None, None, 100, "reserved")


def told(facts: DatabaseFacts, **options: Any) -> dict[str, str]:
    wanted: dict[str, Any] = {"snapshot": True, "partitions": 1, "ours": False, **options}
    return {one.name: f"{one.what} {one.cure}" for one in problems_of(facts, NAMES, **wanted)}


def test_a_database_that_has_everything_has_no_problem() -> None:
    assert told(WELL) == {}
    assert told(replace(WELL, slot=SLOT)) == {}
    assert told(replace(WELL, slot=replace(SLOT, active_pid=7)), ours=True) == {}
    assert told(replace(WELL, publication=PublicationFacts(True, (), ("insert", "update", "delete")))) == {}


def test_all_that_the_server_lacks_is_told_at_once_with_its_cure() -> None:
    poor = replace(SERVER, wal_level="replica", used_slots=8, used_senders=8, may_replicate=False, may_create=False)
    found = told(replace(WELL, server=poor))
    expected = ["wal_level", "max_replication_slots", "max_wal_senders", "REPLICATION", "publication lw_blog"]
    assert list(found) == expected
    assert "ALTER SYSTEM SET wal_level = 'logical'" in found["wal_level"]
    assert 'ALTER ROLE "writer" REPLICATION;' in found["REPLICATION"]
    assert 'GRANT CREATE ON DATABASE "blog" TO "writer"' in found["publication lw_blog"]


@pytest.mark.parametrize(
    ("slot", "words"),
    [
        (
            replace(SLOT, active_pid=41, reader="psql"),
            ["process 41 of the database (psql)", "pg_terminate_backend(41)"],
        ),
        (replace(SLOT, wal_status="lost"), ["wal_status = 'lost'", "pg_drop_replication_slot('lw_blog')"]),
        (replace(SLOT, database="shop"), ["pgoutput of shop", "slot='...'"]),
        (replace(SLOT, plugin=None, database=None), ["physical of the whole server"]),
    ],
)
def test_a_slot_that_cannot_be_used_is_told(slot: SlotState, words: list[str]) -> None:
    [text] = told(replace(WELL, slot=slot)).values()
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    ("table", "options", "words"),
    [
        ("public.visit", {}, "Did you mean 'public.visits'?"),
        (replace(VISITS, has_key=False), {}, 'ALTER TABLE "public"."visits" REPLICA IDENTITY FULL;'),
        (replace(VISITS, identity="n"), {}, 'ALTER TABLE "public"."visits" REPLICA IDENTITY DEFAULT;'),
        (replace(VISITS, identity="f", has_key=False), {"partitions": 2}, "in any order"),
        (replace(VISITS, may_select=False), {}, 'GRANT SELECT ON "public"."visits" TO "writer";'),
        (replace(VISITS, may_enter_schema=False), {}, 'GRANT USAGE ON SCHEMA "public" TO "writer";'),
        (replace(VISITS, logged=False), {}, "SET LOGGED"),
        (replace(VISITS, kind="v"), {}, "only tables have a change log"),
        (replace(VISITS, kind="p"), {}, "Name its partitions"),
    ],
)
def test_a_table_that_cannot_be_captured_is_told(table: TableFacts | str, options: dict[str, Any], words: str) -> None:
    [(name, text)] = told(replace(WELL, tables=(table,)), **options).items()
    assert name.startswith("table public.visit")
    assert words in text


def test_what_no_snapshot_reads_need_not_be_readable() -> None:
    assert told(replace(WELL, tables=(replace(VISITS, may_select=False),)), snapshot=False) == {}
    assert told(replace(WELL, tables=(replace(VISITS, identity="f", has_key=False),))) == {}


def test_a_publication_of_somebody_else_is_used_if_it_holds_the_tables() -> None:
    theirs = PublicationFacts(False, ("public.visits",), ("insert", "update", "delete"))
    facts = replace(WELL, publication=theirs, tables=(replace(VISITS, owned=False),))
    assert told(facts) == {}
    assert facts.ready_publication(["public.visits"])
    [text] = told(replace(facts, publication=replace(theirs, tables=()))).values()
    assert 'ALTER PUBLICATION "lw_blog" ADD TABLE "public"."visits";' in text
    [text] = told(replace(facts, publication=replace(theirs, operations=("insert",)))).values()
    assert "leaves out every update and delete" in text
    [text] = told(replace(facts, publication=None)).values()
    assert 'CREATE PUBLICATION "lw_blog" FOR TABLE "public"."visits";' in text


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        ('Caused by: org.postgresql.util.PSQLException: ERROR: replication slot "s" is active for PID 3', "process 3"),
        ('FATAL: password authentication failed for user "blog"', "refuses the user or the password"),
        ('ERROR: can no longer access replication slot "s"', "'s' is lost"),
        ("ERROR: logical decoding requires \"wal_level\" >= \"logical\"", "wal_level"),
        ("FATAL: permission denied to start WAL sender", "no right to replicate"),
        ('ERROR: publication "p" does not exist', "'p' is gone"),
        ("ERROR: must be owner of table visits", "'visits'"),
        ("a.b.SomeException: It stopped.\n\tat a.b(C.java:1)\nCaused by: c.IOError: No room", "It stopped. No room."),
        ("", "failed without a word"),
    ],
)  # fmt: skip
def test_a_trace_is_told_in_words(trace: str, words: str) -> None:
    problem, hint = failure_of(trace)
    assert words in problem
    assert "\tat " not in problem
    assert hint


def test_one_word_for_the_states_of_a_connector() -> None:
    def of(connector: str, *tasks: str) -> str:
        return run_state({"connector": {"state": connector}, "tasks": [{"state": one} for one in tasks]})

    assert [of("RUNNING", "RUNNING"), of("RUNNING"), of("RUNNING", "FAILED"), of("FAILED")] == [
        *("running", "starting", "failed", "failed")
    ]
    assert [of("STOPPED"), of("PAUSED", "PAUSED"), of("RUNNING", "RESTARTING"), run_state(None)] == [
        *("stopped", "paused", "starting", "absent")
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tables": []}, "at least one table"),
        ({"tables": "public.visits"}, "at least one table"),
        ({"tables": ['public."Visits"']}, "letters, digits and underscores"),
        ({"tables": ["visits", "public.visits"]}, "named twice"),
        ({"slot": "Blog-slot"}, "no name for PostgreSQL"),
        ({"topic_prefix": "blog/visits"}, "cannot begin the name of a topic"),
        ({"partitions": 0}, "partitions is 0"),
        ({"password_reference": "hunter2-hunter2"}, "no reference of Kafka Connect"),
        ({"options": {"database.password": "hunter2"}}, "the capture decides it"),
        ({"options": {"snapshot.mode": "never"}}, "the capture decides it"),
    ],
)
def test_a_wrong_option_is_refused_when_it_is_declared(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as refused:
        ChangeDataCapture(**{"connection": "blog_db", "tables": ["visits"], **options})
    assert "hunter2" not in str(refused.value)


def test_names_come_from_project_and_dataset_and_fit_into_postgresql() -> None:
    capture = ChangeDataCapture("blog_db", ["visits"], topic_prefix="legacy")
    assert capture.tables == ("public.visits",)
    feed = capture.feed(Connections(), project="blog", dataset="old visits")
    assert feed.names == CaptureNames(*["lw_blog_old_visits"] * 3, "legacy")
    assert feed.topics == {"public.visits": "legacy.public.visits"}
    long = derived_name("blog", "x" * 80)
    assert len(long) == 63
    assert long != derived_name("blog", "x" * 81)


def test_changes_that_are_gone_unread_are_told_with_a_way_on_that_a_captured_table_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = TopicState("lw_blog_visits.public.visits", "x1", {0: 5}, {0: 9})
    monkeypatch.setattr(KafkaClient, "state", lambda *_: state)
    connections = Connections({"broker": Connection("broker", "kafka://127.0.0.1:1")})
    ctx = SourceContext("visits", Path("/nowhere"), connections=connections, project_name="blog")
    visits = ChangeDataCapture("blog_db", ["visits"]).of("visits")
    begin = {"topic_id": "x1", "partitions": {"0": [5, 5]}, "lost": {"0": [2, 5]}}
    with pytest.raises(InputError, match=r"never read \(partition 0, offsets 2 to 4\)") as refused:
        visits.refuse_lost(ctx, begin)
    assert "`lakewright stream rewind visits --all --lost delete`, which deletes for good" in str(refused.value.hint)
    assert "if_lost" not in str(refused.value.hint)


def test_the_settings_name_the_place_of_the_password_and_never_hold_it(tmp_path: Any) -> None:
    folder = tmp_path / "passwords"
    assert keep_password(folder, "lw_blog", "s3cret word") == (f"${{dir:{folder}:lw_blog}}", True)
    reference, renewed = keep_password(folder, "lw_blog", "s3cret word")
    assert not renewed
    assert [oct(path.stat().st_mode)[-3:] for path in (folder, folder / "lw_blog")] == ["700", "600"]
    values = {"host": "db", "port": "5432", "dbname": "blog", "user": "writer", "password": "s3cret word"}
    settings = connector_settings(
        ConnectionArguments({**values, "sslmode": "require"}, ("password",)),
        NAMES,
        CaptureOptions(("public.visits", "shop.orders"), False, 7, 3, None, {"snapshot.fetch.size": "10"}),
        password=reference,
        publication_is_ready=True,
    )
    assert "s3cret" not in str(settings)
    shown = ("snapshot.mode", "table.include.list", "publication.autocreate.mode", "database.sslmode")
    assert [settings[name] for name in shown] == ["no_data", r"public\.visits,shop\.orders", "disabled", "require"]
    assert settings["heartbeat.interval.ms"] == "7000"
    assert settings["snapshot.fetch.size"] == "10"


def test_a_worker_is_an_address_and_at_most_a_folder() -> None:
    shared = Connection("cdc", "debezium+https://connect.example.com", options={"password_folder": "/run/passwords"})
    worker = ConnectWorker.at(shared, asked_by="visits")
    assert (worker.url, str(worker.password_folder)) == ("https://connect.example.com", "/run/passwords")
    with pytest.raises(ConfigurationError, match="option 'user', which is not known"):
        ConnectWorker.at(Connection("cdc", "debezium://connect:8083", options={"user": "me"}), asked_by="visits")
    with pytest.raises(ConfigurationError, match="which a Kafka Connect worker does not take"):
        Connection("cdc", "debezium://connect:8083", password=Secret("secret://env/PASSWORD"))
    with pytest.raises(ConfigurationError, match="names a user"):
        Connection("cdc", "debezium://me@connect:8083")


def test_a_worker_that_is_not_declared_or_does_not_answer_is_one_of_the_problems(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cdc_reach, "_BROKER_SECONDS", 0.2)
    silent = {
        "blog_db": Connection("blog_db", "postgresql://writer@127.0.0.1:1/blog"),
        "broker": Connection("broker", "kafka://127.0.0.1:1"),
    }
    capture = ChangeDataCapture("blog_db", ["visits"])
    feed = capture.feed(Connections(silent), project="blog", dataset="visits")
    found = {one.name: str(one) for one in feed.preflight()}
    assert list(found) == ["broker", "Kafka Connect worker", "connection blog_db"]
    assert "no Kafka broker answers" in found["broker"]
    assert '[connections.debezium] with service = "debezium"' in found["Kafka Connect worker"]
    assert "the database does not answer" in found["connection blog_db"]
    with pytest.raises(ConfigurationError, match="3 things are missing"):  # to wait would not bring a declaration
        feed.register()
    declared = Connections({**silent, "cdc": Connection("cdc", "debezium://127.0.0.1:1")})
    feed = capture.feed(declared, project="blog", dataset="visits")
    with pytest.raises(TargetError, match=r"3 things are missing\. Nothing was started") as refused:
        feed.register()
    assert "no Kafka Connect worker answers at http://127.0.0.1:1" in str(refused.value)
    assert is_transient(refused.value)  # so a run tries again, and a continuous stream does not end
