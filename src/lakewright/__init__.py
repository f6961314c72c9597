"""Lakewright: data engineering patterns for PySpark and Delta Lake, and pipelines made of them.

Names are imported when they are first used, so that ``import lakewright`` costs nothing.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "AsOf": "lakewright.model.references",
    "Capture": "lakewright.model.policies",
    "Contract": "lakewright.model.contracts",
    "CsvFiles": "lakewright.connectors.files",
    "DataOverwrite": "lakewright.patterns.idempotency.data_overwrite",
    "DeadLetter": "lakewright.patterns.error_management.dead_letter",
    "DeltaTable": "lakewright.connectors.delta",
    "Fail": "lakewright.model.policies",
    "HorizontalPartitioner": "lakewright.patterns.storage.horizontal_partitioner",
    "Jdbc": "lakewright.connectors.jdbc",
    "JsonFiles": "lakewright.connectors.files",
    "KafkaMessages": "lakewright.connectors.kafka_destination",
    "KafkaTopic": "lakewright.connectors.kafka",
    "Latest": "lakewright.model.references",
    "Lookback": "lakewright.model.references",
    "Merger": "lakewright.patterns.idempotency.merger",
    "ParquetFiles": "lakewright.connectors.files",
    "Pinned": "lakewright.model.references",
    "Pipeline": "lakewright.pipelines.declare",
    "PostgresTable": "lakewright.connectors.postgres_table",
    "Previous": "lakewright.model.references",
    "PrivateOutput": "lakewright.pipelines.definitions",
    "Project": "lakewright.pipelines.project",
    "RangePartitions": "lakewright.connectors.postgres_partitions",
    "Repair": "lakewright.model.policies",
    "Run": "lakewright.model.runs",
    "SameSlice": "lakewright.model.references",
    "Scd2": "lakewright.patterns.idempotency.scd2",
    "Secret": "lakewright.model.secrets",
    "SingleRunner": "lakewright.patterns.data_flow.single_runner",
    "SkewBuffer": "lakewright.patterns.storage.skew_buffer",
    "Whole": "lakewright.model.references",
    "WindowedDeduplicator": "lakewright.patterns.error_management.windowed_deduplicator",
    "join_as_of": "lakewright.patterns.data_value.static_joiner",
    "load_contract": "lakewright.model.contract_files",
    "repartition_table": "lakewright.patterns.storage.repartition",
    "split_by_quota": "lakewright.patterns.storage.skew_buffer",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lakewright' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
