"""Forgotten producers: one that was believed, and one that was forgotten too early."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from chaos.checks.log.producers import ForgottenProducerRefused
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import StubBroker, StubLog, StubNode, node_partitions
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Reply, Request
from reference_broker.ports.node_ports import Now
from reference_broker.records.record import Record, build
from reference_broker.replication.partitions import Partition
from reference_broker.wire.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResponse,
)
from reference_broker.wire.tags import Tag

if TYPE_CHECKING:
    from reference_broker.core.node import Node

PRODUCE, VERSION, TOPIC_ID = 0, 12, b"t" * 16
EXPIRES_MS, EXPIRATION_CHECK_MS = 1000, 100
UNKNOWN_PRODUCER_ID = 59


@dataclass
class CheckedPartition:
    """A partition whose log keeps what was appended. ``ms`` is the node's wall clock, which was ``stepped_ms`` ahead
    of the steady one."""

    policy: str = "reject"
    ms: int = 1_000_000
    stepped_ms: int = 0
    log: bytes = b""
    end: int = 0
    local_start: int = 0
    check: ForgottenProducerRefused = field(default_factory=lambda: ForgottenProducerRefused(check_context()))

    def produces(self, sequence: int, error: int = 0, *, is_kept: bool = True, producer: int = 7) -> list[str]:
        """Send and acknowledge one record of a producer. Return the violation."""
        record = Record(timestamp_ms=self.ms, value=b"v")
        data = bytes(build([record], producer_id=producer, producer_epoch=0, base_sequence=sequence))
        offset = self.end
        topic = ProduceTopic("t", bytes(16), [ProducePartition(0, data)])
        tag = Tag(PRODUCE, VERSION, "p")
        request = Request(1, 1, PRODUCE, VERSION, "p", ProduceRequest(-1, 100, [topic]), tag)
        of_partition = ProducePartitionResponse(0, error, -1 if error else offset)
        response = ProduceResponse([ProduceTopicResponse("t", bytes(16), [of_partition])])
        if error == 0:
            self.log = self.log + offset.to_bytes(8, "big") + data[8:] if is_kept else b""
            self.end += 1
        before = len(self.check.violations)
        at_us = (self.ms - self.stepped_ms) * 1000
        self.check.acted(at_us, self._node(), request, [Reply(1, 1, PRODUCE, VERSION, response, tag)])
        return [violation.explanation for violation in self.check.violations[before:]]

    def _node(self) -> "Node":
        log = StubLog(
            topic_id=TOPIC_ID, local_log_start_offset=self.local_start, log_end_offset=self.end, read=self._read
        )
        config = replace(
            BrokerConfig(),
            producer_id_expiration_ms=EXPIRES_MS,
            producer_id_expiration_check_interval_ms=EXPIRATION_CHECK_MS,
            crucible_unknown_producer_id_policy=self.policy,
        )
        partitions = node_partitions(Partition("t", TOPIC_ID, 0, 0, log.as_log()))
        return StubNode(StubBroker(config=config, now=Now(0, self.ms), partitions=partitions)).as_node()

    def _read(self, offset: int, max_bytes: int, end_offset: int) -> bytes:  # noqa: ARG002
        size = len(self.log) // max(1, self.end)
        return self.log[offset * size :]


@pytest.mark.clause("P-7")
def test_busy_producer_is_known_and_an_idle_one_is_not() -> None:
    known = CheckedPartition()
    assert known.produces(0) == []
    known.ms += EXPIRES_MS - 1
    assert known.produces(1) == []
    known.ms += EXPIRES_MS
    assert known.produces(0, producer=8) == []
    known.ms += EXPIRATION_CHECK_MS - 1
    assert known.produces(2) == [], "the check interval has not passed"
    known.ms += EXPIRES_MS
    assert known.produces(1, producer=8) == []
    known.ms += EXPIRATION_CHECK_MS
    late = "the clock had shown 1000 ms for 100 ms"
    assert known.produces(3) == [f"producer 7 with sequence 3 was accepted 1100 ms after its last batch, and {late}"]


@pytest.mark.clause("P-7")
def test_wall_clock_that_steps_leaves_the_node_an_interval_to_see_it() -> None:
    known = CheckedPartition()
    known.produces(0)
    known.ms += EXPIRATION_CHECK_MS
    assert known.produces(0, producer=8) == []
    known.ms, known.stepped_ms = known.ms + 5 * EXPIRES_MS, 5 * EXPIRES_MS
    assert known.produces(1) == [], "the node has not looked at the stepped clock yet"


@pytest.mark.clause("P-5", "P-7")
def test_only_an_expired_producer_may_be_refused_as_unknown() -> None:
    idle = CheckedPartition()
    idle.produces(0)
    idle.ms += EXPIRES_MS
    assert idle.produces(1, UNKNOWN_PRODUCER_ID) == []
    busy = CheckedPartition()
    busy.produces(0)
    busy.ms += EXPIRES_MS - 1
    assert busy.produces(1, UNKNOWN_PRODUCER_ID) == [
        "producer 7 with sequence 1 was called unknown 999 ms after its last record"
    ]
    assert CheckedPartition().produces(0, UNKNOWN_PRODUCER_ID) == [
        "producer 7 with sequence 0 was called unknown, and may begin at 0"
    ]


@pytest.mark.clause("P-5")
def test_unknown_producer_begins_at_0_where_the_policy_says_so() -> None:
    assert CheckedPartition().produces(5, UNKNOWN_PRODUCER_ID) == []
    assert CheckedPartition().produces(5) == [
        "producer 7 with sequence 5 was accepted, and the partition had no records of it"
    ]
    assert CheckedPartition(policy="accept").produces(5) == []


@pytest.mark.clause("P-7")
def test_producer_whose_records_are_gone_may_be_called_unknown() -> None:
    lost = CheckedPartition()
    lost.produces(0, is_kept=False)
    assert lost.produces(1, UNKNOWN_PRODUCER_ID) == []


@pytest.mark.clause("P-7", "P-11")
def test_producer_whose_records_are_in_the_remote_tier_only_is_known() -> None:
    tiered = CheckedPartition()
    tiered.produces(0, is_kept=False)
    tiered.local_start = 1
    assert tiered.produces(1, UNKNOWN_PRODUCER_ID) == [
        "producer 7 with sequence 1 was called unknown 0 ms after its last record"
    ]
