"""The blog's data generator; a plain reader that knows nothing of how it works recounts its truth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from platforms.blog.generate import (
    FaultShares,
    GeneratorError,
    Recipe,
    Truth,
    deliver,
    deliver_all,
    deliver_late,
    generate,
    main,
    read_truth,
)

ROOT = Path(__file__).resolve().parents[2]
START = date(2026, 1, 1)
DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]
MANY_FAULTS = FaultShares(
    malformed=0.05, bad_time=0.05, future_time=0.02, missing_id=0.05, bad_page=0.05,
    duplicates=0.08, late=0.08, unknown_user=0.05, late_delivery=0.05,
)  # fmt: skip


@dataclass
class Recount:
    """What a plain reader finds in a landing folder."""

    lines: Counter[str] = field(default_factory=Counter)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)  # (delivery day, class)
    kept: Counter[tuple[str, str]] = field(default_factory=Counter)  # (delivery day, event day)
    pages: Counter[tuple[str, str]] = field(default_factory=Counter)  # (event day, page)
    countries: Counter[tuple[str, str]] = field(default_factory=Counter)  # (event day, country)
    ids: set[str] = field(default_factory=set)

    def of_event_day(self, day: str, counts: Counter[tuple[str, str]]) -> dict[str, int]:
        return {name: rows for (event_day, name), rows in counts.items() if event_day == day}


def recount(landing: Path) -> Recount:
    found = Recount()
    versions = read_versions(landing)
    for path in sorted(landing.glob("visits/date=*/*.json")):
        day = path.parent.name.removeprefix("date=")
        for line in path.read_text(encoding="utf-8").splitlines():
            found.lines[day] += 1
            fault = fault_of(line, found.ids)
            if fault is not None:
                found.faults[day, fault] += 1
                continue
            visit = json.loads(line)
            event_day = visit["event_time"][:10]
            found.ids.add(visit["visit_id"])
            found.kept[day, event_day] += 1
            found.pages[event_day, visit["page"]] += 1
            found.countries[event_day, country_of(visit, versions)] += 1
    return found


def fault_of(line: str, seen_ids: set[str]) -> str | None:
    try:
        visit = json.loads(line)
    except json.JSONDecodeError:
        return "malformed"
    try:
        event_time = parse_time(visit["event_time"])
    except ValueError:
        return "bad_time"
    if event_time > datetime(2026, 6, 1, tzinfo=UTC):
        return "future_time"
    if visit.get("visit_id") is None:
        return "missing_id"
    if not (visit["page"] or "").startswith("/"):
        return "bad_page"
    return "duplicates" if visit["visit_id"] in seen_ids else None


def parse_time(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%f%z")


def read_versions(landing: Path) -> dict[str, list[tuple[datetime, str]]]:
    versions: dict[str, list[tuple[datetime, str]]] = defaultdict(list)
    for path in sorted(landing.glob("users/*.json")):
        for line in path.read_text(encoding="utf-8").splitlines():
            user = json.loads(line)
            versions[user["user_id"]].append((parse_time(user["updated_at"]), user["country"]))
    return versions


def country_of(visit: dict[str, str], versions: dict[str, list[tuple[datetime, str]]]) -> str:
    at = parse_time(visit["event_time"])
    valid = [version for version in versions.get(visit["user_id"], []) if version[0] <= at]
    return max(valid)[1] if valid else "unknown"


def bytes_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    """A set with many faults, all days delivered, nothing of the late delivery. Read only."""
    out = tmp_path_factory.mktemp("blog")
    truth = generate(out, visits=6001, days=3, start=START, seed=7, shares=MANY_FAULTS)
    deliver_all(out)
    return out, truth


def test_the_same_options_give_the_same_bytes(generated: tuple[Path, Truth], tmp_path: Path) -> None:
    generate(tmp_path, visits=6001, days=3, start=START, seed=7, shares=MANY_FAULTS)
    deliver_all(tmp_path)
    assert bytes_below(tmp_path) == bytes_below(generated[0])


def test_two_processes_write_the_same_bytes_as_one(generated: tuple[Path, Truth], tmp_path: Path) -> None:
    generate(tmp_path, visits=6001, days=3, start=START, seed=7, shares=MANY_FAULTS, jobs=2)
    deliver_all(tmp_path)
    assert bytes_below(tmp_path) == bytes_below(generated[0])


def test_another_seed_gives_other_visits_and_users(generated: tuple[Path, Truth], tmp_path: Path) -> None:
    generate(tmp_path, visits=6001, days=3, start=START, seed=8, shares=MANY_FAULTS)
    mine, others = bytes_below(tmp_path / "staged"), bytes_below(generated[0] / "staged")
    assert mine.keys() == others.keys()
    assert {name.split("/")[1] for name in mine if mine[name] == others[name]} == {"pages", "devices"}


def test_the_truth_of_each_delivery_equals_a_recount(generated: tuple[Path, Truth]) -> None:
    out, truth = generated
    found = recount(out / "landing")
    for day, told in truth.deliveries.items():
        assert told.lines == found.lines[day]
        for fault in ("malformed", "bad_time", "future_time", "missing_id", "bad_page", "duplicates"):
            assert getattr(told, fault) == found.faults[day, fault] > 0, (day, fault)
        assert told.on_time == found.kept[day, day]
        late = {event_day: rows for (on, event_day), rows in found.kept.items() if on == day and event_day != day}
        assert told.late == late
        assert all(event_day < day for event_day in late)
        assert told.files == len(list((out / "landing" / "visits" / f"date={day}").iterdir()))


def test_the_truth_of_each_event_day_equals_a_recount(generated: tuple[Path, Truth]) -> None:
    out, truth = generated
    found = recount(out / "landing")
    for day, told in truth.events.items():
        assert told.pages == found.of_event_day(day, found.pages)
        assert told.countries == found.of_event_day(day, found.countries)
        by_delivery = {on: rows for (on, event_day), rows in found.kept.items() if event_day == day}
        assert told.kept_by_delivery == by_delivery
        assert told.kept == sum(by_delivery.values())
        assert told.unknown_user == found.countries[day, "unknown"] > 0
    assert set(truth.events) == {event_day for event_day, _ in found.pages}


def test_every_line_is_accounted_for(generated: tuple[Path, Truth]) -> None:
    truth = generated[1]
    for day in truth.deliveries.values():
        faulty = day.malformed + day.bad_time + day.future_time + day.missing_id + day.bad_page
        assert day.lines == faulty + day.duplicates + day.kept
        assert day.kept == day.on_time + sum(day.late.values())
    for event in truth.events.values():
        assert event.lines == event.missing_id + event.bad_page + event.duplicates + event.kept
        assert event.kept == event.on_time + event.late == sum(event.pages.values()) == sum(event.countries.values())
    assert truth.totals["lines"] == 6001
    assert truth.totals["kept"] == sum(event.kept for event in truth.events.values())


def test_the_late_delivery_adds_exactly_the_told_rows(tmp_path: Path) -> None:
    truth = generate(tmp_path, visits=3000, days=3, start=START, seed=7, shares=MANY_FAULTS)
    deliver_all(tmp_path)
    before = recount(tmp_path / "landing")
    deliver_late(tmp_path)
    after = recount(tmp_path / "landing")
    assert after.faults == before.faults
    assert before.ids < after.ids
    for day, told in truth.events.items():
        assert after.lines[day] - before.lines[day] == truth.late_delivery[day].lines == 50
        assert told.kept_after_late == sum(after.of_event_day(day, after.pages).values()) == told.kept + 50
        assert told.pages_after_late == after.of_event_day(day, after.pages)
        assert told.countries_after_late == after.of_event_day(day, after.countries)
        assert told.unknown_user_after_late == after.countries[day, "unknown"]


def test_the_late_delivery_of_one_day_touches_only_that_day(tmp_path: Path) -> None:
    generate(tmp_path, visits=300, days=3, start=START, seed=7)
    deliver_all(tmp_path)
    assert [path.parent.name for path in deliver_late(tmp_path, [DAYS[0]])] == ["date=2026-01-01"]


def test_without_shares_there_are_no_faults_and_nothing_is_held_back(tmp_path: Path) -> None:
    truth = generate(tmp_path, visits=2000, days=3, start=START, seed=7, shares=FaultShares.none())
    deliver_all(tmp_path)
    found = recount(tmp_path / "landing")
    assert not found.faults
    assert set(found.kept) == {(day, day) for day in DAYS}
    assert truth.totals["kept"] == len(found.ids) == 2000
    assert truth.totals["unknown_user"] == truth.totals["late_delivery"] == 0
    assert deliver_late(tmp_path) == []


def test_a_duplicate_repeats_an_earlier_line_of_its_file(generated: tuple[Path, Truth]) -> None:
    out, truth = generated
    repeated = 0
    for path in (out / "landing").glob("visits/date=*/*.json"):
        seen: set[str] = set()
        for line in path.read_text(encoding="utf-8").splitlines():
            if line in seen and fault_of(line, set()) is None:
                repeated += 1
                assert f"date={json.loads(line)['event_time'][:10]}" == path.parent.name
            seen.add(line)
    assert repeated == truth.totals["duplicates"]


def test_visits_fill_the_day_from_midnight_to_midnight(tmp_path: Path) -> None:
    generate(tmp_path, visits=6000, days=2, start=START, seed=7, shares=MANY_FAULTS)
    deliver_all(tmp_path)
    for day in DAYS[:2]:
        lines = [
            line
            for path in (tmp_path / "landing").glob(f"visits/date={day}/*.json")
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
        times = [json.loads(line)["event_time"] for line in lines if fault_of(line, set()) is None]
        hours = Counter(time[11:13] for time in times if time.startswith(day))
        assert len(hours) == 24
        assert max(times) > f"{day}T23:55"
        assert hours["20"] > hours["03"]


def test_ids_differ_by_more_than_luck(generated: tuple[Path, Truth]) -> None:
    found = recount(generated[0] / "landing")
    # The random beginning alone would meet another one in a file of 250,000 lines.
    assert len({visit_id[9:] for visit_id in found.ids}) == len(found.ids)


def test_days_are_delivered_one_at_a_time(tmp_path: Path) -> None:
    generate(tmp_path, visits=300, days=3, start=START, seed=7)
    landing = tmp_path / "landing"
    assert not landing.exists()
    deliver(tmp_path, DAYS[0])
    assert {path.name for path in landing.iterdir()} == {"users", "visits", "pages", "devices"}
    assert [path.name for path in (landing / "visits").iterdir()] == ["date=2026-01-01"]
    deliver(tmp_path, date(2026, 1, 2))
    assert sorted(path.name for path in (landing / "users").iterdir()) == [f"users-{day}.json" for day in DAYS[:2]]
    deliver(tmp_path, DAYS[2])
    assert deliver_all(tmp_path) == []


def test_a_second_delivery_leaves_the_files_as_they_are(tmp_path: Path) -> None:
    generate(tmp_path, visits=300, days=1, start=START, seed=7)
    delivered = deliver(tmp_path, DAYS[0])
    for path in delivered:
        os.utime(path, (1, 1))
    assert deliver(tmp_path, DAYS[0]) == []
    assert {path.stat().st_mtime for path in delivered} == {1}


def test_a_killed_delivery_is_finished_by_the_next(tmp_path: Path) -> None:
    generate(tmp_path, visits=300, days=1, start=START, seed=7)
    folder = tmp_path / "landing" / "visits" / "date=2026-01-01"
    folder.mkdir(parents=True)
    (folder / ".visits-00.json.arriving").write_text("half a fi")
    deliver(tmp_path, DAYS[0])
    assert bytes_below(folder) == bytes_below(tmp_path / "staged" / DAYS[0] / "visits" / "date=2026-01-01")


def test_a_delivery_by_links_has_the_same_content(tmp_path: Path) -> None:
    generate(tmp_path, visits=300, days=1, start=START, seed=7)
    deliver_all(tmp_path, how="link")
    assert bytes_below(tmp_path / "landing") == bytes_below(tmp_path / "staged" / DAYS[0])


def test_an_unknown_day_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    generate(tmp_path, visits=10, days=2, start=START, seed=7)
    with pytest.raises(GeneratorError, match="2026-01-01 to 2026-01-02"):
        deliver(tmp_path, "2026-02-01")


def test_delivering_before_generating_says_so(tmp_path: Path) -> None:
    with pytest.raises(GeneratorError, match="Generate it first"):
        deliver_all(tmp_path)


def test_each_later_users_file_has_some_who_moved_and_some_who_are_new(generated: tuple[Path, Truth]) -> None:
    out, truth = generated
    known: dict[str, dict[str, str]] = {}
    for day in DAYS:
        lines = (out / "landing" / "users" / f"users-{day}.json").read_text(encoding="utf-8").splitlines()
        users = [json.loads(line) for line in lines]
        changed = [user for user in users if user["user_id"] in known]
        told = truth.users[day]
        assert (told.lines, told.changed, told.new) == (len(users), len(changed), len(users) - len(changed))
        for user in changed:
            assert user["country"] != known[user["user_id"]]["country"]
            assert user["registered_at"] == known[user["user_id"]]["registered_at"]
            assert user["updated_at"].startswith(day)
        known.update({user["user_id"]: user for user in users})
    assert all(truth.users[day].new and truth.users[day].changed for day in DAYS[1:])


def test_visits_name_pages_and_devices_of_the_reference_files(generated: tuple[Path, Truth]) -> None:
    landing = generated[0] / "landing"
    devices = {line.split(",")[0] for line in (landing / "devices/devices.csv").read_text("utf-8").splitlines()[1:]}
    pages = {line.split(",")[0] for line in (landing / "pages/pages.csv").read_text("utf-8").splitlines()[1:]}
    for path in landing.glob("visits/date=*/*.json"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if fault_of(line, set()) is None:
                visit = json.loads(line)
                assert visit["device_id"] in devices
                assert visit["page"] in pages
                assert list(visit["context"]) == ["referral", "user", "technical"]


def test_the_truth_read_back_equals_the_one_returned(generated: tuple[Path, Truth]) -> None:
    assert read_truth(generated[0]) == generated[1]


def test_a_large_day_has_many_files_below_the_limit() -> None:
    recipe = Recipe(visits=50_000_000, days=3, start=START, seed=7)
    files = recipe.file_lines(0)
    assert sum(files) == recipe.day_lines(0)
    assert len(files) == 67
    assert max(files) <= 250_000


def test_a_single_visit_is_enough(tmp_path: Path) -> None:
    truth = generate(tmp_path, visits=1, days=3, start=START, seed=7, shares=FaultShares.none())
    deliver_all(tmp_path)
    assert recount(tmp_path / "landing").lines == Counter({DAYS[0]: 1})
    assert truth.deliveries[DAYS[1]].lines == truth.events[DAYS[2]].kept == 0


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"visits": 0}, "visits"),
        ({"days": 0}, "days"),
        ({"jobs": 0}, "jobs"),
        ({"start": date(1, 1, 1)}, "start"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_written(tmp_path: Path, wrong: dict[str, int], word: str) -> None:
    with pytest.raises(GeneratorError, match=word):
        generate(tmp_path / "out", **wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(GeneratorError, match="'late'"):
        FaultShares(late=share)


def test_shares_that_leave_no_ordinary_visits_are_refused() -> None:
    with pytest.raises(GeneratorError, match="below 1"):
        FaultShares(late=0.5, duplicates=0.5)


def test_a_folder_with_a_set_is_replaced_only_when_asked(tmp_path: Path) -> None:
    generate(tmp_path, visits=10, days=2, start=START, seed=7)
    deliver_all(tmp_path)
    with pytest.raises(GeneratorError, match="already holds"):
        generate(tmp_path, visits=20, days=1, start=START, seed=7)
    generate(tmp_path, visits=20, days=1, start=START, seed=7, replace=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["late", "staged", "truth.json"]
    assert read_truth(tmp_path).totals["lines"] == 20


def test_a_folder_of_somebody_else_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "landing").mkdir()
    with pytest.raises(GeneratorError, match="did not make"):
        generate(tmp_path, visits=10, replace=True)
    assert (tmp_path / "landing").exists()


def test_a_killed_run_is_cleared_by_the_next(tmp_path: Path) -> None:
    (tmp_path / ".building" / "staged").mkdir(parents=True)
    (tmp_path / "staged").mkdir()
    generate(tmp_path, visits=10, days=1, start=START, seed=7, replace=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["late", "staged", "truth.json"]


def test_the_command_generates_and_delivers_from_any_folder(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "platforms/blog/generate.py"), "--out", "data", "--visits", "500"]
    done = subprocess.run([*command, "--jobs", "2"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "500 visit lines of 3 days" in done.stdout
    assert sum(recount(tmp_path / "data" / "landing").lines.values()) == 500


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--days", "0"], "'days' is 0"),
        (["--start", "tomorrow"], "2026-01-31"),
        (["--share", "lat=0.1"], "Did you mean 'late'?"),
        (["--share", "late"], "late=0.02"),
        (["--share", "late=2"], "between 0 and 1"),
    ],
)
def test_the_command_refuses_wrong_options_kindly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    assert main(["--out", str(tmp_path / "out"), *arguments]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert word in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, jobs: str) -> None:
    command = f"ulimit -f 64; {sys.executable} platforms/blog/generate.py --out {tmp_path} --jobs {jobs}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cannot write" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_where_it_could_not_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["--out", str(tmp_path / "file" / "below")]) == 1
    assert "cannot write" in capsys.readouterr().err
