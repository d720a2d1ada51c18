"""torn-metadata: nobody sees only a part of a change that was written as a whole.

The topics of a set are created and deleted together. So if an answer shows a change of some of them, it must show the
change of all, and each topic must have all of its partitions. A creation that was sent again must find all of its
topics or none. All nodes that publish an offset of the metadata log must publish the same.
"""

from collections.abc import Mapping

from chaos.checks.check import Check, History
from chaos.checks.surroundings import Surroundings
from chaos.checks.values import grouped
from reports.rows import MetadataReadRow


class TornMetadata(Check):
    guarantee = "torn-metadata"

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._published: dict[int, tuple[str, int]] = {}

    def published(self, at_us: int, node_id: int, fields: Mapping[str, int | str]) -> None:
        self.looked_at += 1
        offset, digest = int(fields["offset"]), str(fields["digest"])
        known = self._published.setdefault(offset, (digest, node_id))
        if known[0] != digest:
            self.violated(at_us, f"nodes {known[1]} and {node_id} hold different metadata at offset {offset}")

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
