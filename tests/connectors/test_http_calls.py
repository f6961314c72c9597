"""Requests over HTTP, what of them may be shown: no Spark, and nobody is asked."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from lakewright.connectors.http_calls import Caller, HttpFailure
from lakewright.connectors.http_ordered import HttpSink
from lakewright.connectors.lookup_api import LookupApi
from lakewright.connectors.rest import _fetcher
from lakewright.connectors.rest_pages import NumberedPages
from lakewright.errors import TargetError
from lakewright.masking import mask
from lakewright.patterns.data_value.ordered_sinks import Outgoing

NOBODY = "http://127.0.0.1:1/visits"


def test_tasks_that_post_or_ask_with_a_secret_header_know_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr("lakewright.connectors.http_calls.remember", seen.append)
    monkeypatch.setenv("PARTNER_TOKEN", "Ht31-token")
    headers = {"Accept": "text/csv", "Authorization": "secret://env/PARTNER_TOKEN"}
    # A feed and an orderer both look secrets up; a task gets what is left, as a pickle.
    sink = pickle.loads(pickle.dumps(HttpSink(NOBODY, headers=headers).prepared({}).prepared({})))
    assert "Ht31" not in repr(sink)
    sink.open()
    assert seen == ["Ht31-token"]
    fetch = _fetcher(NOBODY, {}, "", NumberedPages(), {"headers": sink.headers}, ("Authorization",))
    assert list(fetch(iter([]))) == []
    assert seen == ["Ht31-token"] * 2


@pytest.mark.parametrize("value", ["Ht32-token\n", "Ht32-token€"])
def test_a_header_that_http_cannot_send_is_told_by_its_name_and_not_tried_again(value: str) -> None:
    caller = Caller({"Accept": "text/csv", "Authorization": value}, sleep=lambda seconds: pytest.fail("tried again"))
    with pytest.raises(HttpFailure, match="the value of the header Authorization holds a line break") as told:
        caller.get(NOBODY)
    assert "Ht32" not in str(told.value)
    sink = HttpSink(NOBODY, headers={"Authorization": value})
    with pytest.raises(TargetError, match="Correct the address, the headers") as refused:
        sink.open().send([Outgoing("k", 1, "id", b"{}", "")])
    assert "Ht32" not in str(refused.value)


def test_a_lookup_has_its_secrets_from_a_folder_as_the_other_apis_have(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "geo").write_text("Lk41-token\n")
    api = LookupApi(NOBODY, headers={"Authorization": "secret://file/keys/geo"}, folder=tmp_path)
    assert api.caller().headers == {"Authorization": "Lk41-token"}
    assert mask("Lk41-token") == "***"
