import json
from typing import ClassVar

from chaos.checks.check import Check
from chaos.checks.history import History
from chaos.checks.surroundings import Surroundings
from reports.rows import TraceRow

STATE, MEMBER = "group_state", "group_member"
STABLE = "Stable"


class OneGroupLeader(Check):
    """one-group-leader: a generation of a group has one leader and one assignment.

    Only generations that were written to the log count. The number of one that was lost with its coordinator may be
    used again. A static member that comes back has a new member ID and may still be the leader. If nobody had kept an
    offsets partition, the groups in it are not judged.
    """

    guarantee = "one-group-leader"
    rows: ClassVar[tuple[str, ...]] = (STATE, MEMBER)

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._leaders: dict[tuple[str, int], tuple[str, int]] = {}
        self._newest: dict[str, int] = {}
        self._replaced: dict[tuple[str, str], None] = {}

    def trace(self, row: TraceRow) -> None:
        fields = json.loads(row.detail)
        group = str(fields["group"])
        if self.around.replicas.offsets_excused(group):
            return  # E-7: nobody had kept the group, so its generations begin anew.
        if row.what == MEMBER:
            if fields["what"] == "fenced":  # Kafka (KIP-345): the instance goes on under another member ID.
                self._replaced[group, str(fields["member_id"])] = None
            return
        if fields["state"] != STABLE:
            return
        generation, leader = int(fields["generation"]), str(fields["leader"])
        known, node = self._leaders.setdefault((group, generation), (leader, row.node))
        if known != leader and (group, known) not in self._replaced:
            self.violated(
                row.at_us,
                f"group {group}, generation {generation}: {known} leads at node {node}, {leader} at node {row.node}",
            )
        self._leaders[group, generation] = (leader, row.node)
        newest = self._newest.get(group, -1)
        if generation < newest:
            self.violated(
                row.at_us,
                f"group {group} is stable in generation {generation} at node {row.node} after generation {newest}",
            )
        self._newest[group] = max(newest, generation)

    def end(self, history: History) -> None:
        owners: dict[tuple[str, int, str, int], tuple[str, str]] = {}
        for row in history.memberships:
            if row.event != "assigned" or row.generation < 0:
                continue
            if self.around.replicas.offsets_excused(row.group):
                continue  # E-7: nobody had kept the group, so its generations begin anew.
            key = (row.group, row.generation, row.topic, row.partition)
            owner, member_id = owners.setdefault(key, (row.process, row.member_id))
            if owner != row.process:
                self.violated(
                    row.at_us,
                    f"group {row.group}, generation {row.generation}: {row.topic}-{row.partition} was given to {owner} "
                    f"({member_id}) and to {row.process} ({row.member_id})",
                )
