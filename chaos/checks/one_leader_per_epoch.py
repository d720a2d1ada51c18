from chaos.checks.quorum_view import Member, QuorumCheck, Seen
from chaos.checks.surroundings import Surroundings


class OneLeaderPerEpoch(QuorumCheck):
    """one-leader-per-epoch: no two nodes lead in one epoch, and all nodes name the same leader of it."""

    guarantee = "one-leader-per-epoch"

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._leaders: dict[int, int] = {}
        self._believed: dict[int, tuple[int, int]] = {}

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        if after.leads and not (before.leads and before.epoch == after.epoch):
            self.looked_at += 1
            leader = self._leaders.setdefault(after.epoch, member.node_id)
            if leader != member.node_id:
                self.violated(at_us, f"nodes {leader} and {member.node_id} both lead in epoch {after.epoch}")
            if not member.is_voter:
                self.violated(at_us, f"node {member.node_id} has no vote and leads in epoch {after.epoch}")
        if after.leader_id >= 0:
            leader, who = self._believed.setdefault(after.epoch, (after.leader_id, member.node_id))
            if leader != after.leader_id:
                self.violated(
                    at_us,
                    f"epoch {after.epoch}: node {who} follows {leader}, node {member.node_id} {after.leader_id}",
                )
