"""Run benchmarks by name; without a name all of them."""

from __future__ import annotations

import argparse
import signal
import sys

from benchmarks import (
    as_of_join,
    branches,
    cdc_apply,
    cdc_lag,
    chain,
    compaction,
    counters,
    dedup_across_runs,
    jdbc_load,
    kafka,
    late_capture,
    late_repair,
    levels,
    memory,
    merger,
    orchestrators,
    ordered_delivery,
    receipts,
    scheduler,
    sessions,
    silver,
    skew,
    start_up,
)

ALL = {
    "silver": silver.main,
    "chain": chain.main,
    "start_up": start_up.main,
    "receipts": receipts.main,
    "kafka": kafka.main,
    "memory": memory.main,
    "compaction": compaction.main,
    "cdc_apply": cdc_apply.main,
    "cdc_lag": cdc_lag.main,
    "jdbc_load": jdbc_load.main,
    "counters": counters.main,
    "merger": merger.main,
    "late_capture": late_capture.main,
    "late_repair": late_repair.main,
    "dedup_across_runs": dedup_across_runs.main,
    "as_of_join": as_of_join.main,
    "skew": skew.main,
    "sessions": sessions.main,
    "ordered_delivery": ordered_delivery.main,
    "scheduler": scheduler.main,
    "levels": levels.main,
    "branches": branches.main,
    "orchestrators": orchestrators.main,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(ALL)}")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument(
        "--size", type=int, default=5_000_000, help="visits of the silver step; the most rows of others"
    )
    parser.add_argument("--rate", type=int, default=1_000, help="changes a second of cdc_lag")
    parser.add_argument("--seconds", type=int, default=300, help="how long cdc_lag writes")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    for name in arguments.names or ALL:
        print(f"== {name}", flush=True)
        more = {"rate": arguments.rate, "seconds": arguments.seconds} if name == "cdc_lag" else {}
        ALL[name](pairs=arguments.pairs, size=arguments.size, **more)


if __name__ == "__main__":
    main()
