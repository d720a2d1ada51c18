"""ElectLeaders: preferred leaders lead again, or partitions without a leader get an unclean one.

* The active controller answers once the elections are committed and published there. Others pass the request on.
* Null for the topics means all partitions. Those that need no election are not named in the answer then.
* Unlike Kafka: the timeout is not used, because nothing waits for other brokers.

KIPs: 183, 460.
"""

from collections.abc import Sequence

from kio.schema.elect_leaders.v2.request import ElectLeadersRequest
from kio.schema.elect_leaders.v2.response import ElectLeadersResponse, PartitionResult, ReplicaElectionResult
from kio.schema.types import TopicName
from kio.static.primitive import i32

from reference_broker.apis.api import Api
from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.passing_on import passed_on
from reference_broker.apis.proposing import NO_THROTTLE, NOT_CONTROLLER, Refusal
from reference_broker.controller.planning.leader_election import Election
from reference_broker.controller.planning.requested_elections import (
    ElectionOutcomes,
    PartitionOutcome,
    WantedPartitions,
)
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

ELECTIONS = {0: Election.PREFERRED, 1: Election.UNCLEAN}
"""By the request's type of election."""


def handle(broker: Broker, call: Call, body: ElectLeadersRequest) -> None:
    """Answers later. One result for each partition of the request, in its order."""
    election = ELECTIONS.get(int(body.election_type))

    def answer(outcomes: ElectionOutcomes | Refusal) -> None:
        refused = outcomes if isinstance(outcomes, Refusal) else None
        told = _all_refused(body, outcomes) if isinstance(outcomes, Refusal) else outcomes
        call.respond(
            ElectLeadersResponse(
                throttle_time=NO_THROTTLE,
                error_code=refused.error if refused else ErrorCode.none,
                replica_election_results=tuple(_topic_result(topic, partitions) for topic, partitions in told),
            )
        )

    if election is None:
        answer(Refusal(ErrorCode.invalid_request, f"Unknown election type {int(body.election_type)}"))
    elif not passed_on(broker, call, ApiKey.ELECT_LEADERS, body, lambda: answer(NOT_CONTROLLER)):
        broker.controller.elect_leaders(election, _wanted(body), answer)


API = Api.of(ElectLeadersRequest, handle)


def _wanted(body: ElectLeadersRequest) -> WantedPartitions | None:
    if body.topic_partitions is None:
        return None
    return [(str(entry.topic), [int(index) for index in entry.partitions]) for entry in body.topic_partitions]


def _all_refused(body: ElectLeadersRequest, refusal: Refusal) -> ElectionOutcomes:
    """Version 0 has no error of its own for the whole request."""
    return [
        (str(entry.topic), [(int(index), refusal) for index in entry.partitions])
        for entry in body.topic_partitions or ()
    ]


def _topic_result(topic: str, partitions: Sequence[PartitionOutcome]) -> ReplicaElectionResult:
    return ReplicaElectionResult(
        topic=TopicName(topic), partition_result=tuple(_result(index, refusal) for index, refusal in partitions)
    )


def _result(index: int, refusal: Refusal | None) -> PartitionResult:
    return PartitionResult(
        partition_id=i32(index),
        error_code=refusal.error if refusal else ErrorCode.none,
        error_message=refusal.message if refusal else None,
    )
