"""References to secrets among the settings of a target: checked when the file is read, looked up when they are used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

from lakewright.errors import ConfigurationError
from lakewright.model.secrets import Secret, is_reference

__all__ = [
    "LOG_PROPERTY",
    "REDACTION",
    "TEXT_REDACTION",
    "check_master",
    "check_references",
    "java_pattern",
    "redaction",
    "references_of_master",
    "reveal_master",
    "reveal_spark",
    "text_redaction",
    "with_password",
]

REDACTION = "spark.redaction.regex"
"""Spark's setting for the keys whose values its pages and event log do not show."""
TEXT_REDACTION = "spark.sql.redaction.string.regex"
"""Spark's setting for what texts, such as the request that a Connect server notes, do not show. Not set by default."""
_DEFAULT = "(?i)secret|password|token|access[.]?key"
"""What Spark sets it to by itself."""
LOG_PROPERTY = "lakewright.secrets"
"""The system property of Spark's JVM from which its log knows what to mask."""
_ALWAYS = ("sasl.jaas.config", LOG_PROPERTY)
"""These hold a password, and Spark's default may not know them."""
_SECRET_PARAMETER = re.compile(r"token|password|secret|authorization|api-?key", re.IGNORECASE)
_ON_A_COMMAND_LINE = re.compile(r"JavaOptions$|^spark\.driver\.")


def check_references(store: str, store_password: str | None, spark: Mapping[str, str], *, place: str) -> None:
    """Refuse, before anything is started, what cannot be a reference; looks nothing up."""
    wanted = {f"spark.'{key}'": value for key, value in spark.items() if is_reference(value)}
    if is_reference(store):
        wanted["store"] = store
    if store_password is not None:
        wanted["store_password"] = store_password
        _check_store_password(store, place)
    for key, value in wanted.items():
        try:
            Secret(value)
        except ConfigurationError as error:
            raise ConfigurationError(f"{place}: '{key}': {error.message}", hint=error.hint) from None
    for key in spark:
        if f"spark.'{key}'" in wanted and _ON_A_COMMAND_LINE.search(key):
            raise ConfigurationError(
                f"{place}: '{key}' cannot be a secret: it belongs on the command line of a JVM, where every user of "
                "the machine can read it.",
                hint="Give the secret in a setting of its own.",
            )


def _check_store_password(store: str, place: str) -> None:
    if is_reference(store):
        return  # what it holds is seen when the store is opened
    if not store.startswith("postgres"):
        raise ConfigurationError(
            f"{place}: 'store_password' is given, but the store is a file, which takes none.",
            hint='Leave it out, or write store = "postgresql://USER@HOST/DATABASE".',
        )
    _check_address(store, place)


def _check_address(address: str, place: str) -> tuple[str, str]:
    """The two halves of an address between which a password goes."""
    head, at, tail = address.partition("@")
    user = head.partition("://")[2]
    if not at or not user or "/" in user:
        raise ConfigurationError(
            f"{place}: there is a 'store_password', but the store's address names no user.",
            hint='Write store = "postgresql://USER@HOST/DATABASE".',
        )
    if ":" in user:
        raise ConfigurationError(
            f"{place}: the store's address holds a password, and 'store_password' gives another one.",
            hint="Take it out of the address.",
        )
    return head, tail


def check_master(master: str, *, place: str) -> None:
    """Refuse a token among the parameters of a Spark Connect address that is not a reference; looks nothing up."""
    for key, value in _parameters(master):
        if is_reference(value):
            try:
                Secret(value)
            except ConfigurationError as error:
                raise ConfigurationError(f"{place}: 'master': {key}: {error.message}", hint=error.hint) from None
        elif _SECRET_PARAMETER.search(key):
            raise ConfigurationError(
                f"{place}: 'master' gives the parameter '{key}' as plain text, for everybody to read.",
                hint=f"Put it into the environment variable SPARK_TOKEN, and write {key}=secret://env/SPARK_TOKEN.",
            )


def references_of_master(master: str) -> list[str]:
    """The references among the parameters of a Spark Connect address.

    >>> references_of_master("sc://spark.example.com:443/;token=secret://env/SPARK_TOKEN;use_ssl=true")
    ['secret://env/SPARK_TOKEN']
    """
    return [value for _, value in _parameters(master) if is_reference(value)]


def reveal_master(master: str, folder: Path) -> str:
    """The address with the values of its references, for the client that is about to connect."""
    for reference in references_of_master(master):
        # The client reads the percent signs back; a bare = or ; in a token would end the parameter.
        master = master.replace(f"={reference}", f"={quote(Secret(reference, folder).reveal(), safe='')}", 1)
    return master


def _parameters(master: str) -> list[tuple[str, str]]:
    """What follows the address, as ``;key=value`` each."""
    pairs = [part.partition("=") for part in master.split(";")[1:]]
    return [(key, value) for key, _, value in pairs]


def with_password(address: str, password: Secret) -> str:
    """The store's address with its password, for the driver that is about to connect."""
    head, tail = _check_address(address, "the store")
    return f"{head}:{quote(password.reveal(), safe='')}@{tail}"


def reveal_spark(spark: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The values of the Spark settings that are references, by their keys."""
    return {key: Secret(value, folder).reveal() for key, value in spark.items() if is_reference(value)}


def redaction(keys: list[str], own: str | None = None) -> str:
    r"""``spark.redaction.regex``: the project's own or Spark's default, and the keys whose values are secrets.

    >>> print(redaction(["spark.hadoop.fs.azure.account"]))
    (?i)secret|password|token|access[.]?key|sasl\.jaas\.config|lakewright\.secrets|fs\.azure\.account
    """
    # Spark hands spark.hadoop.x to Hadoop as x, and shows that as well.
    ours = [*_ALWAYS, *(key.removeprefix("spark.hadoop.") for key in keys)]
    return "|".join([own or _DEFAULT, *(re.escape(key) for key in ours)])


def text_redaction(keys: list[str], own: str | None = None) -> str:
    r"""``spark.sql.redaction.string.regex``: what was set before, and secret options in the text of a request.

    A Connect server writes each request into its event log and its page as a text, the options of readers and writers
    included, and hides there nothing by its keys.

    >>> import re
    >>> request = 'options { key: "password"\n value: "a \\"word\\"" \n} options { key: "user"\n value: "blog" \n}'
    >>> re.findall(text_redaction([]).replace("(?i)", ""), request)
    ['key: "password"\n value: "a \\"word\\"" ']
    """
    ours = rf'key: "[^"]*(?:{redaction(keys)})[^"]*"[^"]*value: ".*'
    return ours if own is None or ours in own else f"{own}|{ours}"


def java_pattern(forms: Iterable[str]) -> str:
    r"""A regular expression of Java that finds each of the texts, of letters, digits and escapes alone.

    Log4j reads it out of a pattern of its own, in which braces and dollars would mean something.

    >>> print(java_pattern(["p{w", "ab"]))
    p\u007bw|ab
    """
    return "|".join("".join(c if c.isascii() and c.isalnum() else _escaped(c) for c in form) for form in forms)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
