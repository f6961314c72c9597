"""One real session in a child process (a JVM's standard output cannot be watched from inside)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lakewright.errors import ConfigurationError
from lakewright.runtime.session import check_session
from lakewright.runtime.settings import Target

SCRIPT = """
import json, os, signal, sys
from pathlib import Path
def mine(number, frame): raise SystemExit(7)
signal.signal(signal.SIGINT, mine)
from lakewright.runtime.doctor import checks
from lakewright.runtime.session import local_session, stop_session
from lakewright.runtime.settings import Settings, Target

target = Target.at(Path("a project"), master="local[2]", fast_start=True, driver_memory="1g",
                   spark={"sql.shuffle.partitions": 5, "spark.my.own": "secret://env/MY_OWN"})
spark = local_session(target, "test")
seen = {"again": local_session(target) is spark, "handler": signal.getsignal(signal.SIGINT) is mine}
for key in ("spark.sql.shuffle.partitions", "spark.sql.session.timeZone", "spark.app.name"):
    seen[key] = spark.conf.get(key)
from pyspark import SparkContext
seen["jvm ignores ctrl-c"] = any(
    line.startswith("SigIgn:") and int(line.split()[1], 16) & 2
    for line in Path(f"/proc/{SparkContext._gateway.proc.pid}/status").read_text().splitlines()
) if Path("/proc/self/status").exists() else True
seen["jvm zone"] = spark.sql("SELECT java_method('java.util.TimeZone', 'getDefault')").first()[0]
spark.range(3).write.format("delta").save("a project/table")
try:
    spark.sql("ALTER TABLE delta.`a project/none` SET TBLPROPERTIES ('a'='b')")
except Exception as error:
    seen["error"] = type(error).__module__
def version_of_worker(frames):
    import sys
    for frame in frames:
        yield frame.assign(id=sys.version_info[1])
workers = spark.range(1).mapInPandas(version_of_worker, "id long")
seen["python"] = workers.first()[0]
value = spark.sparkContext.getConf().get("spark.my.own")
seen["secret"] = value
command_line = Path(f"/proc/{SparkContext._gateway.proc.pid}/cmdline")
seen["command line"] = command_line.read_text(errors="replace") if command_line.exists() else ""
seen["redacted"] = spark.sparkContext.getConf().get("spark.redaction.regex")
options = getattr(getattr(spark._jvm, "org.apache.spark.internal.config.package$"), "MODULE$")
seen["redacted by default"] = options.SECRET_REDACTION_PATTERN().defaultValueString()
def fail(frames):
    raise ValueError(f"cannot log in with {value}")
    yield
try:
    spark.range(1).mapInPandas(fail, "id long").first()
except Exception as error:
    seen["failure of a worker"] = str(error)
stop_session(spark)
settings = Settings(file=Path("lakewright.toml"), name="x", pipelines=(), target=target, targets={})
check = checks(settings, deep=True)[-1]
seen["doctor"] = [check.state, check.detail]
Path("seen.json").write_text(json.dumps(seen))
"""


SECRET = 'Sp4rkSecret/{$}%m "é'


@dataclass(frozen=True)
class Seen:
    values: dict[str, Any]
    output: str
    folder: Path


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("session")
    source = Path(__file__).parents[2] / "src"
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(source),
            "TZ": "Asia/Tokyo",
            "PYSPARK_PYTHON": "/nowhere/python",
            "MY_OWN": SECRET,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    file = folder / "seen.json"
    assert file.exists(), ended.stdout
    return Seen(json.loads(file.read_text()), ended.stdout, folder)


def test_nothing_of_spark_reaches_the_terminal(seen: Seen) -> None:
    assert seen.output == ""


def test_the_log_is_in_the_project_and_the_current_folder_stays_clean(seen: Seen) -> None:
    assert (seen.folder / "a project" / ".lakewright" / "logs" / "spark.log").stat().st_size > 0
    assert sorted(entry.name for entry in seen.folder.iterdir()) == ["a project", "seen.json"]


def test_session_and_jvm_speak_utc_wherever_the_machine_is(seen: Seen) -> None:
    assert seen.values["spark.sql.session.timeZone"] == "UTC"
    assert '"UTC"' in seen.values["jvm zone"]


def test_a_setting_of_the_target_wins_over_the_tuned_default(seen: Seen) -> None:
    assert seen.values["spark.sql.shuffle.partitions"] == "5"


def test_asking_again_returns_the_running_session(seen: Seen) -> None:
    assert seen.values["again"] is True


def test_an_interrupt_reaches_the_callers_own_handler_and_not_the_jvm(seen: Seen) -> None:
    assert seen.values["handler"] is True
    assert seen.values["jvm ignores ctrl-c"] is True


def test_python_workers_run_under_the_same_python(seen: Seen) -> None:
    assert seen.values["python"] == sys.version_info[1]


def test_a_secret_setting_reaches_spark_but_neither_the_command_line_nor_the_log(seen: Seen) -> None:
    assert seen.values["secret"] == SECRET
    assert "Sp4rkSecret" in seen.values["failure of a worker"]  # so that the log has something to hide
    log = (seen.folder / "a project" / ".lakewright" / "logs" / "spark.log").read_text()
    assert "cannot log in with ***" in log
    assert "Sp4rkSecret" not in log + seen.values["command line"]
    assert seen.values["redacted"].startswith(seen.values["redacted by default"] + "|")
    assert seen.values["redacted"].endswith(r"|spark\.my\.own")


def test_errors_come_typed(seen: Seen) -> None:
    assert seen.values["error"].startswith(("pyspark.errors", "delta.exceptions"))


def test_the_deep_doctor_writes_reads_and_tidies_up(seen: Seen) -> None:
    assert seen.values["doctor"][0] == "ok", seen.values["doctor"][1]
    lake = Path(Target.at(seen.folder / "a project").lake)
    assert not lake.exists() or list(lake.iterdir()) == []


class FakeSession:
    def __init__(self, zone: str) -> None:
        self.conf = {"spark.sql.session.timeZone": zone}


def test_a_session_in_another_time_zone_is_refused_with_the_cure() -> None:
    with pytest.raises(ConfigurationError, match=r"Europe/Berlin.*spark\.conf\.set"):
        check_session(FakeSession("Europe/Berlin"))  # type: ignore[arg-type]


@pytest.mark.parametrize("zone", ["UTC", "Etc/UTC"])
def test_a_session_in_utc_is_handed_back(zone: str) -> None:
    session = FakeSession(zone)
    assert check_session(session) is session  # type: ignore[arg-type, comparison-overlap]
