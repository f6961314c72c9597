"""Lakewright: data engineering patterns for PySpark and Delta Lake, and pipelines made of them.

Names are imported when they are first used, so that ``import lakewright`` costs nothing.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "AsOf": "lakewright.model.references",
    "Capture": "lakewright.model.policies",
    "ChangeDataCapture": "lakewright.connectors.cdc_connector",
    "Checkpointer": "lakewright.patterns.error_management.checkpointer",
    "Compactor": "lakewright.patterns.ingestion.compactor",
    "Contract": "lakewright.model.contracts",
    "CsvFiles": "lakewright.connectors.files",
    "CursorPages": "lakewright.connectors.rest_pages",
    "DataOverwrite": "lakewright.patterns.idempotency.data_overwrite",
    "DeadLetter": "lakewright.patterns.error_management.dead_letter",
    "DeltaTable": "lakewright.connectors.delta",
    "DynamicJoiner": "lakewright.patterns.data_value.dynamic_joiner",
    "Event": "lakewright.model.triggers",
    "EventFormat": "lakewright.patterns.ingestion.event_format",
    "ExternalTrigger": "lakewright.patterns.ingestion.external_trigger",
    "Fail": "lakewright.model.policies",
    "FileNotifier": "lakewright.connectors.notify",
    "FilterInterceptor": "lakewright.patterns.error_management.filter_interceptor",
    "FlagFile": "lakewright.patterns.ingestion.folder_readiness",
    "FolderEvents": "lakewright.connectors.folder_events",
    "FullLoader": "lakewright.patterns.ingestion.full_loader",
    "HorizontalPartitioner": "lakewright.patterns.storage.horizontal_partitioner",
    "IncrementalLoader": "lakewright.patterns.ingestion.incremental_loader",
    "Jdbc": "lakewright.connectors.jdbc",
    "JsonFiles": "lakewright.connectors.files",
    "KafkaEvents": "lakewright.connectors.kafka_events",
    "KafkaMessages": "lakewright.connectors.kafka_destination",
    "KafkaTopic": "lakewright.connectors.kafka",
    "Latest": "lakewright.model.references",
    "KeyedIdempotency": "lakewright.patterns.idempotency.keyed_idempotency",
    "LateDataDetector": "lakewright.patterns.error_management.late_data_detector",
    "LatestValue": "lakewright.patterns.ingestion.latest_value",
    "LinkedPages": "lakewright.connectors.rest_pages",
    "Lookback": "lakewright.model.references",
    "Merger": "lakewright.patterns.idempotency.merger",
    "NextPartition": "lakewright.patterns.ingestion.folder_readiness",
    "NumberedPages": "lakewright.connectors.rest_pages",
    "ParquetFiles": "lakewright.connectors.files",
    "PassthroughReplicator": "lakewright.patterns.ingestion.passthrough_replicator",
    "Pinned": "lakewright.model.references",
    "Pipeline": "lakewright.pipelines.declare",
    "PostgresParts": "lakewright.connectors.postgres_part_tables",
    "PostgresProxy": "lakewright.connectors.postgres_proxy",
    "PostgresTable": "lakewright.connectors.postgres_table",
    "PostgresVersions": "lakewright.connectors.postgres_versions",
    "Previous": "lakewright.model.references",
    "PrivateOutput": "lakewright.pipelines.definitions",
    "Project": "lakewright.pipelines.project",
    "RangePartitions": "lakewright.connectors.postgres_partitions",
    "ReadinessMarker": "lakewright.patterns.ingestion.readiness_marker",
    "Repair": "lakewright.model.policies",
    "RestApi": "lakewright.connectors.rest",
    "Revisit": "lakewright.model.policies",
    "RowRule": "lakewright.patterns.ingestion.transformation_replicator",
    "RowVersions": "lakewright.patterns.ingestion.row_versions",
    "Run": "lakewright.model.runs",
    "SameSlice": "lakewright.model.references",
    "Scd2": "lakewright.patterns.idempotency.scd2",
    "Secret": "lakewright.model.secrets",
    "SingleRunner": "lakewright.patterns.data_flow.single_runner",
    "SkewBuffer": "lakewright.patterns.storage.skew_buffer",
    "StatefulMerger": "lakewright.patterns.idempotency.stateful_merger",
    "WebhookEvents": "lakewright.connectors.webhook_events",
    "WebhookNotifier": "lakewright.connectors.notify",
    "TopicCopy": "lakewright.connectors.topic_copy",
    "TransformationReplicator": "lakewright.patterns.ingestion.transformation_replicator",
    "Whole": "lakewright.model.references",
    "WindowedDeduplicator": "lakewright.patterns.error_management.windowed_deduplicator",
    "filter_sql": "lakewright.patterns.error_management.filter_interceptor",
    "find_data_commit": "lakewright.patterns.ingestion.commit_marker",
    "intercept_filters": "lakewright.patterns.error_management.filter_interceptor",
    "idempotent_key": "lakewright.patterns.idempotency.keyed_idempotency",
    "is_closed": "lakewright.patterns.ingestion.readiness_marker",
    "compact_files": "lakewright.patterns.ingestion.compactor",
    "compact_table": "lakewright.patterns.ingestion.compactor",
    "join_as_of": "lakewright.patterns.data_value.static_joiner",
    "join_streams": "lakewright.patterns.data_value.dynamic_joiner",
    "keep_latest_per_key": "lakewright.patterns.ingestion.compactor",
    "apply_change_events": "lakewright.patterns.ingestion.change_data_capture",
    "apply_row_versions": "lakewright.patterns.ingestion.change_data_capture",
    "read_changes": "lakewright.patterns.ingestion.change_feed",
    "read_latest_values": "lakewright.patterns.ingestion.change_data_capture",
    "read_row_versions": "lakewright.patterns.ingestion.change_data_capture",
    "keep_progress": "lakewright.patterns.error_management.checkpointer",
    "load_contract": "lakewright.model.contract_files",
    "merge_restoring": "lakewright.patterns.idempotency.stateful_merger",
    "mark_when_done": "lakewright.patterns.ingestion.flag_files",
    "read_when_ready": "lakewright.patterns.ingestion.readiness_marker",
    "read_event": "lakewright.patterns.ingestion.event_format",
    "start_on_event": "lakewright.patterns.ingestion.external_trigger",
    "load_new_rows": "lakewright.patterns.ingestion.incremental_loader",
    "load_whole": "lakewright.patterns.ingestion.full_loader",
    "replay_dead_letters": "lakewright.patterns.error_management.dead_letter_replay",
    "repartition_table": "lakewright.patterns.storage.repartition",
    "split_by_quota": "lakewright.patterns.storage.skew_buffer",
    "tolerant": "lakewright.patterns.error_management.tolerant_function",
    "vacuum_table": "lakewright.patterns.ingestion.compactor",
    "unwrap_changes": "lakewright.connectors.cdc_changes",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lakewright' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
