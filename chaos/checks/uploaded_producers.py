from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chaos.checks.batches import read_batches
from chaos.checks.check import Check
from chaos.checks.producer_replay import ProducerState, read_snapshot, replayed
from chaos.checks.surroundings import Surroundings
from chaos.checks.tier import COPIED, CopiedSegment, copied_in
from reference_broker.core.effects import Effect
from reference_broker.core.events import Event
from reference_broker.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from reference_broker.core.node import Node


@dataclass(slots=True)
class _Replay:
    """What the batches below ``end_offset`` say. ``at`` keeps what was known at the ends of copied segments."""

    end_offset: int = 0
    known: dict[int, ProducerState] = field(default_factory=dict)
    at: dict[int, dict[int, ProducerState]] = field(default_factory=dict)


LATE_MS = 3000
"""By how much a record may be older when a node appends it: its producer retries."""


class UploadedProducers(Check):
    """uploaded-producers-replayed: the snapshot of producers that is uploaded with a segment equals a full replay to
    its end, for every producer that is not expired and every open transaction (P-8, P-10, P-13).

    The replay takes each batch once, in the order of the log, when a node says that the batch's segment is copied.
    Clocks differ, and may have been stepped back since a producer was forgotten. So a producer counts as expired if it
    is that by the latest time that the node's clock has shown (P-7). A log that has not its first records may have
    begun with the snapshot of another node (P-11), and then the clocks of all nodes count.
    """

    guarantee = "uploaded-producers-replayed"
    acts_on = (COPIED,)

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._replays: dict[str, _Replay] = {}
        self._latest_ms: dict[int, int] = {}
        """What each node's clock has shown at most."""

    def node(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        self._clock_showed(node.broker.node_id, node.broker.now.wall_ms)

    def _clock_showed(self, node_id: int, wall_ms: int) -> None:
        self._latest_ms[node_id] = max(wall_ms, self._latest_ms.get(node_id, wall_ms))

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        for copied in copied_in(effects):
            node_id = node.broker.node_id
            self._clock_showed(node_id, copied.began_ms)
            log = next(log for log in node.logs() if log.directory == copied.partition)
            wanted = self._replayed_to(copied, log)
            data = copied.objects(self.around.tier).get("snapshot")
            if wanted is not None and data is not None:
                self.looked_at += 1
                latest_ms = max(self._latest_ms.values()) if log.local_log_start_offset else self._latest_ms[node_id]
                self._compare(at_us, copied, wanted, data, log, latest_ms)

    def _replayed_to(self, copied: CopiedSegment, log: PartitionLog) -> dict[int, ProducerState] | None:
        """Returns what the log says below the segment's end. None if batches before it are not here any more."""
        replay = self._replays.setdefault(copied.partition, _Replay())
        if replay.end_offset < copied.next_offset:
            if log.local_log_start_offset > replay.end_offset:
                return None
            for batch, data in read_batches(log, replay.end_offset, copied.next_offset):
                replay.known = replayed(replay.known, data, batch)
            replay.end_offset = copied.next_offset
            replay.at[copied.next_offset] = replay.known
        return replay.at.get(copied.next_offset)

    def _compare(
        self,
        at_us: int,
        copied: CopiedSegment,
        wanted: dict[int, ProducerState],
        data: bytes,
        log: PartitionLog,
        latest_ms: int,
    ) -> None:
        try:
            found = read_snapshot(data)
        except ValueError as damage:
            self.violated(at_us, f"{copied.named}: its snapshot of producers is damaged: {damage}")
            return
        limit_ms = latest_ms - log.config.producer_id_expiration_ms
        for producer_id, producer in wanted.items():
            if producer.open_from < 0 and (
                producer.timestamp_ms <= limit_ms or 0 <= producer.last_offset < log.log_start_offset
            ):
                continue
            known = found.get(producer_id)
            if producer.silence_ms >= log.config.producer_id_expiration_ms - LATE_MS and known is not None:
                # P-7: it was forgotten once, with the epoch of its last marker.
                known = known._replace(coordinator_epoch=max(known.coordinator_epoch, producer.coordinator_epoch))
            if known is None or known.told != producer.told:
                self.violated(
                    at_us,
                    f"{copied.named}: of producer {producer_id} its snapshot has {known}, and a full replay {producer}",
                )
                return
        strangers = [producer_id for producer_id in found if producer_id not in wanted]
        if strangers:
            self.violated(at_us, f"{copied.named}: its snapshot knows producers {strangers}, who wrote nothing")
