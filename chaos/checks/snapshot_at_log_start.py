from typing import Any

from chaos.checks.quorum_view import Member, QuorumCheck, Seen
from chaos.checks.surroundings import Surroundings
from reference_broker.core.effects import Note


class SnapshotAtLogStart(QuorumCheck):
    """snapshot-at-log-start: a log that does not begin at 0 has a snapshot that reaches its start.

    Each snapshot ends at a committed offset, in the epoch that the log has there.
    """

    guarantee = "snapshot-at-log-start"
    notes = ("snapshot_renamed", "snapshot_deleted", "download_finished")

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._ids: dict[int, tuple[tuple[int, int], ...]] = {}

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        if after.start_offset == before.start_offset and after.incarnation == before.incarnation:
            return
        self._look(at_us, member)

    def note(self, at_us: int, member: Member, note: Note) -> None:  # noqa: ARG002
        self._look(at_us, member)

    def quiet(self, at_us: int) -> None:
        for member in self.view.nodes:
            self._look(at_us, member)

    def _look(self, at_us: int, member: Member) -> None:
        replica: Any = member.replica
        if replica is None:
            return
        ids, start = tuple(replica.store.ids), replica.log.start_offset
        if start > 0 and not any(offset >= start for offset, _ in ids):
            self.violated(
                at_us, f"node {member.node_id}: its log begins at {start}, but there is no snapshot up to there: {ids}"
            )
        known = self._ids.get(member.node_id, ())
        self._ids[member.node_id] = ids
        for offset, epoch in ids:
            if (offset, epoch) not in known:
                self._valid(at_us, member, offset, epoch)

    def _valid(self, at_us: int, member: Member, offset: int, epoch: int) -> None:
        who = f"node {member.node_id}: snapshot ({offset}, {epoch})"
        if offset > self.view.committed_end:
            self.violated(at_us, f"{who} reaches beyond the committed end {self.view.committed_end}")
            return
        last = next((each for each in reversed(self.view.committed.values()) if each.base_offset < offset), None)
        if last is not None and (last.last_offset + 1 != offset or last.epoch != epoch):
            self.violated(at_us, f"{who} does not end where {last.named} does")
