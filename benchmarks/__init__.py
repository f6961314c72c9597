"""Figures against hand-written Spark: `make bench`, or `python -m benchmarks silver --size 1000000`."""
