"""snapshot-equals-replay: at each offset all nodes publish the same metadata, whatever snapshot and log they started
from, and a digest that followed the deltas equals that of the whole image."""

from chaos.checks.quorum_check import QuorumCheck
from chaos.checks.quorum_view import QuorumView


class SnapshotEqualsReplay(QuorumCheck):
    guarantee = "snapshot-equals-replay"

    def __init__(self, view: QuorumView) -> None:
        super().__init__(view)
        self._published: dict[int, tuple[str, int, int]] = {}

    def published(self, at_us: int, node: int, offset: int, digest: str, partitions: int) -> None:
        known = self._published.setdefault(offset, (digest, node, partitions))
        if known[0] != digest:
            self.violated(
                at_us,
                f"offset {offset}: node {known[1]} has {known[2]} partitions and digest {known[0]}, node {node} has "
                f"{partitions} and {digest}",
            )

    def recomputed(self, at_us: int, node: int, moved: int, whole: int) -> None:
        """Compares a digest that followed the deltas with that of the whole image."""
        if moved != whole:
            self.violated(at_us, f"node {node}: the deltas lead to digest {moved:016x}, its image has {whole:016x}")
