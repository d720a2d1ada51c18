"""AssignReplicasToDirs: a broker reports in which log directories its replicas are.

* A replica in a directory that its broker does not have is offline. It leaves the ISR and leads nothing.
* The response follows once the change is committed and published here.
* Below metadata.version 17: UNSUPPORTED_VERSION.

KIPs: 858.
"""

from kio.schema.assign_replicas_to_dirs.v0.request import AssignReplicasToDirsRequest
from kio.schema.assign_replicas_to_dirs.v0.response import (
    AssignReplicasToDirsResponse,
    DirectoryData,
    PartitionData,
    TopicData,
)

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, ApiError, error_fields
from reference_broker.controller.planning.partition_requests import DirectoryChange
from reference_broker.metadata.identifiers import NO_DIRECTORY

NO_TOPIC_ID = bytes(16)


def handle(broker: Broker, call: Call, body: AssignReplicasToDirsRequest) -> None:
    """Respond later, with one entry for each entry of the request, in its order."""
    assignments = [
        (
            NO_DIRECTORY if directory.id_ is None else directory.id_.bytes,
            NO_TOPIC_ID if topic.topic_id is None else topic.topic_id.bytes,
            tuple(partition.partition_index for partition in topic.partitions),
        )
        for directory in body.directories
        for topic in directory.topics
    ]
    change = DirectoryChange(body.broker_id, body.broker_epoch, assignments)
    broker.controller.append_write_event(change, lambda outcome: call.respond(_build_response(body, outcome)))


API = Api.of(AssignReplicasToDirsRequest, handle)


def _build_response(body: AssignReplicasToDirsRequest, outcome: object) -> AssignReplicasToDirsResponse:
    directories = () if isinstance(outcome, ApiError) else body.directories
    assert isinstance(outcome, list | ApiError), "a change of directories has an error code for each partition"
    codes = iter(() if isinstance(outcome, ApiError) else outcome)
    return AssignReplicasToDirsResponse(
        throttle_time=NO_THROTTLE,
        error_code=error_fields(outcome)["error_code"],
        directories=tuple(
            DirectoryData(
                id_=directory.id_,
                topics=tuple(
                    TopicData(
                        topic_id=topic.topic_id,
                        partitions=tuple(
                            PartitionData(partition_index=partition.partition_index, error_code=code)
                            for partition, code in zip(topic.partitions, next(codes), strict=True)
                        ),
                    )
                    for topic in directory.topics
                ),
            )
            for directory in directories
        ),
    )
