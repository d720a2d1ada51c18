"""Write the index of nights: one self-contained page that needs no server."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from os.path import relpath
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from reports.index import benchmark, failures, matrix, probe
from reports.index.matrix import percent, red_rates
from reports.index.nights import (
    Collected,
    NightSummary,
    Note,
    collect_nights,
    reached_points,
    read_notes,
    summarize_nights,
)
from reports.night import NightError, night_folders, read_night
from reports.page.render import environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).parent
PAGE_NAME = "index.html"
SHOWN_NIGHTS = 30
MAX_NAMED = 8
"""Limits the red scenarios of the last night that the header names."""
OURS = "reference"
"""Failures of other brokers do not make a night red."""
RUN_PAGE = "report/index.html"


def write_index(
    nights: Path, out: Path | None = None, now_us: int = 0, spark: "SparkSession | None" = None
) -> tuple[Path, NightSummary]:
    """Return the page and the last night. ``out`` is a folder or an .html file (default: ``nights``).

    ``now_us`` is the time since the epoch (default: now). Raise NightError and SetupError, each one sentence.
    """
    folders = night_folders(nights)
    if not folders:
        raise NightError(f"{nights} has no nights: ./crucible nightly writes one, and --nights DIR says where they are")
    notes, read_nights = read_notes(nights), [read_night(folder) for folder in folders]
    collected = collect_nights(folders, spark)
    every = summarize_nights(read_nights, collected.counts, now_us or time.time_ns() // 1_000)
    page = _page(nights, out)
    page.parent.mkdir(parents=True, exist_ok=True)
    context = context_of(collected, every, notes, nights, page.parent)
    page.write_text(environment(FOLDER).get_template("index.html.j2").render(context), encoding="utf-8")
    return page, every[-1]


def _page(nights: Path, out: Path | None) -> Path:
    if out is None:
        return nights / PAGE_NAME
    return out if out.suffix in (".html", ".htm") else out / PAGE_NAME


def context_of(
    collected: Collected, every: Sequence[NightSummary], notes: Sequence[Note], nights: Path, beside: Path
) -> dict[str, Any]:
    """Return the values that the template shows. Links are relative to ``beside``, the folder of the page."""

    def file(night: str, path: str) -> str:
        target = nights / night / path
        return quote(relpath(target, beside)) if path and target.exists() else ""

    def run_page(night: str, run_dir: str) -> str:
        return file(night, f"{run_dir}/{RUN_PAGE}")

    shown = every[-SHOWN_NIGHTS:]
    lines = matrix.lines(collected.matrix, [summary.night.night for summary in shown], run_page)
    measured = benchmark.series_of(collected.series)
    of_clients = [row for row in collected.probed if probe.is_client(row)]
    of_brokers = [row for row in collected.probed if not probe.is_client(row)]
    return {
        "last": every[-1],
        "nights": shown,
        "months": [
            (month, len(list(group))) for month, group in groupby(shown, key=lambda summary: f"{summary.started:%b}")
        ],
        "lines": lines,
        "cells": _cells(lines, shown),
        "index_style": (FOLDER / "index.css").read_text(encoding="utf-8"),
        "index_script": (FOLDER / "index.js").read_text(encoding="utf-8"),
        "red": [
            (place, line, cell)
            for place, line in enumerate(lines)
            if line.target == OURS and (cell := line.cells[-1]) is not None and cell.tone != "passed"
        ][:MAX_NAMED],
        "signs": matrix.SIGNS,
        "meanings": matrix.MEANINGS,
        "failures": failures.open_failures(collected.failures, every, file),
        "rates": red_rates(lines),
        "percent": percent,
        "changes": benchmark.changes(measured),
        "series": measured,
        "pictures": benchmark.pictures(measured, notes),
        "commits": {summary.night.night: summary.night.commit for summary in every},
        "probe": probe.table_of(of_brokers),
        "clients": probe.table_of(of_clients),
        "points": reached_points(every),
        "searched": [
            summary for summary in shown if summary.night.canary is not None or summary.night.corpus is not None
        ],
    }


def _cells(lines: Sequence[matrix.Line], nights: Sequence[NightSummary]) -> dict[str, Any]:
    """Return what the page's script shows of each cell, by the places of its line and its night."""
    return {
        "nights": [f"{summary.started:%-d %b %Y}" for summary in nights],
        "lines": [asdict(line) for line in lines],
    }
