"""Contracts: what they refuse, how a frame differs from them, and their files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright.errors import ConfigurationError, DefinitionError
from lakewright.model.contract_files import dump_contract, load_contract, parse_contract
from lakewright.model.contracts import Contract, ContractColumn, ContractError, check_frame
from lakewright.model.ddl import schema_from_ddl

ID = ContractColumn("visit_id", "STRING", nullable=False)
AT = ContractColumn("event_time", "TIMESTAMP")
VISITS = Contract("visits", (ID, AT), keys=("visit_id",), event_time="event_time")


def test_the_schema_needs_no_session() -> None:
    assert VISITS.schema() == schema_from_ddl("visit_id STRING NOT NULL, event_time TIMESTAMP")


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: Contract("", (ID,)), ("name",)),
        (lambda: Contract("v", ()), ("columns",)),
        (lambda: Contract("v", (ID, ContractColumn("VISIT_ID", "INT"))), ("columns", 1, "name")),
        (lambda: Contract("v", (ID,), keys=("visit",)), ("keys", 0)),
        (lambda: Contract("v", (ID,), keys=("visit_id", "visit_id")), ("keys", 1)),
        (lambda: Contract("v", (ID,), event_time="at"), ("event_time",)),
        (lambda: Contract("v", (ContractColumn("n", "INT"),), event_time="n"), ("event_time",)),
        (lambda: Contract("v", (ID,), retention="long"), ("retention",)),
        (lambda: Contract("v", (ID,), version=0), ("version",)),
        (lambda: ContractColumn("a", "strng"), ("type",)),
        (lambda: ContractColumn("_lw_event", "STRING"), ("name",)),
        (lambda: ContractColumn("", "STRING"), ("name",)),
    ],
)
def test_a_contract_that_contradicts_itself_is_refused_with_the_place(make, where) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ContractError) as caught:
        make()
    assert caught.value.where == where


def test_a_frame_that_keeps_the_contract_has_no_differences() -> None:
    kept = schema_from_ddl("event_time TIMESTAMP NOT NULL, visit_id STRING NOT NULL, _lw_arrival BIGINT")
    assert check_frame(VISITS, kept) == []


def test_every_difference_is_told() -> None:
    found = check_frame(VISITS, schema_from_ddl("visit_id INT, page STRING"))
    assert [text.split("'")[1] for text in found] == ["visit_id", "event_time", "page"]
    assert "is int, but the contract says string" in found[0]
    assert "missing" in found[1]
    assert "not in the contract" in found[2]


def test_a_type_is_compared_by_what_it_means_not_by_its_text() -> None:
    contract = Contract("v", (ContractColumn("a", "Array< STRUCT<x: Integer, y numeric(10,2)> >"),))
    assert check_frame(contract, schema_from_ddl("a ARRAY<STRUCT<x: INT, y: DECIMAL(10, 2)>>")) == []


FILE = """\
name: visits
owner: web team
columns:
  - name: visit_id
    type: STRING
    nullable: false
    tags: [id]
  - {name: event_time, type: TIMESTAMP}
keys: [visit_id]
event_time: event_time
retention: 90 days
"""


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "visits.yaml"
    path.write_text(FILE)
    contract = load_contract(path)
    assert contract.columns == (ContractColumn("visit_id", "STRING", nullable=False, tags=("id",)), AT)
    assert (contract.owner, contract.keys, contract.retention) == ("web team", ("visit_id",), "90 days")


@pytest.mark.parametrize(
    ("old", "new", "line", "word"),
    [
        ("owner:", "ownr:", 2, "Did you mean 'owner'"),
        ("    nullable: false", "    nulable: false", 6, "Did you mean 'nullable'"),
        ("    nullable: false", "    nullable: perhaps", 6, "true or false"),
        ("owner: web team", "owner: 12", 2, "must be text, but is 12"),
        ("owner: web team", "name: again", 2, "'name' is there twice, first in line 1"),
        ("    type: STRING", "    type: STRNG", 5, "Did you mean 'string'"),
        ("    type: STRING\n", "", 4, "'type' is missing in columns.1"),
        ("keys: [visit_id]", "keys: [visit]", 9, "Did you mean 'visit_id'"),
        ("keys: [visit_id]", "keys: visit_id", 9, "must be a list"),
        ("  - {name: event_time", "  - {name: visit_id", 8, "twice"),
        ("retention: 90 days", "retention: 90 moons", 11, "retention"),
        ("owner: web team", "owner: 'web team", None, "YAML"),
        ("name: visits\n", "", 1, "'name' is missing"),
    ],
)
def test_a_mistake_is_told_with_file_and_line(old: str, new: str, line: int | None, word: str) -> None:
    with pytest.raises(DefinitionError, match=word) as caught:
        parse_contract(FILE.replace(old, new), file="visits.yaml")
    assert caught.value.file == "visits.yaml"
    assert line is None or caught.value.line == line


@pytest.mark.parametrize("text", ["", "- a\n", "just text"])
def test_what_is_no_mapping_is_refused(text: str) -> None:
    with pytest.raises(DefinitionError):
        parse_contract(text)


def test_a_missing_file_and_a_wrong_encoding_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no contract at"):
        load_contract(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes("name: café".encode("latin-1"))
    with pytest.raises(DefinitionError, match="UTF-8"):
        load_contract(tmp_path / "latin.yaml")


@st.composite
def contracts(draw: st.DrawFn) -> Contract:
    text = st.text(max_size=12)
    name = st.text(min_size=1, max_size=8).filter(lambda value: not value.lower().startswith("_lw_"))
    names = draw(st.lists(name, min_size=1, max_size=4, unique_by=str.lower))
    kinds = draw(st.lists(st.sampled_from(["INT", "decimal(10, 2)", "struct<a: int>"]), min_size=4, max_size=4))
    columns = tuple(
        ContractColumn(one, kind, draw(st.booleans()), draw(text), tuple(draw(st.lists(text, max_size=2))))
        for one, kind in zip(names, kinds, strict=False)
    )
    return Contract(
        name=draw(name),
        columns=(*columns, ContractColumn(f"{names[0]}_at_", "DATE")) if names[0] + "_at_" not in names else columns,
        description=draw(text),
        owner=draw(st.none() | text),
        layer=draw(st.none() | text),
        keys=tuple(draw(st.lists(st.sampled_from(names), unique=True))),
        retention=draw(st.none() | st.sampled_from(["90 days", "1 day 6 hours"])),
        tags=tuple(draw(st.lists(text, max_size=2))),
        version=draw(st.integers(1, 9)),
    )


@settings(deadline=None, max_examples=200)
@given(contract=contracts())
def test_a_written_contract_reads_as_the_same(contract: Contract) -> None:
    assert parse_contract(dump_contract(contract)) == contract
