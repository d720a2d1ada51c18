from collections.abc import Sequence
from typing import TYPE_CHECKING

from chaos.checks.replica_view import PartitionKey, ReplicaCheck, Replicated
from chaos.checks.surroundings import Surroundings
from reference_broker.core.effects import Effect, Reply
from reference_broker.core.events import Event, Request
from reference_broker.wire.produce import ProduceRequest, ProduceResponse

if TYPE_CHECKING:
    from reference_broker.core.node import Node

PRODUCE = 0
ALL = -1


class NoAckedLost(ReplicaCheck):
    """no-acked-lost: when a leader acknowledges a write with acks=all, the write is committed and enough replicas hold
    it.

    Enough are all that are in sync by the leader's own metadata, and its min.insync.replicas by the same metadata
    (E-2). It may know less than the controller, so a smaller ISR counts only together with the minimum that holds with
    it. Other checks judge whether it is kept afterwards: replicas-equal at each new leader, lost-write and unseen at
    the end.

    ``acted`` notes what a node acknowledged. ``viewed`` judges it, when the view knows what the node holds now.
    """

    guarantee = "no-acked-lost"
    acts_on = (PRODUCE,)

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._asked: dict[tuple[int, int, int], None] = {}
        """(node, connection, correlation ID) of requests with acks=all"""
        self._answered: list[tuple[Node, ProduceResponse]] = []
        self._acknowledged: dict[tuple[PartitionKey, int], dict[int, None]] = {}
        """the offsets by partition, and by how many losses it had had when they were acknowledged"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        if not self.replicas.partitions:
            return
        node_id = node.broker.node_id
        if type(event) is Request and event.api_key == PRODUCE:
            body = event.body
            if isinstance(body, ProduceRequest) and body.acks == ALL:
                self._asked[node_id, event.connection, event.correlation_id] = None
        for effect in effects:
            if type(effect) is Reply and effect.api_key == PRODUCE and isinstance(effect.body, ProduceResponse):
                key = (node_id, effect.connection, effect.correlation_id)
                if key in self._asked:
                    del self._asked[key]
                    self._answered.append((node, effect.body))

    def viewed(self, at_us: int, node: "Node") -> None:
        if not self._answered:
            return
        answered, self._answered = self._answered, []
        for answerer, body in answered:
            if answerer is not node:
                continue  # It died of that very event, so nobody got the answer.
            for topic in body.responses:
                for each in topic.partitions:
                    if each.error_code or each.base_offset < 0:
                        continue
                    topic_id = topic.topic_id.strip(b"\0") and topic.topic_id
                    key = (topic_id or node.broker.partitions.topic_ids.get(topic.topic, b""), each.partition)
                    partition = self.replicas.partitions.get(key)
                    if partition is not None and self._is_judged(partition, node.broker.node_id):
                        self._acknowledges(at_us, node, partition, each.base_offset)

    @staticmethod
    def _is_judged(partition: Replicated, node_id: int) -> bool:
        """E-7: where nobody had kept what was committed, it begins anew with the log of the leader elected then."""
        copy = partition.copies.get(node_id)
        leads = copy is not None and copy.held.leader_epoch == partition.leader_epoch
        return not partition.excused and (leads or not partition.losses)

    def _acknowledges(self, at_us: int, node: "Node", partition: Replicated, offset: int) -> None:
        node_id = node.broker.node_id
        self._acknowledged.setdefault((partition.key, partition.losses), {})[offset] = None
        batch = partition.committed.get(offset)
        if batch is None:
            self.violated(
                at_us,
                f"{partition.name}: leader {node_id} acknowledged offset {offset} to a producer that asked for all, "
                f"but only what is below {partition.committed_end} is committed",
            )
            return
        holders = [each.node_id for each in partition.copies.values() if each.held.end_offset > batch.last_offset]
        eligible = partition.eligible
        had = (each for each in eligible.tainted if eligible.had(each, batch.last_offset + 1))
        counted = dict.fromkeys((*holders, *had))
        isr, min_isr = self.replicas.isr_known_to(node, partition)
        if len(counted) < min_isr or any(each not in counted and each not in eligible.unclean for each in isr):
            self.violated(
                at_us,
                f"{partition.name}: leader {node_id} acknowledged {batch.named}, which only {holders} hold; "
                f"by its metadata {isr} are in sync, and at least {min_isr} must hold it",
            )

    def quiet(self, at_us: int) -> None:
        for (key, losses), offsets in self._acknowledged.items():
            partition = self.replicas.partitions.get(key)
            if partition is None or partition.losses != losses:
                continue  # The topic was deleted; or E-7: nobody had kept what was committed, and a leader had lost it.
            for leader in (each for each in partition.copies.values() if each.leads):
                lost = [each for each in offsets if each >= leader.held.end_offset]
                if lost and leader.held.leader_epoch == partition.leader_epoch:
                    self.violated(
                        at_us,
                        f"{partition.name}: {len(lost)} acknowledged batches are gone, the first at offset {lost[0]}; "
                        f"leader {leader.node_id}'s log ends at {leader.held.end_offset}",
                    )
