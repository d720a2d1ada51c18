from chaos.checks.quorum_view import Member, QuorumCheck
from reference_broker.core.effects import Note


class LeaderNeverLoadsSnapshot(QuorumCheck):
    """leader-never-loads-snapshot: a leader never takes its state from a snapshot, its own or another's."""

    guarantee = "leader-never-loads-snapshot"
    notes = ("snapshot_loaded", "download_started", "download_finished")

    def note(self, at_us: int, member: Member, note: Note) -> None:
        """A node may finish loading and be elected in one event, so it must lead both before and after the event."""
        if member.leads and member.replica.quorum.is_leader:
            self.violated(at_us, f"node {member.node_id} leads in epoch {member.seen.epoch}: {note.what} {note.fields}")
