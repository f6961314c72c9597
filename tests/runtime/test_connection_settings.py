from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from lakewright.errors import ConfigurationError
from lakewright.masking import mask
from lakewright.model.connections import Connection, ServiceConnection
from lakewright.runtime import session
from lakewright.runtime.doctor import Check, checks
from lakewright.runtime.session import spark_session
from lakewright.runtime.settings import Settings, load_settings

TWO_TARGETS = """
[connections.blog_db]
url = "postgresql://blog@dev-db/blog"
password = "secret://file/keys/db"

[connections.broker]
url = "kafka://one:9092,two:9092"
options = { security.protocol = "SASL_SSL", "sasl.password" = "secret://env/BROKER_PW", "check.crcs" = false }

[targets.dev]

[targets.prod.connections.blog_db]
url = "postgresql://blog@prod-db/blog"
"""


def read(folder: Path, text: str, target: str | None = None, **environ: str) -> Settings:
    (folder / "lakewright.toml").write_text(text, encoding="utf-8")
    return load_settings(folder, target, environ=environ)


def refused(folder: Path, text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read(folder, text)
    return str(caught.value)


def database(settings: Settings) -> Connection:
    return settings.target.connections.get("blog_db", kind="postgresql", asked_by="raw_visits")


def test_a_target_overrides_a_connection_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "db").write_text("Gh45-from-file\n")
    monkeypatch.setenv("BROKER_PW", "Gh45-from-env")
    dev, prod = read(tmp_path, TWO_TARGETS), read(tmp_path, TWO_TARGETS, "prod")
    assert database(dev).url == "postgresql://blog@dev-db/blog"
    password = database(dev).password
    assert password is not None
    assert password.reveal() == "Gh45-from-file"
    assert (database(prod).url, database(prod).password) == ("postgresql://blog@prod-db/blog", None)
    broker = prod.target.connections.get("broker", kind="kafka", asked_by="raw_visits")
    assert broker.revealed_options() == {
        "security.protocol": "SASL_SSL",
        "sasl.password": "Gh45-from-env",
        "check.crcs": "false",
    }
    assert "Gh45" not in repr(dev) + repr(prod)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[connections.db]\npasword = "x"', ["unknown key 'connections.db.pasword'", "Did you mean 'password'?"]),
        ("[targets.dev.connections.db]\nservce = 1", ["'targets.dev.connections.db.servce'", "'service'"]),
        ("[conections.db]", ["Did you mean 'connections'?"]),
        ("[connections.db]", ["'db' has neither 'url' nor 'service'"]),
        ('[connections.db]\nservice = "postgress"', ["Did you mean 'postgres'?"]),
        ('[connections.db]\nservice = "kafka"\nurl = "kafka://a:1"', ["gives 'url' too"]),
        ('[connections.db]\nurl = "postgresql://u:Hunter2x@h/d"', ["holds a password", "DB_PASSWORD"]),
        ('[connections.db]\nurl = "postgresql://u@h/d"\npassword = "Hunter2x"', ["plain text", "secret://env/DB_PAS"]),
        ('[connections.db]\nurl = "postgresql://u@h/d"\npassword = 12345678', ["valid string, and is int"]),
        ('[connections.db]\nurl = "postgresql://u@h/d"\npassword = "secret://evn/X"', ["Did you mean 'env'?"]),
        ('[targets.dev]\nstore_password = "Hunter2x"', ["the store is a file"]),
        ('[targets.dev]\nstore = "postgresql://u@h/d"\nstore_password = "Hunter2x"', ["only a reference"]),
        ('[targets.dev]\nstore = "postgresql://h/d"\nstore_password = "secret://env/X"', ["names no user"]),
        ('[targets.dev]\nstore = "postgresql://u:p@h/d"\nstore_password = "secret://env/X"', ["Take it out"]),
        ('[targets.dev]\nstore = "secret://vault/x"', ["'store'", "no kind of secret 'vault'"]),
        ('[targets.dev]\nspark."spark.x" = "secret://env/"', ["spark.x", "name of the variable is missing"]),
        ('[targets.dev]\nspark."spark.driver.extraJavaOptions" = "secret://env/X"', ["command line"]),
        (
            '[targets.dev]\nmaster = "sc://h:1/;use_ssl=true;token=Hunter2x"',
            ["'token' as plain text", "token=secret://env/"],
        ),
        ('[targets.dev]\nmaster = "sc:/h:1;x-api-key=Hunter2x"', ["'x-api-key' as plain text"]),
        ('[targets.dev]\nmaster = "sc://h:1/;token=secret://evn/X"', ["'master': token", "Did you mean 'env'?"]),
        ('[targets.dev]\nmaster = ["sc://h/;token=Hunter2x"]', ["valid string, and is list"]),
    ],
)
def test_a_wrong_table_is_refused_with_place_and_cure_and_no_value(tmp_path: Path, text: str, words: list[str]) -> None:
    said = refused(tmp_path, text)
    assert all(word in said for word in [str(tmp_path / "lakewright.toml"), *words]), said
    assert "Hunter2x" not in said
    assert "12345678" not in said


def test_the_store_is_a_reference_or_has_its_password_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_URL", "postgresql://lw:Jk22-whole@db/lw")
    whole = read(tmp_path, '[targets.dev]\nstore = "secret://env/STORE_URL"').target
    assert whole.reveal_store() == "postgresql://lw:Jk22-whole@db/lw"
    assert whole.shown_store == "secret://env/STORE_URL"
    monkeypatch.setenv("STORE_PW", "Jk22/b:side@")
    text = '[targets.dev]\nstore = "postgresql://lw@db/lw?sslmode=require"\nstore_password = "secret://env/STORE_PW"'
    settings = read(tmp_path, text)
    assert settings.target.reveal_store() == "postgresql://lw:Jk22%2Fb%3Aside%40@db/lw?sslmode=require"
    assert "Jk22" not in repr(settings) + repr(whole) + settings.target.shown_store
    trial = settings.scratch("sample").target
    assert trial.reveal_store() == f"sqlite:///{tmp_path}/.lakewright/sample/store.db"
    monkeypatch.setenv("STORE_URL", "state/runs.db")
    assert whole.reveal_store() == f"sqlite:///{tmp_path}/state/runs.db"


def test_a_variable_may_hold_the_password_of_the_store_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEWRIGHT_STORE_PASSWORD", "Jk22-itself")
    text = '[targets.dev]\nstore = "postgresql://lw@db/lw"'
    settings = read(tmp_path, text, LAKEWRIGHT_STORE_PASSWORD="Jk22-itself")
    assert settings.target.store_password == "secret://env/LAKEWRIGHT_STORE_PASSWORD"
    assert settings.target.reveal_store() == "postgresql://lw:Jk22-itself@db/lw"


def test_a_token_in_the_address_of_a_connect_server_is_a_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("grpc")
    from pyspark.sql.connect.client.core import DefaultChannelBuilder

    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "api").write_text("Gt61-of-file\n")
    (tmp_path / "keys" / "api").chmod(0o600)
    monkeypatch.setenv("SPARK_TOKEN", "Gt61/=;%t x")
    parameters = "use_ssl=true;token=secret://env/SPARK_TOKEN;x-api-key=secret://file/keys/api"
    settings = read(tmp_path, f'[targets.dev]\nmaster = "sc://127.0.0.1:1/;{parameters}"')
    target = settings.target
    channel = DefaultChannelBuilder(target.reveal_master())
    assert (channel.endpoint, channel.secure, channel.token) == ("127.0.0.1:1", True, "Gt61/=;%t x")
    assert dict(channel.metadata()) == {"x-api-key": "Gt61-of-file"}
    assert mask("refused: Gt61/=;%t x, Gt61%2F%3D%3B%25t%20x, Gt61-of-file") == "refused: ***, ***, ***"
    [found] = named("Secrets", checks(settings))
    assert found.detail == "2 found: secret://env/SPARK_TOKEN, secret://file/keys/api"
    told = repr(settings) + "".join(f"{check.detail}{check.cure}" for check in checks(settings))
    assert "Gt61" not in told
    monkeypatch.delenv("SPARK_TOKEN")
    with pytest.raises(ConfigurationError, match="SPARK_TOKEN is not set"):
        spark_session(target)
    with pytest.raises(ConfigurationError, match=r"environment, LAKEWRIGHT_MASTER: 'master' gives .*'token'"):
        read(tmp_path, "", LAKEWRIGHT_MASTER="sc://h:1/;token=Hunter2x")


def named(name: str, found: list[Check]) -> list[Check]:
    return [check for check in found if check.name == name]


def test_doctor_finds_each_reference_and_says_who_else_may_read_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BROKER_PW", raising=False)
    (tmp_path / "keys").mkdir()
    file = tmp_path / "keys" / "db"
    file.write_text("Gh45-doctor")
    file.chmod(0o644)
    settings = read(tmp_path, TWO_TARGETS)
    assert [check.state for check in named("Secrets", checks(settings))] == ["warn", "fail"]
    file.chmod(stat.S_IRUSR)
    monkeypatch.setenv("BROKER_PW", "Gh45-broker")
    [well] = named("Secrets", checks(settings))
    assert (well.state, well.detail) == ("ok", "2 found: secret://file/keys/db, secret://env/BROKER_PW")
    assert named("Secrets", checks(read(tmp_path, ""))) == []
    monkeypatch.delenv("STORE_URL", raising=False)
    [store] = named("Store", checks(read(tmp_path, '[targets.dev]\nstore = "secret://env/STORE_URL"')))
    assert (store.state, store.cure) == ("fail", "Set it where the command is started: export STORE_URL=...")


@pytest.mark.parametrize("service", ["postgres", "kafka"])
def test_a_service_that_is_not_up_names_the_command(tmp_path: Path, service: str) -> None:
    local = read(tmp_path, f'[connections.local]\nservice = "{service}"').target.connections
    kind = {"postgres": "postgresql"}.get(service, service)
    with pytest.raises(ConfigurationError, match=f"never started here.*lakewright services up {service}"):
        local.get("local", kind=kind, asked_by="raw_visits")


def test_the_settings_shown_in_the_docs_can_be_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "secrets.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    prod = read(tmp_path, shown, "prod").target
    assert {str(secret) for secret in prod.secrets} == set(re.findall(r'"(secret://[^"]+)"', shown))
    assert isinstance(read(tmp_path, shown, "dev").target.connections.declared["blog_db"], ServiceConnection)


def test_spark_hides_an_option_for_spark_alone_by_the_name_that_spark_has_for_it(tmp_path: Path) -> None:
    options = '{ "spark.ssl.keystore.key" = "secret://env/KEY", "ssl.key.password" = "secret://env/PASSWORD" }'
    settings = read(tmp_path, f'[connections.broker]\nurl = "kafka://one:9092"\noptions = {options}\n')
    pattern = re.compile(session._redaction(settings.target)["spark.redaction.regex"])
    assert pattern.search("kafka.ssl.keystore.key")
    assert pattern.search("spark.ssl.keystore.key")
    assert not pattern.search("kafka.ssl.keystore.type")
