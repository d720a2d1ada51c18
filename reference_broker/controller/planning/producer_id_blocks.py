"""Blocks of producer IDs for brokers (AllocateProducerIds, KIP-730)."""

from dataclasses import dataclass

from reference_broker.controller.operations import Records
from reference_broker.controller.planning.change import Change, Situation
from reference_broker.controller.planning.registration import stale_epoch
from reference_broker.controller.refusal import Refusal
from reference_broker.metadata.records import ProducerIdsRecord
from reference_broker.wire.errors import ErrorCode

BLOCK_SIZE = 1000
"""The number of IDs in one block (Kafka's ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE)."""

GREATEST_PRODUCER_ID = 2**63 - 1


@dataclass(slots=True)
class ProducerIdBlock(Change[int | Refusal]):
    """Gives the next block to one broker. The outcome is the block's first ID."""

    name = "allocate producer IDs"

    broker_id: int
    broker_epoch: int
    found: int | Refusal | None = None

    def plan(self, situation: Situation) -> Records:
        latest = situation.latest
        stale = stale_epoch(latest, self.broker_id, self.broker_epoch)
        if stale is not None:
            self.found = stale
            return ()
        if latest.next_producer_id > GREATEST_PRODUCER_ID - BLOCK_SIZE:
            self.found = Refusal(ErrorCode.unknown_server_error, "There is no block of producer IDs left.")
            return ()
        self.found = latest.next_producer_id
        return (
            ProducerIdsRecord(
                broker_id=self.broker_id,
                broker_epoch=self.broker_epoch,
                next_producer_id=self.found + BLOCK_SIZE,
            ),
        )

    def outcome(self, refused: Refusal | None) -> int | Refusal:
        if refused is not None:
            return refused
        assert self.found is not None, "a block of producer IDs is answered before it is planned"
        return self.found
