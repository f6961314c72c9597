from __future__ import annotations

import pytest

from lakewright.errors import ConfigurationError, UnknownNameError
from lakewright.model.connections import Connection, Connections, ServiceConnection
from lakewright.model.secrets import Secret

DB = Connection("blog_db", "postgresql://blog@db:5432/blog", password=Secret("secret://env/BLOG_DB_PASSWORD"))
BROKER = Connection("broker", "kafka://one:9092,two:9092")


def test_a_connection_is_found_by_its_name_and_kind() -> None:
    known = Connections({"blog_db": DB, "broker": BROKER})
    assert known.get("broker", kind="kafka", asked_by="raw_visits") is BROKER
    assert (list(known), len(known), "broker" in known, "visits" in known) == (["blog_db", "broker"], 2, True, False)
    with pytest.raises(UnknownNameError, match=r"wanted by raw_visits.*Did you mean 'blog_db'\?"):
        known.get("blogdb", kind="postgresql", asked_by="raw_visits")
    with pytest.raises(ConfigurationError, match=r"raw_visits needs .* kind kafka, .* Of the kind kafka: broker\."):
        known.get("blog_db", kind="kafka", asked_by="raw_visits")
    with pytest.raises(UnknownNameError, match=r"Known: none\. Declare it in lakewright\.toml"):
        Connections().get("blog_db", kind="postgresql", asked_by="raw_visits")


def test_a_service_is_looked_up_when_it_is_asked_for() -> None:
    asked = []

    def resolve(wanted: ServiceConnection) -> Connection:
        asked.append(wanted.service)
        return Connection(wanted.name, "kafka://127.0.0.1:4321")

    known = Connections({"local": ServiceConnection("local", "kafka")}, resolve)
    with pytest.raises(ConfigurationError, match="needs a connection of the kind postgresql"):
        known.get("local", kind="postgresql", asked_by="raw_visits")
    assert asked == []
    assert known.get("local", kind="kafka", asked_by="raw_visits").url == "kafka://127.0.0.1:4321"
    with pytest.raises(ConfigurationError, match="Give a url instead"):
        Connections(known.declared).get("local", kind="kafka", asked_by="raw_visits")
    with pytest.raises(UnknownNameError, match=r"Did you mean 'postgres'\?"):
        ServiceConnection("local", "postgre")


def test_options_are_revealed_for_the_client_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PW", "Uu77-broker")
    options = {"security.protocol": "SASL_SSL", "sasl.password": Secret("secret://env/KAFKA_PW")}
    broker = Connection("broker", "kafka://one:9092", options=options)
    assert broker.revealed_options() == {"security.protocol": "SASL_SSL", "sasl.password": "Uu77-broker"}
    assert "Uu77" not in repr(broker)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("postgresql://blog:Hunter2x@db/blog", 'password = "secret://env/BLOG_DB_PASSWORD"'),
        ("postgresql://blog:Hunter2x/y@db/blog", "holds a password"),
        ("postgresql://blog@db/blog?password=Hunter2x", "holds a password"),
        ("kafka://blog:Hunter2x@one:9092", "holds a password"),
        ("kafka://blog@one:9092", "sasl.username"),
        ("jdbc:postgresql://db/blog", "postgresql://USER@HOST"),
        ("postgressql://blog@db/blog", "Did you mean 'postgresql'?"),
        ("mysql://blog@db/blog", "no kind of connection"),
        ("db/blog", "no kind of connection"),
        ("postgresql:///blog", "names no host"),
        ("postgresql://[blog", "cannot be read"),
        ("postgresql://h:Hunter2x/db", "no port"),
        ("postgresql://a:5432,b:5433/db", "one number up to 65535"),
        ("secret://env/BLOG_DB_URL", "only its password may be one"),
    ],
)
def test_an_address_that_cannot_serve_is_refused_with_the_cure_and_not_repeated(url: str, word: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Connection("blog-db", url)
    assert word in str(caught.value)
    assert "'blog-db'" in str(caught.value)
    assert "Hunter2x" not in str(caught.value)


@pytest.mark.parametrize("key", ["sasl.password", "ssl.key.password", "sasl.jaas.config", "client.secret"])
def test_an_option_that_is_a_secret_must_be_a_reference(key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"option '{key}'") as caught:
        Connection("broker", "kafka://one:9092", options={key: "Hunter2x"})
    assert "Hunter2x" not in str(caught.value)


def test_kafka_takes_its_password_as_an_option() -> None:
    with pytest.raises(ConfigurationError, match=r'"sasl\.password" = "secret://env/KAFKA_PW"'):
        Connection("broker", "kafka://one:9092", password=Secret("secret://env/KAFKA_PW"))
