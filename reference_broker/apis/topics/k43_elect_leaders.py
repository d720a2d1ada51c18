"""ElectLeaders: preferred leaders lead again, or partitions without a leader get an unclean one.

* The active controller responds once the elections are committed and published there. Others forward the request.
* Null for the topics means all partitions. Those that need no election are not named in the response then.
* Unlike Kafka: the timeout is not used, because nothing waits for other brokers.

KIPs: 183, 460.
"""

from collections.abc import Sequence

from kio.schema.elect_leaders.v2.request import ElectLeadersRequest
from kio.schema.elect_leaders.v2.response import ElectLeadersResponse, PartitionResult, ReplicaElectionResult
from kio.schema.types import TopicName
from kio.static.primitive import i32

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.forwarding import forward_or_append
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, ApiError, error_fields
from reference_broker.controller.planning.partition_changes import Election
from reference_broker.controller.planning.partition_requests import (
    ElectionOutcomes,
    PartitionOutcome,
    RequestedElections,
    RequestedPartitions,
)
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

ELECTIONS = {0: Election.PREFERRED, 1: Election.UNCLEAN}
"""The election for each type in the request."""


def handle(broker: Broker, call: Call, body: ElectLeadersRequest) -> ElectLeadersResponse | None:
    """Respond later, with one result for each partition in the order of the request."""

    def response_of(outcomes: ElectionOutcomes | ApiError) -> ElectLeadersResponse:
        by_topic = _all_refused(body, outcomes) if isinstance(outcomes, ApiError) else outcomes
        return ElectLeadersResponse(
            throttle_time=NO_THROTTLE,
            error_code=error_fields(outcomes)["error_code"],
            replica_election_results=tuple(_topic_result(topic, partitions) for topic, partitions in by_topic),
        )

    election = ELECTIONS.get(body.election_type)
    if election is None:
        return response_of(ApiError(ErrorCode.invalid_request, f"Unknown election type {body.election_type}"))
    forward_or_append(
        broker, call, ApiKey.ELECT_LEADERS, body, RequestedElections(election, _wanted(body)), response_of
    )
    return None


API = Api.of(ElectLeadersRequest, handle)


def _wanted(body: ElectLeadersRequest) -> RequestedPartitions | None:
    if body.topic_partitions is None:
        return None
    return [(entry.topic, entry.partitions) for entry in body.topic_partitions]


def _all_refused(body: ElectLeadersRequest, refusal: ApiError) -> ElectionOutcomes:
    """The results when the whole request is refused. Version 0 has no error for the whole request."""
    return [(entry.topic, [(index, refusal) for index in entry.partitions]) for entry in body.topic_partitions or ()]


def _topic_result(topic: str, partitions: Sequence[PartitionOutcome]) -> ReplicaElectionResult:
    return ReplicaElectionResult(
        topic=TopicName(topic),
        partition_result=tuple(
            PartitionResult(partition_id=i32(index), **error_fields(refusal)) for index, refusal in partitions
        ),
    )
