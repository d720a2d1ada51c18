"""no-committed-lost: an offset that a coordinator acknowledged as committed survives any failover of coordinators.

At the end the coordinator of each group must hold the offset that was committed last, or one that may have been
committed after it. commit-regression judges that clients see it too.
"""

import json
from typing import TYPE_CHECKING, ClassVar

from chaos.checks.check import Check, History
from chaos.checks.surroundings import Surroundings
from reference_broker.core.events import Event
from reference_broker.groups.offsets.committed_offsets import CommitOffset, OffsetKey
from reports.rows import TraceRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node

COMMITTED = "offset_committed"


class NoCommittedLost(Check):
    guarantee = "no-committed-lost"
    rows: ClassVar[tuple[str, ...]] = (COMMITTED,)

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._committed: dict[OffsetKey, tuple[int, int, int]] = {}
        self._nodes: dict[int, Node] = {}

    def trace(self, row: TraceRow) -> None:
        fields = json.loads(row.detail)
        topic, _, index = str(fields["partition"]).rpartition("-")
        key = OffsetKey(str(fields["group"]), topic, int(index))
        self._committed[key] = (int(fields["offset"]), int(fields["generation"]), row.at_us)

    def node(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        if thorough:
            self._nodes[node.broker.node_id] = node

    def end(self, history: History) -> None:
        if self.around.replicas.offsets_excused:
            return  # E-7: nobody had kept the commits of some partition.
        gone = [row.topic for row in history.changes if row.change == "delete"]
        for key, (offset, generation, at_us) in self._committed.items():
            if key.topic in gone:
                continue
            found = self._held(key)
            if found is None or (generation >= 0 and found.offset < offset):
                now = "nothing" if found is None else f"offset {found.offset}"
                self.violated(
                    at_us,
                    f"{key.topic}-{key.partition} of group {key.group}: offset {offset} was committed; its "
                    f"coordinator holds {now} in the end",
                )

    def _held(self, key: OffsetKey) -> CommitOffset | None:
        for node in self._nodes.values():
            for coordinated in node.broker.groups.active():
                found = coordinated.offsets.find(key)
                if found is not None:
                    return found
        return None
