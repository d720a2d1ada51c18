"""AllocateProducerIds: a block of producer IDs for a broker (KIP-730)."""

from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.allocate_producer_ids.v0.response import AllocateProducerIdsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import ProducerId
from kio.static.primitive import i32

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.proposing import NO_THROTTLE, Refusal
from reference_broker.apis.records.producer_ids import BLOCK_SIZE
from reference_broker.controller.operations import Records
from reference_broker.metadata.records import ProducerIdsRecord
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
