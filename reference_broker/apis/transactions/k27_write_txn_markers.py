"""WriteTxnMarkers: ends transactions in the partitions that this node leads.

* The coordinator of a transaction sends it. Kafka's admin tools do so to abort one that hangs.
* The response follows when all replicas in sync have the markers, or did not get them in time.
* A marker of an older coordinator is refused: TRANSACTION_COORDINATOR_FENCED.
* Unlike Kafka: a negative producer ID is INVALID_REQUEST, and epoch -1 is INVALID_PRODUCER_EPOCH. Kafka writes the
  marker of an ID below -1, and fails on -1: UNKNOWN_SERVER_ERROR.
* All results of one producer ID come together, as in Kafka. A later marker's result replaces that of an earlier one.
* The markers of many partitions are written in several events.

Version notes:
* v2: a marker has its transaction version. Before that the rules of versions 0 and 1 hold. Kafka 4.1 has v1 only.

KIPs: 98, 664, 890, 1228.
"""

from collections.abc import Iterator

from kio.schema.types import ProducerId, TopicName
from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WriteTxnMarkersRequest
from kio.schema.write_txn_markers.v2.response import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from kio.static.primitive import i32

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, callback, respond_in_slices, run_in_slices
from reference_broker.apis.registry import Api
from reference_broker.metadata.identifiers import TopicPartition
from reference_broker.ports.slicing import LOOKUP_US_PER_SLICE, Budget, Sliced
from reference_broker.transactions.markers import Marker, MarkersWritten
from reference_broker.wire.errors import Error, ErrorCode

UNITS_PER_NAME = 3
"""The cost of a partition in the response, in microseconds."""


def handle(broker: Broker, call: Call, body: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse | None:
    """Every partition of every marker gets its own error code. One that fails does not stop the others."""
    errors: dict[int, dict[TopicPartition, Error]] = {}
    missing = len(body.markers)
    if not missing:
        return WriteTxnMarkersResponse(markers=())

    def write() -> Sliced[None]:
        work = Budget(LOOKUP_US_PER_SLICE)
        for requested in body.markers:
            written = callback(call, when_written(requested))
            yield from broker.markers.write_in_slices(_marker(requested), _partitions(requested), written, work)
            if work.spend(UNITS_PER_NAME):
                yield

    def when_written(requested: WritableTxnMarker) -> MarkersWritten:
        def written(errors_of_marker: dict[TopicPartition, Error]) -> None:
            nonlocal missing
            if errors_of_marker:
                errors.setdefault(requested.producer_id, {}).update(errors_of_marker)
            missing -= 1
            if not missing:
                respond_in_slices(broker, call, _response(errors))

        return written

    run_in_slices(broker, call, write())
    return None


API = Api.of(WriteTxnMarkersRequest, handle)


def _marker(requested: WritableTxnMarker) -> Marker:
    return Marker(
        int(requested.producer_id),
        int(requested.producer_epoch),
        int(requested.coordinator_epoch),
        requested.transaction_result,
        int(requested.transaction_version),
    )


def _partitions(requested: WritableTxnMarker) -> Iterator[TopicPartition]:
    for topic in requested.topics:
        for index in topic.partition_indexes:
            yield topic.name, int(index)


def _response(errors: dict[int, dict[TopicPartition, Error]]) -> Sliced[WriteTxnMarkersResponse]:
    work = Budget(LOOKUP_US_PER_SLICE)
    markers = []
    for producer_id, errors_of_producer in errors.items():
        topics: dict[str, list[WritableTxnMarkerPartitionResult]] = {}
        for (topic, index), error in errors_of_producer.items():
            result = WritableTxnMarkerPartitionResult(partition_index=i32(index), error_code=ErrorCode(error))
            topics.setdefault(topic, []).append(result)
            if work.spend(UNITS_PER_NAME):
                yield
        topic_results = []
        for name, results in topics.items():
            topic_results.append(WritableTxnMarkerTopicResult(name=TopicName(name), partitions=tuple(results)))
            if work.spend(UNITS_PER_NAME):
                yield
        markers.append(WritableTxnMarkerResult(producer_id=ProducerId(producer_id), topics=tuple(topic_results)))
    return WriteTxnMarkersResponse(markers=tuple(markers))
