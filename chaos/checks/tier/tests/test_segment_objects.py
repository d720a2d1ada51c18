"""The remote tier: segments that are missing in it or differ from the log, and wrong snapshots of producers."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from struct import pack
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from crc32c import crc32c

from chaos.checks.check import Check, CheckContext
from chaos.checks.history import History
from chaos.checks.log.producers import read_snapshot
from chaos.checks.replication.eligible_replicas import Eligible
from chaos.checks.replication.replica_view import Replicated, ReplicaView, remote_metadata_partition
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import StubBroker, StubLog, StubNode, StubRemoteLog, StubSegments, node_partitions
from chaos.checks.tier.segment_objects import (
    NEEDED,
    ClosedSegmentsStored,
    KeptUntilStored,
    ListedWhenStored,
    NewerUploadCounts,
    UploadedProducers,
)
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Note
from reference_broker.log.config import LogConfig
from reference_broker.metadata.identifiers import REMOTE_LOG_METADATA_TOPIC
from reference_broker.metadata.image import PartitionImage
from reference_broker.ports.node_ports import Now
from reference_broker.records.control import build_marker
from reference_broker.records.record import Record, build
from reference_broker.remote_log.metadata.events import RemoteLogSegmentMetadata, RemoteLogSegmentState
from reference_broker.replication.partitions import Partition

if TYPE_CHECKING:
    from reference_broker.core.node import Node

EXPIRES_MS = 10_000
FOLDER = "hot-0-AAAAAAAAAAAAAAAAAAAAAA"
HOT_ID = b"h" * 16
KEY = (HOT_ID, 0)
"""topic ID and index of the partition"""
IDS = {number: f"{number:022d}" for number in range(10)}


@dataclass
class Tiered:
    """A node with one tiered partition, and the store. ``ms`` is the wall clock."""

    ms: int = 1_000_000
    node_id: int = 0
    batches: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    local_start: int = 0
    log_start: int = 0
    context: CheckContext = field(default_factory=check_context)

    def __post_init__(self) -> None:
        self.tier: dict[str, bytes] = {}
        self.context = replace(self.context, tier=self.tier)

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else 0

    def write(self, producer: int = -1, sequence: int = -1, count: int = 1, epoch: int = 0, **how: Any) -> None:
        records = [Record(timestamp_ms=self.ms, value=b"v") for _ in range(count)]
        who: Any = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
        self._append(build(records, leader_epoch=0, **who, **how), count)

    def mark(self, producer: int, epoch: int = 0, *, commit: bool = True) -> None:
        marker = build_marker(
            commit=commit, producer_id=producer, producer_epoch=epoch, coordinator_epoch=5, timestamp_ms=self.ms
        )
        self._append(marker, 1)

    def _append(self, batch: bytes, count: int) -> None:
        self.batches.append(pack(">q", self.end) + bytes(batch)[8:])
        self.ends.append(self.end + count)

    def store(self, copy: int, base: int, end: int, snapshot: bytes = b"", epochs: str = "0\n1\n0 0\n") -> None:
        content = {"log": self.read(base, 0, end), "snapshot": snapshot, "leader-epoch-checkpoint": epochs.encode()}
        for kind in NEEDED:
            self.tier[f"{FOLDER}/{base:020d}-{IDS[copy]}.{kind}"] = content.get(kind, b"")

    def read(self, offset: int, _max_bytes: int, end_offset: int) -> bytes:
        return b"".join(data for data, end in zip(self.batches, self.ends, strict=True) if offset < end <= end_offset)

    @property
    def node(self) -> "Node":
        log = StubLog(
            directory="hot-0",
            topic_id=KEY[0],
            log_start_offset=self.log_start,
            local_log_start_offset=self.local_start,
            read=self.read,
            config=LogConfig(remote_storage_enable=True, producer_id_expiration_ms=EXPIRES_MS),
        )
        broker = StubBroker(
            self.node_id,
            config=replace(BrokerConfig(), remote_log_storage_system_enable=True),
            now=Now(0, self.ms),
            partitions=node_partitions(Partition("hot", KEY[0], 0, 0, log.as_log())),
        )
        return StubNode(broker, all_logs=[log]).as_node()

    def copied(self, check: Check, copy: int, base: int, end: int) -> list[str]:
        fields: Sequence[tuple[str, int | str]] = (
            ("partition", "hot-0"),
            ("base_offset", base),
            ("next_offset", end),
            ("segment_id", IDS[copy]),
            ("began_ms", self.ms),
        )
        before = len(check.violations)
        check.acted(0, self.node, None, [Note("segment_copied", tuple(fields))])
        return [violation.explanation for violation in check.violations[before:]]


def snapshot(*rows: tuple[int, int, int, int, int], ms: int = 1_000_000, coordinator: int = -1) -> bytes:
    """Producer ID, epoch, last sequence, last offset, first offset of the open transaction."""
    body = pack(">i", len(rows)) + b"".join(
        pack(">qhiqiqiq", producer, epoch, sequence, offset, 0, ms, coordinator, first)
        for producer, epoch, sequence, offset, first in rows
    )
    return pack(">hI", 1, crc32c(body)) + body


def test_segment_with_all_its_objects_violates_nothing() -> None:
    world = Tiered()
    check = ListedWhenStored(world.context)
    world.write(count=2)
    world.write(count=3)
    world.store(1, 0, 5)
    assert not world.copied(check, 1, 0, 5)
    assert check.evidence == 1


@pytest.mark.parametrize("kind", NEEDED)
def test_segment_without_one_of_its_objects_is_found(kind: str) -> None:
    world = Tiered()
    check = ListedWhenStored(world.context)
    world.write()
    world.store(1, 0, 1)
    world.store(2, 0, 1)
    del world.tier[f"{FOLDER}/{0:020d}-{IDS[2]}.{kind}"]
    (explanation,) = world.copied(check, 2, 0, 1)
    assert f"without its {kind}" in explanation
    assert not world.copied(check, 1, 0, 1)


def test_other_bytes_and_other_leader_epochs_than_the_log_has_are_found() -> None:
    world = Tiered()
    check = ListedWhenStored(world.context)
    world.write(count=2)
    world.write()
    world.store(1, 0, 2)
    (explanation,) = world.copied(check, 1, 0, 3)
    assert "not those of the log" in explanation
    for epochs in ("0\n1\n7 0\n", "0\n2\n0 0\n1 2\n", "0\n0\n"):
        world.store(2, 0, 3, epochs=epochs)
        (explanation,) = world.copied(check, 2, 0, 3)
        assert "do not fit batch" in explanation


def test_copy_is_compared_only_with_records_that_are_still_here() -> None:
    world = Tiered()
    check = ListedWhenStored(world.context)
    world.write(count=2)
    world.store(1, 0, 2, epochs="0\n1\n7 0\n")
    world.local_start = 2
    assert not world.copied(check, 1, 0, 2)
    world.local_start = 0
    assert world.copied(check, 1, 0, 2)


def deleted(world: Tiered, check: KeptUntilStored, local_start: int) -> int:
    world.local_start = local_start
    before = len(check.violations)
    check.inspect(0, 0, world.node, None, False)
    return len(check.violations) - before


def test_local_records_may_go_once_they_are_whole_in_the_tier() -> None:
    world = Tiered()
    check = KeptUntilStored(world.context)
    for _ in range(6):
        world.write()
    world.store(1, 0, 2)
    world.store(2, 1, 4)
    assert deleted(world, check, 4) == 0
    assert deleted(world, check, 5) == 1
    world.store(3, 4, 6)
    del world.tier[f"{FOLDER}/{4:020d}-{IDS[3]}.snapshot"]
    assert deleted(world, check, 6) == 1
    del world.tier[f"{FOLDER}/{0:020d}-{IDS[1]}.log"]
    assert deleted(world, check, 3) == 1
    world.log_start = 1
    assert deleted(world, check, 4) == 0


def test_locally_deleted_segments_are_rechecked_after_heal() -> None:
    world = Tiered()
    check = KeptUntilStored(world.context)
    for _ in range(4):
        world.write()
    world.store(1, 0, 2)
    world.store(2, 2, 4)
    assert deleted(world, check, 4) == 0
    check.end(History())
    assert not check.violations
    for kind in NEEDED:
        del world.tier[f"{FOLDER}/{0:020d}-{IDS[1]}.{kind}"]
    assert deleted(world, check, 4) == 0, "it looks only where the local start moved"
    check.end(History())
    (violation,) = check.violations
    assert violation.explanation == "hot-0 on node 0 has no records below 4; the tier has none from 0"


OWN = remote_metadata_partition(*KEY, 2)


@pytest.mark.clause("E-7", "P-11")
@pytest.mark.parametrize(("lost", "excused"), [(OWN, True), (1 - OWN, False), (None, False)])
def test_objects_whose_metadata_was_lost_may_be_deleted(lost: int | None, *, excused: bool) -> None:
    """The objects were complete before. Records that never were in the tier may not be deleted locally."""
    world = Tiered()
    check = KeptUntilStored(world.context)
    loses_metadata(world.context.replicas, lost)
    for _ in range(6):
        world.write()
    world.store(1, 0, 2)
    world.store(2, 2, 4)
    assert deleted(world, check, 4) == 0
    for kind in NEEDED:
        del world.tier[f"{FOLDER}/{2:020d}-{IDS[2]}.{kind}"]
    check.end(History())
    assert bool(check.violations) is not excused
    assert deleted(world, check, 5) == 1
    world.store(3, 4, 6)
    assert deleted(world, check, 6) == (not excused)


def loses_metadata(view: ReplicaView, lost: int | None) -> None:
    """``__remote_log_metadata`` has two partitions, of which one has lost committed records."""
    state = PartitionImage((0, 1), (0, 1), 0, 0, 0)
    for name, key in (
        ("hot-0", KEY),
        *((f"{REMOTE_LOG_METADATA_TOPIC}-{index}", (b"m" * 16, index)) for index in range(2)),
    ):
        view.partitions[key] = Replicated(name, key, state, Eligible.of(state, 2))
    if lost is not None:
        view.excused[REMOTE_LOG_METADATA_TOPIC, lost] = None


def test_segment_deleted_on_another_replica_need_not_be_in_tier() -> None:
    world = Tiered()
    check = KeptUntilStored(world.context)
    for _ in range(4):
        world.write()
    world.store(1, 0, 2)
    world.store(2, 2, 4)
    assert deleted(world, check, 4) == 0
    del world.tier[f"{FOLDER}/{0:020d}-{IDS[1]}.log"]
    leader = Tiered(node_id=1, log_start=2, local_start=2)
    check.inspect(0, 0, leader.node, None, False)
    check.end(History())
    assert not check.violations


def test_snapshot_that_equals_the_replay_is_well_and_any_difference_is_found() -> None:
    world = Tiered()
    check = UploadedProducers(world.context)
    world.write(producer=1, sequence=0, count=3)
    world.write(producer=2, sequence=0, is_transactional=True)
    world.write(producer=1, sequence=3)
    right = [(1, 0, 3, 4, -1), (2, 0, 0, 3, 3)]
    wrong = [
        right[:1],
        [(1, 0, 2, 4, -1), right[1]],
        [(1, 1, 3, 4, -1), right[1]],
        [(1, 0, 3, 2, -1), right[1]],
        [right[0], (2, 0, 0, 3, -1)],
        [*right, (9, 0, 0, 0, -1)],
    ]
    for rows in wrong:
        world.store(1, 0, 5, snapshot(*rows))
        assert len(world.copied(check, 1, 0, 5)) == 1, rows
    for other in (snapshot(*right, ms=999_999), snapshot(*right, coordinator=0)):
        world.store(1, 0, 5, other)
        assert len(world.copied(check, 1, 0, 5)) == 1
    world.store(1, 0, 5, snapshot(*right)[:-1])
    assert "damaged" in world.copied(check, 1, 0, 5)[0]
    world.store(1, 0, 5, snapshot(*right))
    assert not world.copied(check, 1, 0, 5)


def test_marker_ends_the_transaction_and_a_new_epoch_forgets_the_old_batches() -> None:
    world = Tiered()
    check = UploadedProducers(world.context)
    world.write(producer=1, sequence=0, is_transactional=True)
    world.mark(1)
    world.store(1, 0, 2, snapshot((1, 0, 0, 0, -1), coordinator=5))
    assert not world.copied(check, 1, 0, 2)
    world.store(1, 0, 2, snapshot((1, 0, 0, 0, -1)))
    assert world.copied(check, 1, 0, 2)
    world.write(producer=1, sequence=0, epoch=1, is_transactional=True)
    world.mark(1, epoch=2, commit=False)
    world.store(2, 2, 4, snapshot((1, 2, -1, -1, -1), coordinator=5))
    assert not world.copied(check, 2, 2, 4)
    world.store(2, 2, 4, snapshot((1, 2, 0, 2, -1), coordinator=5))
    assert world.copied(check, 2, 2, 4)


def test_expired_producer_may_be_missing_but_not_one_a_moment_younger_nor_an_open_transaction() -> None:
    world = Tiered()
    check = UploadedProducers(world.context)
    world.write(producer=1, sequence=0)
    world.ms += 1
    world.write(producer=2, sequence=0)
    world.write(producer=3, sequence=0)
    world.store(1, 0, 3, snapshot((2, 0, 0, 1, -1), (3, 0, 0, 2, -1), ms=1_000_001))
    world.ms += EXPIRES_MS - 1
    assert not world.copied(check, 1, 0, 3)
    world.ms -= EXPIRES_MS
    younger = UploadedProducers(world.context)
    assert world.copied(younger, 1, 0, 3)
    world.write(producer=4, sequence=0, is_transactional=True)
    world.ms += 10 * EXPIRES_MS
    world.store(2, 3, 4, snapshot())
    (explanation,) = world.copied(check, 2, 3, 4)
    assert "producer 4" in explanation


def test_clock_of_another_node_excuses_only_a_log_without_its_first_records() -> None:
    world = Tiered()
    check = UploadedProducers(world.context)
    world.write(producer=1, sequence=0)
    world.store(1, 0, 1, snapshot())
    world.ms += EXPIRES_MS
    assert not world.copied(check, 1, 0, 1)
    world.node_id, world.ms = 1, world.ms - 1
    assert world.copied(check, 1, 0, 1)
    world.local_start = 1
    assert not world.copied(check, 1, 0, 1)


class Listing:
    """A node's segments of a partition, each with the leader epoch of its upload: those ``listed`` and others."""

    def __init__(self) -> None:
        self.check = NewerUploadCounts(check_context())

    def knows(
        self, *listed: tuple[int, int], others: Sequence[tuple[int, int, RemoteLogSegmentState]] = ()
    ) -> list[str]:
        finished = [_segment(*each, RemoteLogSegmentState.COPY_SEGMENT_FINISHED) for each in listed]
        node = _node_with_segments(StubLog(), finished, [_segment(*other) for other in others])
        before = len(self.check.violations)
        self.check.inspect(0, 0, node, None, False)
        return [violation.explanation for violation in self.check.violations[before:]]


def _node_with_segments(
    log: StubLog, listed: Sequence[RemoteLogSegmentMetadata], others: Sequence[RemoteLogSegmentMetadata] = ()
) -> "Node":
    """Return a node that leads hot-0, with these segments in the tier. Its clock shows 4 s."""
    partitions = node_partitions(Partition("hot", HOT_ID, 0, 0, log.as_log()))
    tier = StubRemoteLog(StubSegments(listed, others))
    return StubNode(StubBroker(now=Now(0, 4000), partitions=partitions, remote_log=tier)).as_node()


def _segment(copy: int, epoch: int, state: RemoteLogSegmentState) -> RemoteLogSegmentMetadata:
    return replace(
        _segment_of(10 * copy, 10 * copy + 9), segment_id=bytes([copy]) * 16, uploader_epoch=epoch, state=state
    )


def _segment_of(start_offset: int, end_offset: int) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        topic_id=HOT_ID,
        topic="hot",
        partition=0,
        segment_id=bytes(16),
        start_offset=start_offset,
        end_offset=end_offset,
        max_timestamp_ms=0,
        broker_id=0,
        event_timestamp_ms=0,
        size_bytes=100,
        leader_epochs=((0, 0),),
        uploader_epoch=0,
        has_transaction_index=False,
    )


STARTED, FINISHED = RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def test_older_upload_may_not_be_listed_once_a_newer_one_is_known() -> None:
    for newer in ((2, 5, STARTED), (2, 5, FINISHED)):
        listing = Listing()
        assert not listing.knows((1, 4))
        assert not listing.knows((1, 4), others=(newer, (3, 4, STARTED)))
        (explanation,) = listing.knows((1, 4), (3, 4), others=(newer,))
        assert explanation.startswith("hot-0 from 30 to 40")
        assert explanation.endswith("epoch 4, and listed after an upload of epoch 5 was known")


def test_listed_segment_may_be_reported_late_and_again() -> None:
    listing = Listing()
    assert not listing.knows((1, 4), others=((2, 5, STARTED), (3, 4, FINISHED))), "one event may report both"
    assert not listing.knows((1, 4), (3, 4)), "a node that starts reads it again"
    assert not listing.knows((1, 4), (3, 4), (2, 5), (4, 5))


class LocalSegment(NamedTuple):
    """One segment of a log, as far as retention is concerned."""

    size_bytes: int
    max_timestamp_ms: int


@dataclass(eq=False)
class SegmentedLog(StubLog):
    """A log with segments."""

    segments: Sequence[LocalSegment] = ()


def missing_in_tier(
    *listed: tuple[int, int],
    is_remote_copy_enabled: bool = True,
    stable_end: int = 25,
    log_start: int = 0,
    kept_bytes: int = -2,
    kept_ms: int = -2,
) -> list[str]:
    """Return what the check finds missing in the tier of a leader whose segments begin at 0, 10, 20 and 30, if it has
    copies of the offsets ``listed``. Each has 100 bytes, and ``kept_bytes`` is ``local.retention.bytes``. Their newest
    records are 4000, 3000, 2000 and 1000 ms old, and ``kept_ms`` is ``local.retention.ms``."""
    log = SegmentedLog(
        directory="hot-0",
        bases=[0, 10, 20, 30],
        segments=[LocalSegment(size_bytes=100, max_timestamp_ms=at * 1000) for at in range(4)],
        log_start_offset=log_start,
        high_watermark=40,
        last_stable_offset=stable_end,
        config=LogConfig(
            remote_storage_enable=is_remote_copy_enabled, local_retention_bytes=kept_bytes, local_retention_ms=kept_ms
        ),
    )
    check = ClosedSegmentsStored(check_context())
    node = _node_with_segments(log, [_segment_of(first, after - 1) for first, after in listed])
    check.inspect(0, 0, node, None, False)
    if not check.reached():
        check.overdue(0, 60_000_000)
    return [violation.explanation.partition(" on ")[0] for violation in check.violations]


@pytest.mark.clause("P-14")
def test_each_closed_segment_below_the_last_stable_offset_must_be_in_the_tier() -> None:
    assert missing_in_tier((0, 10), (10, 20)) == []
    assert missing_in_tier((5, 20), (0, 7)) == [], "copies may overlap"
    assert missing_in_tier((0, 10)) == ["hot-0 from 10 to 20"]
    assert missing_in_tier((0, 10), (11, 20)) == ["hot-0 from 10 to 20"]
    assert missing_in_tier((0, 10), (10, 20), stable_end=30) == ["hot-0 from 20 to 30"]
    assert missing_in_tier() == ["hot-0 from 0 to 10", "hot-0 from 10 to 20"]


@pytest.mark.clause("P-14")
def test_segment_not_copied_or_below_log_start_need_not_be_in_tier() -> None:
    assert missing_in_tier(is_remote_copy_enabled=False) == []
    assert missing_in_tier((15, 20), log_start=15) == []
    assert missing_in_tier((16, 20), log_start=15) == ["hot-0 from 10 to 20"]


@pytest.mark.parametrize(("kept_bytes", "overdue"), [(-2, 0), (400, 0), (301, 0), (300, 1), (200, 2), (1, 2)])
def test_tiered_segments_over_local_retention_bytes_are_deleted(kept_bytes: int, overdue: int) -> None:
    """KIP-405: the oldest segments go while the log is too large by one of them. The third one is not copied."""
    explanations = ["hot-0 from 0 to 10", "hot-0 from 10 to 20"]
    assert missing_in_tier((0, 20), kept_bytes=kept_bytes) == explanations[:overdue]


def test_invalid_snapshot_is_refused() -> None:
    good = snapshot((1, 0, 0, 0, -1))
    for bad in (b"", good[:5], good + b"x", pack(">h", 2) + good[2:], good[:-1] + b"x"):
        with pytest.raises(ValueError, match=r"bytes"):
            read_snapshot(bad)


@pytest.mark.parametrize(("kept_ms", "overdue"), [(-2, 0), (-1, 0), (4000, 0), (3999, 1), (3000, 1), (2999, 2), (0, 2)])
def test_tiered_segments_over_local_retention_ms_are_deleted(kept_ms: int, overdue: int) -> None:
    """KIP-405: the oldest segments go while their newest record is too old. The third one is not copied."""
    explanations = ["hot-0 from 0 to 10", "hot-0 from 10 to 20"]
    assert missing_in_tier((0, 20), kept_ms=kept_ms) == explanations[:overdue]
