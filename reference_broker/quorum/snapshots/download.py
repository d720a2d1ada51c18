"""A follower's download of a snapshot: piece by piece from the leader, after which it replaces the log (S-8 to S-11).

``SnapshotDownload._fetch_and_install`` is the whole way of one snapshot, in one coroutine. Each piece is synced to
disk, with a checksum of all bytes up to its end, before the next one is requested. So a transfer can resume where it
was after any interruption, even after this node was killed (``partial``). It resumes only with the same leader and the
same snapshot, because a snapshot with the same ID may have other bytes on another leader. At the end the whole file is
verified and renamed. Once its name is synced, the log is cut.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.ports.coroutines import Wait, pause, result_of, run_coroutine
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Channel, NodeContext
from reference_broker.ports.slicing import SNAPSHOT_BYTES_PER_SLICE, Budget
from reference_broker.quorum.metadata_log import MetadataLog
from reference_broker.quorum.snapshots.format import SnapshotDamaged, read_batches
from reference_broker.quorum.snapshots.messages import (
    DRAFT_VERSION,
    FETCH_SNAPSHOT_VERSION,
    MEDIA_TYPE,
    Piece,
    read_response,
    request_for,
)
from reference_broker.quorum.snapshots.partial import UNKNOWN_SIZE, Partial, read_partial
from reference_broker.quorum.snapshots.store import SnapshotStore
from reference_broker.quorum.values import DownloadOutcome, Failed, Installed, LeaderChanged, OffsetAndEpoch, Rediscover
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

_LEADER_ERRORS = (ErrorCode.fenced_leader_epoch, ErrorCode.unknown_leader_epoch, ErrorCode.not_leader_or_follower)
_NOT_THERE = (ErrorCode.snapshot_not_found, ErrorCode.position_out_of_range, ErrorCode.offset_out_of_range)


class TransferError(Exception):
    """Ends a transfer before the snapshot is installed."""

    def __init__(self, outcome: DownloadOutcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


@dataclass(frozen=True, slots=True, eq=False)
class DownloadTransfer:
    """One transfer: its source, and the callbacks of ``Download.begin``."""

    leader: int
    epoch: int
    id: OffsetAndEpoch
    progress: Callable[[], None]
    outcome: Callable[[DownloadOutcome], None]


@dataclass(slots=True, eq=False)
class SnapshotDownload:
    """Implements ``quorum.values.Download`` with one transfer at a time."""

    _node: NodeContext
    _config: BrokerConfig
    _cluster_id: str
    _store: SnapshotStore
    _log: MetadataLog
    _patience_us: int = field(init=False)
    """The time after which a response counts as lost."""
    _rate: "TransferRate" = field(init=False)
    _postponement: "Postponement" = field(init=False)
    _partial: Partial | None = None
    """The bytes received so far, which this process has verified. It is kept after a cancel."""
    _transfer: DownloadTransfer | None = None
    """The current transfer. The coroutine of an earlier one ends at its next wait."""

    def __post_init__(self) -> None:
        # A lost response must show before the fetch timeout makes this node leave its leader.
        config = self._config
        fetch_ms, request_ms = config.controller_quorum_fetch_timeout_ms, config.controller_quorum_request_timeout_ms
        self._patience_us = max(1, min(request_ms, fetch_ms * 3 // 4)) * 1000
        self._rate = TransferRate(config.crucible_metadata_snapshot_fetch_max_bytes, self._patience_us)
        self._postponement = Postponement()

    def begin(
        self,
        leader: int,
        leader_epoch: int,
        id: OffsetAndEpoch,  # noqa: A002 - Kafka's word
        progress: Callable[[], None],
        outcome: Callable[[DownloadOutcome], None],
    ) -> None:
        """Start a transfer in place of the current one. All its work is done in later events."""
        transfer = self._transfer = DownloadTransfer(leader, leader_epoch, id, progress, outcome)
        run_coroutine(self._run(transfer), lambda: self._is_current(transfer))

    def wait_us(self, leader: int, id: OffsetAndEpoch) -> int:  # noqa: A002 - Kafka's word
        return self._postponement.wait_us(leader, id, self._node.now_us)

    def cancel(self) -> None:
        self._transfer = None

    def _is_current(self, transfer: DownloadTransfer) -> bool:
        return self._transfer is transfer  # Decision snapshot-download-event-late

    async def _run(self, transfer: DownloadTransfer) -> None:
        """Transfer the snapshot, and report the outcome. A DiskError, such as a full disk, fails the transfer. The next
        one resumes where this one was. An error of what follows on the outcome is not caught, and ends the node."""
        await pause(self._node.ports, 0)
        try:  # Decision snapshot-download-disk
            outcome = await self._fetch_and_install(transfer)
        except DiskError as error:
            self._note("download_failed", ("why", str(error)))
            self._note_wait(transfer, str(error), self._postponement.not_written(self._node.now_us))
            outcome = Failed()
        self._transfer = None
        transfer.outcome(outcome)

    async def _fetch_and_install(self, transfer: DownloadTransfer) -> DownloadOutcome:
        """Fetch, verify, name and install the snapshot. Raise DiskError."""
        if transfer.id.age <= self._log.end.age:  # Decision snapshot-download-needless
            return Failed()  # The log already holds all of it. The follower fetches from the log's end again.
        if self._store.holds(transfer.id):  # Decision snapshot-download-held
            return self._install(transfer)
        try:
            partial = await self._fetch(transfer)
            await self._verify(transfer, partial)
        except TransferError as ended:
            return ended.outcome
        await self._name(transfer, partial)
        return self._install(transfer)

    async def _fetch(self, transfer: DownloadTransfer) -> Partial:
        """Fetch the pieces that are missing. All bytes of the result are synced. Raise TransferError."""
        partial = await self._resume(transfer)
        if partial is not None:
            await partial.sync(self._node.ports)
            if partial.is_whole:
                return partial
        while True:
            piece = await self._fetch_piece(transfer)
            partial = self._append_piece(transfer, piece)
            transfer.progress()
            await partial.sync(self._node.ports)
            if partial.is_whole or piece.is_last:  # Decision snapshot-download-whole
                return partial

    # Where to begin

    async def _resume(self, transfer: DownloadTransfer) -> Partial | None:
        """Return the bytes that an earlier transfer left, or None if this one starts with the first byte."""
        partial = self._known(transfer)
        if partial is not None:  # Decision snapshot-download-resumed
            self._note_start(transfer, partial.length, partial.size)
            return partial
        if self._store.partial == transfer.id and self._partial is None:  # Decision partial-snapshot-read
            return await self._recover(transfer)
        self._start_over(transfer, "another leader or snapshot")
        return None

    def _known(self, transfer: DownloadTransfer) -> Partial | None:
        """Return the bytes that this process has of this snapshot from this leader."""
        partial = self._partial
        same = partial is not None and (partial.leader, partial.id) == (transfer.leader, transfer.id)
        return partial if same and self._store.partial == transfer.id else None

    async def _recover(self, transfer: DownloadTransfer) -> Partial | None:
        """Return the bytes that an earlier process left on disk. The checksums say how many of them count."""
        partial = await result_of(self._node.ports, read_partial(self._node.disk, transfer.id))
        if partial is None or partial.leader != transfer.leader:  # Decision partial-snapshot-of-other-leader
            self._start_over(transfer, "another leader" if partial is not None else "its progress is unreadable")
            return None
        self._partial = partial
        self._note_start(transfer, partial.length, partial.size)
        return partial

    def _start_over(self, transfer: DownloadTransfer, why: str) -> None:
        if self._store.partial is not None:  # Decision partial-snapshot-superseded
            self._discard(why)
        self._partial = None
        self._note_start(transfer, 0, UNKNOWN_SIZE)

    def _note_start(self, transfer: DownloadTransfer, position: int, size: int) -> None:
        self._note(
            "download_started",
            ("leader", transfer.leader),
            ("end_offset", transfer.id.offset),
            ("epoch", transfer.id.epoch),
            ("position", position),
            ("size", size),
        )

    # One piece

    async def _fetch_piece(self, transfer: DownloadTransfer) -> Piece:
        """Fetch the piece that follows. Raise TransferError."""
        sent_us = self._node.now_us
        body = await self._response(transfer)
        if body is None:
            self._rate.lost()
            raise TransferError(Failed())
        piece = read_response(body)
        self._check(transfer, piece)
        self._rate.arrived(self._node.now_us - sent_us)
        return piece

    def _response(self, transfer: DownloadTransfer) -> Wait[object | None]:
        """Request the piece that follows, and wait for the body of the response. It is None if the response is lost."""
        is_draft = self._config.crucible_metadata_snapshot_fetch_draft
        version = DRAFT_VERSION if is_draft else FETCH_SNAPSHOT_VERSION
        cluster_id = None if is_draft else self._cluster_id  # The draft has no field for it.
        position = 0 if self._partial is None else self._partial.length
        body = request_for(
            cluster_id, self._node.node_id, transfer.epoch, transfer.id, position, self._rate.chunk_bytes
        )

        def begin(resume: Callable[[object | None], None]) -> None:
            timeout_ms = self._patience_us // 1000
            self._node.ports.send(
                transfer.leader,
                Channel.RAFT,
                ApiKey.FETCH_SNAPSHOT,
                version,
                body,
                timeout_ms,
                replied=resume,
                failed=lambda: resume(None),
            )

        return Wait(begin)

    def _check(self, transfer: DownloadTransfer, piece: Piece) -> None:
        """Raise TransferError for a response that has no bytes of the snapshot."""
        # Decision snapshot-download-leader-lost
        if piece.error in _LEADER_ERRORS or (piece.error is ErrorCode.none and piece.epoch > transfer.epoch):
            raise TransferError(LeaderChanged(piece.leader_id, piece.epoch))
        if piece.error in _NOT_THERE:  # Decision snapshot-gone-at-leader
            if piece.error is not ErrorCode.snapshot_not_found:
                self._discard("the leader's is shorter")
            raise TransferError(Rediscover())
        if piece.error is ErrorCode.kafka_storage_error:
            self._postpone(transfer, "the leader cannot read its snapshot")
        if piece.error is not ErrorCode.none:
            raise TransferError(Failed())
        if piece.id is not None and min(piece.id) < 0:
            raise TransferError(Rediscover())
        if piece.media_type not in ("", MEDIA_TYPE):
            self._reject(transfer, f"unknown media type {piece.media_type}")
            raise TransferError(Failed())

    def _append_piece(self, transfer: DownloadTransfer, piece: Piece) -> Partial:
        """Append the piece. Raise TransferError if it does not fit. A response for another position does not belong to
        this request, and is not written, so that every byte is written once."""
        partial = self._partial
        length = 0 if partial is None else partial.length
        # Decision snapshot-piece-fits
        if piece.position != length or piece.id not in (None, transfer.id) or (not piece.data and not piece.is_last):
            raise TransferError(Failed())
        if partial is not None and piece.size != partial.size:
            self._reject(transfer, "its size has changed")
            raise TransferError(Rediscover())
        if 0 <= piece.size < length + len(piece.data):
            self._reject(transfer, "more bytes than its size")
            raise TransferError(Rediscover())
        if partial is None:
            partial = Partial(self._node.disk, transfer.leader, transfer.id, piece.size)
            self._store.partial = transfer.id
            partial.begin()
            self._partial = partial
        if len(piece.data):
            partial.append(piece.data)
            self._note("download_chunk", ("position", length), ("bytes", len(piece.data)), ("size", partial.size))
        return partial

    # The whole snapshot

    async def _verify(self, transfer: DownloadTransfer, partial: Partial) -> None:
        """Check the whole file, from its header to its footer, before it gets a snapshot's name. Raise
        TransferError."""
        budget = Budget(SNAPSHOT_BYTES_PER_SLICE)
        try:  # Decision downloaded-snapshot-damaged
            for batch in read_batches(self._node.disk, partial.paths[0], transfer.id):
                if budget.spend(batch.header.size_bytes):
                    transfer.progress()
                    await pause(self._node.ports, 0)
        except SnapshotDamaged as damage:
            self._reject(transfer, str(damage))
            raise TransferError(Rediscover()) from damage

    async def _name(self, transfer: DownloadTransfer, partial: Partial) -> None:
        """Give the file its name, and add the snapshot once the name is synced. If the transfer is cancelled between,
        the snapshot is fetched again, or found at the next start."""
        path = self._store.name(transfer.id, partial.paths[0])
        self._partial = None
        self._note("snapshot_renamed", ("end_offset", transfer.id.offset), ("epoch", transfer.id.epoch))
        await Wait[None](lambda resume: self._node.ports.sync((path,), lambda: resume(None)))
        self._store.add(transfer.id)

    def _install(self, transfer: DownloadTransfer) -> DownloadOutcome:
        """Cut the log, then delete older snapshots. If a crash comes between, the next start repairs it."""
        ports = self._node.ports
        if not self._log.install_snapshot(ports.now(), transfer.id):  # Decision snapshot-install-overtaken
            return Failed()
        self._note("download_finished", ("bytes", self._store.size(transfer.id)))
        self._postponement.over()
        try:
            self._delete_older(transfer.id)
        except DiskError as error:
            self._note("snapshot_cleaning_failed", ("why", str(error)))  # The cleaner retries.
        return Installed(transfer.id)

    def _delete_older(self, snapshot: OffsetAndEpoch) -> None:
        """Delete older snapshots, because the log no longer continues them."""
        for older in self._store.ids:
            if older.offset < snapshot.offset:
                self._store.delete(older)
                self._note("snapshot_deleted", ("end_offset", older.offset), ("epoch", older.epoch))

    # Bytes that are no good

    def _reject(self, transfer: DownloadTransfer, why: str) -> None:
        """Discard bytes that are not the snapshot, and postpone the next download of it from this leader."""
        self._discard(why)
        self._postpone(transfer, why)

    def _postpone(self, transfer: DownloadTransfer, why: str) -> None:
        self._note_wait(transfer, why, self._postponement.damaged(transfer.leader, transfer.id, self._node.now_us))

    def _note_wait(self, transfer: DownloadTransfer, why: str, wait_us: int) -> None:
        self._note(
            "download_postponed",
            ("leader", transfer.leader),
            ("end_offset", transfer.id.offset),
            ("epoch", transfer.id.epoch),
            ("why", why),
            ("times", self._postponement.times),
            ("wait_ms", wait_us // 1000),
        )

    def _discard(self, why: str) -> None:
        self._note("download_discarded", ("why", why))
        self._partial = None
        self._store.drop_partial()

    def _note(self, what: str, *fields: tuple[str, int | str]) -> None:
        self._node.ports.note(what, *fields)


FIRST_BYTES = 64 * 2**10
MIN_BYTES = 1024


class TransferRate:
    """Chooses how many bytes to request at once, so that even a slow link delivers each piece before the timeout.

    The size starts small. It doubles while responses come fast, and falls to a quarter when one is lost.
    """

    def __init__(self, most_bytes: int, patience_us: int) -> None:
        """A response that takes longer than ``patience_us`` counts as lost."""
        self._most_bytes = most_bytes
        self._patience_us = patience_us
        self.chunk_bytes = min(most_bytes, FIRST_BYTES)

    def arrived(self, after_us: int) -> None:
        if after_us * 4 < self._patience_us:
            self.chunk_bytes = min(self.chunk_bytes * 2, self._most_bytes)

    def lost(self) -> None:
        self.chunk_bytes = min(max(self.chunk_bytes // 4, MIN_BYTES), self._most_bytes)


FIRST_WAIT_US = 100_000
LONGEST_WAIT_US = 10_000_000


@dataclass(slots=True)
class Postponement:
    """How long a follower waits after downloads that were damaged or could not be written. The wait doubles with each.

    Damage is that of one snapshot on one leader: another snapshot, or the same one from another leader, may be whole.
    So it is tried at once. A disk that is full holds no snapshot at all.
    """

    times: int = 0
    _source: tuple[int, OffsetAndEpoch] | None = None
    _until_us: int = 0

    def damaged(self, leader: int, snapshot: OffsetAndEpoch, now_us: int) -> int:
        """Count a damaged download. Returns the wait, in microseconds."""
        if self._source != (leader, snapshot):
            self.times = 0
        self._source = (leader, snapshot)
        return self._count(now_us)

    def not_written(self, now_us: int) -> int:
        """Count a download that this node could not write. Returns the wait, in microseconds."""
        if self._source is not None:
            self.times = 0
        self._source = None
        return self._count(now_us)

    def over(self) -> None:
        """Forget the failures, because a download has succeeded."""
        self.times = self._until_us = 0

    def wait_us(self, leader: int, snapshot: OffsetAndEpoch, now_us: int) -> int:
        """Return how long to wait before this download begins, or 0."""
        if self._source not in (None, (leader, snapshot)):
            return 0
        return max(0, self._until_us - now_us)

    def _count(self, now_us: int) -> int:
        wait_us = min(FIRST_WAIT_US << min(self.times, 16), LONGEST_WAIT_US)
        self.times += 1
        self._until_us = now_us + wait_us
        return wait_us
