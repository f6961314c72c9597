"""What Spark says when a stream cannot go on from its checkpoint, told as what happened and what to do."""

from __future__ import annotations

import re

from lakewright.errors import ConfigurationError, InputError, LakewrightError

__all__ = ["explain_checkpoint_error", "is_about_state"]

_TWO_AT_WORK = ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming jobs detected", "Cannot start query with id")
_STATE_DIFFERS = (
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_INVALID_KEY_SCHEMA",
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
    "STATE_STORE_UNSUPPORTED_OPERATION",
    "StateSchemaNotCompatible",
)
_STATE_UNREADABLE = ("CANNOT_LOAD_STATE_STORE",)
_GONE = ("KAFKA_DATA_LOSS", "data may have been lost", "Some data may have been lost")


def explain_checkpoint_error(error: BaseException, path: str) -> LakewrightError | None:
    """The same in words for people; None where it has nothing to do with the checkpoint."""
    text = str(error)
    if any(word in text for word in _TWO_AT_WORK):
        return ConfigurationError(
            f"Checkpointer: another stream is at work on {path}. This one has ended; nothing of it counts.",
            hint="Each stream needs a place of its own: choose another location or version.",
        )
    if any(word in text for word in _STATE_DIFFERS):
        return ConfigurationError(
            f"Checkpointer: the state in {path} was kept by another query: its grouping, its keys, or the kind of its "
            f"state have changed. Spark says: {_first(text)}",
            hint="State survives a change of filters, of computed columns and of the sink. For this change begin with "
            "the next version of the checkpoint; `starting_offsets` tells where the old one stopped.",
        )
    if any(word in text for word in _STATE_UNREADABLE):
        return InputError(
            f"Checkpointer: the state in {path} cannot be read: a file is gone or damaged. Spark says: {_first(text)}",
            hint="Bring the folder back from a copy. Or begin with the next version of the checkpoint, at a start that "
            "you choose: records are then read again, or left out.",
        )
    if any(word in text for word in _GONE):
        return InputError(
            f"Checkpointer: records that the stream has not read yet are gone from its source (see {path}). It neither "
            "skips them nor begins anew by itself.",
            hint="If the loss is accepted, begin with the next version of the checkpoint and a start that you choose; "
            "and keep records for longer at the source.",
        )
    return None


def is_about_state(error: BaseException) -> bool:
    """Whether Spark cannot use what a stream remembers."""
    return any(word in str(error) for word in (*_STATE_DIFFERS, *_STATE_UNREADABLE))


def _first(text: str) -> str:
    named = re.search(r"\[(?:STATE_|STREAMING_|CANNOT_LOAD_)[A-Z_.]+\][^\n]*", text)
    return (named.group() if named else text.strip().split("\n")[0])[:300]
