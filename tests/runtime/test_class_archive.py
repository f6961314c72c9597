from __future__ import annotations

from pathlib import Path

import pytest

from lakewright.runtime.class_archive import archive_file, archive_options
from lakewright.runtime.java import Java


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    monkeypatch.setenv("LAKEWRIGHT_HOME", str(tmp_path / "cache"))
    return Java(home=tmp_path / "jdk", command=tmp_path / "jdk" / "bin" / "java", version=17)


def test_without_an_archive_the_jvm_gets_no_option(java: Java) -> None:
    assert archive_options(java) == []


def test_an_archive_that_is_there_is_used(java: Java) -> None:
    archive_file(java).parent.mkdir(parents=True)
    archive_file(java).touch()
    assert f"-XX:SharedArchiveFile={archive_file(java)}" in archive_options(java)


def test_another_java_has_another_archive(java: Java) -> None:
    before = archive_file(java)
    java.home.mkdir()
    (java.home / "release").write_text('JAVA_VERSION="17.0.99"')
    assert archive_file(java) != before
