from chaos.checks.replica_view import Copy, Held, ReplicaCheck, Replicated


class HighWatermarkMonotonic(ReplicaCheck):
    """high-watermark-monotonic: a replica's high watermark never goes back while its process lives, and lies in its
    log.
    """

    guarantee = "high-watermark-monotonic"

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:
        # E-7: nobody had kept what was committed, so a follower truncates below its high watermark.
        may_go_back = partition.losses > 0 and now.leader_epoch < 0
        # H-4: a follower whose log ends below its leader's marker empties it, and takes that marker over.
        if self.around.settings.tombstone_horizon and copy.log is not None and now.leader_epoch < 0:
            is_empty = now.start_offset == now.end_offset
            may_go_back |= is_empty and before.end_offset < copy.log.horizon.offset
        who = f"{partition.name} on node {copy.node_id}"
        # Physical: a follower's new process learns the high watermark from its leader (it is no part of the log).
        is_same_process = before.incarnation == now.incarnation
        if is_same_process and not may_go_back and now.high_watermark < before.high_watermark:
            self.violated(at_us, f"{who}: it went back from {before.high_watermark} to {now.high_watermark}")
        if not now.start_offset <= now.high_watermark <= now.end_offset:
            self.violated(
                at_us, f"{who}: {now.high_watermark} lies outside its log, {now.start_offset}..{now.end_offset}"
            )
