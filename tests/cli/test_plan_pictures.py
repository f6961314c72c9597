"""The graph of a plan in the terminal and as Mermaid, its expected duration, and why each step runs: no Spark."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from tests.pipelines.lab import LOOKED_AT, Lab, lab
from tests.pipelines.planned import planned, took

from lakewright import JsonFiles, Pipeline, UnalignedFanIn
from lakewright.cli.plan_expected import expected_lines, expected_table, in_words, slow_lines
from lakewright.cli.plan_explain import explained
from lakewright.cli.plan_graph import WIDTH, graph_of
from lakewright.cli.plan_mermaid import mermaid_of
from lakewright.connectors.kafka import KafkaTopic
from lakewright.model.references import SameSlice, Whole
from lakewright.patterns.data_flow.exclusive_choice import ByParameter, ExclusiveChoice
from lakewright.patterns.data_flow.unaligned_fan_in import AtLeast
from lakewright.pipelines.durations import forecast
from lakewright.pipelines.explain import explain
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.planning import Plan
from lakewright.store import Store, open_store

from .conftest import Lakewright


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


def shown(plan: Plan, bench: Lab, width: int = WIDTH) -> list[str]:
    found = forecast(plan, bench.graph, bench.store, parallel=2)
    return graph_of(plan, bench.graph, found, width=width).plain.splitlines()


def flowchart(plan: Plan, bench: Lab) -> list[str]:
    return mermaid_of(plan, bench.graph, forecast(plan, bench.graph, bench.store, parallel=2)).splitlines()


def blog(regions: int = 2) -> Pipeline:
    """A source, a step, a branch for each region, and what reads all branches."""
    found = Pipeline("blog", start="2026-01-01")
    found.source("raw", JsonFiles("landing"), schema="at timestamp", event_time="at")
    found.sql("clean", "SELECT * FROM raw", event_time="at", layer="silver")
    names = [f"region_{number:02}" for number in range(1, regions + 1)]
    for name in names:
        found.sql(name, "SELECT * FROM clean", event_time="at", layer="silver")
        found.sql(f"{name}_daily", f"SELECT * FROM {name}", event_time="at", layer="gold")
    total = " UNION ALL ".join(f"SELECT * FROM {name}_daily" for name in names)
    found.sql("total", total, event_time="at", layer="gold")
    return found


def test_each_dataset_stands_below_what_it_comes_from(store: Store):
    bench = lab(store, blog())
    bench.arrive("raw", "2026-01-05")
    took(store, "clean", 4)
    took(store, "region_02", 9)
    assert shown(planned(bench), bench) == [
        "as of 2026-02-01 00:00 UTC",
        "└─ ○ raw  bronze, by arrival  fresh  [JsonFiles]",
        "   └─ ● clean  silver, by day  1 missing  4.0 s ★",
        "      ├─ ◐ region_01  silver, by day  1 stale  no past run yet",
        "      │  └─ ◐ region_01_daily  gold, by day  1 stale  no past run yet",
        "      ├─ ◐ region_02  silver, by day  1 stale  9.0 s ★",
        "      │  └─ ◐ region_02_daily  gold, by day  1 stale  no past run yet ★",
        "      └─ ◐ total  gold, by day  1 stale  no past run yet ★  ◂ region_01_daily, region_02_daily",
        "● due   ◐ stale   ○ fresh   ★ on the longest chain",
    ]


def test_the_picture_has_its_colours_and_makes_sense_without_them(store: Store):
    bench = lab(store, blog())
    bench.arrive("raw", "2026-01-05")
    plan = planned(bench)
    picture = graph_of(plan, bench.graph, forecast(plan, bench.graph, store, parallel=2))
    terminal = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=WIDTH)
    with terminal.capture() as coloured:
        terminal.print(picture)
    assert "\x1b[32m" in coloured.get()
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured.get()).split() == picture.plain.split()


def test_branches_that_are_alike_are_folded_and_those_that_differ_are_not(store: Store):
    bench = lab(store, blog(regions=24))
    bench.arrive("raw", "2026-01-05")
    bench.commit("clean", "2026-01-05", {"2026-01-05": 3}, raw=0)
    bench.commit("region_07", "2026-01-05", {"2026-01-05": 3}, clean=0)
    assert shown(planned(bench), bench)[1:-1] == [
        "└─ ○ raw  bronze, by arrival  fresh  [JsonFiles]",
        "   └─ ○ clean  silver, by day  fresh",
        "      ├─ ● region_01 and 22 alike, up to region_24  silver, by day  1 missing  no past run yet",
        "      │  └─ ◐ region_01_daily  gold, by day  1 stale  no past run yet",
        "      ├─ ○ region_07  silver, by day  fresh",
        "      │  └─ ● region_07_daily  gold, by day  1 missing  no past run yet",
        "      └─ ◐ total  gold, by day  1 stale  no past run yet  ◂ region_01_daily and 23 more",
    ]


def marked() -> list[Pipeline]:
    """One of each: a stream, a choice, a trigger rule, another pipeline, a reference that makes nothing stale."""
    first = Pipeline("first", start="2026-01-01", parameters={"kind": ["delta", "csv"]})
    first.source("clicks", KafkaTopic("broker", "clicks"), schema="at timestamp", event_time="at", mode="stream")
    first.sql("hourly", "SELECT * FROM clicks", event_time="at", grid="hour")
    first.sql("tables", "SELECT * FROM hourly", event_time="at", grid="hour")
    first.sql("files", "SELECT * FROM hourly", event_time="at", grid="hour")
    first.choose("output", ExclusiveChoice(by=ByParameter("kind"), branches={"delta": "tables", "csv": "files"}))
    second = Pipeline("second", start="2026-01-01")
    second.sql("daily", "SELECT * FROM hourly", event_time="at", fan_in=UnalignedFanIn(rule=AtLeast(18)))
    second.sql(
        "facts", "SELECT * FROM daily JOIN files", event_time="at", inputs={"daily": SameSlice(), "files": Whole()}
    )
    return [first, second]


def test_streams_rules_choices_and_other_pipelines_are_marked(store: Store):
    bench = lab(store, *marked())
    text = "\n".join(shown(planned(bench), bench))
    assert "· clicks  bronze, by arrival  nothing yet  [pipeline first]  [KafkaTopic]  [stream]" in text
    assert re.search(r"daily .*\[pipeline second\]  \[fan-in: at least 18 parts; ", text)
    assert "[branch delta of output, " in text
    assert "◂ daily, files (Whole)" in text
    lines = flowchart(planned(bench), bench)
    assert '  subgraph p_first["first"]' in lines
    assert '  subgraph p_second["second"]' in lines
    assert any(
        line.startswith('    d_clicks[("clicks<br/>bronze, by arrival<br/>KafkaTopic<br/>stream<br/>') for line in lines
    )
    assert any("fan-in: at least 18 parts" in line for line in lines)
    assert '  d_files -. "Whole" .-> d_facts' in lines
    assert '  c_0 -. "csv" .-> d_files' in lines


def test_a_flowchart_has_a_class_for_how_each_dataset_stands(store: Store):
    bench = lab(store, blog(regions=1))
    bench.arrive("raw", "2026-01-05")
    bench.commit("clean", "2026-01-05", {"2026-01-05": 3}, raw=0)
    took(store, "region_01", 3)
    plan = planned(bench)
    assert flowchart(plan, bench) == [
        "flowchart LR",
        '  subgraph p_blog["blog"]',
        '    d_raw[("raw<br/>bronze, by arrival<br/>JsonFiles<br/>fresh")]:::fresh',
        '    d_clean["clean<br/>silver, by day<br/>fresh"]:::fresh',
        '    d_region_01["region_01<br/>silver, by day<br/>1 missing<br/>about 3.0 s"]:::due',
        '    d_region_01_daily["region_01_daily<br/>gold, by day<br/>1 stale"]:::stale',
        '    d_total["total<br/>gold, by day<br/>1 stale"]:::stale',
        "  end",
        "  d_raw --> d_clean",
        "  d_clean --> d_region_01",
        "  d_region_01 --> d_region_01_daily",
        "  d_region_01_daily --> d_total",
        "  class d_region_01,d_region_01_daily,d_total critical",
        "  classDef due fill:#d7f0dd,stroke:#2f7d46,color:#12321c",
        "  classDef stale fill:#efdcf5,stroke:#7f3d96,color:#32133d",
        "  classDef fresh fill:#f1f1f1,stroke:#8a8a8a,color:#333333",
        "  classDef critical stroke-width:4px",
    ]
    assert flowchart(planned(bench), bench) == flowchart(plan, bench)


def test_names_with_odd_characters_have_safe_ids_of_their_own(store: Store):
    first, second = blog(regions=1).datasets[:2]
    names = ['sales "2026" [eu]', "end", "sales__22_2026_22___5b_eu_5d_", "a#b<c>`d`\n\u001b[31m", "名前"]
    datasets = [replace(first, name=name) for name in names[:-1]]
    datasets.append(replace(second, name=names[-1], inputs=(replace(second.inputs[0], dataset=names[0]),)))
    bench = Lab(store, Graph(datasets))
    plan = planned(bench)
    lines = flowchart(plan, bench)
    nodes = [line for line in lines if ":::" in line]
    ids = [re.match(r"    (d_[A-Za-z0-9_]+)[\[(]", line) for line in nodes]
    assert len({found[1] for found in ids if found is not None}) == len(names)
    for line in nodes:
        label = line[line.index('"') + 1 : line.rindex('"')]
        assert '"' not in label
        assert label.isprintable()
        assert not re.search(r"<(?!br/>)", label)
    assert any("a#35;b#lt;c#gt;#96;d#96;" in line for line in nodes)
    text = "\n".join(shown(plan, bench))
    assert "\u001b" not in text
    assert len(text.splitlines()) == len(names) + 2


def test_no_line_of_the_graph_is_wider_than_100_columns(store: Store):
    found = Pipeline("deep", start="2026-01-01")
    found.source("raw", JsonFiles("landing"), schema="at timestamp", event_time="at")
    above = "raw"
    for number in range(60):
        name = f"step_{number:02}_{'long' * 20}"
        found.sql(name, f"SELECT * FROM {above}", event_time="at")
        above = name
    bench = lab(store, found)
    for width in (WIDTH, 60):
        lines = shown(planned(bench), bench, width)
        assert max(map(cell_len, lines)) <= width
        assert len(lines) == 61 + 2
    assert any("⋯60 " in line for line in lines)


def test_two_hundred_datasets_are_drawn_well_under_a_second(store: Store):
    found = Pipeline("many", start="2026-01-01")
    for number in range(20):
        found.source(f"raw_{number}", JsonFiles(f"landing/{number}"), schema="at timestamp", event_time="at")
    for number in range(179):
        reads = [f"raw_{number % 20}"] + ([f"step_{number - 20}"] if number >= 20 else [])
        query = " UNION ALL ".join(f"SELECT * FROM {name}" for name in reads)
        found.sql(f"step_{number}", query, event_time="at", layer="gold" if number % 3 else "silver")
    found.sql("total", " UNION ALL ".join(f"SELECT * FROM step_{n}" for n in range(179)), event_time="at")
    bench = lab(store, found)
    assert len(bench.graph.datasets) == 200
    bench.arrive("raw_3", "2026-01-05")
    plan = planned(bench)
    began = time.process_time()
    expected = forecast(plan, bench.graph, store, parallel=4)
    graph_of(plan, bench.graph, expected)
    mermaid_of(plan, bench.graph, expected)
    explained(plan, explain(plan, bench.graph, store, LOOKED_AT))
    assert time.process_time() - began < 1


def test_an_empty_plan_is_said_to_be_empty(store: Store):
    bench = lab(store)
    assert shown(planned(bench), bench)[1] == "There is no dataset to show."
    assert flowchart(planned(bench), bench) == ["flowchart LR", '  nothing["There is no dataset to show."]']
    assert list(expected_lines(forecast(planned(bench), bench.graph, store, parallel=2))) == []


def test_one_selected_dataset_shows_what_it_reads_as_not_selected(store: Store):
    bench = lab(store, blog())
    plan = planned(bench, select=["total"])
    assert shown(plan, bench)[1] == (
        "└─ · total  gold, by day  nothing yet  ◂ region_01_daily (not selected) and 1 more"
    )
    lines = flowchart(plan, bench)
    assert '  d_region_01_daily["region_01_daily<br/>gold, pipeline blog, not selected"]:::outside' in lines
    assert "  d_region_02_daily --> d_total" in lines


def test_the_expected_duration_is_told_in_two_lines_and_in_full(store: Store):
    bench = lab(store, blog())
    bench.arrive("raw", "2026-01-05", "2026-01-06", "2026-01-07")
    for name, seconds in {"clean": 30.0, "region_01": 4.0, "region_02": 70.0, "region_02_daily": 1.0}.items():
        took(store, name, seconds)
    found = forecast(planned(bench), bench.graph, store, parallel=2)
    assert list(expected_lines(found)) == [
        "Expected duration: about 3 min 26 s, 2 side by side; the longest chain takes 3 min 22 s: "
        "clean → region_02 → region_02_daily → total.",
        "No past run yet, and not counted: region_01_daily, total.",
    ]
    assert list(slow_lines(found)) == [
        "total waits longest for region_02_daily (done after 3 min 22 s); region_01_daily is after 1 min 8 s."
    ]
    assert expected_table(found) is not None


def test_durations_read_as_people_say_them():
    assert [in_words(one) for one in (0, 9.94, 9.96, 59.4, 59.6, 3599.6)] == [
        "0.0 s", "9.9 s", "10 s", "59 s", "1 min 0 s", "1 h 0 min",
    ]  # fmt: skip


def record(folder: Path, **seconds: float) -> None:
    with open_store(f"sqlite:///{folder}/.lakewright/store.db") as opened:
        for name, one in seconds.items():
            took(opened, name, one)


def test_the_command_draws_explains_and_tells_how_long(lakewright: Lakewright, shop: Path):
    assert lakewright("plan").stdout.splitlines()[-1] == "Expected duration: unknown, no past run yet."
    record(shop, raw_orders=4, orders=12)
    told = lakewright("plan").stdout.splitlines()
    assert told[-2] == (
        "Expected duration: about 16 s, 2 side by side; the longest chain takes 16 s: "
        "raw_orders → orders → daily_orders."
    )
    drawn = lakewright("plan", "--graph")
    assert drawn.exit_code == 0
    assert "└─ ◔ orders  silver, by day  may follow  12 s ★  ◂ raw_orders, users" in drawn.stdout
    assert "\u001b" not in drawn.stdout  # colour is for terminals
    why = lakewright("plan", "--explain").stdout
    assert "  runs  new  due: 1 new file" in why
    assert "  not   all  nothing yet: raw_users has nothing yet" in why


def test_a_flowchart_is_all_that_goes_to_standard_output(lakewright: Lakewright, shop: Path):
    result = lakewright("plan", "--mermaid", "--select", "+orders")
    assert result.stdout.startswith("flowchart LR\n")
    assert "Expected" not in result.stdout
    assert "To do it" not in result.stdout
    assert result.stdout == lakewright("plan", "--mermaid", "--select", "+orders").stdout
    for other in ("--graph", "--explain", "--json"):
        assert lakewright("plan", "--mermaid", other).exit_code == 2


def test_json_tells_the_expected_seconds_and_explains_when_asked(lakewright: Lakewright, shop: Path):
    lakewright("plan")
    record(shop, raw_orders=4, orders=12)
    found: dict[str, Any] = json.loads(lakewright("plan", "--json", "--explain").stdout)
    assert found["expected_seconds"] == 16
    assert found["critical_path"] == {"datasets": ["raw_orders", "orders", "daily_orders"], "seconds": 16}
    orders = next(one for one in found["datasets"] if one["name"] == "orders")
    assert (orders["expected_seconds"], orders["expected_slices"], orders["expected_certain"]) == (12, 1, False)
    assert orders["past"] == {
        "steps": 1, "median_seconds": 12, "slowest_seconds": 12, "slowest_slice": "2026-01-05",
    }  # fmt: skip
    assert [(one["runs"], one["status"]) for one in orders["explain"]] == [(None, "may follow")]
    assert json.loads(lakewright("run", "--dry-run", "--json").stdout)["expected_seconds"] == 16
