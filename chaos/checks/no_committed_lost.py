import json
from typing import TYPE_CHECKING, ClassVar

from chaos.checks.check import Check
from chaos.checks.committed import COMMIT, Key, asked, deleted
from chaos.checks.history import History
from chaos.checks.surroundings import Surroundings
from reference_broker.groups.offsets.values import OffsetKey
from reports.rows import TraceRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node

COMMITTED = "offset_committed"


class NoCommittedLost(Check):
    """no-committed-lost: an offset that a coordinator acknowledged as committed survives any failover of coordinators.

    At the end the coordinator of each group must hold the offset that was committed last, or one that a client asked to
    commit and that may have been committed after it. commit-regression judges that clients see it too.
    """

    guarantee = "no-committed-lost"
    rows: ClassVar[tuple[str, ...]] = (COMMITTED,)

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._committed: dict[Key, tuple[int, int]] = {}
        """by group, topic and partition: the offset that was committed last, and when"""
        self._nodes: dict[int, Node] = {}

    def trace(self, row: TraceRow) -> None:
        fields = json.loads(row.detail)
        topic, _, index = str(fields["partition"]).rpartition("-")
        self._committed[str(fields["group"]), topic, int(index)] = int(fields["offset"]), row.at_us

    def whole(self, at_us: int, incarnation: int, node: "Node") -> None:  # noqa: ARG002
        self._nodes[node.broker.node_id] = node

    def end(self, history: History) -> None:
        gone = deleted(history)
        written = asked(history, COMMIT)
        for key, (offset, at_us) in self._committed.items():
            group, topic, index = key
            if topic in gone or self.around.replicas.offsets_excused(group):
                continue  # Kafka: with a topic go its offsets. E-7: nobody had kept the group's commits.
            found = self._held(key)
            # Physical: a commit may be written although its coordinator died before it said so.
            later = [each.row.offset for each in written.get(key, ()) if each.until_us >= at_us]
            if found not in (offset, *later):
                now = "nothing" if found is None else f"offset {found}"
                self.violated(
                    at_us,
                    f"{topic}-{index} of group {group}: offset {offset} was committed; its coordinator holds {now} in "
                    "the end",
                )

    def _held(self, key: Key) -> int | None:
        """Returns the offset in the memory of whoever coordinates the group. It shares no code with what is judged but
        the look into that memory."""
        for node in self._nodes.values():
            for coordinated in node.broker.groups.active():
                found = coordinated.offsets.find(OffsetKey(*key))
                if found is not None:
                    return found.offset
        return None
