from chaos.checks.fetch_model import Answer
from chaos.checks.read_replicas import NO_REPLICA, in_rack, selects
from chaos.checks.replica_check import ReplicaCheck
from reference_broker.replication.partitions import Partition
from reference_broker.wire.fetch import PartitionData


class ReadReplicaEligible(ReplicaCheck):
    """read-replica-eligible: a consumer is sent only to a follower that is in sync, in its rack, and holds its offset.

    The answer that names a preferred read replica has no records (KIP-392). The follower's own log is looked at, too:
    the leader knows only what the follower has told. Of offsets that are not committed nothing is required there, since
    another leader may have made the follower truncate them.
    """

    guarantee = "read-replica-eligible"

    def answered(self, at_us: int, answer: Answer) -> None:
        for named, data in answer.data.items():
            partition, wish = answer.led(named), answer.asked.wishes.get(named)
            if data.preferred_read_replica != NO_REPLICA and wish is not None and partition is not None:
                wrong = self._wrong(answer, partition, data, wish.offset)
                if wrong:
                    self.violated(
                        at_us,
                        f"{answer.client_id} was sent to node {data.preferred_read_replica} for offset {wish.offset} "
                        f"of {partition.topic}-{partition.index}: {wrong}",
                    )

    def _wrong(self, answer: Answer, partition: Partition, data: PartitionData, offset: int) -> str:
        node_id = data.preferred_read_replica
        if not selects(answer) or not in_rack(answer, node_id):
            return f"it does not stand in the rack {answer.asked.rack!r}"
        if in_rack(answer, answer.node.broker.node_id):
            return "the leader stands in the client's rack itself"
        if partition.followers is None or node_id not in partition.followers.isr:
            return "it is not in sync"
        if data.records:
            return "records were sent all the same"
        return self._lacks(partition, node_id, offset)

    def _lacks(self, partition: Partition, node_id: int, offset: int) -> str:
        """Says what the follower's log lacks."""
        known = self.replicas.partitions.get((partition.topic_id, partition.index))
        copy = None if known is None else known.copies.get(node_id)
        # Physical: unsynced bytes that were lost with the power are told when the node registers (E-4).
        if known is None or copy is None or copy.log is None or node_id in known.eligible.tainted:
            return ""
        if copy.held.end_offset < min(offset, known.committed_end):
            return f"its log ends at {copy.held.end_offset}"
        return ""
