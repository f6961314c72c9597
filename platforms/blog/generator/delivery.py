"""Delivering what was generated: a day at a time, all days, or what was held back, into the landing folder.

Each file appears whole under its name, or not at all. Delivering again changes nothing: a file that is
already there with the same content keeps its time, so that no reader takes it for a new version.
"""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Collection, Iterable
from datetime import date
from pathlib import Path
from typing import Literal

from platforms.blog.generator.recipe import GeneratorError
from platforms.blog.generator.truth import read_truth

__all__ = ["deliver", "deliver_all", "deliver_late"]

How = Literal["copy", "link"]


def deliver(out: Path | str, day: date | str, *, how: How = "copy", parts: Collection[str] = ()) -> list[Path]:
    """Deliver the files of one day, or only ``parts`` of them ("pages"); returns those that were not there before.

    ``how="link"`` takes no further disk space, but then the landing file and the staged one are the same:
    never change it in place.
    """
    name = _known_day(out, day)
    staged, landing = Path(out) / "staged" / name, Path(out) / "landing"
    if not parts:
        return _deliver_tree(staged, landing, how)
    return [path for part in parts for path in _deliver_tree(staged / part, landing / part, how)]


def deliver_all(out: Path | str, *, how: How = "copy") -> list[Path]:
    """Deliver all days in order; what is held back stays held back."""
    return [path for day in read_truth(out).recipe.dates for path in deliver(out, day, how=how)]


def deliver_late(out: Path | str, days: Iterable[date | str] | None = None, *, how: How = "copy") -> list[Path]:
    """Deliver what was held back, of all event days or of some, each into the folder of its event day."""
    names = read_truth(out).recipe.dates if days is None else [_known_day(out, day) for day in days]
    delivered: list[Path] = []
    for name in names:
        folder = Path("visits") / f"date={name}"
        delivered += _deliver_tree(Path(out) / "late" / folder, Path(out) / "landing" / folder, how)
    return delivered


def _known_day(out: Path | str, day: date | str) -> str:
    dates = read_truth(out).recipe.dates
    if str(day) not in dates:
        raise GeneratorError(f"No data was generated for {day}.", hint=f"It goes from {dates[0]} to {dates[-1]}.")
    return str(day)


def _deliver_tree(source: Path, target: Path, how: How) -> list[Path]:
    pairs = [(path, target / path.relative_to(source)) for path in sorted(source.rglob("*")) if path.is_file()]
    return [there for here, there in pairs if _deliver_file(here, there, how)]


def _deliver_file(source: Path, target: Path, how: How) -> bool:
    if target.exists() and filecmp.cmp(source, target, shallow=False):
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    hidden = target.with_name(f".{target.name}.arriving")  # readers skip names that begin with a dot
    hidden.unlink(missing_ok=True)
    if how == "link":
        hidden.hardlink_to(source)
    else:
        shutil.copyfile(source, hidden)
    hidden.replace(target)
    return True
