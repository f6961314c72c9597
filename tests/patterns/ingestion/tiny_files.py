"""Delta tables of many tiny commits, as a job that appends every few seconds leaves them; written without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet


def tiny_commits(
    folder: Path, count: int, *, days: Sequence[str | None] = (), properties: dict[str, str] | None = None
) -> str:
    """A table of ``count`` commits with a file of one row each; with ``days`` partitioned by ``day``, in turn."""
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    for number in range(count):
        day = days[number % len(days)] if days else None
        place = f"day={day or '__HIVE_DEFAULT_PARTITION__'}/" if days else ""
        name = f"{place}part-{number:05d}.snappy.parquet"
        (folder / name).parent.mkdir(exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.table({"visit": [f"v{number}"], "pages": [number]}), folder / name)
        now = int(time.time() * 1000) + number
        add = {
            "path": name,
            "partitionValues": {"day": day} if days else {},
            "size": (folder / name).stat().st_size,
            "modificationTime": now,
            "dataChange": True,
            "stats": '{"numRecords":1}',
        }
        actions: list[dict[str, object]] = [
            {"commitInfo": {"timestamp": now, "operation": "WRITE", "operationParameters": {"mode": "Append"}}}
        ]
        if number == 0:
            actions += _declared(days, properties or {})
        lines = [json.dumps(action, separators=(",", ":")) for action in [*actions, {"add": add}]]
        (log / f"{number:020d}.json").write_text("\n".join(lines) + "\n")
    return str(folder)


def _declared(days: Sequence[str | None], properties: dict[str, str]) -> list[dict[str, object]]:
    kinds = {"visit": "string", "pages": "long", **({"day": "date"} if days else {})}
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    return [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "b0f2d0f4-6f0c-4f55-9c8b-3f6f0a8b7c11",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": ["day"] if days else [],
                "configuration": properties,
                "createdTime": 0,
            }
        },
    ]
