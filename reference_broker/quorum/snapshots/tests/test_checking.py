"""A leader serves only snapshots that it has read to their end, and a follower backs off from damaged ones and full
disks."""

from itertools import pairwise

import pytest

from reference_broker.metadata.snapshots import load_snapshot
from reference_broker.ports.slicing import run_to_end
from reference_broker.quorum.snapshots import serving
from reference_broker.quorum.snapshots.download import FIRST_WAIT_US, LONGEST_WAIT_US, Postponement
from reference_broker.quorum.snapshots.messages import SnapshotRequest
from reference_broker.quorum.snapshots.serving import GOOD_FOR_US, SnapshotChecks, serve
from reference_broker.quorum.snapshots.tests.download_world import changed, completes, started
from reference_broker.quorum.snapshots.tests.snapshot_world import Leadership, Replica, content, filled, setting
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.wire.errors import ErrorCode

X, Y = OffsetAndEpoch(10, 1), OffsetAndEpoch(20, 1)


class Checked:
    """A leader with a snapshot. ``calls`` counts the requests that passed the check."""

    def __init__(self) -> None:
        self.replica = filled(Replica(), topics=40)
        self.id = self.replica.make_snapshot()
        self.found: list[OffsetAndEpoch] = []
        store = self.replica.store
        self.checks = SnapshotChecks(self.replica.node, store, lambda: self.found.extend(store.damaged))
        self.calls = 0

    def request(self, position: int = 0) -> None:
        self.checks.before_serving(self.id, position, self._let_through)

    def _let_through(self) -> None:
        self.calls += 1

    @property
    def error(self) -> object:
        request = SnapshotRequest("c", 2, "__cluster_metadata", 0, 3, self.id, 0, 100)
        return serve(request, self.replica.store, Leadership(epoch=3), 7, False).error


def test_intact_snapshot_is_checked_once_and_served() -> None:
    world = Checked()
    reads: list[str] = []
    read = world.replica.disk.read

    def counted(path: str, position: int, length: int) -> bytes:
        reads.append(path)
        return read(path, position, length)

    world.replica.disk.read = counted  # type: ignore[method-assign]
    for position in (0, 100, 0, 0):
        world.request(position)
    assert (world.calls, len(reads)) == (4, 1)
    world.replica.ports.advance(GOOD_FOR_US // 1000)
    world.request(100)
    assert len(reads) == 1, "only the beginning of a download causes another check"
    world.request(0)
    assert (world.calls, len(reads)) == (6, 2)


@pytest.mark.parametrize("position", [0, 500])
@pytest.mark.parametrize("byte", [3, 300, -1])
def test_flipped_bit_is_detected_before_serving(position: int, byte: int) -> None:
    world = Checked()
    world.replica.disk.flip(world.replica.store.path(world.id), byte)
    for _ in range(3):
        world.request(position)
    assert (world.calls, world.found) == (3, [world.id])
    assert world.error is ErrorCode.kafka_storage_error
    (noted,) = world.replica.ports.notes_of("snapshot_damaged")
    assert (noted["end_offset"], noted["epoch"]) == world.id


def test_later_flipped_bit_is_detected_at_next_download() -> None:
    world = Checked()
    world.request()
    world.replica.disk.flip(world.replica.store.path(world.id), 200)
    world.replica.ports.advance(GOOD_FOR_US // 1000)
    world.request()
    assert (world.found, world.error) == ([world.id], ErrorCode.kafka_storage_error)


def test_large_snapshot_is_checked_in_slices_once_for_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SNAPSHOT_BYTES_PER_SLICE", 1000)
    world = Checked()
    for position in (0, 0, 700):
        world.request(position)
    assert world.calls == 0
    slices = 0
    while world.replica.ports.step():
        slices += 1
    assert world.calls == 3
    assert slices > 3


def test_snapshot_deleted_during_check_is_not_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SNAPSHOT_BYTES_PER_SLICE", 1000)
    monkeypatch.setattr("reference_broker.quorum.snapshots.format.READ_BYTES", 500)
    world = Checked()
    world.request()
    world.replica.store.delete(world.id)
    world.replica.ports.run()
    assert (world.calls, world.found) == (1, [])
    assert world.error is ErrorCode.snapshot_not_found


@pytest.mark.clause("FileRawSnapshotTest.testCreateSnapshotWithSameId")
def test_damaged_snapshot_is_rewritten_from_image() -> None:
    world = Checked()
    good = world.replica.bytes_of(world.id)
    world.checks.on_damaged = world.replica.generator.remake
    world.replica.disk.flip(world.replica.store.path(world.id), 300)
    world.request()
    world.replica.ports.run()
    assert world.replica.store.ids == (world.id,)
    assert (world.replica.bytes_of(world.id), world.error) == (good, ErrorCode.none)
    assert world.replica.store.damaged == {}


def test_damaged_snapshot_is_replaced_by_newer_one() -> None:
    world = Checked()
    world.replica.disk.flip(world.replica.store.path(world.id), 300)
    world.replica.append([setting(1)])
    world.checks.on_damaged = world.replica.generator.remake
    world.request()
    world.replica.ports.run()
    newest = world.replica.store.latest
    assert newest is not None
    assert newest.offset == world.id.offset + 1
    assert content(run_to_end(load_snapshot(world.replica.disk, newest))) == content(world.replica.image)


# The follower


def test_backoff_doubles_with_each_damaged_download_up_to_limit() -> None:
    postponement = Postponement()
    waits = [postponement.damaged(1, X, 0) for _ in range(12)]
    assert waits[0] == FIRST_WAIT_US
    assert all(later == min(2 * earlier, LONGEST_WAIT_US) for earlier, later in pairwise(waits))
    assert waits[-1] == LONGEST_WAIT_US


def test_backoff_is_per_snapshot_and_leader_except_for_full_disk() -> None:
    postponement = Postponement()
    postponement.damaged(1, X, 0)
    waits = [postponement.wait_us(leader, snapshot, 0) for leader, snapshot in ((1, X), (2, X), (1, Y))]
    assert waits == [FIRST_WAIT_US, 0, 0]
    assert postponement.wait_us(1, X, FIRST_WAIT_US) == 0
    assert postponement.damaged(2, X, 0) == FIRST_WAIT_US, "it is the first of this leader"
    postponement.not_written(0)
    assert [postponement.wait_us(leader, X, 0) for leader in (1, 2)] == [FIRST_WAIT_US] * 2
    postponement.over()
    assert postponement.wait_us(1, X, 0) == 0


def test_damaged_download_is_noted_with_backoff_and_success_resets_it() -> None:
    _, snapshot, follower, transfer = started()
    for _ in range(3):
        body = transfer.response()
        transfer.deliver(changed(body, size=10**6))
        transfer.outcomes.clear()
        assert follower.download.wait_us(1, snapshot) > 0
        transfer.begin(snapshot)
        transfer.deliver()
    assert [(each["times"], each["wait_ms"]) for each in follower.ports.notes_of("download_postponed")] == [
        (1, 100),
        (2, 200),
        (3, 400),
    ]
    completes(transfer, snapshot)
    assert follower.download.wait_us(1, snapshot) == 0


def test_unreadable_snapshot_of_leader_is_retried_after_backoff() -> None:
    _, snapshot, follower, transfer = started(pieces=0)
    transfer.leadership.error = ErrorCode.kafka_storage_error
    transfer.deliver()
    assert follower.download.wait_us(1, snapshot) == FIRST_WAIT_US
