"""A REST API as a source, against a real server on this machine: pages, limits, failures, and what is new."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.pipelines.shop import made, ok, rows_of

from lakewright.connectors.http_calls import Caller, HttpFailure
from lakewright.connectors.rest import RestApi
from lakewright.connectors.rest_pages import CursorPages, LinkedPages, NumberedPages, read_pages
from lakewright.errors import ConfigurationError, InputError


class Api:
    """Visits behind an address; ``fail`` is a list of codes for the next answers."""

    def __init__(self) -> None:
        self.visits: list[str] = []
        self.fail: list[int] = []
        self.asked: list[dict[str, str]] = []
        self.tokens: list[str | None] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
                api.asked.append(asked)
                api.tokens.append(self.headers.get("Authorization"))
                code = api.fail.pop(0) if api.fail else 200
                body, headers = api.answer(parts.path, asked) if code == 200 else ("", {"Retry-After": "0"})
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, path: str, asked: dict[str, str]) -> tuple[str, dict[str, str]]:
        since = asked.get("since", "")
        chosen = [text for text in self.visits if json.loads(text).get("at", "9") >= since[:19]]
        size = int(asked.get("size", 2))
        page = int(asked.get("page") or asked.get("cursor") or 1)
        items = ", ".join(chosen[(page - 1) * size : page * size])
        more = page * size < len(chosen)
        if path == "/cursor":
            return f'{{"meta": {{"n": {len(chosen)}, "next": {page + 1 if more else "null"}}}, "data": [{items}]}}', {}
        if path == "/linked":
            return f"[{items}]", {"Link": f'</linked?page={page + 1}>; rel="next"'} if more else {}
        return f"[{items}]", {}


@pytest.fixture
def api():
    made = Api()
    yield made
    made.server.shutdown()
    made.server.server_close()


def visit(number: int, at: str = "2026-01-05T10:00:00", **more: object) -> str:
    return json.dumps({"visit_id": f"v{number}", "at": at, **more})


def test_every_record_of_every_page_comes_as_it_was_written(api):
    odd = [
        '{"visit_id": "v1",  "n": 1.10}',
        '{"visit_id": "v2", "n": 12345678901234567890.123, "deep": {"a": [1]}}',
        "7",
    ]
    api.visits = [*odd[:2], '{"visit_id": "v3"}', '{"visit_id": "v4"}', '{"visit_id": "v5"}']
    for path, items, pages in (
        ("/numbered", "", NumberedPages()),
        ("/numbered", "", NumberedPages(size_param="size", size=2)),
        ("/cursor", "data", CursorPages(next="meta.next")),
        ("/linked", "", LinkedPages()),
    ):
        found = list(read_pages(api.url + path, {}, items=items, pages=pages, caller=Caller(per_second=1e6)))
        assert [record for _, records in found for record in records] == api.visits
        assert [name for name, _ in found] == ["page 1", "page 2", "page 3"]
    with pytest.raises(HttpFailure, match="should send JSON with a list at 'wrong'"):
        list(read_pages(f"{api.url}/cursor", {}, items="wrong", pages=CursorPages(), caller=Caller()))


def test_what_may_pass_is_tried_again_and_the_limit_of_requests_is_kept(api):
    pauses: list[float] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    caller = Caller(per_second=2, tries=3, sleep=sleep, clock=lambda: now[0])
    api.visits = [visit(1)]
    api.fail = [503, 429]
    assert caller.get(f"{api.url}/numbered").body == f"[{visit(1)}]".encode()
    assert pauses == [0.0, 0.5, 0.0, 0.5], "the server asks for no patience, and we send two requests a second"
    api.fail = [500, 500, 500]
    with pytest.raises(HttpFailure, match="answers HTTP 500"):
        caller.get(f"{api.url}/numbered?token=secret")
    api.fail = [404]
    with pytest.raises(HttpFailure, match="/numbered answers HTTP 404") as told:
        caller.get(f"{api.url}/numbered?token=secret")
    assert "secret" not in str(told.value)
    with pytest.raises(HttpFailure, match="cannot be reached"):
        Caller(tries=2, sleep=sleep).get("http://127.0.0.1:1/")


def test_wrong_addresses_are_told_at_once():
    for options in (
        {"url": "ftp://x"},
        {"url": "https://u:p@x"},
        {"url": "https://x", "until": "to"},
        {"url": "https://x", "tries": 0},
    ):
        with pytest.raises(ConfigurationError, match="RestApi"):
            RestApi(**options)


PIPELINE = """
    from lakewright import CursorPages, FullLoader, IncrementalLoader, Pipeline, RestApi

    legacy = Pipeline("legacy", start="2026-01-01")
    legacy.source("visits", RestApi("{url}/cursor", items="data", pages=CursorPages(next="meta.next"), since="since",
                                    headers={{"Authorization": "secret://env/API_TOKEN"}}, per_second=1000, tries=2),
                  load=IncrementalLoader(cursor="at"), schema="visit_id string, at timestamp")
    legacy.source("everything", RestApi("{url}/numbered", per_second=1000), load=FullLoader(unreadable="keep"),
                  schema="visit_id string, at timestamp")
"""


def test_a_pipeline_takes_what_is_new_once_and_survives_a_server_that_is_down(project, api, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "very-secret-token")
    odd = '{"visit_id": ["odd"], "at": "2026-01-05T11:00:00"}'
    api.visits = [visit(1), visit(2), visit(3, "2026-01-05T12:00:00"), odd]
    shop = project({"pipelines/legacy.py": PIPELINE.format(url=api.url)})
    assert made(ok(shop.run(at="2026-01-05T12:00"))) == {("visits", "arrival-1"), ("everything", "arrival-1")}
    taken = shop.lake.read("visits", system_columns=True).select("visit_id", "_lw_raw").collect()
    assert sorted(str(row["visit_id"]) for row in taken) == ['["odd"]', "v1", "v2"], "12:00 belongs to the next one"
    assert "very-secret-token" in api.tokens
    assert not ok(shop.run(["visits"], at="2026-01-05T12:00")).outcomes

    api.visits.append(visit(5, "2026-01-05T13:00:00"))
    api.fail = [500, 500, 500, 500]
    (error,) = shop.run(["visits"], at="2026-01-05T14:00").errors
    assert isinstance(error, InputError)
    assert "answers HTTP 500" in str(error)
    api.fail = []
    ok(shop.run(at="2026-01-05T14:00"))
    assert [row["visit_id"] for row in rows_of(shop, "visits", "visit_id")] == ['["odd"]', "v1", "v2", "v3", "v5"]
    assert len(rows_of(shop, "everything")) == 5
