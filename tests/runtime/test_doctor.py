from __future__ import annotations

import socket
from pathlib import Path

import pytest

from lakewright.runtime import doctor
from lakewright.runtime.doctor import Check, checks
from lakewright.runtime.settings import Settings, Target, load_settings


def settings_with(folder: Path, **options: object) -> Settings:
    target = Target.at(folder, name="dev", **options)
    file = folder / "lakewright.toml"
    return Settings(file=file, name="shop", pipelines=(), target=target, targets={"dev": target})


def named(name: str, found: list[Check]) -> Check:
    return next(check for check in found if check.name == name)


def test_outside_a_project_the_machine_is_looked_at_and_init_is_offered() -> None:
    found = checks(None)
    assert [check.name for check in found] == [
        "Python", "Java", "PySpark", "Delta", "Jars", "Time zone", "Project",
    ]  # fmt: skip
    assert named("Project", found).cure == "lakewright init NAME"


def test_a_client_of_connect_servers_needs_neither_java_nor_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_java", lambda: Check("Java", "fail", "not found", "Install it."))
    monkeypatch.setattr(doctor, "cluster_checks", lambda target: [])
    master, big = "sc://127.0.0.1:1", {"big": {"master": "sc://127.0.0.1:2"}}
    for options in ({"master": master}, {"master": master, "compute": big}):
        assert {"Java", "Jars"}.isdisjoint(check.name for check in checks(settings_with(tmp_path, **options)))
    assert named("Java", checks(settings_with(tmp_path, master="local[2]"))).state == "fail"


def test_a_healthy_project_needs_no_cure_and_looking_leaves_nothing(tmp_path: Path) -> None:
    found = checks(settings_with(tmp_path))
    assert {named(name, found).state for name in ("Store", "Lake")} <= {"ok", "warn"}  # warn: a full disk
    assert list(tmp_path.iterdir()) == []


def test_everything_that_is_not_ok_has_a_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEWRIGHT_HOME", str(tmp_path / "no-jars"))
    monkeypatch.setattr(doctor, "version", lambda package: "0.1")
    monkeypatch.setattr(doctor, "LOW_DISK_BYTES", 10**18)
    found = checks(settings_with(tmp_path))
    assert {check.name for check in found if check.state != "ok"} >= {
        "PySpark",
        "Delta",
        "Jars",
        "Store",
        "Lake",
    }
    assert all(check.cure for check in found if check.state != "ok")


def test_a_place_that_takes_no_file_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = named("Lake", checks(settings_with(tmp_path, lake=str(tmp_path / "file"))))
    assert found.state == "fail"


def test_a_store_that_does_not_answer_fails_without_showing_the_password(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers there
        store = f"postgresql+psycopg://lw:secret@127.0.0.1:{free.getsockname()[1]}/lw"
        found = named("Store", checks(settings_with(tmp_path, store=store)))
    assert found.state == "fail"
    assert "secret" not in found.detail


def test_an_object_store_without_a_log_store_is_warned_of(tmp_path: Path) -> None:
    assert named("Lake", checks(settings_with(tmp_path, lake="s3a://b/lake"))).state == "warn"
    assert named("Lake", checks(settings_with(tmp_path, lake="s3a://b/lake", logstore="X"))).state == "ok"


def test_an_upstream_is_only_looked_at(tmp_path: Path) -> None:
    (tmp_path / "lakewright.toml").write_text(
        '[targets.dev]\nupstream = "prod"\n[targets.prod]\nlake = "prod/lake"\nstore = "prod/store.db"\n'
    )
    settings = load_settings(tmp_path, environ={})
    found = named("Upstream", checks(settings))
    assert (found.state, found.cure) == ("warn", "lakewright run --target prod")
    assert not (tmp_path / "prod").exists()
    (tmp_path / "prod" / "lake" / "bronze").mkdir(parents=True)
    assert named("Upstream", checks(settings)).state == "ok"
