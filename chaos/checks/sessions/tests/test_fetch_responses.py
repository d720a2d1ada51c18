"""Checks of single Fetch responses."""

from collections.abc import Sequence
from typing import Any

import pytest

from chaos.checks.check import FetchCheck
from chaos.checks.sessions.fetch_model import FIRST_REVISION, FIRST_REVISIONS, FetchModel, partitions_of
from chaos.checks.sessions.fetch_responses import (
    FullResponseExact,
    NoEmptyResponse,
    NoStarvation,
    StaleLeaderEpochFenced,
)
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import StubBroker, StubLog, StubNode, led_partition, node_partitions
from reference_broker.core.events import Reply, Request
from reference_broker.records.record import Record, build
from reference_broker.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    ForgottenTopic,
    PartitionData,
)
from reference_broker.wire.tags import Tag

SESSION = 77
CLIENT = "fetcher-0"
BY_NAME = 12


class Talk:
    """One client and one node that leads two partitions with ten records each, in leader epoch 3."""

    def __init__(self, check: FetchCheck) -> None:
        self.check = check
        self.model = FetchModel()
        self.held = build([Record(value=b"v")])
        self.log = StubLog(high_watermark=10, read=lambda *_: self.held)
        led = [led_partition(index, self.log, leader_epoch=3) for index in range(2)]
        broker = StubBroker(partitions=node_partitions(*led))
        self.led = broker.partitions.by_name
        self.node: Any = StubNode(broker)
        self.correlation = 0

    def fetch(
        self,
        epoch: int,
        offsets: dict[int, int],
        served: dict[int, int],
        *,
        forget: tuple[int, ...] = (),
        leader_epoch: int = 3,
        version: int = BY_NAME,
        incremental: bool | None = None,
        is_parked: bool = False,
        data: Sequence[PartitionData] = (),
        committed: bool = False,
    ) -> None:
        """``offsets``: named in the request; ``served``: bytes in the response, by partition, beside ``data``.
        ``is_parked``: it waits until its connection is lost."""
        self.correlation += 1
        wanted = [FetchPartition(index, offset, 100, leader_epoch) for index, offset in offsets.items()]
        body = FetchRequest(
            session_id=SESSION if epoch else 0,
            session_epoch=epoch,
            topics=[FetchTopic("t", b"", wanted)],
            forgotten=[ForgottenTopic("t", b"", list(forget))],
            fetch_type=int(epoch > 0 if incremental is None else incremental),
            isolation_level=int(committed),
        )
        some = [PartitionData(index, 0, 10, records=b"x" * size) for index, size in served.items()]
        response = FetchResponse(session_id=SESSION, responses=[FetchTopicResponse("t", b"", [*some, *data])])
        tag = Tag(1, version, CLIENT, body.session_id, epoch)
        request = Request(1, self.correlation, 1, version, CLIENT, body, tag)
        reply = Reply(1, self.correlation, 1, version, response, tag)
        for each in self.model.acted(self.node, request, [] if is_parked else [reply]):
            self.check.fetched(0, each)

    @property
    def explanations(self) -> list[str]:
        return [violation.explanation for violation in self.check.violations]


@pytest.mark.clause("F-15", "G-7")
def test_partition_that_is_skipped_now_and_then_does_not_starve() -> None:
    talk = Talk(NoStarvation(check_context()))
    talk.fetch(0, {0: 0, 1: 0}, {0: 5, 1: 0})
    for epoch in range(1, 9):
        talk.fetch(epoch, {}, {epoch % 2: 5})
    assert talk.explanations == []


@pytest.mark.clause("F-15", "G-7")
@pytest.mark.parametrize("version", [BY_NAME, FIRST_REVISION])
def test_partition_that_is_never_served_starves(version: int) -> None:
    talk = Talk(NoStarvation(check_context()))
    talk.fetch(0, {0: 0, 1: 0}, {0: 5, 1: 0}, version=version)
    talk.fetch(1, {}, {0: 5}, version=version)
    assert talk.explanations == []
    talk.fetch(2, {}, {0: 5}, version=version)
    assert len(talk.explanations) == 1
    assert "t-1 has data from 0 to 10" in talk.explanations[0]


@pytest.mark.parametrize(("version", "by_id"), [(12, False), (13, True), (1000, False), (1001, True), (1002, False)])
def test_each_version_has_its_own_name_of_a_topic(version: int, by_id: bool) -> None:
    """The draft of the tombstone horizon has sessions of the final revision, and topics by their IDs."""
    named = [FetchTopic("t", b"id", [FetchPartition(3, 0, 100)])]
    assert [name for name, _ in partitions_of(version, named)] == [(b"id" if by_id else "t", 3)]
    assert (version in FIRST_REVISIONS) == (version in (1000, 1002))


def test_partition_emptied_by_cleaner_does_not_starve() -> None:
    talk = Talk(NoStarvation(check_context()))
    talk.held = b""
    talk.fetch(0, {0: 0, 1: 0}, {0: 5, 1: 0})
    for epoch in range(1, 5):
        talk.fetch(epoch, {}, {0: 5})
    assert talk.explanations == []


def test_partition_that_waits_for_the_remote_tier_does_not_starve() -> None:
    talk = Talk(NoStarvation(check_context()))
    talk.led["t", 0].log.local_log_start_offset = 1
    talk.fetch(0, {0: 0, 1: 0}, {0: 5, 1: 0})
    for epoch in range(1, 5):
        talk.fetch(epoch, {}, {0: 5})
    assert talk.explanations == []


def test_partition_that_was_read_up_or_forgotten_does_not_starve() -> None:
    talk = Talk(NoStarvation(check_context()))
    talk.fetch(0, {0: 0, 1: 10}, {0: 5, 1: 0})
    for epoch in range(1, 5):
        talk.fetch(epoch, {}, {0: 5})
    talk.fetch(5, {1: 0}, {0: 5}, forget=(1,))
    for epoch in range(6, 9):
        talk.fetch(epoch, {}, {0: 5})
    assert talk.explanations == []


def test_fetch_offset_of_request_without_response_counts() -> None:
    talk = Talk(NoStarvation(check_context()))
    talk.fetch(0, {0: 0, 1: 0}, {0: 5, 1: 5})
    talk.fetch(1, {1: 10}, {}, is_parked=True)
    for epoch in range(2, 6):
        talk.fetch(epoch, {}, {0: 5})
    assert talk.explanations == []


def test_repeated_response_is_not_counted() -> None:
    talk = Talk(NoStarvation(check_context()))
    talk.fetch(0, {0: 0, 1: 0}, {0: 5, 1: 0}, version=FIRST_REVISION)
    for _ in range(5):
        talk.fetch(1, {}, {0: 5}, version=FIRST_REVISION)
    assert talk.explanations == []


def batch(base_offset: int, records: int) -> bytes:
    """A batch of one offset, as the cleaner leaves it if it has no records."""
    data = bytearray(build([Record(value=b"v")], base_offset=base_offset))
    data[57:61] = records.to_bytes(4, "big")
    return bytes(data)


@pytest.mark.clause("F-16")
@pytest.mark.parametrize(
    ("sent", "follow", "committed", "is_right"),
    [
        ([0], [1], False, False),
        ([0, 0], [0, 1], False, False),
        ([0], [1], True, True),
        ([0, 1], [1], False, True),
        ([0], [0, 0], False, True),
        ([0], [], False, True),
        ([], [1], False, True),
    ],
)
def test_response_of_empty_batches_alone_is_a_violation(
    sent: list[int], follow: list[int], committed: bool, is_right: bool
) -> None:
    """The last stable offset is 1. Only the first batch is below it."""
    stored = [batch(offset, records) for offset, records in enumerate((*sent, *follow))]
    talk = Talk(NoEmptyResponse(check_context()))
    talk.log.read = lambda offset, *_: b"".join(stored[offset:])
    talk.fetch(
        0, {0: 0}, {}, data=[PartitionData(0, 0, 10, 1, records=b"".join(stored[: len(sent)]))], committed=committed
    )
    assert talk.explanations == [] if is_right else "although batch" in talk.explanations[0]


@pytest.mark.clause("F-5", "G-4")
def test_full_response_with_a_partition_that_was_not_requested_is_a_violation() -> None:
    talk = Talk(FullResponseExact(check_context()))
    talk.fetch(0, {0: 0}, {0: 5})
    talk.fetch(1, {}, {1: 5})
    assert talk.explanations == []
    talk.fetch(0, {0: 0}, {0: 5, 1: 0})
    assert talk.explanations == [f"{CLIENT} got a response about t-1, which its full request did not name"]


@pytest.mark.clause("F-13")
def test_response_to_a_stale_leader_epoch_is_a_violation() -> None:
    talk = Talk(StaleLeaderEpochFenced(check_context()))
    talk.fetch(0, {0: 0, 1: 0}, {0: 5, 1: 5})
    talk.fetch(1, {0: 5}, {0: 5}, leader_epoch=-1)
    assert talk.explanations == []
    for partition in talk.led.values():
        partition.leader_epoch = 4
    talk.fetch(2, {}, {1: 5})
    assert talk.explanations == [f"{CLIENT} sent a fetch of t-1 in leader epoch 3 and got a response in 4"]
