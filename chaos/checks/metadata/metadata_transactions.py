"""Markers in the metadata log (KIP-868): where they may be."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from chaos.checks.check import CheckContext, QuorumCheck, fields_of
from chaos.checks.history import History
from chaos.checks.log.batches import BatchIdentity, PlainRecord, records_in
from chaos.checks.quorum.quorum_view import Member, Seen
from chaos.hooks.metadata_digest import ROW as PUBLISHED
from reference_broker.core.events import Effect, Event, Note
from reports.rows import TraceRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node

BEGIN, END, ABORT = 23, 24, 25
MARKERS = {BEGIN: "Begin", END: "End", ABORT: "Abort"}


class TransactionCheck(QuorumCheck):
    """Base of checks of the committed metadata log that must know from its markers whether a transaction is open."""

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.quorum.on_committed.append(self.committed)
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
        for record in _records_of(data):
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


@lru_cache(64)
def _records_of(data: bytes) -> tuple[PlainRecord, ...]:
    """Return the records of a batch. Several checks get the same batches."""
    return tuple(records_in(data))


PUBLISHED_WITHIN_US = 500_000
SLICED_WITHIN_US = 2_000_000
"""A node loads committed records in slices, to each of which the simulator adds up to 2 ms. The second limit is that
with short slices. No clause gives a time."""
PUBLICATION = "metadata_published"


class PublishedWhenCommitted(TransactionCheck):
    """torn-metadata: a node publishes committed records and no part of a transaction, and does so in time (T-8).

    A publication ends below the node's high watermark. It does not end between the batch with a Begin and the one with
    the End or Abort. A node that no fault affects publishes all records below its high watermark, up to the Begin of an
    open transaction.
    """

    guarantee = "torn-metadata"
    acts_on = (PUBLICATION, type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.quorum.on_changed.append(self.changed)
        self._transactions: list[tuple[int, int]] = []
        """For each transaction that has ended: the last offset of the batch with its Begin, and the first offset of the
        batch with its End or Abort."""
        self._begun = 0
        """Last offset of the batch with the Begin of the open transaction."""
        self._early: list[tuple[int, int, int]] = []
        """publications (time, node, offset) of records that the view has not read yet"""
        self._due: dict[int, tuple[int, int]] = {}
        """by node: an offset that it has known to be committed, and since when"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        if event is None:
            self._due.pop(node_id, None)
        for effect in effects:
            if type(effect) is not Note or effect.what != PUBLICATION:
                continue
            self.evidence += 1
            offset = int(dict(effect.fields)["offset"])
            committed = node.broker.quorum_node.quorum.high_watermark
            if offset >= committed:
                self.violated(
                    at_us,
                    f"node {node_id} publishes offset {offset}, and knows records below {committed} to be "
                    "committed (T-8)",
                )
            self._early.append((at_us, node_id, offset))

    def record(self, at_us: int, batch: BatchIdentity, api_key: int, value: bytes) -> None:  # noqa: ARG002
        if api_key == BEGIN:
            self._begun = batch.last_offset
        elif api_key in MARKERS and self.open_at >= 0:
            self._transactions.append((self._begun, batch.base_offset))

    def committed(self, at_us: int, member: Member, batches: Sequence[tuple[BatchIdentity, bytes]]) -> None:
        super().committed(at_us, member, batches)
        self._judge()

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        if self._early:
            self._judge()
        if after.high_watermark > before.high_watermark:
            self._due.setdefault(member.node_id, (after.high_watermark - 1, at_us))
        within_us = SLICED_WITHIN_US if self.context.settings.slices_us else PUBLISHED_WITHIN_US
        for late, (offset, since_us) in list(self._due.items()):
            if at_us - since_us > within_us:
                del self._due[late]
                self._late(at_us, self.quorum.nodes[late], offset, since_us)

    def _judge(self) -> None:
        """Compare publications with the transactions that the view knows."""
        early, self._early = self._early, []
        for at_us, node_id, offset in early:
            if offset >= self.quorum.committed_end:
                self._early.append((at_us, node_id, offset))
                continue
            is_open = self.open_at >= 0 and offset >= self._begun
            last = next((ended for begun, ended in reversed(self._transactions) if begun <= offset), -1)
            if is_open or offset < last:
                self.violated(at_us, f"node {node_id} publishes offset {offset} inside a transaction (T-8)")

    def _late(self, at_us: int, member: Member, offset: int, since_us: int) -> None:
        # Physical: a node that is dead or paused publishes nothing.
        if member.replica is None or self.quorum.fault_times.node_since(member.node_id, since_us):
            return
        published = member.replica.loader.image.provenance.offset
        # T-8: of a transaction that ends beyond what the node knows to be committed, it publishes nothing.
        wanted = next((begun - 1 for begun, ended in reversed(self._transactions) if begun <= offset < ended), offset)
        wanted = min(wanted, self.open_at - 1) if self.open_at >= 0 else wanted
        if published < wanted:
            self.violated(
                at_us,
                f"node {member.node_id} has known offset {offset} to be committed for {at_us - since_us} us, and its "
                f"metadata ends at offset {published} (T-8)",
            )


class OneAbortPerBegin(TransactionCheck):
    """one-abort-per-begin: each Begin has one End or one Abort, and there are no other markers.

    A new controller aborts the transaction that it finds open before it writes anything else (T-7). So all records of a
    transaction and its End have the epoch of its Begin, and only an Abort may have a later one.
    """

    guarantee = "one-abort-per-begin"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._epoch = -1
        """Epoch of the last Begin, or -1."""

    def record(self, at_us: int, batch: BatchIdentity, api_key: int, value: bytes) -> None:  # noqa: ARG002
        self.evidence += api_key in MARKERS
        if self.is_misplaced(api_key):
            inside = f"inside the transaction of offset {self.open_at}" if self.open_at >= 0 else "without a Begin"
            self.violated(at_us, f"{MARKERS[api_key]} in {batch.named} is {inside}")
        elif self.open_at >= 0 and api_key != ABORT and batch.epoch != self._epoch:
            self.violated(
                at_us, f"{batch.named} continues the transaction of offset {self.open_at}, of epoch {self._epoch} (T-7)"
            )
        if api_key == BEGIN:
            self._epoch = batch.epoch


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
        fields, member = fields_of(row), self.quorum.nodes[row.node]
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
        for member in self.quorum.nodes:
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
