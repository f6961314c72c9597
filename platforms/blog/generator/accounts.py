"""Adding up what the files counted to the truth of the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from platforms.blog.generator.lines import FAULTS
from platforms.blog.generator.recipe import Recipe
from platforms.blog.generator.reference import COUNTRIES, PAGES
from platforms.blog.generator.tally import Kept, Tally
from platforms.blog.generator.truth import DeliveryTruth, EventTruth, LateDeliveryTruth, Truth, UsersTruth

__all__ = ["add_up"]


def add_up(recipe: Recipe, users: Mapping[str, UsersTruth], tallies: Sequence[Tally]) -> Truth:
    """The truth of a set from the tallies of all its files, in any order."""
    delivered: list[list[Tally]] = [[] for _ in recipe.dates]
    held_back: list[list[Tally]] = [[] for _ in recipe.dates]
    for tally in tallies:
        (held_back if tally.held_back else delivered)[tally.day].append(tally)
    days = range(recipe.days)
    return Truth(
        recipe=recipe,
        users=dict(users),
        deliveries={recipe.dates[day]: _delivery(recipe, day, delivered[day]) for day in days},
        late_delivery={recipe.dates[day]: _late_delivery(day, held_back[day]) for day in days},
        events={recipe.dates[day]: _event(recipe, day, delivered, held_back[day]) for day in days},
    )


def _delivery(recipe: Recipe, day: int, files: Sequence[Tally]) -> DeliveryTruth:
    faults = _faults(files)
    # At most the day itself and the two before it, oldest first.
    kept = {event_day: _kept(files, event_day) for event_day in range(max(0, day - 2), day + 1)}
    return DeliveryTruth(
        files=len(files),
        lines=sum(tally.lines for tally in files),
        **{fault: faults[fault] for fault in FAULTS},
        duplicates=faults["duplicates"],
        on_time=kept[day].rows,
        late={recipe.dates[event_day]: rows.rows for event_day, rows in kept.items() if event_day < day and rows.rows},
        kept=sum(rows.rows for rows in kept.values()),
        unknown_user=sum(rows.unknown_user for rows in kept.values()),
    )


def _late_delivery(day: int, files: Sequence[Tally]) -> LateDeliveryTruth:
    return LateDeliveryTruth(
        files=len(files),
        lines=sum(tally.lines for tally in files),
        unknown_user=_kept(files, day).unknown_user,
    )


def _event(recipe: Recipe, day: int, delivered: Sequence[Sequence[Tally]], held_back: Sequence[Tally]) -> EventTruth:
    # Faults and duplicates are never late: those of an event day came on that day.
    faults = _faults(delivered[day])
    by_delivery = {arrival: _kept(delivered[arrival], day) for arrival in range(day, min(day + 3, recipe.days))}
    kept = Kept()
    for rows in by_delivery.values():
        kept = kept.plus(rows)
    after = kept.plus(_kept(held_back, day))
    return EventTruth(
        lines=kept.rows + faults["missing_id"] + faults["bad_page"] + faults["duplicates"],
        missing_id=faults["missing_id"],
        bad_page=faults["bad_page"],
        duplicates=faults["duplicates"],
        on_time=by_delivery[day].rows,
        late=kept.rows - by_delivery[day].rows,
        kept=kept.rows,
        kept_by_delivery={recipe.dates[arrival]: rows.rows for arrival, rows in by_delivery.items() if rows.rows},
        unknown_user=kept.unknown_user,
        pages=_by_page(kept),
        countries=_by_country(kept),
        kept_after_late=after.rows,
        unknown_user_after_late=after.unknown_user,
        pages_after_late=_by_page(after),
        countries_after_late=_by_country(after),
    )


def _faults(files: Sequence[Tally]) -> Counter[str]:
    faults: Counter[str] = Counter()
    for tally in files:
        faults.update(tally.faults)
    return faults


def _kept(files: Sequence[Tally], event_day: int) -> Kept:
    kept = Kept()
    for tally in files:
        if event_day in tally.kept:
            kept = kept.plus(tally.kept[event_day])
    return kept


def _by_page(kept: Kept) -> dict[str, int]:
    """Only what occurs, as a GROUP BY would show it."""
    return {page.page: rows for page, rows in zip(PAGES, kept.pages, strict=True) if rows}


def _by_country(kept: Kept) -> dict[str, int]:
    names = (*COUNTRIES, "unknown")
    return {name: rows for name, rows in zip(names, kept.countries, strict=True) if rows}
