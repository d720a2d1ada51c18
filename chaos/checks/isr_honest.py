from chaos.checks.replica_view import Copy, Held, ReplicaCheck, Replicated
from reference_broker.metadata.image import PartitionImage


class IsrHonest(ReplicaCheck):
    """isr-honest: each in-sync replica and each eligible leader replica holds all that is committed.

    The check looks when the newest leader's high watermark moves, and when the metadata adds a replica to one of the
    two sets. A replica that registered after an unclean shutdown may not be eligible (E-4).
    """

    guarantee = "isr-honest"

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:
        moved = now.high_watermark > before.high_watermark and before.incarnation == now.incarnation
        if moved and now.leader_epoch == partition.state.leader_epoch:
            for member in (*partition.state.isr, *partition.state.elr):
                what = f"the high watermark of leader {copy.node_id}"
                self._holds(at_us, partition, member, now.high_watermark, what)

    def metadata_changed(self, at_us: int, partition: Replicated, before: PartitionImage, now: PartitionImage) -> None:
        for member in now.isr:
            if member not in before.isr:
                self._holds(at_us, partition, member, partition.committed_end, "committed when it joined")
        for member in now.elr:
            if member in partition.eligible.registered:
                self.violated(
                    at_us,
                    f"{partition.name}: {member} is an eligible leader in partition epoch {now.partition_epoch}, "
                    "although it registered after an unclean shutdown",
                )
            elif member not in before.elr:
                self._holds(at_us, partition, member, partition.committed_end, "committed when it became eligible")

    def _holds(self, at_us: int, partition: Replicated, member: int, offset: int, what: str) -> None:
        if partition.excused:
            return  # E-7: nobody had kept what was committed, and the leader elected then has not taken over yet.
        copy = partition.copies.get(member)
        end_offset = 0 if copy is None else copy.held.end_offset
        if end_offset < offset and not partition.eligible.had(member, offset):
            self.violated(
                at_us,
                f"{partition.name}: {member} ends at {end_offset}, below {offset}, {what}; "
                f"in sync: {partition.state.isr}, eligible: {partition.state.elr}",
            )
