"""Static and Dynamic Joiner in pipelines: references that are wrong, late or over HTTP, and two streams as one."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from lakewright import DynamicJoiner, JsonFiles, KafkaTopic, LateDataDetector, Merger, Pipeline, SameSlice, Whole
from lakewright.errors import ConfigurationError, DefinitionError, InputError
from lakewright.pipelines.graph import Graph
from lakewright.store import open_store
from lakewright.testing.connect import engine_of
from tests.pipelines.lab import lab
from tests.pipelines.shop import land, ok, rows_of
from tests.pipelines.streaming import send
from tests.processes import LAKEWRIGHT, killed

VISITS = """
    from lakewright import (AsOf, JsonFiles, LookupApi, Merger, Pipeline, Previous, Scd2, Whole, ask_api,
                            join_as_of, join_reference)

    blog = Pipeline("blog", start="2026-01-01")
    blog.source("visits", JsonFiles("landing/visits"), schema="visit string, at timestamp, ip string, device string",
                event_time="at")
    blog.source("devices", JsonFiles("landing/devices"), schema="device string, screen string")
    GEO = LookupApi("{url}", keys="ips", answers="mapped", per_second=1000, tries=1)

    @blog.dataset(event_time="at", rows="preserve", inputs={{"devices": Whole(empty="refuse")}})
    def with_screen(visits, devices):
        return join_reference(visits, devices, keys=["device"])

    @blog.dataset(writer=Merger(keys=["ip"], history=Scd2(valid_from="asked_at")),
                  inputs={{"known": Previous("places", schema="ip string")}})
    def places(visits, known, run):
        '''What the API said of each address, and when.'''
        told = ask_api(visits, key="ip", api=GEO, values="country string", at=run.time, known=known)
        return told.where("enrichment = 'enriched'").select("ip", "country", "asked_at")

    @blog.dataset(event_time="at", rows="preserve", inputs={{"places": AsOf("at")}})
    def located(with_screen, places):
        return join_as_of(with_screen, places.drop("is_current"), keys=["ip"], at="at", valid_from="asked_at",
                          before_first="extend")
"""


class Geo:
    """Countries of addresses: a real server, which counts what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.country = "PL"
        geo = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                ips = parse_qs(urlsplit(self.path).query)["ips"][0].split(",")
                geo.asked += ips
                self.send_response(200)
                self.end_headers()
                told = {ip: {"country": geo.country} for ip in ips if ip != "lost"}
                self.wfile.write(json.dumps({"mapped": told}).encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/lookup"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


@pytest.fixture
def geo():
    found = Geo()
    yield found
    found.server.shutdown()
    found.server.server_close()


def visit(name, at, ip="10.0.0.1", device="phone"):
    return {"visit": name, "at": f"2026-01-0{at}:00:00Z", "ip": ip, "device": device}


@pytest.mark.shows("05.static-joiner", 8)
def test_references_are_checked_and_what_an_api_said_is_kept_for_replays(project, geo, connect_url):
    shop = project({"pipelines/blog.py": VISITS.format(url=geo.url)})
    land(shop.folder, "1.json", [visit("a", "1T10"), visit("b", "1T11", ip="lost"), visit("c", "1T12", device=None)],
         folder="visits")  # fmt: skip
    # The reference has a key twice: nothing is published, and the error names it.
    land(shop.folder, "1.json", [{"device": "phone", "screen": "small"}] * 2, folder="devices")
    refused = shop.run(["+with_screen"], at="2026-01-02")
    assert isinstance(refused.errors[0], InputError)
    assert "more than one row of the key device = phone. Rows would be multiplied" in str(refused.errors[0])
    land(shop.folder, "1.json", [{"device": "phone", "screen": "small"}], folder="devices")  # corrected

    # Killed after what the API said is there, before it is known to be: nobody is asked again.
    words = (*LAKEWRIGHT, "run", "--at", "2026-01-02", "--select", "places")
    killed(shop.folder, *words, failpoint="published", master=connect_url)
    assert geo.asked.count("10.0.0.1") == 1
    ok(shop.run(at="2026-01-02"))
    assert shop.store.receipts.live("places", "arrival-1").recovered
    assert geo.asked.count("10.0.0.1") == 1
    assert [tuple(row) for row in rows_of(shop, "located", "visit", "screen", "country")] == [
        ("a", "small", "PL"), ("b", "small", None), ("c", None, "PL"),
    ]  # fmt: skip

    # A known address is not asked for again, whatever the API would say by now; a replay sees what was said then.
    geo.asked, geo.country = [], "FR"
    land(shop.folder, "2.json", [visit("d", "2T10"), visit("e", "2T11", ip="10.0.0.2")], folder="visits")
    ok(shop.run(at="2026-01-03"))
    ok(shop.backfill("2026-01-01", "2026-01-03", at="2026-01-04", select=["located"]))
    assert geo.asked == ["10.0.0.2"]
    countries = {row["visit"]: row["country"] for row in rows_of(shop, "located", "visit", "country")}
    assert countries == {"a": "PL", "b": None, "c": "PL", "d": "PL", "e": "FR"}

    # The reference is emptied: slices keep what they have, and nothing is made of NULLs.
    land(shop.folder, "1.json", [], folder="devices")
    land(shop.folder, "3.json", [visit("f", "3T10")], folder="visits")
    empty = shop.run(["+with_screen"], at="2026-01-04")
    assert "reads devices, which is empty. Nothing was written" in str(empty.errors[0])


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


def test_a_slice_waits_until_its_reference_is_there(store):
    blog = Pipeline("blog", start="2026-01-01")
    blog.source("raw_visits", JsonFiles("visits"), event_time="at", schema="at timestamp, user int")
    blog.source("raw_users", JsonFiles("users"), event_time="day", schema="day timestamp, user int")
    # The reference of a day is expected within six hours of its end.
    blog.add(lambda raw_users: raw_users, name="users", event_time="day", expect_within="6 hours")
    blog.add(lambda raw_visits, users: raw_visits, name="joined", event_time="at", inputs={"users": SameSlice()})
    shop = lab(store, blog)
    shop.arrive("raw_visits", "2026-01-01")
    assert shop.statuses("joined", "2026-01-02T01:00") == {"2026-01-01": "waiting"}
    assert "users lacks 2026-01-01" in shop.states("joined", "2026-01-02T01:00")["2026-01-01"].reason
    shop.arrive("raw_users", "2026-01-01")
    shop.commit("users", "2026-01-01", {"2026-01-01": 3}, raw_users=0)
    assert shop.statuses("joined", "2026-01-02T01:00") == {"2026-01-01": "due"}


RULE = {
    "keys": ["page"],
    "left_time": "seen",
    "right_time": "shown",
    "within": ("0 seconds", "2 minutes"),
    "left_watermark": "10 minutes",
    "right_watermark": "10 minutes",
}


@pytest.mark.shows("05.dynamic-joiner", 7)
def test_a_join_of_streams_that_cannot_work_is_refused_when_the_project_is_loaded():
    def graph(rule, **options):
        blog = Pipeline("blog", start="2026-01-01")
        for name, time in (("visits", "seen"), ("ads", "shown")):
            blog.source(name, KafkaTopic("broker", name), event_time=time, schema="page string", mode="stream")
        blog.add(lambda raw: raw, name="clean", inputs={"raw": Whole("visits")})
        declared = {"mode": "stream", "inputs": {"pairs": rule}, **options}
        blog.add(lambda pairs: pairs, name="seen_ads", **declared)
        return Graph(blog.datasets)

    good = DynamicJoiner(left="visits", right="ads", **RULE)
    found = graph(good)
    assert found.upstream("seen_ads") == {"visits", "ads"}
    assert found["seen_ads"].remembers
    merged = graph(good, writer=Merger(keys=["page"]))
    assert not merged.reads_changes(merged["seen_ads"])
    for rule, options, words in (
        (DynamicJoiner(right="ads", **RULE), {}, "'left' is missing: in a pipeline it names the dataset"),
        (DynamicJoiner(left="ads", right="ads", **RULE), {}, "both ads"),
        (DynamicJoiner(left="visits", right="add", **RULE), {}, "reads 'add'.*Did you mean 'ads'"),
        (DynamicJoiner(left="visits", right="clean", **RULE), {}, "clean is replaced or merged"),
        (good, {"mode": "batch"}, "is made slice by slice"),
        (good, {"guards_in": {"pairs": [LateDataDetector("1 hour")]}}, "LateDataDetector would judge what the join"),
    ):
        with pytest.raises(DefinitionError, match=rf"test_joiners\.py:\d+: .*{words}"):
            graph(rule, **options)
    for missing in ("within", "left_watermark", "right_watermark"):
        with pytest.raises(ConfigurationError, match=f"'{missing}' is missing"):
            DynamicJoiner(left="visits", right="ads", **{**RULE, missing: None})


STREAMS = """
    from lakewright import DynamicJoiner, KafkaTopic, LateDataDetector, Lookback, Pipeline, Repair

    blog = Pipeline("blog", start="2026-01-01")
    blog.source("visits", KafkaTopic("broker", "{visits}"), schema="visit string, page string, seen timestamp",
                event_time="seen", mode="stream")
    blog.source("ads", KafkaTopic("broker", "{ads}"), schema="ad string, page string, shown timestamp",
                event_time="shown", mode="stream")
    RULE = DynamicJoiner(left="visits", right="ads_in_time", keys=["page"], left_time="seen", right_time="shown",
                         within=("0 seconds", "2 minutes"), left_watermark="10 minutes", right_watermark="10 minutes",
                         how="left", idle="1 second")

    @blog.dataset(mode="stream", event_time="shown", guards_in={{"ads": [LateDataDetector("10 minutes")]}})
    def ads_in_time(ads):
        return ads

    @blog.dataset(mode="stream", event_time="seen", inputs={{"pairs": RULE}})
    def seen_ads(pairs):
        '''Visits with the ad that was shown.'''
        return pairs.selectExpr("visit", "ad", "seen")

    @blog.dataset(event_time="shown", late=Repair(within="7 days"), inputs={{"visits": Lookback("2 minutes")}})
    def ad_views(ads, visits):
        '''The same pairs by day, with what came too late for the stream.'''
        return RULE.join(visits, ads).where("ad IS NOT NULL").select("visit", "ad", "shown")
"""


@pytest.mark.shows("05.dynamic-joiner", 3, 6)
def test_two_streams_are_one_input_and_what_is_late_is_set_aside_and_repaired(project, kafka, failing, request):
    visits, ads = kafka.topic(), kafka.topic()
    settings = f'name = "blog"\n[connections.broker]\nurl = "kafka://{kafka.bootstrap}"\n'
    shop = project({"lakewright.toml": settings, "pipelines/blog.py": STREAMS.format(visits=visits, ads=ads)})

    def come(topic, *given):
        name, time = ("visit", "seen") if topic is visits else ("ad", "shown")
        send(kafka, topic, [{name: one, "page": page, time: f"2026-01-01T{at}Z"} for one, page, at in given])

    def pairs(name="seen_ads"):
        return [(row["visit"], row["ad"]) for row in rows_of(shop, name, "visit", "ad")]

    come(visits, ("v1", "/a", "10:00:00"), ("v2", "/b", "10:00:00"), ("v3", "/c", "10:10:00"))
    come(ads, ("first", "/z", "10:00:00"))
    ok(shop.run(at="2026-01-02"))
    assert pairs() == []

    # The ads are behind, and not out of their own order: they match, and once, though the work fails after the commit.
    come(ads, ("in time", "/a", "10:01:30"), ("newer", "/z", "10:30:00"))
    ok(shop.run(["ads", "ads_in_time"], at="2026-01-02"))
    failing("before_receipt" if engine_of(request.config) == "connect" else "batch_done")
    assert shop.run(["seen_ads"], at="2026-01-02").state == "failed"
    ok(shop.run(at="2026-01-02"))
    assert pairs() == [("v1", "in time")]

    # One that is later than the tolerance is set aside, and its visit goes out without it.
    come(ads, ("too late", "/b", "10:01:00"), ("later", "/z", "10:35:00"))
    come(visits, ("v4", "/d", "10:40:00"))
    wrong = ["2126-01-01T00:00:00Z", None]  # a clock that is ahead, and an event without a time
    send(kafka, visits, [{"visit": "no time", "page": "/b", "seen": at} for at in wrong])
    ok(shop.run(at="2026-01-02"))
    assert pairs() == [("v1", "in time"), ("v2", None), ("v3", None)]
    late = shop.lake.read("_lakewright/late_rows", system_columns=True).collect()
    assert [row["dataset"] for row in late] == ["ads_in_time"]
    assert sum(one.counters.held or 0 for one in shop.store.receipts.history("ads_in_time")) == 1
    letters = shop.lake.read("_lakewright/dead_letters", system_columns=True).collect()
    assert [(row["dataset"], row["rule"]) for row in letters] == [("visits", "no usable event time")] * 2
    # By day it is found: the late row makes its slice anew.
    assert pairs("ad_views") == [("v1", "in time"), ("v2", "too late")]

    state = next(one for one in shop.streams() if one.dataset == "seen_ads")
    assert (state.pairs, state.unmatched) == (1, 2)
    assert state.progress.state_rows == 3  # v4, and the newest two ads
    assert set(state.progress.heard) == {"visits", "ads_in_time"}
    joined = [one.counters for one in shop.store.receipts.history("seen_ads") if one.kind == "data"]
    assert sum(one.joined["pairs"] for one in joined) == 1
    assert not any(one.rejected for one in joined)  # nothing was dropped behind the watermark

    # Visits go on alone: people are told who keeps them waiting.
    come(visits, ("v5", "/d", "10:50:00"))
    ok(shop.run(["visits", "seen_ads"], at="2026-01-02"))
    told = [one.message for one in shop.store.findings.latest("seen_ads") if one.subject == "silent input"]
    assert any("ads_in_time has brought no rows since" in one for one in told)
