"""A leader serves no snapshot that it has not read to its end, and a follower does not ask without pause for what is
damaged or cannot be written."""

from itertools import pairwise

import pytest

from reference_broker.metadata.snapshots import load_snapshot
from reference_broker.ports.slicing import run_to_end
from reference_broker.quorum.snapshots import serving
from reference_broker.quorum.snapshots.download import FIRST_WAIT_US, LONGEST_WAIT_US, Postponement
from reference_broker.quorum.snapshots.messages import SnapshotRequest
from reference_broker.quorum.snapshots.serving import GOOD_FOR_US, SnapshotChecks, serve
from reference_broker.quorum.snapshots.tests.download_world import begun, changed, goes_on_to_its_end
from reference_broker.quorum.snapshots.tests.snapshot_world import Leadership, Replica, content, filled, setting
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.wire.errors import ErrorCode

X, Y = OffsetAndEpoch(10, 1), OffsetAndEpoch(20, 1)


class Checked:
    """A leader with a snapshot. ``calls`` counts those that were let through."""

    def __init__(self) -> None:
        self.replica = filled(Replica(), topics=40)
        self.id = self.replica.make_snapshot()
        self.found: list[OffsetAndEpoch] = []
        store = self.replica.store
        self.checks = SnapshotChecks(self.replica.node, store, lambda: self.found.extend(store.damaged))
        self.calls = 0

    def ask(self, position: int = 0) -> None:
        self.checks.before_serving(self.id, position, self._let_through)

    def _let_through(self) -> None:
        self.calls += 1

    @property
    def error(self) -> object:
        request = SnapshotRequest("c", 2, "__cluster_metadata", 0, 3, self.id, 0, 100)
        return serve(request, self.replica.store, Leadership(epoch=3), 7, False).error


def test_a_whole_snapshot_is_served_at_once_and_not_read_again_soon() -> None:
    world = Checked()
    reads: list[str] = []
    read = world.replica.disk.read

    def counted(path: str, position: int, length: int) -> bytes:
        reads.append(path)
        return read(path, position, length)

    world.replica.disk.read = counted  # type: ignore[method-assign]
    for position in (0, 100, 0, 0):
        world.ask(position)
    assert (world.calls, len(reads)) == (4, 1)
    world.replica.ports.advance(GOOD_FOR_US // 1000)
    world.ask(100)
    assert len(reads) == 1, "only the beginning of a download asks for another check"
    world.ask(0)
    assert (world.calls, len(reads)) == (6, 2)


@pytest.mark.parametrize("position", [0, 500])
@pytest.mark.parametrize("byte", [3, 300, -1])
def test_a_flipped_bit_is_found_before_a_byte_is_served(position: int, byte: int) -> None:
    world = Checked()
    world.replica.disk.flip(world.replica.store.path(world.id), byte)
    for _ in range(3):
        world.ask(position)
    assert (world.calls, world.found) == (3, [world.id])
    assert world.error is ErrorCode.kafka_storage_error
    (noted,) = world.replica.ports.notes_of("snapshot_damaged")
    assert (noted["end_offset"], noted["epoch"]) == world.id


def test_a_bit_that_flips_later_is_found_when_the_next_download_begins() -> None:
    world = Checked()
    world.ask()
    world.replica.disk.flip(world.replica.store.path(world.id), 200)
    world.replica.ports.advance(GOOD_FOR_US // 1000)
    world.ask()
    assert (world.found, world.error) == ([world.id], ErrorCode.kafka_storage_error)


def test_a_large_snapshot_is_read_in_slices_once_for_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SNAPSHOT_BYTES_PER_SLICE", 1000)
    world = Checked()
    for position in (0, 0, 700):
        world.ask(position)
    assert world.calls == 0
    slices = 0
    while world.replica.ports.step():
        slices += 1
    assert (world.calls, slices > 3) == (3, True)


def test_a_snapshot_that_is_deleted_meanwhile_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SNAPSHOT_BYTES_PER_SLICE", 1000)
    monkeypatch.setattr("reference_broker.quorum.snapshots.format.READ_BYTES", 500)
    world = Checked()
    world.ask()
    world.replica.store.delete(world.id)
    world.replica.ports.run()
    assert (world.calls, world.found) == (1, [])
    assert world.error is ErrorCode.snapshot_not_found


@pytest.mark.clause("FileRawSnapshotTest.testCreateSnapshotWithSameId")
def test_a_damaged_snapshot_is_made_again_of_the_image_in_memory() -> None:
    world = Checked()
    good = world.replica.bytes_of(world.id)
    world.checks.on_damaged = world.replica.generator.remake
    world.replica.disk.flip(world.replica.store.path(world.id), 300)
    world.ask()
    world.replica.ports.run()
    assert world.replica.store.ids == (world.id,)
    assert (world.replica.bytes_of(world.id), world.error) == (good, ErrorCode.none)
    assert world.replica.store.damaged == {}


def test_one_that_newer_metadata_follows_is_replaced_by_a_newer_one() -> None:
    world = Checked()
    world.replica.disk.flip(world.replica.store.path(world.id), 300)
    world.replica.append([setting(1)])
    world.checks.on_damaged = world.replica.generator.remake
    world.ask()
    world.replica.ports.run()
    newest = world.replica.store.latest
    assert newest is not None
    assert newest.offset == world.id.offset + 1
    assert content(run_to_end(load_snapshot(world.replica.disk, newest))) == content(world.replica.image)


# The follower


def test_the_wait_doubles_with_each_damaged_download_up_to_a_limit() -> None:
    postponement = Postponement()
    waits = [postponement.damaged(1, X, 0) for _ in range(12)]
    assert waits[0] == FIRST_WAIT_US
    assert all(later == min(2 * earlier, LONGEST_WAIT_US) for earlier, later in pairwise(waits))
    assert waits[-1] == LONGEST_WAIT_US


def test_another_snapshot_or_leader_is_tried_at_once_and_a_full_disk_waits_for_all() -> None:
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


def test_each_damaged_download_is_reported_with_its_wait_and_a_good_one_ends_that() -> None:
    _, snapshot, follower, transfer = begun()
    for _ in range(3):
        body = transfer.answer()
        transfer.deliver(changed(body, size=10**6))
        transfer.outcomes.clear()
        assert follower.download.wait_us(1, snapshot) > 0
        transfer.begin(snapshot)
        transfer.deliver()
    assert [(one["times"], one["wait_ms"]) for one in follower.ports.notes_of("download_postponed")] == [
        (1, 100),
        (2, 200),
        (3, 400),
    ]
    goes_on_to_its_end(transfer, snapshot)
    assert follower.download.wait_us(1, snapshot) == 0


def test_a_leader_that_cannot_read_its_snapshot_is_not_retried_at_once() -> None:
    _, snapshot, follower, transfer = begun(pieces=0)
    transfer.leadership.error = ErrorCode.kafka_storage_error
    transfer.deliver()
    assert follower.download.wait_us(1, snapshot) == FIRST_WAIT_US
