from chaos.checks.quorum_view import Member, QuorumCheck, Seen
from chaos.checks.surroundings import Surroundings


class StableLeadership(QuorumCheck):
    """stable-leadership: a leader stays leader while no fault touches it or its links to a majority of untouched
    voters.

    So a node that was cut off or restarted deposes nobody (pre-vote). The check judges once such a majority has been
    left alone for ``Settings.settled_us``. A node that had already reached a higher epoch may still depose the leader:
    raft lets every node follow the highest epoch that it hears of.
    """

    guarantee = "stable-leadership"

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._settled_us = around.settings.settled_us
        self._leader = (-1, -1)
        """(epoch, node) of the newest leader."""
        self._since_us = 0
        self._risen: dict[int, int] = {}
        """by epoch: when the first node reached it"""

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        if after.epoch != before.epoch:
            self._risen.setdefault(after.epoch, at_us)
        if not after.leads or after.epoch <= self._leader[0]:
            return
        (epoch, leader), since_us = self._leader, self._since_us
        self._leader, self._since_us = (after.epoch, member.node_id), at_us
        if leader < 0:
            return
        deposed_us = min((when for each, when in self._risen.items() if each > epoch), default=at_us)
        if self._untouched(leader, since_us, deposed_us):
            self.violated(
                at_us,
                f"node {member.node_id} leads in epoch {after.epoch}, although leader {leader} of epoch {epoch} had a "
                f"majority that no fault had touched for {self._settled_us // 1000} ms",
            )

    def _untouched(self, leader: int, since_us: int, until_us: int) -> bool:
        trouble, from_us = self.view.trouble, until_us - self._settled_us
        # Physical: a leader that is dead, paused or cut off from a majority cannot keep its office.
        if since_us > from_us or trouble.node_since(leader, from_us):
            return False
        with_it = [
            each.node_id
            for each in self.view.nodes
            if each.is_voter and (each.node_id == leader or self._calm(leader, each.node_id, from_us))
        ]
        return len(with_it) >= self.view.majority

    def _calm(self, leader: int, voter: int, from_us: int) -> bool:
        trouble = self.view.trouble
        return not (trouble.node_since(voter, from_us) or trouble.between_since(leader, voter, from_us))
