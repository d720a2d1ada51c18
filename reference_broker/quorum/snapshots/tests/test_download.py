"""A download resumes after any interruption, and its file gets its name only when it is complete."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.quorum.snapshots.format import part_path, progress_path
from reference_broker.quorum.snapshots.tests.download_world import (
    CHUNK,
    CONFIG,
    a_leader,
    a_world,
    completes,
    is_the_leaders,
    refusal,
    restart,
    started,
)
from reference_broker.quorum.snapshots.tests.snapshot_world import (
    Crash,
    CrashingDisk,
    Replica,
    Transfer,
    setting,
)
from reference_broker.quorum.values import Failed, Rediscover
from reference_broker.wire.errors import ErrorCode


@pytest.mark.clause("KafkaRaftClientSnapshotTest.testFetchSnapshotResponsePartialData")
@pytest.mark.clause("S-8", "S-9", "S-15")
def test_snapshot_is_fetched_in_pieces_and_replaces_log() -> None:
    leader, snapshot, follower, transfer = a_world()
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
    is_the_leaders(transfer, snapshot)
    noted = [what for what, _ in follower.ports.notes if what.startswith(("download", "snapshot"))]
    assert noted[-3:] == ["download_chunk", "snapshot_renamed", "download_finished"]


@pytest.mark.clause("S-8")
def test_piece_is_durable_before_next_request() -> None:
    _, snapshot, follower, transfer = a_world()
    transfer.begin(snapshot)
    while follower.ports.sent:
        position = follower.ports.sent[0][0].topics[0].partitions[0].position
        assert position == 0 or follower.disk.durable_size(part_path(snapshot)) == position
        transfer.deliver()
    is_the_leaders(transfer, snapshot)


def test_snapshot_is_synced_then_renamed_then_log_truncated() -> None:
    _, snapshot, follower, transfer = a_world()
    follower.append([setting(1)])
    transfer.begin(snapshot)
    order = []
    rename, delete = follower.disk.rename, follower.disk.delete

    def renamed(source: str, target: str) -> None:
        if source == part_path(snapshot):
            assert follower.disk.durable_size(source) == follower.disk.size(source)
            order.append("rename")
        rename(source, target)

    def deleted(path: str) -> None:
        if path.endswith(".log"):
            order.append("truncate")
        delete(path)

    follower.disk.rename, follower.disk.delete = renamed, deleted  # type: ignore[method-assign]  # Watched.
    transfer.finish()
    assert order == ["rename", "truncate"]


@pytest.mark.thorough
@pytest.mark.clause("S-11")
@given(st.lists(st.sampled_from(("ok", "lose", "cancel", "kill", "power")), max_size=30), st.integers(0, 99))
def test_interrupted_download_sends_few_extra_bytes(events: list[str], seed: int) -> None:
    leader = a_leader()
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
            transfer.response()
            transfer.follower.download.cancel()
            transfer.follower.ports.sent.clear()
            transfer.begin(snapshot)
        else:
            transfer.response()
            transfer = restart(transfer, event == "power")
            transfer.begin(snapshot)
    transfer.finish()
    assert transfer.bytes_sent <= leader.store.size(snapshot) + cuts * CHUNK
    is_the_leaders(transfer, snapshot)


@pytest.mark.clause("S-11")
@pytest.mark.parametrize("power_loss", [False, True])
def test_download_resumes_after_kill_before_each_disk_operation(power_loss: bool) -> None:
    leader = a_leader()
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
            transfer = restart(transfer, power_loss)
            if was_renamed:
                assert transfer.follower.log.end == snapshot
                assert transfer.follower.store.ids == (snapshot,)
            else:
                transfer.begin(snapshot)
                transfer.finish()
                assert transfer.bytes_sent - sent <= size - durable + CHUNK
        crash_at += 1
        if transfer.outcomes:
            is_the_leaders(transfer, snapshot)
    assert crash_at > 2 * size // CHUNK


@pytest.mark.clause("S-11")
@pytest.mark.parametrize("byte", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, -1])
def test_download_resumes_after_kill_at_each_byte(byte: int) -> None:
    """Whatever part the page cache kept: bytes covered by checksums are used, the tail is cut."""
    leader, snapshot, follower, transfer = a_world()
    size = leader.store.size(snapshot)
    byte = byte if byte >= 0 else size - 1
    transfer.begin(snapshot)
    for _ in range(max(1, min(-(-byte // CHUNK), size // CHUNK))):
        transfer.deliver()
    data = leader.bytes_of(snapshot)
    follower.disk.truncate(part_path(snapshot), byte)
    follower.disk.append(part_path(snapshot), [b"tail that no checksum covers"])
    after = restart(transfer)
    sent = after.bytes_sent
    after.begin(snapshot)
    position = after.follower.ports.sent[0][0].topics[0].partitions[0].position
    assert position == byte // CHUNK * CHUNK
    assert after.follower.disk.read(part_path(snapshot), 0, size) == data[:position]
    after.finish()
    assert after.bytes_sent - sent <= size - position
    is_the_leaders(after, snapshot)


@pytest.mark.clause("S-11")
def test_download_discards_damaged_bytes_on_disk() -> None:
    _, snapshot, follower, transfer = started(4)
    held = bytearray(follower.disk.read(part_path(snapshot), 0, 4 * CHUNK))
    held[2 * CHUNK + 5] ^= 1
    follower.disk.write(part_path(snapshot), held)
    after = restart(transfer)
    after.begin(snapshot)
    assert after.follower.ports.notes_of("download_started")[0]["position"] == 2 * CHUNK
    for _ in range(3):
        after.deliver()
    after = restart(after)
    after.begin(snapshot)
    assert after.follower.ports.notes_of("download_started")[0]["position"] == 5 * CHUNK
    after.finish()
    is_the_leaders(after, snapshot)


@pytest.mark.clause("S-11")
@pytest.mark.parametrize("damage", ["missing", "empty", "flipped", "torn"])
def test_damaged_progress_file_is_ignored(damage: str) -> None:
    _, snapshot, follower, transfer = started(3)
    path = progress_path(snapshot)
    content_ = bytearray(follower.disk.read(path, 0, 10_000))
    content_[-3 if damage == "torn" else 3] ^= 255
    if damage == "missing":
        follower.disk.delete(path)
    else:
        follower.disk.write(path, b"" if damage == "empty" else content_)
    after = restart(transfer)
    after.begin(snapshot)
    expected = 2 * CHUNK if damage == "torn" else 0
    assert after.follower.ports.notes_of("download_started")[0]["position"] == expected
    after.finish()
    is_the_leaders(after, snapshot)


@pytest.mark.clause("S-11")
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("other", ["leader", "snapshot"])
def test_download_of_other_leader_or_snapshot_starts_at_zero(other: str, killed: bool) -> None:
    leader, snapshot, follower, transfer = started(3)
    follower.download.cancel()
    follower.ports.sent.clear()
    if other == "snapshot":
        leader.append([setting(1)])
        wanted = leader.make_snapshot()
        after = restart(transfer) if killed else transfer
    else:
        wanted = snapshot
        follower = Replica(follower.disk, node_id=2, **CONFIG) if killed else follower
        after = Transfer(a_leader(), follower, leader_id=3)
    after.begin(wanted)
    assert after.follower.ports.notes_of("download_started")[-1]["position"] == 0
    assert after.follower.ports.notes_of("download_discarded")
    after.finish()
    is_the_leaders(after, wanted)


@pytest.mark.clause("S-11")
@pytest.mark.parametrize("killed", [False, True])
def test_download_from_same_leader_in_newer_epoch_resumes(killed: bool) -> None:
    """The leader has the same file, because a snapshot is never written twice under one name."""
    leader, snapshot, follower, transfer = started(3)
    follower.download.cancel()
    follower.ports.sent.clear()
    after = restart(transfer) if killed else transfer
    after.leadership.epoch = 7
    before = after.bytes_sent
    after.begin(snapshot)
    assert after.follower.ports.notes_of("download_started")[-1]["position"] == 3 * CHUNK
    after.finish()
    assert after.bytes_sent - before == leader.store.size(snapshot) - 3 * CHUNK
    is_the_leaders(after, snapshot)


@pytest.mark.clause("S-5", "S-10")
def test_deleted_snapshot_is_rediscovered() -> None:
    leader, snapshot, _follower, transfer = started()
    leader.append([setting(1)])
    newer = leader.make_snapshot()
    leader.store.delete(snapshot)
    transfer.deliver()
    assert transfer.outcomes.pop() == Rediscover()
    completes(transfer, newer)


@pytest.mark.clause("S-11")
def test_download_resumes_after_rediscovery_of_same_snapshot() -> None:
    _, snapshot, follower, transfer = started()
    transfer.deliver(refusal(transfer, ErrorCode.snapshot_not_found))
    assert transfer.outcomes.pop() == Rediscover()
    transfer.begin(snapshot)
    assert follower.ports.notes_of("download_started")[-1]["position"] == CHUNK
    transfer.finish()
    is_the_leaders(transfer, snapshot)
