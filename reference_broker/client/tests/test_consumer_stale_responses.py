"""Late or invalid responses: the consumer neither stalls, spins nor fails."""

from typing import Any

import pytest

from reference_broker.client import group_requests as requests
from reference_broker.client.consumer_protocol import (
    Assignment,
    Subscription,
    encode_assignment,
    encode_subscription,
)
from reference_broker.client.group_consumer import ConsumerConfig, GroupConsumer
from reference_broker.client.group_leader import assign
from reference_broker.client.group_membership import Failed, GroupConfig, GroupMembership, MemberState, Revoked
from reference_broker.client.group_requests import GroupCoordinator
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.offset_commits import CommittedOffsets
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.tests.group_world import NODE, due, found, heartbeat_response, join_response, sync_response
from reference_broker.client.tests.test_group_consumer import Driver, fetched, metadata
from reference_broker.client.tests.test_offset_commits import fetched as fetched_offsets
from reference_broker.wire.errors import ErrorCode

SEED = NodeAddress(-1, "seed", 9)
T0 = TopicPartition("t", 0)


class Member:
    """A consumer in a group. ``sent``: requests in flight, by channel."""

    def __init__(self) -> None:
        group = GroupConfig("g", (), heartbeat_interval_us=1000, backoff_us=100)
        self.consumer = GroupConsumer(ConsumerConfig((SEED,), group, backoff_us=100, metadata_epoch=False))
        self.consumer.subscribe(("t",))
        self.sent: dict[str, Any] = {}
        self.now = 0
        self.go()

    def go(self, later_us: int = 0) -> dict[str, Any]:
        self.now += later_us
        for channel, request in self.consumer.next_requests(self.now):
            assert channel not in self.sent
            self.sent[channel] = request
        return self.sent

    def respond(self, channel: str, body: object) -> dict[str, Any]:
        self.sent.pop(channel)
        self.consumer.responded(channel, self.now, body)
        return self.go()

    @property
    def membership(self) -> GroupMembership:
        assert self.consumer.membership is not None
        return self.consumer.membership

    def join(self, *partitions: TopicPartition, generation: int = 1) -> None:
        """Join a generation that another member leads."""
        if self.sent["group"].api_key == requests.FIND_COORDINATOR:
            self.respond("group", found())
        self.respond("group", join_response(0, generation, "range", "leader", "me"))
        self.respond("group", sync_response(0, encode_assignment(Assignment(partitions))))


@pytest.fixture
def reading() -> Driver:
    driver = Driver()
    driver.consumer.assign([T0])
    driver.consumer.seek(T0, 5)
    driver.go()
    driver.respond("metadata", metadata())
    return driver


def test_offset_fetched_before_partition_was_lost_is_not_used_after_reassignment() -> None:
    """Meanwhile another member has read on and committed."""
    member = Member()
    member.join(T0)
    assert "committed" in member.sent
    member.go(1000)
    member.respond("group", heartbeat_response(25))
    member.go(100)
    member.join(T0, generation=5)
    member.respond("committed", fetched_offsets(17))
    assert member.consumer.unplaced == [T0]
    member.respond("committed", fetched_offsets(30))
    assert member.consumer.position(T0) == 30


def test_revoked_partition_is_not_read_before_release() -> None:
    member = Member()
    member.join(T0)
    member.respond("metadata", metadata())
    member.respond("committed", fetched_offsets(5))
    member.go(1000)
    member.respond("group", heartbeat_response(27))
    assert [type(event) for event in member.consumer.take_events()][-1] is Revoked
    member.respond("node-0", fetched(b"a", first=5))
    assert member.consumer.take_records(9) == []
    assert "node-0" not in member.go(1000)
    assert member.consumer.read_so_far([T0])[T0].offset == 5


def test_partition_reassigned_during_revocation_is_read() -> None:
    """The application commits the revoked partition; meanwhile the member is removed, rejoins and gets it again."""
    member = Member()
    member.join(T0)
    member.now += 1000
    member.go()
    member.respond("group", heartbeat_response(27))
    assert [type(event) for event in member.consumer.take_events()][-1] is Revoked
    member.go(1000)
    member.respond("group", heartbeat_response(25))
    member.go(100)
    member.join(T0, generation=5)
    assert member.membership.assignment == (T0,)
    member.consumer.release((T0,))
    assert list(member.consumer.partitions.held) == [T0]


def test_missing_leader_causes_no_wakeups(reading: Driver) -> None:
    reading.sent.pop("node-0")
    reading.consumer.failed("node-0", reading.now)
    reading.go()
    reading.respond("metadata", metadata(leader=1))
    reading.go(1000)
    assert list(reading.sent) == ["node-1"]
    assert reading.consumer.wake_at_us is not None
    assert reading.consumer.wake_at_us > reading.now


def test_unknown_error_code_is_raised_to_application(reading: Driver) -> None:
    reading.respond("node-0", fetched(error=999))
    assert reading.consumer.take_failures() == [999]


def test_metadata_without_requested_topic_does_not_mean_missing() -> None:
    """Metadata was requested before the leader knew the subscriptions of the others."""
    member = Member()
    member.respond("group", found())
    other = encode_subscription(Subscription(("t", "u")))
    rows = [("me", None, other), ("you", None, other)]
    assert "metadata" in member.sent
    member.respond("group", join_response(0, 1, "range", "me", "me", rows))
    assert member.membership.state is MemberState.ASSIGNING
    member.respond("metadata", metadata())
    assert "u" in member.membership.wanted_topics
    assert member.go(100)["metadata"].body.topics[1].name == "u"
    member.respond("metadata", metadata())
    assert member.sent["group"].api_key == requests.SYNC_GROUP


def test_leader_watches_topics_of_other_members() -> None:
    member = Member()
    member.respond("group", found())
    mine, yours = (encode_subscription(Subscription((each,))) for each in "tu")
    rows = [("me", None, mine), ("you", None, yours)]
    member.respond("group", join_response(0, 1, "range", "me", "me", rows))
    member.respond("metadata", metadata())
    member.respond("metadata", metadata())
    member.respond("group", sync_response(0, encode_assignment(Assignment((T0,)))))
    member.go(300_000_000)
    assert [topic.name for topic in member.sent["metadata"].body.topics] == ["t", "u"]


def test_topic_added_during_metadata_request_is_requested_next(reading: Driver) -> None:
    reading.consumer.metadata.want_at_once()
    reading.go()
    reading.consumer.look_up("u")
    reading.respond("metadata", metadata())
    assert "metadata" in reading.go(100)


def test_committed_offsets_without_group_fail() -> None:
    node = GroupCoordinator("g", backoff_us=100)
    node.node = NODE
    offsets = CommittedOffsets(node)
    offsets.fetch([T0], requests.MemberIdentity("g"), 10_000)
    offsets.next_request(0)
    body = fetched_offsets(1)
    offsets.responded(0, type(body)(throttle_time=body.throttle_time, groups=()))
    assert offsets.busy  # It was sent again.
    assert offsets.next_request(100) is not None


def test_authorization_error_of_committed_offsets_is_reported() -> None:
    member = Member()
    member.join(T0)
    member.respond("metadata", metadata())
    assert "committed" in member.sent
    member.respond("committed", fetched_offsets(5, error=ErrorCode.group_authorization_failed))
    assert member.consumer.take_failures() == [ErrorCode.group_authorization_failed]


def test_failed_member_stays_failed() -> None:
    membership = GroupMembership(GroupConfig("g", ("t",), heartbeat_interval_us=1000), GroupCoordinator("g"))
    membership.next_request(0)
    membership.responded(0, found())
    membership.next_request(0)
    membership.responded(0, join_response(0, 1, "range", "leader", "me"))
    membership.next_request(0)
    membership.responded(0, sync_response(0, encode_assignment(Assignment((T0,)))))
    assert due(membership.next_request(1000)).api_key == requests.HEARTBEAT
    membership.apply_error(1000, ErrorCode.fenced_instance_id, membership.identity)
    membership.responded(1000, heartbeat_response(25))
    assert membership.state is MemberState.FAILED
    assert [event for event in membership.take_events() if isinstance(event, Failed)] == [
        Failed(ErrorCode.fenced_instance_id)
    ]


@pytest.mark.parametrize("generation", [-2, -9])
def test_invalid_owned_partitions_of_member_do_not_fail_leader(generation: int) -> None:
    owned = (TopicPartition("t", -1), T0, TopicPartition("gone", 3))
    members = {
        "a": Subscription(("t",), owned, generation),
        "b": Subscription(("t",), (T0,), generation),
        "c": Subscription(("t",)),
    }
    given = assign("cooperative-sticky", {"t": 3}, members)
    handed_out = [partition for partitions in given.values() for partition in partitions]
    assert len(handed_out) == len(set(handed_out))
    assert set(handed_out) <= {TopicPartition("t", number) for number in range(3)}
