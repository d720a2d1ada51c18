"""The tombstone horizon: markers, replicas that were away, and replicas that begin again."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from chaos.checks.history import History
from chaos.checks.log.tests.compacted_logs import CompactedLog, keyed
from chaos.checks.log.tombstone_horizon import OneBootstrapPerMarker, TombstonesMarked
from chaos.checks.replication.tests.replicated import Cluster
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import StubBroker, StubNode
from reference_broker.core.events import Note
from reports.rows import OperationRow, PositionRow, ResetRow, ViewRow

MARKED, DELETED = "tombstones-marked", "deleted-stays-deleted"


@dataclass
class Horizon:
    """The marker of a log below which tombstones may be gone."""

    offset: int = 0


@dataclass
class MarkedLog(CompactedLog):
    """Tombstones below ``horizon.offset`` may be gone."""

    horizon: Horizon = field(default_factory=lambda: Horizon())

    def clean(self, *gone: int, marker: int = 0) -> None:
        super().clean(*gone)
        self.horizon.offset = marker


def cluster(heeded: bool = True, committed: int = 5) -> Cluster:
    """Keys a, b, a, b (deleted), and c in the active segment; all committed everywhere below ``committed``."""
    made = Cluster(tombstone_horizon=heeded)
    made.logs = [MarkedLog() for _ in range(3)]
    made.append(keyed(0, b"a"), keyed(1, b"b"), keyed(2, b"a"), keyed(3, b"b", None), keyed(4, b"c"))
    for log in made.logs:
        log.bases = [0, 4]
    made.commit(committed)
    made.now_us += 2_000_000  # Tombstones may go by now.
    return made


def log_of(made: Cluster, number: int) -> MarkedLog:
    log = made.logs[number]
    assert isinstance(log, MarkedLog)
    return log


@pytest.mark.parametrize(("marker", "broken"), [(4, []), (3, [MARKED]), (0, [MARKED])])
def test_tombstone_goes_below_the_marker_only(marker: int, broken: list[str]) -> None:
    made = cluster()
    log_of(made, 0).clean(0, 1, 3, marker=marker)
    made.observe(0)
    assert made.broken() == broken


def test_markers_are_not_judged_where_replicas_do_not_heed_them() -> None:
    made = cluster(heeded=False)
    log_of(made, 0).clean(0, 1, 3, marker=0)
    log_of(made, 1).gone[3] = None
    made.observe(0, 1)
    assert made.broken() == []


@pytest.mark.parametrize(("newer_at", "is_violation"), [(5, False), (None, True)])
def test_tombstone_that_was_superseded_beyond_this_log_may_be_gone(newer_at: int | None, is_violation: bool) -> None:
    """Two newer records of its key follow each other, and this replica copied a log that had only the last of them."""
    made = cluster()
    made.append(keyed(5, b"b" if newer_at else b"d"), keyed(6, b"b" if newer_at else b"e"), to=(0, 1))
    made.commit(7, 0, 1)
    late = log_of(made, 2)
    late.gone.update({0: None, 1: None, 3: None})
    late.cleaned_offset = 4
    made.observe(2)
    judge = next(check for check in made.checks if isinstance(check, TombstonesMarked))
    assert bool(judge.violations) is is_violation


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("follower", "leader", "is_violation"), [(4, 4, False), (4, 5, False), (4, 3, True), (4, 0, True)]
)
def test_follower_does_not_overtake_its_leader(follower: int, leader: int, is_violation: bool) -> None:
    made = cluster()
    judge = next(check for check in made.checks if isinstance(check, TombstonesMarked))
    for number, marker in ((0, leader), (1, 0), (1, follower)):
        log_of(made, number).horizon.offset = marker
        made.observe(number)
    assert bool(judge.violations) is is_violation


@pytest.mark.parametrize(("follower", "is_violation"), [(3, False), (4, True)])
def test_follower_may_not_exceed_its_leaders_marker_whatever_another_follower_has(
    follower: int, is_violation: bool
) -> None:
    made = cluster()
    judge = next(check for check in made.checks if isinstance(check, TombstonesMarked))
    made.restart(2)  # A new process may have any marker.
    for number, marker in ((2, 5), (0, 3), (1, 0), (1, follower)):
        log_of(made, number).horizon.offset = marker
        made.observe(number)
    assert bool(judge.violations) is is_violation


@pytest.mark.thorough
@pytest.mark.parametrize(("follower", "is_violation"), [(3, False), (4, True)])
def test_follower_may_not_exceed_its_leaders_marker_whatever_an_earlier_leader_had(
    follower: int, is_violation: bool
) -> None:
    """Node 2 led before the process of node 1 began that follows now."""
    made = cluster()
    judge = next(check for check in made.checks if isinstance(check, TombstonesMarked))
    for lead, number, marker in ((2, 2, 5), (2, 1, 0), (0, 2, 5), (0, 0, 3), (0, 1, 0), (0, 1, follower)):
        if (lead, number) == (0, 0):
            made.restart(1)
        made.lead(lead, 2 - lead)
        log_of(made, number).horizon.offset = marker
        made.observe(number)
    assert bool(judge.violations) is is_violation


@pytest.mark.thorough
@pytest.mark.clause("H-2")
@pytest.mark.parametrize(("follower", "is_violation"), [(2, False), (3, False), (4, True), (5, True)])
def test_previous_leaders_marker_does_not_allow_a_follower_to_exceed_the_present_one(
    follower: int, is_violation: bool
) -> None:
    """Node 2 led with the marker 5 while node 1 followed it with 2. Now node 0 leads, whose marker is 3."""
    made = cluster()
    judge = next(check for check in made.checks if isinstance(check, TombstonesMarked))
    for lead, number, marker in ((2, 2, 5), (2, 1, 2), (0, 0, 3), (0, 2, 5), (0, 1, follower)):
        made.lead(lead, 2 - lead)
        log_of(made, number).horizon.offset = marker
        made.observe(number)
    assert bool(judge.violations) is is_violation


@pytest.mark.clause("H-2")
@pytest.mark.parametrize(("moved", "is_violation"), [(4, False), (5, True)])
def test_follower_beyond_its_new_leader_does_not_move(moved: int, is_violation: bool) -> None:
    made = cluster()
    judge = next(check for check in made.checks if isinstance(check, TombstonesMarked))
    for lead, number, marker in ((2, 2, 5), (2, 1, 4), (0, 0, 3), (0, 1, 4), (0, 1, moved)):
        made.lead(lead, 2 - lead)
        log_of(made, number).horizon.offset = marker
        made.observe(number)
    assert bool(judge.violations) is is_violation


def test_replica_that_led_before_may_be_beyond_the_next_leader() -> None:
    made = cluster()
    judge = next(check for check in made.checks if isinstance(check, TombstonesMarked))
    log_of(made, 0).horizon.offset = 4
    for lead in (0, 1):
        made.lead(lead, lead)
        for number in (0, 1):
            made.observe(number)
    assert not judge.violations


@pytest.mark.thorough
@pytest.mark.parametrize(("gone", "broken"), [((0, 3), [DELETED]), ((0, 1, 3), []), ((0, 1), []), ((0,), [])])
def test_replica_that_missed_a_tombstone_holds_what_it_deleted(gone: tuple[int, ...], broken: list[str]) -> None:
    made = cluster()
    made.observe()
    log = log_of(made, 2)  # It copied offset 1 before, and the rest later, where the tombstone was gone.
    log.gone.update(dict.fromkeys(gone))
    log.horizon.offset = 4
    assert made.broken() == broken


def test_replica_before_records_after_tombstone_is_no_violation() -> None:
    made = cluster()
    made.append(keyed(5, b"b"), to=(0, 1))
    made.commit(6, 0, 1)
    log = log_of(made, 2)
    log.gone.update({0: None, 3: None})
    log.horizon.offset = 4
    assert DELETED not in made.broken()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("heeded", "left", "marker", "broken"),
    [(True, 0, 6, 0), (True, 0, 5, 1), (True, 0, 0, 1), (True, 2, 6, 1), (False, 0, 6, 1)],
)
def test_only_a_log_that_was_emptied_for_the_marker_loses_its_high_watermark(
    heeded: bool, left: int, marker: int, broken: int
) -> None:
    """The log ended at offset 5. A marker there requires nothing before it (H-4)."""
    made = cluster(heeded)
    log = log_of(made, 2)
    log.held, log.high_watermark, log.horizon.offset = log.held[:left], left, marker
    made.observe(2)
    assert made.broken().count("high-watermark-monotonic") == broken


# Who begins again


def bootstrap_started(check: OneBootstrapPerMarker, position: int, marker: int) -> None:
    fields: Any = (("partition", "t-0"), ("position", position), ("horizon", marker))
    node = StubNode(StubBroker(2)).as_node()
    check.acted(1, node, None, [Note("unsafe_bootstrap", fields)])


@pytest.mark.parametrize(
    ("markers", "wrong"),
    [
        ([(3, 5), (0, 6)], 0),  # The marker moved (H-6).
        ([(3, 5), (0, 5)], 1),  # It did not (H-5).
        ([(5, 5)], 1),  # It is not below it (H-7).
        ([(4, 5)], 0),
    ],
)
def test_follower_begins_again_once_for_a_marker(markers: list[tuple[int, int]], wrong: int) -> None:
    check = OneBootstrapPerMarker(check_context())
    for position, marker in markers:
        bootstrap_started(check, position, marker)
    assert len(check.violations) == wrong


def reader_history(*markers: tuple[int, int, bool], ends: tuple[int, ...] = (99,)) -> History:
    """A reader's responses: position, marker, and whether it began again. ``ends``: where its lives end."""
    history = History()
    for index, (position, marker, begins) in enumerate(markers):
        at_us = 10 * index + 5
        row = PositionRow("f", index, "t", 0, position, position, 9, 0, None, tombstone_horizon=marker)
        history.add([OperationRow("f", index, "fetch", "ok", at_us - 1, at_us - 1, at_us), row])
        if begins:
            history.add([ResetRow("f", index, "t", 0, position, 0, "tombstones_missed", -1, at_us)])
    history.add([ViewRow("f", "t", 0, 0, 0, 10 * end, 9, "", -1, "", -1) for end in ends])
    return history


@pytest.mark.parametrize(
    ("history", "wrong"),
    [
        (reader_history((3, 5, True), (0, 5, False), (4, 5, False), (5, 5, False), (7, 6, False)), 0),
        (reader_history((3, 5, False)), 1),  # H-3
        (reader_history((5, 5, False)), 0),
        (reader_history((3, 5, True), (0, 5, True)), 1),  # H-5
        (reader_history((3, 5, True), (0, 6, True)), 0),
        (reader_history((3, 5, True), (0, 6, False)), 1),  # H-6
        (reader_history((3, 5, True), (5, 5, False), (5, 6, True)), 0),
        (reader_history((3, 5, True), (5, 5, False), (8, 6, True)), 1),  # H-7
        (reader_history((3, 5, True), (0, 4, False)), 0),  # another leader has a smaller marker
        (reader_history((3, 5, True), (0, 4, True)), 1),
        (reader_history((3, 5, True), (0, 4, False), (1, 5, True)), 0),
        (reader_history((3, 5, True), (0, 5, True), ends=(1, 9)), 0),  # The next life knows nothing.
        (reader_history((3, 5, True), (0, 5, False), ends=(1, 9)), 1),
    ],
)
def test_reader_begins_again_when_it_must_and_only_then(history: History, wrong: int) -> None:
    check = OneBootstrapPerMarker(check_context())
    check.end(history)
    assert len(check.violations) == wrong, [violation.explanation for violation in check.violations]


def test_response_that_shows_a_truncation_says_nothing_of_the_marker() -> None:
    history = reader_history((3, 5, False))
    history.add([ResetRow("f", 0, "t", 0, 3, 2, "truncated", -1, 5)])
    check = OneBootstrapPerMarker(check_context())
    check.end(history)
    assert not check.violations
    check.end(replace(reader_history((3, 5, False)), resets=[ResetRow("f", 0, "t", 0, 3, 2, "truncated", -1, 6)]))
    assert len(check.violations) == 1
