"""Measures rows of the benchmark beside Apache Kafka, and plays workloads on both, each in a command of its own. Those
that were not measured for longest come first."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from bench.rows.options import OURS, ROWS
from campaigns.nights import processes
from campaigns.nights.night import Work, in_turn
from reports.night import FigureRow
from reports.verdict import Outcome

PEER = "kafka"
OURS_NAME = "reference"
WORKLOADS = {
    "workload-1-topic-16-partitions": "1-topic-16-partitions-1kb",
    "workload-end-to-end-latency": "end-to-end-latency",
}
"""Rows that play a file of docs/workloads on both brokers, which take turns."""
WORKLOAD_WORDS = ("--repeat", "3", "--seconds", "20", "--warmup", "5")
MIN_S = 60.0
"""No row takes less. A row that does not end in time leaves no figure."""


def play(work: Work, until: float) -> tuple[Outcome, str]:
    """Measure until the time is over."""
    missing = []
    rows = [*(each for each in ROWS if each not in OURS), *WORKLOADS]
    for row in in_turn(rows, work.tried_before("bench"), work.turn):
        if time.monotonic() + MIN_S > until:
            break
        work.try_(row)
        if why := _measure(work, row, until):
            missing.append(f"{row} could not be measured: {why}")
            work.tell(missing[-1])
    return Outcome.PASSED, "; ".join(missing)


def _measure(work: Work, row: str, until: float) -> str:
    """Return why there are no figures, or nothing."""
    folder = work.folder / "bench" / row
    workload = WORKLOADS.get(row)
    if workload is None:
        words = ["--peer", PEER, "--row", row]
    else:
        path = processes.ROOT / "docs" / "workloads" / f"{workload}.yaml"
        words = [str(path), "--target", OURS_NAME, "--target", PEER, *WORKLOAD_WORDS]
    done = processes.run(
        processes.crucible("bench", *words, "--out", str(folder)),
        until,
        work.folder / "logs" / f"bench-{row}.log",
        partial(work.beat, f"bench: {row}"),
        work.environment,
    )
    stored = sorted(folder.glob("*.json" if workload is None else "*-benchmarks.json"))
    if done.code == processes.OVER:
        return "the time was over"
    if not stored:
        return done.last_line
    document = json.loads(stored[-1].read_text(encoding="utf-8"))
    if workload is not None:
        work.add(*figures_of_workload(row, document["crucible"]))
        work.tell(f"bench: {row} was played")
        return "; ".join(dict.fromkeys(reason for each in document["crucible"] for reason in each["reasons"]))
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


def figures_of_workload(row: str, every: Sequence[Mapping[str, Any]]) -> Iterator[FigureRow]:
    """The figures that both brokers have in as many valid runs. A pair is what they had in the same repetition."""
    reference, peer = (next((each for each in every if each["target"] == name), None) for name in (OURS_NAME, PEER))
    if reference is None or peer is None:
        return
    theirs = {each["name"]: each["values"] for each in peer["figures"]}
    for each in reference["figures"]:
        ours, other = each["values"], theirs.get(each["name"], [])
        if len(ours) != len(other) or min(*ours, *other) <= 0:
            continue
        pairs = zip(ours, other, strict=True)
        ratios = [b / a if each["less_is_better"] else a / b for a, b in pairs]
        yield FigureRow(
            row=row,
            what=each["name"],
            nodes=1,
            unit=each["unit"],
            better="lower" if each["less_is_better"] else "higher",
            reference=median(ours),
            peer=median(other),
            ratio=median(ratios),
            ratio_low=min(ratios),
            ratio_high=max(ratios),
            pairs=len(ratios),
            peer_name=PEER,
        )
