"""Metadata epochs while their feature is finalized, and after it is switched off."""

from dataclasses import replace

import pytest
from kio.schema.metadata.v13.response import MetadataResponse
from kio.schema.types import BrokerId

from chaos.checks.metadata.metadata_epoch import FEATURE, SwitchRespected
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.kafka_messages import NO_THROTTLE
from chaos.checks.tests.stub_node import StubNode
from reference_broker.core.events import Effect, Event, Note, Reply, Send, TimerFired
from reference_broker.metadata.image import MetadataImage
from reference_broker.ports.node_ports import Channel
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.drafts import MetadataResponse1001, UpdateMetadataRequest1000
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag

TIMER = TimerFired(1)
UPDATE = Send(
    1,
    Channel(0),
    0,
    ApiKey.UPDATE_METADATA,
    1000,
    UpdateMetadataRequest1000(
        controller_id=0, controller_epoch=1, metadata_epoch=7, partition_states=(), live_brokers=()
    ),
    Tag(ApiKey.UPDATE_METADATA, 1000, "node-0", 0, -1),
    1000,
    "node-0",
)
"""A request of KIP-232's draft to another node."""


class NodeWithFeature:
    """A node that has finalized the feature of the metadata epoch at a level, and the check that follows it."""

    def __init__(self, level: int = 1, metadata_epoch: int = 7) -> None:
        self.check = SwitchRespected(check_context())
        self.node = StubNode()
        self.metadata_epoch = metadata_epoch
        self.at_us = 0
        self.read_level(level)

    def read_level(self, level: int) -> None:
        self.node.publish(MetadataImage(features={FEATURE: level}, metadata_epoch=self.metadata_epoch))

    def read_metadata_epoch(self, metadata_epoch: int) -> None:
        self.node.publish(replace(self.node.image, metadata_epoch=metadata_epoch))

    def act(self, *effects: Effect, event: Event | None = TIMER) -> None:
        """Let the node handle an event. None is its start."""
        self.at_us += 1
        self.check.acted(self.at_us, self.node.as_node(), event, effects)

    @property
    def explanations(self) -> list[str]:
        return [violation.explanation for violation in self.check.violations]


@pytest.mark.clause("M-14")
@pytest.mark.parametrize("level", [0, 1])
def test_drafts_are_sent_only_while_the_feature_is_finalized(level: int) -> None:
    node = NodeWithFeature(level, metadata_epoch=0)
    node.act(UPDATE, event=None)
    assert bool(node.explanations) is not level


@pytest.mark.clause("M-14")
def test_level_0_ends_updates() -> None:
    node = NodeWithFeature(level=1)
    node.act(UPDATE)
    node.read_level(0)
    node.act(UPDATE)
    assert node.explanations == [], "it was sent before the node read the level"
    node.act()
    assert node.explanations == []
    node.act(UPDATE)
    assert len(node.explanations) == 1


@pytest.mark.clause("M-14")
def test_level_0_ends_metadata_epochs() -> None:
    node = NodeWithFeature(level=1)
    node.act()
    node.read_level(0)
    node.act()
    node.read_metadata_epoch(8)
    node.act()
    assert node.explanations == [f"node 0 read metadata epoch 8 while {FEATURE} was at 0"]


@pytest.mark.clause("M-14")
@pytest.mark.parametrize("is_on_again", [True, False])
@pytest.mark.parametrize(("epoch", "right"), [(6, False), (7, False), (8, True)])
def test_no_update_from_before_level_0_is_applied(epoch: int, right: bool, is_on_again: bool) -> None:
    node = NodeWithFeature(level=1)
    applied = Note("update_metadata_applied", (("epoch", epoch), ("controller_epoch", 1), ("controller_id", 0)))
    node.act(applied)
    node.read_level(0)
    node.act(applied)
    assert node.explanations == [], "it was applied before the node read the level"

    if is_on_again:
        node.read_level(1)
    node.act()
    node.act(applied)
    assert ("(M-14)" not in " ".join(node.explanations)) is right


@pytest.mark.clause("M-4", "M-14")
@pytest.mark.parametrize(
    ("epochs", "right"), [((-1, 4, 4, 5), True), ((4, None, 4), True), ((4, -1), False), ((4, 3), False)]
)
def test_node_that_has_sent_clients_an_epoch_sends_no_smaller_one(epochs: tuple[int | None, ...], right: bool) -> None:
    node = NodeWithFeature(level=0, metadata_epoch=0)
    for epoch in epochs:
        node.act(metadata_reply(epoch))
    assert (node.explanations == []) is right


def test_node_that_starts_again_may_send_a_smaller_epoch() -> None:
    node = NodeWithFeature(level=0, metadata_epoch=0)
    for epoch in (4, 3):
        node.act(metadata_reply(epoch), event=None)
    assert node.explanations == []


def metadata_reply(epoch: int | None) -> Reply:
    """Return a response to a client. Without an epoch it is one of Kafka's versions."""
    body: object = MetadataResponse(
        throttle_time=NO_THROTTLE, brokers=(), controller_id=BrokerId(0), topics=(), error_code=ErrorCode.none
    )
    if epoch is not None:
        body = MetadataResponse1001(brokers=(), topics=(), metadata_epoch=epoch)
    return Reply(1, 7, ApiKey.METADATA, 1001, body, Tag(ApiKey.METADATA, 1001, "member-0", 0, -1))
