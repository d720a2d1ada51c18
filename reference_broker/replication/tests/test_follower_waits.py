"""Maximum wait of a follower's fetch while the follower has yet to name partitions that this node took up."""

from dataclasses import dataclass
from typing import Any

import pytest

from reference_broker.replication.leader.purgatory import EXPECTED_MS, GATHER_US, SHORT_WAIT_MS, FollowerWaits
from reference_broker.replication.tests.timed_ports import TimedPorts

FOLLOWER, OTHER = 1, 2
LONG_MS = 500


@dataclass(eq=False)
class Waiting:
    responses: int = 0

    def respond(self) -> None:
        self.responses += 1


@pytest.fixture
def ports() -> TimedPorts:
    return TimedPorts()


@pytest.fixture
def waits(ports: TimedPorts) -> FollowerWaits:
    return FollowerWaits(ports)  # type: ignore[arg-type]


def wait_of(waits: FollowerWaits, replica_id: int = FOLLOWER) -> int:
    fetch = Waiting()
    found = waits.begin(replica_id, fetch, LONG_MS)
    waits.end(replica_id, fetch)
    return found


def test_fetches_wait_shortly_until_each_partition_is_named(waits: FollowerWaits) -> None:
    first, second = partitions()
    waits.expect(first, [FOLLOWER, OTHER])
    waits.expect(second, [FOLLOWER])
    assert wait_of(waits) == SHORT_WAIT_MS
    waits.named(first, FOLLOWER)
    assert wait_of(waits) == SHORT_WAIT_MS
    waits.named(second, FOLLOWER)
    assert wait_of(waits) == LONG_MS
    assert wait_of(waits, OTHER) == SHORT_WAIT_MS


def test_silent_replica_is_expected_for_one_second(waits: FollowerWaits, ports: TimedPorts) -> None:
    (partition, _) = partitions()
    waits.expect(partition, [FOLLOWER])
    ports.pass_ms(EXPECTED_MS - 1)
    assert wait_of(waits) == SHORT_WAIT_MS
    ports.pass_ms(1)
    assert wait_of(waits) == LONG_MS
    waits.named(partition, FOLLOWER)
    assert wait_of(waits) == LONG_MS


def test_returning_replica_need_not_name_missed_partitions(waits: FollowerWaits, ports: TimedPorts) -> None:
    """The leader may have dropped it long ago. While the replica is dead, the leader would keep all of them."""
    missed, partition = partitions()
    waits.expect(missed, [FOLLOWER])
    ports.pass_ms(EXPECTED_MS)
    waits.expect(partition, [FOLLOWER])
    assert wait_of(waits) == SHORT_WAIT_MS
    waits.named(partition, FOLLOWER)
    assert wait_of(waits) == LONG_MS


def test_partition_taken_up_again_must_be_named_again(waits: FollowerWaits) -> None:
    (partition, _) = partitions()
    for _ in range(2):
        waits.expect(partition, [FOLLOWER])
        assert wait_of(waits) == SHORT_WAIT_MS
        waits.named(partition, FOLLOWER)
        assert wait_of(waits) == LONG_MS


def test_parked_fetch_completes_when_its_replica_is_expected(waits: FollowerWaits, ports: TimedPorts) -> None:
    (partition, _), fetch, other = partitions(), Waiting(), Waiting()
    waits.begin(FOLLOWER, fetch, LONG_MS)
    waits.begin(OTHER, other, LONG_MS)
    waits.expect(partition, [FOLLOWER])
    ports.pass_ms(GATHER_US // 1000)
    assert (fetch.responses, other.responses) == (1, 0)


def partitions() -> tuple[Any, Any]:
    return object(), object()
