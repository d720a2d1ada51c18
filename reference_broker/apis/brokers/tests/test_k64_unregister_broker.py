"""UnregisterBroker."""

import pytest
from kio.schema.types import BrokerId
from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest

from reference_broker.apis.brokers import (
    k62_broker_registration,
    k64_unregister_broker,
)
from reference_broker.apis.tests.admin_world import AdminWorld
from reference_broker.apis.tests.controller_requests import registration_request
from reference_broker.wire.errors import ErrorCode


@pytest.mark.clause(
    "ClusterImageTest.testApplyDelta1",
    "ClusterImageTest.testApplyDelta2",
    "QuorumControllerTest.testUnregisterBroker",
    "ClusterControlManagerTest.testUnregister",
)
def test_unregister_broker_removes_it() -> None:
    world = AdminWorld()
    world.request(k62_broker_registration, registration_request())
    assert (
        world.request(k64_unregister_broker, UnregisterBrokerRequest(broker_id=BrokerId(7))).error_code
        == ErrorCode.none
    )
    assert list(world.controller.image.brokers) == [1]
    unknown = world.request(k64_unregister_broker, UnregisterBrokerRequest(broker_id=BrokerId(7)))
    assert unknown.error_code == ErrorCode.broker_id_not_registered
