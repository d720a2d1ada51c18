"""AllocateProducerIds."""

import pytest
from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.types import BrokerId
from kio.static.primitive import i64

from reference_broker.apis.brokers import (
    k67_allocate_producer_ids,
)
from reference_broker.apis.tests.admin_world import AdminWorld
from reference_broker.wire.errors import ErrorCode


@pytest.mark.clause(
    "ProducerIdControlManagerTest.testInitialResult", "ProducerIdControlManagerTest.testUnknownBrokerOrEpoch"
)
@pytest.mark.clause("ProducerIdsIntegrationTest.testUniqueProducerIds")
def test_producer_id_blocks_are_unique_and_only_for_registered_brokers() -> None:
    world = AdminWorld()
    body = AllocateProducerIdsRequest(broker_id=BrokerId(1), broker_epoch=i64(world.lifecycle.registered_epoch))
    responses = [world.request(k67_allocate_producer_ids, body) for _ in range(2)]
    assert [(response.producer_id_start, response.producer_id_len) for response in responses] == [
        (0, 1000),
        (1000, 1000),
    ]
    refused = world.request(
        k67_allocate_producer_ids, AllocateProducerIdsRequest(broker_id=BrokerId(1), broker_epoch=i64(1))
    )
    assert (refused.error_code, refused.producer_id_len) == (ErrorCode.stale_broker_epoch, 0)
