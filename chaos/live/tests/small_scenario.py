"""Scenarios of a few seconds for tests of whole runs, and what those leave."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

HEAD = """
title = "{title}"
clauses = []
needs = ["interceptor", "signals", "proxy", "disk"]
mutants = []
guarantees = []
min_fetches = {least}
min_acked = {least}
sim_min_fetches = 1
sim_min_acked = 1
max_schedule_slip_ms = 10000
"""

PRODUCERS = """
[[load.producers]]
name = "writers"
count = 1
sim_count = 1
topic = "hot"
rate_per_s = {rate_per_s}
sim_rate_per_s = 10
"""


def text_of(title: str, least: int, load: str, rate_per_s: int, *more: str) -> str:
    """``load``: the cluster, the load and its topics (``hot`` among them), written to at this rate; then ``more``."""
    return "".join((HEAD.format(title=title, least=least), load, PRODUCERS.format(rate_per_s=rate_per_s), *more))


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def faults_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "faults.parquet").to_pylist()
    return rows
