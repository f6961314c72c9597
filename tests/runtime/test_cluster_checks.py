"""What can be said about a cluster without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakewright.errors import ConfigurationError
from lakewright.runtime import cluster
from lakewright.runtime.cluster import cluster_checks, cluster_settings, refuse_incomplete, setup_checks
from lakewright.runtime.session import DELTA
from lakewright.runtime.settings import Target, load_settings


def states(target: Target, **environ: str) -> dict[str, str]:
    found = setup_checks(target, environ)
    assert all(check.cure for check in found if check.state != "ok")
    return {check.name: check.state for check in found}


def at(folder: Path, master: str, **spark: str) -> Target:
    return Target.at(folder, name="prod", master=master, lake="s3a://b/lake", spark=spark)


def test_a_local_target_needs_none_of_this(tmp_path: Path) -> None:
    assert cluster_checks(Target.at(tmp_path)) == []


def test_yarn_needs_the_folder_with_its_two_files(tmp_path: Path) -> None:
    target, conf = at(tmp_path, "yarn"), tmp_path / "conf"
    assert states(target) == {"YARN": "fail"}
    assert states(target, HADOOP_CONF_DIR=str(conf)) == {"YARN": "fail"}
    conf.mkdir()
    (conf / "core-site.xml").touch()
    assert "yarn-site.xml" in setup_checks(target, {"YARN_CONF_DIR": str(conf)})[0].detail
    (conf / "yarn-site.xml").touch()
    assert states(target, YARN_CONF_DIR=str(conf)) == {"YARN": "ok"}


@pytest.mark.parametrize("title", ["YARN", "Kubernetes"])
def test_the_settings_that_the_docs_show_pass_all_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, title: str
) -> None:
    monkeypatch.delenv("LAKEWRIGHT_MASTER", raising=False)  # of a test run over Spark Connect
    page = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text(encoding="utf-8")
    shown = page.partition(f"\n## {title}\n")[2].partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "lakewright.toml").write_text(f'name = "shop"\n{shown}')
    target = load_settings(tmp_path, target="prod").target
    assert target.master in ("yarn", "k8s://https://kubernetes.example.com:443")
    for name in ("core-site.xml", "yarn-site.xml"):
        (tmp_path / name).touch()
    found = states(target, HADOOP_CONF_DIR=str(tmp_path))
    assert found
    assert set(found.values()) == {"ok"}


def test_kubernetes_needs_an_image_and_is_told_what_executors_need(tmp_path: Path) -> None:
    wanted = {"Image": "fail", "Service account": "warn", "Driver host": "warn"}
    assert states(at(tmp_path, "k8s://https://api.example.com:443")) == wanted
    complete = {
        "spark.kubernetes.container.image": "spark:4.2.0",
        "spark.kubernetes.authenticate.executor.serviceAccountName": "spark",
        "spark.driver.host": "driver.example.com",
    }
    assert states(at(tmp_path, "k8s://https://api.example.com:443", **complete)) == {"Image": "ok"}
    assert states(at(tmp_path, "k8s://", **complete))["Kubernetes"] == "fail"
    absent = {**complete, "spark.jars": f"local://{tmp_path}/delta-spark_4.2_2.13-4.4.0.jar"}
    assert states(at(tmp_path, "k8s://https://api.example.com", **absent))["Jars"] == "fail"
    (tmp_path / "delta-spark_4.2_2.13-4.4.0.jar").touch()
    assert states(at(tmp_path, "k8s://https://api.example.com", **absent)) == {"Image": "ok"}


@pytest.mark.parametrize("master", ["yarn", "k8s://https://api.example.com", "spark://h:7077"])
def test_the_driver_runs_here_and_nowhere_else(tmp_path: Path, master: str) -> None:
    assert states(at(tmp_path, master, **{"spark.submit.deployMode": "cluster"}))["Deploy mode"] == "fail"


def test_a_master_that_nobody_knows_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'mesos://h'.*Nothing was started\. Write it as one of local"):
        refuse_incomplete(at(tmp_path, "mesos://h"))


def test_a_folder_as_lake_is_warned_of_unless_spark_is_here(tmp_path: Path) -> None:
    assert states(Target.at(tmp_path, master="spark://h:7077")) == {"Shared lake": "warn"}
    assert states(Target.at(tmp_path, master="sc://127.0.0.1:15002")) == {}


@pytest.mark.parametrize("master", ["sc://127.0.0.1:1/;user_id=hidden", "spark://127.0.0.1:1"])
def test_doctor_says_that_nobody_answers_and_shows_no_parameter(tmp_path: Path, master: str) -> None:
    found = cluster_checks(at(tmp_path, master))[-1]
    assert (found.name, found.state) == ("Spark", "fail")
    assert "hidden" not in found.detail + str(found.cure)


def test_on_a_cluster_nothing_is_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ensure_jars", lambda: [Path("/c/delta.jar")])
    found = cluster_settings(
        at(tmp_path, "yarn", **{"spark.sql.extensions": "mine", "spark.jars": "m.jar"}), "x", DELTA
    )
    assert found["spark.sql.extensions"] == f"{DELTA['spark.sql.extensions']},mine"
    assert found["spark.jars"] == "/c/delta.jar,m.jar"
    tuned = ("shuffle", "snapshotPartitions", "memory", "cores", "scheduler", "TieredStop", "driver.host")
    assert [name for name, value in found.items() if any(word in f"{name}={value}" for word in tuned)] == []


def test_jars_that_a_target_brings_itself_are_not_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ensure_jars", lambda: pytest.fail("not needed"))
    own = {"spark.jars": "local:///opt/delta-spark_4.2_2.13-4.4.0.jar"}
    assert cluster_settings(at(tmp_path, "yarn", **own), "x", DELTA)["spark.jars"] == own["spark.jars"]
