"""Seeded data for the blog platform: users, pages, devices and visits, with known faults and the exact truth.

    python platforms/blog/generate.py --out data --visits 10000 --days 3 --start 2026-01-01 --seed 7

Files below ``--out``::

    staged/<day>/users/users-<day>.json                     JSON lines; the first day has all users, a later
                                                            day those who moved and those who are new
    staged/<first day>/pages/pages.csv, devices/devices.csv reference data
    staged/<day>/visits/date=<day>/visits-NN.json           JSON lines; several files, each at most 250,000
    late/visits/date=<event day>/visits-late-NN.json        visits that are held back
    landing/...                                             what was delivered: the same tree without <day>
    truth.json                                              what is in them, see below

``deliver`` brings one day to ``landing``, ``deliver_all`` all days, ``deliver_late`` what is held back.

A visit has visit_id, event_time (ISO 8601, UTC, milliseconds), user_id, page, device_id and context
{referral, user {login, ip}, technical {browser, browser_version, network_type, device_type, device_version}}.

How lines are classed. ``visits`` is the number of visit lines over all days; what is held back comes on top.
Each line is in exactly one of these classes, of which the first that fits counts:

1. malformed: no JSON object, either cut before its end or garbage;
2. bad_time: ``event_time`` is a text that is no time;
3. future_time: a time 4000 days ahead (none by default);
4. missing_id: ``visit_id`` is null or absent;
5. bad_page: ``page`` is null or does not begin with '/';
6. duplicates: a sound line, byte for byte, that stands earlier in the same file (event day = delivery day);
7. late: a sound line whose event day is one or two days before the folder's; the first day has none;
8. on_time: every other sound line, its event day being the folder's.

Malformed, bad_time and future_time lines have no usable event day and count for their delivery day only;
those of classes 4 to 6 are of their delivery day. ``kept`` are the lines of 7 and 8: each has its own
visit_id. ``unknown_user`` are those of the kept whose user_id is in no users file. A country is the
user's as of the event time (the last version with ``updated_at <= event_time``), or 'unknown'. A user visits
from the day after the first version on (the first users: at once). Held-back lines are all sound, of the
folder's day, and in no other file.

``truth.json`` has ``format``, ``options``, ``totals`` and, by day, ``users``, ``deliveries``,
``late_delivery`` and ``events``: the classes of ``generator/truth.py``, field by field. Equal options give
equal bytes, however many processes write them.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

if not __package__:  # run or loaded by its path: the repository's root is not on the path yet
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from platforms.blog.generator.build import generate
from platforms.blog.generator.delivery import deliver, deliver_all, deliver_late
from platforms.blog.generator.recipe import FaultShares, GeneratorError, Recipe
from platforms.blog.generator.truth import Truth, read_truth

__all__ = [
    "FaultShares",
    "GeneratorError",
    "Recipe",
    "Truth",
    "deliver",
    "deliver_all",
    "deliver_late",
    "generate",
    "main",
    "read_truth",
]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code: 0 done, 1 could not write, 2 wrong usage, 130 interrupted."""
    options = _parser().parse_args(arguments)
    began = time.perf_counter()
    try:
        shares = FaultShares.none() if options.no_faults else FaultShares.of(map(_share, options.share))
        truth = generate(
            options.out,
            visits=options.visits,
            days=options.days,
            start=_day(options.start),
            seed=options.seed,
            shares=shares,
            jobs=options.jobs,
            replace=options.replace,
            progress=_show_progress if sys.stderr.isatty() else None,
        )
        if not options.stage_only:
            deliver_all(options.out, how="link" if options.link else "copy")
    except GeneratorError as error:
        hint = f"\nhint: {error.hint}" if error.hint else ""
        sys.stderr.write(f"error: {error.message}{hint}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"error: cannot write to {error.filename or options.out}: {error.strerror}\n")
        sys.stderr.write(
            "hint: free some space or choose another --out, and repeat (with --replace if a set is there).\n"
        )
        return 1
    except KeyboardInterrupt:
        return 130
    seconds = time.perf_counter() - began
    sys.stdout.write(_summary(truth, options.out, delivered=not options.stage_only, seconds=seconds))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="generate.py",
        description="Generate visits of a blog with known faults, and the truth about them.",
        epilog="Example: python platforms/blog/generate.py --out data --visits 1000000 --share late=0.05",
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for landing/, staged/, late/ and truth.json")
    add("--visits", type=int, default=10_000, help="visit lines over all days (default: %(default)s)")
    add("--days", type=int, default=3, help="number of days (default: %(default)s)")
    add("--start", default="2026-01-01", help="first day (default: %(default)s)")
    add("--seed", type=int, default=7, help="another seed, other data (default: %(default)s)")
    add(
        "--share",
        action="append",
        default=[],
        metavar="NAME=SHARE",
        help=f"one of {', '.join(FaultShares.names())}",
    )
    add("--no-faults", action="store_true", help="all shares 0, nothing held back")
    add("--jobs", type=int, default=1, help=f"processes (default: 1; this machine has {os.cpu_count()} cores)")
    add("--stage-only", action="store_true", help="deliver nothing to landing/ yet")
    add("--link", action="store_true", help="deliver by hard links: no second copy on disk")
    add("--replace", action="store_true", help="replace a set that is already in --out, with its landing/")
    return parser


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise GeneratorError(f"--start is '{text}'.", hint="Write a day as 2026-01-31.") from None


def _share(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        return name.strip(), float(number)
    except ValueError:
        raise GeneratorError(f"--share is '{text}'.", hint="Write it as late=0.02.") from None


def _show_progress(written: int, total: int) -> None:
    end = "\n" if written == total else ""
    sys.stderr.write(f"\r{written:,} of {total:,} visits{end}")
    sys.stderr.flush()


def _summary(truth: Truth, out: Path, *, delivered: bool, seconds: float) -> str:
    totals = truth.totals
    faults = [f"{totals[name]:,} {name}" for name in FaultShares.names() if totals[name]]
    where = "landing/ has all days" if delivered else "nothing is delivered yet"
    return (
        f"{totals['lines']:,} visit lines of {truth.recipe.days} days in {out}, {totals['kept']:,} to keep.\n"
        f"Known faults: {', '.join(faults) or 'none'}.\n"
        f"Done in {seconds:.1f} s; {where}. Every count is in {out / 'truth.json'}.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
