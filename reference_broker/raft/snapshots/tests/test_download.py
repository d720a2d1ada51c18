"""A download goes on where it was after any interruption, and never gives what it got a name before it is whole."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_broker.log.disk import DiskError
from reference_broker.raft.offset_and_epoch import OffsetAndEpoch
from reference_broker.raft.quorum_values import Failed, Installed, LeaderChanged, Rediscover
from reference_broker.raft.snapshots.file_names import part_path, progress_path
from reference_broker.raft.snapshots.messages import DRAFT_VERSION
from reference_broker.raft.snapshots.tests.snapshot_world import (
    Crash,
    CrashingDisk,
    Replica,
    Transfer,
    content,
    filled,
    setting,
)
from reference_broker.raft.snapshots.transfer_rate import LEAST_BYTES, TransferRate
from reference_broker.wire.errors import Error

CHUNK = 1000
CONFIG = {"crucible_metadata_snapshot_fetch_max_bytes": str(CHUNK)}


def _leader(topics: int = 5) -> Replica:
    replica = filled(Replica(), topics)
    replica.make_snapshot()
    return replica


def _world(**config: str) -> tuple[Replica, OffsetAndEpoch, Replica, Transfer]:
    leader = _leader()
    follower = Replica(node_id=2, **CONFIG | config)
    return leader, leader.store.ids[-1], follower, Transfer(leader, follower)


def _again(transfer: Transfer, power_loss: bool = False) -> Transfer:
    """The follower was killed and starts again."""
    disk = transfer.follower.disk
    disk.crash_at = -1
    if power_loss:
        disk.power_loss()
    after = Transfer(transfer.leader, Replica(disk, node_id=2, **CONFIG), transfer.leadership.leader_id)
    after.bytes_sent = transfer.bytes_sent
    return after


def _is_the_leaders(transfer: Transfer, snapshot: OffsetAndEpoch) -> None:
    leader, follower = transfer.leader, transfer.follower
    assert transfer.outcomes == [Installed(snapshot)]
    assert follower.bytes_of(snapshot) == leader.bytes_of(snapshot)
    assert (follower.log.start_offset, follower.log.end) == (snapshot.offset, snapshot)
    assert follower.names() == [follower.store.path(snapshot).rpartition("/")[2]], "leftovers"
    follower.load()
    assert content(follower.image) == content(leader.image)


@pytest.mark.clause("S-8", "S-9", "S-15")
def test_piece_by_piece_then_in_place_of_the_log():
    leader, snapshot, follower, transfer = _world()
    follower.append([setting(1)])
    transfer.begin(snapshot)
    positions = []
    while follower.ports.sent:
        body = follower.ports.sent[0][0]
        positions.append(body.topics[0].partitions[0].position)
        assert not follower.store.ids
        assert follower.log.start_offset == 0
        transfer.deliver()
    size = leader.store.size(snapshot)
    assert positions == list(range(0, size, CHUNK))
    assert transfer.bytes_sent == size
    assert transfer.progress >= len(positions)
    _is_the_leaders(transfer, snapshot)
    told = [what for what, _ in follower.ports.notes if what.startswith(("download", "snapshot"))]
    assert told[-4:-1] == ["download_chunk", "snapshot_renamed", "download_finished"]


@pytest.mark.clause("S-8")
def test_each_piece_is_durable_before_the_next_is_asked_for():
    _, snapshot, follower, transfer = _world()
    transfer.begin(snapshot)
    while follower.ports.sent:
        position = follower.ports.sent[0][0].topics[0].partitions[0].position
        assert position == 0 or follower.disk.durable_size(part_path(snapshot)) == position
        transfer.deliver()
    _is_the_leaders(transfer, snapshot)


def test_synced_before_renamed_before_truncated():
    _, snapshot, follower, transfer = _world()
    follower.append([setting(1)])
    transfer.begin(snapshot)
    order = []
    rename, delete = follower.disk.rename, follower.disk.delete

    def renamed(source, target):
        if source == part_path(snapshot):
            assert follower.disk.durable_size(source) == follower.disk.size(source)
            order.append("rename")
        rename(source, target)

    def deleted(path):
        if path.endswith(".log"):
            order.append("truncate")
        delete(path)

    follower.disk.rename, follower.disk.delete = renamed, deleted
    transfer.finish()
    assert order == ["rename", "truncate"]


@pytest.mark.clause("S-11")
@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(("ok", "lose", "cancel", "kill", "power")), max_size=30), st.integers(0, 99))
def test_bytes_sent_for_a_download_cut_n_times(events, seed):
    leader = _leader()
    snapshot = leader.store.ids[-1]
    transfer = Transfer(leader, Replica(CrashingDisk(Random(seed)), node_id=2, **CONFIG))
    transfer.begin(snapshot)
    cuts = 0
    for event in events:
        if not transfer.follower.ports.sent:
            break
        cuts += event != "ok"
        if event == "ok":
            transfer.deliver()
        elif event == "lose":
            transfer.lose()
            assert transfer.outcomes.pop() == Failed()
            transfer.begin(snapshot)
        elif event == "cancel":
            transfer.answer()
            transfer.follower.download.cancel()
            transfer.follower.ports.sent.clear()
            transfer.begin(snapshot)
        else:
            transfer.answer()
            transfer = _again(transfer, event == "power")
            transfer.begin(snapshot)
    transfer.finish()
    assert transfer.bytes_sent <= leader.store.size(snapshot) + cuts * CHUNK
    _is_the_leaders(transfer, snapshot)


@pytest.mark.clause("S-11")
@pytest.mark.parametrize("power_loss", [False, True])
def test_killed_before_each_disk_operation(power_loss):
    leader = _leader()
    snapshot = leader.store.ids[-1]
    size, crash_at, died = leader.store.size(snapshot), 0, True
    while died:
        transfer = Transfer(leader, Replica(CrashingDisk(Random(crash_at)), node_id=2, **CONFIG))
        disk, died = transfer.follower.disk, False
        disk.crash_at = disk.changes + crash_at
        try:
            transfer.begin(snapshot)
            transfer.finish()
        except Crash:
            died = True
            sent = transfer.bytes_sent
            durable = disk.durable_size(part_path(snapshot)) if disk.exists(part_path(snapshot)) else 0
            was_renamed = disk.exists(transfer.follower.store.path(snapshot))
            transfer = _again(transfer, power_loss)
            if was_renamed:
                assert transfer.follower.log.end == snapshot
                assert transfer.follower.store.ids == (snapshot,)
            else:
                transfer.begin(snapshot)
                transfer.finish()
                assert transfer.bytes_sent - sent <= size - durable + CHUNK
        crash_at += 1
        if transfer.outcomes:
            _is_the_leaders(transfer, snapshot)
    assert crash_at > 2 * size // CHUNK


@pytest.mark.clause("S-11")
@pytest.mark.parametrize("byte", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, -1])
def test_killed_at_byte_k_of_what_is_on_disk(byte):
    """Whatever the page cache kept of the part: what the checksums cover counts, the tail is cut."""
    leader, snapshot, follower, transfer = _world()
    size = leader.store.size(snapshot)
    byte = byte if byte >= 0 else size - 1
    transfer.begin(snapshot)
    for _ in range(max(1, min(-(-byte // CHUNK), size // CHUNK))):
        transfer.deliver()
    data = leader.bytes_of(snapshot)
    follower.disk.truncate(part_path(snapshot), byte)
    follower.disk.append(part_path(snapshot), [b"tail that no checksum covers"])
    after = _again(transfer)
    sent = after.bytes_sent
    after.begin(snapshot)
    asked = after.follower.ports.sent[0][0].topics[0].partitions[0].position
    assert asked == byte // CHUNK * CHUNK
    assert after.follower.disk.read(part_path(snapshot), 0, size) == data[:asked]
    after.finish()
    assert after.bytes_sent - sent <= size - asked
    _is_the_leaders(after, snapshot)


@pytest.mark.clause("S-11")
def test_damaged_bytes_on_disk_are_not_gone_on_with():
    _, snapshot, follower, transfer = _world()
    transfer.begin(snapshot)
    for _ in range(4):
        transfer.deliver()
    held = bytearray(follower.disk.read(part_path(snapshot), 0, 4 * CHUNK))
    held[2 * CHUNK + 5] ^= 1
    follower.disk.write(part_path(snapshot), held)
    after = _again(transfer)
    after.begin(snapshot)
    assert after.follower.ports.told("download_started")[0]["position"] == 2 * CHUNK
    for _ in range(3):
        after.deliver()
    after = _again(after)
    after.begin(snapshot)
    assert after.follower.ports.told("download_started")[0]["position"] == 5 * CHUNK
    after.finish()
    _is_the_leaders(after, snapshot)


@pytest.mark.clause("S-11")
@pytest.mark.parametrize("damage", ["missing", "empty", "flipped", "torn"])
def test_a_damaged_progress_file_is_not_believed(damage):
    _, snapshot, follower, transfer = _world()
    transfer.begin(snapshot)
    for _ in range(3):
        transfer.deliver()
    path = progress_path(snapshot)
    content_ = bytearray(follower.disk.read(path, 0, 10_000))
    content_[-3 if damage == "torn" else 3] ^= 255
    if damage == "missing":
        follower.disk.delete(path)
    else:
        follower.disk.write(path, b"" if damage == "empty" else content_)
    after = _again(transfer)
    after.begin(snapshot)
    expected = 2 * CHUNK if damage == "torn" else 0
    assert after.follower.ports.told("download_started")[0]["position"] == expected
    after.finish()
    _is_the_leaders(after, snapshot)


@pytest.mark.clause("S-11")
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("other", ["leader", "snapshot"])
def test_another_leader_or_snapshot_begins_at_zero(other, killed):
    leader, snapshot, follower, transfer = _world()
    transfer.begin(snapshot)
    for _ in range(3):
        transfer.deliver()
    follower.download.cancel()
    follower.ports.sent.clear()
    if other == "snapshot":
        leader.append([setting(1)])
        wanted = leader.make_snapshot()
        after = _again(transfer) if killed else transfer
    else:
        wanted = snapshot
        follower = Replica(follower.disk, node_id=2, **CONFIG) if killed else follower
        after = Transfer(_leader(), follower, leader_id=3)
    after.begin(wanted)
    assert after.follower.ports.told("download_started")[-1]["position"] == 0
    assert after.follower.ports.told("download_discarded")
    after.finish()
    _is_the_leaders(after, wanted)


@pytest.mark.clause("S-5", "S-10")
def test_a_snapshot_that_is_gone_is_rediscovered_and_a_stalled_download_may_lose_it():
    leader, snapshot, _follower, transfer = _world()
    transfer.begin(snapshot)
    transfer.deliver()
    leader.append([setting(1)])
    newer = leader.make_snapshot()
    leader.store.delete(snapshot)
    transfer.deliver()
    assert transfer.outcomes.pop() == Rediscover()
    transfer.begin(newer)
    transfer.finish()
    _is_the_leaders(transfer, newer)


@pytest.mark.clause("S-11")
def test_the_same_snapshot_after_rediscovery_goes_on():
    _, snapshot, follower, transfer = _world()
    transfer.begin(snapshot)
    transfer.deliver()
    transfer.deliver(_error(transfer, Error.SNAPSHOT_NOT_FOUND))
    assert transfer.outcomes.pop() == Rediscover()
    transfer.begin(snapshot)
    assert follower.ports.told("download_started")[-1]["position"] == CHUNK
    transfer.finish()
    _is_the_leaders(transfer, snapshot)


def _changed(body, **values):
    one = replace(body.topics[0].partitions[0], **values)
    return replace(body, topics=(replace(body.topics[0], partitions=(one,)),))


def _error(transfer: Transfer, error: Error):
    from kio.schema.errors import ErrorCode

    return _changed(transfer.answer(), error_code=ErrorCode(int(error)), unaligned_records=b"")


@pytest.mark.clause("S-6", "S-7", "S-10")
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Error.POSITION_OUT_OF_RANGE, Rediscover()),
        (Error.SNAPSHOT_NOT_FOUND, Rediscover()),
        (Error.NOT_LEADER_OR_FOLLOWER, LeaderChanged(1, 1)),
        (Error.FENCED_LEADER_EPOCH, LeaderChanged(1, 1)),
        (Error.UNKNOWN_LEADER_EPOCH, LeaderChanged(1, 1)),
        (Error.KAFKA_STORAGE_ERROR, Failed()),
        (Error.BROKER_NOT_AVAILABLE, Failed()),
    ],
)
def test_what_each_error_leads_to(error, outcome):
    _, snapshot, follower, transfer = _world()
    transfer.begin(snapshot)
    transfer.deliver()
    transfer.deliver(_error(transfer, error))
    assert transfer.outcomes == [outcome]
    assert not follower.ports.sent


@pytest.mark.clause("S-8")
def test_an_answer_for_another_position_is_not_written():
    _, snapshot, follower, transfer = _world()
    transfer.begin(snapshot)
    first = transfer.answer()
    transfer.deliver(first)
    transfer.deliver(first)
    assert transfer.outcomes.pop() == Failed()
    assert follower.disk.size(part_path(snapshot)) == CHUNK
    transfer.begin(snapshot)
    transfer.finish()
    _is_the_leaders(transfer, snapshot)


@pytest.mark.clause("S-8")
def test_a_late_answer_to_a_cancelled_question_is_not_written():
    _, snapshot, follower, transfer = _world()
    transfer.begin(snapshot)
    late = follower.ports.sent.pop()
    answer_ = (follower.ports.sent.append(late), transfer.answer())[1]
    follower.ports.sent.clear()
    follower.download.cancel()
    transfer.begin(snapshot)
    late[2](answer_)
    follower.ports.run()
    assert len(follower.ports.sent) == 1
    transfer.finish()
    _is_the_leaders(transfer, snapshot)


@pytest.mark.clause("S-9")
def test_bytes_that_are_no_snapshot_are_thrown_away():
    _, snapshot, follower, transfer = _world()
    transfer.begin(snapshot)
    transfer.deliver()
    body = transfer.answer()
    bad = bytearray(body.topics[0].partitions[0].unaligned_records)
    bad[100] ^= 1
    transfer.deliver(_changed(body, unaligned_records=bytes(bad)))
    transfer.finish()
    assert transfer.outcomes.pop() == Rediscover()
    assert follower.store.ids == ()
    assert follower.names() == []
    assert follower.log.start_offset == 0
    transfer.begin(snapshot)
    transfer.finish()
    _is_the_leaders(transfer, snapshot)


@pytest.mark.clause("S-11")
def test_another_size_under_the_same_name_is_another_file():
    _, snapshot, follower, transfer = _world()
    transfer.begin(snapshot)
    transfer.deliver()
    transfer.deliver(_changed(transfer.answer(), size=10**6))
    assert transfer.outcomes == [Rediscover()]
    assert follower.names() == []


def test_a_full_disk_is_noted_and_the_download_goes_on_later():
    _, snapshot, follower, transfer = _world()
    transfer.begin(snapshot)
    transfer.deliver()
    for spare in (0, 10, CHUNK, CHUNK + 5) * 3:
        follower.disk.capacity_bytes = follower.disk.used_bytes + spare
        transfer.deliver()
        if transfer.outcomes:
            assert transfer.outcomes.pop() == Failed()
            assert follower.ports.told("download_failed")
            transfer.begin(snapshot)
    follower.disk.capacity_bytes = -1
    transfer.finish()
    _is_the_leaders(transfer, snapshot)


def test_a_disk_full_from_the_first_byte_on():
    _, snapshot, follower, transfer = _world()
    for spare in (0, 5, 30, 100):
        follower.disk.capacity_bytes = follower.disk.used_bytes + spare
        transfer.begin(snapshot)
        transfer.deliver()
        assert transfer.outcomes.pop() == Failed()
    follower.disk.capacity_bytes = -1
    transfer.begin(snapshot)
    transfer.finish()
    _is_the_leaders(transfer, snapshot)


@pytest.mark.clause("S-12")
def test_a_follower_that_holds_the_log_downloads_nothing():
    _, snapshot, follower, transfer = _world()
    filled(follower)
    follower.append([setting(1)])
    transfer.begin(snapshot)
    assert transfer.outcomes == [Failed()]
    assert not follower.ports.sent
    assert follower.log.start_offset == 0


def test_one_that_is_there_already_is_only_put_in_place():
    leader, snapshot, follower, transfer = _world()
    follower.disk.append("copy", [leader.bytes_of(snapshot)])
    follower.store.add(snapshot, "copy")
    transfer.begin(snapshot)
    assert not transfer.bytes_sent
    _is_the_leaders(transfer, snapshot)


def test_older_snapshots_go_when_one_takes_the_place_of_the_log():
    _, snapshot, follower, transfer = _world()
    follower.append([setting(1)])
    follower.make_snapshot()
    transfer.begin(snapshot)
    transfer.finish()
    _is_the_leaders(transfer, snapshot)


def test_older_snapshots_that_cannot_be_deleted_are_no_hindrance():
    _, snapshot, follower, transfer = _world()
    follower.append([setting(1)])
    older = follower.make_snapshot()
    delete = follower.disk.delete

    def refuse(path):
        if path == follower.store.path(older):
            raise DiskError(f"{path}: input/output error")
        delete(path)

    follower.disk.delete = refuse
    transfer.begin(snapshot)
    transfer.finish()
    assert transfer.outcomes == [Installed(snapshot)]
    assert follower.log.end == snapshot
    assert follower.ports.told("snapshot_cleaning_failed")


@pytest.mark.clause("S-17")
def test_the_draft_fetches_the_same_bytes():
    leader, snapshot, follower, transfer = _world(crucible_metadata_snapshot_fetch_draft="true")
    transfer.begin(snapshot)
    assert follower.ports.sent[0][1] == DRAFT_VERSION
    transfer.deliver()
    transfer.lose()
    transfer.outcomes.clear()
    transfer.begin(snapshot)
    transfer.finish()
    assert transfer.bytes_sent <= leader.store.size(snapshot) + CHUNK
    _is_the_leaders(transfer, snapshot)


@pytest.mark.clause("S-17")
def test_an_unknown_media_type_ends_the_download():
    _, snapshot, follower, transfer = _world(crucible_metadata_snapshot_fetch_draft="true")
    transfer.begin(snapshot)
    transfer.deliver(_changed(transfer.answer(), media_type="text/plain"))
    assert transfer.outcomes == [Failed()]
    assert follower.names() == []
    assert "text/plain" in str(follower.ports.told("download_discarded")[0]["why"])


def test_a_slow_link_gets_smaller_pieces_until_one_arrives():
    rate = TransferRate(2**20, 1_500_000)
    bytes_per_s, first = 4_000, rate.chunk_bytes
    for _ in range(20):
        if rate.chunk_bytes * 1_000_000 // bytes_per_s > 1_500_000:
            rate.lost()
        else:
            rate.arrived(rate.chunk_bytes * 1_000_000 // bytes_per_s)
    assert rate.chunk_bytes * 1_000_000 // bytes_per_s <= 1_500_000
    assert first == 2**16
    for _ in range(20):
        rate.arrived(10)
    assert rate.chunk_bytes == 2**20
    for _ in range(20):
        rate.lost()
    assert rate.chunk_bytes == LEAST_BYTES
    assert TransferRate(100, 1_000).chunk_bytes == 100
