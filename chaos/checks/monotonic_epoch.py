from chaos.checks.quorum_view import Member, QuorumCheck, Seen
from chaos.checks.surroundings import Surroundings
from reference_broker.core.effects import Note


class MonotonicEpoch(QuorumCheck):
    """monotonic-epoch: a node's epoch never goes back within a process, nor over restarts below an epoch it acted in.

    A node acts in an epoch when it leads, follows a leader, or votes. Such an epoch was durable before. A process that
    ends on the way into an epoch may forget it.
    """

    guarantee = "monotonic-epoch"
    notes = ("voted",)

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._acted: dict[tuple[int, int], int] = {}
        """By node and number of its directory. Physical: a node with another directory cannot remember."""

    def note(self, at_us: int, member: Member, note: Note) -> None:  # noqa: ARG002
        fields = dict(note.fields)
        self._acts(member, int(fields["epoch"]))

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        if before.incarnation == after.incarnation:
            if after.epoch < before.epoch:
                self.violated(at_us, f"node {member.node_id} went back from epoch {before.epoch} to {after.epoch}")
        elif after.epoch < self._acted.get(self._who(member), -1):
            self.violated(
                at_us,
                f"node {member.node_id} came back in epoch {after.epoch}, although it had acted in epoch "
                f"{self._acted[self._who(member)]}",
            )
        if after.leads or after.leader_id >= 0:
            self._acts(member, after.epoch)

    def _acts(self, member: Member, epoch: int) -> None:
        if epoch > self._acted.get(self._who(member), -1):
            self._acted[self._who(member)] = epoch

    def _who(self, member: Member) -> tuple[int, int]:
        return member.node_id, self.view.trouble.directories.get(member.node_id, 0)
