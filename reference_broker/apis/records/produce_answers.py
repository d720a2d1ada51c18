"""What the answers to a produce tell: why a partition was refused, and who leads it instead."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

from reference_broker.apis.call import Call
from reference_broker.apis.parts import HasController, HasPartitions
from reference_broker.apis.records.leader_endpoints import endpoints_of
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID, LeaderIdAndEpoch
from reference_broker.wire.produce import (
    ProducePartitionResponse,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResponse,
)

LEADERS_FROM = 10
"""The version from which NOT_LEADER_OR_FOLLOWER names the leader."""

Change: TypeAlias = Callable[[ProduceTopicResponse, ProducePartitionResponse], ProducePartitionResponse]


class Leads(HasController, HasPartitions, Protocol):
    """What is asked for who leads a partition."""


def marked_response(
    broker: HasController, call: Call, response: ProduceResponse, errors: dict[Partition, Error]
) -> ProduceResponse:
    """Adds the errors of what was appended and may not be replicated. A client that tries again may find it written."""
    by_name = {(partition.topic, partition.index): error for partition, error in errors.items()}
    by_id = {(partition.topic_id, partition.index): error for partition, error in errors.items()}

    def marked(topic: ProduceTopicResponse, answer: ProducePartitionResponse) -> ProducePartitionResponse:
        error = by_id.get((topic.topic_id, answer.partition)) or by_name.get((topic.topic, answer.partition))
        if error is None or answer.error_code:
            return answer
        leader = None
        if error == ErrorCode.not_leader_or_follower:
            leader = leader_of(broker, topic.topic, topic.topic_id, answer.partition)
        return replace(answer, error_code=error, current_leader=leader)

    return response_of(broker, changed(response.responses, marked), call)


def changed(topics: Sequence[ProduceTopicResponse], change: Change) -> list[ProduceTopicResponse]:
    """The same topics with the answers that ``change`` makes of theirs."""
    return [replace(topic, partitions=[change(topic, answer) for answer in topic.partitions]) for topic in topics]


def leader_of(broker: HasController, topic: str, topic_id: bytes, index: int) -> LeaderIdAndEpoch | None:
    """Who leads the partition, as far as this node knows. ``topic_id`` is NO_TOPIC_ID if the request names topics."""
    image = broker.controller.image
    known = image.topics.get(topic) if topic_id == NO_TOPIC_ID else image.topic_by_id(topic_id)
    if known is None or not 0 <= index < len(known.partitions):
        return None
    return LeaderIdAndEpoch(known.partitions[index].leader, known.partitions[index].leader_epoch)


def response_of(broker: HasController, topics: list[ProduceTopicResponse], call: Call) -> ProduceResponse:
    """A version that can tell who leads instead also tells the address of that node."""
    leaders: dict[int, None] = {}
    for topic in topics:
        for answer in topic.partitions:
            if answer.current_leader is not None:
                leaders[answer.current_leader.leader_id] = None
    if not leaders:
        return ProduceResponse(topics)
    if call.api_version < LEADERS_FROM:
        return ProduceResponse(changed(topics, lambda _, answer: replace(answer, current_leader=None)))
    return ProduceResponse(topics, node_endpoints=endpoints_of(broker, leaders, call.listener))


def not_led(broker: Leads, topic: ProduceTopic, index: int) -> ProducePartitionResponse:
    """Why a partition is not led here: its log is damaged, another node leads it, or there is none."""
    image = broker.controller.image
    known = image.topics.get(topic.topic) if topic.topic_id == NO_TOPIC_ID else image.topic_by_id(topic.topic_id)
    if known is not None and (known.topic_id, index) in broker.partitions.offline:
        return refused_answer(index, ErrorCode.kafka_storage_error, "the partition's log is damaged, and kept aside")
    leader = leader_of(broker, topic.topic, topic.topic_id, index)
    if leader is not None:
        return ProducePartitionResponse(index, ErrorCode.not_leader_or_follower, current_leader=leader)
    if topic.topic_id != NO_TOPIC_ID and broker.controller.image.topic_by_id(topic.topic_id) is None:
        return refused_answer(index, ErrorCode.unknown_topic_id)
    return refused_answer(index, ErrorCode.unknown_topic_or_partition)


def refused_answer(index: int, error: Error, message: str | None = None) -> ProducePartitionResponse:
    return ProducePartitionResponse(index, error, error_message=message)
