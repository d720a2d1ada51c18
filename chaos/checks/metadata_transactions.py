"""Transactions in the metadata log (KIP-868): where their markers may be."""

from abc import abstractmethod
from collections.abc import Sequence

from chaos.checks.batches import BatchIdentity, records_in
from chaos.checks.check import CheckContext, QuorumCheck, fields_of
from chaos.checks.history import History
from chaos.checks.quorum_view import Member
from chaos.hooks.metadata_digest import ROW as PUBLISHED
from reports.rows import TraceRow

BEGIN, END, ABORT = 23, 24, 25
MARKERS = {BEGIN: "Begin", END: "End", ABORT: "Abort"}


class TransactionCheck(QuorumCheck):
    """Base of checks of the committed metadata log that must know from its markers whether a transaction is open."""

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.open_at = -1
        """offset at which the open transaction begins, -1 if none is open; during ``record`` it does not depend on the
        current record yet"""
        self._at = 0

    def committed(self, at_us: int, member: Member, batches: Sequence[tuple[BatchIdentity, bytes]]) -> None:  # noqa: ARG002
        for batch, data in batches:
            if batch.base_offset != self._at:
                self.open_at = -1  # T-9: a snapshot replaced the records between, and has no open transaction.
                self.skipped()
            self._at = batch.last_offset + 1
            if not batch.control:
                self._records(at_us, batch, data)

    def _records(self, at_us: int, batch: BatchIdentity, data: bytes) -> None:
        """Read a batch's records. A value begins with the frame's version, then the record's API key (both varints
        below 128)."""
        for record in records_in(data):
            value = record.value
            assert value is not None, f"{batch.named} holds a record without a value"
            self.record(at_us, batch, value[1], value)
            if value[1] in MARKERS:
                self.open_at = batch.base_offset if value[1] == BEGIN else -1

    def is_misplaced(self, api_key: int) -> bool:
        """Return whether the record is a Begin inside a transaction, or an End or Abort outside any."""
        return api_key in MARKERS and (api_key == BEGIN) == (self.open_at >= 0)

    def skipped(self) -> None:
        """Called before what follows a snapshot."""

    @abstractmethod
    def record(self, at_us: int, batch: BatchIdentity, api_key: int, value: bytes) -> None:
        """Called with each committed record, in the log's order."""


class OneAbortPerBegin(TransactionCheck):
    """one-abort-per-begin: each Begin has one End or one Abort, and there are no other markers."""

    guarantee = "one-abort-per-begin"

    def record(self, at_us: int, batch: BatchIdentity, api_key: int, value: bytes) -> None:  # noqa: ARG002
        self.evidence += api_key in MARKERS
        if self.is_misplaced(api_key):
            inside = f"inside the transaction of offset {self.open_at}" if self.open_at >= 0 else "without a Begin"
            self.violated(at_us, f"{MARKERS[api_key]} in {batch.named} is {inside}")


class MisplacedMarkersRefused(TransactionCheck):
    """misplaced-markers-refused: a marker that is out of place is a fault on replay, so no node publishes metadata of
    its offset or a later one (T-3).
    """

    guarantee = "misplaced-markers-refused"
    rows = (PUBLISHED,)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._misplaced = ""
        self._from = -1
        """Offset of the first marker that is out of place, or -1."""
        self._newest: dict[int, tuple[int, int]] = {}
        """The newest offset that each node has published, and when."""

    def record(self, at_us: int, batch: BatchIdentity, api_key: int, value: bytes) -> None:  # noqa: ARG002
        self.evidence += api_key in MARKERS
        if self._from < 0 and self.is_misplaced(api_key):
            self._misplaced, self._from = f"{MARKERS[api_key]} in {batch.named}", batch.base_offset

    def trace(self, row: TraceRow) -> None:
        offset = fields_of(row)["offset"]
        if offset > self._newest.get(row.node, (-1, 0))[0]:
            self._newest[row.node] = offset, row.at_us

    def end(self, history: History) -> None:  # noqa: ARG002
        for node_id, (offset, published_us) in self._newest.items():
            if 0 <= self._from <= offset:
                self.violated(
                    published_us, f"node {node_id} published offset {offset}, and {self._misplaced} is out of place"
                )


MARKER_KINDS = ("begin", "end", "abort")
METADATA_VERSION = "metadata.version"
LOWEST_LEVEL = 13
"""T-2: the level from which on markers may be written (3.6-IV1)."""


class MarkersGated(QuorumCheck):
    """markers-gated: no node has a committed transaction marker below the metadata.version that allows them.

    The bootstrap of an empty log is judged by the version that it writes, since there is none before (T-2).
    """

    guarantee = "markers-gated"
    needs_one_node = True
    rows = ("metadata_committed",)

    def trace(self, row: TraceRow) -> None:
        """The node has handled the event by now, so its image has the changes committed in the event."""
        fields, member = fields_of(row), self.view.nodes[row.node]
        if fields["kind"] not in MARKER_KINDS or member.replica is None:
            return
        version = member.replica.loader.image.features.get(METADATA_VERSION, 0)
        if 0 < version < LOWEST_LEVEL:  # T-7: a bootstrap's Begin and Abort precede any level.
            self.violated(
                row.at_us,
                f"node {row.node} has a committed {fields['kind']} at offset {fields['offset']}, at "
                f"metadata.version {version}",
            )


FEATURE_LEVEL = 12
"""API key of FeatureLevelRecord, which names the feature."""


class Bootstrapped(TransactionCheck):
    """bootstrapped: the committed metadata log has a metadata.version before anything else, and at the end all nodes
    know one, even if some died while the empty log was bootstrapped (T-7).

    A new controller may abort an unfinished bootstrap. What follows the Abort is another bootstrap.

    ``_begun`` says that the open transaction has a metadata.version.
    """

    guarantee = "bootstrapped"
    needs_one_node = True

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._known = self._begun = False

    def committed(self, at_us: int, member: Member, batches: Sequence[tuple[BatchIdentity, bytes]]) -> None:
        if not self._known:
            super().committed(at_us, member, batches)

    def skipped(self) -> None:
        self._known = True  # T-9: the snapshot holds what was committed before it.

    def record(self, at_us: int, batch: BatchIdentity, api_key: int, value: bytes) -> None:
        if self._known:
            return
        if api_key in MARKERS:
            self._known = self._begun and api_key not in (BEGIN, ABORT)
            self._begun = False
        elif api_key == FEATURE_LEVEL and METADATA_VERSION.encode() in value:
            self._begun, self._known = self.open_at >= 0, self.open_at < 0
        elif self.open_at < 0:
            self.violated(at_us, f"{batch.named} is committed, and no metadata.version before it")

    def end(self, history: History) -> None:
        for member in self.view.nodes:
            if member.replica is not None and not member.replica.loader.image.features.get(METADATA_VERSION):
                self.violated(history.end_us, f"node {member.node_id} knows no metadata.version")


NO_OP = 20
BARE_BYTES = 4
"""The length of a NoOpRecord without the epoch. Frame version, API key, version and the number of tagged fields take
one byte each."""


class EpochGatedByTransaction(TransactionCheck):
    """epoch-gated-by-transaction: no metadata epoch is written inside a transaction of the metadata log (M-2)."""

    guarantee = "epoch-gated-by-transaction"
    needs_one_node = True

    def record(self, at_us: int, batch: BatchIdentity, api_key: int, value: bytes) -> None:
        if api_key == NO_OP and len(value) > BARE_BYTES and self.open_at >= 0:
            self.violated(
                at_us, f"a metadata epoch in {batch.named} is inside the transaction of offset {self.open_at}"
            )
