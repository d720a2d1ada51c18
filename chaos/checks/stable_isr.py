from typing import TYPE_CHECKING

from chaos.checks.replica_view import ReplicaCheck, Replicated
from chaos.checks.surroundings import Surroundings
from reference_broker.core.effects import Note
from reference_broker.metadata.image import PartitionImage

if TYPE_CHECKING:
    from chaos.checks.quorum_view import Member
    from reference_broker.core.node import Node


class StableIsr(ReplicaCheck):
    """stable-isr: a replica stays in sync while no fault touches it, its leader, or a link of theirs.

    A follower that has nothing to fetch stays in sync, however long that lasts (F-22).

    ``_fenced_early`` has the brokers that a new controller fenced before it had led for a whole session, and when.
    Their heartbeats may still have gone to the controller before it, which a fault had silenced (physical).
    """

    guarantee = "stable-isr"
    notes = ("leader_elected", "broker_fenced")

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._elections: list[tuple[int, int]] = []
        """(time, node) of each leader of the quorum, in order"""
        self._fenced_early: dict[int, int] = {}
        self._left: list[tuple[int, int, str]] = []
        """(time, replica, story) of who left in this event, whose notes come after the metadata"""

    def note(self, at_us: int, member: "Member", note: Note) -> None:
        if note.what == "leader_elected":
            self._elections.append((at_us, member.node_id))
            return
        elected_us, controller = self._elections[-1] if self._elections else (0, -1)
        if controller != member.node_id or at_us - elected_us > self.around.settings.session_us:
            return
        since_us = at_us - self.around.settings.in_sync_us
        if any(self.replicas.trouble.touches_since(node, since_us) for _, node in self._elections[-2:-1]):
            self._fenced_early[int(dict(note.fields)["broker"])] = at_us

    def metadata_changed(self, at_us: int, partition: Replicated, before: PartitionImage, now: PartitionImage) -> None:
        trouble, in_sync_us = self.replicas.trouble, self.around.settings.in_sync_us
        since_us = at_us - in_sync_us
        for member in before.isr:
            # Physical: who was dead, paused or cut off could not fetch, serve or be heard (F-22).
            judged = (member, before.leader, now.leader)
            if member in now.isr or any(trouble.touches_since(node, since_us) for node in judged):
                continue
            story = (
                f"{partition.name}: replica {member} left the in-sync replicas {before.isr} of leader {before.leader}, "
                f"although no fault had touched it for {in_sync_us // 1000} ms"
            )
            self._left.append((at_us, member, story))

    def viewed(self, at_us: int, node: "Node") -> None:  # noqa: ARG002
        if self._left:
            self._judge()

    def quiet(self, at_us: int) -> None:  # noqa: ARG002
        self._judge()

    def _judge(self) -> None:
        for left_us, replica, story in self._left:
            if self._fenced_early.get(replica, -1) < left_us - self.around.settings.in_sync_us:
                self.violated(left_us, story)
        self._left.clear()
