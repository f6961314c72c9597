"""Static Joiner over HTTP, against a real server on this machine: each key once, and no row lost."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.patterns.delta import rows

from lakewright import LookupApi, ask_api, enrich_from_api, join_as_of, materialise_api
from lakewright.connectors.lookup_api import look_up
from lakewright.errors import ConfigurationError, InputError


class Places:
    """Countries of addresses; ``wrong`` says how the next calls are answered, ``unknown`` what is left out."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.wrong: list[object] = []
        self.left_out: set[str] = set()
        self.country = "PL"
        places = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(parse_qs(urlsplit(self.path).query)["ips"][0].split(","))

            def do_POST(self) -> None:
                self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["ips"])

            def answer(self, ips: list[str]) -> None:
                places.calls.append(ips)
                wrong = places.wrong.pop(0) if places.wrong else None
                if wrong == "nothing":  # the connection is closed without a word
                    return
                self.send_response(wrong if isinstance(wrong, int) else 200)
                self.send_header("Retry-After", "7")
                self.end_headers()
                told = {ip: {"country": places.country, "lat": 1.5} for ip in ips if ip not in places.left_out}
                told |= {ip: None for ip in ips if ip == "private"}
                body = json.dumps({"mapped": told}) if not isinstance(wrong, str) else wrong
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def api(self, **options: object) -> LookupApi:
        url = f"http://127.0.0.1:{self.server.server_port}/lookup"
        return LookupApi(url, **{"keys": "ips", "answers": "mapped", "per_second": 1000.0, "tries": 3, **options})

    def look_up(self, keys: list[str], **options: object) -> tuple[dict[str, str], list[float]]:
        """What came of each key in a word, and the pauses that were made."""
        pauses: list[float] = []
        found = list(look_up(keys, self.api(**options), sleep=pauses.append))
        assert [one.key for one in found] == keys
        return {one.key: one.problem or one.value["country"] for one in found}, [p for p in pauses if p >= 0.1]


@pytest.fixture
def places():
    made = Places()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.mark.shows("05.static-joiner", 7)
def test_what_an_api_does_wrong_is_tried_again_and_then_told_of_each_key(places):
    # A limit and a failure pass: the pause is the one that the server asks for.
    places.wrong = [429, 500]
    assert places.look_up(["a", "b"]) == ({"a": "PL", "b": "PL"}, [7.0, 7.0])
    assert places.calls == [["a", "b"]] * 3
    # Lasting ones are told after as many tries as allowed, and the next call goes on.
    places.wrong, places.calls = [500, 500, 500], []
    told, _ = places.look_up(["a", "b"], per_call=1)
    assert told == {"a": "answers HTTP 500 Internal Server Error", "b": "PL"}
    assert len(places.calls) == 4
    places.wrong = ["nothing"] * 3
    assert "cannot be reached" in places.look_up(["a"])[0]["a"]
    places.wrong = [404]
    assert places.look_up(["a"])[0] == {"a": "answers HTTP 404 Not Found"}
    # Garbage is asked for again; so is what an answer leaves out, and only that.
    places.wrong = ["<html>", "[]"]
    assert places.look_up(["a"])[0] == {"a": "it sends something else than was asked for"}
    places.wrong, places.calls, places.left_out = ["<html>"], [], {"b"}
    assert places.look_up(["a", "b", "private"])[0] == {
        "a": "PL",
        "b": "the API left it out",
        "private": "the API does not know it",
    }
    assert places.calls == [["a", "b", "private"]] * 2
    places.calls = []
    places.look_up(["a", "b"], ask_again=2)
    assert places.calls == [["a", "b"], ["b"], ["b"]]
    # No more calls a second than allowed: nobody really waits here, so the second one would have to wait for both.
    _, pauses = places.look_up(["x", "y", "z"], per_call=1, per_second=0.1)
    assert [round(pause, -1) for pause in pauses] == [10, 20]
    # An API that is down is left alone after a while.
    places.wrong, places.calls = [503] * 100, []
    told, _ = places.look_up(["c", "d", "e", "f"], per_call=1, tries=1, give_up_after=2)
    assert [len(places.calls), "not asked: 2 calls before it failed" in told["f"]] == [2, True]
    # By POST a key may hold a comma; a list tells its key by a field.
    places.wrong = []
    assert places.look_up(["x,y", "z"])[0] == {"x,y": 'a comma in a key: ask by method="POST"', "z": "PL"}
    assert places.look_up(["x,y"], method="POST")[0] == {"x,y": "PL"}
    places.wrong = ['[{"ip": "a", "country": "FR"}, "b", {"ip": "other", "country": "XX"}]']
    assert places.look_up(["a"], answers="", key_field="ip")[0] == {"a": "FR"}
    for wrong in ({"url": "ftp://x"}, {"per_call": 0}, {"method": "PUT"}):
        with pytest.raises(ConfigurationError, match="LookupApi"):
            LookupApi(**{"url": "http://x/y", **wrong})


VALUES = "country string, lat double"


@pytest.mark.shows("05.static-joiner", 6, 7)
def test_all_rows_are_delivered_and_each_address_is_asked_for_once_in_bulk(spark, places, tmp_path):
    visits = spark.range(250).selectExpr("id", "concat('10.0.0.', id) AS ip")
    enriched = enrich_from_api(visits, key="ip", api=places.api(), values=VALUES)
    assert enriched.rows.where("enrichment = 'enriched' AND country = 'PL' AND lat = 1.5").count() == 250
    assert enriched.not_enriched.count() == 0
    assert sorted(map(len, places.calls)) == [50, 100, 100]
    assert len({ip for call in places.calls for ip in call}) == 250

    # What has no key or no answer stays, with the problem: among the rows, or apart from them.
    places.calls, places.left_out = [], {"10.0.0.2"}
    few = spark.sql("SELECT * FROM VALUES (1, '10.0.0.1'), (2, '10.0.0.2'), (3, '10.0.0.1'), (4, NULL) AS t(id, ip)")
    found = enrich_from_api(few, key="ip", api=places.api(), values="country string", sleep=lambda _: None)
    assert rows(found.rows.select("id", "country", "enrichment", "enrichment_problem")) == [
        (1, "PL", "enriched", None),
        (2, None, "not_enriched", "the API left it out"),
        (3, "PL", "enriched", None),
        (4, None, "not_enriched", "it has no key"),
    ]
    assert rows(found.enriched) == [(1, "10.0.0.1", "PL"), (3, "10.0.0.1", "PL")]
    assert [row["id"] for row in found.not_enriched.orderBy("id").collect()] == [2, 4]
    assert sorted(map(sorted, places.calls)) == [["10.0.0.1", "10.0.0.2"], ["10.0.0.2"]]

    # A value of another type is no value: Spark would read it as NULL, and nobody would know.
    places.wrong = ['{"mapped": {"10.0.0.1": {"country": "PL", "lat": "north"}}}']
    wrong = ask_api(few.where("id = 1"), key="ip", api=places.api(), values=VALUES, at="2026-01-01").collect()
    assert [row["enrichment_problem"] for row in wrong] == ["it sends something else than a number as lat"]

    for options, error, words in (
        ({"max_keys": 1}, InputError, "more than 1 different values of ip"),
        ({"stop_above": 0.4}, InputError, r"1 of 2 keys \(50.0%\) got no answer"),
        ({"key": "ipp"}, InputError, "no column ipp"),
        ({"values": "IP string"}, ConfigurationError, "which is the key itself"),
        ({"values": "ID int"}, ConfigurationError, "already has a column id"),
    ):
        with pytest.raises(error, match=words):
            enrich_from_api(few, **{"key": "ip", "api": places.api(), "values": VALUES, **options})

    # A copy with the time of each answer: a replay asks nobody, and sees what was said then.
    copy = str(tmp_path / "places")

    def copied(at: str, **options: object) -> tuple[int, int]:
        done = materialise_api(few, copy, key="ip", api=places.api(), values=VALUES, at=at, **options)
        return done.asked, done.answered

    assert copied("2026-01-01T10:00", portion=1) == (2, 1)  # a commit per portion
    places.left_out, places.calls, places.country = set(), [], "FR"
    assert copied("2026-01-09T10:00", fresh_for="7 days") == (2, 2)  # one was never answered, the other is old
    assert copied("2026-01-09T11:00", fresh_for="7 days") == (0, 0)
    assert [sorted(call) for call in places.calls] == [["10.0.0.1", "10.0.0.2"]]
    seen = few.selectExpr("id", "ip", "explode(array(1, 5, 10)) AS day").selectExpr(
        "*", "timestamp(make_date(2026, 1, day)) AS at"
    )
    versions = spark.read.format("delta").load(copy).drop("is_current")
    options = {"valid_from": "asked_at", "before_first": "extend", "overlaps": "refuse", "columns": ["country"]}
    told = rows(join_as_of(seen, versions, keys=["ip"], at="at", **options).select("day", "id", "country"))
    then, now = ["PL", "FR", "PL", None], ["FR", "FR", "FR", None]
    assert [country for _, _, country in told] == [*then, *now, *then]  # in the order of texts: 1, 10, 5
    known = spark.read.format("delta").load(copy)
    assert ask_api(few, key="ip", api=places.api(), values=VALUES, at="2026-01-01", known=known).count() == 0
