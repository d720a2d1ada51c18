"""A broker's life, against a controller that the test plays."""

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
from reference_broker.controller.broker_lifecycle import BrokerLifecycle
from reference_broker.controller.controller import Controller, ControllerChannel
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
        self.channel = ControllerChannel(node, self.config, cast("Controller", self.controller))
        self.lifecycle = BrokerLifecycle(
            node, self.config, Identity("cluster", 3, DIRECTORY), (Endpoint("h", 9092),), self.channel
        )

    def next_request(self) -> tuple[ApiKey, Any, Callable[[object], None], Callable[[], None]]:
        """The one request on its way: (API key, body), and what answers it."""
        (request,) = self.ports.sent
        peer, channel, api_key, _, body, _, replied, failed = request
        assert (peer, channel) == (self.controller.leader_id, Channel.CONTROLLER)
        self.ports.sent.clear()
        return api_key, body, replied, failed

    def registered(self, epoch: int = 50) -> Any:
        self.lifecycle.start()
        api_key, body, replied, _ = self.next_request()
        assert api_key == ApiKey.BROKER_REGISTRATION
        replied(registration_answer(epoch=epoch))
        return body

    def publish(self, **broker: Any) -> None:
        """A registration as it is now, the node's own unless others are given."""
        fields: dict[str, Any] = {"broker_id": 3, "broker_epoch": 50, "fenced": True, **broker}
        image = BrokerImage(incarnation_id=bytes(16), host="h", port=1, **fields)
        before = self.controller.image
        self.controller.image = MetadataImage(brokers={**before.brokers, image.broker_id: image})
        for listener in self.listeners:
            listener(MetadataDelta.between(before, self.controller.image), self.controller.image)
        self.ports.run()


def registration_answer(error: ErrorCode = ErrorCode.none, epoch: int = -1) -> BrokerRegistrationResponse:
    return BrokerRegistrationResponse(throttle_time=NO_THROTTLE, error_code=error, broker_epoch=i64(epoch))


def heartbeat_answer(
    error: ErrorCode = ErrorCode.none, fenced: bool = True, shut_down: bool = False
) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(
        throttle_time=NO_THROTTLE, error_code=error, is_fenced=fenced, should_shut_down=shut_down
    )


def test_it_registers_with_what_it_is_then_beats_at_its_interval() -> None:
    life = Life()
    body = life.registered()
    assert (body.broker_id, body.cluster_id, body.incarnation_id.bytes) == (3, "cluster", life.lifecycle.incarnation_id)
    assert [(one.host, one.port) for one in body.listeners] == [("h", 9092)]
    assert [(one.name, one.max_supported_version) for one in body.features] == [
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
        assert (api_key, body.broker_epoch, body.want_fence, body.want_shut_down) == (63, 50, True, False)
        replied(heartbeat_answer())
        life.ports.advance(1999)
        assert life.ports.sent == []
        life.ports.advance(1)


def test_it_wants_to_be_unfenced_as_soon_as_it_knows_its_own_registration() -> None:
    life = Life()
    life.registered()
    life.next_request()[2](heartbeat_answer())
    life.lifecycle.want_unfenced()
    _, body, replied, _ = life.next_request()
    assert not body.want_fence
    replied(heartbeat_answer())
    life.publish(broker_epoch=20)
    assert life.ports.sent == []
    assert not life.lifecycle.is_registered
    life.publish()
    assert life.lifecycle.is_registered
    assert not life.next_request()[1].want_fence
    assert not life.lifecycle.is_unfenced
    life.publish(fenced=False)
    assert life.lifecycle.is_unfenced


def test_one_request_is_on_its_way_at_a_time() -> None:
    life = Life()
    life.registered()
    life.lifecycle.want_unfenced()
    life.publish()
    assert life.next_request()[1].want_fence
    assert life.ports.sent == []


@pytest.mark.parametrize("how", ["not controller", "failed", "unknown"])
def test_without_an_active_controller_it_tries_again_soon_and_then_more_rarely(how: str) -> None:
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
                replied(registration_answer(ErrorCode.not_controller))
    if how != "unknown":
        assert 12 <= tries <= 24
    life.controller.leader_id = 1
    life.lifecycle.leader_changed(1, 9)
    life.ports.run()
    assert life.next_request()[0] == ApiKey.BROKER_REGISTRATION


@pytest.mark.parametrize("error", [ErrorCode.stale_broker_epoch, ErrorCode.broker_id_not_registered])
def test_a_registration_that_is_no_longer_the_latest_is_made_again(error: ErrorCode) -> None:
    life = Life()
    life.registered()
    life.next_request()[2](heartbeat_answer(error))
    life.ports.advance(60)
    api_key, body, replied, _ = life.next_request()
    assert (api_key, body.incarnation_id.bytes) == (62, life.lifecycle.incarnation_id)
    replied(registration_answer(epoch=70))
    assert life.next_request()[1].broker_epoch == 70


@pytest.mark.parametrize("learns", ["answer", "published", "never"])
def test_it_leaves_in_good_order_or_after_a_while(learns: str) -> None:
    life = Life()
    life.registered()
    life.next_request()[2](heartbeat_answer())
    life.publish(fenced=False)
    done = []
    life.lifecycle.shut_down(lambda: done.append(1))
    _, body, replied, failed = life.next_request()
    assert body.want_shut_down
    if learns == "answer":
        replied(heartbeat_answer())
        life.ports.advance(60)
        life.next_request()[2](heartbeat_answer(shut_down=True))
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


def test_it_beats_at_once_when_its_own_leave_or_anothers_has_begun() -> None:
    life = Life()
    life.registered()
    life.next_request()[2](heartbeat_answer())
    life.publish(fenced=False)
    assert life.ports.sent == []
    life.publish(broker_id=2, fenced=False)
    assert life.ports.sent == []
    life.publish(broker_id=2, fenced=False, in_controlled_shutdown=True)
    _, body, replied, _ = life.next_request()
    assert not body.want_shut_down
    replied(heartbeat_answer(fenced=False))
    life.publish(broker_id=2, fenced=True, in_controlled_shutdown=True)
    assert life.ports.sent == []
    life.lifecycle.shut_down(lambda: None)
    life.next_request()[2](heartbeat_answer(fenced=False))
    life.publish(fenced=False, in_controlled_shutdown=True)
    assert life.next_request()[1].want_shut_down


@pytest.mark.clause("ClusterControlManagerTest.testReRegistrationWithCleanShutdownDetection")
def test_it_reports_the_epoch_of_a_life_that_ended_well() -> None:
    life = Life()
    assert life.registered().previous_broker_epoch == -1
    life = Life()
    life.lifecycle.previous_broker_epoch = 44
    assert life.registered().previous_broker_epoch == 44


def test_heartbeats_share_no_channel_with_what_waits_for_changes_of_the_metadata() -> None:
    life = Life()
    for api_key, channel in (
        (ApiKey.BROKER_HEARTBEAT, Channel.CONTROLLER),
        (ApiKey.BROKER_REGISTRATION, Channel.CONTROLLER),
        (ApiKey.ALTER_PARTITION, Channel.FORWARD),
        (ApiKey.ALLOCATE_PRODUCER_IDS, Channel.FORWARD),
    ):
        life.channel.send_request(api_key, 0, None, lambda _: None, lambda: None)
        assert life.ports.sent.pop()[1] is channel


def test_a_broker_that_never_registered_has_nothing_to_leave() -> None:
    life = Life(leader_id=-1)
    life.lifecycle.start()
    done = []
    life.lifecycle.shut_down(lambda: done.append(1))
    life.ports.advance(5000)
    assert (done, life.ports.sent) == ([1], [])


def test_a_node_that_is_the_controller_requests_itself_in_an_event_of_its_own() -> None:
    life = Life(leader_id=3)
    keys: list[int] = []

    def serve_locally(key: int, _body: object, answered: Callable[[object], None]) -> None:
        keys.append(key)
        answered(registration_answer(epoch=9))

    life.controller.serve_locally = serve_locally
    life.lifecycle.start()
    assert keys == []
    life.ports.step()
    assert (keys, life.lifecycle.registered_epoch) == ([ApiKey.BROKER_REGISTRATION], 9)
