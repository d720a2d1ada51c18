"""Requests that write transaction markers, as tests send them."""

from kio.schema.types import ProducerId, TopicName
from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from kio.static.primitive import i8, i16, i32

from reference_broker.apis.tests.fetch_world import FakeCall
from reference_broker.apis.tests.replicated_world import ReplicatedWorld
from reference_broker.apis.transactions import k27_write_txn_markers
from reference_broker.records.record import Record, build
from reference_broker.replication.tests.timed_ports import START_MS
from reference_broker.wire.errors import ErrorCode

NONE, UNKNOWN_TOPIC_OR_PARTITION = ErrorCode.none, ErrorCode.unknown_topic_or_partition


def marker(
    *partitions: int, producer: int = 7, epoch: int = 0, coordinator: int = 0, version: int = 0, topic: str = "events"
) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=ProducerId(producer),
        producer_epoch=i16(epoch),
        transaction_result=True,
        topics=(WritableTxnMarkerTopic(name=TopicName(topic), partition_indexes=tuple(map(i32, partitions))),),
        coordinator_epoch=i32(coordinator),
        transaction_version=i8(version),
    )


def write_markers(world: ReplicatedWorld, *markers: WritableTxnMarker) -> FakeCall:
    call = FakeCall(9, "coordinator", 2)
    response = k27_write_txn_markers.handle(world.broker, call, WriteTxnMarkersRequest(markers=markers))
    if response is not None:
        call.respond(response)
    return call


def open_transaction(world: ReplicatedWorld, index: int = 0, producer: int = 7, epoch: int = 0) -> None:
    records = [Record(timestamp_ms=START_MS, key=None, value=b"v")] * 3
    batch = build(records, producer_id=producer, producer_epoch=epoch, base_sequence=0, is_transactional=True)
    world.led[index].log.append(world.now(), batch, 0)
