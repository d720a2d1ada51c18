"""ElectLeaders: preferred leaders lead again, or partitions without a leader get an unclean one.

* The active controller answers once the elections are committed and published there. Others pass the request on.
* Null for the topics means all partitions. Those that need no election are not named in the answer then.
* Unlike Kafka: the timeout is not used, because nothing waits for other brokers.

KIPs: 183, 460.
"""

from collections.abc import Generator, Iterable

from kio.schema.elect_leaders.v2.request import ElectLeadersRequest
from kio.schema.elect_leaders.v2.response import ElectLeadersResponse, PartitionResult, ReplicaElectionResult
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i32

from reference_broker.apis.api import Api
from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.passing_on import passed_on
from reference_broker.apis.proposing import NO_THROTTLE, NOT_CONTROLLER, UNITS_PER_ENTRY, Refusal
from reference_broker.controller.leader_election import Election
from reference_broker.controller.operations import Planning
from reference_broker.controller.partition_changes import PartitionChanges
from reference_broker.metadata.image import NO_LEADER, TopicImage
from reference_broker.metadata.records import MetadataRecord, PartitionChangeRecord
from reference_broker.wire.apis import ApiKey

ELECTIONS = {0: Election.PREFERRED, 1: Election.UNCLEAN}
"""By the request's type of election."""

NOT_NEEDED = Refusal(ErrorCode.election_not_needed, "Leader election not needed for topic partition.")
NO_PREFERRED = Refusal(ErrorCode.preferred_leader_not_available, "The preferred leader was not available.")
NO_ELIGIBLE = Refusal(ErrorCode.eligible_leaders_not_available, "Eligible topic partition leaders are not available.")

_Result = tuple[int, Refusal | None]


def handle(broker: Broker, call: Call, body: ElectLeadersRequest) -> None:
    """Answers later. One result for each partition of the request, in its order."""
    election = ELECTIONS.get(int(body.election_type))
    results: list[tuple[str, list[_Result]]] = []

    def answer(refused: Refusal | None) -> None:
        told = results if refused is None else _all_refused(body, refused)
        call.respond(
            ElectLeadersResponse(
                throttle_time=NO_THROTTLE,
                error_code=refused.error if refused else ErrorCode.none,
                replica_election_results=tuple(_topic_result(topic, partitions) for topic, partitions in told),
            )
        )

    def planning() -> Planning:
        records: list[MetadataRecord] = []
        assert election is not None, "an unknown type is refused before"
        yield from _plan(broker, body, election, records, results)
        return records

    if election is None:
        answer(Refusal(ErrorCode.invalid_request, f"Unknown election type {int(body.election_type)}"))
    elif not passed_on(broker, call, ApiKey.ELECT_LEADERS, body, lambda: answer(NOT_CONTROLLER)):
        broker.controller.submit(planning(), answer, name="elect leaders", atomic=False)


API = Api.of(ElectLeadersRequest, handle)


def _plan(
    broker: Broker,
    body: ElectLeadersRequest,
    election: Election,
    records: list[MetadataRecord],
    results: list[tuple[str, list[_Result]]],
) -> Generator[None, None, None]:
    """Fills ``records`` and ``results``, in slices."""
    latest = broker.controller.latest
    changes = PartitionChanges.of(latest)
    wants_all = body.topic_partitions is None
    for name, indexes in _wanted(body, latest.topics.values()):
        found: list[_Result] = []
        results.append((name, found))
        for index in indexes:
            elected = _elect(changes, latest.topics.get(name), name, index, election)
            if isinstance(elected, PartitionChangeRecord):
                records.append(elected)
                found.append((index, None))
            elif not (wants_all and elected is NOT_NEEDED):
                found.append((index, elected))
            if broker.controller.spend(UNITS_PER_ENTRY if elected is not NOT_NEEDED else 1):
                yield


def _wanted(body: ElectLeadersRequest, topics: Iterable[TopicImage]) -> list[tuple[str, Iterable[int]]]:
    if body.topic_partitions is None:
        return [(topic.name, range(len(topic.partitions))) for topic in topics]
    return [(str(entry.topic), [int(index) for index in entry.partitions]) for entry in body.topic_partitions]


def _elect(
    changes: PartitionChanges, topic: TopicImage | None, name: str, index: int, election: Election
) -> PartitionChangeRecord | Refusal:
    if topic is None:
        return Refusal(ErrorCode.unknown_topic_or_partition, f"No such topic as {name}")
    if not 0 <= index < len(topic.partitions):
        return Refusal(ErrorCode.unknown_topic_or_partition, f"No such partition as {name}-{index}")
    partition = topic.partitions[index]
    if election is Election.PREFERRED and partition.leader == partition.replicas[0]:
        return NOT_NEEDED
    if election is Election.UNCLEAN and partition.leader != NO_LEADER:
        return NOT_NEEDED
    record = changes.change(topic.topic_id, index, partition, election=election)
    if record is None:
        return NO_PREFERRED if election is Election.PREFERRED else NO_ELIGIBLE
    return record


def _all_refused(body: ElectLeadersRequest, refusal: Refusal) -> list[tuple[str, list[_Result]]]:
    """Version 0 has no error of its own for the whole request."""
    return [
        (str(entry.topic), [(int(index), refusal) for index in entry.partitions])
        for entry in body.topic_partitions or ()
    ]


def _topic_result(topic: str, partitions: list[_Result]) -> ReplicaElectionResult:
    return ReplicaElectionResult(
        topic=TopicName(topic), partition_result=tuple(_result(index, refusal) for index, refusal in partitions)
    )


def _result(index: int, refusal: Refusal | None) -> PartitionResult:
    return PartitionResult(
        partition_id=i32(index),
        error_code=refusal.error if refusal else ErrorCode.none,
        error_message=refusal.message if refusal else None,
    )
