from chaos.checks.quorum_view import Member, QuorumCheck
from reference_broker.core.effects import Note

MARKER_KINDS = ("begin", "end", "abort")
METADATA_VERSION = "metadata.version"
LOWEST_LEVEL = 13
"""T-2: the level from which on markers may be written (3.6-IV1)."""


class MarkersGated(QuorumCheck):
    """markers-gated: no node holds a committed transaction marker below the metadata.version that allows them.

    The bootstrap of an empty log is judged by the version that it writes, since there is none before (T-2).
    """

    guarantee = "markers-gated"
    needs_one_node = True
    notes = ("metadata_committed",)

    def note(self, at_us: int, member: Member, note: Note) -> None:
        """The node has handled the event by now, so its image holds what was committed in the event."""
        fields = dict(note.fields)
        if fields["kind"] not in MARKER_KINDS or member.replica is None:
            return
        version = member.replica.loader.image.features.get(METADATA_VERSION, 0)
        if 0 < version < LOWEST_LEVEL:  # T-7: a bootstrap's Begin and Abort stand before any level.
            self.violated(
                at_us,
                f"node {member.node_id} has a committed {fields['kind']} at offset {fields['offset']}, at "
                f"metadata.version {version}",
            )
