"""A snapshot's bytes: Kafka's framing, one record for each live entity, and only complete files are loaded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.metadata.image import EMPTY_IMAGE, MetadataImage
from reference_broker.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataEpoch,
    MetadataRecord,
    NoOpRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    decode,
    encode,
)
from reference_broker.metadata.snapshots import load_snapshot, records_of
from reference_broker.metadata.tests.metadata_world import topic_id, topic_records
from reference_broker.metadata.tests.test_image_replay import OPERATIONS, Model
from reference_broker.ports.slicing import run_to_end
from reference_broker.quorum.node_files import StartRefused
from reference_broker.quorum.snapshots.format import (
    SnapshotDamaged,
    data_batch,
    footer_batch,
    header_batch,
    last_contained_timestamp_ms,
    made_path,
    part_path,
    progress_path,
    read_batches,
    read_name,
    snapshot_path,
)
from reference_broker.quorum.snapshots.store import SnapshotStore
from reference_broker.quorum.snapshots.tests.snapshot_world import (
    DIRECTORY,
    Replica,
    content,
    filled,
    flips,
    replayed,
    setting,
)
from reference_broker.quorum.values import OffsetAndEpoch, Provenance
from reference_broker.records.batch import validate
from reference_broker.records.control import decode_snapshot_header, read_control
from reference_broker.records.record import read_records

ID = OffsetAndEpoch(100, 1)


@pytest.fixture
def made() -> tuple[Replica, OffsetAndEpoch, bytes]:
    """Return a replica with one snapshot, the snapshot's ID, and its bytes."""
    replica = filled(Replica())
    snapshot = replica.make_snapshot()
    return replica, snapshot, replica.bytes_of(snapshot)


@pytest.mark.clause(
    "KafkaMetadataLogTest.testCreateSnapshot",
    "FileRawSnapshotTest.testWritingSnapshot",
    "RecordsSnapshotWriterTest.testBuilderKRaftVersion0",
    "SnapshotWriterReaderTest.testSnapshotDelimiters",
    "SnapshotsTest.testValidSnapshotFilename",
    "RaftSnapshotWriterTest.testFreezeAndClose",
)
@pytest.mark.clause("S-16")
def test_snapshot_is_file_of_batches_from_header_to_footer(made: tuple[Replica, OffsetAndEpoch, bytes]) -> None:
    replica, snapshot, data = made
    headers = [header for _, header in validate(data)]
    assert [header.is_control for header in headers] == [True, *[False] * (len(headers) - 2), True]
    assert {header.leader_epoch for header in headers} == {snapshot.epoch}
    assert [header.base_offset for header in headers] == [0, *(header.last_offset + 1 for header in headers[:-1])]
    first = read_control(next(read_records(data)))
    assert (first.type, decode_snapshot_header(first).last_contained_log_timestamp) == (
        3,
        replica.image.provenance.timestamp_ms,
    )
    assert (headers[0].batch_length, headers[-1].batch_length) == (71, 63), "not the sizes that Kafka writes"
    assert snapshot == (replica.log.end.offset, replica.epoch)
    assert replica.store.path(snapshot) == f"{DIRECTORY}/{snapshot.offset:020d}-{snapshot.epoch:010d}.checkpoint"


@pytest.mark.clause("S-16")
def test_number_of_records_is_independent_of_number_of_changes() -> None:
    replica = filled(Replica())
    replica.append([setting(0)])
    before = list(records_of(replica.image))
    for number in range(100):
        replica.append([setting(0, str(100 * number + each)) for each in range(100)])
    after = list(records_of(replica.image))
    assert len(after) == len(before) == 5 + 5 * 20 + 1
    assert after[-1] == setting(0, "9999")


def test_equal_content_has_equal_bytes() -> None:
    one, other = Replica(), Replica()
    ordered = [ConfigRecord(resource_type=2, resource_name=f"t{n}", name="k", value="v") for n in range(9)]
    topics = [topic_records(f"t{n}", topic_id(n), 2) for n in range(9)]
    for replica, order in ((one, 1), (other, -1)):
        replica.append(ordered[::order])
        for records in topics[::order]:
            replica.append(records)
    assert one.bytes_of(one.make_snapshot()) == other.bytes_of(other.make_snapshot())


@pytest.mark.clause("S-9")
def test_torn_snapshot_is_rejected(made: tuple[Replica, OffsetAndEpoch, bytes]) -> None:
    replica, snapshot, data = made
    for length in [*range(0, len(data), 7), len(data) - 1]:
        replica.disk.write(replica.store.path(snapshot), data[:length])
        with pytest.raises(StartRefused, match="cannot be loaded"):
            run_to_end(load_snapshot(replica.disk, snapshot))


@pytest.mark.clause(
    "RecordsIteratorTest.testCrcValidation", "QuorumControllerTest.testFatalMetadataErrorDuringSnapshotLoading"
)
@pytest.mark.clause("S-9")
def test_damaged_snapshot_is_rejected(made: tuple[Replica, OffsetAndEpoch, bytes]) -> None:
    replica, snapshot, data = made
    for damaged in flips(data, 11):
        replica.disk.write(replica.store.path(snapshot), damaged)
        with pytest.raises(StartRefused, match="cannot be loaded"):
            run_to_end(load_snapshot(replica.disk, snapshot))


@pytest.mark.parametrize("index", range(4))
def test_file_with_wrong_parts_is_rejected(index: int) -> None:
    head, foot = header_batch(ID, 5), footer_batch(ID, 1, 5)
    record = encode(FeatureLevelRecord(name="f", feature_level=1))
    wrong = (
        head + footer_batch(ID, 1, 5) + footer_batch(ID, 2, 5),
        data_batch(ID, 0, 5, [record]) + foot,
        head + header_batch(ID, 5),
        head + data_batch(OffsetAndEpoch(100, 2), 1, 5, [record]) + footer_batch(ID, 2, 5),
    )
    replica = Replica()
    replica.disk.append("f", [wrong[index]])
    with pytest.raises(SnapshotDamaged):
        list(read_batches(replica.disk, "f", ID))


@pytest.mark.clause(
    "OffsetControlManagerTest.testBeginTransactionRecordNotAllowedInSnapshot",
    "OffsetControlManagerTest.testEndTransactionRecordNotAllowedInSnapshot",
    "OffsetControlManagerTest.testAbortTransactionRecordNotAllowedInSnapshot",
)
@pytest.mark.clause("T-3")
@pytest.mark.parametrize("marker", [BeginTransactionRecord(), EndTransactionRecord(), AbortTransactionRecord()])
def test_snapshot_with_transaction_marker_is_rejected(marker: MetadataRecord) -> None:
    replica = Replica()
    head = header_batch(ID, 5) + data_batch(ID, 1, 5, [encode(marker)])
    replica.disk.append(snapshot_path(ID), [head + footer_batch(ID, 2, 5)])
    with pytest.raises(StartRefused, match="transaction"):
        run_to_end(load_snapshot(replica.disk, ID))


@pytest.mark.clause("FileRawSnapshotTest.testBufferWriteReadSnapshot")
def test_batch_larger_than_one_read_is_loaded() -> None:
    """Kafka writes its records into batches of up to 8 MiB."""
    replica = Replica()
    values = [encode(setting(number, "x" * 900)) for number in range(1000)]
    whole = header_batch(ID, 5) + data_batch(ID, 1, 5, values) + footer_batch(ID, 1001, 5)
    replica.disk.append(snapshot_path(ID), [whole])
    image = run_to_end(load_snapshot(replica.disk, ID))
    assert len(image.configs) == 1000
    assert image.provenance == Provenance(99, 1, 5)
    assert last_contained_timestamp_ms(replica.disk, snapshot_path(ID)) == 5


def test_loading_is_done_in_slices() -> None:
    replica = filled(Replica(), topics=5, partitions=300)
    snapshot = replica.make_snapshot()
    assert sum(1 for _ in load_snapshot(replica.disk, snapshot)) >= 1505 // 200


OTHERS = st.lists(
    st.one_of(
        st.builds(
            RegisterBrokerRecord,
            broker_id=st.integers(0, 3),
            broker_epoch=st.integers(0, 9),
            incarnation_id=st.binary(min_size=16, max_size=16),
            end_points=st.just((BrokerEndpoint(name="PLAINTEXT", host="h", port=9092, security_protocol=0),)),
            features=st.just(()),
            rack=st.sampled_from((None, "r")),
            fenced=st.booleans(),
            in_controlled_shutdown=st.booleans(),
            log_dirs=st.sampled_from(((), (bytes(16),))),
        ),
        st.builds(FeatureLevelRecord, name=st.sampled_from("ab"), feature_level=st.integers(0, 3)),
    ),
    max_size=8,
)


@pytest.mark.clause(
    "FileRawSnapshotTest.testWriteReadSnapshot",
    "SnapshotWriterReaderTest.testWritingSnapshot",
    "RecordsIteratorTest.testFileRecords",
    "SnapshotEmitterTest.testEmit",
    "RaftSnapshotWriterTest.testFreezeAndClose",
    "MetadataImageTest.testEmptyImageRoundTrip",
    "MetadataImageTest.testImage1RoundTrip",
    "MetadataImageTest.testImage2RoundTrip",
    "TopicsImageTest.testEmptyImageRoundTrip",
    "TopicsImageTest.testImage1RoundTrip",
    "TopicsImageTest.testImage2RoundTrip",
    "ClusterImageTest.testEmptyImageRoundTrip",
    "ClusterImageTest.testImage1RoundTrip",
    "ClusterImageTest.testImage2RoundTrip",
    "ClusterImageTest.testImage3RoundTrip",
    "ConfigurationsImageTest.testEmptyImageRoundTrip",
    "ConfigurationsImageTest.testImage1RoundTrip",
    "ConfigurationsImageTest.testImage2RoundTrip",
    "FeaturesImageTest.testEmptyImageRoundTrip",
    "FeaturesImageTest.testImage1RoundTrip",
    "FeaturesImageTest.testImage2RoundTrip",
    "FeaturesImageTest.testImage3RoundTrip",
    "ProducerIdsImageTest.testEmptyImageRoundTrip",
    "ProducerIdsImageTest.testImage2RoundTrip",
    "ClusterControlManagerTest.testReplayRegisterBrokerRecord",
    "ClusterControlManagerTest.testRegistrationsToRecords",
    "FeatureControlManagerTest.testReplayRecords",
)
@pytest.mark.clause("S-15", "S-16")
@given(OPERATIONS, OTHERS)
def test_loaded_snapshot_equals_full_replay(
    operations: list[tuple[str, int]], others: list[FeatureLevelRecord | RegisterBrokerRecord]
) -> None:
    model, image = Model(), EMPTY_IMAGE
    records: list[MetadataRecord] = list(others)
    for operation, number in operations:
        records += model.records(operation, number)
    image = replayed(image, records, Provenance(41, 3, 7))
    again = [decode(encode(record)) for record in records_of(image)]
    assert len(again) == _living(image)
    assert content(replayed(EMPTY_IMAGE, again, Provenance(41, 3, 7))) == content(image)


def _living(image: MetadataImage) -> int:
    settings_ = sum(len(pairs) for pairs in image.configs.values())
    partitions = sum(1 + len(topic.partitions) for topic in image.topics.values())
    single = (image.next_producer_id > 0) + (image.metadata_epoch > 0)
    return len(image.features) + len(image.brokers) + partitions + settings_ + single


@pytest.mark.clause("ClusterImageTest.testImage1RoundTrip")
@pytest.mark.clause("M-1")
@pytest.mark.clause("M-14")
def test_snapshot_keeps_metadata_epoch_and_broker_features() -> None:
    endpoint = BrokerEndpoint(name="PLAINTEXT", host="h", port=1, security_protocol=0)
    feature = BrokerFeature(name="f", min_supported_version=1, max_supported_version=3)
    replica = Replica()
    replica.append(
        [
            RegisterBrokerRecord(
                broker_id=1, incarnation_id=bytes(16), broker_epoch=2, end_points=(endpoint,), features=(feature,)
            ),
            NoOpRecord(metadata_epoch=MetadataEpoch(metadata_epoch=57)),
        ]
    )
    loaded = run_to_end(load_snapshot(replica.disk, replica.make_snapshot()))
    assert loaded.metadata_epoch == 57
    assert loaded.brokers[1].features == (("f", 1, 3),)
    assert [loaded.brokers[1].supports("f", level) for level in (0, 1, 3, 4)] == [False, True, True, False]
    assert [loaded.brokers[1].supports("other", level) for level in (0, 1)] == [True, False]


@pytest.mark.clause("ProducerIdsImageTest.testImage1RoundTrip")
def test_snapshot_keeps_producer_ids() -> None:
    replica = Replica()
    replica.append([ProducerIdsRecord(broker_id=1, next_producer_id=3000)])
    snapshot = replica.make_snapshot()
    assert run_to_end(load_snapshot(replica.disk, snapshot)).next_producer_id == 3000


@pytest.mark.clause(
    "KafkaMetadataLogTest.testCleanupPartialSnapshots",
    "SnapshotsTest.testValidPartialSnapshotFilename",
    "SnapshotsTest.testValidDeletedSnapshotFilename",
)
@pytest.mark.clause("S-9")
def test_start_deletes_leftovers_and_keeps_resumable_downloads(made: tuple[Replica, OffsetAndEpoch, bytes]) -> None:
    replica, snapshot, _ = made
    other, older = OffsetAndEpoch(500, 2), OffsetAndEpoch(400, 2)
    left = (
        made_path(OffsetAndEpoch(900, 1)),
        part_path(OffsetAndEpoch(700, 1)),
        progress_path(OffsetAndEpoch(800, 1)),
        f"{DIRECTORY}/{5:020d}-{1:010d}.checkpoint.deleted",
        part_path(snapshot),
        progress_path(snapshot),
        part_path(older),
        progress_path(older),
    )
    for path in (*left, part_path(other), progress_path(other), snapshot_path(OffsetAndEpoch(0, 0))):
        replica.disk.append(path, [b"x"])
    store = SnapshotStore(replica.disk)
    assert store.ids == (snapshot,)
    assert store.partial == other
    assert not any(replica.disk.exists(path) for path in left)
    assert replica.disk.exists(part_path(other))
    assert replica.disk.exists(progress_path(other))


@pytest.mark.clause(
    "KafkaRaftClientSnapshotTest.testLatestSnapshotId", "KafkaRaftClientSnapshotTest.testLatestSnapshotIdMissing"
)
def test_latest_snapshot_has_newest_epoch_and_offset() -> None:
    replica = Replica()
    assert (replica.store.latest, replica.store.oldest) == (None, None)
    ids = [OffsetAndEpoch(300, 1), OffsetAndEpoch(200, 2), OffsetAndEpoch(100, 1)]
    for each in ids:
        replica.disk.append(snapshot_path(each), [b"x"])
    store = SnapshotStore(replica.disk)
    assert (store.latest, store.oldest) == (ids[1], ids[2])


@pytest.mark.clause(
    "KafkaMetadataLogTest.testReadMissingSnapshot",
    "KafkaMetadataLogTest.testDeleteNonExistentSnapshot",
    "SnapshotsTest.testDeleteSnapshot",
)
def test_missing_snapshot_is_neither_held_nor_deleted(made: tuple[Replica, OffsetAndEpoch, bytes]) -> None:
    replica, snapshot, _ = made
    before = replica.log.start_offset, replica.log.end, replica.names()
    other = OffsetAndEpoch(snapshot.offset, snapshot.epoch + 1)
    assert not replica.store.holds(other)
    replica.store.delete(other)
    assert (replica.log.start_offset, replica.log.end, replica.names()) == before
    replica.store.delete(snapshot)
    assert (replica.store.latest, replica.names()) == (None, [])


@pytest.mark.clause("SnapshotsTest.testValidSnapshotFilename", "SnapshotsTest.testInvalidSnapshotFilenames")
@pytest.mark.parametrize(
    "name",
    [
        "1-1.checkpoint",
        f"{1:020d}-{1:09d}.checkpoint",
        f"{1:020d}{1:010d}.checkpoint",
        f"{1:020d}-{1:010d}.log",
        f"{1:020d}-{1:010d}-made.checkpoint",
    ],
)
def test_files_with_other_names_are_ignored(name: str) -> None:
    assert read_name(name, ".checkpoint") is None
    assert read_name(f"{7:020d}-{2:010d}.checkpoint", ".checkpoint") == (7, 2)
