"""AddOffsetsToTxn: adds the partition of ``__consumer_offsets`` that stores a group to a transaction.

* It is added when that is replicated, as any other partition.
* Unlike Kafka: a group ID that no record can hold is INVALID_GROUP_ID.

Version notes:
* v2: a producer that is fenced gets PRODUCER_FENCED. Before, it gets INVALID_PRODUCER_EPOCH.
* Clients of transactions of version 2 do not send it: their TxnOffsetCommit adds the partition.

KIPs: 98, 360, 890.
"""

from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest
from kio.schema.add_offsets_to_txn.v4.response import AddOffsetsToTxnResponse

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, callback
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, error_for_version
from reference_broker.coordination.partitioner import partition_of
from reference_broker.coordination.record_fields import fits
from reference_broker.groups.records import partition_count
from reference_broker.metadata.identifiers import OFFSETS_TOPIC
from reference_broker.transactions.coordinator import AddRequest
from reference_broker.transactions.transaction_metadata import ProducerIdAndEpoch
from reference_broker.wire.errors import Error, ErrorCode

KNOWS_FENCED_FROM = 2


def handle(broker: Broker, call: Call, body: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse | None:
    if not fits(body.group_id):
        return _response(ErrorCode.invalid_group_id)
    index = partition_of(body.group_id, partition_count(broker.loader.image, broker.config))
    producer = ProducerIdAndEpoch(int(body.producer_id), int(body.producer_epoch))
    request = AddRequest(body.transactional_id, producer, ((OFFSETS_TOPIC, index),))

    def respond(error: Error) -> None:
        call.respond(_response(error_for_version(error, call.api_version, KNOWS_FENCED_FROM)))

    broker.transactions.add_partitions(request, callback(call, respond))
    return None


API = Api.of(AddOffsetsToTxnRequest, handle)


def _response(error: Error) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode(error))
