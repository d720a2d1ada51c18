"""BrokerRegistration, and the heartbeats that keep it."""

import pytest

from reference_broker.apis.brokers import (
    k62_broker_registration,
    k63_broker_heartbeat,
)
from reference_broker.apis.tests.admin_world import AdminWorld
from reference_broker.apis.tests.controller_requests import heartbeat_request, registration_request
from reference_broker.wire.errors import ErrorCode


@pytest.mark.clause("ClusterImageTest.testBrokerEpoch", "ClusterControlManagerTest.testReRegistrationAndBrokerEpoch")
def test_repeated_registration_returns_same_broker_epoch() -> None:
    world = AdminWorld()
    first, again = (world.request(k62_broker_registration, registration_request()) for _ in range(2))
    assert (first.error_code, again.error_code, first.broker_epoch) == (ErrorCode.none,) * 2 + (again.broker_epoch,)
    assert world.controller.image.brokers[7].broker_epoch == first.broker_epoch
    assert world.controller.image.brokers[7].fenced
    later = world.request(k62_broker_registration, registration_request(incarnation=6))
    assert later.broker_epoch > first.broker_epoch, "a broker without a heartbeat does not block a registration"
    wrong = world.request(k62_broker_registration, registration_request(cluster_id="other"))
    assert (wrong.error_code, wrong.broker_epoch) == (ErrorCode.inconsistent_cluster_id, -1)


def test_registration_without_broker_id_is_rejected() -> None:
    """A partition that it led would count as one without a leader."""
    world = AdminWorld()
    response = world.request(k62_broker_registration, registration_request(broker_id=-1))
    assert (response.error_code, response.broker_epoch) == (ErrorCode.invalid_request, -1)
    assert -1 not in world.controller.image.brokers


@pytest.mark.clause(
    "ClusterControlManagerTest.testDuplicateBrokerRegistrationWithActiveOldBroker",
    "ClusterControlManagerTest.testDuplicateBrokerRegistrationWithInactiveBroker",
    "BrokerHeartbeatManagerTest.testHasValidSession",
    "BrokerHeartbeatTrackerTest.testHasValidSessionIsTrueForKnownBroker",
)
@pytest.mark.parametrize("directory", [3, 4])
def test_registration_with_id_in_use_is_rejected_until_session_expires(directory: int) -> None:
    """Also on the same directory: it may be a late duplicate of an old request."""
    world = AdminWorld(broker_session_timeout_ms="3000")
    epoch = world.request(k62_broker_registration, registration_request()).broker_epoch
    for _ in range(2):
        assert world.request(k63_broker_heartbeat, heartbeat_request(7, epoch)).error_code is ErrorCode.none
    world.metadata.ports.advance(2000)
    other = world.request(k62_broker_registration, registration_request(incarnation=6, directory=directory))
    assert (other.error_code, other.broker_epoch) == (ErrorCode.duplicate_broker_registration, -1)
    assert world.request(k63_broker_heartbeat, heartbeat_request(7, epoch)).error_code is ErrorCode.none
    world.metadata.ports.advance(2000)
    other = world.request(k62_broker_registration, registration_request(incarnation=6, directory=directory))
    assert other.error_code is ErrorCode.duplicate_broker_registration
    world.metadata.ports.advance(1001)
    other = world.request(k62_broker_registration, registration_request(incarnation=6, directory=directory))
    assert other.error_code == ErrorCode.none
    assert other.broker_epoch > epoch


@pytest.mark.clause("BrokerHeartbeatManagerTest.testHasValidSession")
def test_registration_with_id_of_starting_broker_is_rejected() -> None:
    """A broker requests to stay fenced, while a duplicate of an old registration arrives."""
    world = AdminWorld()
    epoch = world.request(k62_broker_registration, registration_request()).broker_epoch
    assert world.request(k63_broker_heartbeat, heartbeat_request(7, epoch, fence=True)).is_fenced
    other = world.request(k62_broker_registration, registration_request(incarnation=6))
    assert other.error_code is ErrorCode.duplicate_broker_registration


@pytest.mark.clause("ClusterControlManagerTest.testDuplicateBrokerRegistrationWithInactiveBroker")
def test_broker_re_registers_at_once_after_controlled_shutdown() -> None:
    world = AdminWorld()
    epoch = world.request(k62_broker_registration, registration_request()).broker_epoch
    for _ in range(2):
        assert world.request(k63_broker_heartbeat, heartbeat_request(7, epoch)).error_code is ErrorCode.none
    while not world.request(k63_broker_heartbeat, heartbeat_request(7, epoch, shut_down=True)).should_shut_down:
        world.request(k63_broker_heartbeat, heartbeat_request(1, world.lifecycle.registered_epoch))
    again = world.request(k62_broker_registration, registration_request(incarnation=6))
    assert again.error_code == ErrorCode.none
    assert again.broker_epoch > epoch


def test_own_broker_registration_is_rejected_while_alive_and_accepted_after_restart() -> None:
    world = AdminWorld()
    own = world.controller.image.brokers[1]
    for _ in range(2):
        response = world.request(k62_broker_registration, registration_request(broker_id=1))
        assert response.error_code is ErrorCode.duplicate_broker_registration
        assert world.controller.image.brokers[1].incarnation_id == own.incarnation_id
        world.controller.heartbeats.forget(1)
    again = world.restart(2)
    assert again.lifecycle.registered_epoch > own.broker_epoch
