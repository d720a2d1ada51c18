"""high-watermark-monotonic: a replica's high watermark never goes back while its process lives, and lies in its log."""

from chaos.checks.replica_check import ReplicaCheck
from chaos.checks.replica_view import Copy, Held, Replicated


class HighWatermarkMonotonic(ReplicaCheck):
    guarantee = "high-watermark-monotonic"

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:
        if partition.ever_excused:
            return  # E-7: nobody had kept what was committed, so a follower truncates below its high watermark.
        who = f"{partition.name} on node {copy.node_id}"
        if before.incarnation == now.incarnation and now.high_watermark < before.high_watermark:
            self.violated(at_us, f"{who}: it went back from {before.high_watermark} to {now.high_watermark}")
        if not now.start_offset <= now.high_watermark <= now.end_offset:
            self.violated(
                at_us, f"{who}: {now.high_watermark} lies outside its log, {now.start_offset}..{now.end_offset}"
            )
