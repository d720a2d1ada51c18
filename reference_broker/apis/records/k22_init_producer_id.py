"""InitProducerId: gives an idempotent producer its ID.

* Every call gives a new ID with epoch 0, as in Kafka. Such producers raise their epoch themselves.
* IDs come from blocks of 1000. The active controller commits a block before it gives it away.
* Without a controller the answer is COORDINATOR_LOAD_IN_PROGRESS, and clients ask again.
* Unlike Kafka: a transactional ID gets COORDINATOR_NOT_AVAILABLE, because transactions are not served.

KIPs: 98, 360.
"""

from dataclasses import dataclass, field
from typing import Protocol

from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.allocate_producer_ids.v0.response import AllocateProducerIdsResponse
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.init_producer_id.v5.response import InitProducerIdResponse
from kio.schema.types import BrokerId, ProducerId
from kio.static.primitive import i16, i64

from reference_broker.apis.api import Api
from reference_broker.apis.call import Call, contained
from reference_broker.apis.parts import HasController, HasLifecycle, HasNodeId
from reference_broker.apis.proposing import NO_THROTTLE
from reference_broker.apis.records.producer_ids import ProducerIds
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import ErrorCode

NONE = -1
COME_AGAIN = ErrorCode.coordinator_load_in_progress
"""As Kafka answers while it has no block of IDs."""


class Needs(HasNodeId, HasController, HasLifecycle, Protocol):
    """What this API uses of its broker."""


@dataclass(slots=True)
class InitProducerId:
    """The state of one node. ``ids`` is the block that it gives away now, with those who wait for the next one."""

    broker: Needs
    ids: ProducerIds = field(default_factory=ProducerIds)

    def handle(self, call: Call, body: InitProducerIdRequest) -> InitProducerIdResponse | None:
        """Answers later if a new block of IDs must become durable first."""
        error = _refused(body)
        if error is not None:
            return _response(error, NONE, NONE)
        producer_id = self.ids.take()
        if producer_id is not None:
            return _response(ErrorCode.none, producer_id, 0)
        self.ids.waiting.append(contained(call, lambda given, error: call.respond(_given(given, error))))
        self._request_block()
        return None

    def _request_block(self) -> None:
        """Asks the active controller for the next block. Without an answer everyone who waits is told to come again."""
        ids, broker = self.ids, self.broker
        if ids.requested or not ids.waiting:
            return
        ids.requested = True
        body = AllocateProducerIdsRequest(
            broker_id=BrokerId(broker.node_id), broker_epoch=i64(broker.controller.broker_epoch)
        )
        version = VERSIONS[ApiKey.ALLOCATE_PRODUCER_IDS][1]
        broker.lifecycle.channel.ask(
            ApiKey.ALLOCATE_PRODUCER_IDS, version, body, self._replied, lambda: ids.refuse(COME_AGAIN)
        )

    def _replied(self, answer: object) -> None:
        assert isinstance(answer, AllocateProducerIdsResponse), f"producer IDs: answered by {type(answer).__name__}"
        if not answer.error_code:
            self.ids.refill(int(answer.producer_id_start))
            self._request_block()
        else:
            self.ids.refuse(_told(answer.error_code))


API = Api(InitProducerIdRequest, lambda broker: InitProducerId(broker).handle)


def _refused(body: InitProducerIdRequest) -> ErrorCode | None:
    if body.transactional_id == "" or (body.producer_id == NONE) != (body.producer_epoch == NONE):
        return ErrorCode.invalid_request
    return None if body.transactional_id is None else ErrorCode.coordinator_not_available


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
