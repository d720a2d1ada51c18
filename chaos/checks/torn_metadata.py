from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import ClassVar, NamedTuple

from chaos.checks.check import Check
from chaos.checks.history import History, grouped
from chaos.checks.metadata_transactions import MARKER_KINDS
from chaos.checks.quorum_view import Member
from chaos.checks.surroundings import Surroundings
from reference_broker.core.effects import Note
from reports.rows import MetadataReadRow


class _Image(NamedTuple):
    """What was published of an offset, by the node that was the first."""

    at_us: int
    node_id: int
    digest: str


class TornMetadata(Check):
    """torn-metadata: nobody sees only a part of a change that was written as a whole.

    The topics of a set are created and deleted together. So if an answer shows a change of some of them, it must show
    the change of all, and each topic must have all of its partitions. A creation that was sent again must find all of
    its topics or none. All nodes that publish an offset of the metadata log must publish the same, and none publishes
    an offset inside a transaction (T-8).
    """

    guarantee = "torn-metadata"
    notes: ClassVar[tuple[str, ...]] = ("metadata_committed",)

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._published: dict[int, _Image] = {}
        self._markers: dict[int, str] = {}
        """kind of marker by the offset of its batch"""

    def note(self, at_us: int, member: Member, note: Note) -> None:  # noqa: ARG002
        fields = dict(note.fields)
        if fields["kind"] in MARKER_KINDS:
            self._markers[int(fields["offset"])] = str(fields["kind"])

    def published(self, at_us: int, node_id: int, fields: Mapping[str, int | str]) -> None:
        self.looked_at += 1
        offset, digest = int(fields["offset"]), str(fields["digest"])
        known = self._published.setdefault(offset, _Image(at_us, node_id, digest))
        if known.digest != digest:
            self.violated(at_us, f"nodes {known.node_id} and {node_id} hold different metadata at offset {offset}")

    def quiet(self, at_us: int) -> None:  # noqa: ARG002
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
        """Yields the offsets of each Begin and of what closed it, where nodes noted both."""
        for (begin, kind), (close, closing) in pairwise(sorted(self._markers.items())):
            if kind == "begin" and closing != "begin":
                yield begin, close

    def end(self, history: History) -> None:
        self.looked_at += sum(each.f in ("metadata_read", "final_describe") for each in history.operations)
        answers = grouped(history.metadata_reads, lambda row: (row.process, row.index, row.node, row.topic_set))
        for rows in answers.values():
            self._answer(history.operation_of[rows[0].process, rows[0].index].complete_us, rows)
        made = (row for row in history.changes if row.change == "create" and row.type == "ok")
        for created in grouped(made, lambda row: (row.process, row.index)).values():
            row, found = created[0], sum(each.error is not None for each in created)
            if 0 < found < row.topics_wanted:
                self.violated(
                    history.operation_of[row.process, row.index].complete_us,
                    f"{row.process} sent {row.topic_set} again and found {found} of its {row.topics_wanted} topics",
                )

    def _answer(self, at_us: int, rows: list[MetadataReadRow]) -> None:
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
