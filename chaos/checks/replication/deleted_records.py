"""Responses to DeleteRecords compared with the log starts that replicas show (KIP-107).

A leader responds when, and not before, the logs of all live replicas begin at the offset. The check knows where a
replica's log begins from the replica's own fetches: the greatest log start offset that an accepted one named, in this
leader epoch and since the replica's registration.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from chaos.checks.check import Check, CheckContext, Kind
from chaos.checks.history import without_node
from chaos.checks.pending_requests import PendingRequests
from chaos.checks.replication.follower_progress import led_partition, refused_partitions
from chaos.checks.replication.replica_view import PartitionKey
from chaos.checks.sessions.fetch_model import FETCH, partitions_of
from reference_broker.core.events import Closed, Effect, Event, Reply, Request
from reference_broker.replication.partitions import Partition
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchRequest

if TYPE_CHECKING:
    from reference_broker.core.node import Node

_Replica: TypeAlias = tuple[int, PartitionKey, int]
"""A leader's node ID, the partition, and the ID of another replica."""


@dataclass(frozen=True, slots=True)
class _Begins:
    """Where a replica's log begins, as its fetches in one leader epoch say."""

    offset: int
    leader_epoch: int
    broker_epoch: int


@dataclass(slots=True)
class _Deletion:
    """A request that waits. ``offsets`` are those that it named, -1 for the high watermark, of partitions that the node
    led."""

    offsets: dict[PartitionKey, int]
    due_us: int = -1
    """when the last live replica had shown that it begins there, -1 before"""


class DeletionsReplicated(Check):
    """responses-after-heal: a leader responds to DeleteRecords without an error once the logs of all live replicas
    begin at its offset, and not before.

    Live replicas are those that the leader's metadata has unfenced (Kafka's ``Partition.lowWatermarkIfLeader``). So one
    that is down delays no response. The response is due when a fetch shows that the last live replica begins there. No
    rule says how soon a leader looks again after a replica is fenced. With short slices nobody sees from outside when a
    leader counts a fetch, so runs with them are not judged.
    """

    guarantee = "responses-after-heal"
    acts_on: ClassVar[tuple[Kind, ...]] = (NoneType, FETCH, ApiKey.DELETE_RECORDS, Closed)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._nodes: dict[int, Node] = {}
        self._begins: dict[_Replica, _Begins] = {}
        self._pending: PendingRequests[_Deletion] = PendingRequests()

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        if self.context.settings.slices_us:
            return
        node_id = node.broker.node_id
        if event is None and self._nodes.get(node_id) is not node:
            self._nodes[node_id] = node
            self._pending.restarted(node_id)
            self._begins = without_node(self._begins, node_id)
        elif isinstance(event, Closed):
            self._pending.closed(node_id, event.connection)
        elif isinstance(event, Request) and event.api_key == FETCH:
            shown = self._fetched(node, event, effects)
            for waiting in self._pending.of_node(node_id) if shown else ():
                if not shown.isdisjoint(waiting.offsets):
                    self._note_due(at_us, node, waiting)
        elif isinstance(event, Request) and event.api_key == ApiKey.DELETE_RECORDS:
            deletion = _Deletion(dict(_offsets(node, event.body)))
            self._pending.add(node_id, event, deletion)
            self._note_due(at_us, node, deletion)
        for effect in effects:
            if type(effect) is Reply and effect.api_key == ApiKey.DELETE_RECORDS:
                self._responded(at_us, node, effect)

    def _note_due(self, at_us: int, node: "Node", waiting: _Deletion) -> None:
        if waiting.due_us < 0 and all(self._is_replicated(node, *each) for each in waiting.offsets.items()):
            waiting.due_us = at_us

    def _fetched(self, node: "Node", event: Request, effects: Sequence[Effect]) -> set[PartitionKey]:
        """Note the log starts that an accepted fetch of a follower names. Return the partitions in which it shows a
        greater one."""
        shown: set[PartitionKey] = set()
        body = event.body
        refused = refused_partitions(event, effects)
        if not isinstance(body, FetchRequest) or body.replica_id < 0 or refused is None:
            return shown
        for name, entry in partitions_of(event.api_version, body.topics):
            led = led_partition(node, name)
            if led is None or name in refused:
                continue
            key = node.broker.node_id, (led.topic_id, led.index), body.replica_id
            begins = _Begins(entry.log_start_offset, led.leader_epoch, body.replica_epoch)
            known = self._known(key, led, body.replica_epoch)
            if known is None or known < begins.offset:
                self._begins[key] = begins
                shown.add((led.topic_id, led.index))
        return shown

    def _known(self, key: _Replica, led: Partition, broker_epoch: int) -> int | None:
        known = self._begins.get(key)
        if known is None or (known.leader_epoch, known.broker_epoch) != (led.leader_epoch, broker_epoch):
            return None
        return known.offset

    def _live(self, node: "Node", led: Partition) -> Iterator[tuple[int, int | None]]:
        """Yield the partition's other live replicas, each with the offset at which its log begins, None if no fetch has
        shown it."""
        node_id, image = node.broker.node_id, node.broker.loader.image
        topic = image.topics.get(led.topic)
        for replica in () if topic is None else topic.partitions[led.index].replicas:
            broker = image.brokers.get(replica)
            if replica != node_id and broker is not None and not broker.fenced:
                yield replica, self._known((node_id, (led.topic_id, led.index), replica), led, broker.broker_epoch)

    def _is_replicated(self, node: "Node", key: PartitionKey, offset: int) -> bool:
        """Return whether all live replicas begin at the offset, or at the leader's log start for the high watermark."""
        led = node.broker.partitions.by_id.get(key)
        if led is None:
            return False
        needed = led.log.log_start_offset if offset < 0 else offset
        return led.log.log_start_offset >= needed and all(
            known is not None and known >= needed for _, known in self._live(node, led)
        )

    def _responded(self, at_us: int, node: "Node", reply: Reply) -> None:
        node_id, body = node.broker.node_id, reply.body
        waiting = self._pending.pop(node_id, reply)
        if waiting is None or body is None:
            return
        for led, result in _results(node, body):
            offset, error = waiting.offsets.get((led.topic_id, led.index), -1), int(result.error_code)
            if error == ErrorCode.request_timed_out:
                self.evidence += 1
                if 0 <= waiting.due_us < at_us:
                    self.violated(
                        at_us,
                        f"{led.topic}-{led.index}: DeleteRecords up to {offset} timed out at node {node_id}, although "
                        f"all live replicas begin there since {waiting.due_us} us (KIP-107)",
                    )
            elif not error and offset >= 0:
                self.evidence += 1
                behind = [each for each, known in self._live(node, led) if known is not None and known < offset]
                if behind:
                    self.violated(
                        at_us,
                        f"{led.topic}-{led.index}: node {node_id} responded to DeleteRecords up to {offset} before the "
                        f"logs of replicas {behind} began there (KIP-107)",
                    )


def _offsets(node: "Node", body: Any) -> Iterator[tuple[PartitionKey, int]]:
    for led, entry in _results(node, body):
        yield (led.topic_id, led.index), int(entry.offset)


def _results(node: "Node", body: Any) -> Iterator[tuple[Partition, Any]]:
    """Yield the partitions of a request or a response that the node leads."""
    for topic in () if body is None else body.topics:
        for partition in topic.partitions:
            led = node.broker.partitions.by_name.get((topic.name, int(partition.partition_index)))
            if led is not None and led.followed_leader is None:
                yield led, partition
