"""InitProducerId: a new producer ID for an idempotent producer (KIP-98, KIP-360)."""

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.init_producer_id.v5.response import InitProducerIdResponse
from kio.schema.types import ProducerId
from kio.static.primitive import i16

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.proposing import NO_THROTTLE, Refusal, propose
from reference_broker.model.producer_ids import BLOCK_SIZE
from reference_broker.raft.metadata_records import ProducerIdsRecord
from reference_broker.wire.apis import ApiKey

CARD = Card(
    api_key=ApiKey.INIT_PRODUCER_ID,
    min_version=0,
    max_version=5,
    behaviour="Every call of an idempotent producer gives a new ID with epoch 0, as in Kafka (such producers raise "
    "their epoch themselves). IDs come from blocks of 1000 whose end is durable before the first is given.",
    simplifications="A transactional ID gets COORDINATOR_NOT_AVAILABLE until transactions are served.",
    kips=(98, 360),
)

NONE = -1


def handle(broker: Broker, call: Call, body: object) -> InitProducerIdResponse | None:
    """Answers later where a new block of IDs must become durable first."""
    assert isinstance(body, InitProducerIdRequest)
    error = _refused(body)
    if error is not None:
        return _response(error, NONE, NONE)
    producer_id = broker.producer_ids.take()
    if producer_id is not None:
        return _response(ErrorCode.none, producer_id, 0)
    broker.producer_ids.waiting.append(lambda given, error: call.respond(_given(given, error)))
    _request_block(broker)
    return None


def _refused(body: InitProducerIdRequest) -> ErrorCode | None:
    if body.transactional_id == "" or (body.producer_id == NONE) != (body.producer_epoch == NONE):
        return ErrorCode.invalid_request
    return None if body.transactional_id is None else ErrorCode.coordinator_not_available


def _request_block(broker: Broker) -> None:
    ids, controller = broker.producer_ids, broker.controller
    if ids.requested or not ids.waiting:
        return
    ids.requested = True
    first = controller.latest.next_producer_id
    record = ProducerIdsRecord(
        broker_id=broker.node_id, broker_epoch=controller.broker_epoch, next_producer_id=first + BLOCK_SIZE
    )

    def durable(refusal: Refusal | None) -> None:
        if refusal is None:
            ids.refill(first)
            _request_block(broker)
        else:
            ids.refuse(refusal.error)

    propose(broker, [record], durable)


def _given(producer_id: int, error: int) -> InitProducerIdResponse:
    return _response(ErrorCode(error), producer_id, NONE if error else 0)


def _response(error: ErrorCode, producer_id: int, producer_epoch: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=NO_THROTTLE,
        error_code=error,
        producer_id=ProducerId(producer_id),
        producer_epoch=i16(producer_epoch),
    )
