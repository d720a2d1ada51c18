from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from chaos.checks.batches import Batch, read_batches
from chaos.checks.check import Check
from chaos.checks.surroundings import Surroundings
from chaos.checks.tier import COPIED, NEEDED, CopiedSegment, copied_in
from reference_broker.core.effects import Effect
from reference_broker.core.events import Event
from reference_broker.metadata.uuids import uuid_text

if TYPE_CHECKING:
    from reference_broker.core.node import Node


class ListedWhenStored(Check):
    """listed-when-stored: a segment is listed only after all its objects are stored, and they are what the log held
    (P-11).

    When the first node lists a segment, its objects are looked for; later nodes may list it while it is being deleted.
    When a node says that it has copied a segment, the log object must have the bytes of the local log, and the leader
    epochs must say of each batch the epoch that the batch itself says.
    """

    guarantee = "listed-when-stored"
    acts_on = (COPIED,)

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._seen: set[bytes] = set()

    def node(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        remote_log = node.broker.remote_log
        if remote_log is None or self.around.alone:
            return
        partitions = node.broker.partitions
        for partition in (*partitions.by_name.values(), *partitions.followed.values()):
            if remote_log.metadata.is_ready(partition.topic_id, partition.index):
                for segment in remote_log.metadata.of(partition.topic_id, partition.index).listed():
                    if segment.segment_id not in self._seen:
                        self._seen.add(segment.segment_id)
                        name, copy = f"{segment.topic}-{segment.partition}", uuid_text(segment.segment_id)
                        self._look(at_us, CopiedSegment(name, copy, segment.start_offset, segment.end_offset + 1, 0))

    def _look(self, at_us: int, listed: CopiedSegment) -> bool:
        self.looked_at += 1
        stored = listed.objects(self.around.tier)
        missing = [kind for kind in NEEDED if kind not in stored]
        if missing:
            self.violated(at_us, f"{listed.named} was listed without its {', '.join(missing)}")
        return not missing

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        for copied in copied_in(effects):
            if self._look(at_us, copied):
                self._judge(at_us, node, copied)

    def _judge(self, at_us: int, node: "Node", copied: CopiedSegment) -> None:
        stored = copied.objects(self.around.tier)
        log = next(log for log in node.logs() if log.directory == copied.partition)
        if copied.base_offset < log.local_log_start_offset:
            return  # Physical: there is nothing here to compare with. That it may go, kept-until-stored judges.
        local = list(read_batches(log, copied.base_offset, copied.next_offset))
        if b"".join(data for _, data in local) != stored["log"]:
            self.violated(at_us, f"{copied.named}: the bytes in the store are not those of the log")
        self._judge_epochs(at_us, copied, stored["leader-epoch-checkpoint"], [batch for batch, _ in local])

    def _judge_epochs(self, at_us: int, copied: CopiedSegment, data: bytes, batches: Sequence[Batch]) -> None:
        """A checkpoint has a version, the number of rows, and rows of an epoch with its first offset."""
        rows = [tuple(map(int, line.split())) for line in data.decode().splitlines()[2:]]
        starts = [start for _, start in rows]
        for batch in batches:
            at = bisect_right(starts, batch.base_offset) - 1
            if at < 0 or rows[at][0] != batch.epoch:
                self.violated(at_us, f"{copied.named}: its leader epochs {rows} do not fit {batch.named}")
                return
