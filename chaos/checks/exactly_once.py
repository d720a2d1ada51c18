"""exactly-once (X-14): each input of a group that consumes, transforms and produces is once in its output.

The output is what readers with read_committed saw of the target. An input is due once a committed transaction of the
group has sent an offset behind it. Inputs below the first that the group took do not count.
"""

from chaos.checks.check import Check, History
from chaos.checks.transacted import shown, shown_offsets, transacted
from chaos.checks.values import Place, place

Input = tuple[str, Place, int]
"""The group, the partition of the source, and the offset."""


class ExactlyOnce(Check):
    guarantee = "exactly-once"

    def end(self, history: History) -> None:
        if not history.transforms:
            return
        outputs: dict[Input, list[str]] = {}
        excused: set[Input] = set()
        first: dict[tuple[str, Place], int] = {}
        ended = {place(end) for end in history.ends}
        for row in history.transforms:
            self.looked_at += row.count
            source, target = (row.group, place(row)), (row.target_topic, row.target_partition)
            first[source] = min(first.get(source, row.source_offset), row.source_offset)
            for step in range(row.count):
                at = (*source, row.source_offset + step)
                if (target, row.writer, row.first_sequence + step) in shown(history):
                    outputs.setdefault(at, []).append(f"{row.writer}/{row.first_sequence + step}")
                elif target not in ended:
                    excused.add(at)  # Physical: nobody knows what the target holds beyond what was read.
        last_us = max((each.complete_us for each in history.operations), default=0)
        for at, values in outputs.items():
            if len(values) > 1:
                self.violated(last_us, f"input {at} is in the output as {' and '.join(values)}")
        for (group, where), until in _sent(history).items():
            for offset in sorted(shown_offsets(history).get(where, ())):
                at = group, where, offset
                is_due = first.get((group, where), until) <= offset < until
                if is_due and at not in outputs and at not in excused:
                    self.violated(last_us, f"input {at} is not in the output")


def _sent(history: History) -> dict[tuple[str, Place], int]:
    """The greatest offset that committed transactions sent, by group and partition."""
    done = {(each.row.process, each.row.index) for each in transacted(history) if each.is_committed}
    found: dict[tuple[str, Place], int] = {}
    for row in history.commits:
        if row.kind == "transaction" and (row.process, row.index) in done:
            found[row.group, place(row)] = max(found.get((row.group, place(row)), 0), row.offset)
    return found
