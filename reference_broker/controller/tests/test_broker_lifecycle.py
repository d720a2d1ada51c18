"""A broker's lifecycle, with a controller that the test plays."""

from collections.abc import Callable
from datetime import timedelta
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.broker_heartbeat.v2.response import BrokerHeartbeatResponse
from kio.schema.broker_registration.v4.response import BrokerRegistrationResponse
from kio.static.primitive import i32Timedelta, i64

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.configuration.listeners import Endpoint
from reference_broker.controller.broker_lifecycle import BrokerLifecycleManager
from reference_broker.controller.controller import NodeToControllerChannelManager, QuorumController
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.image import EMPTY_IMAGE, BrokerImage, MetadataImage
from reference_broker.metadata.tests.metadata_world import ManualPorts
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.node_ports import Channel, NodeContext
from reference_broker.quorum.node_files import Identity
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

DIRECTORY = "AAAAAAAAAAAAAAAAAAAAAQ"
NO_THROTTLE = i32Timedelta.parse(timedelta(0))


class Life:
    """Broker 3; the leader, at first unknown, is ``leader_id``. ``next_request``: requests without a response."""

    def __init__(self, leader_id: int = 2) -> None:
        self.ports = ManualPorts()
        self.listeners: list[Callable[[MetadataDelta, MetadataImage], None]] = []
        self.controller: Any = SimpleNamespace(
            leader_id=leader_id,
            image=EMPTY_IMAGE,
            subscribe=self.listeners.append,
        )
        node = NodeContext(3, MemoryDisk(), self.ports, Random(1))
        self.config = BrokerConfig()
        self.channel = NodeToControllerChannelManager(node, self.config, cast("QuorumController", self.controller))
        self.lifecycle = BrokerLifecycleManager(
            node, self.config, Identity("cluster", 3, DIRECTORY), (Endpoint("h", 9092),), self.channel
        )

    def next_request(self) -> tuple[ApiKey, Any, Callable[[object], None], Callable[[], None]]:
        """Return the only request in flight: API key, body, and the callbacks of response and failure."""
        (request,) = self.ports.sent
        peer, channel, api_key, _, body, _, replied, failed = request
        assert (peer, channel) == (self.controller.leader_id, Channel.CONTROLLER)
        self.ports.sent.clear()
        return api_key, body, replied, failed

    def registered(self, epoch: int = 50) -> Any:
        self.lifecycle.start()
        api_key, body, replied, _ = self.next_request()
        assert api_key == ApiKey.BROKER_REGISTRATION
        replied(registration_response(epoch=epoch))
        return body

    def publish(self, **broker: Any) -> None:
        """Publish a registration as it is now, the node's own unless others are given."""
        fields: dict[str, Any] = {"broker_id": 3, "broker_epoch": 50, "fenced": True, **broker}
        image = BrokerImage(incarnation_id=bytes(16), host="h", port=1, **fields)
        before = self.controller.image
        self.controller.image = MetadataImage(brokers={**before.brokers, image.broker_id: image})
        for listener in self.listeners:
            listener(MetadataDelta.between(before, self.controller.image), self.controller.image)
        self.ports.run()


def registration_response(error: ErrorCode = ErrorCode.none, epoch: int = -1) -> BrokerRegistrationResponse:
    return BrokerRegistrationResponse(throttle_time=NO_THROTTLE, error_code=error, broker_epoch=i64(epoch))


def heartbeat_response(
    error: ErrorCode = ErrorCode.none, fenced: bool = True, shut_down: bool = False
) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(
        throttle_time=NO_THROTTLE, error_code=error, is_fenced=fenced, should_shut_down=shut_down
    )


def test_broker_registers_then_sends_heartbeats_at_interval() -> None:
    life = Life()
    body = life.registered()
    assert (body.broker_id, body.cluster_id, body.incarnation_id.bytes) == (3, "cluster", life.lifecycle.incarnation_id)
    assert [(listener.host, listener.port) for listener in body.listeners] == [("h", 9092)]
    assert [(feature.name, feature.max_supported_version) for feature in body.features] == [
        ("metadata.version", 27),
        ("eligible.leader.replicas.version", 1),
        ("group.version", 1),
        ("kraft.version", 1),
        ("transaction.version", 2),
        ("crucible.metadata.epoch", 1),
    ]
    assert life.lifecycle.registered_epoch == 50
    for _ in range(3):
        api_key, body, replied, _ = life.next_request()
        assert api_key == 63
        assert body.broker_epoch == 50
        assert body.want_fence is True
        assert body.want_shut_down is False
        replied(heartbeat_response())
        life.ports.advance(1999)
        assert life.ports.sent == []
        life.ports.advance(1)


def test_broker_requests_unfencing_once_it_has_its_registration() -> None:
    life = Life()
    life.registered()
    life.next_request()[2](heartbeat_response())
    life.lifecycle.want_unfenced()
    _, body, replied, _ = life.next_request()
    assert not body.want_fence
    replied(heartbeat_response())
    life.publish(broker_epoch=20)
    assert life.ports.sent == []
    assert not life.lifecycle.is_registered
    life.publish()
    assert life.lifecycle.is_registered
    assert not life.next_request()[1].want_fence
    assert not life.lifecycle.is_unfenced
    life.publish(fenced=False)
    assert life.lifecycle.is_unfenced


def test_one_request_is_in_flight_at_a_time() -> None:
    life = Life()
    life.registered()
    life.lifecycle.want_unfenced()
    life.publish()
    assert life.next_request()[1].want_fence
    assert life.ports.sent == []


@pytest.mark.parametrize("how", ["not controller", "failed", "unknown"])
def test_registration_without_controller_is_retried_with_backoff(how: str) -> None:
    life = Life(leader_id=-1 if how == "unknown" else 2)
    life.lifecycle.start()
    tries = 0
    for _ in range(100):
        life.ports.advance(100)
        if life.ports.sent:
            tries += 1
            _, _, replied, failed = life.next_request()
            if how == "failed":
                failed()
            else:
                replied(registration_response(ErrorCode.not_controller))
    if how != "unknown":
        assert 12 <= tries <= 24
    life.controller.leader_id = 1
    life.lifecycle.leader_changed(1, 9)
    life.ports.run()
    assert life.next_request()[0] == ApiKey.BROKER_REGISTRATION


@pytest.mark.parametrize("error", [ErrorCode.stale_broker_epoch, ErrorCode.broker_id_not_registered])
def test_stale_registration_is_renewed(error: ErrorCode) -> None:
    life = Life()
    life.registered()
    life.next_request()[2](heartbeat_response(error))
    life.ports.advance(60)
    api_key, body, replied, _ = life.next_request()
    assert (api_key, body.incarnation_id.bytes) == (62, life.lifecycle.incarnation_id)
    replied(registration_response(epoch=70))
    assert life.next_request()[1].broker_epoch == 70


@pytest.mark.parametrize("learns", ["response", "published", "never"])
def test_controlled_shutdown_completes_or_times_out(learns: str) -> None:
    life = Life()
    life.registered()
    life.next_request()[2](heartbeat_response())
    life.publish(fenced=False)
    done = []
    life.lifecycle.shut_down(lambda: done.append(1))
    _, body, replied, failed = life.next_request()
    assert body.want_shut_down
    if learns == "response":
        replied(heartbeat_response())
        life.ports.advance(60)
        life.next_request()[2](heartbeat_response(shut_down=True))
    elif learns == "published":
        life.publish(fenced=True, in_controlled_shutdown=True)
    else:
        failed()
        assert not done
        life.ports.advance(2001)
    assert done == [1]
    life.ports.sent.clear()
    life.ports.advance(10_000)
    assert (done, life.ports.sent) == ([1], [])


def test_heartbeat_is_sent_at_once_when_shutdown_starts() -> None:
    life = Life()
    life.registered()
    life.next_request()[2](heartbeat_response())
    life.publish(fenced=False)
    assert life.ports.sent == []
    life.publish(broker_id=2, fenced=False)
    assert life.ports.sent == []
    life.publish(broker_id=2, fenced=False, in_controlled_shutdown=True)
    _, body, replied, _ = life.next_request()
    assert not body.want_shut_down
    replied(heartbeat_response(fenced=False))
    life.publish(broker_id=2, fenced=True, in_controlled_shutdown=True)
    assert life.ports.sent == []
    life.lifecycle.shut_down(lambda: None)
    life.next_request()[2](heartbeat_response(fenced=False))
    life.publish(fenced=False, in_controlled_shutdown=True)
    assert life.next_request()[1].want_shut_down


@pytest.mark.clause("ClusterControlManagerTest.testReRegistrationWithCleanShutdownDetection")
def test_registration_has_previous_epoch_after_clean_stop() -> None:
    life = Life()
    assert life.registered().previous_broker_epoch == -1
    life = Life()
    life.lifecycle.previous_broker_epoch = 44
    assert life.registered().previous_broker_epoch == 44


def test_heartbeats_have_own_channel() -> None:
    life = Life()
    for api_key, channel in (
        (ApiKey.BROKER_HEARTBEAT, Channel.CONTROLLER),
        (ApiKey.BROKER_REGISTRATION, Channel.CONTROLLER),
        (ApiKey.ALTER_PARTITION, Channel.FORWARD),
        (ApiKey.ALLOCATE_PRODUCER_IDS, Channel.FORWARD),
    ):
        life.channel.send_request(api_key, 0, None, lambda _: None, lambda: None)
        assert life.ports.sent.pop()[1] is channel


def test_shutdown_of_unregistered_broker_completes_at_once() -> None:
    life = Life(leader_id=-1)
    life.lifecycle.start()
    done = []
    life.lifecycle.shut_down(lambda: done.append(1))
    life.ports.advance(5000)
    assert (done, life.ports.sent) == ([1], [])


def test_controller_node_registers_itself_in_own_event() -> None:
    life = Life(leader_id=3)
    keys: list[int] = []

    def serve_locally(key: int, _body: object, respond: Callable[[object], None]) -> None:
        keys.append(key)
        respond(registration_response(epoch=9))

    life.controller.serve_locally = serve_locally
    life.lifecycle.start()
    assert keys == []
    life.ports.step()
    assert (keys, life.lifecycle.registered_epoch) == ([ApiKey.BROKER_REGISTRATION], 9)
