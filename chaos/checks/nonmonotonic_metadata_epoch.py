import json
from typing import ClassVar

from chaos.checks.check import Check
from chaos.checks.history import History, grouped
from chaos.checks.surroundings import Surroundings
from reports.rows import TraceRow

EPOCH_COMMITTED, APPLIED = "metadata_epoch", "update_metadata_applied"


class NonmonotonicMetadataEpoch(Check):
    """nonmonotonic-metadata-epoch: no client and no node takes metadata that is older than its own, and the metadata
    log holds each epoch once.

    A client that left and came back begins anew (M-12: -1 before any response). A node begins anew with its process,
    because M-1 makes the log durable and not what a node has applied. The log's epochs grow with its offsets.
    """

    guarantee = "nonmonotonic-metadata-epoch"
    rows: ClassVar[tuple[str, ...]] = (EPOCH_COMMITTED, APPLIED)

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._applied: dict[tuple[int, int], int] = {}
        self._offset_of: dict[int, int] = {}
        self._epoch_at: dict[int, int] = {}
        self._last = (-1, -1)

    def trace(self, row: TraceRow) -> None:
        fields = json.loads(row.detail)
        epoch = int(fields["epoch"])
        if row.what == APPLIED:
            key = (row.node, row.incarnation)
            known = self._applied.get(key, -1)
            if epoch < known:
                self.violated(row.at_us, f"node {row.node} had metadata epoch {known} and applied {epoch}")
            self._applied[key] = max(known, epoch)
            return
        self._in_the_log(row.at_us, epoch, int(fields["offset"]))

    def _in_the_log(self, at_us: int, epoch: int, offset: int) -> None:
        """All notes of a committed epoch must name the same offset."""
        if self._epoch_at.get(offset, epoch) != epoch or self._offset_of.get(epoch, offset) != offset:
            other = self._offset_of.get(epoch, offset)
            self.violated(at_us, f"metadata epoch {epoch} was committed at offset {offset}, and at {other}")
        elif offset not in self._epoch_at and offset > self._last[0] and epoch <= self._last[1]:
            self.violated(
                at_us,
                f"metadata epoch {epoch} was committed at offset {offset}, behind {self._last[1]} at {self._last[0]}",
            )
        self._epoch_at.setdefault(offset, epoch)
        self._offset_of.setdefault(epoch, offset)
        self._last = max(self._last, (offset, epoch))

    def end(self, history: History) -> None:
        left = grouped((row for row in history.memberships if row.event == "left"), lambda row: row.process)
        known: dict[tuple[str, int], int] = {}
        for each in sorted(history.metadata_epochs, key=lambda row: (row.at_us, row.index)):
            if not each.accepted:
                continue
            self.looked_at += 1
            # Metadata that the client requested before it left, or in that microsecond, belongs to its life before,
            # even if the response came later.
            operation = history.operation_of.get((each.process, each.index))
            from_us = each.at_us if operation is None else operation.invoke_us
            life = sum(row.at_us < from_us for row in left.get(each.process, ()))
            had = known.get((each.process, life), each.metadata_epoch)
            if each.metadata_epoch < had:
                self.violated(
                    each.at_us,
                    f"{each.process} had metadata epoch {had} and took {each.metadata_epoch} from node {each.node}",
                )
            known[each.process, life] = max(had, each.metadata_epoch)
