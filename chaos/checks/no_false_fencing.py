from chaos.checks.quorum_view import Member, QuorumCheck, Seen
from chaos.checks.surroundings import Surroundings
from reference_broker.core.effects import Note


class NoFalseFencing(QuorumCheck):
    """no-false-fencing: no broker is fenced while it and its way to the controller were left alone for a whole session.

    No process registers as a broker twice. It would do so only if another registration had taken its ID.
    """

    guarantee = "no-false-fencing"
    notes = ("broker_fenced", "broker_registered")

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._session_us = around.settings.session_us
        self._leads_since_us: dict[int, int] = {}
        self._registered: dict[int, tuple[int, int | str]] = {}
        """For each node its last incarnation, and the broker epoch of that."""

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        if after.leads and not (before.leads and before.epoch == after.epoch):
            self._leads_since_us[member.node_id] = at_us

    def note(self, at_us: int, member: Member, note: Note) -> None:
        if note.what == "broker_registered":
            self._has_registered(at_us, member, dict(note.fields)["epoch"])
            return
        broker = int(dict(note.fields)["broker"])
        trouble, from_us = self.view.trouble, at_us - self._session_us
        # Physical: heartbeats of a node that is dead, paused or cut off do not arrive.
        touched = (
            trouble.node_since(broker, from_us)
            or trouble.node_since(member.node_id, from_us)
            or (broker != member.node_id and trouble.between_since(broker, member.node_id, from_us))
        )
        if not touched and self._leads_since_us.get(member.node_id, at_us) < from_us:
            self.violated(
                at_us,
                f"controller {member.node_id} fenced broker {broker}, although no fault had touched them for "
                f"{self._session_us // 1000} ms",
            )

    def _has_registered(self, at_us: int, member: Member, epoch: int | str) -> None:
        incarnation, first = self._registered.get(member.node_id, (-1, epoch))
        if incarnation == member.seen.incarnation and first != epoch:
            self.violated(
                at_us, f"broker {member.node_id} lost its ID, for it had epoch {first} and has epoch {epoch} now"
            )
        self._registered[member.node_id] = (member.seen.incarnation, epoch)
