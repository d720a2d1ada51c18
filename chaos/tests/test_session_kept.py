"""A controller fences no broker that gets responses in time, and gives its ID to no other. A silent session excuses."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from chaos.checks.quorum_liveness import ACTIVATION_US, SessionKept
from chaos.tests.check_context import check_context, note_row
from reference_broker.core.events import Closed, Note, Reply, Request, TimerFired
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag

SESSION_MS, EVERY_US = 2000, 300_000
THIS, OTHER = UUID(int=1), UUID(int=2)
BROKER = 2


class Controller:
    """Node 0, which leads, and what the check says of it. A broker has sent it heartbeats for 6 s."""

    def __init__(self) -> None:
        self.check = SessionKept(check_context(alone=True))
        image = SimpleNamespace(brokers={BROKER: SimpleNamespace(incarnation_id=THIS.bytes, fenced=False)})
        config = SimpleNamespace(broker_session_timeout_ms=SESSION_MS)
        self.node: Any = SimpleNamespace(
            broker=SimpleNamespace(node_id=0, config=config, controller=SimpleNamespace(image=image))
        )
        self.at_us = 0
        for _ in range(20):
            self.beat()

    def request(self, api_key: int, response: dict[str, object], *, closed: bool = False, **fields: object) -> None:
        tag = Tag(api_key, 1, "node-2")
        body = SimpleNamespace(broker_id=BROKER, **fields)
        self.check.acted(self.at_us, self.node, Request(7, 1, api_key, 1, "node-2", body, tag), ())
        if closed:
            self.check.acted(self.at_us, self.node, Closed(7), ())
        reply = Reply(7, 1, api_key, 1, SimpleNamespace(**{"error_code": 0, **response}), tag)
        self.check.acted(self.at_us, self.node, TimerFired(1), [reply])

    def beat(self, response: dict[str, object] | None = None, *, leaves: bool = False) -> None:
        self.at_us += EVERY_US
        sent = {"is_fenced": False, **(response or {})}
        self.request(ApiKey.BROKER_HEARTBEAT, sent, want_fence=False, want_shut_down=leaves)

    def is_wrong_to_fence(self) -> bool:
        self.check.trace(note_row(self.at_us, 0, "broker_fenced", broker=BROKER))
        return bool(self.check.violations)

    def is_wrong_to_register(self, incarnation: UUID, error: int = 0) -> bool:
        self.request(ApiKey.BROKER_REGISTRATION, {"error_code": error}, incarnation_id=incarnation)
        return bool(self.check.violations)


def test_broker_with_timely_responses_keeps_session_and_id() -> None:
    assert Controller().is_wrong_to_fence()
    assert Controller().is_wrong_to_register(OTHER)
    assert not Controller().is_wrong_to_register(THIS), "it retries"
    assert not Controller().is_wrong_to_register(OTHER, error=ErrorCode.duplicate_broker_registration)


def test_another_start_of_a_broker_that_another_controller_has_fenced_may_register() -> None:
    controller = Controller()
    controller.node.broker.controller.image.brokers[BROKER].fenced = True
    assert not controller.is_wrong_to_register(OTHER)


def silent(controller: Controller) -> None:
    controller.at_us += SESSION_MS * 1000


def just_back(controller: Controller) -> None:
    silent(controller)
    controller.beat()


def refused(controller: Controller) -> None:
    """The broker's heartbeats are refused."""
    for _ in range(7):
        controller.beat({"error_code": 77})


def leaving(controller: Controller) -> None:
    controller.beat(leaves=True)


def fenced(controller: Controller) -> None:
    controller.beat({"is_fenced": True})


def restarted(controller: Controller) -> None:
    """The controller's process remembers no session."""
    controller.check.acted(controller.at_us, controller.node, None, ())


@pytest.mark.parametrize("excuse", [silent, just_back, refused, leaving, fenced, restarted])
def test_excused_controller_may_fence_a_broker_and_give_its_id_away(excuse: Any) -> None:
    for is_wrong in (Controller.is_wrong_to_fence, lambda one: one.is_wrong_to_register(OTHER)):
        controller = Controller()
        excuse(controller)
        assert not is_wrong(controller)


def test_response_to_a_connection_that_is_gone_does_not_count() -> None:
    controller = Controller()
    controller.request(ApiKey.BROKER_REGISTRATION, {}, closed=True, incarnation_id=OTHER)
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
    controller.check.acted(controller.at_us, controller.node, TimerFired(1), [Note("controller_activated", ())])
    if wish:
        wishes = {"want_fence": False, "want_shut_down": False, wish: True}
        controller.request(ApiKey.BROKER_HEARTBEAT, {"is_fenced": False}, **wishes)
    controller.at_us += waited_us
    assert controller.is_wrong_to_fence() is not right


def test_wish_of_an_earlier_term_excuses_no_fencing() -> None:
    controller = Controller()
    leaving(controller)
    controller.check.acted(controller.at_us, controller.node, TimerFired(1), [Note("controller_activated", ())])
    assert controller.is_wrong_to_fence()
