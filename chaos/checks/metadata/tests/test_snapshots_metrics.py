"""Metrics of snapshots that report other snapshots than there are."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from chaos.checks.metadata.snapshots import DAMAGED, LOADED, STARTED, SnapshotMetricsExact
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import StubBroker, StubNode, StubQuorumNode
from reference_broker.core.events import Note, TimerFired
from reference_broker.metrics.metrics import Metrics

NAMES = ("kafka.controller", "KafkaController")
MS = 1000


@dataclass
class StoreOfSizes:
    """The snapshots with these IDs. Each has 100 bytes for each of its records."""

    ids: list[tuple[int, int]]

    def size(self, snapshot_id: tuple[int, int]) -> int:
        end_offset, _ = snapshot_id
        return end_offset * 100


@dataclass
class Watched:
    """One node, of which the check sees notes and snapshots. A snapshot's ID is (n, 1) and its size n * 100."""

    check: SnapshotMetricsExact = field(default_factory=lambda: SnapshotMetricsExact(check_context()))
    metrics: Metrics = field(default_factory=Metrics)
    held: list[tuple[int, int]] = field(default_factory=list)
    process: Any = field(default_factory=StubNode)

    def __post_init__(self) -> None:
        store: Any = StoreOfSizes(self.held)
        self.process.broker = StubBroker(metrics=self.metrics, quorum_node=StubQuorumNode(store=store))
        self.check.acted(0, self.process, None, ())
        self.sees(0)

    def sees(self, at_us: int, notes: Sequence[tuple[str, int]] = ()) -> list[str]:
        """Return the violations after an event with these notes, each with the snapshot's number."""
        before = len(self.check.violations)
        effects = [Note(what, (("end_offset", number), ("epoch", 1))) for what, number in notes]
        self.check.acted(at_us, self.process, TimerFired(1), effects)
        self.check.inspect(at_us, 0, self.process, TimerFired(1), False)
        return [violation.explanation for violation in self.check.violations[before:]]

    def reports(self, size: int, *made_ms: int, loaded: int = 0) -> None:
        self.metrics.gauge(*NAMES, "SnapshotSizeBytes").value = size
        for each in made_ms:
            self.metrics.histogram(*NAMES, "GenSnapshotLatencyMs").record(each)
        for _ in range(loaded):
            self.metrics.histogram(*NAMES, "LoadSnapshotLatencyMs").record(1)


@pytest.mark.clause("S-14")
def test_snapshot_that_was_made_must_show() -> None:
    node = Watched()
    assert node.sees(5 * MS, [(STARTED, 3)]) == []
    node.held.append((3, 1))
    assert node.sees(9 * MS) == [
        "SnapshotSizeBytes is 0, and the newest snapshot has 300 bytes",
        "GenSnapshotLatencyMs has 0 entries of 0 ms; the node made 1 in 4 ms",
    ]
    node.reports(300, 4)
    assert node.sees(10 * MS) == []


@pytest.mark.clause("S-14")
def test_snapshot_that_was_downloaded_shows_before_it_is_loaded() -> None:
    node = Watched()
    node.held.append((3, 1))
    assert node.sees(1) == ["SnapshotSizeBytes is 0, and the newest snapshot has 300 bytes"]
    node.reports(300)
    assert node.sees(2) == []
    assert node.sees(3, [(LOADED, 3)]) == ["LoadSnapshotLatencyMs has 0 entries, and the node loaded 1"]
    node.reports(300, loaded=1)
    assert node.sees(4) == []


@pytest.mark.clause("S-14")
def test_successor_of_a_damaged_one_comes_at_an_unknown_time() -> None:
    node = Watched()
    node.reports(0, 7)
    assert node.sees(1) == ["GenSnapshotLatencyMs has 1 entries of 7 ms; the node made 0 in 0 ms"]
    assert node.sees(2, [(DAMAGED, 3)]) == []


@pytest.mark.clause("S-14")
def test_snapshots_loaded_before_first_check_are_counted_as_reported() -> None:
    node = Watched()
    node.check = SnapshotMetricsExact(check_context())
    node.reports(0, loaded=2)
    assert node.sees(1) == []
    assert node.sees(2, [(LOADED, 3)]) == ["LoadSnapshotLatencyMs has 2 entries, and the node loaded 3"]


@pytest.mark.clause("S-14")
def test_process_that_begins_to_end_keeps_what_it_measured() -> None:
    node = Watched()
    node.reports(0, loaded=1)
    node.sees(5 * MS, [(STARTED, 3), (LOADED, 2)])
    node.held.append((3, 1))
    node.reports(300, 4)
    assert node.sees(9 * MS) == []
    node.check.acted(9 * MS, node.process, None, ())
    assert node.sees(9 * MS) == []
