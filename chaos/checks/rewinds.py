"""rewinds: a client that keeps metadata epochs is told OFFSET_OUT_OF_RANGE at a position that its partition holds.

Positions below a log start that was seen (deleted) do not count, nor those above where the log ends once all is quiet
(lost). Clients without the epoch (-1) do not count either: their rewind is the failure that the epoch cures (M-15). The
same holds for a client that begins at an offset which one without the epoch committed (M-11), because there is no epoch
to wait for.
"""

from chaos.checks.check import Check, History
from chaos.checks.no_fetch_before_epoch import LEARNT
from chaos.checks.values import Place
from reports.rows import CommitRow, ResetRow

OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"


class Rewinds(Check):
    guarantee = "rewinds"

    def end(self, history: History) -> None:
        if not history.resets:
            return
        starts: dict[Place, int] = {}
        for row in history.positions:
            where = (row.topic, row.partition)
            starts[where] = max(starts.get(where, 0), row.log_start_offset)
        learnt: dict[tuple[str, Place], list[CommitRow]] = {}
        for commit in history.commits:
            if commit.kind in LEARNT and commit.error is None:
                learnt.setdefault((commit.process, (commit.topic, commit.partition)), []).append(commit)
        ends = {(row.topic, row.partition): row.high_watermark for row in history.ends}
        for reset in history.resets:
            where = (reset.topic, reset.partition)
            is_held = starts.get(where, 0) <= reset.from_offset <= ends.get(where, reset.from_offset)
            if reset.reason == OUT_OF_RANGE and reset.metadata_epoch >= 0 and is_held and _had_epoch(reset, learnt):
                self.violated(
                    reset.at_us,
                    f"{reset.process} stood at offset {reset.from_offset} of {reset.topic}-{reset.partition}, was told "
                    f"that it is out of range and went on at {reset.to_offset}; its metadata epoch was "
                    f"{reset.metadata_epoch}",
                )


def _had_epoch(reset: ResetRow, learnt: dict[tuple[str, Place], list[CommitRow]]) -> bool:
    """Returns whether the offset at which the client began had a metadata epoch."""
    of_place = learnt.get((reset.process, (reset.topic, reset.partition)), ())
    before = [each for each in of_place if each.at_us <= reset.at_us]
    return not before or max(before, key=lambda each: each.at_us).metadata_epoch >= 0 or before[-1].offset < 0
