"""Base of the checks that look at the quorum. They see what changed in a node's replica of the metadata log."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from chaos.checks.batches import Batch
from chaos.checks.check import Check
from chaos.checks.quorum_view import Member, QuorumView, Seen
from reference_broker.core.effects import Note

if TYPE_CHECKING:
    from chaos.checks.surroundings import Surroundings


class QuorumCheck(Check):
    """``notes`` names the Notes that the check wants. They come before the check sees the state that they speak of."""

    notes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, view: QuorumView) -> None:
        super().__init__()
        self.view = view
        own = type(self)
        view.join(self, own.changed is not QuorumCheck.changed, own.appended is not QuorumCheck.appended)

    @classmethod
    def made(cls, around: "Surroundings") -> Self:
        return cls(around.quorum)

    def note(self, at_us: int, member: Member, note: Note) -> None:
        """Called with each note that it asked for."""

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        """Called when something of ``Seen`` changed, not only how far the log reaches.

        ``before`` is the last state of the same node, in this or an earlier incarnation.
        """

    def appended(self, at_us: int, member: Member, batches: Sequence[Batch]) -> None:
        """Called when batches now stand in the member's log. They are read anew after a start."""

    def committed(self, at_us: int, member: Member, batches: Sequence[tuple[Batch, bytes]]) -> None:
        """Called when this member is the first in the run to know that these batches are committed. Each comes with its
        bytes."""

    def quiet(self, at_us: int) -> None:
        """Called when the run is over: all faults are healed, and the nodes had their time."""
