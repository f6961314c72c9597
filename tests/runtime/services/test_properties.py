"""The settings that Java programs get from us, read as Java reads them: Latin-1, lists in parts at commas."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from lakewright.errors import ConfigurationError
from lakewright.runtime.services import debezium, kafka
from lakewright.runtime.services.state import Place, State

PORTS = State(ports={"port": 1, "controller": 2})


def made(folder: Path, name: str) -> Place:
    place = Place(folder / name)
    place.make()
    place.save(PORTS)
    return place


def as_java(file: Path) -> dict[str, str]:
    lines = (line.partition("=") for line in file.read_bytes().decode("latin-1").splitlines())
    return {key: unescaped(value) for key, _, value in lines}


def unescaped(value: str) -> str:
    units = re.sub(r"\\(?:u([0-9a-f]{4})|(.))", lambda one: one[2] or chr(int(one[1], 16)), value)
    return units.encode("utf-16", "surrogatepass").decode("utf-16")


def test_kafka_works_in_its_own_folder_whatever_that_is_called(tmp_path: Path) -> None:
    place = made(tmp_path / "übung,x", "kafka")
    for name in ("data.new", "data"):
        (told,) = as_java(kafka._write_properties(place, PORTS, place.folder / name))["log.dirs"].split(",")
        assert Path(os.path.normpath(place.folder / told)) == place.folder / name


def test_debezium_finds_its_plugins_and_passwords_whatever_its_folder_is_called(tmp_path: Path) -> None:
    place = made(tmp_path / "übung\\𝄞", "debezium")
    told = as_java(debezium._write_properties(place, PORTS, PORTS))
    assert Path(told["config.providers.dir.param.allowed.paths"]) == place.data / "passwords"
    assert place.folder / told["plugin.path"] == place.data / "plugins"


def test_debezium_says_so_where_a_folder_cannot_be_told_to_it(tmp_path: Path) -> None:
    place = made(tmp_path / "a,b", "debezium")
    made(tmp_path / "a,b", "kafka")
    with pytest.raises(ConfigurationError, match="a comma would end the name of the folder"):
        debezium.DebeziumService().start(place, PORTS, 0)
