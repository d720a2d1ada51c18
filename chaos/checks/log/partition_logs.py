"""High watermarks and damaged records of a node's logs."""

from chaos.checks.check import Check, CheckContext, Inspection
from chaos.sim.disk import SimDisk
from reference_broker.core.events import Event, Request
from reference_broker.core.node import Node
from reference_broker.replication.partitions import Partition
from reference_broker.wire.produce import ProduceRequest


class LogConsistent(Check):
    """log-consistent: within one incarnation a partition's high watermark never goes back and is inside its log.

    The check compares the partitions that a produce request named, and all partitions in the thorough comparison.
    """

    guarantee = "log-consistent"
    inspection = Inspection.AFTER_EVENTS

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._high_watermarks: dict[tuple[int, int, bytes, int], int] = {}
        self._settled: dict[tuple[int, int, bytes, int], int] = {}
        """by the same: losses of the partition (E-7) when the replica was last seen in sync"""

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:
        partitions = node.broker.partitions
        if thorough:
            for partition in partitions.by_name.values():
                self._look(at_us, incarnation, node.broker.node_id, partition)
        elif type(event) is Request and isinstance(event.body, ProduceRequest):
            for topic in event.body.topics:
                for batches in topic.partitions:
                    written = partitions.by_id.get((topic.topic_id, batches.partition)) or partitions.by_name.get(
                        (topic.topic, batches.partition)
                    )
                    if written is not None:
                        self._look(at_us, incarnation, node.broker.node_id, written)

    def _look(self, at_us: int, incarnation: int, node_id: int, partition: Partition) -> None:
        log = partition.log
        key = (node_id, incarnation, partition.topic_id, partition.index)
        before = self._high_watermarks.get(key, 0)  # Physical: a new process knows a follower's only from its leader.
        self._high_watermarks[key] = log.high_watermark
        name = f"{partition.topic}-{partition.index}"
        # E-7: no replica had kept the committed records, so a follower truncates below its high watermark. It may lead
        # by now. KIP-497: it does so before it is in sync again. HighWatermarkMonotonic judges each change.
        known = self.context.replicas.partitions.get((partition.topic_id, partition.index))
        losses = 0 if known is None else known.losses
        is_lost = losses > self._settled.get(key, 0)
        if known is not None and node_id in known.state.isr and not known.excused:
            self._settled[key] = losses
        if log.high_watermark < before and not is_lost:
            self.violated(at_us, f"{name}: high watermark went back from {before} to {log.high_watermark}")
        if not log.log_start_offset <= log.high_watermark <= log.log_end_offset:
            self.violated(
                at_us,
                f"{name}: high watermark {log.high_watermark} is outside {log.log_start_offset}..{log.log_end_offset}",
            )


class DamageKept(Check):
    """damage-kept: records of a stopped node that were damaged stay on its disk, under their own name or another one.

    They were durable, so they are not the torn end of a log. An operator who repairs the node may need the remaining
    bytes.
    """

    guarantee = "damage-kept"
    inspection = Inspection.ONLY_THOROUGH

    def inspect(self, at_us: int, incarnation: int, node: Node, event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        disk = getattr(node.broker.disk, "inner", node.broker.disk)
        if not isinstance(disk, SimDisk) or not disk.damaged or not node.ready:
            return
        # Kafka: the files of a deleted topic are deleted.
        topics = node.broker.controller.image.topics
        kept = {content for _, content in disk.all_files()}
        for path, content in disk.damaged:
            if path.partition("/")[0].rpartition("-")[0] in topics and content not in kept:
                self.violated(
                    at_us, f"node {node.broker.node_id}: nothing holds any more what {path} was after its damage"
                )
