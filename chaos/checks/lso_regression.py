from collections import defaultdict
from typing import TYPE_CHECKING

from chaos.checks.check import Check
from chaos.checks.history import History, grouped, place
from chaos.checks.surroundings import Surroundings
from reference_broker.core.effects import Note
from reference_broker.core.events import Event
from reference_broker.replication.partitions import Partition

if TYPE_CHECKING:
    from reference_broker.core.node import Node


class LsoRegression(Check):
    """lso-regression (X-4): a leader's last stable offset never goes back within its leader epoch.

    Seen from outside by responses to fetches that named the leader epoch, since a leader of another epoch refuses
    those. Two responses have an order if the first had come before the second was requested. Seen from inside in each
    thorough look.

    KIP-392: followers serve the consumers of their rack. After a restart a follower knows only the high watermark of
    its checkpoint, until its leader sends the current one. So nodes that another node leads in the epoch are not
    judged.
    """

    guarantee = "lso-regression"
    replica_notes = ("leads",)

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._shown: dict[tuple[int, int, bytes, int], tuple[int, int]] = {}
        """leader epoch and last stable offset by node, incarnation and partition"""
        self._leaders: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
        """IDs of the nodes that led, by partition (topic-index) and leader epoch, of replicated partitions. A recreated
        topic has the same epochs again."""

    def replica_noted(self, at_us: int, node_id: int, note: Note) -> None:  # noqa: ARG002
        fields = dict(note.fields)
        self._leaders[str(fields["partition"]), int(fields["leader_epoch"])].add(node_id)

    def node(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        if thorough:
            for partition in node.broker.partitions.by_name.values():
                self._look(at_us, incarnation, node.broker.node_id, partition)

    def _look(self, at_us: int, incarnation: int, node_id: int, partition: Partition) -> None:
        key = (node_id, incarnation, partition.topic_id, partition.index)
        epoch, before = self._shown.get(key, (-1, 0))
        shown = partition.log.last_stable_offset
        if partition.leader_epoch == epoch and shown < before:
            self.violated(
                at_us,
                f"{partition.topic}-{partition.index}: node {node_id}, the leader in epoch {epoch}, shows the last "
                f"stable offset {shown} after {before}",
            )
        self._shown[key] = (partition.leader_epoch, shown)

    def end(self, history: History) -> None:
        told = [
            (row, operation)
            for row in history.positions
            if row.last_stable_offset >= 0
            and row.leader_epoch >= 0
            and row.error is None
            and (operation := history.operation_of.get((row.process, row.index))) is not None
            and operation.node >= 0
        ]
        self.looked_at += len(told)
        of_leader = grouped(told, lambda each: (place(each[0]), each[1].node, each[0].leader_epoch))
        for ((topic, partition), node, epoch), answers in of_leader.items():
            if node not in self._leaders.get((f"{topic}-{partition}", epoch), {node}):
                continue
            ended = sorted(answers, key=lambda each: each[1].complete_us)
            known, at = -1, 0
            for row, operation in sorted(answers, key=lambda each: each[1].invoke_us):
                while at < len(ended) and ended[at][1].complete_us < operation.invoke_us:
                    known = max(known, ended[at][0].last_stable_offset)
                    at += 1
                if row.last_stable_offset < known:
                    self.violated(
                        operation.complete_us,
                        f"{topic}-{partition}: node {node}, the leader in epoch {epoch}, told {row.process} the last "
                        f"stable offset {row.last_stable_offset} after {known}",
                    )
