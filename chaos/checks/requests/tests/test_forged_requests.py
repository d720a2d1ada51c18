"""A forged request is granted if its response has no error anywhere. True ones are no violation."""

from random import Random

import pytest
from kio.schema.add_partitions_to_txn.v5.response import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from kio.schema.broker_heartbeat.v2.request import BrokerHeartbeatRequest
from kio.schema.types import BrokerId, TopicName, TransactionalId
from kio.static.primitive import i32, i64

from chaos.checks.requests.forged_requests import ForgedRefused, has_error
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import StubNode
from chaos.faults.node_requests import Forger, NodeRequest, Recorded, is_forged
from reference_broker.apis.responses import NO_THROTTLE
from reference_broker.core.events import Closed, Reply, Request
from reference_broker.metadata.identifiers import client_id_of
from reference_broker.quorum import messages
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchResponse, FetchTopicResponse, PartitionData
from reference_broker.wire.tags import Tag

SENDER = client_id_of(1, bytes(16))
NODE = StubNode().as_node()
GRANTED = messages.build_vote_response(messages.RaftResponse(ErrorCode.none, 1, 4, granted=True))
REFUSED = messages.build_vote_response(messages.RaftResponse(ErrorCode.inconsistent_voter_set, 1, 4))
WHOLLY_REFUSED = messages.build_vote_response(ErrorCode.inconsistent_cluster_id)


def beat(broker_epoch: int) -> BrokerHeartbeatRequest:
    return BrokerHeartbeatRequest(
        broker_id=BrokerId(1),
        broker_epoch=i64(broker_epoch),
        current_metadata_offset=i64(9),
        want_fence=False,
        want_shut_down=False,
    )


def forged(seed: int) -> list[NodeRequest]:
    seen = Recorded()
    seen.add(0, 0, ApiKey.BROKER_HEARTBEAT, 1, SENDER, beat(5))
    return Forger(seen, "the-cluster", (0, 1, 2), 0, Random(seed)).requests()


def judged(
    body: object, reply_body: object, *, closed: bool = False, api: tuple[ApiKey, int] = (ApiKey.VOTE, 1)
) -> bool:
    """Return whether the check sees a violation."""
    check, tag = ForgedRefused(check_context(alone=True)), Tag(*api, "node-1")
    check.acted(0, NODE, Request(3, 8, *api, SENDER, body, tag), ())
    if closed:
        check.acted(1, NODE, Closed(3), ())
    for at_us in (2, 3):
        check.acted(at_us, NODE, None, [Reply(3, 8, ApiKey.VOTE, 1, reply_body, tag), Reply(4, 8, 0, 1, None, tag)])
    assert len(check.violations) <= 1
    return bool(check.violations)


@pytest.mark.parametrize("seed", range(12))
def test_response_to_a_forged_request_has_an_error(seed: int) -> None:
    for request in forged(seed):
        assert judged(request.body, GRANTED), request.label
        assert not judged(request.body, REFUSED)
        assert not judged(request.body, WHOLLY_REFUSED)
        assert not judged(request.body, GRANTED, closed=True)


@pytest.mark.parametrize(
    ("internal", "other", "violation"),
    [
        (ErrorCode.topic_authorization_failed, ErrorCode.operation_not_attempted, False),
        (ErrorCode.unknown_topic_or_partition, ErrorCode.operation_not_attempted, True),
        (ErrorCode.none, ErrorCode.none, True),
    ],
)
def test_internal_topic_in_add_partitions_is_refused_with_right_error(
    internal: ErrorCode, other: ErrorCode, violation: bool
) -> None:
    (forged_request,) = [request for request in forged(1) if request.api_key == ApiKey.ADD_PARTITIONS_TO_TXN]
    topics = tuple(
        AddPartitionsToTxnTopicResult(
            name=TopicName(name),
            results_by_partition=(
                AddPartitionsToTxnPartitionResult(partition_index=i32(0), partition_error_code=error),
            ),
        )
        for name, error in (("t", other), ("__consumer_offsets", internal))
    )
    result = AddPartitionsToTxnResult(transactional_id=TransactionalId(""), topic_results=topics)
    reply_body = AddPartitionsToTxnResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results_by_transaction=(result,)
    )
    assert judged(forged_request.body, reply_body, api=(ApiKey.ADD_PARTITIONS_TO_TXN, 3)) == violation
    assert not judged(forged_request.body, reply_body, api=(ApiKey.ADD_PARTITIONS_TO_TXN, 4)), (
        "brokers may add any partition"
    )


def test_true_request_may_be_granted() -> None:
    end = OffsetAndEpoch(10, 4)
    truths = [
        messages.build_vote_request(messages.VoteRequest("the-cluster", 0, 1, 5, end, pre_vote=False)),
        messages.build_fetch_request("the-cluster", 1, 4, end, 0, 0, 0),
        beat(5),
    ]
    for body in truths:
        assert not is_forged(body)
        assert not judged(body, GRANTED)


def test_error_counts_at_any_depth_of_a_response() -> None:
    deep = FetchResponse(responses=[FetchTopicResponse("t", bytes(16), [PartitionData(0, 74, -1)])])
    assert has_error(deep)
    assert not has_error(FetchResponse())
    assert not has_error(None)
