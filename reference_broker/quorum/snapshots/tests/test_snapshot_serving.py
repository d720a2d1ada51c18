"""A leader's responses to FetchSnapshot: bytes, or Kafka's errors in Kafka's order."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.types import TopicName
from kio.static.primitive import i32

from reference_broker.apis.quorum import k59_fetch_snapshot
from reference_broker.apis.quorum.k59_fetch_snapshot import MAX_PARTITIONS
from reference_broker.ports.node_ports import Now
from reference_broker.quorum.snapshots.messages import (
    MEDIA_TYPE,
    Piece,
    SnapshotRequest,
    read_requests,
    read_response,
    request_for,
)
from reference_broker.quorum.snapshots.serving import SnapshotChecks, serve
from reference_broker.quorum.snapshots.tests.snapshot_world import Leadership, Replica, filled
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.frames import read_request_header
from reference_broker.wire.messages import decode_request, decode_response, encode_request, encode_response


class Served:
    def __init__(self) -> None:
        self.replica = filled(Replica())
        self.id = self.replica.make_snapshot()
        self.data = self.replica.bytes_of(self.id)
        self.leadership = Leadership(epoch=3)

    def fetch(self, is_draft: bool = False, **changed: Any) -> Piece:
        request = SnapshotRequest("c", 2, "__cluster_metadata", 0, 3, self.id, 0, 2**31 - 1)
        return serve(replace(request, **changed), self.replica.store, self.leadership, 7, is_draft)

    def handle(self, body: Any, version: int = 1) -> Any:
        responses: list[Any] = []
        broker: Any = SimpleNamespace(
            quorum=self.leadership,
            snapshots=self.replica.store,
            snapshot_checks=SnapshotChecks(self.replica.node, self.replica.store),
            now=Now(7, 7),
            loader=SimpleNamespace(image=SimpleNamespace(brokers={1: SimpleNamespace(address=lambda _: ("h", 9))})),
        )
        call: Any = SimpleNamespace(api_version=version, respond=responses.append, run=lambda work: work())
        response = k59_fetch_snapshot.handle(broker, call, body)
        return responses[0] if response is None else response


@pytest.fixture
def served() -> Served:
    return Served()


@pytest.mark.clause("KafkaRaftClientSnapshotTest.testFetchSnapshotRequestAsLeader")
@pytest.mark.clause("S-1", "S-2", "S-3")
def test_fetch_returns_at_most_max_bytes_from_position(served: Served) -> None:
    piece = served.fetch(position=5, max_bytes=10)
    assert piece.data == served.data[5:15]
    assert piece.position == 5
    assert piece.size == len(served.data)
    assert piece.id == served.id
    assert (piece.leader_id, piece.epoch, piece.error) == (1, 3, ErrorCode.none)


@pytest.mark.clause(
    "KafkaRaftClientSnapshotTest.testPartialFetchSnapshotRequestAsLeader",
    "FileRawSnapshotTest.testPartialWriteReadSnapshot",
)
@pytest.mark.clause("S-3")
def test_pieces_of_any_size_form_file(served: Served) -> None:
    position, got = 0, b""
    while position < len(served.data):
        piece = served.fetch(position=position, max_bytes=1 + position % 37)
        got += piece.data
        position += len(piece.data)
    assert got == served.data


@pytest.mark.clause("S-3")
def test_max_bytes_of_zero_returns_no_bytes(served: Served) -> None:
    assert (served.fetch(max_bytes=0).data, served.fetch(max_bytes=0).error) == (b"", ErrorCode.none)
    assert served.fetch(max_bytes=-1).data == b""


@pytest.mark.clause(
    "KafkaRaftClientSnapshotTest.testFetchSnapshotRequestMissingSnapshot",
    "KafkaRaftClientSnapshotTest.testFetchSnapshotRequestUnknownPartition",
    "KafkaRaftClientSnapshotTest.testFetchSnapshotRequestAsFollower",
    "KafkaRaftClientSnapshotTest.testFetchSnapshotRequestWithOlderEpoch",
    "KafkaRaftClientSnapshotTest.testFetchSnapshotRequestWithNewerEpoch",
    "KafkaRaftClientSnapshotTest.testFetchSnapshotRequestClusterIdValidation",
)
@pytest.mark.clause("S-5", "S-6", "S-7")
def test_errors_are_in_order_of_kafka(served: Served) -> None:
    size = len(served.data)
    wrong: dict[str, Any] = {
        "cluster_id": "other",
        "partition": 1,
        "leader_epoch": 2,
        "id": OffsetAndEpoch(served.id.offset, 0),
        "position": size,
    }
    served.leadership.error = ErrorCode.not_leader_or_follower
    expected = [
        ("cluster_id", ErrorCode.inconsistent_cluster_id),
        ("partition", ErrorCode.unknown_topic_or_partition),
        ("leader_epoch", ErrorCode.fenced_leader_epoch),
        (None, ErrorCode.not_leader_or_follower),
        (None, ErrorCode.broker_not_available),
        ("id", ErrorCode.snapshot_not_found),
        ("position", ErrorCode.position_out_of_range),
    ]
    for name, error in expected:
        piece = served.fetch(**wrong)
        assert (piece.error, piece.data, piece.leader_id, piece.epoch) == (error, b"", 1, 3), name
        if name is not None:
            del wrong[name]
        elif error is ErrorCode.not_leader_or_follower:
            served.leadership.error = ErrorCode.broker_not_available
        else:
            served.leadership.error = None
    assert served.fetch(**wrong).error is ErrorCode.none
    assert served.fetch(leader_epoch=4).error is ErrorCode.unknown_leader_epoch
    assert served.fetch(topic="unknown").error is ErrorCode.unknown_topic_or_partition
    assert served.fetch(cluster_id=None).error is ErrorCode.inconsistent_cluster_id
    assert served.fetch(cluster_id=None, replica_id=-1).error is ErrorCode.none, "a consumer knows no cluster ID"


@pytest.mark.clause("KafkaRaftClientSnapshotTest.testFetchSnapshotRequestWithInvalidPosition")
@pytest.mark.clause("S-6")
def test_position_outside_file_returns_position_out_of_range(served: Served) -> None:
    size = len(served.data)
    errors = [served.fetch(position=each).error for each in (-1, size, size + 1, 2**40)]
    assert errors == [ErrorCode.position_out_of_range] * 4
    assert served.fetch(position=size - 1).data == served.data[-1:]


@pytest.mark.clause(
    "KafkaRaftClientSnapshotTest.testFetchSnapshotRequestMissingSnapshot",
    "KafkaRaftClientSnapshotTest.testFetchSnapshotRequestBootstrapSnapshot",
)
@pytest.mark.clause("S-5")
def test_snapshot_of_other_epoch_is_not_found(served: Served) -> None:
    other = OffsetAndEpoch(served.id.offset, served.id.epoch + 1)
    assert served.fetch(id=other).error is ErrorCode.snapshot_not_found
    assert served.fetch(id=OffsetAndEpoch(0, 0)).error is ErrorCode.snapshot_not_found


@pytest.mark.clause(
    "KafkaRaftClientSnapshotTest.testLeaderShouldResignLeadershipIfNotGetFetchSnapshotRequestFromMajorityVoters"
)
def test_only_valid_requests_count_as_contact(served: Served) -> None:
    served.fetch(replica_id=2)
    served.fetch(replica_id=3, position=-1)
    assert served.leadership.contacts == [2]


@pytest.mark.clause("S-17")
def test_draft_returns_remaining_bytes_and_media_type(served: Served) -> None:
    size = len(served.data)
    body = request_for("c", 2, 3, served.id, 0, 10)
    first = served.handle(body, 1000).topics[0].partitions[0]
    assert (first.media_type, first.more, first.data) == (MEDIA_TYPE, True, served.data[:10])
    last = served.handle(request_for("c", 2, 3, served.id, size - 4, 10), 1000).topics[0].partitions[0]
    assert last.media_type == ""
    assert last.more is False
    assert last.data == served.data[-4:]
    assert last.position == size - 4
    end = served.handle(request_for("c", 2, 3, served.id, size, 10), 1000).topics[0].partitions[0]
    assert (end.error_code, end.more, end.data) == (ErrorCode.none, False, b"")
    for position in (size + 1, -1):
        beyond = served.handle(request_for("c", 2, 3, served.id, position, 10), 1000).topics[0].partitions[0]
        assert (beyond.error_code, beyond.more, beyond.data) == (ErrorCode.offset_out_of_range, False, b"")


@pytest.mark.clause("KafkaRaftClientSnapshotTest.testFetchSnapshotRequestClusterIdValidation")
@pytest.mark.clause("S-4", "S-13")
def test_fetch_snapshot_serves_metadata_partition(served: Served) -> None:
    good = request_for("c", 2, 3, served.id, 0, 10)
    one = served.handle(good).topics[0].partitions[0]
    assert one.size == len(served.data)
    assert one.position == 0
    assert bytes(one.unaligned_records) == served.data[:10]
    assert (one.snapshot_id.end_offset, one.snapshot_id.epoch) == served.id
    assert (one.current_leader.leader_id, one.current_leader.leader_epoch) == (1, 3)
    assert [each.node_id for each in served.handle(good).node_endpoints] == [1]
    none, many = replace(good, topics=()), replace(good, topics=good.topics * (MAX_PARTITIONS + 1))
    assert [served.handle(body).error_code for body in (none, many)] == [ErrorCode.invalid_request] * 2
    assert served.handle(none, 1000).error_code == ErrorCode.invalid_request
    foreign = replace(none, cluster_id="x")
    assert served.handle(foreign).error_code == ErrorCode.inconsistent_cluster_id
    assert served.handle(replace(good, cluster_id="")).error_code == ErrorCode.inconsistent_cluster_id
    other = replace(good, topics=(replace(good.topics[0], name=TopicName("t0")),))
    found = served.handle(other).topics[0]
    assert (found.name, found.partitions[0].error_code) == ("t0", ErrorCode.unknown_topic_or_partition)


@pytest.mark.clause("S-1")
@pytest.mark.parametrize("version", [1, 1000])
def test_partitions_are_served_or_rejected_separately(served: Served, version: int) -> None:
    good = request_for("c", 2, 3, served.id, 0, 10)
    (metadata,) = good.topics
    (one,) = metadata.partitions
    foreign = replace(metadata, name=TopicName("t0"))
    stale = replace(metadata, partitions=(replace(one, partition=i32(1)), one))
    found = served.handle(replace(good, topics=(foreign, stale, metadata)), version)
    assert found.error_code == ErrorCode.none
    noted = [(str(topic.name), each.error_code) for topic in found.topics for each in topic.partitions]
    unknown, name = ErrorCode.unknown_topic_or_partition, str(metadata.name)
    assert noted == [("t0", unknown), (name, unknown), (name, ErrorCode.none), (name, ErrorCode.invalid_request)]
    data = found.topics[1].partitions[1]
    assert bytes(data.data if version == 1000 else data.unaligned_records) == served.data[:10]
    refused = served.handle(replace(good, topics=(foreign, stale, metadata), cluster_id="x"), version)
    assert (refused.error_code, refused.topics) == (ErrorCode.inconsistent_cluster_id, ())


@pytest.mark.clause("S-1", "S-4", "S-17")
@pytest.mark.parametrize("version", [0, 1, 1000])
def test_response_round_trip(served: Served, version: int) -> None:
    """The follower decodes the leader's response, in every version, the draft among them."""
    key = ApiKey.FETCH_SNAPSHOT
    request = request_for("c", 2, 3, served.id, 5, 10)
    frame = b"".join(encode_request(key, version, 7, "node-2", request))[4:]
    _, offset = read_request_header(frame)
    seen: Any = decode_request(key, version, frame, offset)
    assert read_requests(seen) == read_requests(replace(request, cluster_id=None) if version == 1000 else request)
    response = served.handle(seen, version)
    correlation_id, decoded = decode_response(key, version, b"".join(encode_response(key, version, 7, response))[4:])
    piece = read_response(decoded)
    assert correlation_id == 7
    assert piece.error == ErrorCode.none
    assert piece.position == 5
    assert piece.data == served.data[5:15]
    assert not piece.is_last
    assert (piece.size, piece.id) == ((-1, None) if version == 1000 else (len(served.data), served.id))


def test_invalid_response_is_error(served: Served) -> None:
    body = request_for("c", 2, 3, served.id, 5, 10)
    for version in (1, 1000):
        response = served.handle(body, version)
        assert read_response(replace(response, topics=())).error is ErrorCode.unknown_server_error
        refused = served.handle(replace(body, topics=()), version)
        assert read_response(refused).error is ErrorCode.invalid_request
    assert read_response(object()).error is ErrorCode.unknown_server_error
