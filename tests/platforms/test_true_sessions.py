"""The sessions that all others are compared with: few enough lines to be believed, and tried by hand here."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest
from platforms.blog.generate import GeneratorError, generate
from platforms.blog.generator.true_sessions import Seen, Session, figures_of, kept_visits, millis, sessions_of

MINUTE = 60_000


def test_visits_at_most_a_gap_apart_belong_together_in_whatever_order_they_come():
    visits = [Seen("u1", 60 * MINUTE, "/c"), Seen("u2", 10 * MINUTE, "/"), Seen("u1", 0, "/a"),
              Seen("u1", 30 * MINUTE, "/b"), Seen("u1", 90 * MINUTE + 1, "/d")]  # fmt: skip
    sessions = sessions_of(visits, gap=timedelta(minutes=30))
    assert sessions == [
        Session("u1", 0, 60 * MINUTE, ("/a", "/b", "/c")),
        Session("u1", 90 * MINUTE + 1, 90 * MINUTE + 1, ("/d",)),
        Session("u2", 10 * MINUTE, 10 * MINUTE, ("/",)),
    ]
    assert sessions[0].text == f"u1|0|{60 * MINUTE}|3|/a /b /c"
    assert figures_of(sessions)[:2] == (3, 5)
    assert figures_of(sessions) != figures_of([*sessions[:2], sessions[2]._replace(pages=("/x",))])
    assert sessions_of([], gap=timedelta(minutes=30)) == []
    assert millis("1970-01-02T00:00:00.005Z") == 86_400_005


def test_the_visits_to_keep_are_those_that_the_generator_counted(tmp_path: Path):
    truth = generate(tmp_path, visits=600, days=2, start=date(2026, 1, 1), seed=3)
    first = truth.recipe.dates[0]
    assert len(list(kept_visits(tmp_path))) == truth.totals["kept"]
    later = {*kept_visits(tmp_path, late_days=[first])} - {*kept_visits(tmp_path)}
    assert len(later) == truth.late_delivery[first].lines
    staged = next((tmp_path / "staged").rglob("visits-*.json"))
    staged.write_text("")
    with pytest.raises(GeneratorError, match="were made to be kept"):
        list(kept_visits(tmp_path))
