from collections.abc import Sequence

from chaos.checks.batches import Batch
from chaos.checks.markers_gated import METADATA_VERSION
from chaos.checks.quorum_view import Member
from chaos.checks.surroundings import Surroundings
from chaos.checks.transaction_check import ABORT, BEGIN, MARKERS, TransactionCheck

FEATURE_LEVEL = 12
"""API key of FeatureLevelRecord, which names the feature."""


class Bootstrapped(TransactionCheck):
    """bootstrapped: the committed metadata log says a metadata.version before anything else, and at the end all nodes
    know one, even if some died while the empty log was bootstrapped (T-7).

    A new controller may abort an unfinished bootstrap. What follows the Abort is another bootstrap.

    ``_begun`` says that the open transaction holds a metadata.version.
    """

    guarantee = "bootstrapped"
    needs_one_node = True

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._known = self._begun = False

    def committed(self, at_us: int, member: Member, batches: Sequence[tuple[Batch, bytes]]) -> None:
        if not self._known:
            super().committed(at_us, member, batches)

    def skipped(self) -> None:
        self._known = True  # T-9: the snapshot holds what was committed before it.

    def record(self, at_us: int, batch: Batch, api_key: int, value: bytes) -> None:
        if self._known:
            return
        if api_key in MARKERS:
            self._known = self._begun and api_key not in (BEGIN, ABORT)
            self._begun = False
        elif api_key == FEATURE_LEVEL and METADATA_VERSION.encode() in value:
            self._begun, self._known = self.open_at >= 0, self.open_at < 0
        elif self.open_at < 0:
            self.violated(at_us, f"{batch.named} is committed, and no metadata.version before it")

    def quiet(self, at_us: int) -> None:
        for member in self.view.nodes:
            if member.replica is not None and not member.replica.loader.image.features.get(METADATA_VERSION):
                self.violated(at_us, f"node {member.node_id} knows no metadata.version")
