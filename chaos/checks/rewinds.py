import json
from typing import ClassVar

from chaos.checks.check import Check
from chaos.checks.history import History, Place, grouped, place
from chaos.checks.no_fetch_before_epoch import learnt
from chaos.checks.surroundings import Surroundings
from reports.rows import CommitRow, EndRow, PositionRow, ResetRow, TraceRow

OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"


class Rewinds(Check):
    """rewinds: no client that keeps metadata epochs is told OFFSET_OUT_OF_RANGE at a position that its partition holds.

    Some positions do not count:
    - Below a log start that was seen, because those records were deleted. The log start may have moved before the reset
      although it was first seen after it.
    - Above the log's end once all is quiet, or above a place where a replica cut its log after somebody had read up to
      the position and before the reset: M-15 speaks of logs without truncation. An earlier cut explains nothing, since
      the log has grown again since then. Nor does a later one, by a stale leader that comes back.
    - Those of clients without the metadata epoch (-1): their rewind is the failure that the epoch prevents (M-15).
    - Those of a client that began at an offset which was committed without an epoch (M-11): it has no epoch to wait
      for.
    """

    guarantee = "rewinds"
    rows: ClassVar[tuple[str, ...]] = ("truncated", "truncated_below_high_watermark")

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._cuts: list[tuple[str, int, int]] = []
        """partition as nodes name it, the log's end after the cut, time"""

    def trace(self, row: TraceRow) -> None:
        fields = json.loads(row.detail)
        if "partition" in fields:  # The metadata log's name no partition.
            self._cuts.append((fields["partition"], fields["offset"], row.at_us))

    def end(self, history: History) -> None:
        keepers = {row.process for row in history.metadata_epochs if row.accepted and row.metadata_epoch >= 0}
        self.looked_at += sum(row.process in keepers for row in history.positions)
        starts: dict[Place, int] = {}
        told: list[PositionRow | EndRow] = [*history.positions, *history.ends]
        for row in told:
            starts[place(row)] = max(starts.get(place(row), 0), row.log_start_offset)
        began = grouped(learnt(history), lambda row: (row.process, place(row)))
        ends = {place(row): row.high_watermark for row in history.ends}
        for reset in history.resets:
            where = place(reset)
            is_lost = reset.from_offset > ends.get(where, reset.from_offset)
            is_held = starts.get(where, 0) <= reset.from_offset and not is_lost
            has_epoch = reset.metadata_epoch >= 0 and _had_epoch(reset, began.get((reset.process, where), []))
            if reset.reason == OUT_OF_RANGE and is_held and has_epoch and not self._was_cut_off(reset, history):
                self.violated(
                    reset.at_us,
                    f"{reset.process} stood at offset {reset.from_offset} of {reset.topic}-{reset.partition}, was told "
                    f"that it is out of range and went on at {reset.to_offset}; its metadata epoch was "
                    f"{reset.metadata_epoch}",
                )

    def _was_cut_off(self, reset: ResetRow, history: History) -> bool:
        """Returns whether a replica cut its log below the position between the first read up to there and the reset."""
        name = f"{reset.topic}-{reset.partition}"
        cuts = [at_us for partition, offset, at_us in self._cuts if partition == name and offset < reset.from_offset]
        if not cuts:
            return False
        came = (
            history.ended_us(row)
            for row in history.positions
            if place(row) == place(reset) and row.error is None and row.next_offset >= reset.from_offset
        )
        reached_us = min(came, default=0)
        return any(reached_us <= at_us <= reset.at_us for at_us in cuts)


def _had_epoch(reset: ResetRow, of_place: list[CommitRow]) -> bool:
    """Returns whether the offset at which the client began had a metadata epoch."""
    before = [each for each in of_place if each.at_us <= reset.at_us]
    last = max(before, key=lambda each: each.at_us, default=None)
    return last is None or last.metadata_epoch >= 0 or last.offset < 0
