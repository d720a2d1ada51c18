"""AllocateProducerIds: gives a broker a block of producer IDs.

* A block has 1000 IDs that nobody had before. The response follows once it is committed.
* A repeated request gets another block. IDs may be lost, but are never given twice.

KIPs: 730.
"""

from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.allocate_producer_ids.v0.response import AllocateProducerIdsResponse
from kio.schema.types import ProducerId
from kio.static.primitive import i32

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, callback
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, ApiError, error_fields
from reference_broker.controller.planning.brokers import BLOCK_SIZE, ProducerIdBlock

NO_BLOCK = -1


def handle(broker: Broker, call: Call, body: AllocateProducerIdsRequest) -> None:
    """Respond once the block is committed and published."""

    def respond(outcome: int | ApiError) -> None:
        start, count = (NO_BLOCK, 0) if isinstance(outcome, ApiError) else (outcome, BLOCK_SIZE)
        call.respond(
            AllocateProducerIdsResponse(
                throttle_time=NO_THROTTLE,
                error_code=error_fields(outcome)["error_code"],
                producer_id_start=ProducerId(start),
                producer_id_len=i32(count),
            )
        )

    broker.controller.append_write_event(ProducerIdBlock(body.broker_id, body.broker_epoch), callback(call, respond))


API = Api.of(AllocateProducerIdsRequest, handle)
