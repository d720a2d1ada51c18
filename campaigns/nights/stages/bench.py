"""Measures rows of the benchmark beside Apache Kafka, each in a command of its own. Those that were not measured for
longest come first."""

import json
import time
from collections.abc import Iterator, Mapping
from functools import partial
from statistics import median
from typing import Any

from bench.rows.options import OURS, ROWS
from campaigns.nights import processes
from campaigns.nights.night import Work, in_turn
from reports.night import FigureRow
from reports.verdict import Outcome

PEER = "kafka"
LEAST_S = 60.0
"""No row takes less. A row that does not end in time leaves no figure."""


def play(work: Work, until: float) -> tuple[Outcome, str]:
    """Measure until the time is over."""
    missing = []
    for row in in_turn([each for each in ROWS if each not in OURS], work.tried_before("bench"), work.turn):
        if time.monotonic() + LEAST_S > until:
            break
        work.try_(row)
        if why := _measure(work, row, until):
            missing.append(f"{row} could not be measured: {why}")
            work.tell(missing[-1])
    return Outcome.PASSED, "; ".join(missing)


def _measure(work: Work, row: str, until: float) -> str:
    """Return why there are no figures, or nothing."""
    folder = work.folder / "bench" / row
    done = processes.run(
        processes.crucible("bench", "--peer", PEER, "--row", row, "--out", str(folder)),
        until,
        work.folder / "logs" / f"bench-{row}.log",
        partial(work.beat, f"bench: {row}"),
        work.environment,
    )
    stored = sorted(folder.glob("*.json"))
    if done.code == processes.OVER:
        return "the time was over"
    if not stored:
        return done.last_line
    document = json.loads(stored[-1].read_text(encoding="utf-8"))
    work.add(*figures(row, document))
    work.tell(f"bench: {row} was measured")
    return "; ".join(document["missing"].values())


def figures(row: str, document: Mapping[str, Any]) -> Iterator[FigureRow]:
    """The figures of a stored run that were measured beside the peer."""
    for each in document["rows"]:
        if each["peer"] is None:
            continue
        ratios = each["ratio"]["values"]
        yield FigureRow(
            row=row,
            what=each["work"],
            nodes=each["nodes"],
            unit=each["reference"]["unit"],
            better="lower" if each["less_is_better"] else "higher",
            reference=median(each["reference"]["values"]),
            peer=median(each["peer"]["values"]),
            ratio=median(ratios),
            ratio_low=min(ratios),
            ratio_high=max(ratios),
            pairs=len(ratios),
            peer_name=document["peer"],
        )
