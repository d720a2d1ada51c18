"""FetchSnapshot responses: errors that do not fit, and bytes that are not the snapshot's."""

from dataclasses import dataclass, field, replace

import pytest
from kio.schema.types import TopicName

from chaos.checks.metadata.snapshots import SnapshotResponses
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import StubBroker, StubNode, StubQuorum, StubQuorumNode, StubSnapshotStore
from reference_broker.core.events import Reply, Request
from reference_broker.quorum.snapshots.messages import (
    Piece,
    SnapshotRequest,
    draft_response_of,
    request_for,
    response_of,
)
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag

FETCH_SNAPSHOT, VERSION, DRAFT = 59, 1, 1000
SNAPSHOT_ID, BYTES = OffsetAndEpoch(40, 2), b"0123456789"
REQUEST = SnapshotRequest("c", 3, "__cluster_metadata", 0, 5, SNAPSHOT_ID, 4, 3)
GOOD = Piece(ErrorCode.none, 0, 5, SNAPSHOT_ID, 10, 4, b"456")


@dataclass
class StoreOfOneSnapshot(StubSnapshotStore):
    """The store with the snapshot ``SNAPSHOT_ID``, whose content is ``BYTES``."""

    ids: list[OffsetAndEpoch] = field(default_factory=lambda: [SNAPSHOT_ID])

    def size(self, _: OffsetAndEpoch) -> int:
        return len(BYTES)

    def read(self, _: OffsetAndEpoch, position: int, size: int) -> bytes:
        return BYTES[position : position + size]


def explanation(wanted: SnapshotRequest, piece: Piece, *, leads: bool = True, version: int = VERSION) -> str:
    """Return the violation of one response, from the first words that are not about the request."""
    quorum = StubQuorum(epoch=5, is_leader=leads)
    replica = StubQuorumNode(quorum=quorum, store=StoreOfOneSnapshot())
    node = StubNode(StubBroker(quorum_node=replica)).as_node()
    body = request_for(
        wanted.cluster_id, wanted.replica_id, wanted.leader_epoch, wanted.id, wanted.position, wanted.max_bytes
    )
    topics = (replace(body.topics[0], name=TopicName(wanted.topic)),)
    tag = Tag(FETCH_SNAPSHOT, version, "node-3")
    request = Request(1, 1, FETCH_SNAPSHOT, version, "node-3", replace(body, topics=topics), tag)
    pieces = [(replace(wanted, partition=0), piece)]
    response = draft_response_of(pieces) if version == DRAFT else response_of(pieces, None)
    check = SnapshotResponses(check_context())
    check.acted(0, node, request, [Reply(1, 1, FETCH_SNAPSHOT, version, response, tag)])
    return "; ".join(violation.explanation.partition("; response: ")[2] for violation in check.violations)


@pytest.mark.clause("S-1", "S-2", "S-3", "S-4")
def test_bytes_must_be_those_of_the_request() -> None:
    assert explanation(REQUEST, GOOD) == ""
    assert explanation(REQUEST, replace(GOOD, data=b"45x")) == "3 bytes from 4 on that are not those of the snapshot"
    assert (
        explanation(REQUEST, replace(GOOD, position=3, data=b"345"))
        == "3 bytes from 3 on that are not those of the snapshot"
    )
    assert explanation(REQUEST, replace(GOOD, data=b"4567")) == "4 bytes, more than 3"
    assert explanation(REQUEST, replace(GOOD, size=7)) == "size 7, and the snapshot has 10 bytes"


@pytest.mark.clause("S-4", "S-17")
def test_draft_must_say_whether_more_remains() -> None:
    assert explanation(REQUEST, GOOD, version=DRAFT) == ""
    assert explanation(REQUEST, replace(GOOD, is_last=True), version=DRAFT) == "nothing remains after 7"
    assert (
        explanation(replace(REQUEST, position=10), replace(GOOD, position=10, data=b"", is_last=True), version=DRAFT)
        == ""
    )


@pytest.mark.clause("S-5", "S-6", "S-7", "S-13")
@pytest.mark.parametrize(
    ("wanted", "leads", "must"),
    [
        (replace(REQUEST, id=OffsetAndEpoch(41, 2)), True, ErrorCode.snapshot_not_found),
        (replace(REQUEST, position=-1), True, ErrorCode.position_out_of_range),
        (replace(REQUEST, position=10), True, ErrorCode.position_out_of_range),
        (REQUEST, False, ErrorCode.not_leader_or_follower),
        (replace(REQUEST, topic="other"), True, ErrorCode.unknown_topic_or_partition),
        (replace(REQUEST, leader_epoch=4), True, ErrorCode.fenced_leader_epoch),
        (replace(REQUEST, leader_epoch=6), True, ErrorCode.unknown_leader_epoch),
    ],
)
def test_each_request_that_is_no_good_has_its_error(wanted: SnapshotRequest, leads: bool, must: ErrorCode) -> None:
    assert explanation(wanted, Piece(must), leads=leads) == ""
    assert explanation(wanted, GOOD, leads=leads) == f"error 0, not {int(must)}"
    other = ErrorCode.fenced_leader_epoch if must is not ErrorCode.fenced_leader_epoch else ErrorCode.snapshot_not_found
    assert explanation(wanted, Piece(other), leads=leads) == f"error {int(other)}, not {int(must)}"


@pytest.mark.clause("S-9")
def test_damaged_bytes_are_not_served() -> None:
    assert explanation(REQUEST, Piece(ErrorCode.kafka_storage_error)) == ""
    assert explanation(REQUEST, Piece(ErrorCode.snapshot_not_found)) == "error 98, not 0"
