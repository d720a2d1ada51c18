"""InitProducerId: a new producer ID for an idempotent producer (KIP-98, KIP-360)."""

from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.allocate_producer_ids.v0.response import AllocateProducerIdsResponse
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.init_producer_id.v5.response import InitProducerIdResponse
from kio.schema.types import BrokerId, ProducerId
from kio.static.primitive import i16, i64

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.proposing import NO_THROTTLE
from reference_broker.wire.apis import VERSIONS, ApiKey

CARD = Card(
    api_key=ApiKey.INIT_PRODUCER_ID,
    min_version=0,
    max_version=5,
    behaviour="Every call of an idempotent producer gives a new ID with epoch 0, as in Kafka (such producers raise "
    "their epoch themselves). IDs come from blocks of 1000 that the active controller gives, committed "
    "before the first ID is told. Without a controller: COORDINATOR_LOAD_IN_PROGRESS, and clients ask again.",
    simplifications="A transactional ID gets COORDINATOR_NOT_AVAILABLE until transactions are served.",
    kips=(98, 360),
)

NONE = -1
COME_AGAIN = ErrorCode.coordinator_load_in_progress
"""As Kafka answers while it has no block of IDs."""


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
    """Asks the active controller for the next block. Without an answer everyone who waits is told to come again."""
    ids = broker.producer_ids
    if ids.requested or not ids.waiting:
        return
    ids.requested = True
    body = AllocateProducerIdsRequest(
        broker_id=BrokerId(broker.node_id), broker_epoch=i64(broker.controller.broker_epoch)
    )

    def replied(answer: object) -> None:
        assert isinstance(answer, AllocateProducerIdsResponse), f"producer IDs: answered by {type(answer).__name__}"
        if answer.error_code is ErrorCode.none:
            ids.refill(int(answer.producer_id_start))
            _request_block(broker)
        else:
            ids.refuse(_told(answer.error_code))

    version = VERSIONS[ApiKey.ALLOCATE_PRODUCER_IDS][1]
    broker.replica.lifecycle.channel.ask(
        ApiKey.ALLOCATE_PRODUCER_IDS, version, body, replied, lambda: ids.refuse(COME_AGAIN)
    )


def _told(error: ErrorCode) -> ErrorCode:
    """A client knows what to do about a full disk, not about controllers."""
    return error if error is ErrorCode.kafka_storage_error else COME_AGAIN


def _given(producer_id: int, error: int) -> InitProducerIdResponse:
    return _response(ErrorCode(error), producer_id, NONE if error else 0)


def _response(error: ErrorCode, producer_id: int, producer_epoch: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=NO_THROTTLE,
        error_code=error,
        producer_id=ProducerId(producer_id),
        producer_epoch=i16(producer_epoch),
    )
