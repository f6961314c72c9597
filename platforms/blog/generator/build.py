"""Generating a whole set into a folder, with one or several processes."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from pathlib import Path

from platforms.blog.generator.accounts import add_up
from platforms.blog.generator.files import FileJob, write_visits_file
from platforms.blog.generator.people import write_users
from platforms.blog.generator.recipe import FaultShares, GeneratorError, Recipe
from platforms.blog.generator.reference import write_reference
from platforms.blog.generator.tally import Tally
from platforms.blog.generator.truth import Truth, UsersTruth

__all__ = ["generate"]

BUILDING = ".building"
OURS = ("landing", "staged", "late", "truth.json")  # the truth goes last: it says that the others are ours


def generate(
    out: Path | str,
    *,
    visits: int = 10_000,
    days: int = 3,
    start: date = date(2026, 1, 1),
    seed: int = 7,
    shares: FaultShares | None = None,
    jobs: int = 1,
    replace: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Truth:
    """Generate users, reference data and visits into ``out/staged`` and ``out/late``, and ``out/truth.json``.

    Nothing is delivered yet. The set appears at once when it is complete; a killed run leaves only the
    hidden folder ``.building``, which the next one clears. A folder that already holds a set is refused
    unless ``replace`` is true, which removes that set and what was delivered of it. ``progress`` is told
    the visit lines written so far and their total.
    """
    recipe = Recipe(visits, days, start, seed, shares or FaultShares())
    if jobs < 1:
        raise GeneratorError(f"'jobs' is {jobs}; it is the number of processes.", hint="Choose 1 or more.")
    folder = Path(out)
    _refuse_foreign_folder(folder, replace=replace)
    building = folder / BUILDING
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        truth = _build(recipe, building, jobs, progress)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)  # half a set on a full disk helps nobody
        raise
    _publish(folder, building)
    return truth


def _build(recipe: Recipe, building: Path, jobs: int, progress: Callable[[int, int], None] | None) -> Truth:
    write_reference(building / "staged" / recipe.dates[0])
    users = {name: _write_users(recipe, day, building) for day, name in enumerate(recipe.dates)}
    file_jobs = [*_staged_files(recipe, building), *_late_files(recipe, building)]
    tallies: list[Tally] = []
    total, written = sum(job.lines for job in file_jobs), 0
    for tally in _write_all(file_jobs, jobs):
        tallies.append(tally)
        written += tally.lines
        if progress is not None:
            progress(written, total)
    truth = add_up(recipe, users, tallies)
    truth.write(building / "truth.json")
    return truth


def _refuse_foreign_folder(folder: Path, *, replace: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise GeneratorError(f"{folder} is a file.", hint="Choose a folder.")
    held = [name for name in OURS if (folder / name).exists()]
    ours = (folder / "truth.json").exists() or (folder / BUILDING).exists()
    if held and not ours:
        raise GeneratorError(
            f"{folder} holds {', '.join(held)}, which the generator did not make.",
            hint="Choose another folder.",
        )
    if held and not replace:
        raise GeneratorError(
            f"{folder} already holds generated data.", hint="Choose another folder, or ask to replace it."
        )


def _publish(folder: Path, building: Path) -> None:
    """Put the new set in place of the old; ``.building`` goes last, as it marks the folder as ours."""
    for name in OURS:
        target = folder / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
    for name in ("staged", "late", "truth.json"):
        if (building / name).exists():
            (building / name).replace(folder / name)
    building.rmdir()


def _write_users(recipe: Recipe, day: int, building: Path) -> UsersTruth:
    name = recipe.dates[day]
    new, changed = write_users(recipe, day, building / "staged" / name / "users" / f"users-{name}.json")
    return UsersTruth(lines=new + changed, new=new, changed=changed)


def _staged_files(recipe: Recipe, building: Path) -> Iterator[FileJob]:
    for day, name in enumerate(recipe.dates):
        lines = recipe.file_lines(day)
        folder = building / "staged" / name / "visits" / f"date={name}"
        for number, count in enumerate(lines):
            yield FileJob(recipe, folder / f"visits-{number:02d}.json", day, number, len(lines), count)


def _late_files(recipe: Recipe, building: Path) -> Iterator[FileJob]:
    for day, name in enumerate(recipe.dates):
        lines = recipe.late_file_lines(day)
        folder = building / "late" / "visits" / f"date={name}"
        for number, count in enumerate(lines):
            path = folder / f"visits-late-{number:02d}.json"
            yield FileJob(recipe, path, day, number, len(lines), count, held_back=True)


def _write_all(file_jobs: list[FileJob], jobs: int) -> Iterator[Tally]:
    if jobs == 1:
        yield from map(write_visits_file, file_jobs)
        return
    # Spawned, not forked: the caller may already have threads, such as those of a Spark session.
    with ProcessPoolExecutor(max_workers=jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(write_visits_file, file_jobs)
