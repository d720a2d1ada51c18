"""What excuses a breach by the quorum, and what does so by a hair no longer."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from kio.schema.metadata.v13.response import MetadataResponse
from kio.schema.types import BrokerId

from chaos.checks.fetch_session_cache import FEW_SESSIONS, MetricsExact
from chaos.checks.metadata_epoch import FEATURE, SwitchRespected
from chaos.checks.partition_logs import DamageKept
from chaos.sim.disk import SimDisk
from chaos.tests.check_context import check_context
from chaos.tests.kafka_messages import NO_THROTTLE
from chaos.tests.stub_node import StubBroker, StubImages, StubNode, StubSessions, image_of, topic_image
from chaos.tests.test_quorum_checks import BEGIN, SECOND_US, Quorum, batch, settled
from reference_broker.core.events import Effect, Event, Note, Reply, Send, TimerFired
from reference_broker.metadata.features import METADATA_VERSION_FEATURE
from reference_broker.metadata.image import MetadataImage
from reference_broker.ports.node_ports import Channel
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.drafts import MetadataResponse1001, UpdateMetadataRequest1000
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag

SETTLED_US, SESSION_US = 6 * SECOND_US, 12 * SECOND_US


@pytest.fixture
def quorum() -> Quorum:
    return settled()


@pytest.mark.thorough
@pytest.mark.parametrize("too_long_ago_us", [0, 1])
@pytest.mark.parametrize("touched", ["leader", "voters", "links"])
def test_leader_falls_only_soon_after_a_fault(quorum: Quorum, touched: str, too_long_ago_us: int) -> None:
    quorum.now_us += 20 * SECOND_US
    until_us = quorum.now_us + 1 - SETTLED_US - too_long_ago_us  # The new leader is seen in the next microsecond.
    for number in {"leader": (0,), "voters": (1, 2), "links": ()}[touched]:
        quorum.fault_times.node(number, until_us)
    for number in (1, 2) if touched == "links" else ():
        quorum.fault_times.link(number, 0, until_us)
    quorum.nodes[1].is_leader, quorum.nodes[1].epoch, quorum.nodes[1].leader_id = True, 2, 1
    quorum.observe(1)
    assert ("stable-leadership" in quorum.broken()) is bool(too_long_ago_us)


@pytest.mark.thorough
@pytest.mark.parametrize("too_long_ago_us", [0, 1])
@pytest.mark.parametrize("touched", ["broker", "controller", "link"])
def test_broker_is_fenced_only_soon_after_a_fault(quorum: Quorum, touched: str, too_long_ago_us: int) -> None:
    quorum.now_us += 60 * SECOND_US
    until_us = quorum.now_us - SESSION_US - too_long_ago_us
    if touched == "link":
        quorum.fault_times.link(3, 0, until_us)
    else:
        quorum.fault_times.node(3 if touched == "broker" else 0, until_us)
    quorum.note(0, "broker_fenced", broker=3)
    assert quorum.broken() == (["no-false-fencing"] if too_long_ago_us else [])


@pytest.mark.parametrize(("waited_us", "right"), [(SESSION_US, True), (SESSION_US + 1, False)])
def test_new_controller_has_no_heartbeats_yet(quorum: Quorum, waited_us: int, right: bool) -> None:
    led_us = quorum.now_us + 2  # The second look of ``elect`` sees node 1.
    quorum.elect(1, 2)
    quorum.now_us = led_us + waited_us
    quorum.note(1, "broker_fenced", broker=3)
    assert ("no-false-fencing" not in quorum.broken()) is right


@pytest.mark.parametrize("replaced", [True, False])
def test_only_another_directory_forgets_an_epoch(quorum: Quorum, replaced: bool) -> None:
    node = quorum.nodes[1]
    if replaced:
        quorum.fault_times.directory(1)
    node.epoch, node.leader_id, node.incarnation = 0, -1, 1
    quorum.observe(1)
    assert ("monotonic-epoch" in quorum.broken()) is not replaced


@pytest.mark.parametrize("held", [True, False])
def test_batches_after_a_part_known_only_as_a_snapshot_are_still_compared(quorum: Quorum, held: bool) -> None:
    quorum.append(batch(3, 1), to=(0, 1, 2, 3))
    quorum.commit(4)
    del quorum.view.committed[1]
    node = quorum.nodes[2]
    if not held:
        node.held = node.held[:3]
        quorum.observe(2, thorough=True)
    quorum.fault_times.node(0, quorum.now_us)
    node.is_leader, node.epoch, node.leader_id = True, 2, 2
    quorum.observe(2)
    assert ("leader-completeness" in quorum.broken()) is not held


@pytest.mark.parametrize("before", [True, False])
def test_leader_that_learns_late_of_its_election_may_lack_what_a_later_one_committed(
    quorum: Quorum, before: bool
) -> None:
    """The leader must have what was committed before the later leader began."""
    quorum.fault_times.node(0, quorum.now_us)
    if before:
        quorum.append(batch(3, 1), to=(0, 1, 3))
        quorum.commit(4, 0, 1, 3)
    quorum.nodes[0].is_leader = False
    quorum.nodes[1].is_leader, quorum.nodes[1].epoch, quorum.nodes[1].leader_id = True, 3, 1
    quorum.observe(1)
    if not before:
        quorum.append(batch(3, 3), to=(1, 3))
        quorum.commit(4, 1, 3)
    quorum.nodes[2].is_leader, quorum.nodes[2].epoch, quorum.nodes[2].leader_id = True, 2, 2
    quorum.observe(2)
    assert ("leader-completeness" in quorum.broken()) is before


@pytest.mark.thorough
@pytest.mark.clause("T-2", "T-7")
@pytest.mark.parametrize(("level", "right"), [(0, True), (1, False), (12, False), (13, True)])
def test_markers_are_allowed_from_metadata_version_13_on(quorum: Quorum, level: int, right: bool) -> None:
    quorum.append(batch(3, 1, BEGIN))
    for node in quorum.nodes:
        node.image = MetadataImage(features={METADATA_VERSION_FEATURE: level} if level else {})
    quorum.observe(0)
    quorum.note(0, "metadata_committed", kind="begin", offset=3)
    assert quorum.broken() == ([] if right else ["markers-gated"])


@dataclass
class StubSession:
    """A fetch session with one partition."""

    partitions: tuple[None, ...] = (None,)
    has_unfinished_fetch: bool = False


@dataclass
class StubMetric:
    value: int


@dataclass
class StubMetrics:
    """The metrics of the cache of fetch sessions."""

    sessions: int
    cached_partitions: int

    def gauge(self, _type: str, _domain: str, name: str) -> StubMetric:
        return StubMetric(self.cached_partitions if "Partitions" in name else self.sessions)

    def counter(self, *_: str) -> StubMetric:
        """Return that of evictions, of which there was none."""
        return StubMetric(0)


@pytest.mark.clause("F-21")
@pytest.mark.parametrize("count", [FEW_SESSIONS, FEW_SESSIONS + 1])
def test_partitions_of_many_sessions_are_counted_in_the_thorough_comparison(count: int) -> None:
    """The gauge of cached partitions is one too high."""
    sessions: dict[int, Any] = {each: StubSession() for each in range(count)}
    metrics = StubMetrics(sessions=count, cached_partitions=count + 1)
    broker = StubBroker(metrics=metrics, fetch_sessions=StubSessions(sessions))
    node = StubNode(broker).as_node()
    check = MetricsExact(check_context())
    check.inspect(0, 0, node, None, thorough=False)
    assert bool(check.violations) is (count <= FEW_SESSIONS)
    check.inspect(1, 0, node, None, thorough=True)
    assert check.violations


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
    def stories(self) -> list[str]:
        return [each.story for each in self.check.violations]


@pytest.mark.clause("M-14")
@pytest.mark.parametrize("level", [0, 1])
def test_drafts_are_sent_only_while_the_feature_is_finalized(level: int) -> None:
    node = NodeWithFeature(level, metadata_epoch=0)
    node.act(UPDATE, event=None)
    assert bool(node.stories) is not level


@pytest.mark.clause("M-14")
def test_level_0_ends_updates() -> None:
    node = NodeWithFeature(level=1)
    node.act(UPDATE)
    node.read_level(0)
    node.act(UPDATE)
    assert node.stories == [], "it was sent before the node read the level"
    node.act()
    assert node.stories == []
    node.act(UPDATE)
    assert len(node.stories) == 1


@pytest.mark.clause("M-14")
def test_level_0_ends_metadata_epochs() -> None:
    node = NodeWithFeature(level=1)
    node.act()
    node.read_level(0)
    node.act()
    node.read_metadata_epoch(8)
    node.act()
    assert node.stories == [f"node 0 read metadata epoch 8 while {FEATURE} was at 0"]


@pytest.mark.clause("M-14")
@pytest.mark.parametrize("is_on_again", [True, False])
@pytest.mark.parametrize(("epoch", "right"), [(6, False), (7, False), (8, True)])
def test_no_update_from_before_level_0_is_applied(epoch: int, right: bool, is_on_again: bool) -> None:
    node = NodeWithFeature(level=1)
    applied = Note("update_metadata_applied", (("epoch", epoch), ("controller_epoch", 1), ("controller_id", 0)))
    node.act(applied)
    node.read_level(0)
    node.act(applied)
    assert node.stories == [], "it was applied before the node read the level"

    if is_on_again:
        node.read_level(1)
    node.act()
    node.act(applied)
    assert ("(M-14)" not in " ".join(node.stories)) is right


@pytest.mark.clause("M-4", "M-14")
@pytest.mark.parametrize(
    ("epochs", "right"), [((-1, 4, 4, 5), True), ((4, None, 4), True), ((4, -1), False), ((4, 3), False)]
)
def test_node_that_has_sent_clients_an_epoch_sends_no_smaller_one(epochs: tuple[int | None, ...], right: bool) -> None:
    node = NodeWithFeature(level=0, metadata_epoch=0)
    for epoch in epochs:
        node.act(metadata_reply(epoch))
    assert (node.stories == []) is right


def test_node_that_starts_again_may_send_a_smaller_epoch() -> None:
    node = NodeWithFeature(level=0, metadata_epoch=0)
    for epoch in (4, 3):
        node.act(metadata_reply(epoch), event=None)
    assert node.stories == []


def metadata_reply(epoch: int | None) -> Reply:
    """Return a response to a client. Without an epoch it is one of Kafka's versions."""
    body: object = MetadataResponse(
        throttle_time=NO_THROTTLE, brokers=(), controller_id=BrokerId(0), topics=(), error_code=ErrorCode.none
    )
    if epoch is not None:
        body = MetadataResponse1001(brokers=(), topics=(), metadata_epoch=epoch)
    return Reply(1, 7, ApiKey.METADATA, 1001, body, Tag(ApiKey.METADATA, 1001, "member-0", 0, -1))


@pytest.mark.parametrize(
    ("path", "kept", "right"), [("t-0/a", False, False), ("t-0/a", True, True), ("u-0/a", False, True)]
)
def test_damage_is_kept_but_that_of_deleted_topics(path: str, kept: bool, right: bool) -> None:
    from random import Random

    disk = SimDisk(Random(1))
    disk.damaged.append((path, b"damaged"))
    if kept:
        disk.append("t-0/another", [b"damaged"])
    node = StubNode(StubBroker(disk=disk, controller=StubImages(image_of(topic_image("t"))))).as_node()
    check = DamageKept(check_context())
    check.inspect(0, 0, node, None, thorough=True)
    assert (check.violations == []) is right
