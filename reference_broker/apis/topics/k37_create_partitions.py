"""CreatePartitions: adds partitions to topics, all good ones of a request at once or none.

* The active controller responds once the records are committed and published there. Others forward the request.
* The new partitions of all good entries appear at once.
* Unlike Kafka: the timeout is not used, because nothing waits for other brokers. Internal topics keep
  their number of partitions (INVALID_PARTITIONS), because groups are found by it.

KIPs: 195, 599.
"""

from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
from kio.schema.create_partitions.v3.response import CreatePartitionsResponse, CreatePartitionsTopicResult
from kio.schema.types import TopicName

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.forwarding import forward_or_append
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, error_fields
from reference_broker.controller.planning.partition_creation import NewPartitions, PartitionCreation, PartitionOutcomes
from reference_broker.wire.apis import ApiKey


def handle(broker: Broker, call: Call, body: CreatePartitionsRequest) -> None:
    """Respond later, with one result for each name in the order of the request."""

    def response_of(outcomes: PartitionOutcomes) -> CreatePartitionsResponse:
        results = tuple(
            CreatePartitionsTopicResult(name=TopicName(name), **error_fields(outcome))
            for name, outcome in outcomes.items()
        )
        return CreatePartitionsResponse(throttle_time=NO_THROTTLE, results=results)

    operation = PartitionCreation([_wanted(topic) for topic in body.topics], body.validate_only)
    forward_or_append(broker, call, ApiKey.CREATE_PARTITIONS, body, operation, response_of)


API = Api.of(CreatePartitionsRequest, handle)


def _wanted(topic: CreatePartitionsTopic) -> NewPartitions:
    assignments = topic.assignments
    return NewPartitions(
        name=topic.name,
        count=topic.count,
        assignments=None if assignments is None else tuple(tuple(assignment.broker_ids) for assignment in assignments),
    )
