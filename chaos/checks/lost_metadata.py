from collections import defaultdict
from dataclasses import dataclass, field

from bench.fleet.behaviours.admin import FIRST_VALUE
from chaos.checks.check import Check
from chaos.checks.history import History
from reports.rows import ChangeRow, MetadataReadRow

UNSET = -1


@dataclass(slots=True)
class _Topic:
    """``created`` is the type of the creation's operation (ok, fail or info), or empty if nobody asked for the topic.

    ``delete_us`` is when a deletion was first sent (-1 for never).
    """

    created: str = ""
    delete_us: int = -1
    deleted: bool = False
    acked: int = UNSET
    possible: dict[int, None] = field(default_factory=dict)
    ids: dict[str, None] = field(default_factory=dict)
    gone: dict[tuple[str, int], int] = field(default_factory=dict)
    at_end: dict[int, int] = field(default_factory=dict)


class LostMetadata(Check):
    """lost-metadata: each acknowledged change has its effect at the end and has it once, and no other change has any.

    Each topic's name is used once. So a second ID, or a return after the topic was gone, is a second effect. A change
    whose end is unknown may have happened or not. A setting that was sent more than once may take effect late once
    more.
    """

    guarantee = "lost-metadata"

    def end(self, history: History) -> None:
        topics: dict[str, _Topic] = defaultdict(_Topic)
        for change in history.changes:
            _asked(topics[change.topic], change, history.operation_of[change.process, change.index].invoke_us)
        for read in history.metadata_reads:
            self._read(topics[read.topic], read, history.operation_of[read.process, read.index].complete_us)
        described = [each for each in history.operations if each.f == "final_describe" and each.type == "ok"]
        nodes = sorted({each.node: None for each in described if each.node is not None})
        if nodes:
            self.looked_at += len(history.changes)
            end_us = max(each.complete_us for each in described)
            for name, topic in topics.items():
                self._end(end_us, name, topic, nodes)

    def _read(self, topic: _Topic, row: MetadataReadRow, at_us: int) -> None:
        where = (row.process, row.node)
        if not row.present:
            topic.gone.setdefault(where, at_us)
            if not 0 <= topic.delete_us <= at_us:
                self.violated(at_us, f"{row.topic} was gone at node {row.node}, and nobody had asked to delete it")
            return
        if where in topic.gone:
            self.violated(at_us, f"node {row.node} shows {row.topic} again after it was gone")
        if row.topic_id:
            topic.ids[row.topic_id] = None
        if row.final:
            is_set = row.value >= FIRST_VALUE  # A smaller value is the broker's default.
            topic.at_end[row.node] = row.value if is_set else UNSET

    def _end(self, at_us: int, name: str, topic: _Topic, nodes: list[int]) -> None:
        there = sorted(topic.at_end)
        missing = [node for node in nodes if node not in topic.at_end]
        possible = [*topic.possible, topic.acked]
        foreign = [value for value in topic.at_end.values() if value not in possible]
        if len(topic.ids) > 1:
            self.violated(at_us, f"{name} was created more than once: it has had {len(topic.ids)} IDs")
        elif not topic.created and there:
            self.violated(at_us, f"{name} is there at nodes {there}, and nobody asked for it")
        elif topic.created == "fail" and there:
            self.violated(at_us, f"the creation of {name} was refused, and it is there at nodes {there}")
        elif topic.created == "ok" and topic.delete_us < 0 and missing:
            self.violated(at_us, f"the creation of {name} was acknowledged, and it is missing at nodes {missing}")
        elif topic.deleted and there:
            self.violated(at_us, f"the deletion of {name} was acknowledged, and it is there at nodes {there}")
        elif topic.created and foreign:
            self.violated(at_us, f"{name} has retention.ms {foreign[0]} at the end; acknowledged last: {topic.acked}")


def _asked(topic: _Topic, row: ChangeRow, sent_us: int) -> None:
    if row.change == "create":
        topic.created = max(topic.created, row.type)
    elif row.change == "delete" and row.type != "fail":
        topic.delete_us = sent_us if topic.delete_us < 0 else min(topic.delete_us, sent_us)
        topic.deleted = topic.deleted or row.type == "ok"
    elif row.change == "configure":
        if row.type == "ok":
            topic.acked = max(topic.acked, row.value)
        if row.type == "info" or (row.type == "ok" and row.attempts > 1):
            topic.possible[row.value] = None
