"""Leaders, assignments and members of consumer groups."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar

from chaos.checks.check import Check, CheckContext, Inspection, OffsetsCheck, fields_of
from chaos.checks.history import History, TopicPartition, grouped, partition_of
from chaos.checks.reads_and_writes.compacted_topics import missable_offsets
from chaos.checks.reads_and_writes.reads import known_offsets, moved_forward, reads
from reference_broker.core.events import Event
from reports.rows import HistoryRow, MembershipRow, TraceRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node


STATE, MEMBER = "group_state", "group_member"
STABLE = "Stable"


class OneGroupLeader(OffsetsCheck):
    """one-group-leader: a generation of a group has one leader and one assignment.

    Only generations that were written to the log count. The number of a generation that was lost with its coordinator
    may be used again. A static member that returns has a new member ID and may still be the leader. If no replica kept
    an offsets partition, its groups are not judged.

    Kafka: a group without members is deleted with its last offset, or by DeleteGroups. Its tombstone in the log ends
    it, and a group that is created after that begins with generation 1.
    """

    guarantee = "one-group-leader"
    rows: ClassVar[tuple[str, ...]] = (STATE, MEMBER)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._rows: list[TraceRow] = []
        """Judged in the end, because a tombstone may be committed by the event of a row, which is traced before that
        event is followed."""

    def trace(self, row: TraceRow) -> None:
        if not self.context.replicas.offsets_excused(str(fields_of(row)["group"])):
            self._rows.append(row)  # E-7: otherwise nobody had kept the group, so its generations restart.

    def _deletions(self, group: str, at_us: int) -> int:
        """Return how often the group had been deleted until then."""
        return bisect_right(self.offsets.deletions_us.get(group, []), at_us)

    def end(self, history: History) -> None:
        self._judge_leaders()
        owners: dict[tuple[str, int, int, str, int], tuple[str, str]] = {}
        for row in history.memberships:
            if row.event != "assigned" or row.generation < 0:
                continue
            if self.context.replicas.offsets_excused(row.group):
                continue  # E-7: nobody had kept the group, so its generations restart.
            deletions = self._deletions(row.group, row.at_us)
            key = (row.group, deletions, row.generation, row.topic, row.partition)
            owner, member_id = owners.setdefault(key, (row.process, row.member_id))
            if owner != row.process:
                self.violated(
                    row.at_us,
                    f"group {row.group}, generation {row.generation}: {row.topic}-{row.partition} was given to {owner} "
                    f"({member_id}) and to {row.process} ({row.member_id})",
                )

    def _judge_leaders(self) -> None:
        leaders: dict[tuple[str, int, int], tuple[str, int]] = {}
        newest: dict[tuple[str, int], int] = {}
        replaced: dict[tuple[str, str], None] = {}
        for row in self._rows:
            fields = fields_of(row)
            group = str(fields["group"])
            if row.what == MEMBER:
                if fields["what"] == "fenced":  # Kafka (KIP-345): the instance goes on under another member ID.
                    replaced[group, str(fields["member_id"])] = None
                continue
            if fields["state"] != STABLE:
                continue
            deletions = self._deletions(group, row.at_us)
            generation, leader = int(fields["generation"]), str(fields["leader"])
            key = (group, deletions, generation)
            known, node = leaders.setdefault(key, (leader, row.node))
            if known != leader and (group, known) not in replaced:
                self.violated(
                    row.at_us,
                    f"group {group}, generation {generation}: {known} leads at node {node}, {leader} at node "
                    f"{row.node}",
                )
            leaders[key] = (leader, row.node)
            last = newest.get((group, deletions), -1)
            if generation < last:
                self.violated(
                    row.at_us,
                    f"group {group} is stable in generation {generation} at node {row.node} after generation {last}",
                )
            newest[group, deletions] = max(last, generation)


GIVES_UP = ("revoked", "lost")


class AllAssigned(Check):
    """all-assigned: after the heal every partition of a subscribed topic gets one owner in each group, in time.

    The limit is the time that Kafka's protocol needs for an assignment: a coordinator is elected and loads, sessions of
    members that are gone expire, and the others take part in two rebalances (``SimWorld``).

    ``SimWorld`` passes on each row as it comes, and calls ``reached`` after the heal.
    """

    guarantee = "all-assigned"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._expected = context.settings.subscribed
        self._owned: dict[str, dict[TopicPartition, dict[str, None]]] = {group: {} for group in self._expected}
        """by group and partition: the processes that own it"""

    def recorded(self, rows: Sequence[HistoryRow]) -> None:
        for row in rows:
            if type(row) is MembershipRow and row.group in self._owned:
                self._follow(self._owned[row.group], row)

    @staticmethod
    def _follow(owned: dict[TopicPartition, dict[str, None]], row: MembershipRow) -> None:
        if row.event == "assigned":
            owned.setdefault(partition_of(row), {})[row.process] = None
        elif row.event in GIVES_UP:
            owned.get(partition_of(row), {}).pop(row.process, None)
        elif row.event == "left":
            for owners in owned.values():
                owners.pop(row.process, None)

    def reached(self) -> bool:
        return not any(self._wrong(group) for group in self._expected)

    def overdue(self, at_us: int, after_us: int) -> None:
        """Report the violation: the assignment was not reached in that time."""
        for group in self._expected:
            for partition, owners in self._wrong(group):
                names = " and ".join(owners) or "nobody"
                self.violated(
                    at_us,
                    f"group {group}: {partition[0]}-{partition[1]} has {names} {after_us / 1e6:g} s after the heal",
                )

    def _wrong(self, group: str) -> list[tuple[TopicPartition, dict[str, None]]]:
        owned = self._owned[group]
        owners = [(partition, owned.get(partition, {})) for partition in self._expected[group]]
        return [owner for owner in owners if len(owner[1]) != 1]


class GroupSkip(Check):
    """group-skip: the members of a group together omit no record between two records that they read.

    A partition's next owner continues at the group's committed offset, so nothing may be omitted between owners.
    Offsets over which a reset moved a member's position forward do not count (by a reset policy of ``latest``, or
    because they were deleted). Neither do records that a cleaner may have removed before a member read the offsets
    behind them (X-11).
    """

    guarantee = "group-skip"

    def end(self, history: History) -> None:
        if not history.memberships:
            return
        group_of = {row.process: row.group for row in history.memberships}
        self.evidence += sum(row.event == "assigned" for row in history.memberships)
        read: dict[tuple[str, TopicPartition], dict[int, None]] = {}
        begun: dict[tuple[str, TopicPartition], list[tuple[int, int]]] = {}
        level: dict[tuple[str, TopicPartition], int] = {}
        for span, operation in reads(history):
            if span.process in group_of:
                key = (group_of[span.process], partition_of(span))
                begun.setdefault(key, []).append((span.first_offset, operation.complete_us))
                level[key] = min(level.get(key, span.isolation), span.isolation)
                offsets = read.setdefault(key, {})
                offsets.update(dict.fromkeys(range(span.first_offset, span.first_offset + span.count)))
        members = [row for row in moved_forward(history) if row.process in group_of]
        moved = grouped(members, lambda row: (group_of[row.process], partition_of(row)))
        known = known_offsets(history)
        for (group, partition), offsets in read.items():
            low, high = min(offsets), max(offsets)
            for row in moved.get((group, partition), ()):  # Kafka: auto.offset.reset omits what is between.
                offsets.update(dict.fromkeys(range(max(row.from_offset, 0), row.to_offset)))
            offsets.update(_taken(missable_offsets(history).get(partition, {}), begun[group, partition]))
            there = known[partition, level[group, partition]]
            between = there[bisect_left(there, low) : bisect_right(there, high)]
            self._judge(group, partition, [each for each in between if each not in offsets], begun[group, partition])

    def _judge(self, group: str, partition: TopicPartition, omitted: list[int], begun: list[tuple[int, int]]) -> None:
        """``begun`` holds the first offset and the end of each read of the group."""
        if omitted:
            behind = [each for each in begun if each[0] > omitted[0]]
            self.violated(
                min(at_us for _, at_us in behind),
                f"group {group} omitted {len(omitted)} records of {partition[0]}-{partition[1]}, the first at offset "
                f"{omitted[0]}, and read on from {min(behind)[0]}",
            )


def _taken(since_us: Mapping[int, int], begun: list[tuple[int, int]]) -> dict[int, None]:
    """Return the offsets whose records a cleaner may have taken before the first read that began behind them ended.
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


class GroupsConsistent(Check):
    """groups-consistent: a coordinator's state of its groups and their offsets does not contradict itself.

    Calls the coordinator's own check (``GroupCoordinator.validate``), in the thorough comparison only.

    The judged code is its own judge here. That can hide no violation from clients, because it only adds to the checks
    of what clients see: one-group-leader, commits-fenced, commit-regression and no-committed-lost.
    """

    guarantee = "groups-consistent"
    inspection = Inspection.ONLY_THOROUGH

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        try:
            node.broker.groups.validate()
        except AssertionError as wrong:
            self.violated(at_us, f"node {node.broker.node_id}: {wrong}")
