"""Kafka's errors, of librdkafka and of Spark's Java client, in words for people."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lakewright.errors import InputError, LakewrightError, TargetError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "code_of",
    "explain_kafka_error",
    "in_words",
    "is_fenced",
    "is_refused_login",
    "is_silence",
    "says_lost",
    "timed_out",
    "unknown_topic",
]

_SILENT = ("_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN", "_TIMED_OUT_QUEUE", "_MSG_TIMED_OUT", "REQUEST_TIMED_OUT")
_SILENT_JAVA = ("errors.TimeoutException", "errors.DisconnectException", "ConfigException: No resolvable bootstrap")
_UNKNOWN_TOPIC = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "UnknownTopicOrPartitionException")
_UNKNOWN_USER = ("SASL_AUTHENTICATION_FAILED", "_AUTHENTICATION", "_SSL", "SaslAuthentication", "SslAuthentication")
_NOT_ALLOWED = ("AUTHORIZATION_FAILED", "AuthorizationException")
_TOO_LARGE = ("MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "RecordTooLargeException")
_FENCED = ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
_LOST = re.compile(r"KafkaIllegalStateException|Some data may have been lost|KAFKA_DATA_LOSS|OffsetOutOfRange")


def explain_kafka_error(
    error: BaseException,
    *,
    who: str = "Kafka",
    servers: str | None = None,
    topic: str | None = None,
    effect: str = "Nothing was published.",
) -> LakewrightError | None:
    """A kind error for what Kafka, or Spark reading from it, refused; None for any other failure.

    ``effect`` says what the failure left behind.
    """
    if isinstance(error, LakewrightError):
        return None
    at = "" if servers is None else f" at {servers}"
    subject = "the topic" if topic is None else f"the topic '{topic}'"
    if _has(error, _SILENT) or _says(error, _SILENT_JAVA):
        return TargetError(
            f"{who}: no Kafka broker answers{at}. {effect}",
            hint="Is it running, and is the address right? `lakewright services status` shows the project's own.",
        )
    if _has(error, ("_RESOLVE",)):
        return TargetError(f"{who}: the host of Kafka{at} is not known. {effect}", hint="Correct the connection's url.")
    if _has(error, _UNKNOWN_TOPIC) or _says(error, _UNKNOWN_TOPIC):
        return unknown_topic(who, topic or "", (), effect=effect)
    if _has(error, _UNKNOWN_USER) or _says(error, _UNKNOWN_USER):
        return TargetError(
            f"{who}: Kafka{at} did not let us in: {_reason(error)}. {effect}",
            hint="Look at security.protocol, sasl.* and ssl.* in the options of the connection.",
        )
    if any(word in _code_text(error) for word in _NOT_ALLOWED) or _says(error, _NOT_ALLOWED):
        return TargetError(
            f"{who}: Kafka does not allow this on {subject}: {_reason(error)}. {effect}",
            hint="Reading needs READ and DESCRIBE on the topic; writing needs WRITE, DESCRIBE and DESCRIBE_CONFIGS on "
            "the topic and on the ledger, and WRITE on transactional ids that begin with 'lw:'.",
        )
    if _has(error, _TOO_LARGE) or _says(error, _TOO_LARGE):
        return TargetError(f"{who}: a message is larger than {subject} takes. {effect}")
    if _LOST.search(str(error)):
        return InputError(
            f"{who}: records of {subject} were deleted while they were being read. {effect}",
            hint="Run again: what is gone is then told by its offsets.",
        )
    if code_of(error) is not None:
        return TargetError(f"{who}: Kafka refused: {_reason(error)}. {effect}")
    return None


def unknown_topic(who: str, topic: str, known: tuple[str, ...], *, effect: str = "Nothing was read.") -> InputError:
    """The topic is not there: which name was meant, or how to make it."""
    near = did_you_mean(topic, known)
    listed = f" Topics there: {', '.join(sorted(known)[:12])}." if known else ""
    return InputError(
        f"{who}: Kafka has no topic '{topic}'.{listed} {effect}",
        hint=near or "Correct the name, or create the topic first: with how many partitions is yours to decide.",
    )


def is_fenced(error: BaseException) -> bool:
    """Whether another producer has taken this one's place."""
    return _has(error, _FENCED)


def is_silence(error: BaseException) -> bool:
    """Whether nobody answered. librdkafka says so of a broker that is down, and of one that does not let us in."""
    return _has(error, _SILENT)


def timed_out(what: str) -> Exception:
    """The cause of an error that was not librdkafka's: by it a repeat is known to be worth while."""
    from confluent_kafka import KafkaError, KafkaException

    return KafkaException(KafkaError(KafkaError._TIMED_OUT, what))


def is_refused_login(error: BaseException) -> bool:
    """Whether a broker did not accept the user, the password or the certificate."""
    return _has(error, _UNKNOWN_USER)


def says_lost(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is that records were deleted before they could be read."""
    return error is not None and (
        _LOST.search(str(error)) is not None or "were deleted while" in str(error) or says_lost(error.__cause__)
    )


def code_of(error: BaseException) -> str | None:
    """The name of librdkafka's error code; None for an error that is not its own."""
    inner = _inner(error)
    return None if inner is None else str(inner.name())


@contextmanager
def in_words(make: Callable[[BaseException], LakewrightError | None]) -> Iterator[None]:
    """Raise what ``make`` says of an error, from that error, so that a transient one is still known as such.

    A cause that ``make`` knows better, such as a refused login behind a timeout, stays.
    """
    try:
        yield
    except LakewrightError:
        raise
    except Exception as error:
        explained = make(error)
        if explained is None:
            raise
        raise explained from explained.__cause__ or error


def _inner(error: BaseException) -> Any:
    inner = error.args[0] if error.args else None
    return inner if hasattr(inner, "code") and hasattr(inner, "name") else None


def _code_text(error: BaseException) -> str:
    return code_of(error) or ""


def _has(error: BaseException, codes: tuple[str, ...]) -> bool:
    return _code_text(error) in codes


def _says(error: BaseException, words: tuple[str, ...]) -> bool:
    """For errors that come through Spark, where only the text is left; it must be about Kafka at all."""
    text = str(error)
    return "kafka" in text.lower() and _inner(error) is None and any(word in text for word in words)


def _reason(error: BaseException) -> str:
    inner = _inner(error)
    if inner is not None:
        return str(inner.str()).strip().rstrip(".")
    found = re.findall(r"org\.apache\.kafka\.common\.errors\.\w+: (.+)", str(error))
    return str(found[-1]).strip().rstrip(".") if found else "see the log of Spark"
