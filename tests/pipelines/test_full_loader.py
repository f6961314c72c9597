"""Full Loader in a pipeline: each delivery replaces the one before, and a bad one leaves it in place."""

from __future__ import annotations

import pytest

from lakewright.errors import DefinitionError
from lakewright.failpoints import FailpointReached, arm
from tests.pipelines.shop import made, ok

PIPELINE = """
    from lakewright import CsvFiles, FullLoader, Pipeline

    shop = Pipeline("shop", schedule="@daily", start="2026-01-01")
    shop.source("devices", CsvFiles("provider", delimiter=";"), load=FullLoader(max_loss=0.5),
                schema="type string, full_name string, version string")

    @shop.dataset()
    def names(devices):
        return devices.selectExpr("upper(full_name) AS name")
"""
HEADER = "type;full_name;version\n"
ONE = HEADER + "phone;Galaxy;1.0\ntablet;Slate;2.0\nwatch;Tick;1.2\n"
TWO = HEADER + "phone;Galaxy;1.1\ntablet;Slate;2.0\nlaptop;Pad;9.0\n"


def deliver(shop, text: str, name: str = "devices.csv") -> None:
    (shop.folder / "provider").mkdir(exist_ok=True)
    (shop.folder / "provider" / f".{name}").write_text(text)
    (shop.folder / "provider" / f".{name}").replace(shop.folder / "provider" / name)


def rows(shop, name="devices"):
    return sorted(tuple(row) for row in shop.lake.read(name).collect())


def lines(text: str):
    return sorted(tuple(line.split(";")) for line in text.splitlines()[1:])


@pytest.mark.shows("02.full-loader", 1)
@pytest.mark.shows("02.full-loader", 5)
@pytest.mark.shows("02.full-loader", 6)
def test_a_delivery_replaces_the_one_before_survives_a_kill_and_can_be_taken_back(project):
    shop = project({"pipelines/shop.py": PIPELINE})
    deliver(shop, ONE)
    assert made(ok(shop.run(at="2026-01-02"))) == {("devices", "arrival-1"), ("names", "whole")}
    first = shop.lake.log("devices").latest()
    assert not ok(shop.run(at="2026-01-02")).outcomes, "nothing was delivered since"

    deliver(shop, TWO)
    arm({"LAKEWRIGHT_FAILPOINT": "leased", "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    try:
        assert isinstance(shop.run(at="2026-01-03").errors[0], FailpointReached)
    finally:
        arm({})
    assert rows(shop) == lines(ONE)
    assert made(ok(shop.run(at="2026-01-03"))) == {("devices", "arrival-2"), ("names", "whole")}
    assert rows(shop) == lines(TWO)
    assert [row["name"] for row in sorted(shop.lake.read("names").collect())] == ["GALAXY", "PAD", "SLATE"]
    old = shop.lake.read("devices", version=first)
    assert sorted(tuple(row) for row in old.collect()) == lines(ONE)

    # Reading the sources again brings the newest delivery only: an older one does not come back by itself.
    ok(shop.backfill("2026-01-01", "2026-01-04", sources=True))
    assert rows(shop) == lines(TWO)
    shop.rollback("devices", to=first)
    assert rows(shop) == lines(ONE)
    assert ("devices", "arrival-3") not in made(ok(shop.run(at="2026-01-03"))), "the same delivery is not taken again"
    assert rows(shop) == lines(ONE)

    # A second file belongs to the whole; without it, the whole is smaller again.
    deliver(shop, HEADER + "tv;Big;3\n", "more.csv")
    assert ("devices", "arrival-3") in made(ok(shop.run(at="2026-01-03")))
    assert rows(shop) == sorted([*lines(TWO), ("tv", "Big", "3")])
    (shop.folder / "provider" / "more.csv").unlink()
    assert ("devices", "arrival-4") in made(ok(shop.run(at="2026-01-03")))
    assert rows(shop) == lines(TWO)


@pytest.mark.shows("02.full-loader", 7)
def test_a_bad_delivery_is_named_and_leaves_the_good_one_in_place(project):
    shop = project({"pipelines/shop.py": PIPELINE})
    deliver(shop, ONE)
    ok(shop.run(["devices"], at="2026-01-02"))
    bad = {
        HEADER: "the load has 0 rows, and min_rows is 1",
        "": "the load has 0 rows",
        HEADER + "phone;Galaxy;1.0\ntablet;Sl": "1 record of 2 cannot be read, the first in devices.csv: 'tablet;Sl'",
        HEADER + "phone;Galaxy;1.0\n": "has 1 row where there were 3",
        "kind;full_name;version\nphone;Galaxy;1.0\n": "devices.csv",
    }
    for text, message in bad.items():
        deliver(shop, text)
        (error,) = shop.run(["devices"], at="2026-01-02").errors
        assert message in str(error), text
        assert rows(shop) == lines(ONE)
    (shop.folder / "provider" / "devices.csv").unlink()
    (error,) = shop.run(["devices"], at="2026-01-02").errors
    assert "the source is empty now" in str(error)
    assert rows(shop) == lines(ONE)
    deliver(shop, TWO)
    ok(shop.run(["devices"], at="2026-01-02"))
    assert rows(shop) == lines(TWO)


def test_what_cannot_be_loaded_whole_is_refused_when_the_project_is_loaded(project):
    for source, message in {
        'KafkaTopic("broker", "devices")': "of KafkaTopic it cannot be read whole",
        'CsvFiles("provider", max_files=1)': "max_files takes only a part",
        'Jdbc("db", table="devices", cursor="id")': "the cursor 'id' takes only what is new",
    }.items():
        text = f"""
            from lakewright import CsvFiles, FullLoader, Jdbc, KafkaTopic, Pipeline
            shop = Pipeline("shop")
            shop.source("devices", {source}, load=FullLoader(), schema="type string")
        """
        with pytest.raises(DefinitionError, match=message):
            project({"pipelines/shop.py": text}).graph  # noqa: B018
