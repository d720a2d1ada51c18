"""A follower's download of a snapshot: piece by piece from the leader, after which it replaces the log (S-8 to S-11).

Each piece is synced to disk, with a checksum of all bytes up to its end, before the next one is requested. So a
transfer can resume where it was after any interruption, even after this node was killed. It resumes only with the same
leader and the same snapshot, because a snapshot with the same ID may have other bytes on another leader. At the end the
whole file is verified and renamed. Once its name is synced, the log is cut.

The progress file beside the bytes first names the leader and the snapshot. After each piece it gets an entry with the
length reached and the CRC-32C of all bytes up to there. Each entry has a CRC of its own. A crash may lose or tear the
unsynced tail of either file. So a restart keeps the longest length whose CRC fits the bytes on disk, and cuts off the
rest.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct

from crc32c import crc32c

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.ports.disk import Disk, DiskError, UndoFailed
from reference_broker.ports.node_ports import Channel, NodeContext
from reference_broker.ports.slicing import SNAPSHOT_BYTES_PER_SLICE, Budget, Sliced
from reference_broker.quorum.metadata_log import MetadataLog
from reference_broker.quorum.snapshots.format import SnapshotDamaged, part_path, progress_path, read_batches
from reference_broker.quorum.snapshots.messages import (
    DRAFT_VERSION,
    FETCH_SNAPSHOT_VERSION,
    MEDIA_TYPE,
    Piece,
    read_response,
    request_for,
)
from reference_broker.quorum.snapshots.store import SnapshotStore
from reference_broker.quorum.values import DownloadOutcome, Failed, Installed, LeaderChanged, OffsetAndEpoch, Rediscover
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

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


UNKNOWN_SIZE = -1

_ORIGIN = Struct(">iqiq")
_ENTRY = Struct(">qI")
_CHECK = Struct(">I")
_ORIGIN_BYTES = _ORIGIN.size + _CHECK.size
_ENTRY_BYTES = _ENTRY.size + _CHECK.size


@dataclass(slots=True, eq=False)
class Partial:
    """A snapshot that is being downloaded. Its progress file makes it safe to resume the download (S-11)."""

    disk: Disk
    leader: int
    id: OffsetAndEpoch
    size: int
    """Bytes of the whole snapshot, or UNKNOWN_SIZE if the leader does not send it (S-17)."""
    length: int = 0
    """The number of bytes received, from the snapshot's start."""
    crc: int = 0
    """The CRC-32C of these bytes."""
    synced: int = 0
    """The number of bytes that survive a power loss."""

    @property
    def paths(self) -> tuple[str, str]:
        """Both files. They are synced together."""
        return part_path(self.id), progress_path(self.id)

    @property
    def is_whole(self) -> bool:
        return self.length == self.size

    def begin(self) -> None:
        """Create both files, or replace them. Raise DiskError."""
        part, progress = self.paths
        self.disk.write(part, b"")
        self.disk.write(progress, _checked(_ORIGIN.pack(self.leader, self.id.offset, self.id.epoch, self.size)))

    def append(self, data: bytes | memoryview) -> None:
        """Append ``data`` at ``length``. After a DiskError nothing of it is kept. Raise UndoFailed if the part that
        was written could not be cut."""
        part, progress = self.paths
        crc = int(crc32c(data, self.crc))
        self.disk.append(part, [data])
        try:
            self.disk.append(progress, [_checked(_ENTRY.pack(self.length + len(data), crc))])
        except DiskError as failure:
            try:
                self.disk.truncate(part, self.length)
            except DiskError:
                raise UndoFailed(f"cannot undo an append to {part}") from failure
            raise
        self.length += len(data)
        self.crc = crc


def read_partial(disk: Disk, snapshot: OffsetAndEpoch) -> Sliced[Partial | None]:
    """Read the files of a download that an earlier process wrote, and cut off what cannot be trusted.

    The result has length 0 if no length fits its CRC. It is None if even the entry with leader and snapshot cannot be
    read. Raise DiskError.
    """
    part, progress = part_path(snapshot), progress_path(snapshot)
    if not (disk.exists(part) and disk.exists(progress)):
        return None
    journal = disk.read(progress, 0, disk.size(progress))
    origin = _read(_ORIGIN, journal, 0)
    if origin is None or OffsetAndEpoch(origin[1], origin[2]) != snapshot:
        return None
    partial = Partial(disk, leader=origin[0], id=snapshot, size=origin[3])
    good = yield from _longest(disk, partial, part, journal)
    disk.truncate(part, partial.length)
    disk.truncate(progress, good)
    return partial


def _longest(disk: Disk, partial: Partial, part: str, journal: bytes) -> Sliced[int]:
    """Set the length and CRC of ``partial``. Returns how many bytes of the progress file lead up to that length."""
    size_bytes = disk.size(part)
    position, crc, good = 0, 0, _ORIGIN_BYTES
    at = _ORIGIN_BYTES
    while (entry := _read(_ENTRY, journal, at)) is not None and position < entry[0] <= size_bytes:
        while position < entry[0]:
            piece = disk.read(part, position, min(SNAPSHOT_BYTES_PER_SLICE, entry[0] - position))
            crc = int(crc32c(piece, crc))
            position += len(piece)
            yield
        at += _ENTRY_BYTES
        # Decision partial-snapshot-intact (S-11): counted | damaged or torn
        if crc == entry[1]:
            partial.length, partial.crc, good = position, crc, at
    return good


def _checked(data: bytes) -> bytes:
    return data + _CHECK.pack(crc32c(data))


def _read(layout: Struct, data: bytes, at: int) -> tuple[int, ...] | None:
    """Return None for an entry that is cut or damaged."""
    end = at + layout.size
    if len(data) < end + _CHECK.size or _CHECK.unpack_from(data, end)[0] != crc32c(data[at:end]):
        return None
    return layout.unpack_from(data, at)


_LEADER_ERRORS = (ErrorCode.fenced_leader_epoch, ErrorCode.unknown_leader_epoch, ErrorCode.not_leader_or_follower)
_NOT_THERE = (ErrorCode.snapshot_not_found, ErrorCode.position_out_of_range, ErrorCode.offset_out_of_range)


@dataclass(slots=True, eq=False)
class SnapshotDownload:
    """Implements ``quorum.values.Download`` with one transfer at a time."""

    _node: NodeContext
    _config: BrokerConfig
    _cluster_id: str
    _store: SnapshotStore
    _log: MetadataLog
    _patience_us: int = field(init=False)
    _rate: TransferRate = field(init=False)
    _partial: Partial | None = None
    """The bytes received so far, which this process has verified. It is kept after a cancel."""
    _job: "_Job | None" = None
    """The current transfer. A callback of an earlier one finds that its job is over and does nothing."""
    _postponement: Postponement = field(default_factory=Postponement)

    def __post_init__(self) -> None:
        # A lost response must show before the fetch timeout makes this node leave its leader.
        config = self._config
        fetch_ms, request_ms = config.controller_quorum_fetch_timeout_ms, config.controller_quorum_request_timeout_ms
        self._patience_us = max(1, min(request_ms, fetch_ms * 3 // 4)) * 1000
        self._rate = TransferRate(config.crucible_metadata_snapshot_fetch_max_bytes, self._patience_us)

    def begin(
        self,
        leader: int,
        leader_epoch: int,
        id: OffsetAndEpoch,  # noqa: A002 - Kafka's word
        progress: Callable[[], None],
        outcome: Callable[[DownloadOutcome], None],
    ) -> None:
        """Start a transfer in place of the current one. All its work is done in later events."""
        self.cancel()
        self._job = _Job(leader, leader_epoch, id, progress, outcome)
        self._step(self._job, lambda job: self._prepare(job))

    def wait_us(self, leader: int, id: OffsetAndEpoch) -> int:  # noqa: A002 - Kafka's word
        return self._postponement.wait_us(leader, id, self._node.now_us)

    def cancel(self) -> None:
        self._job = None

    # Where to begin

    def _prepare(self, job: "_Job") -> None:
        # Decision snapshot-download-needless (S-10): log holds all of it | snapshot is needed
        if job.id.age <= self._log.end.age:
            self._end(job, Failed())  # The log already holds all of it. The follower fetches from the log's end again.
        # Decision snapshot-download-held (S-9): held, only installed | not held
        elif self._store.holds(job.id):
            self._install(job)
        # Decision snapshot-download-resumed (S-11): resumed | not begun in this life
        elif self._known(job) is not None:
            self._resume(job)
        # Decision partial-snapshot-read (S-11): partial file is read | begun again
        elif self._store.partial == job.id and self._partial is None:
            self._run(job, self._recover(job))
        else:
            self._start_over(job, "another leader or snapshot")

    def _known(self, job: "_Job") -> Partial | None:
        """Return the bytes that this process has of this snapshot from this leader."""
        partial = self._partial
        same = partial is not None and (partial.leader, partial.id) == (job.leader, job.id)
        return partial if same and self._store.partial == job.id else None

    def _recover(self, job: "_Job") -> Sliced[None]:
        """Resume a transfer that an earlier process left on disk. The checksums say how many of its bytes count."""
        partial = yield from read_partial(self._node.disk, job.id)
        # Decision partial-snapshot-of-other-leader (S-11): begun again | resumed after restart
        if partial is None or partial.leader != job.leader:
            self._start_over(job, "another leader" if partial is not None else "its progress is unreadable")
        else:
            self._partial = partial
            self._resume(job)

    def _start_over(self, job: "_Job", why: str) -> None:
        # Decision partial-snapshot-superseded (S-11): partial file is discarded | none exists
        if self._store.partial is not None:
            self._discard(why)
        self._partial = None
        self._note_start(job, 0, UNKNOWN_SIZE)
        self._request_piece(job)

    def _resume(self, job: "_Job") -> None:
        partial = self._partial
        assert partial is not None
        self._note_start(job, partial.length, partial.size)
        self._sync(job, partial)

    def _note_start(self, job: "_Job", position: int, size: int) -> None:
        self._note(
            "download_started",
            ("leader", job.leader),
            ("end_offset", job.id.offset),
            ("epoch", job.id.epoch),
            ("position", position),
            ("size", size),
        )

    # Piece by piece

    def _request_piece(self, job: "_Job") -> None:
        position = 0 if self._partial is None else self._partial.length
        sent_us = self._node.now_us
        is_draft = self._config.crucible_metadata_snapshot_fetch_draft
        cluster_id = None if is_draft else self._cluster_id  # The draft has no field for it.
        self._node.ports.send(
            job.leader,
            Channel.RAFT,
            ApiKey.FETCH_SNAPSHOT,
            DRAFT_VERSION if is_draft else FETCH_SNAPSHOT_VERSION,
            request_for(cluster_id, self._node.node_id, job.epoch, job.id, position, self._rate.chunk_bytes),
            self._patience_us // 1000,
            lambda body: self._guarded(job, lambda: self._arrived(job, read_response(body), sent_us)),
            lambda: self._guarded(job, lambda: self._lost(job)),
        )

    def _lost(self, job: "_Job") -> None:
        self._rate.lost()
        self._end(job, Failed())

    def _arrived(self, job: "_Job", piece: Piece, sent_us: int) -> None:
        # Decision snapshot-download-leader-lost (S-7): leads no longer | leads
        if piece.error in _LEADER_ERRORS or (piece.error is ErrorCode.none and piece.epoch > job.epoch):
            self._end(job, LeaderChanged(piece.leader_id, piece.epoch))
        # Decision snapshot-gone-at-leader (S-5, S-10): gone or shorter | still there
        elif piece.error in _NOT_THERE:
            if piece.error is not ErrorCode.snapshot_not_found:
                self._discard("the leader's is shorter")
            self._end(job, Rediscover())
        elif piece.error is ErrorCode.kafka_storage_error:
            self._postpone(job, "the leader cannot read its snapshot")
            self._end(job, Failed())
        elif piece.error is not ErrorCode.none:
            self._end(job, Failed())
        elif piece.id is not None and min(piece.id) < 0:
            self._end(job, Rediscover())
        elif piece.media_type not in ("", MEDIA_TYPE):
            self._reject(job, f"unknown media type {piece.media_type}")
            self._end(job, Failed())
        else:
            self._rate.arrived(self._node.now_us - sent_us)
            self._append_piece(job, piece)

    def _append_piece(self, job: "_Job", piece: Piece) -> None:
        """Append the piece. A response for another position does not belong to this request and fails the transfer, so
        that every byte is written once."""
        partial = self._partial
        length = 0 if partial is None else partial.length
        # Decision snapshot-piece-fits (S-8): wrong piece | follows what is held
        if piece.position != length or piece.id not in (None, job.id) or (not piece.data and not piece.is_last):
            self._end(job, Failed())
            return
        if partial is not None and piece.size != partial.size:
            self._reject(job, "its size has changed")
            self._end(job, Rediscover())
            return
        if 0 <= piece.size < length + len(piece.data):
            self._reject(job, "more bytes than its size")
            self._end(job, Rediscover())
            return
        partial = self._begun(job, piece.size) if partial is None else partial
        if len(piece.data):
            partial.append(piece.data)
            self._note("download_chunk", ("position", length), ("bytes", len(piece.data)), ("size", partial.size))
        job.has_last = piece.is_last
        job.progress()
        if self._job is job:
            self._sync(job, partial)

    def _begun(self, job: "_Job", size: int) -> Partial:
        partial = Partial(self._node.disk, job.leader, job.id, size)
        self._store.partial = job.id
        partial.begin()
        self._partial = partial
        return partial

    def _sync(self, job: "_Job", partial: Partial) -> None:
        length = partial.length
        if partial.synced == length and length:
            self._go_on(job, partial)
            return

        def synced() -> None:
            partial.synced = max(partial.synced, length)
            self._guarded(job, lambda: self._go_on(job, partial))

        self._node.ports.sync(partial.paths, synced)

    def _go_on(self, job: "_Job", partial: Partial) -> None:
        # Decision snapshot-download-whole (S-4, S-9): verified | next piece is requested
        if partial.is_whole or job.has_last:
            self._run(job, self._verify(job, partial))
        else:
            self._request_piece(job)

    # The whole snapshot

    def _verify(self, job: "_Job", partial: Partial) -> Sliced[None]:
        """Check the whole file, from its header to its footer, before it gets a snapshot's name."""
        budget = Budget(SNAPSHOT_BYTES_PER_SLICE)
        # Decision downloaded-snapshot-damaged (S-9, S-10): damaged | intact
        try:
            for batch in read_batches(self._node.disk, partial.paths[0], job.id):
                if budget.spend(batch.header.size_bytes):
                    job.progress()
                    yield
        except SnapshotDamaged as damage:
            self._reject(job, str(damage))
            self._end(job, Rediscover())
            return
        path = self._store.name(job.id, partial.paths[0])
        self._partial = None
        self._note("snapshot_renamed", ("end_offset", job.id.offset), ("epoch", job.id.epoch))
        self._node.ports.sync((path,), lambda: self._guarded(job, lambda: self._named(job)))

    def _named(self, job: "_Job") -> None:
        """Add the snapshot, whose name is synced. If the job is over by then, the snapshot is fetched again, or found
        at the next start."""
        self._store.add(job.id)
        self._install(job)

    def _install(self, job: "_Job") -> None:
        """Cut the log, then delete older snapshots. If a crash comes between, the next start repairs it."""
        ports = self._node.ports
        # Decision snapshot-install-overtaken (S-9): log has overtaken it | installed
        if not self._log.install_snapshot(ports.now(), job.id):
            self._end(job, Failed())
            return
        self._note("download_finished", ("bytes", self._store.size(job.id)))
        self._postponement.over()
        try:
            self._delete_older(job.id)
        except DiskError as error:
            self._note("snapshot_cleaning_failed", ("why", str(error)))  # The cleaner retries.
        self._end(job, Installed(job.id))

    def _delete_older(self, snapshot: OffsetAndEpoch) -> None:
        """Delete older snapshots, because the log no longer continues them."""
        for older in self._store.ids:
            if older.offset < snapshot.offset:
                self._store.delete(older)
                self._note("snapshot_deleted", ("end_offset", older.offset), ("epoch", older.epoch))

    # Running

    def _end(self, job: "_Job", outcome: DownloadOutcome) -> None:
        if self._job is job:
            self._job = None
            job.outcome(outcome)

    def _run(self, job: "_Job", slices: Sliced[None]) -> None:
        """Run the work until its first pause now, and the rest in later events."""

        def run(_job: "_Job") -> None:
            try:
                next(slices)
            except StopIteration:
                return
            if self._job is job:
                self._step(job, run)

        run(job)

    def _step(self, job: "_Job", action: Callable[["_Job"], None]) -> None:
        self._node.after(0, lambda: self._guarded(job, lambda: action(job)))

    def _guarded(self, job: "_Job", action: Callable[[], None]) -> None:
        """Run ``action`` unless the job is over. A DiskError, such as a full disk, ends the job. The next one resumes
        where this one was. If the job was over before, the error is of what its outcome led to, and ends the node."""
        # Decision snapshot-download-event-late (S-11): of a cancelled transfer | of this transfer
        if self._job is not job:
            return
        # Decision snapshot-download-disk (S-11): disk refused | written
        try:
            action()
        except DiskError as error:
            if self._job is not job:
                raise
            self._note("download_failed", ("why", str(error)))
            self._note_wait(job, str(error), self._postponement.not_written(self._node.now_us))
            self._end(job, Failed())

    def _reject(self, job: "_Job", why: str) -> None:
        """Discard bytes that are not the snapshot, and postpone the next download of it from this leader."""
        self._discard(why)
        self._postpone(job, why)

    def _postpone(self, job: "_Job", why: str) -> None:
        self._note_wait(job, why, self._postponement.damaged(job.leader, job.id, self._node.now_us))

    def _note_wait(self, job: "_Job", why: str, wait_us: int) -> None:
        self._note(
            "download_postponed",
            ("leader", job.leader),
            ("end_offset", job.id.offset),
            ("epoch", job.id.epoch),
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


@dataclass(slots=True, eq=False)
class _Job:
    """One transfer."""

    leader: int
    epoch: int
    id: OffsetAndEpoch
    progress: Callable[[], None]
    outcome: Callable[[DownloadOutcome], None]
    has_last: bool = False
    """The leader has sent the last piece."""
