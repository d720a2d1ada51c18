"""Sessions of brokers at the controller: none is fenced that gets responses in time, and a silent session excuses."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.broker_heartbeat.v1.request import BrokerHeartbeatRequest
from kio.schema.broker_heartbeat.v1.response import BrokerHeartbeatResponse
from kio.schema.broker_registration.v4.request import BrokerRegistrationRequest
from kio.schema.broker_registration.v4.response import BrokerRegistrationResponse
from kio.schema.types import BrokerId
from kio.static.primitive import i64

from chaos.checks.quorum.liveness import ACTIVATION_US, SessionKept
from chaos.checks.tests.check_context import check_context, note_row
from chaos.checks.tests.kafka_messages import NO_THROTTLE
from chaos.checks.tests.stub_node import StubBroker, StubImages, StubNode, broker_image, image_of
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Closed, Effect, Event, Note, Reply, Request, TimerFired
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag

SESSION_MS, EVERY_US = 2000, 300_000
THIS, OTHER = UUID(int=1), UUID(int=2)
BROKER = 2


class Controller:
    """Node 0, which leads, and the check that follows it. A broker has sent it heartbeats for 6 s."""

    def __init__(self) -> None:
        self.check = SessionKept(check_context(alone=True))
        broker = StubBroker(
            config=replace(BrokerConfig(), broker_session_timeout_ms=SESSION_MS),
            controller=StubImages(image_of(brokers=[broker_image(BROKER, incarnation_id=THIS.bytes)])),
        )
        self.node = StubNode(broker)
        self.at_us = 0
        for _ in range(20):
            self.beat()

    def act(self, event: Event | None, *effects: Effect) -> None:
        self.check.acted(self.at_us, self.node.as_node(), event, effects)

    def request(self, api_key: int, body: object, response: object, *, closed: bool = False) -> None:
        """Handle a request of the broker and respond, in an event after its connection was closed if that is so."""
        tag = Tag(api_key, 1, "node-2")
        self.act(Request(7, 1, api_key, 1, "node-2", body, tag))
        if closed:
            self.act(Closed(7))
        self.act(TimerFired(1), Reply(7, 1, api_key, 1, response, tag))

    def beat(self, *, error: int = ErrorCode.none, is_fenced: bool = False, leaves: bool = False) -> None:
        self.at_us += EVERY_US
        self.heartbeat(error=error, is_fenced=is_fenced, want_shut_down=leaves)

    def heartbeat(
        self,
        *,
        error: int = ErrorCode.none,
        is_fenced: bool = False,
        want_fence: bool = False,
        want_shut_down: bool = False,
    ) -> None:
        """Handle a heartbeat of the broker and respond."""
        body = BrokerHeartbeatRequest(
            broker_id=BrokerId(BROKER),
            current_metadata_offset=i64(0),
            want_fence=want_fence,
            want_shut_down=want_shut_down,
        )
        response = BrokerHeartbeatResponse(
            throttle_time=NO_THROTTLE, error_code=ErrorCode(error), is_fenced=is_fenced, should_shut_down=False
        )
        self.request(ApiKey.BROKER_HEARTBEAT, body, response)

    def register(self, incarnation: UUID, *, error: int = ErrorCode.none, closed: bool = False) -> None:
        """Handle a registration with the broker's ID and respond."""
        body = BrokerRegistrationRequest(
            broker_id=BrokerId(BROKER), cluster_id="c", incarnation_id=incarnation, listeners=(), features=(), rack=None
        )
        response = BrokerRegistrationResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode(error))
        self.request(ApiKey.BROKER_REGISTRATION, body, response, closed=closed)

    def is_wrong_to_fence(self) -> bool:
        self.check.trace(note_row(self.at_us, 0, "broker_fenced", broker=BROKER))
        return bool(self.check.violations)

    def is_wrong_to_register(self, incarnation: UUID, error: int = 0) -> bool:
        self.register(incarnation, error=error)
        return bool(self.check.violations)


def test_broker_with_timely_responses_keeps_session_and_id() -> None:
    assert Controller().is_wrong_to_fence()
    assert Controller().is_wrong_to_register(OTHER)
    assert not Controller().is_wrong_to_register(THIS), "it retries"
    assert not Controller().is_wrong_to_register(OTHER, error=ErrorCode.duplicate_broker_registration)


def test_another_start_of_a_broker_that_another_controller_has_fenced_may_register() -> None:
    controller = Controller()
    fenced_broker = broker_image(BROKER, incarnation_id=THIS.bytes, fenced=True)
    controller.node.publish(image_of(brokers=[fenced_broker]))
    assert not controller.is_wrong_to_register(OTHER)


def silent(controller: Controller) -> None:
    controller.at_us += SESSION_MS * 1000


def just_back(controller: Controller) -> None:
    silent(controller)
    controller.beat()


def refused(controller: Controller) -> None:
    """The broker's heartbeats are refused."""
    for _ in range(7):
        controller.beat(error=ErrorCode.stale_broker_epoch)


def leaving(controller: Controller) -> None:
    controller.beat(leaves=True)


def fenced(controller: Controller) -> None:
    controller.beat(is_fenced=True)


def restarted(controller: Controller) -> None:
    """The controller's process remembers no session."""
    controller.act(None)


@pytest.mark.parametrize("excuse", [silent, just_back, refused, leaving, fenced, restarted])
def test_excused_controller_may_fence_a_broker_and_give_its_id_away(excuse: Any) -> None:
    for is_wrong in (Controller.is_wrong_to_fence, lambda one: one.is_wrong_to_register(OTHER)):
        controller = Controller()
        excuse(controller)
        assert not is_wrong(controller)


def test_response_to_a_connection_that_is_gone_does_not_count() -> None:
    controller = Controller()
    controller.register(OTHER, closed=True)
    assert not controller.check.violations


@pytest.mark.parametrize(
    ("waited_us", "wish", "right"),
    [
        (SESSION_MS * 1000, "", True),
        (SESSION_MS * 1000 - ACTIVATION_US - 1, "", False),
        (0, "", False),
        (0, "want_fence", True),
        (0, "want_shut_down", True),
    ],
)
def test_new_controller_gives_each_broker_a_whole_session(waited_us: int, wish: str, right: bool) -> None:
    """KAFKA-15441. It fences sooner only a broker that requested it in this term."""
    controller = Controller()
    restarted(controller)
    controller.at_us += 60_000_000
    controller.act(TimerFired(1), Note("controller_activated", ()))
    if wish:
        controller.heartbeat(want_fence=wish == "want_fence", want_shut_down=wish == "want_shut_down")
    controller.at_us += waited_us
    assert controller.is_wrong_to_fence() is not right


def test_wish_of_an_earlier_term_excuses_no_fencing() -> None:
    controller = Controller()
    leaving(controller)
    controller.act(TimerFired(1), Note("controller_activated", ()))
    assert controller.is_wrong_to_fence()
