from chaos.checks.quorum_view import Member, QuorumCheck, Seen


class MajorityHighWatermark(QuorumCheck):
    """majority-high-watermark: a majority of the voters durably holds what a leader calls committed."""

    guarantee = "majority-high-watermark"

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        committed = after.high_watermark
        if not after.leads or committed <= before.high_watermark or committed <= self.view.committed_end:
            return
        holders = [each.node_id for each in self.view.nodes if each.is_voter and each.seen.synced >= committed]
        if len(holders) < self.view.majority:
            self.violated(
                at_us,
                f"leader {member.node_id} of epoch {after.epoch} committed up to {committed}, which is durable on "
                f"voters {holders} only, of {self.view.voters}",
            )
