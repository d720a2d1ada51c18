"""InitProducerId: gives a producer its ID and epoch.

* Without a transactional ID every call gives a new producer ID with epoch 0, as in Kafka. Such producers raise their
  epoch themselves. Without a controller the response is COORDINATOR_LOAD_IN_PROGRESS, and clients retry.
* With a transactional ID the producer gets the next epoch, which fences all earlier producers of that ID. An open
  transaction is aborted first. The response is CONCURRENT_TRANSACTIONS then, and the producer retries.
* The response is sent when the new epoch is replicated.
* Unlike Kafka 4.1: where the epochs of a producer ID with an open transaction are used up, the abort takes the next ID
  already (from ``transaction.version`` 2 on), and the producer gets that with epoch 1. Kafka 4.1 takes it afterwards,
  with epoch 0 (kafka#21506).

Version notes:
* v3: a producer sends the ID and epoch that it has, so that it is fenced if another one came meanwhile.
* v4: such a producer gets PRODUCER_FENCED. Before, it gets INVALID_PRODUCER_EPOCH.

KIPs: 98, 360, 588.
"""

from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.init_producer_id.v5.response import InitProducerIdResponse
from kio.schema.types import ProducerId
from kio.static.primitive import i16

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, callback
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, error_for_version
from reference_broker.transactions.coordinator import NO_ID_AND_EPOCH, InitRequest
from reference_broker.transactions.transaction_metadata import ProducerIdAndEpoch
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.schema import MILLISECOND

NONE = -1
KNOWS_FENCED_FROM = 4


def handle(broker: Broker, call: Call, body: InitProducerIdRequest) -> InitProducerIdResponse | None:
    """Respond later if the node must get a block of IDs from the controller or replicate a new epoch first."""
    if (body.producer_id == NONE) != (body.producer_epoch == NONE):
        return _response(ErrorCode.invalid_request, NO_ID_AND_EPOCH)

    def respond_to_idempotent(producer_id: int | Error) -> None:
        if isinstance(producer_id, Error):
            call.respond(_response(producer_id, NO_ID_AND_EPOCH))
        else:
            call.respond(_response(ErrorCode.none, ProducerIdAndEpoch(producer_id, 0)))

    if body.transactional_id is None:
        broker.transactions.producer_ids.generate(callback(call, respond_to_idempotent))
        return None

    def respond(error: Error, producer: ProducerIdAndEpoch) -> None:
        call.respond(_response(error_for_version(error, call.api_version, KNOWS_FENCED_FROM), producer))

    expected = None
    if body.producer_id != NONE:
        expected = ProducerIdAndEpoch(int(body.producer_id), int(body.producer_epoch))
    timeout_ms = body.transaction_timeout // MILLISECOND
    broker.transactions.init_producer_id(
        InitRequest(body.transactional_id, timeout_ms, expected), callback(call, respond)
    )
    return None


API = Api.of(InitProducerIdRequest, handle)


def _response(error: Error, producer: ProducerIdAndEpoch) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode(error),
        producer_id=ProducerId(producer.producer_id),
        producer_epoch=i16(producer.producer_epoch),
    )
