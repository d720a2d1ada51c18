from chaos.checks.replica_view import Copy, Held, ReplicaCheck, Replicated


class OnePartitionLeaderPerEpoch(ReplicaCheck):
    """one-partition-leader-per-epoch: no two nodes lead a partition in the same leader epoch."""

    guarantee = "one-partition-leader-per-epoch"

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:
        epoch = now.leader_epoch
        if epoch < 0:
            return
        self.looked_at += epoch != before.leader_epoch
        first = partition.leaders.setdefault(epoch, copy.node_id)
        if first != copy.node_id:
            self.violated(
                at_us, f"{partition.name}: nodes {first} and {copy.node_id} both lead in leader epoch {epoch}"
            )
