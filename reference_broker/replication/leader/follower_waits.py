"""Followers' fetches that wait on this leader, and when they are answered early.

A follower can name a newly followed partition only after its fetch in flight is answered. If the leader has nothing
to tell, that takes ``replica.fetch.wait.max.ms``, and acks=all takes as long. So a leader that takes up partitions
answers the waiting fetches of their replicas at once. Until a replica has named all of them it lets that replica's
fetches wait only shortly, since a replica may hear of its new leader later than that leader does.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from reference_broker.ports.node_ports import Ports
from reference_broker.replication.partitions import Partition

GATHER_US = 1000
"""Partitions are usually taken up many at a time. The leader waits this long, so that one answer serves them all."""
EXPECTED_MS = 1000
"""Fetches of a replica that does not name a partition wait shortly for this long after it was taken up."""
SHORT_WAIT_MS = 20


class WaitingFetch(Protocol):
    def respond(self) -> None:
        """Answers the fetch now, with what there is."""
        ...


@dataclass(slots=True)
class FollowerWaits:
    """Knows each follower's latest waiting fetch. A follower has only one in flight."""

    _ports: Ports
    _waiting: dict[int, WaitingFetch] = field(default_factory=dict)
    _unnamed: dict[int, dict[Partition, None]] = field(default_factory=dict)
    """By replica: the partitions that it has yet to name. A dead replica never names them. What it was expected to name
    is forgotten when the time has run out, at its next fetch or when the leader takes up the next partition."""
    _expected_until_us: dict[int, int] = field(default_factory=dict)
    """By replica: the time until which it is expected to name them."""
    _is_planned: bool = False

    def begin(self, replica_id: int, fetch: WaitingFetch, max_wait_ms: int) -> int:
        """Registers a fetch that waits. Returns how long it may wait at most, in ms."""
        self._waiting[replica_id] = fetch
        return min(max_wait_ms, SHORT_WAIT_MS) if self._is_expected(replica_id) else max_wait_ms

    def end(self, replica_id: int, fetch: WaitingFetch) -> None:
        if self._waiting.get(replica_id) is fetch:
            del self._waiting[replica_id]

    def expect(self, partition: Partition, replica_ids: Iterable[int]) -> None:
        """These replicas will have to name the partition, which this node now leads."""
        now_us = self._ports.now().mono_us
        for replica_id in replica_ids:
            if not self._is_expected(replica_id):
                self._unnamed[replica_id] = {}
            self._expected_until_us[replica_id] = now_us + EXPECTED_MS * 1000
            self._unnamed[replica_id][partition] = None
        if self._waiting and not self._is_planned:
            self._is_planned = True
            self._ports.set_timer(now_us + GATHER_US, self._answer_expected)

    def named(self, partition: Partition, replica_id: int) -> None:
        """Notes that the replica fetches the partition from this leader."""
        unnamed = self._unnamed.get(replica_id)
        if unnamed is not None and partition in unnamed:
            del unnamed[partition]
            if not unnamed:
                self._forget(replica_id)

    def _forget(self, replica_id: int) -> None:
        del self._unnamed[replica_id], self._expected_until_us[replica_id]

    def _is_expected(self, replica_id: int) -> bool:
        until_us = self._expected_until_us.get(replica_id)
        if until_us is None:
            return False
        if self._ports.now().mono_us < until_us:
            return True
        self._forget(replica_id)
        return False

    def _answer_expected(self) -> None:
        self._is_planned = False
        for replica_id, fetch in list(self._waiting.items()):
            if self._waiting.get(replica_id) is fetch and self._is_expected(replica_id):
                fetch.respond()
