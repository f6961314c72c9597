"""A user's function that raises on one record: that one is set aside, in batch and in streams, and the rest goes on."""

from __future__ import annotations

from lakewright.pipelines.accounts import accounts_of
from tests.pipelines.shop import ok, rows_of
from tests.pipelines.streaming import send, visit, visits_project

NUMBERED = """
    from lakewright import tolerant

    def once(marker, error):
        '''Raise where the marker is not there yet.'''
        try:
            open(marker, "x").close()
        except FileExistsError:
            return
        raise error

    def number_of(page):
        once("FOLDER/asked", TimeoutError("no answer"))
        return int(page.removeprefix("/"))

    GUARDS = {"raw": [DeadLetter(rules={"has_page": "page IS NOT NULL", "numbered":
                                        tolerant(number_of, returns="int").rule("page")})]}

    @visits.dataset(mode="stream", event_time="at", guards_in=GUARDS)
    def streamed(raw):
        return raw

    @visits.dataset(event_time="at", rows="preserve", guards_in=GUARDS)
    def batched(raw):
        return raw
"""


def test_a_poison_record_is_set_aside_with_what_the_function_said_in_batch_and_in_a_stream(project, kafka, tmp_path):
    topic = kafka.topic()
    send(kafka, topic, [visit(1, page="/7"), visit(2, page="/poison"), visit(3, page=None), visit(4, page="/8")])
    shop = project(visits_project(kafka, topic, NUMBERED.replace("FOLDER", str(tmp_path))))
    # The service that the function asks is away for a moment: that is the fault of no record.
    attempts = {}
    for name in ("streamed", "batched"):
        (tmp_path / "asked").unlink(missing_ok=True)
        done = ok(shop.run([name] if attempts else ["raw", name], at="2026-01-03"))
        attempts[name] = {outcome.attempts for outcome in done.made if outcome.dataset == name}
    assert attempts == {"streamed": {2}, "batched": {2}}
    found = shop.lake.read("_lakewright/dead_letters", system_columns=True).collect()
    for name in ("streamed", "batched"):
        assert [row["id"] for row in rows_of(shop, name, "id")] == ["v1", "v4"]
        letters = {row["offset"]: row for row in found if row["dataset"] == name}
        assert {place: row["rules"] for place, row in letters.items()} == {1: ["numbered"], 2: ["has_page", "numbered"]}
        assert letters[1]["error"] == "ValueError: invalid literal for int() with base 10: 'poison'"
        assert letters[2]["error"].startswith("AttributeError")
    (account,) = accounts_of(shop.store, "batched")
    assert (account.read, account.kept, account.rejected) == (4, 2, {"numbered": 1, "has_page": 1})
    assert account.balanced
