"""Responses, disk errors and older files during a download: ignored, discarded, or resumed later."""

from dataclasses import replace

import pytest

from reference_broker.ports.disk import DiskError
from reference_broker.quorum.snapshots.download import MIN_BYTES, TransferRate
from reference_broker.quorum.snapshots.format import part_path
from reference_broker.quorum.snapshots.messages import DRAFT_VERSION
from reference_broker.quorum.snapshots.tests.download_world import (
    CHUNK,
    a_world,
    changed,
    completes,
    is_the_leaders,
    refusal,
    started,
)
from reference_broker.quorum.snapshots.tests.snapshot_world import filled, setting
from reference_broker.quorum.values import DownloadOutcome, Failed, Installed, LeaderChanged, Rediscover
from reference_broker.wire.errors import ErrorCode


@pytest.mark.clause("KafkaRaftClientSnapshotTest.testFetchSnapshotResponseMissingSnapshot")
@pytest.mark.clause("S-6", "S-7", "S-10")
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ErrorCode.position_out_of_range, Rediscover()),
        (ErrorCode.snapshot_not_found, Rediscover()),
        (ErrorCode.not_leader_or_follower, LeaderChanged(1, 1)),
        (ErrorCode.fenced_leader_epoch, LeaderChanged(1, 1)),
        (ErrorCode.unknown_leader_epoch, LeaderChanged(1, 1)),
        (ErrorCode.kafka_storage_error, Failed()),
        (ErrorCode.broker_not_available, Failed()),
    ],
)
def test_outcome_of_each_error(error: ErrorCode, outcome: Failed | LeaderChanged | Rediscover) -> None:
    _, _, follower, transfer = started()
    transfer.deliver(refusal(transfer, error))
    assert transfer.outcomes == [outcome]
    assert not follower.ports.sent


@pytest.mark.clause("KafkaRaftClientSnapshotTest.testFetchSnapshotResponseWithInvalidId")
@pytest.mark.clause("S-10")
@pytest.mark.parametrize(("end_offset", "epoch"), [(-1, 1), (100, -1)])
def test_response_with_partial_snapshot_id_causes_rediscovery(end_offset: int, epoch: int) -> None:
    _, _, follower, transfer = started()
    body = transfer.response()
    named = replace(body.topics[0].partitions[0].snapshot_id, end_offset=end_offset, epoch=epoch)
    transfer.deliver(changed(body, snapshot_id=named))
    assert transfer.outcomes == [Rediscover()]
    assert not follower.ports.sent


def test_response_of_other_snapshot_is_not_written() -> None:
    _, snapshot, follower, transfer = started()
    body = transfer.response()
    named = replace(body.topics[0].partitions[0].snapshot_id, end_offset=snapshot.offset + 1)
    transfer.deliver(changed(body, snapshot_id=named))
    assert transfer.outcomes.pop() == Failed()
    assert follower.disk.size(part_path(snapshot)) == CHUNK
    completes(transfer, snapshot)


@pytest.mark.clause("S-8")
def test_response_for_other_position_is_not_written() -> None:
    _, snapshot, follower, transfer = a_world()
    transfer.begin(snapshot)
    first = transfer.response()
    transfer.deliver(first)
    transfer.deliver(first)
    assert transfer.outcomes.pop() == Failed()
    assert follower.disk.size(part_path(snapshot)) == CHUNK
    completes(transfer, snapshot)


@pytest.mark.clause("KafkaRaftClientSnapshotTest.testFetchSnapshotResponseToNotFollower")
@pytest.mark.clause("S-8")
def test_late_response_to_cancelled_request_is_not_written() -> None:
    _, snapshot, follower, transfer = a_world()
    transfer.begin(snapshot)
    late = follower.ports.sent[-1]
    late_response = transfer.response()
    follower.ports.sent.clear()
    follower.download.cancel()
    transfer.begin(snapshot)
    late[2](late_response)
    follower.ports.run()
    assert len(follower.ports.sent) == 1
    transfer.finish()
    is_the_leaders(transfer, snapshot)


@pytest.mark.clause("S-9")
def test_invalid_snapshot_bytes_are_discarded() -> None:
    _, snapshot, follower, transfer = started()
    body = transfer.response()
    bad = bytearray(body.topics[0].partitions[0].unaligned_records)
    bad[100] ^= 1
    transfer.deliver(changed(body, unaligned_records=bytes(bad)))
    transfer.finish()
    assert transfer.outcomes.pop() == Rediscover()
    assert follower.store.ids == ()
    assert follower.names() == []
    assert follower.log.start_offset == 0
    completes(transfer, snapshot)


@pytest.mark.clause("S-11")
def test_changed_size_of_snapshot_restarts_download() -> None:
    _, _, follower, transfer = started()
    transfer.deliver(changed(transfer.response(), size=10**6))
    assert transfer.outcomes == [Rediscover()]
    assert follower.names() == []


def test_full_disk_is_noted_and_download_resumes() -> None:
    _, snapshot, follower, transfer = started()
    for spare in (0, 10, CHUNK, CHUNK + 5) * 3:
        follower.disk.capacity_bytes = follower.disk.used_bytes + spare
        transfer.deliver()
        if transfer.outcomes:
            assert transfer.outcomes.pop() == Failed()
            assert follower.ports.notes_of("download_failed")
            transfer.begin(snapshot)
    follower.disk.capacity_bytes = -1
    transfer.finish()
    is_the_leaders(transfer, snapshot)


def test_disk_full_at_first_byte() -> None:
    _, snapshot, follower, transfer = a_world()
    for spare in (0, 5, 30, 100):
        follower.disk.capacity_bytes = follower.disk.used_bytes + spare
        transfer.begin(snapshot)
        transfer.deliver()
        assert transfer.outcomes.pop() == Failed()
    follower.disk.capacity_bytes = -1
    completes(transfer, snapshot)


def test_disk_error_after_download_is_raised() -> None:
    """The loader reads the installed snapshot. If that failed unseen, the node would never fetch again."""
    _, snapshot, follower, transfer = a_world()

    def unreadable(_: DownloadOutcome) -> None:
        raise DiskError("cannot read")

    follower.download.begin(
        transfer.leadership.leader_id, transfer.leadership.epoch, snapshot, lambda: None, unreadable
    )
    follower.ports.run()
    with pytest.raises(DiskError):
        transfer.finish()
    assert not follower.ports.notes_of("download_failed")


@pytest.mark.clause("S-12")
def test_follower_with_log_downloads_nothing() -> None:
    _, snapshot, follower, transfer = a_world()
    filled(follower)
    follower.append([setting(1)])
    transfer.begin(snapshot)
    assert transfer.outcomes == [Failed()]
    assert not follower.ports.sent
    assert follower.log.start_offset == 0


def test_existing_snapshot_is_installed_without_download() -> None:
    leader, snapshot, follower, transfer = a_world()
    follower.disk.append("copy", [leader.bytes_of(snapshot)])
    follower.store.name(snapshot, "copy")
    follower.store.add(snapshot)
    transfer.begin(snapshot)
    assert not transfer.bytes_sent
    is_the_leaders(transfer, snapshot)


@pytest.mark.clause("KafkaMetadataLogTest.testTruncateWillRemoveOlderSnapshot")
def test_installed_snapshot_deletes_older_ones() -> None:
    _, snapshot, follower, transfer = a_world()
    follower.append([setting(1)])
    follower.make_snapshot()
    completes(transfer, snapshot)


def test_failed_deletion_of_older_snapshots_is_ignored() -> None:
    _, snapshot, follower, transfer = a_world()
    follower.append([setting(1)])
    older = follower.make_snapshot()
    delete = follower.disk.delete

    def refuse(path: str) -> None:
        if path == follower.store.path(older):
            raise DiskError(f"{path}: input/output error")
        delete(path)

    follower.disk.delete = refuse  # type: ignore[method-assign]  # This disk refuses.
    transfer.begin(snapshot)
    transfer.finish()
    assert transfer.outcomes == [Installed(snapshot)]
    assert follower.log.end == snapshot
    assert follower.ports.notes_of("snapshot_cleaning_failed")


@pytest.mark.clause("S-17")
def test_draft_fetches_same_bytes() -> None:
    leader, snapshot, follower, transfer = a_world(crucible_metadata_snapshot_fetch_draft="true")
    transfer.begin(snapshot)
    body, version, *_ = follower.ports.sent[0]
    assert (version, body.cluster_id) == (DRAFT_VERSION, None), "the draft's layout has no cluster ID"
    transfer.deliver()
    transfer.lose()
    transfer.outcomes.clear()
    transfer.begin(snapshot)
    transfer.finish()
    assert transfer.bytes_sent <= leader.store.size(snapshot) + CHUNK
    is_the_leaders(transfer, snapshot)


@pytest.mark.clause("S-17")
def test_unknown_media_type_fails_download() -> None:
    _, snapshot, follower, transfer = a_world(crucible_metadata_snapshot_fetch_draft="true")
    transfer.begin(snapshot)
    transfer.deliver(changed(transfer.response(), media_type="text/plain"))
    assert transfer.outcomes == [Failed()]
    assert follower.names() == []
    assert "text/plain" in str(follower.ports.notes_of("download_discarded")[0]["why"])


def test_slow_link_gets_smaller_pieces() -> None:
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
    assert rate.chunk_bytes == MIN_BYTES
    assert TransferRate(100, 1_000).chunk_bytes == 100
