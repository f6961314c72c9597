"""Run benchmarks by name; without a name all of them."""

from __future__ import annotations

import argparse

from benchmarks import chain, compaction, kafka, memory, receipts, silver, start_up

ALL = {
    "silver": silver.main,
    "chain": chain.main,
    "start_up": start_up.main,
    "receipts": receipts.main,
    "kafka": kafka.main,
    "memory": memory.main,
    "compaction": compaction.main,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(ALL)}")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--size", type=int, default=5_000_000, help="visits of the silver step")
    arguments = parser.parse_args()
    for name in arguments.names or ALL:
        print(f"== {name}", flush=True)
        ALL[name](pairs=arguments.pairs, size=arguments.size)


if __name__ == "__main__":
    main()
