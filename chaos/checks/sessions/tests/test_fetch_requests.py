"""Partitions that an incremental fetch of a follower names and forgets, with near misses."""

from typing import TYPE_CHECKING

import pytest

from chaos.checks.sessions.fetch_model import FIRST_REVISION
from chaos.checks.sessions.fetch_requests import NAMES_AT_ONCE, NamesWhatChanged
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import StubBroker, StubLog, StubNode
from reference_broker.core.events import Send, TimerFired
from reference_broker.ports.node_ports import Channel
from reference_broker.replication.partitions import Partition, Partitions
from reference_broker.wire.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from reference_broker.wire.tags import Tag

if TYPE_CHECKING:
    from reference_broker.core.node import Node

FINAL_VERSION, LEADER = 12, 2


class Follower:
    """Node 1, which follows t-0 and t-1 at node 2 in leader epoch 3 from offset 5."""

    def __init__(self, version: int = FINAL_VERSION) -> None:
        self.check = NamesWhatChanged(check_context())
        self.version = version
        self.followed = {
            (b"", index): Partition("t", b"", index, 3, StubLog(log_end_offset=5).as_log(), followed_leader=LEADER)
            for index in range(2)
        }
        self.node = self.process()
        self.number = 0
        self.fetch({0: 5, 1: 5})

    def process(self) -> "Node":
        return StubNode(StubBroker(1, partitions=Partitions(followed=self.followed))).as_node()

    def fetch(self, named: dict[int, int], forget: tuple[int, ...] = (), number: int | None = None) -> None:
        number = self.number if number is None else number
        self.number = number + 1
        topics = [FetchTopic("t", b"", [FetchPartition(*each, 100, 3, 3, 0) for each in named.items()])]
        body = FetchRequest(
            replica_id=1,
            session_id=77 if number else 0,
            session_epoch=number,
            topics=topics,
            forgotten=[ForgottenTopic("t", b"", list(forget))],
            fetch_type=int(number > 0),
        )
        tag = Tag(1, self.version, "", 0, number, role="peer")
        send = Send(LEADER, Channel.REPLICA, 1, 1, self.version, body, tag, 1000, "")
        self.check.acted(0, self.node, TimerFired(1), [send])

    @property
    def explanations(self) -> list[str]:
        return [violation.explanation.partition(": ")[2] for violation in self.check.violations]


@pytest.fixture
def follower() -> Follower:
    return Follower()


@pytest.mark.clause("F-12")
def test_request_naming_changed_partitions_is_right(follower: Follower) -> None:
    follower.fetch({})
    follower.followed[b"", 1].log.log_end_offset = 7
    follower.fetch({1: 7})
    follower.fetch({}, forget=(1,))
    follower.fetch({})
    assert follower.explanations == []
    assert follower.check.evidence == 4


@pytest.mark.clause("F-12")
@pytest.mark.parametrize("what", ["log_end_offset", "log_start_offset", "leader_epoch"])
def test_change_that_is_not_named_is_red_at_the_second_request(follower: Follower, what: str) -> None:
    partition = follower.followed[b"", 1]
    setattr(partition if what == "leader_epoch" else partition.log, what, 4)
    follower.fetch({})
    assert follower.explanations == []
    follower.fetch({})
    assert len(follower.explanations) == 1
    assert (
        "t-1 is not named, though its entry (offset 5, log start 0, leader epoch 3) has changed"
        in follower.explanations[0]
    )


@pytest.mark.clause("F-12")
def test_partition_that_another_node_leads_now_need_not_be_named(follower: Follower) -> None:
    follower.followed[b"", 1].log.log_end_offset = 7
    follower.followed[b"", 1].followed_leader = 3
    for _ in range(3):
        follower.fetch({})
    assert follower.explanations == []


@pytest.mark.clause("F-12", "G-13")
@pytest.mark.parametrize("version", [FINAL_VERSION, FIRST_REVISION])
def test_partition_that_is_named_again_without_a_change_is_red(version: int) -> None:
    follower = Follower(version)
    follower.fetch({1: 5})
    assert follower.explanations == ["t-1 is named, and nothing has changed (F-12)"]


@pytest.mark.clause("G-3")
def test_request_that_is_sent_again_names_the_same(follower: Follower) -> None:
    follower.followed[b"", 1].log.log_end_offset = 7
    follower.fetch({1: 7})
    follower.fetch({1: 7}, number=1)
    assert follower.explanations == []
    follower.fetch({1: 7}, number=2)
    assert len(follower.explanations) == 1


@pytest.mark.clause("F-5", "F-12")
def test_full_request_and_a_new_process_begin_again(follower: Follower) -> None:
    follower.fetch({1: 5}, number=0)
    assert follower.explanations == []
    follower.fetch({}, forget=(0,))
    assert follower.explanations == ["t-0 is forgotten, and was not in the session (F-12)"]
    follower.node = follower.process()
    follower.fetch({1: 5})
    assert len(follower.explanations) == 1


@pytest.mark.clause("F-4")
def test_fetch_outside_the_session_changes_nothing_in_it(follower: Follower) -> None:
    follower.fetch({}, number=-1)
    follower.fetch({}, forget=(0,), number=1)
    assert follower.explanations == []


@pytest.mark.clause("F-12")
def test_request_that_names_as_many_as_it_may_leaves_others_to_the_next(follower: Follower) -> None:
    follower.followed[b"", 1].log.log_end_offset = 7
    for first in range(2, 1000, NAMES_AT_ONCE):
        follower.fetch(dict.fromkeys(range(first, first + NAMES_AT_ONCE), 0))
    assert follower.explanations == []
