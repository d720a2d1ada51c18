from typing import TYPE_CHECKING

from chaos.checks.check import Check
from chaos.checks.surroundings import Surroundings
from reference_broker.core.events import Event
from reference_broker.metadata.uuids import uuid_text

if TYPE_CHECKING:
    from reference_broker.core.node import Node


BEGUN = "COPY_SEGMENT_STARTED"
"""KIP-405: only from this state a copy can still become listed."""


class NewerUploadCounts(Check):
    """newer-upload-counts: of two uploads only the newer leader epoch's counts (P-11, KIP-405).

    Once any node knows of an upload in a leader epoch, nothing of an earlier epoch is listed any more that was not
    listed before. A node that starts reads the events of uploads again from the beginning, so only what no node had
    listed yet is looked at.
    """

    guarantee = "newer-upload-counts"

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._settled: set[bytes] = set()
        """IDs of the segments that any node has listed, or that are deleted."""
        self._newest: dict[tuple[bytes, int], int] = {}
        """The newest leader epoch that has uploaded anything, by topic ID and index."""

    def node(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        remote_log = node.broker.remote_log
        if remote_log is None or self.around.alone:
            return
        partitions = node.broker.partitions
        for partition in (*partitions.by_name.values(), *partitions.followed.values()):
            place = partition.topic_id, partition.index
            if not remote_log.metadata.is_ready(*place):
                continue
            known = remote_log.metadata.of(*place)
            listed, others = tuple(known.listed()), known.unfinished()
            newest = self._newest.get(place, -1)
            for segment in listed:
                if segment.segment_id not in self._settled:
                    self.looked_at += 1
                    if segment.uploader_epoch < newest:
                        self.violated(
                            at_us,
                            f"{segment.topic}-{segment.partition} from {segment.start_offset} to "
                            f"{segment.end_offset + 1} (copy {uuid_text(segment.segment_id)}) was uploaded in leader "
                            f"epoch {segment.uploader_epoch}, and listed after an upload of epoch {newest} was known",
                        )
            settled = (each for each in others if each.state.name != BEGUN)
            self._settled.update(each.segment_id for each in (*listed, *settled))
            self._newest[place] = max(newest, *(each.uploader_epoch for each in (*listed, *others)), -1)
