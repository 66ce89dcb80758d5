"""Benchmarks: each prints a table and JSON, and measures a baseline in the same run. `python -m bench.NAME --help`."""
