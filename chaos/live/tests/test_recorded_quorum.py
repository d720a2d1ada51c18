"""The quorum of a live run, judged from the states that its nodes recorded."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec
import pytest

from chaos.checks.log.batches import BatchIdentity
from chaos.checks.quorum.quorum_view import Seen
from chaos.live.node_side.quorum_recorder import ROW, RecordedState
from chaos.live.recorded_quorum import CONVERGES_LIMIT_US, RecordedQuorum, is_recorded, recorded_kinds
from reports.manifest import CheckResult
from reports.rows import TraceRow

GUARANTEES = (
    "one-leader-per-epoch",
    "log-matching",
    "leader-completeness",
    "majority-high-watermark",
    "monotonic-epoch",
    "monotonic-high-watermark",
    "snapshot-at-log-start",
    "snapshot-equals-replay",
    "leader-never-loads-snapshot",
    "quorum-converges",
)
HEALED_US = 5_000
LOADED = '{"end_offset":2,"epoch":1}'


def batch(offset: int, epoch: int, crc: int = 7) -> BatchIdentity:
    return BatchIdentity(offset, epoch, crc, offset, False)


class Recording:
    """The rows of three voters, in the order in which a test adds them."""

    def __init__(self) -> None:
        self.rows: list[TraceRow] = []
        self._written: dict[tuple[int, int], int] = {}

    def note(self, at_us: int, node: int, what: str, detail: str, incarnation: int = 0) -> None:
        sequence = self._written[node, incarnation] = self._written.get((node, incarnation), -1) + 1
        self.rows.append(TraceRow(node, incarnation, sequence, at_us, what, detail=detail))

    def state(
        self,
        at_us: int,
        node: int,
        epoch: int,
        leader: int,
        high_watermark: int,
        *,
        end: int,
        incarnation: int = 0,
        start: int = 0,
        synced: int = -1,
        appended: Iterable[BatchIdentity] = (),
        snapshots: tuple[tuple[int, int], ...] = (),
    ) -> None:
        """Add a node's state. Its log is synced to its end, unless ``synced`` says less."""
        durable = end if synced < 0 else synced
        seen = Seen(incarnation, epoch, leader == node, leader, high_watermark, start, end, durable)
        state = RecordedState(seen, snapshots, high_watermark - 1, tuple(appended))
        self.note(at_us, node, ROW, msgspec.json.encode(state).decode(), incarnation)


Add = Callable[[Recording], None]


def healthy(before_election: Add | None = None) -> Recording:
    """Node 0 leads epoch 1 and commits two batches. Node 1 leads epoch 2, commits a third, and all come to agree.

    ``before_election`` adds rows before the state in which node 1 leads.
    """
    run = Recording()
    first, second, third = batch(0, 1), batch(1, 1), batch(2, 2)
    run.state(10, 0, 1, 0, -1, end=1, appended=[first])
    run.state(20, 1, 1, 0, -1, end=2, appended=[first, second])
    run.state(20, 2, 1, 0, -1, end=1, appended=[first])
    run.state(30, 0, 1, 0, 2, end=2, appended=[second])
    if before_election is not None:
        before_election(run)
    run.state(40, 1, 2, 1, -1, end=3, appended=[third])
    run.state(50, 2, 2, 1, 2, end=3, appended=[second, third])
    run.state(60, 1, 2, 1, 3, end=3)
    run.state(70, 0, 2, 1, 3, end=3, appended=[third])
    run.state(75, 2, 2, 1, 3, end=3)
    run.state(6_000, 2, 2, 1, 3, end=3)
    return run


def judged(run: Recording, end_us: int = 10_000, replaced: Iterable[int] = ()) -> dict[str, CheckResult]:
    quorum = RecordedQuorum(GUARANTEES, 3, 0, HEALED_US, [*replaced])
    quorum.play(run.rows, end_us)
    return {result.guarantee: result for result in quorum.judged(end_us)}


def broken(run: Recording, end_us: int = 10_000, replaced: Iterable[int] = ()) -> set[str]:
    return {name for name, result in judged(run, end_us, replaced).items() if not result.holds}


def test_healthy_run_holds_every_guarantee_of_quorum() -> None:
    results = judged(healthy())
    assert set(results) == set(GUARANTEES)
    assert all(result.holds and result.evidence for result in results.values()), results


def lets_two_lead(run: Recording) -> None:
    run.state(45, 2, 2, 2, -1, end=1)


def forgets_epoch(run: Recording) -> None:
    run.state(6_100, 2, 1, 0, 3, end=3)


def holds_other_batch(run: Recording) -> None:
    run.state(55, 2, 2, 1, 2, end=3, appended=[batch(1, 1, crc=8), batch(2, 2)])


def lacks_committed_batch(run: Recording) -> None:
    run.state(80, 2, 3, 2, -1, end=2, appended=[batch(1, 3)])


def commits_without_majority(run: Recording) -> None:
    run.state(80, 1, 2, 1, 4, end=4, appended=[batch(3, 2)])


def takes_high_watermark_back(run: Recording) -> None:
    run.state(6_100, 0, 2, 1, 2, end=3)


def deletes_log_without_snapshot(run: Recording) -> None:
    run.state(80, 0, 2, 1, 3, end=3, start=2)


def names_snapshot_beyond_commit(run: Recording) -> None:
    run.note(80, 0, "snapshot_renamed", '{"end_offset":9,"epoch":2}')
    run.state(80, 0, 2, 1, 3, end=3, snapshots=((9, 2),))


def publishes_other_metadata(run: Recording) -> None:
    run.note(61, 1, "metadata_image", '{"digest":"aa","epoch":2,"offset":2,"partitions":1,"topics":1}')
    run.note(71, 0, "metadata_image", '{"digest":"bb","epoch":2,"offset":2,"partitions":1,"topics":1}')


def leader_loads_snapshot(run: Recording) -> None:
    run.note(62, 1, "snapshot_loaded", LOADED)


@pytest.mark.parametrize(
    ("defect", "guarantee"),
    [
        (lets_two_lead, "one-leader-per-epoch"),
        (forgets_epoch, "monotonic-epoch"),
        (holds_other_batch, "log-matching"),
        (lacks_committed_batch, "leader-completeness"),
        (commits_without_majority, "majority-high-watermark"),
        (takes_high_watermark_back, "monotonic-high-watermark"),
        (deletes_log_without_snapshot, "snapshot-at-log-start"),
        (names_snapshot_beyond_commit, "snapshot-at-log-start"),
        (publishes_other_metadata, "snapshot-equals-replay"),
        (leader_loads_snapshot, "leader-never-loads-snapshot"),
    ],
)
def test_defect_breaks_its_guarantee(defect: Add, guarantee: str) -> None:
    run = healthy()
    defect(run)
    assert guarantee in broken(run)


class NearMiss(NamedTuple):
    """What a healthy cluster may do, too."""

    name: str
    add: Add


NEAR_MISSES = (
    NearMiss("restart in the same epoch", lambda run: run.state(80, 0, 2, 1, 3, end=3, incarnation=1)),
    NearMiss(
        "log that begins at a snapshot", lambda run: run.state(80, 0, 2, 1, 3, end=3, start=2, snapshots=((2, 1),))
    ),
    NearMiss("snapshot loaded by a follower", lambda run: run.note(72, 0, "snapshot_loaded", LOADED)),
)


@pytest.mark.parametrize("near_miss", NEAR_MISSES, ids=lambda one: one.name)
def test_near_miss_breaks_nothing(near_miss: NearMiss) -> None:
    run = healthy()
    near_miss.add(run)
    assert not broken(run)


def test_former_leader_may_load_its_snapshot_when_it_starts_again() -> None:
    run = healthy()
    run.note(80, 1, "snapshot_loaded", LOADED, incarnation=1)
    run.state(90, 1, 2, -1, -1, end=3, incarnation=1)
    run.state(95, 1, 2, 1, 3, end=3, incarnation=1)
    assert not broken(run)


def test_only_node_with_replaced_directory_may_come_back_in_earlier_epoch() -> None:
    run = healthy()
    run.state(80, 0, 0, -1, -1, end=0, incarnation=1)
    run.state(90, 0, 2, 1, 3, end=3, incarnation=1, appended=[batch(0, 1), batch(1, 1), batch(2, 2)])
    assert broken(run) == {"monotonic-epoch"}
    assert not broken(run, replaced=[0])
    assert broken(run, replaced=[1]) == {"monotonic-epoch"}


def test_nodes_that_never_agree_break_convergence_only_after_its_limit() -> None:
    run = Recording()
    for node in range(3):
        run.state(10 + node, node, 1, 0, node, end=3)
    in_time, too_late = HEALED_US + CONVERGES_LIMIT_US, HEALED_US + CONVERGES_LIMIT_US + 1
    assert "quorum-converges" not in judged(run, in_time)
    assert "quorum-converges" in broken(run, too_late)


def test_nodes_that_agreed_before_heal_need_not_change_after_it() -> None:
    run = healthy()
    run.rows.pop()
    assert all(row.at_us < HEALED_US for row in run.rows)
    assert judged(run)["quorum-converges"].holds
    run.rows.pop()
    assert "quorum-converges" not in judged(run)


def test_states_after_end_of_nodes_are_not_judged() -> None:
    run = healthy()
    run.state(20_000, 2, 2, 2, 3, end=3)
    assert not broken(run, end_us=10_000)
    assert "one-leader-per-epoch" in broken(run, end_us=20_000)


def test_leadership_gained_in_event_that_ends_loading_is_allowed() -> None:
    assert not broken(healthy(lambda run: run.note(40, 1, "snapshot_loaded", LOADED)))


def test_row_counts_with_event_that_led_to_it_although_written_later() -> None:
    """Node 1 loads a snapshot as a follower. The row has a time at which it led already."""

    def load_late(run: Recording) -> None:
        run.note(65, 1, "snapshot_loaded", LOADED)
        run.state(35, 1, 1, 0, 2, end=2)

    assert not broken(healthy(load_late))


def test_nodes_record_only_for_guarantees_that_recordings_can_judge() -> None:
    assert is_recorded(["log-matching", "lost-write"])
    assert is_recorded(["quorum-converges"])
    assert not is_recorded(["lost-write", "stable-leadership"])
    assert {kind.guarantee for kind in recorded_kinds(GUARANTEES)} == {*GUARANTEES} - {"quorum-converges"}


def test_run_without_recordings_judges_nothing() -> None:
    assert judged(Recording()) == {}
