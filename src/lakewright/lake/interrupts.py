"""Interrupting Spark work by tag, from another thread than the one that runs it.

Over Connect a session's own tags do that. In classic mode ``SparkSession.interruptTag`` knows only the tags of the
calling thread, so the context's job tags are used there: this module is the one place that touches the context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["add_tag", "clear_tags", "has_lost_java", "interrupt_tag"]


def add_tag(session: SparkSession, tag: str) -> None:
    """Mark what this thread starts from now on."""
    context = _context(session)
    if context is None:
        session.addTag(tag)
    else:
        context.addJobTag(tag)


def clear_tags(session: SparkSession) -> None:
    """Start the next piece of work without marks."""
    context = _context(session)
    if context is None:
        session.clearTags()
    else:
        context.clearJobTags()


def interrupt_tag(session: SparkSession, tag: str) -> None:
    """Stop everything with this mark, whoever started it."""
    context = _context(session)
    if context is None:
        session.interruptTag(tag)
    else:
        context.cancelJobsWithTag(tag)


def has_lost_java(session: SparkSession) -> bool:
    """Whether the Java process of a classic session has ended, for good; a Connect server may come back."""
    process = getattr(getattr(_context(session), "_gateway", None), "proc", None)
    return process is not None and process.poll() is not None


def _context(session: SparkSession) -> Any:
    try:
        return session.sparkContext
    except Exception:  # Connect has none, and says so with an error of its own
        return None
