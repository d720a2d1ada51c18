"""AddOffsetsToTxn."""

from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest
from kio.schema.types import GroupId, ProducerId
from kio.static.primitive import i16

from reference_broker.apis.transactions import (
    k25_add_offsets_to_txn,
)
from reference_broker.apis.transactions.tests.transaction_requests import (
    ID,
    describe_transactions,
    init_producer_id,
    transactional_world,
)
from reference_broker.metadata.identifiers import OFFSETS_TOPIC
from reference_broker.wire.errors import ErrorCode


def test_add_offsets_adds_offsets_partition_to_transaction() -> None:
    world = transactional_world()
    init_producer_id(world)
    request = AddOffsetsToTxnRequest(
        transactional_id=ID, producer_id=ProducerId(0), producer_epoch=i16(0), group_id=GroupId("g")
    )
    assert world.request(k25_add_offsets_to_txn, request).error_code is ErrorCode.none
    ((topic,),) = [each.topics for each in describe_transactions(world, ID)]
    assert (topic.topic, len(topic.partitions)) == (OFFSETS_TOPIC, 1)
