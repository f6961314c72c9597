from __future__ import annotations

from pathlib import Path

import pytest

from lakewright.errors import ConfigurationError
from lakewright.runtime import java
from lakewright.runtime.java import find_java


@pytest.fixture(autouse=True)
def _only_what_the_test_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "USUAL_PLACES", ())


def make_java(folder: Path, *, release: str | None, says: str = "") -> Path:
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    command.chmod(0o755)
    if release is not None:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{release}"\n')
    return folder


@pytest.mark.parametrize("version", ["17.0.15", "21"])
def test_java_home_is_taken_when_it_suits(tmp_path: Path, version: str) -> None:
    home = make_java(tmp_path / "jdk", release=version)
    found = find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert (found.home, found.version) == (home, int(version.split(".")[0]))


def test_a_wrong_java_home_does_not_hide_a_good_java_on_the_path(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", release="1.8.0_402")
    good = make_java(tmp_path / "good", release="17.0.1")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")}).home == good


def test_a_link_on_the_path_leads_to_the_real_home(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", release="17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}).home == home


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", release=None, says='openjdk version "21.0.2" 2024-01-16')
    assert find_java({"JAVA_HOME": str(home), "PATH": ""}).version == 21


def test_no_suitable_java_says_what_was_found_and_how_to_install_one(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", release="11.0.2")
    with pytest.raises(ConfigurationError) as error:
        find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(old / "bin")})
    text = str(error.value)
    for word in ["17 or 21", "Java 11", str(tmp_path / "gone"), "apt install", "brew install", "dnf install"]:
        assert word in text
