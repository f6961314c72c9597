"""The control store: an index of the lake's logs, and who works on what just now."""

from lakewright.store.arrivals import Arrivals
from lakewright.store.engine import Known, Store, open_store
from lakewright.store.events import Events
from lakewright.store.findings import Findings
from lakewright.store.holds import HeldSlice
from lakewright.store.leases import WHOLE_DATASET, Grant, HeldLease, Leases
from lakewright.store.markers import EVERY_SLICE, Marker, Markers
from lakewright.store.origins import OWN, Origins
from lakewright.store.owners import Owner, is_alive, this_process
from lakewright.store.receipts import ELSEWHERE, Head, Indexed, Receipts
from lakewright.store.runs import RunRecord, Runs
from lakewright.store.schedules import Backfill, Pause, Produced, Schedules, Tried, Upstream
from lakewright.store.staleness import CellHead, LiveSlice, StaleSlice
from lakewright.store.steps import StepRecord, Steps
from lakewright.store.streams import Streams

__all__ = [
    "ELSEWHERE",
    "EVERY_SLICE",
    "OWN",
    "WHOLE_DATASET",
    "Arrivals",
    "Backfill",
    "CellHead",
    "Events",
    "Findings",
    "Grant",
    "Head",
    "HeldLease",
    "HeldSlice",
    "Indexed",
    "Known",
    "Leases",
    "LiveSlice",
    "Marker",
    "Markers",
    "Origins",
    "Owner",
    "Pause",
    "Produced",
    "Receipts",
    "RunRecord",
    "Runs",
    "Schedules",
    "StaleSlice",
    "StepRecord",
    "Steps",
    "Store",
    "Streams",
    "Tried",
    "Upstream",
    "is_alive",
    "open_store",
    "this_process",
]
