"""A whole run with secrets, typed as a user would: afterwards every byte that it left is searched for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from tests.pipelines.streaming import send

from lakewright.testing.kafka import Kafka
from lakewright.testing.postgres import Postgres

# Each begins with letters that stay the same however the rest is written; these are searched for.
DATABASE, STORE, SPARK = 'Zq7Kp2Vx/{w}"$%@: x', "Wb5Rt9Ln'<&>%2F=\\n", "Hc6Yd3Mf(+)*?|.€"
BROKER = 'Jv4Ns8Gt\\"; =x'
NEEDLES = [secret[:8].encode() for secret in (DATABASE, STORE, SPARK, BROKER)]

PIPELINE = """
import json
import logging
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import psycopg
from lakewright import DataOverwrite, Jdbc, KafkaTopic, Pipeline, PostgresTable, Secret
from lakewright.model.protocols import Found


class Table:
    repeatable = False

    def look(self, ctx):
        new = len(self._rows(ctx)) if ctx.last_window is None else 0
        return Found({"rows": new}, summary=f"{new} rows") if new else None

    def gone(self, arrival, ctx):
        return []

    def read(self, arrival, *, spark, schema, ctx):
        return spark.createDataFrame(self._rows(ctx), schema)

    def _rows(self, ctx):
        blog = ctx.connections.get("blog_db", kind="postgresql", asked_by=ctx.dataset)
        with psycopg.connect(blog.url, password=blog.password.reveal()) as connection:
            return connection.execute("SELECT id FROM visits").fetchall()


blog = Pipeline("blog", start="2026-01-01")
blog.source("raw_visits", Table(), schema="id int")
blog.source("read_by_spark", Jdbc("blog_db", table="visits", key="id", partitions=2))
blog.source("from_topic", KafkaTopic("broker", "TOPIC"), schema="id int")
blog.source("streamed", KafkaTopic("broker", "TOPIC"), schema="id int", mode="stream")


@blog.dataset()
def told(raw_visits):
    from pyspark import SparkContext

    spark = raw_visits.sparkSession.sparkContext
    hidden = spark._jsc.hadoopConfiguration().get("blog.hidden")
    command = Path(f"/proc/{SparkContext._gateway.proc.pid}/cmdline")
    Path("seen").mkdir(exist_ok=True)
    Path("seen", "hidden").write_text(sha256(hidden.encode()).hexdigest())
    Path("seen", "command line").write_bytes(command.read_bytes() if command.exists() else b"")
    password = Secret("secret://env/BLOG_DB_PASSWORD").reveal()
    print("I print", password)
    logging.getLogger("blog").warning("I log %r and %s", password, json.dumps([password]))
    raise RuntimeError(f"cannot log in as blog:{quote(password)} with {password}, hidden {hidden}")


@blog.dataset()
def cut(raw_visits):
    password = Secret("secret://env/BLOG_DB_PASSWORD").reveal()
    raise RuntimeError("far away, " * 38 + f"the password {password}")


@blog.dataset()
def on_workers(raw_visits):
    def fail(batches):
        password = Secret("secret://env/BLOG_DB_PASSWORD").reveal()
        print("a worker prints", password, flush=True)
        raise RuntimeError(f"a worker cannot log in with {password}")
        yield

    return raw_visits.mapInArrow(fail, "id int")


@blog.dataset(writer=DataOverwrite(), into=PostgresTable("blog_db", "copied", adopt=True))
def copied(raw_visits):
    def add(batches):
        import pyarrow

        for batch in batches:
            word = Secret("secret://env/BLOG_DB_PASSWORD").reveal()
            yield pyarrow.RecordBatch.from_pydict({"id": batch.column("id"), "word": [word] * batch.num_rows})

    return raw_visits.mapInArrow(add, "id int, word string")
"""

SETTINGS = """
[connections.blog_db]
url = "{database}"
password = "secret://env/BLOG_DB_PASSWORD"

# This broker asks nobody for a password; it is handed to both clients all the same.
[connections.broker]
url = "kafka://{broker}"
options = {{ "sasl.mechanism" = "PLAIN", "sasl.username" = "blog", "sasl.password" = "secret://env/BROKER_PASSWORD" }}

[targets.dev]
master = "local[2]"
driver_memory = "1g"
fast_start = true
store = "{store}"
store_password = "secret://file/{file}"
spark."spark.hadoop.blog.hidden" = "secret://env/BLOG_HIDDEN"
spark."spark.eventLog.enabled" = true
spark."spark.eventLog.dir" = "{events}"
spark."spark.eventLog.compress" = false
"""


@dataclass(frozen=True)
class Blog:
    folder: Path
    events: Path
    store: Postgres

    def lakewright(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-c", "from lakewright.cli.main import main; main()", *words]
        environ = {**os.environ, "BLOG_DB_PASSWORD": DATABASE, "BLOG_HIDDEN": SPARK, "BROKER_PASSWORD": BROKER}
        return subprocess.run(command, cwd=self.folder, env=environ, capture_output=True, timeout=300)

    def left(self) -> Iterator[tuple[str, bytes]]:
        """Everything that lies about after a run: files, and every row of the store."""
        for place in (self.folder, self.events):
            for file in place.rglob("*"):
                if file.is_file():
                    yield str(file), file.read_bytes()
        with self.store.connect() as connection:
            found = connection.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
            for (table,) in found.fetchall():
                for row in connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table))):
                    yield f"table {table}", "\n".join(map(str, row)).encode()


def database_of(postgres: Postgres, password: str) -> tuple[Postgres, str]:
    """A fresh database that belongs to a user of its own, and its address without the password."""
    made, user = postgres.database(), f"u_{uuid.uuid4().hex[:8]}"
    with postgres.connect() as connection:
        role, name = sql.Identifier(user), sql.Identifier(made.name)
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal(password)))
        connection.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(name, role))
    return made, f"postgresql://{user}@{made.host}:{made.port}/{made.name}"


@pytest.fixture
def blog(tmp_path: Path, postgres: Postgres, kafka: Kafka) -> Blog:
    folder, events, keys = (tmp_path / name for name in ("blog", "events", "keys"))
    for place in (folder / "pipelines", events, keys):
        place.mkdir(parents=True)
    (_, database), (store, address) = database_of(postgres, DATABASE), database_of(postgres, STORE)
    with psycopg.connect(database, password=DATABASE) as connection:
        connection.execute("CREATE TABLE visits AS SELECT 7 AS id")
        # Too short for what is sent, so that the database's answer to the workers repeats it.
        connection.execute("CREATE TABLE copied (id int, word varchar(3))")
    (keys / "store").touch(0o600)
    (keys / "store").write_text(f"{STORE}\n", encoding="utf-8")
    topic = kafka.topic()
    send(kafka, topic, [{"id": 7}])
    (folder / "pipelines" / "blog.py").write_text(PIPELINE.replace("TOPIC", topic))
    settings = SETTINGS.format(
        database=database, broker=kafka.bootstrap, store=address, file=keys / "store", events=events.as_uri()
    )
    (folder / "lakewright.toml").write_text(settings)
    return Blog(folder, events, store)


@pytest.mark.classic_only("looks at what Spark itself writes down, and a server writes elsewhere")
def test_no_byte_of_a_secret_is_left_by_a_run_that_fails_and_tells_of_it(blog: Blog) -> None:
    run = blog.lakewright("run", "--debug")
    looks = {words: blog.lakewright(*words) for words in (("status", "--json"), ("status",), ("plan",), ("doctor",))}
    assert run.returncode == 1, run.stderr.decode()
    assert [one.stderr.decode() for one in looks.values() if one.returncode] == []

    left = list(blog.left())
    for words, done in [(("run",), run), *looks.items()]:
        left += [(f"stdout of {words}", done.stdout), (f"stderr of {words}", done.stderr)]
    assert [place for place, found in left for needle in NEEDLES if needle in found] == []

    # What was searched is not empty: each secret was used, and each place has told of it.
    said = run.stderr.decode()
    assert all(words in said for words in ("I print ***", "I log '***' and [\"***\"]", "Traceback"))
    assert "cannot log in as blog:*** with ***, hidden ***" in said
    status = json.loads(looks["status", "--json"].stdout)
    taken = ("raw_visits", "read_by_spark", "from_topic", "streamed")
    assert [one["state"] for one in status["datasets"] if one["name"] in taken] == ["ok"] * 4
    assert "the password ***" in said
    assert any(place == "table steps" and b"with ***, hidden ***" in found for place, found in left)
    seen = {file.name: file.read_bytes() for file in (blog.folder / "seen").iterdir()}
    assert seen["hidden"].decode() == sha256(SPARK.encode()).hexdigest()
    assert b"spark.redaction.regex" in seen["command line"] or sys.platform != "linux"
    events = b"".join(found for place, found in left if place.startswith(str(blog.events)))
    assert b'"spark.hadoop.blog.hidden":"*********(redacted)"' in events
    assert b'"blog.hidden":"*********(redacted)"' in events
    output = (blog.folder / ".lakewright" / "logs" / "spark-output.log").read_bytes()
    assert b"a worker prints ***" in output
    for told in (b"a worker cannot log in with ***", b'column word: \\"***\\"'):
        assert told in events, "an error of a worker that Spark has noted"
    assert b"secret://env/BLOG_DB_PASSWORD" in looks[("doctor",)].stdout
