"""DeleteRecords with planted responses: too late while all live replicas begin there, and too early."""

from dataclasses import replace
from typing import Any

import pytest
from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kio.schema.delete_records.v2.response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kio.schema.types import TopicName
from kio.static.primitive import i32, i64

from bench.fleet.behaviours.bodies import milliseconds
from chaos.checks.replication.deleted_records import DeletionsReplicated
from chaos.checks.replication.tests.partition_leaders import Leader
from chaos.checks.replication.tests.replicated import TOPIC_ID, Cluster
from chaos.checks.tests.stub_node import broker_image
from reference_broker.core.events import Reply, Request
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    PartitionData,
)
from reference_broker.wire.tags import Tag

TAG = Tag(ApiKey.DELETE_RECORDS, 2, "client")
FETCH_TAG = Tag(ApiKey.FETCH, 17, "f", role="peer")
REQUEST_TIMED_OUT = ErrorCode.request_timed_out


class Deletions:
    """A leader of three replicas that gets DeleteRecords up to offset 2."""

    def __init__(self) -> None:
        self.leader = Leader(Cluster())
        self.check = DeletionsReplicated(self.leader.cluster.context)
        self.now_us = 100
        self.happens(None)

    def happens(self, event: Any, *effects: Any) -> None:
        self.now_us += 10
        self.check.acted(self.now_us, self.leader.node, event, effects)

    def begins(self, replica: int, offset: int, error: int = 0) -> None:
        """A replica's fetch names the offset at which its log begins."""
        topic = FetchTopic("t", TOPIC_ID, [FetchPartition(0, 3, 1, log_start_offset=offset)])
        data = FetchTopicResponse("t", TOPIC_ID, [PartitionData(0, error, 3)])
        request = Request(replica, 1, 1, 17, "f", FetchRequest(replica, topics=[topic], replica_epoch=7), FETCH_TAG)
        self.happens(request, Reply(replica, 1, 1, 17, FetchResponse(0, 0, [data]), FETCH_TAG))

    def requests(self) -> None:
        self.leader.led.log.log_start_offset = 2
        entry = DeleteRecordsPartition(partition_index=i32(0), offset=i64(2))
        topic = DeleteRecordsTopic(name=TopicName("t"), partitions=(entry,))
        body = DeleteRecordsRequest(topics=(topic,), timeout=milliseconds(1000))
        self.happens(Request(9, 1, ApiKey.DELETE_RECORDS, 2, "client", body, TAG))

    def responds(self, error: ErrorCode) -> list[str]:
        result = DeleteRecordsPartitionResult(partition_index=i32(0), low_watermark=i64(0), error_code=error)
        topic = DeleteRecordsTopicResult(name=TopicName("t"), partitions=(result,))
        body = DeleteRecordsResponse(throttle_time=milliseconds(0), topics=(topic,))
        self.happens(object(), Reply(9, 1, ApiKey.DELETE_RECORDS, 2, body, TAG))
        return [violation.explanation for violation in self.check.violations]

    def fenced(self, replica: int) -> None:
        brokers = {**self.leader.brokers, replica: broker_image(replica, broker_epoch=7, fenced=True)}
        loader = self.leader.node.broker.quorum_node.loader
        loader.image = replace(self.leader.cluster.image(), brokers=brokers)


@pytest.fixture
def deletions() -> Deletions:
    return Deletions()


def test_response_comes_when_all_live_replicas_begin_there(deletions: Deletions) -> None:
    deletions.requests()
    deletions.begins(1, 2)
    deletions.begins(2, 2)
    assert deletions.responds(ErrorCode.none) == []


def test_timeout_is_late_once_all_live_replicas_begin_there(deletions: Deletions) -> None:
    deletions.requests()
    deletions.begins(1, 2)
    deletions.begins(2, 2)
    (explanation,) = deletions.responds(REQUEST_TIMED_OUT)
    assert "timed out" in explanation


def test_replica_that_is_down_holds_up_no_response(deletions: Deletions) -> None:
    deletions.fenced(2)
    deletions.requests()
    deletions.begins(1, 2)
    (explanation,) = deletions.responds(REQUEST_TIMED_OUT)
    assert "all live replicas begin there" in explanation


@pytest.mark.parametrize("begins_at", [0, 1, None])
def test_timeout_is_right_while_a_live_replica_begins_earlier(deletions: Deletions, begins_at: int | None) -> None:
    deletions.requests()
    deletions.begins(1, 2)
    if begins_at is not None:
        deletions.begins(2, begins_at)
    assert deletions.responds(REQUEST_TIMED_OUT) == []


def test_refused_fetch_shows_nothing(deletions: Deletions) -> None:
    deletions.requests()
    deletions.begins(1, 2)
    deletions.begins(2, 2, error=ErrorCode.fenced_leader_epoch)
    assert deletions.responds(REQUEST_TIMED_OUT) == []


def test_response_is_early_while_a_live_replica_begins_earlier(deletions: Deletions) -> None:
    deletions.requests()
    deletions.begins(1, 2)
    deletions.begins(2, 1)
    (explanation,) = deletions.responds(ErrorCode.none)
    assert "replicas [2]" in explanation


def test_fetch_of_an_earlier_leader_epoch_shows_nothing(deletions: Deletions) -> None:
    deletions.begins(1, 2)
    deletions.begins(2, 2)
    deletions.leader.led.leader_epoch += 1
    deletions.requests()
    assert deletions.responds(REQUEST_TIMED_OUT) == []


def test_replica_that_is_fenced_meanwhile_makes_no_response_due(deletions: Deletions) -> None:
    deletions.requests()
    deletions.begins(1, 2)
    deletions.fenced(2)
    deletions.begins(1, 2)
    assert deletions.responds(REQUEST_TIMED_OUT) == []
