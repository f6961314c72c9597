"""Whatever comes in: a clear message, nothing lost, nothing half published."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from lakewright.errors import (
    ConfigurationError,
    DefinitionError,
    InputError,
    LeaseHeldError,
    LimitExceeded,
    SchemaChangeError,
    StepFailed,
    TargetError,
    UnknownNameError,
)
from lakewright.pipelines.harvest import pin
from tests.pipelines.shop import GUARDED, land, ok, order, orders_project, rows_of
from tests.pipelines.topics import fresh_topic


def test_an_empty_landing_folder_is_no_arrival_and_no_error(project):
    shop = project(orders_project())
    (shop.folder / "landing" / "orders").mkdir(parents=True)
    summary = ok(shop.run(at="2026-01-02"))
    assert summary.fresh == ["orders", "clean", "daily"]
    assert shop.store.arrivals.count("orders") == 0


def test_a_missing_landing_folder_is_told_by_name(project):
    shop = project(orders_project())
    summary = shop.run(at="2026-01-02")
    assert isinstance(summary.errors[0], InputError)
    assert "landing/orders" in str(summary.errors[0])
    assert summary.skipped == ["clean", "daily"]


def test_records_that_do_not_parse_are_kept_with_their_text_and_every_row_is_accounted_for(project):
    shop = project(orders_project(GUARDED))
    land(
        shop.folder,
        "d1.json",
        [
            order("a", "2026-01-01T10:00:00Z"),
            '{"order_id": "cut',
            order("b", "no time"),
            order("c", "1999-01-01T00:00:00Z"),
        ],
    )
    ok(shop.run(at="2026-01-02"))
    receipt = shop.store.receipts.live("orders", "arrival-1")
    assert (receipt.counters.read, dict(receipt.counters.rejected)) == (
        4,
        {"unreadable record": 2, "no usable event time": 1},
    )
    letters = shop.sql("SELECT rule, raw, error FROM dead_letters ORDER BY rule, raw").collect()
    assert '{"order_id": "cut' in {row["raw"] for row in letters}
    assert [row["error"] for row in letters] == [
        "at = 1999-01-01 00:00:00 is no time from 2026-01-01 00:00 on, up to a day after it arrived",
        "these fields do not fit their columns: at",
        "the text is not one whole record of the declared columns",
    ]
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a"]


def test_too_many_rejected_rows_publish_nothing_and_stay_as_evidence(project):
    limit = """guards_in={"orders": [DeadLetter(rules={"has_id": "order_id IS NOT NULL"}, stop_above=0.5)]}"""
    shop = project(orders_project(limit))
    rows = [order("a", "2026-01-01T10:00:00Z")]
    land(shop.folder, "d1.json", [*rows, order(None, "2026-01-01T10:00:00Z"), order(None, "2026-01-01T11:00:00Z")])
    summary = shop.run(at="2026-01-02")
    assert summary.exit_code == 3
    assert isinstance(summary.errors[0], LimitExceeded)
    assert "66.7%" in str(summary.errors[0])
    assert not shop.lake.log("clean").exists()
    assert shop.sql("SELECT count(*) FROM dead_letters").first()[0] == 2


def an_order_taken(shop):
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z")])
    ok(shop.run(["orders"], at="2026-01-02"))


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("return None", "NoneType"),
        ("orders.count()", "NoneType"),
        ("return 3", "int"),
        ("raise ValueError('boom')", "ValueError: boom"),
        ("return orders.select('nope')", "nope"),
    ],
)
def test_a_step_that_returns_no_frame_or_raises_is_told_with_its_place(prepared, project, body, word):
    files = orders_project()
    prepared("an order taken", files, an_order_taken)
    text = files["pipelines/shop.py"]
    files["pipelines/shop.py"] = text.replace('return orders.select("order_id", "at", "customer", "amount")', body)
    shop = project(files)
    summary = shop.run(at="2026-01-02")
    assert isinstance(summary.errors[0], StepFailed)
    assert word in str(summary.errors[0])
    assert "shop.py:" in str(summary.errors[0])
    assert summary.exit_code == 1
    assert summary.skipped == ["daily"]


def test_a_step_that_loses_rows_though_it_says_preserve_is_put_back(project):
    files = orders_project()
    files["pipelines/shop.py"] = files["pipelines/shop.py"].replace('"amount")\n', '"amount").where("amount > 1")\n')
    shop = project(files)
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z", 1), order("b", "2026-01-01T11:00:00Z", 2)])
    summary = shop.run(at="2026-01-02")
    assert summary.exit_code == 3
    assert "made 1 rows of 2" in str(summary.errors[0])
    assert rows_of(shop, "clean") == []
    assert "daily" in summary.skipped


@pytest.mark.parametrize(
    "options", ["", """, guards_in={"orders": [DeadLetter(rules={"has_id": "order_id IS NOT NULL"})]}"""]
)
def test_a_slice_that_could_not_be_put_back_is_read_by_nobody_and_put_back_by_the_next_run(
    project, monkeypatch, options
):
    files = orders_project(f'rows="preserve", retries=0{options}')
    files["pipelines/shop.py"] = files["pipelines/shop.py"].replace('"amount")\n', '"amount").where("amount > 1")\n')
    shop = project(files)
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z", 2)])
    ok(shop.run(at="2026-01-02"))
    before = rows_of(shop, "clean")

    def no_room(*_):
        raise TargetError("No space left on device")

    monkeypatch.setattr("lakewright.pipelines.make.put_back", no_room)
    land(shop.folder, "d2.json", [order("b", "2026-01-01T11:00:00Z", 1), order("c", "2026-01-01T12:00:00Z", 3)])
    assert "No space left" in str(shop.run(at="2026-01-02T12:00").errors[0])
    monkeypatch.undo()
    assert pin(shop.lake, shop.store, "clean") < shop.lake.log("clean").latest(), "nobody reads the wrong rows"
    summary = shop.run(["orders"], at="2026-01-02T13:00")
    assert "an earlier run died here; its commit was not made" in str(summary.notes)
    assert rows_of(shop, "clean") == before
    assert shop.store.receipts.live("clean", "2026-01-01").rows == 1


def test_what_fails_behind_its_commit_is_judged_by_the_log(project, failing):
    files = orders_project('rows="preserve", retries=0')
    files["pipelines/shop.py"] = files["pipelines/shop.py"].replace('"amount")\n', '"amount").where("amount > 1")\n')
    shop = project(files)
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z", 2)])
    ok(shop.run(at="2026-01-02"))
    before = rows_of(shop, "clean")

    land(shop.folder, "d2.json", [order("b", "2026-01-01T11:00:00Z", 1), order("c", "2026-01-01T12:00:00Z", 3)])
    ok(shop.run(["orders"], at="2026-01-02T12:00"))
    failing("committed.main")  # the commit is there, and the log could not be read
    assert shop.run(["clean"], at="2026-01-02T12:00").state == "failed"
    assert pin(shop.lake, shop.store, "clean") < shop.lake.log("clean").latest(), "nobody reads the wrong rows"
    ok(shop.run(["orders"], at="2026-01-02T13:00"))
    assert rows_of(shop, "clean") == before

    land(shop.folder, "d3.json", [order("d", "2026-01-02T11:00:00Z", 5), {"amount": 1}])
    failing("committed.main")
    assert shop.run(["orders"], at="2026-01-02T14:00").state == "failed"
    summary = shop.run(["orders"], at="2026-01-02T15:00")
    assert "found in the log" in str(ok(summary).notes)
    assert shop.store.receipts.live("orders", "arrival-3").counters.rejected_rows == 1


def test_a_row_outside_its_slice_is_refused(project):
    files = orders_project('rows="expand"')
    files["pipelines/shop.py"] = files["pipelines/shop.py"].replace(
        '"amount")\n', '"amount").withColumn("at", F.expr("at + interval 1 day"))\n'
    )
    shop = project(files)
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z")])
    summary = shop.run(at="2026-01-03")
    assert "outside the slice" in str(summary.errors[0])
    assert "2026-01-01" in str(summary.errors[0])
    assert not shop.lake.log("clean").exists() or rows_of(shop, "clean") == []


def test_a_row_that_breaks_a_constraint_of_the_table_is_told_as_that_and_without_its_values(project):
    shop = project(orders_project())
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z")])
    ok(shop.run(["+clean"], at="2026-01-02"))
    shop.spark().sql(f"ALTER TABLE delta.`{shop.lake.resolve('clean')}` ADD CONSTRAINT few CHECK (amount < 5)")
    land(shop.folder, "d2.json", [order("ann@example.com", "2026-01-02T10:00:00Z", 9)])
    (error,) = shop.run(["+clean"], at="2026-01-03").errors
    assert isinstance(error, InputError)
    assert "the table's own constraint few (amount < 5)" in str(error)
    assert "outside" not in str(error)
    assert "ann@example.com" not in str(error)


def test_late_rows_are_captured_and_held_until_a_backfill_takes_them_in(project):
    ((name, text),) = orders_project("late=Capture()").items()
    reaching = """
    from lakewright import Lookback

    shop.sql("reaching", "SELECT count(*) AS orders, max(at) AS at FROM orders", event_time="at", rows="reduce",
             late=Capture(), inputs={"orders": Lookback("1 hour")})
"""
    shop = project({name: text + reaching})
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z")])
    ok(shop.run(at="2026-01-02"))
    land(shop.folder, "d2.json", [order("late", "2026-01-01T11:00:00Z")])
    ok(shop.run(at="2026-01-03"))
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a"]
    kept = shop.sql("SELECT dataset, get_json_object(record, '$.order_id') FROM late_rows ORDER BY 1").collect()
    assert [tuple(row) for row in kept] == [("clean", "late"), ("reaching", "late")]
    for name in ("clean", "reaching"):
        assert [(s.status, s.make) for s in shop.plan(at="2026-01-03")[name].states] == [("held", False)]
    ok(shop.backfill("2026-01-01", "2026-01-02", at="2026-01-03"))
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a", "late"]
    assert shop.plan(at="2026-01-03")["clean"].states == ()
    # What was taken in is no longer shown, until a rollback takes it out again.
    shop.rollback("clean")
    kept = shop.sql("SELECT dataset, get_json_object(record, '$.order_id') FROM late_rows").collect()
    assert [tuple(row) for row in kept] == [("clean", "late")]


def test_a_policy_of_fail_refuses_late_rows(project):
    shop = project(orders_project("late=Fail()"))
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z")])
    ok(shop.run(at="2026-01-02"))
    land(shop.folder, "d2.json", [order("late", "2026-01-01T11:00:00Z")])
    summary = shop.run(at="2026-01-03")
    assert summary.exit_code == 3
    assert "late" in str(summary.errors[0])
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a"]


def test_a_recorded_file_that_vanished_is_told_and_nothing_is_written(project):
    from lakewright.failpoints import arm

    shop = project(orders_project())
    file = land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z")])
    arm({"LAKEWRIGHT_FAILPOINT": "recorded", "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    shop.run(at="2026-01-02")
    arm({})
    file.unlink()
    summary = shop.run(at="2026-01-02")
    assert "d1.json" in str(summary.errors[0])
    assert not shop.lake.log("orders").exists()

    # It was still being written: the finished one is another version, and the old one is given up by the command told.
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z"), order("b", "2026-01-01T11:00:00Z")])
    summary = shop.run(at="2026-01-02")
    assert "d1.json has changed since" in str(summary.errors[0])
    assert "`lakewright retry --forget orders:1`" in str(summary.errors[0])
    shop.forget_arrival("orders", 1)
    ok(shop.retry())
    assert len(rows_of(shop, "clean")) == 2


def test_a_step_that_makes_a_column_of_its_own_history_is_refused_and_the_table_stays_as_it_is(project):
    text = """
        from lakewright import JsonFiles, Merger, Pipeline, Scd2

        shop = Pipeline("shop", start="2026-01-01")
        shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, "
                    "amount int", event_time="at")
        shop.sql("versions", "SELECT customer, amount, at FROM orders",
                 writer=Merger(keys=["customer"], history=Scd2(valid_from="at")))
    """
    shop = project({"pipelines/shop.py": text})
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z")])
    ok(shop.run(at="2026-01-02"))
    columns = shop.lake.read("versions", system_columns=True).columns
    shop = project({"pipelines/shop.py": text.replace("at FROM", "at, 'no' AS Valid_To, 1 AS gained FROM")})
    (refused,) = shop.run(["versions"], at="2026-01-02", again=True).errors
    assert "versions: the changes have a column Valid_To, which Scd2 makes itself" in str(refused)
    assert shop.lake.read("versions", system_columns=True).columns == columns


def test_what_is_left_of_an_arrival_of_files_is_read_and_only_what_is_gone_is_given_up(project):
    from lakewright.failpoints import arm

    shop = project(orders_project())
    land(shop.folder, "replaced.json", [order("r1", "2026-01-01T09:00:00Z")])
    ok(shop.run(at="2026-01-02"))

    def file(name: str, *ids: str) -> Path:
        return land(shop.folder, f"{name}.json", [order(one, "2026-01-01T10:00:00Z") for one in ids])

    kept = [file("kept", "a", "b"), file("more", "c")]
    vanishes, _ = file("vanishes", "d"), file("changes", "e")
    again = file("replaced", "r1", "r2")
    arm({"LAKEWRIGHT_FAILPOINT": "recorded", "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    shop.run(at="2026-01-03")
    arm({})
    with pytest.raises(ConfigurationError, match="all of arrival 2 can still be read"):
        shop.forget_arrival("orders", 2)
    elsewhere = vanishes.rename(shop.folder / "vanishes.json")
    file("changes", "e1", "e2")
    again.unlink()  # what was taken of it before stays
    (refused,) = shop.retry().errors
    assert "vanishes.json is no longer there" in str(refused)
    assert "read what is left (2 of 5 files): `lakewright retry --forget orders:2`" in str(refused)
    assert "2 of 5 files" in shop.forget_arrival("orders", 2)
    ok(shop.retry())
    assert ids_of(shop) >= {"r1", "a", "b", "c"}
    arrival = shop.store.arrivals.get("orders", 2)
    assert [file.path for file in arrival.files] == ["kept.json", "more.json"]
    assert [lost[0] for lost in arrival.window["lost"]] == ["changes.json", "replaced.json", "vanishes.json"]

    # What comes back, as it was or otherwise, is new; what it replaces is what was taken.
    elsewhere.rename(vanishes)
    file("replaced", "r3")
    ok(shop.run(at="2026-01-04"))
    assert ids_of(shop) == {"a", "b", "c", "d", "e1", "e2", "r3"}
    for one in kept:
        one.unlink()
    ok(shop.run(at="2026-01-05"))
    shop.rebuild_store()
    ok(shop.run(at="2026-01-06"))
    assert ids_of(shop) == {"a", "b", "c", "d", "e1", "e2", "r3"}


def test_an_arrival_of_which_nothing_is_left_is_given_up_and_what_it_replaced_stays(project):
    from lakewright.failpoints import arm

    shop = project(orders_project())
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z")])
    ok(shop.run(at="2026-01-02"))
    file = land(shop.folder, "d1.json", [order("b", "2026-01-01T10:00:00Z"), order("c", "2026-01-01T10:00:00Z")])
    arm({"LAKEWRIGHT_FAILPOINT": "recorded", "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    shop.run(at="2026-01-03")
    arm({})
    file.unlink()
    assert shop.forget_arrival("orders", 2) == "given up"
    ok(shop.run(at="2026-01-03"))
    assert ids_of(shop) == {"a"}
    land(shop.folder, "d1.json", [order("z", "2026-01-01T10:00:00Z")])
    ok(shop.run(at="2026-01-04"))
    assert ids_of(shop) == {"z"}, "it replaces what was taken, not what was given up"


def ids_of(shop) -> set[str]:
    return {row["order_id"] for row in rows_of(shop, "orders")}


def test_what_retention_left_of_a_recorded_arrival_is_read_once(project, kafka):
    """By the command told, and with ``if_lost="go on"`` by itself; a repeat of what was read is never made of less."""
    from lakewright.failpoints import arm

    topic, producer = fresh_topic(kafka, partitions=2), Producer({"bootstrap.servers": kafka.bootstrap})

    def send(*visits: int) -> None:
        for visit in visits:
            producer.produce(topic, f'{{"visit": "v{visit}"}}'.encode(), partition=visit % 2)
        assert producer.flush(10) == 0

    def shop(options: str = ""):
        settings = f"""name = "test"
            [connections.broker]
            url = "kafka://{kafka.bootstrap}"
        """
        source = f"""
            from lakewright import KafkaTopic, Pipeline

            shop = Pipeline("shop", start="2026-01-01")
            shop.source("visits", KafkaTopic("broker", "{topic}"{options}), schema="visit STRING", retries=0)
        """
        return project({"lakewright.toml": settings, "pipelines/shop.py": source})

    def record() -> None:
        arm({"LAKEWRIGHT_FAILPOINT": "recorded", "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
        shop().run(at="2026-01-02")
        arm({})

    def expire(upto: int) -> None:
        admin, place = AdminClient({"bootstrap.servers": kafka.bootstrap}), TopicPartition(topic, 0, upto)
        admin.delete_records([place])[place].result(10)

    send(*range(8))
    record()
    with pytest.raises(ConfigurationError, match="all of arrival 1 can still be read"):
        shop().forget_arrival("visits", 1)
    expire(1)
    last = shop()
    (refused,) = last.retry().errors
    assert "offsets 0 to 0 of partition 0 were deleted" in str(refused)
    assert "7 offsets in 2 partitions" in str(refused)
    assert "`lakewright retry --forget visits:1`" in str(refused)
    assert "7 offsets in 2 partitions" in last.forget_arrival("visits", 1)
    expire(2)
    send(8)
    last = shop(', if_lost="go on"')
    ok(last.retry())
    assert last.store.arrivals.get("visits", 1).window["lost"] == {"0": [0, 2]}
    ok(last.run(at="2026-01-03"))
    assert [row["visit"] for row in rows_of(last, "visits")] == ["v1", "v3", "v4", "v5", "v6", "v7", "v8"]

    expire(3)
    (refused,) = last.backfill("2026-01-01", "2026-01-03", sources=True).errors
    assert "It was taken before" in str(refused)
    assert len(rows_of(last, "visits")) == 7


SERVICES = """
    from lakewright import Jdbc, KafkaTopic, Pipeline

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("people", Jdbc("db", table="people"), schema="id INT, name STRING", retries=0)
    shop.source("visits", KafkaTopic("broker", "{topic}"), schema="visit STRING", retries=0)
    shop.sql("names", "SELECT name FROM people")
"""


def test_services_that_are_down_or_refuse_are_told_without_the_password_and_retry_goes_on(
    project, postgres, kafka, monkeypatch
):
    database, topic = postgres.database(), fresh_topic(kafka)
    with database.connect() as session:
        session.execute("CREATE TABLE people (id int PRIMARY KEY, name text)")
        session.execute("INSERT INTO people VALUES (1, 'Ada'), (2, 'Bo')")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, b'{"visit": "v1"}')
    assert producer.flush(10) == 0

    def shop(port: int = database.port, broker: str = kafka.bootstrap, topic: str = topic):
        settings = f"""name = "test"
            [connections.db]
            url = "postgresql://{database.user}@{database.host}:{port}/{database.name}"
            password = "secret://env/SHOP_PASSWORD"
            [connections.broker]
            url = "kafka://{broker}"
        """
        return project({"lakewright.toml": settings, "pipelines/shop.py": SERVICES.replace("{topic}", topic)})

    def told(summary) -> str:
        assert summary.state != "ok"
        assert "wrong-secret" not in str(summary)
        return "\n".join(map(str, summary.errors))

    monkeypatch.setenv("SHOP_PASSWORD", "wrong-secret")
    with monkeypatch.context() as soon:
        soon.setattr("lakewright.connectors.kafka_client._TIMEOUT_SECONDS", 0.5)
        found = told(shop(port=1, broker="127.0.0.1:1").run(at="2026-01-02"))
    assert "the database does not answer" in found
    assert "no Kafka broker answers at 127.0.0.1:1" in found
    found = told(shop(topic="nowhere").retry())
    assert "the database refuses the user or the password" in found
    assert "Kafka has no topic 'nowhere'" in found
    monkeypatch.setenv("SHOP_PASSWORD", database.password)
    with database.connect() as session:
        session.execute("ALTER TABLE people ALTER id TYPE text")
    changed = shop().retry()
    assert "people" in told(changed)
    assert isinstance(changed.errors[0], SchemaChangeError)
    with database.connect() as session:
        session.execute("ALTER TABLE people ALTER id TYPE int USING id::int")
    last = shop()
    ok(last.retry())
    assert [row["name"] for row in rows_of(last, "names")] == ["Ada", "Bo"]
    assert [row["visit"] for row in rows_of(last, "visits")] == ["v1"]


def test_a_second_run_of_the_same_pipeline_is_refused(project):
    shop = project(orders_project())
    other = project(folder="project")
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z")])
    with shop._exclusive(["shop"]), pytest.raises(LeaseHeldError, match="running already"):
        other.run(at="2026-01-02")
    ok(other.run(at="2026-01-02"))


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("from lakewright import Pipeline\nshop = Pipeline('shop'\n", 2, "not valid Python"),
        ("import nothing_here\n", 1, "nothing_here"),
        ("from lakewright import Pipeline\nshop = Pipeline('Shop')\n", 2, "no name for a pipeline"),
        ("from lakewright import Pipeline\nshop = Pipeline('shop', schedule='often')\n", 2, "no schedule"),
        (
            "from lakewright import Pipeline\nshop = Pipeline('shop')\n@shop.dataset(layr='gold')\ndef x(y): ...\n",
            3,
            "Did you mean 'layer'",
        ),
        (
            "from lakewright import DeadLetter, Pipeline\nshop = Pipeline('shop')\nx = DeadLetter(rules={})\n",
            3,
            "'rules' is empty",
        ),
        ("from lakewright import Pipeline\nshop = Pipeline('shop')\n@shop.dataset()\ndef x(y): ...\n", 3, "reads 'y'"),
        (
            "from lakewright import Pipeline\nshop = Pipeline('shop')\n@shop.dataset()\ndef x(y): ...\n"
            "@shop.dataset()\ndef y(x): ...\n",
            None,
            "circle",
        ),
    ],
)
def test_a_wrong_project_file_is_told_with_file_line_and_hint(project, text, line, word):
    with pytest.raises(ConfigurationError) as caught:
        project({"pipelines/shop.py": text}).graph  # noqa: B018
    assert word in str(caught.value)
    if line is not None:
        assert f"shop.py:{line}" in str(caught.value)


def test_two_owners_of_one_dataset_are_refused(project):
    files = orders_project()
    files["pipelines/again.py"] = files["pipelines/shop.py"].replace('Pipeline("shop"', 'Pipeline("again"')
    with pytest.raises(DefinitionError, match="declared twice"):
        project(files).graph  # noqa: B018


def test_an_unknown_name_offers_the_nearest(project):
    shop = project(orders_project())
    with pytest.raises(UnknownNameError, match="Did you mean 'daily'"):
        shop.run(["daly"])
