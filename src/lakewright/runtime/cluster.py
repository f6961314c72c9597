"""Clusters: the settings of a driver that works for one, and what can be checked without reaching it.

Guarantee:
    On a cluster only what Delta needs is set, and that the driver, which runs here (deploy mode ``client``), is quiet;
    memory, cores, shuffles and everything else are the cluster's. `setup_checks` starts nothing, asks nobody, and
    names for each thing that is missing the setting or variable that cures it.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from lakewright.errors import ConfigurationError
from lakewright.runtime.check import Check
from lakewright.runtime.connect import is_connect, is_on_this_machine, shown_master
from lakewright.runtime.jars import ensure_jars
from lakewright.runtime.settings import Target

__all__ = ["cluster_checks", "cluster_settings", "refuse_incomplete", "setup_checks"]

LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
CONNECT_PORT = 15002
STANDALONE_PORT = 7077
_IMAGES = ("spark.kubernetes.container.image", "spark.kubernetes.executor.container.image")
_ACCOUNTS = (
    "spark.kubernetes.authenticate.executor.serviceAccountName",
    "spark.kubernetes.authenticate.driver.serviceAccountName",
)
_MASTERS = "local[*], spark://HOST:7077, yarn, k8s://https://HOST:443 or sc://HOST:15002"


def cluster_settings(target: Target, app_name: str, delta: Mapping[str, str]) -> dict[str, str]:
    """The settings of a driver on this machine that works for the target's cluster."""
    spark = target.spark
    options = [
        f"-Dlog4j2.configurationFile={LOG_CONFIGURATION.as_uri()}",
        f"-Dlakewright.logs={target.state / 'logs'}",
    ]
    quoted = " ".join(f'"{option}"' if " " in option else option for option in options)
    own = {
        "spark.master": target.master,
        "spark.app.name": app_name,
        "spark.submit.deployMode": "client",
        "spark.ui.showConsoleProgress": "false",
    }
    joined = {
        "spark.sql.extensions": _joined(",", delta["spark.sql.extensions"], spark.get("spark.sql.extensions")),
        "spark.driver.extraJavaOptions": _joined(" ", quoted, spark.get("spark.driver.extraJavaOptions")),
    }
    if not _brings_delta(target):
        joined["spark.jars"] = _joined(",", *map(str, ensure_jars()), spark.get("spark.jars"))
    return {**delta, **own, **spark, **joined}


def refuse_incomplete(target: Target) -> None:
    """Refuse a target that cannot work as it stands, before anything is started."""
    failed = [check for check in setup_checks(target) if check.state == "fail"]
    if failed:
        raise ConfigurationError(
            "\n".join(f"The target '{target.name}': {check.detail}." for check in failed) + " Nothing was started.",
            hint="\n".join(check.cure for check in failed if check.cure),
        )


def cluster_checks(target: Target) -> list[Check]:
    """What `doctor` says about a target whose Spark runs elsewhere; tries whether its server answers."""
    found = setup_checks(target)
    if not target.is_local and not any(check.state == "fail" for check in found):
        found += _answering(target)
    return found


def setup_checks(target: Target, environ: Mapping[str, str] | None = None) -> list[Check]:
    """What the settings of a target alone tell; nothing for a local one."""
    env = os.environ if environ is None else environ
    if target.is_local:
        return []
    master = target.master
    if master == "yarn":
        found = [_yarn(env)]
    elif master.startswith("k8s://"):
        found = _kubernetes(target)
    elif master.startswith("spark://") or is_connect(master):
        found = []
    else:
        return [Check("Master", "fail", f"'{master}' is no master that is known", f"Write it as one of {_MASTERS}.")]
    if not is_connect(master):
        found += [check for check in (_deploy_mode(target),) if check is not None]
    return [*found, *_shared_lake(target)]


def _yarn(env: Mapping[str, str]) -> Check:
    cure = "Set HADOOP_CONF_DIR to the folder with the cluster's core-site.xml and yarn-site.xml."
    name = next((name for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR") if env.get(name)), None)
    if name is None:
        return Check("YARN", "fail", "neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set", cure)
    folder = Path(env[name])
    try:
        files = {entry.name for entry in folder.iterdir()}
    except OSError as error:
        return Check("YARN", "fail", f"{name} = {folder} cannot be read: {error.strerror}", cure)
    missing = sorted({"core-site.xml", "yarn-site.xml"} - files)
    if missing:
        return Check("YARN", "fail", f"{name} = {folder} has no {' and no '.join(missing)}", cure)
    unreadable = [file for file in ("core-site.xml", "yarn-site.xml") if not os.access(folder / file, os.R_OK)]
    if unreadable:
        return Check(
            "YARN", "fail", f"{folder / unreadable[0]} cannot be read", f"Give yourself read rights on {folder}."
        )
    return Check("YARN", "ok", f"{name} = {folder}")


def _kubernetes(target: Target) -> list[Check]:
    spark, found = target.spark, []
    if not re.match(r"k8s://(https?://)?[^/:]+(:\d+)?/?$", target.master):
        found.append(
            Check("Kubernetes", "fail", f"'{target.master}' is no API server", "Write it as k8s://https://HOST:PORT.")
        )
    image = next((spark[name] for name in _IMAGES if spark.get(name)), None)
    if image is None:
        cure = f'Set {_IMAGES[0]} = "REGISTRY/NAME:TAG", an image of Spark 4.2.0 with Python.'
        found.append(Check("Image", "fail", f"{_IMAGES[0]} is not set", cure))
    else:
        found.append(Check("Image", "ok", image))
    if not any(spark.get(name) for name in _ACCOUNTS):
        detail = "no service account is named: executors run as the namespace's default one"
        found.append(Check("Service account", "warn", detail, f"Set {_ACCOUNTS[0]}."))
    if not spark.get("spark.driver.host"):
        detail = "spark.driver.host is not set: executors must reach the driver, which runs here, by that name"
        found.append(Check("Driver host", "warn", detail, "Set it to a name or address that pods can reach."))
    return [*found, *_jars_in_the_image(target)]


def _jars_in_the_image(target: Target) -> list[Check]:
    """``local://`` names a file of the image; the driver, which runs here, needs it under the same path."""
    named = [jar.strip() for jar in target.spark.get("spark.jars", "").split(",") if jar.strip()]
    here = [jar.removeprefix("local://") for jar in named if jar.startswith("local://")]
    absent = [path for path in here if not Path(path).is_file()]
    if absent:
        cure = "Put it there, or leave spark.jars out: then the driver hands Lakewright's own jars to the executors."
        return [Check("Jars", "fail", f"the driver has no {absent[0]}, which spark.jars names as local://", cure)]
    return []


def _deploy_mode(target: Target) -> Check | None:
    mode = target.spark.get("spark.submit.deployMode", "client")
    if mode == "client":
        return None
    cure = "Leave spark.submit.deployMode out, and run the command itself where the driver should be."
    return Check("Deploy mode", "fail", f"'{mode}': the driver runs inside the lakewright command", cure)


def _shared_lake(target: Target) -> list[Check]:
    folder = target.lake_path
    if folder is None or is_on_this_machine(target.master):
        return []
    detail = f"{folder} is a folder: Spark's driver and workers must all see it under this path"
    return [Check("Shared lake", "warn", detail, "Mount it on every machine, or set 'lake' to an object store.")]


def _answering(target: Target) -> list[Check]:
    places = re.match(r"(?:sc|spark)://([^/;]+)", target.master)
    if places is None:
        return []
    shown = shown_master(target.master)
    usual = CONNECT_PORT if is_connect(target.master) else STANDALONE_PORT
    for place in places.group(1).split(","):
        host, _, port = place.rpartition(":") if re.search(r":\d+$", place) else (place, "", "")
        try:
            socket.create_connection((host.strip("[]"), int(port or usual)), timeout=3).close()
        except OSError:
            continue
        return [Check("Spark", "ok", f"{shown} answers")]
    start = "`lakewright services up connect` starts one here." if is_connect(target.master) else "Start its master."
    return [Check("Spark", "fail", f"{shown} does not answer", f"{start} Or correct 'master' in the target.")]


def _brings_delta(target: Target) -> bool:
    """Whether the target names Delta's jar itself, such as one that lies in its image."""
    named = target.spark.get("spark.jars", "") + target.spark.get("spark.jars.packages", "")
    return "delta-spark_" in named


def _joined(separator: str, *parts: str | None) -> str:
    return separator.join(part for part in parts if part)
