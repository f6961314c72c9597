"""All 77 patterns as one explicit list: what each is for, where it lives, and how far it is.

Nothing is imported to answer a question about a pattern, so that `lakewright patterns` needs no Spark. A test
walks this list and fails when a module, an entry point, a test file or a page is missing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["CHAPTERS", "PATTERNS", "Chapter", "Pattern", "State"]

State = Literal["finished", "started", "planned"]


@dataclass(frozen=True, slots=True)
class Chapter:
    """A family of patterns and the folder that holds its modules, tests and pages."""

    number: int
    title: str
    folder: str


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern of the catalogue.

    ``slug`` is the id of its acceptance lines, ``entry`` the public name to import from ``module``,
    ``option`` the dataclass that a pipeline file uses. A planned pattern names the place where it will be.
    """

    number: int
    name: str
    chapter: int
    chapter_title: str
    slug: str
    module: str
    entry: str
    option: str | None
    state: State
    summary: str

    @property
    def folder(self) -> str:
        """The chapter's folder under ``patterns/``, in the package, the tests and the docs alike."""
        return CHAPTERS[self.chapter].folder

    @property
    def stem(self) -> str:
        """The file name without its ending: ``test_<stem>.py`` proves it, ``<stem>.md`` explains it."""
        return _kebab(self.name).replace("-", "_")

    @property
    def page(self) -> str:
        """The page of the pattern, below ``docs/``."""
        return f"patterns/{self.folder}/{self.stem}.md"


CHAPTERS = {
    chapter.number: chapter
    for chapter in (
        Chapter(2, "Data ingestion", "ingestion"),
        Chapter(3, "Error management", "error_management"),
        Chapter(4, "Idempotency", "idempotency"),
        Chapter(5, "Data value", "data_value"),
        Chapter(6, "Data flow", "data_flow"),
        Chapter(7, "Data security", "security"),
        Chapter(8, "Data storage", "storage"),
        Chapter(9, "Data quality", "quality"),
        Chapter(10, "Data observability", "observability"),
        Chapter(11, "Streaming data", "streaming"),
    )
}


def _pattern(
    number: int,
    chapter: int,
    name: str,
    entry: str,
    option: str | None,
    summary: str,
    *,
    state: State = "planned",
    slug: str | None = None,
) -> Pattern:
    kebab = _kebab(name)
    home = CHAPTERS[chapter]
    return Pattern(
        number=number,
        name=name,
        chapter=chapter,
        chapter_title=home.title,
        slug=slug or f"{chapter:02d}.{kebab}",
        module=f"lakewright.patterns.{home.folder}.{kebab.replace('-', '_')}",
        entry=entry,
        option=option,
        state=state,
        summary=summary,
    )


def _kebab(name: str) -> str:
    # "Vertical Partitioner" occurs in two chapters; what stands in brackets only tells them apart.
    return re.sub(r"[^a-z0-9]+", "-", name.partition(" (")[0].lower())


# A pattern is two lines here; the formatter would make nine of them.
# fmt: off
PATTERNS: tuple[Pattern, ...] = (
    # 2. Data ingestion
    _pattern(1, 2, "Full Loader", "load_whole", "FullLoader",
             "Take the whole of a small source at each run and swap it in at once.", state="finished"),
    _pattern(2, 2, "Incremental Loader", "load_new_rows", "IncrementalLoader",
             "Take only what a cursor column says is new since the last window.", state="finished"),
    _pattern(3, 2, "Change Data Capture", "apply_change_events", "ChangeDataCapture",
             "Follow the inserts, updates and deletes of a database as they happen.", state="finished"),
    _pattern(4, 2, "Passthrough Replicator", "replicate_unchanged", "PassthroughReplicator",
             "Copy a dataset byte for byte, with what describes it.", state="finished"),
    _pattern(5, 2, "Transformation Replicator", "replicate_transformed", "TransformationReplicator",
             "Copy a dataset and take private or unwanted fields out on the way.", state="finished"),
    _pattern(6, 2, "Compactor", "compact_table", "Compactor",
             "Turn many small files into few large ones while readers go on.", state="finished"),
    _pattern(7, 2, "Readiness Marker", "read_when_ready", "ReadinessMarker",
             "Tell consumers that a slice is complete and may be read.", state="finished"),
    _pattern(8, 2, "External Trigger", "start_on_event", "ExternalTrigger",
             "Start a run when something happens, not when a clock strikes.", state="finished"),
    # 3. Error management
    _pattern(9, 3, "Dead-Letter", "split_dead_letters", "DeadLetter",
             "Set rows that cannot be processed aside, with the reason, and go on.", state="finished"),
    _pattern(10, 3, "Windowed Deduplicator", "drop_repeats", "WindowedDeduplicator",
             "Keep one row of each key among those that came more than once.", state="finished"),
    _pattern(11, 3, "Late Data Detector", "split_late_rows", "LateDataDetector",
             "Tell rows that come after their time from those that come in time.", state="finished"),
    _pattern(12, 3, "Static Late Data Integrator", "slices_to_revisit", "Revisit",
             "Make a fixed number of past slices again in every run.", state="finished"),
    _pattern(13, 3, "Dynamic Late Data Integrator", "slices_with_late_rows", "Repair",
             "Make exactly those past slices again that received late rows.", state="finished"),
    _pattern(14, 3, "Filter Interceptor", "intercept_filters", "FilterInterceptor",
             "Know for every filter condition how many rows it took away.", state="finished"),
    _pattern(15, 3, "Checkpointer", "keep_progress", "Checkpointer",
             "Remember how far a stream came, so that a restart goes on from there.", state="finished"),
    # 4. Idempotency
    _pattern(16, 4, "Fast Metadata Cleaner", "replace_part_table", "PostgresParts",
             "Drop or truncate a whole part of a table instead of deleting its rows.", state="finished"),
    _pattern(17, 4, "Data Overwrite", "overwrite_slice", "DataOverwrite",
             "Replace the rows of a slice in one commit, so that a repeat changes nothing.", state="finished"),
    _pattern(18, 4, "Merger", "merge_changes", "Merger",
             "Insert, update or remove rows by key from a feed of changes.", state="finished"),
    _pattern(19, 4, "Stateful Merger", "merge_restoring", "StatefulMerger",
             "Put a merged table back to what it was before replaying a past change.", state="finished"),
    _pattern(20, 4, "Keyed Idempotency", "add_idempotent_key", "KeyedIdempotency",
             "Give each record a key that is the same in every attempt, and write it once.", state="finished"),
    _pattern(21, 4, "Transactional Writer", "write_in_transaction", None,
             "Show all rows of a write together, or none of them.", state="finished"),
    _pattern(22, 4, "Proxy", "point_view_at", "PostgresProxy",
             "Keep every version of a dataset unchanged and let one name point at the current one.",
             state="finished"),
    # 5. Data value
    _pattern(23, 5, "Static Joiner", "join_as_of", "AsOf",
             "Add columns of a reference to each row: as it is, as it was at the row's time, or by an API.",
             state="finished"),
    _pattern(24, 5, "Dynamic Joiner", "join_streams", "DynamicJoiner",
             "Join two streams that run at different speeds, within a bounded time.", state="finished"),
    _pattern(25, 5, "Wrapper", "wrap_records", "Wrapper",
             "Keep the record as it came and put what was computed beside it.", state="finished"),
    _pattern(26, 5, "Metadata Decorator", "add_metadata", "MetadataDecorator",
             "Write technical facts about a record where business readers do not stumble on them.", state="finished"),
    _pattern(27, 5, "Distributed Aggregator", "aggregate_by_key", "DistributedAggregator",
             "Sum up rows that lie on many machines, also when one key is far larger than the rest.", state="finished"),
    _pattern(28, 5, "Local Aggregator", "aggregate_in_place", "LocalAggregator",
             "Sum up rows that already lie together, without moving them.", state="finished"),
    _pattern(29, 5, "Incremental Sessionizer", "build_sessions", "Sessions",
             "Build sessions slice by slice and carry the unfinished ones over.", state="finished"),
    _pattern(30, 5, "Stateful Sessionizer", "build_sessions_on_stream", "Sessions",
             "Build sessions on a stream and close each when nothing more comes.", state="finished"),
    _pattern(31, 5, "Bin Pack Orderer", "pack_in_order", "BinPackOrderer",
             "Send records in bulk so that each entity's own keep their order.", state="finished"),
    _pattern(32, 5, "FIFO Orderer", "send_in_order", "FifoOrderer",
             "Send records one after another in the order in which they came.", state="finished"),
    # 6. Data flow
    _pattern(33, 6, "Local Sequencer", "run_in_sequence", None,
             "Run the steps of one pipeline one after another, and go on after the last one that held.",
             state="finished"),
    _pattern(34, 6, "Isolated Sequencer", "wait_for_dataset", "After",
             "Let one pipeline follow another that has its own team or schedule.", state="finished"),
    _pattern(35, 6, "Aligned Fan-In", "union_aligned", None,
             "Start a step when every dataset that it reads has succeeded.", state="finished"),
    _pattern(36, 6, "Unaligned Fan-In", "union_unaligned", "UnalignedFanIn",
             "Start a step with the inputs that succeeded, and say what is missing.", state="finished"),
    _pattern(37, 6, "Parallel Split", "run_branches", None,
             "Run the branches below one dataset side by side, each with its own success.", state="finished"),
    _pattern(38, 6, "Exclusive Choice", "choose_branch", "ExclusiveChoice",
             "Follow one of several branches and record which one and why.", state="finished"),
    _pattern(39, 6, "Single Runner", "SingleRunner", "SingleRunner",
             "Allow one run of a pipeline at a time, in order.", state="finished"),
    _pattern(40, 6, "Concurrent Runner", "ConcurrentRunner", "ConcurrentRunner",
             "Allow several runs of a pipeline at a time, within limits.", state="finished"),
    # 7. Data security
    _pattern(41, 7, "Vertical Partitioner (security)", "split_private_columns", "PrivateColumns",
             "Keep private columns in a table of their own, so that removal touches little.",
             slug="07.vertical-partitioner-for-data-removal"),
    _pattern(42, 7, "In-Place Overwriter", "erase_in_place", "InPlaceOverwriter",
             "Remove a person's values from tables that already exist."),
    _pattern(43, 7, "Fine-Grained Accessor for Tables", "restrict_rows_and_columns", "TableAccess",
             "Show each reader only the rows and columns that are theirs to see."),
    _pattern(44, 7, "Fine-Grained Accessor for Resources", "restrict_resources", "ResourceAccess",
             "Give each job only the folders, topics and services that it needs."),
    _pattern(45, 7, "Encryptor", "encrypt_columns", "Encryptor",
             "Make data unreadable without a key, on disk and on the wire."),
    _pattern(46, 7, "Anonymizer", "anonymize_columns", "Anonymizer",
             "Take out what tells a person, for good."),
    _pattern(47, 7, "Pseudo-Anonymizer", "pseudonymize_columns", "PseudoAnonymizer",
             "Put stand-ins in the place of what tells a person."),
    _pattern(48, 7, "Secrets Pointer", "resolve_secret", "SecretsPointer",
             "Write down where a password lies, never the password."),
    _pattern(49, 7, "Secretless Connector", "connect_without_secret", "SecretlessConnector",
             "Connect by an identity or a certificate, without any password."),
    # 8. Data storage
    _pattern(50, 8, "Horizontal Partitioner", "partition_rows", "HorizontalPartitioner",
             "Keep rows that share a value in a place of their own, so that readers skip the rest.",
             state="started"),
    _pattern(51, 8, "Vertical Partitioner (storage)", "split_columns", "VerticalPartitioner",
             "Keep columns that change or are read apart in different places."),
    _pattern(52, 8, "Bucket", "bucket_rows", "Bucket",
             "Put rows of a key with very many values into a fixed number of groups."),
    _pattern(53, 8, "Sorter", "sort_within_files", "Sorter",
             "Keep near values near each other, so that a filter skips most files."),
    _pattern(54, 8, "Metadata Enhancer", "collect_statistics", "MetadataEnhancer",
             "Keep statistics that let a reader decide without reading."),
    _pattern(55, 8, "Dataset Materializer", "materialize_query", "DatasetMaterializer",
             "Store the answer to a costly query and keep it fresh."),
    _pattern(56, 8, "Manifest", "write_manifest", "Manifest",
             "List the files of a dataset once, so that readers need not look for them."),
    _pattern(57, 8, "Normalizer", "split_into_entities", "Normalizer",
             "Store each fact in one place only."),
    _pattern(58, 8, "Denormalizer", "join_into_one_table", "Denormalizer",
             "Store facts together that are read together."),
    # 9. Data quality
    _pattern(59, 9, "Audit-Write-Audit-Publish", "publish_audited", "AuditWriteAuditPublish",
             "Check what comes in, write aside, check the result, then show it."),
    _pattern(60, 9, "Constraints Enforcer", "enforce_constraints", "ConstraintsEnforcer",
             "Let the table itself refuse rows that break a rule."),
    _pattern(61, 9, "Schema Compatibility Enforcer", "refuse_incompatible_schema", "SchemaCompatibility",
             "Refuse a change of columns that consumers could not read."),
    _pattern(62, 9, "Schema Migrator", "migrate_schema", "SchemaMigrator",
             "Rename, retype or drop a column in steps that break nobody."),
    _pattern(63, 9, "Offline Observer", "observe_apart", "OfflineObserver",
             "Look at the quality of a dataset in a run of its own."),
    _pattern(64, 9, "Online Observer", "observe_in_run", "OnlineObserver",
             "Look at the quality of a dataset in the run that makes it."),
    # 10. Data observability
    _pattern(65, 10, "Flow Interruption Detector", "detect_interruption", "FlowInterruptionDetector",
             "Notice that data has stopped coming."),
    _pattern(66, 10, "Skew Detector", "detect_skew", "SkewDetector",
             "Notice that a slice or a partition is much larger or smaller than usual."),
    _pattern(67, 10, "Lag Detector", "detect_lag", "LagDetector",
             "Notice that a consumer falls behind its source."),
    _pattern(68, 10, "SLA Misses Detector", "detect_sla_misses", "SlaMissesDetector",
             "Notice that a result came later than was promised."),
    _pattern(69, 10, "Dataset Tracker", "track_datasets", "DatasetTracker",
             "Tell which datasets a dataset is made of, and which are made of it."),
    _pattern(70, 10, "Fine-Grained Tracker", "track_columns", "FineGrainedTracker",
             "Tell which columns and rows a value comes from."),
    # 11. Streaming data
    _pattern(71, 11, "API Gateway", "serve_gateway", "ApiGateway",
             "Take records in over HTTP and keep them safe until they are stored."),
    _pattern(72, 11, "Zero-ETL Synchronizer", "synchronize_topic", "ZeroEtlSynchronizer",
             "Keep a table in step with a topic without writing a pipeline."),
    _pattern(73, 11, "Hybrid Source", "read_history_then_stream", "HybridSource",
             "Read the history from a table first and go on with the stream, without gap or overlap."),
    _pattern(74, 11, "Sidecar", "write_beside", "Sidecar",
             "Give a streaming job further inputs or outputs that succeed or fail with it."),
    _pattern(75, 11, "Partial State Writer", "write_partial_state", "PartialStateWriter",
             "Publish results that are still growing, marked as not final."),
    _pattern(76, 11, "Streaming Reprocessor", "rewind_stream", "StreamingReprocessor",
             "Rewind a stream and read it again."),
    _pattern(77, 11, "Batch Reprocessor", "reprocess_in_batch", "BatchReprocessor",
             "Process a stream's past again from the lake."),
)
# fmt: on
