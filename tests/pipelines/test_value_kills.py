"""One kill -9 of the real command that meets sessions between their two tables, and a partner between two bins.

The command shares the Spark Connect server of the test run, which goes on with the job that posts: the zombie's number
is lower, and by that a partner leaves out what it still sends.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from lakewright.patterns.data_value.incremental_sessionizer import build_sessions
from tests.patterns.data_value.deliveries import Partner
from tests.pipelines.shop import land, ok, rows_of
from tests.pipelines.streaming import until
from tests.processes import LAKEWRIGHT, environment

PIPELINE = """
    from lakewright import BinPackOrderer, HttpFeed, JsonFiles, Pipeline, Sessions

    blog = Pipeline("blog", start="2026-01-01")
    blog.source("visits", JsonFiles("landing/visits"), schema="user string, at timestamp, page string", event_time="at")

    @blog.dataset(sessions=Sessions(keys=["user"], gap="30 minutes", collect={"pages": "page"}))
    def sessions(visits):
        return visits

    @blog.dataset(event_time="at", into=HttpFeed("URL/visits", order=BinPackOrderer(per="user", by="at"),
                                                 timeout_seconds=90))
    def partner(visits):
        return visits
"""
FIRST = "2026-01-01"
VISITS = [
    {"user": user, "at": f"2026-01-0{at}:00Z", "page": page}
    for user, at, page in [
        ("u1", "1T23:45", "/"), ("u1", "2T00:05", "/a"), ("u2", "1T10:00", "/"), ("u2", "1T10:01", "/b"),
        ("u2", "1T10:02", "/c"),
    ]
]  # fmt: skip


class SlowPartner(Partner):
    """Takes its time over the second bin: until it is told to go on."""

    def __init__(self) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        super().__init__()

    def _take(self, path, body, headers):
        if body["records"][0]["sequence"] == 2:
            self.reached.set()
            self.go.wait(60)
        return super()._take(path, body, headers)


@pytest.mark.shows("05.incremental-sessionizer", 7)
@pytest.mark.shows("05.bin-pack-orderer", 6)
def test_a_kill_between_two_tables_and_two_bins_leaves_nothing_that_the_next_run_does_not_mend(
    project, connect_url, tmp_path
):
    partner = SlowPartner()
    toml = 'name = "blog"\n[targets.dev]\nparallel = 3\n'
    shop = project({"lakewright.toml": toml, "pipelines/blog.py": PIPELINE.replace("URL", partner.url)})
    land(shop.folder, "a.json", VISITS, folder="visits")
    ok(shop.run(["visits"], at="2026-01-03"))

    between = "committed.sessions_pending"
    paused = tmp_path / f"{between}.paused"
    armed = {"FAILPOINT": between, "FAILPOINT_ACTION": "pause", "FAILPOINT_DIR": str(tmp_path)}
    told = environment(connect_url, **{f"LAKEWRIGHT_{name}": value for name, value in armed.items()})
    words = [sys.executable, *LAKEWRIGHT, "run", "--at", "2026-01-03", "--select", "sessions", "--select", "partner"]
    victim = subprocess.Popen(words, cwd=shop.folder, env=told, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: paused.exists() and partner.reached.is_set())
    victim.kill()
    victim.wait(30)
    partner.go.set()
    open_steps = {(step.dataset, step.slice_id) for step in shop.store.steps.open_steps()}
    assert open_steps >= {("sessions", FIRST), ("partner", FIRST)}
    assert shop.lake.log("sessions_pending").latest() is not None
    assert not shop.lake.log("sessions").exists(), "nothing of the slice is there for anybody"

    ok(shop.run(at="2026-01-03"))
    declared = replace(shop.graph["sessions"].sessions, time="at")
    anew = build_sessions(shop.lake.read("visits"), sessions=declared, until="2026-01-03")
    columns = ("session_id", "user", "start_time", "end_time", "events", "pages", "is_final")
    assert rows_of(shop, "sessions", *columns) == sorted(anew.completed.select(*columns).collect(), key=str)
    waiting = shop.lake.read("sessions_pending", system_columns=True).select("_lw_event", "user", "events").collect()
    assert [tuple(row) for row in waiting] == [(FIRST, "u1", 1)]

    # Of each sending each entity's records came in order; the newest sending of a slice, which counts, is whole.
    sendings: dict[int, list[tuple[str, str]]] = {}
    for request in partner.told:
        if request["slice"] == FIRST:
            sent = [(record["key"], record["value"]["page"]) for record in request["records"]]
            sendings.setdefault(int(request["number"]), []).extend(sent)
    for sent in sendings.values():
        pages = [page for user, page in sent if user == "u2"]
        assert pages == ["/", "/b", "/c"][: len(pages)]
    assert len(sendings) == 2
    assert sorted(sendings[max(sendings)]) == [("u1", "/"), ("u2", "/"), ("u2", "/b"), ("u2", "/c")]
    by_id: dict[str, set[str]] = {}
    for record in partner.taken["/visits"]:
        by_id.setdefault(f"{record['key']}{record['value']['page']}", set()).add(record["id"])
    assert all(len(ids) == 1 for ids in by_id.values()), "a record that comes again has the id that it had"

    assert shop.store.steps.open_steps() == []
    assert shop.store.leases.held(shop._now()) == []
    assert not ok(shop.run(at="2026-01-03")).outcomes
    partner.close()
