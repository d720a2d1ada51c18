"""Producers that a log knows, when it starts and when it stops.

producers-replayed: what a log knows of a producer is what its newest batch of that producer says (P-1, P-4, P-12).

A start takes it from a snapshot and the batches after that. So whatever becomes of the snapshot's file, the epoch, the
last sequence and the last offset must be those of the batch. The check reads them from the bytes of the log.

Only logs that began with a snapshot are looked at, once each. Producers without a batch in the log are left out: their
batches were deleted or cleaned away, or are in the remote tier only. So are those with a marker behind their last
batch, which may raise the epoch.

producers-kept-at-stop: a node that has stopped in good order leaves in each log that knows producers a snapshot of them
at the log's end (P-3). The check reads the names of the files.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from chaos.checks.batches import last_sequence_of, read_batches
from chaos.checks.check import Check
from chaos.checks.surroundings import Surroundings
from chaos.watched_disk import WatchedDisk
from reference_broker.core.events import Event
from reference_broker.replication.partitions import Partition

if TYPE_CHECKING:
    from reference_broker.core.node import Node


CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
"""Kafka's name of the mark."""


class ProducersReplayed(Check):
    guarantee = "producers-replayed"

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._judged: set[tuple[int, int, str]] = set()

    def whole(self, at_us: int, incarnation: int, node: "Node") -> None:
        partitions = node.broker.partitions
        for partition in (*partitions.by_name.values(), *partitions.followed.values()):
            place = node.broker.node_id, incarnation, partition.log.directory
            if partition.log.recovered.snapshot and place not in self._judged:
                self._judged.add(place)
                self._judge(at_us, node.broker.node_id, partition)

    def _judge(self, at_us: int, node_id: int, partition: Partition) -> None:
        log = partition.log
        found: dict[int, tuple[int, int, int]] = {}
        for batch, data in read_batches(log, log.local_log_start_offset, log.log_end_offset):
            producer_id, epoch, sequence = last_sequence_of(data)
            if batch.control:
                found.pop(producer_id, None)
            elif producer_id >= 0:
                found[producer_id] = epoch, sequence, batch.last_offset
        for producer_id, wanted in found.items():
            producer = log.producers.by_id.get(producer_id)
            if producer is None:
                continue  # It was idle for too long (P-7), which forgotten-producer-refused judges.
            offset = producer.marks[-1].last_offset if producer.marks else -1
            known = producer.producer_epoch, producer.last_sequence, offset
            if known != wanted:
                self.violated(
                    at_us,
                    f"{log.directory} on node {node_id}, which began with {log.recovered.snapshot}: of producer "
                    f"{producer_id} it knows epoch, last sequence and last offset {known}, and its last batch has "
                    f"{wanted}",
                )


class ProducersKeptAtStop(Check):
    guarantee = "producers-kept-at-stop"
    needs_one_node = True

    def node(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        if not node.stopped:
            return
        with WatchedDisk.looked_at():
            lacking = list(_without_snapshot(node)) if node.broker.disk.exists(CLEAN_SHUTDOWN) else []
        for told in lacking:
            self.violated(at_us, f"node {node.broker.node_id} stopped in good order, and {told}")


def _without_snapshot(node: "Node") -> Iterator[str]:
    for log in node.logs():
        end = log.log_end_offset
        if log.producers.by_id and f"{end:020d}.snapshot" not in node.broker.disk.list(log.directory):
            yield f"{log.directory} has no snapshot of producers at its end, offset {end}"
