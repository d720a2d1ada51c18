"""Order of the markers of metadata transactions in the committed log.

one-abort-per-begin: each Begin has one End or one Abort, and there are no other markers.

misplaced-markers-refused: a marker that is out of place is a fault on replay, so no node publishes metadata of its
offset or a later one (T-3).
"""

from collections.abc import Mapping

from chaos.checks.batches import Batch
from chaos.checks.surroundings import Surroundings
from chaos.checks.transaction_check import BEGIN, MARKERS, TransactionCheck


class OneAbortPerBegin(TransactionCheck):
    guarantee = "one-abort-per-begin"

    def record(self, at_us: int, batch: Batch, api_key: int, value: bytes) -> None:  # noqa: ARG002
        self.looked_at += api_key in MARKERS
        if is_misplaced(self, api_key):
            inside = f"inside the transaction of offset {self.open_at}" if self.open_at >= 0 else "without a Begin"
            self.violated(at_us, f"{MARKERS[api_key]} in {batch.named} stands {inside}")


class MisplacedMarkersRefused(TransactionCheck):
    guarantee = "misplaced-markers-refused"

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._misplaced = ""
        self._from = -1
        """Offset of the first marker that is out of place, or -1."""
        self._newest: dict[int, tuple[int, int]] = {}
        """The newest offset that each node has published, and when."""

    def record(self, at_us: int, batch: Batch, api_key: int, value: bytes) -> None:  # noqa: ARG002
        self.looked_at += api_key in MARKERS
        if self._from < 0 and is_misplaced(self, api_key):
            self._misplaced, self._from = f"{MARKERS[api_key]} in {batch.named}", batch.base_offset

    def published(self, at_us: int, node_id: int, fields: Mapping[str, int | str]) -> None:
        offset = int(fields["offset"])
        if offset > self._newest.get(node_id, (-1, 0))[0]:
            self._newest[node_id] = offset, at_us

    def quiet(self, at_us: int) -> None:  # noqa: ARG002
        for node_id, (offset, published_us) in self._newest.items():
            if 0 <= self._from <= offset:
                self.violated(
                    published_us, f"node {node_id} published offset {offset}, and {self._misplaced} is out of place"
                )


def is_misplaced(check: TransactionCheck, api_key: int) -> bool:
    return api_key in MARKERS and (api_key == BEGIN) == (check.open_at >= 0)
