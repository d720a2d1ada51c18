"""Anomalies in the history of clients: each violates its guarantee."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from chaos.checks.history import History
from chaos.checks.reads_and_writes.reads import FetchGap, PollSkip, UnrequestedPartition
from chaos.checks.reads_and_writes.writes import InconsistentOffsets, LostWrite, Unseen
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.client_history import (
    ASSIGNMENT,
    BASE,
    FINAL_READ,
    GONE,
    OPERATIONS,
    POSITIONS,
    READS,
    SENDS,
    SHORT,
    position,
    read,
    send,
    violated_guarantees,
)
from reports.rows import HistoryRow

if TYPE_CHECKING:
    pass


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rows", "guarantees"),
    [
        ([*BASE, *SENDS, *POSITIONS, *READS], []),
        (
            [*BASE, *SENDS, *POSITIONS, read(0, 0), read(1, 5, shift=20)],
            ["inconsistent-offsets", "unseen", "lost-write"],
        ),
        ([*BASE, *SENDS, *POSITIONS, *READS, read(2, 0, 1, writer="")], ["corrupt-value"]),
        ([*BASE, send(0, 0, 0), *POSITIONS, read(0, 0), read(1, 5, shift=-5)], ["duplicate"]),
        ([*BASE, *SENDS, *POSITIONS, read(0, 5)], ["lost-write", "unseen"]),
        ([*BASE, *SENDS, *POSITIONS, read(0, 0)], ["unseen"]),
        ([*BASE, *SENDS, *POSITIONS, read(0, 0, 4), read(1, 5)], ["lost-write", "unseen"]),
        ([*BASE, *SENDS, *POSITIONS, read(0, 0, 4), read(1, 5), *FINAL_READ], ["poll-skip"]),
        ([*OPERATIONS, ASSIGNMENT, GONE, *SENDS, *POSITIONS, *READS], ["lost-write"]),
        ([*OPERATIONS, ASSIGNMENT, SHORT, *SENDS, *POSITIONS, *READS], ["fetch-gap", "lost-write"]),
        ([*BASE, *SENDS, *POSITIONS, read(0, 0), read(1, 4, 6)], ["nonmonotonic-poll"]),
        ([*BASE, *SENDS, *POSITIONS, read(0, 0, 3), read(0, 4, 6, 1), *FINAL_READ], ["int-poll-skip"]),
        ([*BASE, *SENDS, *POSITIONS, read(0, 0), read(0, 4, 6, 1)], ["int-nonmonotonic-poll"]),
        ([*BASE, send(0, 5, 5), send(1, 0, 0), *POSITIONS, *READS], ["nonmonotonic-send"]),
        ([*BASE, *SENDS, *POSITIONS, *READS, position(1, 0, 0, "other")], ["unrequested-partition"]),
        ([*BASE, *SENDS, position(0, 0, 5), *READS], ["fetch-gap"]),
    ],
)
def test_each_anomaly_of_a_history_violates_its_guarantee(rows: Sequence[HistoryRow], guarantees: list[str]) -> None:
    assert violated_guarantees(rows) == sorted(guarantees)


def test_check_without_evidence_is_reported() -> None:
    for rows, looked_at in (([*BASE, *SENDS, *POSITIONS, *READS], True), ([], False)):
        history = History()
        history.add(rows)
        for kind in (LostWrite, Unseen, PollSkip, UnrequestedPartition, FetchGap, InconsistentOffsets):
            check = kind(check_context())
            check.end(history)
            assert bool(check.evidence) is looked_at, kind
