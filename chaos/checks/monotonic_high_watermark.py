from chaos.checks.quorum_view import Member, QuorumCheck, Seen
from chaos.checks.surroundings import Surroundings


class MonotonicHighWatermark(QuorumCheck):
    """monotonic-high-watermark: the high watermark never goes back on a living process, nor from leader to leader."""

    guarantee = "monotonic-high-watermark"

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._by_leaders: tuple[int, int] = (-1, -1)
        """The last leader's epoch, and what leaders of earlier epochs had committed."""
        self._committed = -1

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        now = after.high_watermark
        if now < 0 or (now == before.high_watermark and after.leads == before.leads):
            return
        if before.incarnation == after.incarnation and now < before.high_watermark:
            self.violated(at_us, f"node {member.node_id}: it went back from {before.high_watermark} to {now}")
        if now > after.end_offset:
            self.violated(at_us, f"node {member.node_id}: {now} lies beyond its log's end {after.end_offset}")
        if not after.leads:
            return
        epoch, earlier = self._by_leaders
        if after.epoch > epoch:
            epoch, earlier = self._by_leaders = (after.epoch, self._committed)
        # A new leader tells a high watermark only once a record of its own epoch is committed. That record lies above
        # all earlier ones.
        if after.epoch == epoch and now < earlier and now != before.high_watermark:
            self.violated(at_us, f"leader {member.node_id} of epoch {epoch} says {now}, earlier leaders said {earlier}")
        self._committed = max(self._committed, now)
