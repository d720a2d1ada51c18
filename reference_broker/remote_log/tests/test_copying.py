"""Copying: the objects and their order, the topics that are copied, and metrics."""

from dataclasses import replace

import pytest

from reference_broker.log.producer_state import decode_snapshot
from reference_broker.log.tests.log_world import DIRECTORY, NOW, appended, batch_of, opened
from reference_broker.log.tests.test_open_transactions import Producers
from reference_broker.log.tests.tiered_world import filled
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.image import PartitionImage, TopicImage
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.store import PutFile
from reference_broker.remote_log.metadata.events import RemoteLogSegmentState
from reference_broker.remote_log.objects import ObjectKind, keys_of
from reference_broker.remote_log.tests.copying_world import ACTS, FENCE, KEPT, SIX_SEGMENTS, copied
from reference_broker.remote_log.tests.tier_world import Tier, TierNode, check_whole, objects_of


@pytest.mark.clause("RemoteLogManagerTest.testCopyLogSegmentsToRemoteShouldCopyExpectedLogSegment")
def test_closed_segment_is_stored_between_its_two_events() -> None:
    tier, node, log = copied()
    partition = node.lead(log)
    tier.pass_ms(2000)
    check_whole(tier, partition)
    assert [segment.start_offset for segment in tier.listed(partition)] == [0, 6, 12, 18, 24]
    first = [act.rpartition(".")[2] for act in tier.acts[1 : ACTS + 1]]
    assert first == [
        "Write COPY_SEGMENT_STARTED",
        "log",
        "index",
        "timeindex",
        "snapshot",
        "leader-epoch-checkpoint",
        "Write COPY_SEGMENT_FINISHED",
    ]
    assert tier.acts[0] == FENCE
    assert len(tier.acts) == 1 + 5 * ACTS
    assert log.copied_end_offset == 30


@pytest.mark.clause("RemoteLogManagerTest.testEpochEntriesAsByteBuffer")
def test_objects_equal_files_of_log() -> None:
    tier, node, log = copied()
    partition = node.lead(log)
    tier.pass_ms(2000)
    third = tier.listed(partition)[2]
    objects, files = objects_of(tier, third), node.disk.files
    start = f"{DIRECTORY}/00000000000000000012"
    assert objects[ObjectKind.LOG] == files[f"{start}.log"]
    assert objects[ObjectKind.OFFSET_INDEX] == files[f"{start}.index"]
    assert objects[ObjectKind.TIME_INDEX] == files[f"{start}.timeindex"]
    assert objects[ObjectKind.PRODUCER_SNAPSHOT] == files[f"{DIRECTORY}/00000000000000000018.snapshot"]
    assert objects[ObjectKind.LEADER_EPOCHS] == b"0\n2\n0 0\n1 10\n"
    assert (third.leader_epochs, third.uploader_epoch) == (((1, 12),), 5)
    assert (third.end_offset, third.size_bytes) == (17, len(objects[ObjectKind.LOG]))


def test_segment_with_aborted_transaction_has_transaction_index() -> None:
    tier, disk = Tier(), MemoryDisk()
    log = opened(disk, KEPT)
    producers = Producers(log)
    for _ in range(6):
        producers.send(1, 2)
        producers.end(1, commit=False)
    log.advance_high_watermark(log.log_end_offset)
    partition = TierNode(tier, disk=disk).lead(log)
    tier.pass_ms(2000)
    check_whole(tier, partition)
    assert {segment.has_transaction_index for segment in tier.listed(partition)} == {True}


@pytest.mark.parametrize("limit", range(0, 37, 3))
def test_segments_above_high_watermark_are_not_copied(limit: int) -> None:
    tier, node, log = copied()
    log.high_watermark = limit
    partition = node.lead(log)
    tier.pass_ms(3000)
    assert [each.end_offset for each in tier.listed(partition)] == [end for end in (5, 11, 17, 23, 29) if end < limit]


@pytest.mark.clause("RemoteLogManagerTest.testCandidateLogSegmentsSkipsSegmentsAfterLastStableOffset")
def test_segments_above_last_stable_offset_are_not_copied() -> None:
    tier, disk = Tier(), MemoryDisk()
    log = opened(disk, KEPT)
    producers = Producers(log)
    for _ in range(6):
        producers.plain(2)
    producers.send(7, 1)
    for _ in range(6):
        producers.plain(2)
    log.advance_high_watermark(log.log_end_offset)
    partition = TierNode(tier, disk=disk).lead(log)
    tier.pass_ms(5000)
    assert log.last_stable_offset == 12
    assert [each.end_offset for each in tier.listed(partition)] == [base - 1 for base in log.bases[1:] if base <= 12]
    producers.end(7, commit=True)
    log.advance_high_watermark(log.log_end_offset)
    tier.pass_ms(2000)
    check_whole(tier, partition)


# --- snapshots ------------------------------------------------------------------------------------------------------


@pytest.mark.clause("P-8", "P-14")
@pytest.mark.parametrize("at_start", [True, False])
@pytest.mark.parametrize("how", ["missing", "empty", "torn", "flipped"])
def test_invalid_producer_snapshot_is_rebuilt(how: str, at_start: bool) -> None:
    """``at_start``: it was so when the node started. Otherwise it is damaged while the log is open."""
    tier, node, log = copied()
    paths = [f"{DIRECTORY}/{base:020d}.snapshot" for base in log.bases[1:]]
    whole = {path: bytes(node.disk.files[path]) for path in paths}
    for path in paths:
        content = node.disk.files[path]
        if how == "missing":
            del node.disk.files[path]
        elif how == "empty":
            content.clear()
        elif how == "torn":
            del content[-5:]
        else:
            content[20] ^= 1
    partition = node.lead(opened(node.disk, KEPT) if at_start else log)
    tier.pass_ms(5000)
    check_whole(tier, partition)
    for segment in tier.listed(partition):
        made = dict(decode_snapshot(objects_of(tier, segment)[ObjectKind.PRODUCER_SNAPSHOT]))
        assert made == dict(decode_snapshot(whole[f"{DIRECTORY}/{segment.next_offset:020d}.snapshot"]))
    notes = tier.noted("producer_snapshot_recreated")
    assert [note["offset"] for note in notes] == log.bases[1 : 1 + len(notes)]
    assert len(notes) == (3 if at_start else len(paths)), "a start makes those of the last two segments itself"
    for note, before in zip(notes, log.bases, strict=False):
        assert (note["from_offset"], note["read_bytes"]) == (before, log.segments[0].size_bytes)


def test_existing_producer_snapshot_is_not_rebuilt() -> None:
    tier, node, log = copied()
    node.lead(log)
    tier.pass_ms(5000)
    assert tier.noted("producer_snapshot_recreated") == []


def test_missing_file_fails_copy_and_not_node() -> None:
    tier, node, log = copied()
    del node.disk.files[f"{DIRECTORY}/{log.bases[1]:020d}.log"]
    partition = node.lead(log)
    tier.pass_ms(5000)
    assert [segment.start_offset for segment in tier.listed(partition)] == [0]
    assert "missing" in str(tier.noted("copy_failed")[0]["reason"])


def test_segments_without_leader_epochs_are_not_copied() -> None:
    tier, disk = Tier(), MemoryDisk()
    log = opened(disk, KEPT)
    for base in range(0, 18, 2):
        log.append_replicated(NOW, batch_of(2, base_offset=base))
    log.advance_high_watermark(log.log_end_offset)
    partition = TierNode(tier, disk=disk).lead(log)
    tier.pass_ms(5000)
    assert tier.acts == [FENCE]
    assert "no leader epoch" in str(tier.noted("copy_failed")[0]["reason"])
    assert tier.listed(partition) == []


# --- settings -------------------------------------------------------------------------------------------------------


def test_untiered_topic_causes_no_work() -> None:
    tier, node, log = copied(replace(KEPT, remote_storage_enable=False))
    partition = node.lead(log)
    assert not node.metadata.is_ready(partition.topic_id, 0)
    tier.pass_ms(5000)
    assert not node.metadata.is_ready(partition.topic_id, 0)
    assert tier.acts == []
    log.config = KEPT
    node.manager.reconfigured(partition)
    tier.pass_ms(500)
    check_whole(tier, partition)
    log.config = replace(KEPT, remote_storage_enable=False)
    tier.pass_ms(1500)
    assert not node.metadata.is_ready(partition.topic_id, 0)


def test_disabled_copies_stop_copying() -> None:
    tier, node, log = copied()
    partition = node.lead(log)
    tier.pass_ms(12)
    log.config = replace(KEPT, remote_log_copy_disable=True)
    node.manager.reconfigured(partition)
    tier.pass_ms(5000)
    assert len(tier.listed(partition)) == 2
    log.config = KEPT
    tier.pass_ms(2000)
    check_whole(tier, partition)


def test_new_segments_are_found_at_next_check() -> None:
    tier, node, log = copied()
    partition = node.lead(log)
    tier.pass_ms(500)
    end = log.bases[-1]
    for number in range(9):
        appended(log, batch_of(2, timestamps=[number, number]), epoch=5)
    tier.pass_ms(400)
    assert log.copied_end_offset == end
    tier.pass_ms(1000)
    check_whole(tier, partition)


@pytest.mark.clause("RemoteLogManagerTest.testOnLeadershipChangeWillInvokeHandleLeaderOrFollowerPartitions")
def test_follower_is_notified_of_listed_segments() -> None:
    tier, node, log = copied()
    node.lead(log)
    tier.pass_ms(2000)
    follower = filled(MemoryDisk(), KEPT, SIX_SEGMENTS)
    follower.topic_id = node.tier.listed(node.lead(log))[0].topic_id
    follows(TierNode(tier, 2, follower.disk), follower)  # type: ignore[arg-type]
    tier.pass_ms(2000)
    assert follower.copied_end_offset == 30


def test_diverging_records_do_not_count_as_copied() -> None:
    """A follower whose records from offset 10 on are of another leader epoch than those of the tier."""
    tier, node, log = copied()
    node.lead(log)
    tier.pass_ms(2000)
    follower = filled(MemoryDisk(), KEPT, 5)
    for number in range(9):
        appended(follower, batch_of(2, timestamps=[number, number]), epoch=8)
    follower.topic_id = log.topic_id
    follows(TierNode(tier, 2, follower.disk), follower)  # type: ignore[arg-type]
    tier.pass_ms(2000)
    assert follower.copied_end_offset == 10


@pytest.mark.clause("RemoteLogManagerTest.testRLMTaskDoesNotUploadSegmentsWhenRemoteLogMetadataManagerIsNotInitialized")
def test_new_leader_counts_nothing_as_copied_until_metadata_is_loaded() -> None:
    """As a follower it was notified of copies. Its records may differ since."""
    _, node, log = copied()
    log.copied_end_offset = 30
    node.lead(log)
    assert log.copied_end_offset == 0


def follows(node: TierNode, log: UnifiedLog) -> None:
    node.manager.follows(TopicImage("events", log.topic_id, (PartitionImage((1, 2), (1, 2), 1, 5, 0),)), 0, log)


@pytest.mark.clause(
    "RemoteLogManagerTest.testRemoteLogManagerRemoteMetrics",
    "RemoteLogManagerTest.testTierLagResetsToZeroOnBecomingFollower",
)
def test_metrics_count_copied_and_lagging_segments() -> None:
    tier, node, log = copied()
    closed = sum(segment.size_bytes for segment in log.segments.items[:-1])
    partition = node.lead(log)
    assert (node.value("RemoteCopyLagBytes"), node.value("RemoteCopyLagSegments")) == (closed, 5)
    tier.pass_ms(2000)
    assert (node.value("RemoteCopyBytesPerSec"), node.value("RemoteCopyRequestsPerSec")) == (closed, 5)
    assert (node.value("RemoteCopyLagBytes"), node.value("RemoteCopyLagSegments")) == (0, 0)
    log.high_watermark = 0
    for number in range(9):
        appended(log, batch_of(2, timestamps=[number, number]), epoch=5)
    node.resign(partition)
    assert (node.value("RemoteCopyLagBytes"), node.value("RemoteCopyLagSegments")) == (0, 0)


def test_copy_in_progress_is_not_garbage() -> None:
    tier, node, log = copied()
    partition = node.lead(log)
    tier.pass_ms(3)
    (unfinished,) = tier.known(partition).unfinished()
    assert unfinished.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
    assert node.manager.copied_now(partition.topic_id, 0) == unfinished.segment_id
    assert isinstance(node.ports.under_way[0], PutFile)
    assert node.ports.under_way[0].key in keys_of(unfinished)
    tier.pass_ms(2000)
    assert node.manager.copied_now(partition.topic_id, 0) is None
