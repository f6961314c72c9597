"""`make setup` makes the archive that all sessions of the suite start with; here: when it is used, and cleared."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakewright.errors import TargetError
from lakewright.runtime import class_archive
from lakewright.runtime.class_archive import archive_file, archive_options


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAKEWRIGHT_HOME", str(tmp_path))
    return tmp_path


def test_java_is_told_of_an_archive_only_where_there_is_one(home):
    assert archive_options() == []
    archive_file().parent.mkdir()
    archive_file().touch()
    assert archive_options() == [f"-XX:SharedArchiveFile={archive_file()}"]


def test_another_pyspark_has_another_archive(home, monkeypatch):
    ours = archive_file()
    monkeypatch.setattr(class_archive, "pyspark_folder", lambda: home / "other" / "pyspark")
    assert archive_file() != ours
    assert archive_file().parent == ours.parent


def test_an_archive_that_java_does_not_take_is_refused(home):
    broken = home / "broken.jsa"
    broken.write_bytes(b"no archive")
    with pytest.raises(TargetError, match="does not take the class archive"):
        class_archive._check(broken, "nothing.jar")


def test_archives_of_a_pyspark_that_is_gone_or_was_replaced_are_cleared_away(home):
    earlier = class_archive._made_for()  # the same environment, when its PySpark was another version
    for name, made_for in (("kept", f"{home}\n/java"), ("gone", f"{home}/gone\n/java"), ("earlier", earlier)):
        (home / f"{name}.jsa").touch()
        (home / f"{name}.txt").write_text(made_for)
    (home / "killed.part").touch()
    (home / "nameless.jsa").touch()
    class_archive._clear_away(home)
    assert sorted(file.name for file in home.iterdir()) == ["kept.jsa", "kept.txt"]
