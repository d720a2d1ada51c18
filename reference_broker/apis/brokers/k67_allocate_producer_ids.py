"""AllocateProducerIds: a block of producer IDs for a broker (KIP-730)."""

from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.allocate_producer_ids.v0.response import AllocateProducerIdsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import ProducerId
from kio.static.primitive import i32

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.proposing import NO_THROTTLE, Refusal
from reference_broker.controller.planning.producer_id_blocks import BLOCK_SIZE
from reference_broker.wire.apis import ApiKey

CARD = Card(
    api_key=ApiKey.ALLOCATE_PRODUCER_IDS,
    min_version=0,
    max_version=0,
    behaviour="Blocks of 1000 that nobody had before, answered once committed. A request that is repeated gets another "
    "block: IDs may be lost, never given twice.",
    simplifications="-",
    kips=(730,),
)

NO_BLOCK = -1


def handle(broker: Broker, call: Call, body: object) -> None:
    """Answers later."""
    assert isinstance(body, AllocateProducerIdsRequest)

    def answer(outcome: int | Refusal) -> None:
        refused = outcome if isinstance(outcome, Refusal) else None
        call.respond(
            AllocateProducerIdsResponse(
                throttle_time=NO_THROTTLE,
                error_code=refused.error if refused else ErrorCode.none,
                producer_id_start=ProducerId(NO_BLOCK if isinstance(outcome, Refusal) else outcome),
                producer_id_len=i32(0 if refused else BLOCK_SIZE),
            )
        )

    broker.controller.allocate_producer_ids(int(body.broker_id), int(body.broker_epoch), answer)
