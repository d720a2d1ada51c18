from chaos.checks.check import Check
from chaos.checks.history import History, Place, once, place
from chaos.checks.transactions_seen import (
    Fate,
    Sighting,
    Value,
    between,
    committed_offsets,
    sightings,
    transactions,
)
from reports.rows import TransformRow

Group = tuple[str, Place]
"""A group's ID, and a partition of its source."""


class ExactlyOnce(Check):
    """exactly-once (X-14): each input of workers that consume, transform and produce is once in their output.

    The output is what readers with read_committed saw of the target. Workers note which of their values stands for
    which offset of the source.
    """

    guarantee = "exactly-once"

    def end(self, history: History) -> None:
        if not history.transforms:
            return
        at_us = max((row.complete_us for row in history.operations), default=0)
        outputs = _outputs(history)
        self.looked_at += sum(map(len, outputs.values()))
        for (group, (topic, partition)), found in outputs.items():
            for offset, copies in found.items():
                if len(copies) > 1:
                    self.violated(
                        at_us,
                        f"{topic}-{partition} offset {offset} is in the output of group {group} {len(copies)} times: "
                        f"{', '.join(sorted(copies))}",
                    )
        if history.writes_promised:
            self._never(history, outputs, at_us)

    def _never(self, history: History, outputs: dict[Group, dict[int, set[str]]], at_us: int) -> None:
        inputs, ended = committed_offsets(history), {place(row) for row in history.ends}
        begun: dict[Group, int] = {}
        unread: dict[Group, set[int]] = {}
        for row in history.transforms:
            key = (row.group, place(row))
            begun[key] = min(begun.get(key, row.source_offset), row.source_offset)
            if (row.target_topic, row.target_partition) not in ended:
                # Physical: nobody knows what a partition holds that was not read to its end.
                unread.setdefault(key, set()).update(range(row.source_offset, row.source_offset + row.count))
        done: dict[Group, int] = {}
        for each in transactions(history):
            if each.fate is Fate.COMMITTED:
                for sent in each.offsets:
                    if sent.error is None:
                        key = (sent.group, place(sent))
                        done[key] = max(done.get(key, 0), sent.offset)
        for key, end in done.items():
            group, (topic, partition) = key
            if key not in begun:
                continue
            for offset in between(inputs.get(key[1], []), begun[key], end):
                if offset not in outputs.get(key, {}) and offset not in unread.get(key, ()):
                    self.violated(
                        at_us,
                        f"{topic}-{partition} offset {offset} was consumed by group {group} and is not in its output",
                    )


@once
def _outputs(history: History) -> dict[Group, dict[int, set[str]]]:
    """Returns by group and source partition, for each source offset, the values of the output that stand for it."""
    seen = sightings(history)
    found: dict[Group, dict[int, set[str]]] = {}
    for row in history.transforms:
        outputs = found.setdefault((row.group, place(row)), {})
        for step in range(row.count):
            for name in _copies(row, step, seen):
                outputs.setdefault(row.source_offset + step, set()).add(name)
    return found


def _copies(row: TransformRow, step: int, seen: dict[Value, list[Sighting]]) -> set[str]:
    where = (row.target_topic, row.target_partition)
    sequence = row.first_sequence + step
    return {
        f"{where[0]}-{where[1]} offset {each.offset}: {row.writer}/{sequence}"
        for each in seen.get((where, row.writer, sequence), ())
    }
