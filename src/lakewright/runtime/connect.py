"""Sessions of a Spark Connect server (``sc://HOST:PORT``): reached, checked, and refused with the cure.

Guarantee:
    A session from here has been answered by a server of the client's own Spark release that knows Delta, and speaks
    UTC. A server that does not answer is told of within seconds, where PySpark would try for ten minutes. No message
    shows a parameter of the address, and a token is masked in what others write, wherever it was given. The server
    notes the requests of such a session without the secrets among their options.
"""

from __future__ import annotations

import os
import re
import warnings
from typing import TYPE_CHECKING, Any

from lakewright.errors import ConfigurationError, LakewrightError, TargetError
from lakewright.masking import remember
from lakewright.runtime.secret_settings import TEXT_REDACTION, text_redaction
from lakewright.runtime.settings import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "DELTA_SETTINGS",
    "connect_session",
    "is_connect",
    "is_on_this_machine",
    "shown_master",
]

DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""From here PySpark takes the token where the address gives none."""
_PACKAGES = "`lakewright spark packages` prints the jars and settings that it needs."
# The first answer is waited for so long (3 s); a server that goes away in the middle of a run, a minute.
_FIRST: dict[str, Any] = {"max_retries": 4, "initial_backoff": 200, "backoff_multiplier": 2.0, "max_backoff": 2000}
_LATER: dict[str, Any] = {"max_retries": 18, "initial_backoff": 100, "backoff_multiplier": 2.0, "max_backoff": 5000}


def is_connect(master: str) -> bool:
    """Whether Spark is reached through a Connect server."""
    return master.startswith("sc://")


def is_on_this_machine(master: str) -> bool:
    """Whether Spark runs here, so that it sees the same folders.

    >>> is_on_this_machine("sc://127.0.0.1:15002/;token=x"), is_on_this_machine("sc://spark.example.com")
    (True, False)
    """
    return master.startswith("local") or re.match(r"sc://(localhost|127\.0\.0\.1|\[::1\])([:/;]|$)", master) is not None


def shown_master(master: str) -> str:
    """The address for people, without its parameters.

    >>> shown_master("sc://spark.example.com:15002/;token=abc;use_ssl=true")
    'sc://spark.example.com:15002'
    """
    return "sc://" + re.split(r"[/;]", master[5:], maxsplit=1)[0] if is_connect(master) else master


def connect_session(target: Target, settings: dict[str, str], secret: list[str]) -> SparkSession:
    """A new session on the target's server, with these settings; the ``secret`` keys of options are hidden there."""
    remember(os.environ.get(_TOKEN, ""))
    address = target.reveal_master()
    try:
        from pyspark.sql import SparkSession
        from pyspark.sql.connect.client.retries import DefaultPolicy

        # Without settings, which would be sent at once, with PySpark's own patience.
        session: Any = SparkSession.builder.remote(address).create()
    except ImportError as error:  # the Connect client's own dependencies
        raise ConfigurationError(
            f"{shown_master(target.master)} needs the Spark Connect client, which is not installed.",
            hint="Run: pip install 'lakewright[connect]'",
        ) from error
    except ValueError:
        raise ConfigurationError(
            f"'{shown_master(target.master)}', the master of the target '{target.name}', is no address of a Spark "
            "Connect server. Nothing was started.",
            hint="Write it as sc://HOST:PORT, with parameters as in sc://HOST:PORT/;use_ssl=true",
        ) from None  # the cause repeats the address, and the token in it
    try:
        session.client.set_retry_policies([DefaultPolicy(**_FIRST)])
        _refuse_other_version(_first_answer(session, target), target)
        _refuse_without_delta(session, f"The Spark Connect server at {shown_master(target.master)}")
        own = settings.get(TEXT_REDACTION) or session.conf.get(TEXT_REDACTION, None)
        for name, value in {**settings, TEXT_REDACTION: text_redaction(secret, own)}.items():
            session.conf.set(name, value)
    except BaseException:
        session.client.set_retry_policies([])
        session.stop()
        raise
    session.client.set_retry_policies([DefaultPolicy(**_LATER)])
    found: SparkSession = session
    return found


def _refuse_without_delta(session: SparkSession, whose: str) -> None:
    """Delta is set up when a Spark starts, and cannot be brought in by a client."""
    missing = [name for name, value in DELTA_SETTINGS.items() if value not in (session.conf.get(name, None) or "")]
    if missing:
        wanted = "\n".join(f"  {name}={DELTA_SETTINGS[name]}" for name in missing)
        raise ConfigurationError(
            f"{whose} does not know Delta Lake: {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set there. Nothing was started.",
            hint=f"Start it again with Delta's jars and\n{wanted}\n{_PACKAGES}",
        )


def _first_answer(session: Any, target: Target) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "retries exceeded": the error says it
            version: str = session.version
    except Exception as error:
        raise _no_answer(error, target) from error
    return version


def _no_answer(error: Exception, target: Target) -> LakewrightError:
    shown, text = shown_master(target.master), str(error)
    if any(word in text for word in ("UNAUTHENTICATED", "PERMISSION_DENIED", "Invalid authentication")):
        return ConfigurationError(
            f"The Spark Connect server at {shown} refused us: the token is missing or wrong. Nothing was started.",
            hint=f"Give it as a parameter of 'master', ;token=secret://env/NAME, or in the environment, as {_TOKEN}.",
        )
    if "UNIMPLEMENTED" in text:
        return ConfigurationError(
            f"Whoever answers at {shown} is no Spark Connect server. Nothing was started.",
            hint=f"Correct 'master' in the target '{target.name}'; the usual port is 15002.",
        )
    return TargetError(
        f"No Spark Connect server answers at {shown}. Nothing was started.",
        hint=f"Start it, or correct 'master' in the target '{target.name}'. `lakewright services up connect` starts "
        f"one on this machine. {_PACKAGES}",
    )


def _refuse_other_version(server: str, target: Target) -> None:
    from pyspark import __version__ as client

    if server.split(".")[:2] != client.split(".")[:2]:
        raise ConfigurationError(
            f"The Spark Connect server at {shown_master(target.master)} runs Spark {server}, and Lakewright needs "
            f"Spark {client}, which it has here. Nothing was started.",
            hint=f"Start a server of Spark {client}: what it writes with another release was never tested. {_PACKAGES}",
        )
