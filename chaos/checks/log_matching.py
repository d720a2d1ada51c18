from collections.abc import Sequence

from chaos.checks.batches import Batch
from chaos.checks.quorum_view import Member, QuorumCheck
from chaos.checks.surroundings import Surroundings

_Before = tuple[int, int]
NOTHING_KNOWN: _Before = (-1, -1)


class LogMatching(QuorumCheck):
    """log-matching: if two metadata logs hold a batch of the same offset and epoch, they are equal up to that batch.

    The check works by induction. All logs that hold a batch of one (offset, epoch) must hold the same bytes for it, and
    the same batch right before it. Within one log offsets follow each other and epochs never go back.
    """

    guarantee = "log-matching"

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._known: dict[tuple[int, int], tuple[Batch, _Before, int]] = {}

    def appended(self, at_us: int, member: Member, batches: Sequence[Batch]) -> None:
        if not batches:
            return
        last = self._before(member, batches[0])
        for batch in batches:
            before = NOTHING_KNOWN if last is None else (last.base_offset, last.epoch)
            if last is not None and (batch.base_offset != last.last_offset + 1 or batch.epoch < last.epoch):
                self.violated(at_us, f"node {member.node_id}: {batch.named} stands after {last.named}")
            self._match(at_us, member, batch, before)
            last = batch

    def _match(self, at_us: int, member: Member, batch: Batch, before: _Before) -> None:
        key = (batch.base_offset, batch.epoch)
        known = self._known.get(key)
        if known is None:
            self._known[key] = (batch, before, member.node_id)
            return
        other, known_before, who = known
        if other != batch:
            self.violated(at_us, f"node {who} holds {other.named}, node {member.node_id} {batch.named}")
        elif known_before == NOTHING_KNOWN:
            self._known[key] = (batch, before, member.node_id)
        elif before not in (NOTHING_KNOWN, known_before):
            self.violated(
                at_us,
                f"before {batch.named} node {who} holds offset {known_before[0]} of epoch {known_before[1]}, node "
                f"{member.node_id} offset {before[0]} of epoch {before[1]}",
            )

    @staticmethod
    def _before(member: Member, first: Batch) -> Batch | None:
        """Returns the batch before ``first``, or None if the log begins here (or after a snapshot)."""
        last: Batch | None = None
        for batch in reversed(member.batches.values()):
            if batch.base_offset < first.base_offset:
                last = batch
                break
        start = member.seen.start_offset
        return last if last is not None and start < first.base_offset and last.last_offset >= start else None
