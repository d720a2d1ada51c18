"""Requests have one response, in time: near misses of each bound, and what excuses a delay."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.checks.check import CheckContext, Settings
from chaos.checks.fault_times import FOR_EVER_US, FaultTimes
from chaos.checks.quorum.quorum_view import QuorumView, Seen
from chaos.checks.reads_and_writes.reads import ResponsesAfterHeal
from chaos.checks.replication.replica_view import ReplicaView
from chaos.checks.requests.delays import (
    IDLE_US,
    SCAN_US,
    SLICES_US,
    UNFENCED_US,
    ControllerCheck,
    LedInTime,
    ReadyInTime,
    ReadyUnfenced,
    RequestsCompleted,
    SilentFenced,
)
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import (
    StubBroker,
    StubImages,
    StubLog,
    StubNode,
    StubQuorumNode,
    image_of,
    node_partitions,
    topic_image,
)
from chaos.sim.world import STUCK_WITHOUT_FAULT_US, RunStuckError, SimWorld
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Close, Closed, Event, Reply, Request, TimerFired
from reference_broker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from reference_broker.replication.partitions import Partition
from reference_broker.wire.apis import FIRST_DRAFT_VERSION, ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag
from scenarios import loader

CONFIG = BrokerConfig.parse({"group.initial.rebalance.delay.ms": "0", "remote.fetch.max.wait.ms": "700"})
TIERED = BrokerConfig.parse({"remote.log.storage.system.enable": "true", "remote.fetch.max.wait.ms": "700"})
SECOND_US = 1_000_000
SETTLED_US = 6 * SECOND_US


def body(**fields: object) -> Any:
    """Return the body of a request with these fields only, which are all that a limit depends on."""
    return SimpleNamespace(**fields)


def timed(seconds: float) -> Any:
    return body(timeout=timedelta(seconds=seconds))


TOPIC_ID = b"the hot topic..."


class CheckedNode:
    """Node 0, and the check."""

    def __init__(self, config: BrokerConfig = CONFIG) -> None:
        self.check = RequestsCompleted(check_context(settled_us=SETTLED_US))
        self.fault_times = self.check.context.quorum.fault_times
        self.node = self.new_node(config)
        self.act(0, None)

    def new_node(self, config: BrokerConfig) -> Any:
        """Return a node that is the controller and leads partition 0 of each topic."""
        coordinated = ("__consumer_offsets", "__transaction_state")
        self.logs = {name: StubLog(high_watermark=3, log_end_offset=3) for name in ("hot", *coordinated)}
        ids = {"hot": TOPIC_ID, **{name: name[:16].encode() for name in coordinated}}
        topics = [topic_image(name, topic_id=topic_id) for name, topic_id in ids.items()]
        led = [Partition(name, topic_id, 0, 0, self.logs[name].as_log()) for name, topic_id in ids.items()]
        broker = StubBroker(config=config, controller=StubImages(image_of(*topics)), partitions=node_partitions(*led))
        broker.quorum.is_leader = True
        return StubNode(broker)

    def resign(self) -> None:
        self.node.broker.quorum.is_leader = False
        self.node.broker.partitions.by_name.clear()

    def act(self, at_us: int, event: Event | None, *effects: Reply | Close) -> None:
        self.check.acted(at_us, self.node, event, effects)

    def request(self, at_us: int, api_key: int, body: Any, version: int = 1, number: int = 7) -> Request:
        request = Request(3, number, api_key, version, "a-client", body, Tag(api_key, version, "a-client"))
        self.act(at_us, request)
        return request

    def reply(self, at_us: int, request: Request, **changes: Any) -> None:
        reply = Reply(3, request.correlation_id, request.api_key, request.api_version, body(), request.tag)
        self.act(at_us, TimerFired(1), reply._replace(**changes))

    @property
    def explanations(self) -> list[str]:
        return [violation.explanation for violation in self.check.violations]


FETCH = body(max_wait_ms=500)
HOT = body(topic="", topic_id=TOPIC_ID, partitions=[body(partition=0)])
PRODUCE = body(timeout_ms=1500, transactional_id=None, acks=-1, topics=[HOT])
IN_TRANSACTION = body(timeout_ms=1500, transactional_id="t", acks=-1, topics=[HOT])

LIMITS_US: tuple[tuple[int, Any, int], ...] = (
    (ApiKey.METADATA, body(), 0),
    (ApiKey.HEARTBEAT, body(), 0),
    (ApiKey.VOTE, body(), 0),
    (ApiKey.FETCH, FETCH, 500_000),
    (ApiKey.PRODUCE, PRODUCE, 1_500_000),
    (ApiKey.PRODUCE, IN_TRANSACTION, 61_500_000),
    (ApiKey.DELETE_RECORDS, timed(4), 4_000_000),
    (ApiKey.OFFSET_COMMIT, body(), 5_000_000),
    (ApiKey.END_TXN, body(), 30_000_000),
    (ApiKey.TXN_OFFSET_COMMIT, body(), 65_000_000),
    (ApiKey.LIST_OFFSETS, timed(4), 0),
    (ApiKey.CREATE_TOPICS, timed(3), 3_000_000 + SETTLED_US),
    (ApiKey.BROKER_HEARTBEAT, body(), SETTLED_US),
)


@pytest.mark.parametrize(("api_key", "sent", "limit_us"), LIMITS_US)
def test_response_comes_within_the_limit_of_its_request(api_key: int, sent: Any, limit_us: int) -> None:
    for late_us in (0, 1):
        world = CheckedNode()
        world.reply(limit_us + SLICES_US + late_us, world.request(0, api_key, sent))
        assert bool(world.explanations) is bool(late_us)
        assert world.check.evidence == 1


def test_request_without_a_response_is_found_once() -> None:
    world = CheckedNode()
    request = world.request(0, ApiKey.FETCH, FETCH)
    for scan in range(1, 9):
        world.act(scan * SCAN_US, TimerFired(1))
    world.reply(20 * SECOND_US, request)
    (explanation,) = world.explanations
    assert explanation == (
        "node 0 has not responded to Fetch v1 (correlation ID 7) of 'a-client' on connection 3, which came at 0 us "
        "after 1250 ms, although no fault affected it for 1250 ms and max_wait_ms allows 500 ms"
    )


def test_remote_tier_has_time_of_its_own() -> None:
    for config, is_late in ((CONFIG, True), (TIERED, False)):
        world = CheckedNode(config)
        world.reply(1_200_000 + SLICES_US, world.request(0, ApiKey.FETCH, FETCH))
        assert bool(world.explanations) is is_late


def test_rebalance_waits_for_the_slowest_member_of_its_group() -> None:
    limit_us = 9 * SECOND_US + 5 * SECOND_US
    for group, late_us in (("g", 0), ("g", 1), ("other", 0)):
        world = CheckedNode()
        for each, seconds in (("g", 9), ("other", 3)):
            member = body(group_id=each, rebalance_timeout=timedelta(seconds=seconds), session_timeout=timedelta(0))
            world.reply(0, world.request(0, ApiKey.JOIN_GROUP, member))
        world.reply(limit_us + SLICES_US + late_us, world.request(0, ApiKey.SYNC_GROUP, body(group_id=group)))
        assert bool(world.explanations) is (bool(late_us) or group == "other")


def test_fault_of_the_node_excuses_the_delay_until_it_ends() -> None:
    for late_us in (0, 1):
        world = CheckedNode()
        request = world.request(0, ApiKey.METADATA, body())
        world.fault_times.node(0, 3 * SECOND_US)
        world.reply(3 * SECOND_US + SLICES_US + late_us, request)
        assert bool(world.explanations) is bool(late_us)


def test_fault_of_another_node_excuses_only_what_waits_for_the_quorum() -> None:
    for api_key in (ApiKey.BROKER_HEARTBEAT, ApiKey.METADATA):
        world = CheckedNode()
        request = world.request(0, api_key, body())
        world.fault_times.link(1, 2, 3 * SECOND_US)
        world.reply(8 * SECOND_US, request)
        assert bool(world.explanations) is (api_key == ApiKey.METADATA)


def test_request_has_exactly_one_response() -> None:
    world = CheckedNode()
    request = world.request(0, ApiKey.METADATA, body())
    world.reply(1, request)
    assert not world.explanations
    world.reply(2, request)
    assert world.explanations == ["node 0 sent Metadata v1 (correlation ID 7) on connection 3 without a request"]


@pytest.mark.parametrize("changes", [{"api_key": ApiKey.PRODUCE}, {"api_version": 2}, {"correlation_id": 8}])
def test_response_fits_its_request(changes: dict[str, Any]) -> None:
    world = CheckedNode()
    world.reply(1, world.request(0, ApiKey.METADATA, body()), **changes)
    assert world.explanations


def test_version_of_api_versions_that_is_not_served_gets_version_0() -> None:
    world = CheckedNode()
    world.reply(1, world.request(0, ApiKey.API_VERSIONS, None, version=99), api_version=0)
    assert not world.explanations


def test_end_of_a_connection_or_of_the_process_ends_its_requests() -> None:
    for is_closed in (True, False):
        world = CheckedNode()
        world.request(0, ApiKey.METADATA, body())
        if is_closed:
            world.act(1, Closed(3))
        else:
            world.node = world.new_node(CONFIG)
            world.act(1, None)
        world.act(9 * SECOND_US, TimerFired(1))
        assert not world.explanations


def test_shutdown_ends_no_request() -> None:
    world = CheckedNode()
    request = world.request(0, ApiKey.METADATA, body())
    world.act(1, None)
    world.reply(2, request)
    assert not world.explanations


@pytest.mark.parametrize(
    ("api_key", "sent", "version", "ready", "right"),
    [
        (ApiKey.METADATA, body(), 1, True, False),
        (ApiKey.METADATA, body(), 1, False, True),
        (ApiKey.METADATA, None, 99, True, True),
        (ApiKey.FETCH, FETCH, FIRST_DRAFT_VERSION, True, True),
        (ApiKey.PRODUCE, PRODUCE, 1, True, False),
        (ApiKey.PRODUCE, body(acks=0), 1, True, True),
    ],
)
def test_node_closes_only_connections_whose_requests_it_does_not_serve(
    api_key: int, sent: Any, version: int, ready: bool, right: bool
) -> None:
    world = CheckedNode()
    world.node.ready = ready
    world.request(0, api_key, sent, version)
    world.act(1, TimerFired(1), Close(3, "no reason"))
    assert (not world.explanations) is right


def test_run_that_is_stuck_long_after_the_last_fault_is_red() -> None:
    for late_us in (0, 1):
        world = SimWorld(loader.find("1"), 1)
        world._suite.quorum.fault_times.node(0, 1_000_000 - STUCK_WITHOUT_FAULT_US - late_us)
        with pytest.raises(RunStuckError, match="boot: not done after 1 virtual seconds"):
            world._require_within(1_000_000, lambda: False)
        (check,) = [each for each in world.checks if isinstance(each, ResponsesAfterHeal)]
        assert bool(check.violations) is bool(late_us)


OFFSET_FETCHES = (body(groups=[body(group_id="g")], require_stable=True), body(group_id="g", require_stable=True))


@pytest.mark.parametrize("sent", OFFSET_FETCHES)
def test_offset_fetch_waits_only_for_what_is_not_replicated_when_it_comes(sent: Any) -> None:
    for end, waits_us, late_us in ((4, 5 * SECOND_US, 0), (4, 5 * SECOND_US, 1), (3, 0, 0), (3, 0, 1)):
        world = CheckedNode()
        log = world.logs["__consumer_offsets"]
        log.log_end_offset = end
        request = world.request(0, ApiKey.OFFSET_FETCH, sent)
        log.log_end_offset = 9  # What comes later holds nothing up.
        world.reply(waits_us + SLICES_US + late_us, request)
        assert bool(world.explanations) is bool(late_us)


@pytest.mark.parametrize("sent", OFFSET_FETCHES)
def test_no_offset_fetch_waits_at_a_node_that_coordinates_its_group_no_more(sent: Any) -> None:
    for resigned in (True, False):
        world = CheckedNode()
        world.logs["__consumer_offsets"].log_end_offset = 9
        world.request(0, ApiKey.OFFSET_FETCH, sent)
        if resigned:
            world.resign()
        for second in (1, 2, 3):
            world.act(second * SECOND_US, TimerFired(1))
        assert bool(world.explanations) is resigned


LONG = body(timeout_ms=60_000, transactional_id=None, acks=-1, topics=[HOT])
JOIN = body(group_id="g", rebalance_timeout=timedelta(seconds=60), session_timeout=timedelta(0))


@pytest.mark.parametrize(
    ("api_key", "sent", "needs_role"),
    [
        (ApiKey.PRODUCE, LONG, True),
        (ApiKey.PRODUCE, body(timeout_ms=60_000, transactional_id=None, acks=1, topics=[HOT]), False),
        (ApiKey.JOIN_GROUP, JOIN, True),
        (ApiKey.END_TXN, body(transactional_id="t"), True),
        (ApiKey.INIT_PRODUCER_ID, body(transactional_id=None), False),
        (ApiKey.ALTER_PARTITION, body(), True),
        (ApiKey.CREATE_TOPICS, timed(60), False),  # It may have been forwarded.
    ],
)
def test_no_request_waits_at_node_after_losing_its_role(api_key: int, sent: Any, needs_role: bool) -> None:
    for resigned, paused_us, right in ((True, 0, not needs_role), (False, 0, True), (True, 4 * SECOND_US, True)):
        world = CheckedNode()
        world.request(0, api_key, sent)
        if resigned:
            world.resign()
        world.fault_times.node(0, paused_us)
        for second in (1, 2, 3):
            world.act(second * SECOND_US, TimerFired(1))
        assert (not world.explanations) is right


def test_batch_of_a_transaction_may_wait_for_its_verification() -> None:
    world = CheckedNode()
    world.request(0, ApiKey.PRODUCE, body(timeout_ms=600_000, transactional_id="t", acks=-1, topics=[HOT]))
    world.resign()
    verified_s = 2 * CONFIG.request_timeout_ms // 1000
    for second in range(1, verified_s + 3):
        world.act(second * SECOND_US, TimerFired(1))
        assert (not world.explanations) is (second <= verified_s + 1)


def test_role_lost_between_two_observations_is_no_evidence() -> None:
    world = CheckedNode()
    world.request(0, ApiKey.PRODUCE, LONG)
    by_name = dict(world.node.broker.partitions.by_name)
    for second in range(1, 9):
        world.node.broker.partitions.by_name = dict(by_name) if second % 2 else {}
        world.act(second * SECOND_US, TimerFired(1))
    assert not world.explanations


def test_request_does_not_time_out_before_its_timeout() -> None:
    for early_us, error in ((1, 7), (0, 7), (1, 6)):
        world = CheckedNode()
        request = world.request(0, ApiKey.PRODUCE, PRODUCE)
        response = body(responses=[body(partitions=[body(error_code=0), body(error_code=error)])])
        world.reply(1_500_000 - early_us, request, body=response)
        assert bool(world.explanations) is (early_us == 1 and error == 7)


def test_produce_does_not_time_out_at_a_node_that_leads_no_more() -> None:
    for leads in (True, False):
        world = CheckedNode()
        request = world.request(0, ApiKey.PRODUCE, PRODUCE)
        if not leads:
            world.resign()
        world.reply(
            1_500_000, request, body=body(responses=[body(partitions=[body(error_code=ErrorCode.request_timed_out)])])
        )
        assert (not world.explanations) is leads


SESSION_US = 5 * SECOND_US
HOME = b"directory of one"


class Quorum:
    """Three voters that are brokers, too. Node 0 has led since 0 s, and no fault has affected any of them."""

    def __init__(self, kind: type[ControllerCheck]) -> None:
        self.view = QuorumView(3, 0, FaultTimes())
        replicas = ReplicaView(self.view.fault_times, expected=False)
        settings = Settings(session_us=SESSION_US, settled_us=SETTLED_US)
        self.check = kind(CheckContext(settings, self.view, replicas))
        self.brokers = {each: BrokerImage(each, 10 + each, bytes(16), "", 0, fenced=False) for each in range(3)}
        self.partition = PartitionImage((0, 1, 2), (0, 1), 0, 1, 1)
        self.nodes: list[Any] = []
        for number in range(3):
            self.nodes.append(StubNode(StubBroker(number, config=CONFIG)))
            self.view.nodes[number].replica = StubQuorumNode()
            self.check.acted(0, self.nodes[number], None, ())
        self.elect(0, 0)

    def elect(self, at_us: int, leader: int) -> None:
        member = self.view.nodes[leader]
        before, member.seen = member.seen, Seen(epoch=member.seen.epoch + 1, leads=True)
        self.check.changed(at_us, member, before, member.seen)

    def committed(self, end_offset: int, high_watermark: int) -> None:
        """Let the controller have a log that ends there, and publish what is committed of it."""
        member = self.view.nodes[0]
        member.seen = member.seen._replace(end_offset=end_offset, high_watermark=high_watermark)
        member.replica.loader.last_offset = high_watermark - 1

    def publish(self) -> None:
        topics = {"t": TopicImage("t", bytes(16), (self.partition,))}
        image = MetadataImage(brokers=self.brokers, topics=topics)
        for member in self.view.nodes:
            member.replica.loader.image = image

    def look(self, *times_us: int) -> bool:
        """Return whether there was no violation at these times."""
        self.publish()
        for at_us in times_us:
            self.check.look(at_us)
        return not self.check.violations


def beat(broker: int, broker_epoch: int, **fields: Any) -> Request:
    sent = body(**{"broker_id": broker, "broker_epoch": broker_epoch, **fields})
    return Request(3, 7, ApiKey.BROKER_HEARTBEAT, 1, f"node-{broker}", sent, Tag(ApiKey.BROKER_HEARTBEAT, 1, "node"))


SILENT_AT_US = SECOND_US + SESSION_US


@pytest.mark.parametrize(
    ("last_us", "broker_epoch", "right"),
    [(SECOND_US, 11, True), (SECOND_US - 1, 11, False), (SECOND_US, 10, False), (-1, 11, False)],
)
def test_broker_without_heartbeats_is_fenced_in_time(last_us: int, broker_epoch: int, right: bool) -> None:
    quorum = Quorum(SilentFenced)
    quorum.view.fault_times.node(1, SILENT_AT_US)  # Its own death is no excuse.
    for beat_us, request in ((last_us, beat(1, broker_epoch)), (SECOND_US, beat(2, 12))):
        if beat_us >= 0:
            quorum.publish()
            quorum.check.acted(beat_us, quorum.nodes[0], request, ())
    assert quorum.look(SILENT_AT_US) is right


def fenced_already(quorum: Quorum) -> None:
    for broker in (1, 2):
        quorum.brokers[broker] = replace(quorum.brokers[broker], fenced=True)


def controller_was_paused(quorum: Quorum) -> None:
    quorum.view.fault_times.node(0, 2 * SECOND_US)


def no_majority(quorum: Quorum) -> None:
    quorum.view.fault_times.link(0, 2, 2 * SECOND_US)


def controller_is_new(quorum: Quorum) -> None:
    quorum.view.nodes[0].seen = Seen()
    quorum.elect(2 * SECOND_US, 2)


@pytest.mark.parametrize("excuse", [fenced_already, controller_was_paused, no_majority, controller_is_new])
def test_excuses_for_not_fencing_silent_broker(excuse: Callable[[Quorum], None]) -> None:
    quorum = Quorum(SilentFenced)
    quorum.brokers[2] = replace(quorum.brokers[2], fenced=True)
    assert not Quorum(SilentFenced).look(SILENT_AT_US + 1)
    excuse(quorum)
    assert quorum.look(SILENT_AT_US + 1)


@pytest.mark.parametrize(
    ("uncommitted", "paused_us", "after_us", "right"),
    [(0, 0, 1, False), (1, 0, 1, True), (0, SECOND_US + SESSION_US, 1, True), (0, 0, 0, True)],
    ids=["idle", "waits for a majority", "paused", "in time"],
)
def test_idle_controller_fences_a_silent_broker_whatever_its_links_are_like(
    uncommitted: int, paused_us: int, after_us: int, *, right: bool
) -> None:
    quorum = Quorum(SilentFenced)
    no_majority(quorum)
    quorum.brokers[2] = replace(quorum.brokers[2], fenced=True)
    quorum.publish()
    quorum.check.acted(SECOND_US, quorum.nodes[0], beat(1, 11), ())
    quorum.committed(10 + uncommitted, 10)
    quorum.view.fault_times.node(0, paused_us)
    at_us = SECOND_US + SESSION_US + IDLE_US
    quorum.view.fault_times.link(0, 1, at_us)
    quorum.view.fault_times.link(0, 2, at_us)
    assert quorum.look(at_us + after_us) is right


@pytest.mark.parametrize(
    ("changes", "uncommitted", "last_us", "right"),
    [
        ({}, 0, UNFENCED_US + 1, False),
        ({}, 0, UNFENCED_US, True),
        ({}, 1, UNFENCED_US + 1, True),
        ({"want_fence": True}, 0, UNFENCED_US + 1, True),
        ({"want_shut_down": True}, 0, UNFENCED_US + 1, True),
        ({"current_metadata_offset": 10}, 0, UNFENCED_US + 1, True),
        ({"broker_epoch": 10}, 0, UNFENCED_US + 1, True),
    ],
)
def test_fenced_broker_that_is_ready_is_unfenced_in_time(
    changes: dict[str, Any], uncommitted: int, last_us: int, *, right: bool
) -> None:
    quorum = Quorum(ReadyUnfenced)
    quorum.brokers[1] = replace(quorum.brokers[1], fenced=True)
    quorum.committed(20 + uncommitted, 20)
    quorum.publish()
    for at_us in (0, last_us // 2, last_us):
        sent = {"want_fence": False, "want_shut_down": False, "current_metadata_offset": 11, **changes}
        request = beat(1, int(sent.pop("broker_epoch", 11)), **sent)
        quorum.check.acted(at_us, quorum.nodes[0], request, ())
    assert quorum.look(last_us) is right
    quorum.brokers[1] = replace(quorum.brokers[1], fenced=False)
    quorum.check.violations.clear()
    assert quorum.look(last_us)


@pytest.mark.parametrize(("fault_us", "right"), [(SECOND_US, False), (SECOND_US + 1, True)])
def test_controller_unfences_a_broker_in_time_after_a_fault(fault_us: int, *, right: bool) -> None:
    quorum = Quorum(ReadyUnfenced)
    quorum.brokers[1] = replace(quorum.brokers[1], fenced=True)
    quorum.committed(20, 20)
    quorum.publish()
    quorum.view.fault_times.node(0, fault_us)
    last_us = SECOND_US + UNFENCED_US + 1
    ready = {"want_fence": False, "want_shut_down": False, "current_metadata_offset": 11}
    for at_us in (*range(0, last_us, SESSION_US // 4), last_us):
        quorum.check.acted(at_us, quorum.nodes[0], beat(1, 11, **ready), ())
    assert quorum.look(last_us) is right


READY_AT_US = SECOND_US + SESSION_US + SETTLED_US


def test_node_without_faults_serves_in_time() -> None:
    for ready, fault_us, right in ((False, 0, False), (True, 0, True), (False, SECOND_US, True)):
        quorum = Quorum(ReadyInTime)
        quorum.nodes[1].ready = ready
        quorum.view.fault_times.node(1, fault_us)
        assert quorum.look(READY_AT_US) is right
        assert quorum.check.evidence == (2 if fault_us else 3)


@pytest.mark.parametrize("excuse", [controller_was_paused, controller_is_new])
def test_node_waits_for_a_controller_without_faults(excuse: Callable[[Quorum], None]) -> None:
    quorum = Quorum(ReadyInTime)
    quorum.nodes[1].ready = False
    excuse(quorum)
    assert quorum.look(READY_AT_US)
    assert not quorum.look(READY_AT_US + 2 * SECOND_US)


def test_node_that_is_cut_off_from_the_controller_cannot_register() -> None:
    quorum = Quorum(ReadyInTime)
    quorum.nodes[1].ready = False
    quorum.view.fault_times.link(1, 0, SECOND_US)
    assert quorum.look(READY_AT_US)
    assert not quorum.look(READY_AT_US + 1)


LEADERLESS = PartitionImage((0, 1, 2), (1,), -1, 1, 1, directories=(HOME, HOME, HOME))


@pytest.mark.parametrize(
    ("partition", "right"),
    [
        (LEADERLESS, False),
        (replace(LEADERLESS, leader=0), True),
        (replace(LEADERLESS, leader=2), False),  # Broker 2 is fenced.
        (replace(LEADERLESS, isr=(2,)), True),
        (replace(LEADERLESS, isr=(2,), elr=(1,)), False),
        (replace(LEADERLESS, isr=(), last_known_elr=(1,)), False),
        (replace(LEADERLESS, isr=(), last_known_elr=(0, 1)), True),
        (replace(LEADERLESS, isr=(2,), last_known_elr=(1,)), True),
        (replace(LEADERLESS, directories=(HOME, (2).to_bytes(16, "big"), HOME)), True),
        (replace(LEADERLESS, directories=(HOME, b"another folder..", HOME)), True),
        (replace(LEADERLESS, directories=(HOME, bytes(16), HOME)), False),
    ],
)
def test_partition_that_can_have_a_leader_has_one(partition: PartitionImage, right: bool) -> None:
    quorum = Quorum(LedInTime)
    quorum.brokers = {
        0: quorum.brokers[0],
        1: replace(quorum.brokers[1], log_dirs=(HOME,)),
        2: replace(quorum.brokers[2], fenced=True),
    }
    quorum.partition = partition
    assert quorum.look(SECOND_US, SECOND_US + SETTLED_US)
    assert quorum.look(SECOND_US + SETTLED_US + 1) is right


def test_partition_may_be_without_a_leader_for_a_short_time() -> None:
    quorum = Quorum(LedInTime)
    for second, leader in ((1, -1), (4, 1), (6, -1), (12, -1)):
        quorum.partition = replace(LEADERLESS, leader=leader)
        assert quorum.look(second * SECOND_US)
    assert not quorum.look(12 * SECOND_US + 1)


@pytest.mark.parametrize("excuse", [controller_was_paused, no_majority, controller_is_new])
def test_election_waits_for_a_controller_without_faults(excuse: Callable[[Quorum], None]) -> None:
    quorum = Quorum(LedInTime)
    quorum.partition = LEADERLESS
    quorum.view.fault_times.node(1, 9 * SECOND_US)
    excuse(quorum)
    assert quorum.look(1, 2 + SETTLED_US)


@pytest.mark.parametrize(("slow_until_us", "touched_until_us"), [(9, 9), (4, 5)])
def test_restart_ends_no_fault_of_the_disk(slow_until_us: int, touched_until_us: int) -> None:
    fault_times = FaultTimes()
    fault_times.node(1, slow_until_us)
    fault_times.node(1, FOR_EVER_US)  # Its power is lost.
    assert fault_times.node_since(1, FOR_EVER_US)
    fault_times.back(1, 5)
    assert fault_times.nodes[1] == touched_until_us
