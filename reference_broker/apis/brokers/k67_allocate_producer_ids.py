"""AllocateProducerIds: gives a broker a block of producer IDs.

* A block has 1000 IDs that nobody had before. It is answered once it is committed.
* A request that is repeated gets another block. IDs may be lost, but are never given twice.

KIPs: 730.
"""

from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.allocate_producer_ids.v0.response import AllocateProducerIdsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import ProducerId
from kio.static.primitive import i32

from reference_broker.apis.api import Api
from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.proposing import NO_THROTTLE, Refusal
from reference_broker.apis.records.producer_ids import BLOCK_SIZE
from reference_broker.controller.operations import Records
from reference_broker.metadata.records import ProducerIdsRecord

NO_BLOCK = -1


def handle(broker: Broker, call: Call, body: AllocateProducerIdsRequest) -> None:
    """Answers later."""
    controller = broker.controller
    first, problem = NO_BLOCK, None

    def plan() -> Records:
        nonlocal first, problem
        known = controller.latest.brokers.get(int(body.broker_id))
        if known is None or known.broker_epoch != body.broker_epoch:
            problem = Refusal(ErrorCode.stale_broker_epoch, "Not the epoch of a registered broker.")
            return ()
        first = controller.latest.next_producer_id
        return (
            ProducerIdsRecord(
                broker_id=int(body.broker_id),
                broker_epoch=int(body.broker_epoch),
                next_producer_id=first + BLOCK_SIZE,
            ),
        )

    def answer(refused: Refusal | None) -> None:
        refusal = refused or problem
        call.respond(
            AllocateProducerIdsResponse(
                throttle_time=NO_THROTTLE,
                error_code=refusal.error if refusal else ErrorCode.none,
                producer_id_start=ProducerId(NO_BLOCK if refusal else first),
                producer_id_len=i32(0 if refusal else BLOCK_SIZE),
            )
        )

    controller.submit(plan, answer, name="allocate producer IDs")


API = Api.of(AllocateProducerIdsRequest, handle)
