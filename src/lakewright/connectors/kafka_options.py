"""One set of options for two clients: the driver asks by librdkafka, executors read by Spark's Java client.

A connection's options are written in librdkafka's names; what Java calls otherwise is translated. An option that begins
with ``spark.`` goes to Spark alone, without that prefix: for what has no counterpart, such as a Java key store.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakewright.errors import ConfigurationError

__all__ = ["driver_options", "servers_of", "spark_options"]

_SPARK_ONLY = "spark."
_SAME = ("client.id", "client.rack", "security.protocol", "ssl.endpoint.identification.algorithm")
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def servers_of(url: str) -> str:
    """The value of ``bootstrap.servers``.

    >>> servers_of("kafka://one:9092,two:9092/")
    'one:9092,two:9092'
    """
    return url.partition("://")[2].rstrip("/")


def driver_options(servers: str, options: Mapping[str, str]) -> dict[str, str | int | float | bool]:
    """The settings of librdkafka; quiet, because its errors come back to us."""
    own = {name: value for name, value in options.items() if not name.startswith(_SPARK_ONLY)}
    return {"log_level": 0, **own, "bootstrap.servers": servers}


def spark_options(servers: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options of Spark's Kafka source, which hands those with ``kafka.`` to the Java client.

    >>> spark_options("one:9092", {"security.protocol": "SSL", "linger.ms": "5", "spark.ssl.keystore.type": "PKCS12"})
    {'kafka.bootstrap.servers': 'one:9092', 'kafka.security.protocol': 'SSL', 'kafka.ssl.keystore.type': 'PKCS12'}
    """
    java = {name: options[name] for name in _SAME if name in options}
    mechanism = options.get("sasl.mechanisms") or options.get("sasl.mechanism")
    if mechanism is not None:
        java["sasl.mechanism"] = mechanism
        if "sasl.username" in options:
            java["sasl.jaas.config"] = _login(mechanism, options["sasl.username"], options.get("sasl.password", ""))
    if "ssl.ca.location" in options:
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": options["ssl.ca.location"]}
    java |= {k.removeprefix(_SPARK_ONLY): v for k, v in options.items() if k.startswith(_SPARK_ONLY)}
    return {"kafka.bootstrap.servers": servers, **{f"kafka.{name}": value for name, value in java.items()}}


def _login(mechanism: str, user: str, password: str) -> str:
    if mechanism not in _LOGIN:
        raise ConfigurationError(
            f"Kafka: the mechanism '{mechanism}' cannot be translated for Spark.",
            hint=f"Use one of {', '.join(_LOGIN)}, or give Spark its own settings: "
            '"spark.sasl.mechanism" and "spark.sasl.jaas.config".',
        )

    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return f"{_LOGIN[mechanism]} required username={quoted(user)} password={quoted(password)};"
