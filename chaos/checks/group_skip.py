from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import accumulate

from chaos.checks.check import Check
from chaos.checks.compacted_topics import missable_offsets
from chaos.checks.history import History, Place, grouped, place
from chaos.checks.reads import known_offsets, moved_forward, reads


class GroupSkip(Check):
    """group-skip: the members of a group together leave out no record between two records that they read.

    A partition's next owner goes on at the group's committed offset, so nothing may be left out between owners. Offsets
    over which a reset moved a member's position forward do not count (by a reset policy of ``latest``, or because they
    were deleted). Neither do records that a cleaner may have taken before a member read on behind them (X-11).
    """

    guarantee = "group-skip"

    def end(self, history: History) -> None:
        if not history.memberships:
            return
        group_of = {row.process: row.group for row in history.memberships}
        self.looked_at += sum(row.event == "assigned" for row in history.memberships)
        read: dict[tuple[str, Place], dict[int, None]] = {}
        begun: dict[tuple[str, Place], list[tuple[int, int]]] = {}
        level: dict[tuple[str, Place], int] = {}
        for run, operation in reads(history):
            if run.process in group_of:
                key = (group_of[run.process], place(run))
                begun.setdefault(key, []).append((run.first_offset, operation.complete_us))
                level[key] = min(level.get(key, run.isolation), run.isolation)
                offsets = read.setdefault(key, {})
                offsets.update(dict.fromkeys(range(run.first_offset, run.first_offset + run.count)))
        members = [row for row in moved_forward(history) if row.process in group_of]
        moved = grouped(members, lambda row: (group_of[row.process], place(row)))
        known = known_offsets(history)
        for (group, where), offsets in read.items():
            low, high = min(offsets), max(offsets)
            for row in moved.get((group, where), ()):  # Kafka: auto.offset.reset leaves out what lies between.
                offsets.update(dict.fromkeys(range(max(row.from_offset, 0), row.to_offset)))
            offsets.update(_taken(missable_offsets(history).get(where, {}), begun[group, where]))
            there = known[where, level[group, where]]
            between = there[bisect_left(there, low) : bisect_right(there, high)]
            self._judge(group, where, [each for each in between if each not in offsets], begun[group, where])

    def _judge(self, group: str, where: Place, left_out: list[int], begun: list[tuple[int, int]]) -> None:
        """``begun`` holds the first offset and the end of each read of the group."""
        if left_out:
            behind = [each for each in begun if each[0] > left_out[0]]
            self.violated(
                min(at_us for _, at_us in behind),
                f"group {group} left out {len(left_out)} records of {where[0]}-{where[1]}, the first at offset "
                f"{left_out[0]}, and read on from {min(behind)[0]}",
            )


def _taken(since_us: Mapping[int, int], begun: list[tuple[int, int]]) -> dict[int, None]:
    """Returns the offsets whose records a cleaner may have taken before the first read that began behind them ended.
    ``begun`` holds the first offset and the end of each read of the group."""
    starts = sorted(begun)
    ends = [end_us for _, end_us in starts]
    first_us = list(reversed(list(accumulate(reversed(ends), min))))
    return {
        offset: None
        for offset, at_us in since_us.items()
        if (behind := bisect_right(starts, offset, key=lambda each: each[0])) == len(starts)
        or at_us <= first_us[behind]
    }
