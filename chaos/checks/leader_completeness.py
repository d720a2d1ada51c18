from chaos.checks.quorum_view import Member, QuorumCheck, Seen
from chaos.checks.surroundings import Surroundings
from reference_broker.core.effects import Note


class LeaderCompleteness(QuorumCheck):
    """leader-completeness: every later leader's log holds the committed batches unchanged, and all nodes agree on them.

    A leader holds what was committed before anybody led in a later epoch. A node may learn late that it was elected, as
    one does that was stopped meanwhile. By then a later leader may have committed more (Raft: Leader Completeness
    speaks of leaders of higher terms).

    If a node's log starts at a snapshot, it is judged from the snapshot's end on. snapshot-equals-replay judges the
    snapshot itself.
    """

    guarantee = "leader-completeness"
    notes = ("truncated",)

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._same_to: dict[int, int] = {}
        self._committed_at: dict[int, int] = {}
        """For each epoch, up to where batches were committed when its leader began."""

    def note(self, at_us: int, member: Member, note: Note) -> None:
        offset = int(dict(note.fields)["offset"])
        known = member.seen.high_watermark
        if offset < known and offset < self._same_to.get(member.node_id, 0):
            self.violated(at_us, f"node {member.node_id} truncates to {offset}, below its high watermark {known}")

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        if before.incarnation != after.incarnation:
            self._same_to[member.node_id] = 0
        if after.leads and not (before.leads and before.epoch == after.epoch):
            committed = self._committed_at.setdefault(after.epoch, self.view.committed_end)
            later = (end for epoch, end in self._committed_at.items() if epoch > after.epoch)
            self._compare(at_us, member, after.start_offset, min([committed, *later]), "leads and")
        committed = min(after.high_watermark, self.view.committed_end)
        checked = self._same_to.get(member.node_id, 0)
        if committed > checked:
            self._compare(at_us, member, max(checked, after.start_offset), committed, "raised its high watermark and")
            self._same_to[member.node_id] = committed

    def _compare(self, at_us: int, member: Member, start: int, end: int, who: str) -> None:
        held, offset = member.batches, start
        while offset < end:
            wanted = self.view.committed.get(offset)
            if wanted is None:
                # Physical: no living node had it as a batch any more when the view came to it, but as a snapshot. So
                # nobody can say what stood there. snapshot-equals-replay judges the snapshot.
                offset = next((each for each in self.view.committed if each > offset), end)
                continue
            found = held.get(offset)
            if found != wanted:
                holds = "lacks" if found is None else f"holds {found.named} instead of"
                self.violated(at_us, f"node {member.node_id} {who} {holds} the committed {wanted.named}")
                return
            offset = wanted.last_offset + 1
