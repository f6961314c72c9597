"""The truth about the generated data: exact counts by delivery and by event day, as objects and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from platforms.blog.generator.lines import FAULTS
from platforms.blog.generator.recipe import FaultShares, GeneratorError, Recipe

__all__ = ["DeliveryTruth", "EventTruth", "LateDeliveryTruth", "Truth", "UsersTruth", "read_truth"]

FORMAT = 1


@dataclass(frozen=True, slots=True)
class UsersTruth:
    """The users file of a day: ``lines`` = ``new`` + ``changed``."""

    lines: int
    new: int
    changed: int


@dataclass(frozen=True, slots=True)
class DeliveryTruth:
    """The visits delivered on one day.

    ``lines`` = ``malformed`` + ``bad_time`` + ``future_time`` + ``missing_id`` + ``bad_page``
    + ``duplicates`` + ``kept``; ``kept`` = ``on_time`` + all of ``late`` (by event day), and
    ``unknown_user`` are some of the kept.
    """

    files: int
    lines: int
    malformed: int
    bad_time: int
    future_time: int
    missing_id: int
    bad_page: int
    duplicates: int
    on_time: int
    late: dict[str, int]
    kept: int
    unknown_user: int


@dataclass(frozen=True, slots=True)
class LateDeliveryTruth:
    """What is held back of one event day: all its lines are sound, and no other delivery has them."""

    files: int
    lines: int
    unknown_user: int


@dataclass(frozen=True, slots=True)
class EventTruth:
    """The visits of one event day, over all deliveries; ``…_after_late`` count what was held back as well.

    ``kept`` = ``on_time`` + ``late`` = all of ``kept_by_delivery``, ``pages`` or ``countries``; each kept
    row has a ``visit_id`` of its own. ``lines`` = ``kept`` + ``missing_id`` + ``bad_page`` + ``duplicates``.
    """

    lines: int
    missing_id: int
    bad_page: int
    duplicates: int
    on_time: int
    late: int
    kept: int
    kept_by_delivery: dict[str, int]
    unknown_user: int
    pages: dict[str, int]
    countries: dict[str, int]
    kept_after_late: int
    unknown_user_after_late: int
    pages_after_late: dict[str, int]
    countries_after_late: dict[str, int]


DayTruth = UsersTruth | DeliveryTruth | LateDeliveryTruth | EventTruth


@dataclass(frozen=True, slots=True)
class Truth:
    """Everything that is known about a generated set, by day as ISO text."""

    recipe: Recipe
    users: dict[str, UsersTruth]
    deliveries: dict[str, DeliveryTruth]
    late_delivery: dict[str, LateDeliveryTruth]
    events: dict[str, EventTruth]

    @property
    def totals(self) -> dict[str, int]:
        """The sums over all deliveries, and what the late delivery adds."""
        counts = ("files", "lines", *FAULTS, "duplicates", "on_time", "kept", "unknown_user")
        totals = {name: sum(getattr(day, name) for day in self.deliveries.values()) for name in counts}
        totals["late"] = sum(sum(day.late.values()) for day in self.deliveries.values())
        totals["late_delivery"] = sum(day.lines for day in self.late_delivery.values())
        totals["kept_after_late"] = totals["kept"] + totals["late_delivery"]
        return totals

    def write(self, path: Path) -> None:
        recipe = self.recipe
        content = {
            "format": FORMAT,
            "options": {
                "visits": recipe.visits,
                "days": recipe.days,
                "start": recipe.start.isoformat(),
                "seed": recipe.seed,
                "shares": asdict(recipe.shares),
            },
            "totals": self.totals,
            **{name: _as_json(getattr(self, name)) for name in ("users", "deliveries", "late_delivery", "events")},
        }
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_truth(out: Path | str) -> Truth:
    """Read the ``truth.json`` of a generated folder."""
    path = Path(out) / "truth.json"
    if not path.is_file():
        raise GeneratorError(f"There is no generated data in {out}: {path} is missing.", hint="Generate it first.")
    content = json.loads(path.read_text(encoding="utf-8"))
    if content["format"] != FORMAT:
        raise GeneratorError(
            f"{path} has format {content['format']}, this version reads {FORMAT}.",
            hint="Generate the data again.",
        )
    options = content["options"]
    return Truth(
        recipe=Recipe(
            visits=options["visits"],
            days=options["days"],
            start=date.fromisoformat(options["start"]),
            seed=options["seed"],
            shares=FaultShares(**options["shares"]),
        ),
        users={day: UsersTruth(**counts) for day, counts in content["users"].items()},
        deliveries={day: DeliveryTruth(**counts) for day, counts in content["deliveries"].items()},
        late_delivery={day: LateDeliveryTruth(**counts) for day, counts in content["late_delivery"].items()},
        events={day: EventTruth(**counts) for day, counts in content["events"].items()},
    )


def _as_json(by_day: Mapping[str, DayTruth]) -> dict[str, dict[str, object]]:
    return {day: asdict(counts) for day, counts in by_day.items()}
