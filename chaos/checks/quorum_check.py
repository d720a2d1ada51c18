"""Base of the checks that look at the quorum. They see what changed in a node's replica of the metadata log."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chaos.checks.batches import Batch
from chaos.checks.check import Check
from chaos.checks.quorum_view import Member, Seen

if TYPE_CHECKING:
    from chaos.checks.surroundings import Surroundings


class QuorumCheck(Check):
    """A check overrides the methods for what it wants to see."""

    def __init__(self, around: "Surroundings") -> None:
        super().__init__(around)
        self.view = around.quorum
        for method, told in (
            ("changed", self.view.of_changes),
            ("appended", self.view.of_appends),
            ("committed", self.view.of_commits),
        ):
            if getattr(type(self), method) is not getattr(QuorumCheck, method):
                told.append(self)

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        """Called when something of ``Seen`` changed, not only how far the log reaches.

        ``before`` is the last state of the same node, in this or an earlier incarnation.
        """

    def appended(self, at_us: int, member: Member, batches: Sequence[Batch]) -> None:
        """Called when batches now stand in the member's log. They are read anew after a start."""

    def committed(self, at_us: int, member: Member, batches: Sequence[tuple[Batch, bytes]]) -> None:
        """Called when this member is the first in the run to know that these batches are committed. Each comes with its
        bytes."""
