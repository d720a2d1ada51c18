"""Micro-benchmarks (pytest-benchmark)."""
