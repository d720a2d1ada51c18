from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from chaos.checks.batches import Producing, batches_of, producing_of, read_batches
from chaos.checks.check import Check
from chaos.checks.history import without_node
from chaos.checks.surroundings import Surroundings
from reference_broker.core.effects import Effect, Reply
from reference_broker.core.events import Closed, Event, Request
from reference_broker.replication.partitions import Partition
from reference_broker.wire.produce import ProducePartitionResponse, ProduceRequest, ProduceResponse

if TYPE_CHECKING:
    from reference_broker.core.node import Node

PRODUCE = 0
UNKNOWN_PRODUCER_ID = 59
REJECT = "reject"

_Place: TypeAlias = tuple[bytes, int]
"""ID of the topic, and index."""


@dataclass(slots=True)
class _Producer:
    """What is known of a producer ID in one partition. ``sent_ms`` is the largest timestamp of its batches and of the
    times at which they were sent. ``acked_ms`` and ``acked_at`` are the timestamp and the offset of its last batch that
    was acknowledged; -1 if there is none."""

    sent_ms: int
    acked_ms: int = -1
    acked_at: int = -1


class _Asked(NamedTuple):
    """A batch under way. When it came, ``overdue_ms`` had passed since its producer's batch before: 0 if the node may
    still know that one, -1 if there was none."""

    place: _Place
    batch: Producing
    overdue_ms: int


class ForgottenProducerRefused(Check):
    """forgotten-producer-refused: who a partition does not know must begin at sequence 0, and only the idle are
    forgotten.

    P-7: an ID is forgotten when ``producer.id.expiration.ms`` have passed since its last record, by the node's wall
    clock and the record's timestamp. Kafka looks for such IDs every ``producer.id.expiration.check.interval.ms``, which
    a steady clock measures, so an ID may be known until the wall clock has shown the expiration for as long. P-5: a
    batch of an unknown ID with another sequence than 0 is refused with UNKNOWN_PRODUCER_ID, if that is the policy.

    The check knows each producer's batches from the requests, and what the wall clock showed at each of them. An ID
    that was never seen, or whose newest batch had expired at all requests of the last interval and at one before it, is
    unknown. An ID with a younger batch that was acknowledged, and that the leader's log still holds, is known. Batches
    of transactions are left out: an open one keeps its producer.
    """

    guarantee = "forgotten-producer-refused"
    acts_on = (PRODUCE, Closed, type(None))

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._producers: dict[tuple[_Place, int], _Producer] = {}
        self._asked: dict[tuple[int, int], dict[int, dict[tuple[str | bytes, int], _Asked]]] = {}
        """by node and connection, by correlation ID, and by the partition as the request names it"""
        self._clocks: dict[int, list[tuple[int, int]]] = {}
        """by node: when Produce requests came (us, steady clock), and what the wall clock showed (ms), oldest first"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        if event is None:
            self._asked = without_node(self._asked, node_id)
            self._clocks.pop(node_id, None)
        elif type(event) is Closed:
            self._asked.pop((node_id, event.connection), None)
        elif type(event) is Request and isinstance(event.body, ProduceRequest):
            interval_us = node.broker.config.producer_id_expiration_check_interval_ms * 1000
            clocks = self._clocks.setdefault(node_id, [])
            clocks.append((at_us, node.broker.now.wall_ms))
            while len(clocks) > 1 and clocks[1][0] <= at_us - interval_us:
                del clocks[0]
            has_interval = clocks[0][0] <= at_us - interval_us
            asked = dict(self._read(node, event.body, min(shown for _, shown in clocks) if has_interval else -1))
            self._asked.setdefault((node_id, event.connection), {})[event.correlation_id] = asked
        for effect in effects:
            if type(effect) is Reply and effect.api_key == PRODUCE:
                found = self._asked.get((node_id, effect.connection), {}).pop(effect.correlation_id, {})
                if isinstance(effect.body, ProduceResponse):
                    for topic in effect.body.responses:
                        for told in topic.partitions:
                            one = found.get((topic.topic or bytes(topic.topic_id), told.partition))
                            if one is not None:
                                self._judge(at_us, node, one, told)

    def _read(
        self, node: "Node", body: ProduceRequest, shown_ms: int
    ) -> Iterator[tuple[tuple[str | bytes, int], _Asked]]:
        """Yields the batches of producers with an ID, if each is alone in its partition's part of the request.
        ``shown_ms`` is the least that the wall clock has shown in the last interval, or -1 if that is not known."""
        led, wall_ms = node.broker.partitions, node.broker.now.wall_ms
        expiration_ms = node.broker.config.producer_id_expiration_ms
        for topic in body.topics:
            for each in topic.partitions:
                named = topic.topic or bytes(topic.topic_id), each.partition
                partition = led.by_name.get((topic.topic, named[1])) or led.by_id.get((topic.topic_id, named[1]))
                batches = [producing_of(data) for _, data in batches_of(bytes(each.records or b""))]
                if partition is None:
                    continue  # Physical: who does not lead it appends nothing.
                place = partition.topic_id, partition.index
                for batch in batches:
                    known = self._producers.get((place, batch.producer_id))
                    sent_ms = max(batch.largest_ms, wall_ms, -1 if known is None else known.sent_ms)
                    if len(batches) == 1 and batch.producer_id >= 0 and not batch.is_transactional:
                        is_overdue = known is not None and shown_ms - known.sent_ms >= expiration_ms
                        overdue_ms = -1 if known is None else (wall_ms - known.sent_ms if is_overdue else 0)
                        yield named, _Asked(place, batch, overdue_ms)
                    if known is None:
                        self._producers[place, batch.producer_id] = _Producer(sent_ms)
                    else:
                        known.sent_ms = sent_ms

    def _judge(self, at_us: int, node: "Node", asked: _Asked, told: ProducePartitionResponse) -> None:
        config, wall_ms = node.broker.config, node.broker.now.wall_ms
        batch, producer = asked.batch, self._producers[asked.place, asked.batch.producer_id]
        who = f"producer {batch.producer_id} with sequence {batch.first_sequence}"
        if told.error_code == UNKNOWN_PRODUCER_ID:
            age_ms = wall_ms - producer.acked_ms
            partition = node.broker.partitions.by_id.get(asked.place)
            is_held = partition is not None and _holds(partition, producer.acked_at, batch.producer_id)
            if is_held and age_ms < config.producer_id_expiration_ms:
                self.violated(at_us, f"{who} was called unknown {age_ms} ms after its last record")
            elif batch.first_sequence == 0:
                self.violated(at_us, f"{who} was called unknown, and may begin at 0")
        elif told.error_code == 0:
            if batch.first_sequence > 0 and config.crucible_unknown_producer_id_policy == REJECT:
                if asked.overdue_ms < 0:
                    self.violated(at_us, f"{who} was accepted, and the partition had never heard of it")
                elif asked.overdue_ms:
                    self.violated(
                        at_us,
                        f"{who} was accepted {asked.overdue_ms} ms after its last batch, and the clock had shown "
                        f"{config.producer_id_expiration_ms} ms for "
                        f"{config.producer_id_expiration_check_interval_ms} ms",
                    )
            if told.base_offset >= 0:
                producer.acked_ms, producer.acked_at = batch.largest_ms, told.base_offset


def _holds(partition: Partition, offset: int, producer_id: int) -> bool:
    """Whether the log still has the batch at this offset, by this producer. Nobody cuts off what is in the remote tier
    only: it was committed (P-11)."""
    log = partition.log
    if log.log_start_offset <= offset < log.local_log_start_offset:
        return True
    if not log.log_start_offset <= offset < log.log_end_offset:
        return False
    found = next(read_batches(log, offset, log.log_end_offset), None)
    return found is not None and found[0].base_offset == offset and producing_of(found[1]).producer_id == producer_id
