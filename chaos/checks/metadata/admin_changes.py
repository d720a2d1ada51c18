"""Admins' changes take effect once, and whole."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, NamedTuple

from bench.fleet.behaviours.admin import FIRST_VALUE
from chaos.checks.check import Check, CheckContext, fields_of
from chaos.checks.history import History, grouped
from chaos.checks.metadata.metadata_transactions import MARKER_KINDS
from chaos.hooks.metadata_digest import ROW as PUBLISHED
from reports.rows import ChangeRow, MetadataReadRow, TraceRow

UNSET = -1


@dataclass(slots=True)
class _Topic:
    """The requests of administrators about one topic, and its observed state."""

    created: str = ""
    """type of the creation's operation (ok, fail or info), empty if nobody requested the topic"""
    delete_us: int = -1
    """when a deletion was first sent, -1 for never"""
    deleted: bool = False
    acked: int = UNSET
    """greatest acknowledged value of the setting"""
    possible: dict[int, None] = field(default_factory=dict)
    """values that may have taken effect"""
    ids: dict[str, None] = field(default_factory=dict)
    gone: dict[tuple[str, int], int] = field(default_factory=dict)
    """when each reader first missed the topic at each node"""
    at_end: dict[int, int] = field(default_factory=dict)
    """value of the setting at each node at the end"""


class LostMetadata(Check):
    """lost-metadata: each acknowledged change has its effect at the end and has it once, and no other change has any.

    Each topic name is used once, so a second topic ID, or a topic that reappears, is a second effect. A change of
    unknown outcome may have been applied or not. A setting that was sent more than once may be applied again late.
    """

    guarantee = "lost-metadata"

    def end(self, history: History) -> None:
        topics: dict[str, _Topic] = defaultdict(_Topic)
        for change in history.changes:
            _follow_change(topics[change.topic], change, history.operation_of[change.process, change.index].invoke_us)
        for read in history.metadata_reads:
            self._read(topics[read.topic], read, history.operation_of[read.process, read.index].complete_us)
        described = [
            operation for operation in history.operations if operation.f == "final_describe" and operation.type == "ok"
        ]
        nodes = sorted({each.node: None for each in described if each.node is not None})
        if nodes:
            self.evidence += len(history.changes)
            end_us = max(each.complete_us for each in described)
            for name, topic in topics.items():
                self._end(end_us, name, topic, nodes)

    def _read(self, topic: _Topic, row: MetadataReadRow, at_us: int) -> None:
        where = (row.process, row.node)
        if not row.present:
            topic.gone.setdefault(where, at_us)
            if not 0 <= topic.delete_us <= at_us:
                self.violated(
                    at_us, f"{row.topic} was gone at node {row.node}, and no client had requested its deletion"
                )
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
            self.violated(at_us, f"{name} is there at nodes {there}, and no client created it")
        elif topic.created == "fail" and there:
            self.violated(at_us, f"the creation of {name} was refused, and it is there at nodes {there}")
        elif topic.created == "ok" and topic.delete_us < 0 and missing:
            self.violated(at_us, f"the creation of {name} was acknowledged, and it is missing at nodes {missing}")
        elif topic.deleted and there:
            self.violated(at_us, f"the deletion of {name} was acknowledged, and it is there at nodes {there}")
        elif topic.created and foreign:
            self.violated(at_us, f"{name} has retention.ms {foreign[0]} at the end; acknowledged last: {topic.acked}")


def _follow_change(topic: _Topic, row: ChangeRow, sent_us: int) -> None:
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


class _Image(NamedTuple):
    """The metadata that the first node published at an offset."""

    at_us: int
    node_id: int
    digest: str


class TornMetadata(Check):
    """torn-metadata: no reader sees only a part of a change that was written as a whole.

    The topics of a set are created and deleted together. So if a response shows a change of some of them, it must show
    the change of all, and each topic must have all of its partitions. A retried creation must find all of its topics or
    none. All nodes that publish an offset of the metadata log must publish the same, and none publishes an offset
    inside a transaction (T-8).
    """

    guarantee = "torn-metadata"
    rows: ClassVar[tuple[str, ...]] = ("metadata_committed", PUBLISHED)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._published: dict[int, _Image] = {}
        self._markers: dict[int, str] = {}
        """kind of marker by the offset of its batch"""

    def trace(self, row: TraceRow) -> None:
        fields = fields_of(row)
        offset = fields["offset"]
        if row.what == PUBLISHED:
            self.evidence += 1
            known = self._published.setdefault(offset, _Image(row.at_us, row.node, fields["digest"]))
            if known.digest != fields["digest"]:
                self.violated(
                    row.at_us, f"nodes {known.node_id} and {row.node} hold different metadata at offset {offset}"
                )
        elif fields["kind"] in MARKER_KINDS:
            self._markers[offset] = fields["kind"]

    def _judge_publications(self) -> None:
        offsets = sorted(self._published)
        for begin, close in self._transactions():
            inside = offsets[bisect_left(offsets, begin) : bisect_left(offsets, close)]
            if inside:
                offset = min(inside, key=lambda each: self._published[each])
                image = self._published[offset]
                self.violated(
                    image.at_us,
                    f"node {image.node_id} published offset {offset}, inside the transaction from {begin} to {close}",
                )

    def _transactions(self) -> Iterator[tuple[int, int]]:
        """Yield the offsets of each Begin and of what closed it, where nodes noted both."""
        for (begin, kind), (close, closing) in pairwise(sorted(self._markers.items())):
            if kind == "begin" and closing != "begin":
                yield begin, close

    def end(self, history: History) -> None:
        self._judge_publications()
        self.evidence += sum(operation.f in ("metadata_read", "final_describe") for operation in history.operations)
        responses = grouped(history.metadata_reads, lambda row: (row.process, row.index, row.node, row.topic_set))
        for rows in responses.values():
            self._judge_response(history.operation_of[rows[0].process, rows[0].index].complete_us, rows)
        made = (row for row in history.changes if row.change == "create" and row.type == "ok")
        for created in grouped(made, lambda row: (row.process, row.index)).values():
            row, existing = created[0], sum(each.error is not None for each in created)
            if 0 < existing < row.topics_wanted:
                self.violated(
                    history.operation_of[row.process, row.index].complete_us,
                    f"{row.process} sent {row.topic_set} again and found {existing} of its {row.topics_wanted} topics",
                )

    def _judge_response(self, at_us: int, rows: list[MetadataReadRow]) -> None:
        row = rows[0]
        for each in rows:
            if each.present and each.partitions_seen != each.partitions_wanted:
                self.violated(
                    at_us,
                    f"node {each.node} showed {each.partitions_seen} of {each.partitions_wanted} partitions of "
                    f"{each.topic}",
                )
                return
        there = sum(each.present for each in rows)
        if len(rows) != row.topics_wanted or there not in (0, len(rows)):
            self.violated(
                at_us,
                f"node {row.node} showed a change of {len(rows)} of the {row.topics_wanted} topics of {row.topic_set}, "
                f"{there} of them as present",
            )
