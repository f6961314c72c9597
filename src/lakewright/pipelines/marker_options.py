"""The option ``marker=`` of a dataset, and what it asks of late rows."""

from __future__ import annotations

from typing import Any

from lakewright.errors import ConfigurationError
from lakewright.model.policies import Capture, Fail, LatePolicy, Repair, Revisit
from lakewright.patterns.ingestion.readiness_marker import ReadinessMarker

__all__ = ["late_policy"]


def late_policy(name: str, options: dict[str, Any]) -> LatePolicy:
    """What happens to late rows; a marker that promises immutable slices wants them set aside, or a failure."""
    late, marker = options.pop("late", None), options.get("marker")
    if isinstance(late, Revisit) and options.get("event_time") is None:
        raise ConfigurationError(
            f"{name} has late=Revisit(...), but no event_time: without slices of event time there is nothing to look "
            "back over.",
            hint='Name the column: event_time="...".',
        )
    if marker is None:
        return late or Repair()
    if not isinstance(marker, ReadinessMarker):
        raise ConfigurationError(f"{name}: marker is a ReadinessMarker(...), not {marker!r}.")
    if options.get("mode", "batch") == "stream":
        raise ConfigurationError(
            f"{name}: a stream has no slices that could be complete, so marker says nothing.",
            hint="Give it to a step that reads the stream by event time.",
        )
    if marker.closed == "mutable":
        return late or Repair()
    if options.get("event_time") is None:
        raise ConfigurationError(
            f'{name} has closed="immutable", but no event_time: only slices of event time are ever closed.',
            hint='Name the column: event_time="...".',
        )
    if late is not None and not isinstance(late, Capture | Fail):
        raise ConfigurationError(
            f'{name} has closed="immutable", and late={type(late).__name__}() that makes closed slices again.',
            hint="Leave late out (late rows are captured), or choose Capture() or Fail().",
        )
    return late or Capture()
