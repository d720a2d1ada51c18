"""rewinds: no client that keeps metadata epochs is told OFFSET_OUT_OF_RANGE at a position that its partition holds.

Some positions do not count:
- Below a log start that was seen, because those records were deleted. The log start may have moved before the reset
  although it was first seen after it.
- Above the log's end once all is quiet: M-15 speaks of logs without truncation.
- Those of clients without the metadata epoch (-1): their rewind is the failure that the epoch prevents (M-15).
- Those of a client that began at an offset which was committed without an epoch (M-11): it has no epoch to wait for.
"""

from chaos.checks.check import Check, History
from chaos.checks.no_fetch_before_epoch import learnt
from chaos.checks.values import Place, grouped, place
from reports.rows import CommitRow, ResetRow

OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"


class Rewinds(Check):
    guarantee = "rewinds"

    def end(self, history: History) -> None:
        keepers = {row.process for row in history.metadata_epochs if row.accepted and row.metadata_epoch >= 0}
        self.looked_at += sum(row.process in keepers for row in history.positions)
        starts: dict[Place, int] = {}
        for row in history.positions:
            starts[place(row)] = max(starts.get(place(row), 0), row.log_start_offset)
        began = grouped(learnt(history), lambda row: (row.process, place(row)))
        ends = {place(row): row.high_watermark for row in history.ends}
        for reset in history.resets:
            where = place(reset)
            is_lost = reset.from_offset > ends.get(where, reset.from_offset)
            is_held = starts.get(where, 0) <= reset.from_offset and not is_lost
            has_epoch = reset.metadata_epoch >= 0 and _had_epoch(reset, began.get((reset.process, where), []))
            if reset.reason == OUT_OF_RANGE and is_held and has_epoch:
                self.violated(
                    reset.at_us,
                    f"{reset.process} stood at offset {reset.from_offset} of {reset.topic}-{reset.partition}, was told "
                    f"that it is out of range and went on at {reset.to_offset}; its metadata epoch was "
                    f"{reset.metadata_epoch}",
                )


def _had_epoch(reset: ResetRow, of_place: list[CommitRow]) -> bool:
    """Returns whether the offset at which the client began had a metadata epoch."""
    before = [each for each in of_place if each.at_us <= reset.at_us]
    last = max(before, key=lambda each: each.at_us, default=None)
    return last is None or last.metadata_epoch >= 0 or last.offset < 0
