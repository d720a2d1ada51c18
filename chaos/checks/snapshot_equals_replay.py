from collections.abc import Mapping

from chaos.checks.quorum_view import QuorumCheck
from chaos.checks.surroundings import Surroundings


class SnapshotEqualsReplay(QuorumCheck):
    """snapshot-equals-replay: at each offset all nodes publish the same metadata, whatever snapshot and log they
    started from, and a digest that followed the deltas equals that of the whole image.
    """

    guarantee = "snapshot-equals-replay"

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._published: dict[int, tuple[str, int, int]] = {}

    def published(self, at_us: int, node_id: int, fields: Mapping[str, int | str]) -> None:
        offset, digest, partitions = int(fields["offset"]), str(fields["digest"]), int(fields["partitions"])
        known = self._published.setdefault(offset, (digest, node_id, partitions))
        if known[0] != digest:
            self.violated(
                at_us,
                f"offset {offset}: node {known[1]} has {known[2]} partitions and digest {known[0]}, node {node_id} has "
                f"{partitions} and {digest}",
            )

    def recomputed(self, at_us: int, node_id: int, followed: int, whole: int) -> None:
        if followed != whole:
            self.violated(
                at_us, f"node {node_id}: the deltas lead to digest {followed:016x}, its image has {whole:016x}"
            )
