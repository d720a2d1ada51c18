"""UpdateMetadata of a controller that waits for no broker."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from chaos.checks.metadata.metadata_epoch import ACTIVATED, FEATURE, MAX_US, STILL_US, TAKEOVER_US, UpdatesSentAtOnce
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import (
    StubBroker,
    StubImages,
    StubLog,
    StubMetadataLog,
    StubNode,
    StubQuorum,
    StubQuorumNode,
    broker_image,
    image_of,
)
from reference_broker.core.events import Note, PeerDown, PeerReply, Send
from reference_broker.ports.node_ports import Channel
from reference_broker.wire.drafts import UpdateMetadataResponse1000
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag

pytestmark = pytest.mark.clause("M-3")
STEP_US = STILL_US // 2


@dataclass
class Controller:
    """A controller that does something every ``STEP_US``, so that it does not look like a stopped process."""

    check: UpdatesSentAtOnce = field(default_factory=lambda: UpdatesSentAtOnce(check_context()))
    at_us: int = 0

    def __post_init__(self) -> None:
        self.quorum = StubQuorum(is_leader=True, high_watermark=5)
        log = StubMetadataLog(StubLog(log_end_offset=5))
        image = image_of(brokers=map(broker_image, (1, 2)), features={FEATURE: 1})
        broker = StubBroker(quorum_node=StubQuorumNode(quorum=self.quorum, log=log), controller=StubImages(image))
        self.state = broker.quorum_node.controller
        self.node: Any = StubNode(broker)

    def set_fenced(self, broker_id: int, *, fenced: bool) -> None:
        brokers = {**self.node.image.brokers, broker_id: broker_image(broker_id, fenced=fenced)}
        self.node.publish(replace(self.node.image, brokers=brokers))

    def acts(self, event: Any = None, *effects: Any) -> bool:
        """Return whether the check finds a violation in it."""
        before = len(self.check.violations)
        self.check.acted(self.at_us, self.node, event, effects)
        return len(self.check.violations) > before

    def passes(self, us: int) -> None:
        for _ in range(us // STEP_US + 1):
            self.at_us += STEP_US
            self.acts()

    def content(self, term: int = 1) -> None:
        self.acts(None, Note("metadata_epoch", (("epoch", 1), ("controller_epoch", term), ("offset", 1))))

    def sends(self, broker: int, token: int) -> bool:
        body: Any = None
        tag = Tag(6, 1000, "node-0", 0, -1)
        return self.acts(None, Send(broker, Channel.METADATA, token, 6, 1000, body, tag, 1000, "node-0"))

    def respond(self, broker: int, token: int) -> None:
        self.acts(PeerReply(broker, Channel.METADATA, token, UpdateMetadataResponse1000(error_code=ErrorCode.none)))


def test_broker_does_not_wait_for_another_one() -> None:
    controller = Controller()
    controller.content()
    assert not controller.sends(1, 1)
    controller.passes(MAX_US)
    controller.respond(1, 1)
    assert controller.sends(2, 2)
    assert [violation.guarantee for violation in controller.check.violations] == ["updates-sent-at-once"]


def test_broker_that_has_not_responded_delays_only_itself() -> None:
    controller = Controller()
    controller.content()
    assert not controller.sends(1, 1)
    assert not controller.sends(2, 2)
    controller.passes(MAX_US)
    controller.content()
    controller.passes(MAX_US)
    controller.respond(1, 1)
    assert not controller.sends(1, 3)
    controller.acts(PeerDown(2, Channel.METADATA))
    controller.passes(MAX_US)
    assert not controller.sends(2, 4), "the pause after a failure"


@pytest.mark.parametrize("why", ["fenced", "transaction", "stopped", "another term"])
def test_controller_may_delay_an_update_for_each_of_these_reasons(why: str) -> None:
    controller = Controller()
    controller.content()
    controller.sends(1, 1)
    controller.passes(MAX_US)
    if why == "fenced":
        controller.set_fenced(2, fenced=True)
        controller.content()
        controller.set_fenced(2, fenced=False)
        controller.content()
    elif why == "transaction":
        controller.state.is_writing_transaction = True
        controller.passes(0)
        controller.state.is_writing_transaction = False
    elif why == "stopped":
        controller.at_us += STILL_US + 1
    else:
        controller.content(term=2)
    assert not controller.sends(2, 2)


@pytest.mark.parametrize("why", ["", "in time", "sends", "waits for a majority", "resigned", "switched off"])
def test_new_controller_sends_an_update_in_time(why: str) -> None:
    controller = Controller()
    controller.acts(None, Note(ACTIVATED, ()))
    if why == "sends":
        controller.content()
    elif why == "waits for a majority":
        controller.quorum.high_watermark = 4
    elif why == "resigned":
        controller.quorum.is_leader = False
    elif why == "switched off":
        controller.node.broker.loader.image.features.clear()
    controller.passes(TAKEOVER_US // 2 if why == "in time" else TAKEOVER_US + STEP_US)
    assert bool(controller.check.violations) is (why == "")
