"""Fetches a snapshot from the leader, piece by piece, and replaces the log with it (S-8 to S-11).

Each piece is durable, with a checksum of all bytes up to its end, before the next one is requested. So a transfer can
resume where it was after any interruption, even after this node was killed. It resumes only with the same leader and
the same snapshot, because a snapshot with the same ID may have other bytes on another leader. At the end the whole file
is verified and renamed. Once its name is durable, the log is cut.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.ports.channels import Channel
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Surroundings
from reference_broker.quorum.metadata_log import MetadataLog
from reference_broker.quorum.offset_and_epoch import OffsetAndEpoch
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
from reference_broker.quorum.snapshots.transfer_rate import TransferRate
from reference_broker.quorum.snapshots.troubles import Troubles
from reference_broker.quorum.values import Failed, Installed, LeaderChanged, Outcome, Rediscover
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

BYTES_PER_SLICE = 2**20
"""One event verifies this much, in less than 1 ms."""
_LEADER_ERRORS = (ErrorCode.fenced_leader_epoch, ErrorCode.unknown_leader_epoch, ErrorCode.not_leader_or_follower)
_NOT_THERE = (ErrorCode.snapshot_not_found, ErrorCode.position_out_of_range, ErrorCode.offset_out_of_range)


@dataclass(slots=True, eq=False)
class SnapshotDownload:
    """Implements ``quorum.values.Download`` with one transfer at a time.

    ``_job`` is the current transfer. A callback of an earlier one finds that its job is over and does nothing.
    ``_partial`` holds the bytes received so far, which this process has verified. It is kept after a cancel.
    ``_troubles`` tells how long to wait after downloads that failed.
    """

    _surroundings: Surroundings
    _config: BrokerConfig
    _cluster_id: str
    _store: SnapshotStore
    _log: MetadataLog
    _patience_us: int = field(init=False)
    _rate: TransferRate = field(init=False)
    _partial: Partial | None = None
    _job: "_Job | None" = None
    _troubles: Troubles = field(default_factory=Troubles)

    def __post_init__(self) -> None:
        # A lost answer must show before the fetch timeout makes this node leave its leader.
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
        outcome: Callable[[Outcome], None],
    ) -> None:
        """Starts a transfer in place of the current one. All its work is done in later events."""
        self.cancel()
        self._job = _Job(leader, leader_epoch, id, progress, outcome)
        self._step(self._job, lambda job: self._prepare(job))

    def wait_us(self, leader: int, id: OffsetAndEpoch) -> int:  # noqa: A002 - Kafka's word
        return self._troubles.wait_us(leader, id, self._surroundings.now_us)

    def cancel(self) -> None:
        self._job = None

    # Where to begin

    def _prepare(self, job: "_Job") -> None:
        if job.id.age <= self._log.end.age:
            self._end(job, Failed())  # The log already holds all of it. The follower fetches from the log's end again.
        elif self._store.holds(job.id):
            self._install(job)
        elif self._known(job) is not None:
            self._resume(job)
        elif self._store.partial == job.id and self._partial is None:
            self._run(job, self._recover(job))
        else:
            self._anew(job, "another leader or snapshot")

    def _known(self, job: "_Job") -> Partial | None:
        """The bytes that this process holds of this snapshot from this leader."""
        partial = self._partial
        same = partial is not None and (partial.leader, partial.id) == (job.leader, job.id)
        return partial if same and self._store.partial == job.id else None

    def _recover(self, job: "_Job") -> Generator[None, None, None]:
        """Resumes a transfer that an earlier process left on disk. The checksums tell how many of its bytes count."""
        partial = yield from read_partial(self._surroundings.disk, job.id)
        if partial is None or partial.leader != job.leader:
            self._anew(job, "another leader" if partial is not None else "its progress is unreadable")
        else:
            self._partial = partial
            self._resume(job)

    def _anew(self, job: "_Job", why: str) -> None:
        if self._store.partial is not None:
            self._discard(why)
        self._partial = None
        self._note_start(job, 0, UNKNOWN_SIZE)
        self._ask(job)

    def _resume(self, job: "_Job") -> None:
        partial = self._partial
        assert partial is not None
        self._note_start(job, partial.length, partial.size)
        self._make_durable(job, partial)

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

    def _ask(self, job: "_Job") -> None:
        position = 0 if self._partial is None else self._partial.length
        asked_us = self._surroundings.now_us
        is_draft = self._config.crucible_metadata_snapshot_fetch_draft
        cluster_id = None if is_draft else self._cluster_id  # The draft has no field for it.
        self._surroundings.ports.send(
            job.leader,
            Channel.RAFT,
            ApiKey.FETCH_SNAPSHOT,
            DRAFT_VERSION if is_draft else FETCH_SNAPSHOT_VERSION,
            request_for(cluster_id, self._surroundings.node_id, job.epoch, job.id, position, self._rate.chunk_bytes),
            self._patience_us // 1000,
            lambda body: self._guarded(job, lambda: self._arrived(job, read_response(body), asked_us)),
            lambda: self._guarded(job, lambda: self._lost(job)),
        )

    def _lost(self, job: "_Job") -> None:
        self._rate.lost()
        self._end(job, Failed())

    def _arrived(self, job: "_Job", piece: Piece, asked_us: int) -> None:
        if piece.error in _LEADER_ERRORS or (piece.error is ErrorCode.none and piece.epoch > job.epoch):
            self._end(job, LeaderChanged(piece.leader_id, piece.epoch))
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
            self._throw_away(job, f"unknown media type {piece.media_type}")
            self._end(job, Failed())
        else:
            self._rate.arrived(self._surroundings.now_us - asked_us)
            self._take(job, piece)

    def _take(self, job: "_Job", piece: Piece) -> None:
        """Appends the piece. An answer for another position does not belong to this request and fails the transfer, so
        that every byte is written once."""
        partial = self._partial
        held = 0 if partial is None else partial.length
        if piece.position != held or piece.id not in (None, job.id) or (not piece.data and not piece.is_last):
            self._end(job, Failed())
            return
        if partial is not None and piece.size != partial.size:
            self._throw_away(job, "its size has changed")
            self._end(job, Rediscover())
            return
        if 0 <= piece.size < held + len(piece.data):
            self._throw_away(job, "more bytes than its size")
            self._end(job, Rediscover())
            return
        partial = self._begun(job, piece.size) if partial is None else partial
        if len(piece.data):
            partial.append(piece.data)
            self._note("download_chunk", ("position", held), ("bytes", len(piece.data)), ("size", partial.size))
        job.has_last = piece.is_last
        job.progress()
        if self._job is job:
            self._make_durable(job, partial)

    def _begun(self, job: "_Job", size: int) -> Partial:
        partial = Partial(self._surroundings.disk, job.leader, job.id, size)
        self._store.partial = job.id
        partial.begin()
        self._partial = partial
        return partial

    def _make_durable(self, job: "_Job", partial: Partial) -> None:
        length = partial.length
        if partial.durable == length and length:
            self._go_on(job, partial)
            return

        def durable() -> None:
            partial.durable = max(partial.durable, length)
            self._guarded(job, lambda: self._go_on(job, partial))

        self._surroundings.ports.sync(partial.paths, durable)

    def _go_on(self, job: "_Job", partial: Partial) -> None:
        if partial.is_whole or job.has_last:
            self._run(job, self._verify(job, partial))
        else:
            self._ask(job)

    # The whole

    def _verify(self, job: "_Job", partial: Partial) -> Generator[None, None, None]:
        """Checks the whole file, from its header to its footer, before it gets a snapshot's name."""
        checked = 0
        try:
            for batch in read_batches(self._surroundings.disk, partial.paths[0], job.id):
                checked += batch.header.size_bytes
                if checked >= BYTES_PER_SLICE:
                    checked = 0
                    job.progress()
                    yield
        except SnapshotDamaged as damage:
            self._throw_away(job, str(damage))
            self._end(job, Rediscover())
            return
        path = self._store.name(job.id, partial.paths[0])
        self._partial = None
        self._note("snapshot_renamed", ("end_offset", job.id.offset), ("epoch", job.id.epoch))
        self._surroundings.ports.sync((path,), lambda: self._guarded(job, lambda: self._named(job)))

    def _named(self, job: "_Job") -> None:
        """The snapshot's name is durable. If the job is over by then, the snapshot is fetched anew, or found at the
        next start."""
        self._store.add(job.id)
        self._install(job)

    def _install(self, job: "_Job") -> None:
        """Cuts the log, then deletes older snapshots. If a crash comes between, the next start repairs it."""
        ports = self._surroundings.ports
        if not self._log.install_snapshot(ports.now(), job.id):
            self._end(job, Failed())
            return
        self._note("download_finished", ("bytes", self._store.size(job.id)))
        self._troubles.over()
        try:
            self._delete_older(job.id)
        except DiskError as error:
            self._note("snapshot_cleaning_failed", ("why", str(error)))  # The cleaner tries again.
        self._end(job, Installed(job.id))

    def _delete_older(self, snapshot: OffsetAndEpoch) -> None:
        """Deletes older snapshots, because the log no longer continues them."""
        for older in self._store.ids:
            if older.offset < snapshot.offset:
                self._store.delete(older)
                self._note("snapshot_deleted", ("end_offset", older.offset), ("epoch", older.epoch))

    # How things run

    def _end(self, job: "_Job", outcome: Outcome) -> None:
        if self._job is job:
            self._job = None
            job.outcome(outcome)

    def _run(self, job: "_Job", slices: Generator[None, None, None]) -> None:
        """Runs the first slice now, and each further one in an event of its own."""

        def run(_job: "_Job") -> None:
            try:
                next(slices)
            except StopIteration:
                return
            if self._job is job:
                self._step(job, run)

        run(job)

    def _step(self, job: "_Job", action: Callable[["_Job"], None]) -> None:
        self._surroundings.after(0, lambda: self._guarded(job, lambda: action(job)))

    def _guarded(self, job: "_Job", action: Callable[[], None]) -> None:
        """Runs ``action`` unless the job is over. A DiskError, such as a full disk, ends the job. The next one resumes
        where this one was. If the job was over before, the error is of what its outcome led to, and ends the node."""
        if self._job is not job:
            return
        try:
            action()
        except DiskError as error:
            if self._job is not job:
                raise
            self._note("download_failed", ("why", str(error)))
            self._note_wait(job, str(error), self._troubles.not_written(self._surroundings.now_us))
            self._end(job, Failed())

    def _throw_away(self, job: "_Job", why: str) -> None:
        """Discards bytes that are not the snapshot, and postpones the next download of it from this leader."""
        self._discard(why)
        self._postpone(job, why)

    def _postpone(self, job: "_Job", why: str) -> None:
        self._note_wait(job, why, self._troubles.damaged(job.leader, job.id, self._surroundings.now_us))

    def _note_wait(self, job: "_Job", why: str, wait_us: int) -> None:
        self._note(
            "download_postponed",
            ("leader", job.leader),
            ("end_offset", job.id.offset),
            ("epoch", job.id.epoch),
            ("why", why),
            ("times", self._troubles.times),
            ("wait_ms", wait_us // 1000),
        )

    def _discard(self, why: str) -> None:
        self._note("download_discarded", ("why", why))
        self._partial = None
        self._store.drop_partial()

    def _note(self, what: str, *fields: tuple[str, int | str]) -> None:
        self._surroundings.ports.note(what, *fields)


@dataclass(slots=True, eq=False)
class _Job:
    """What one ``begin`` asked for. ``has_last`` says that the leader has sent the last piece."""

    leader: int
    epoch: int
    id: OffsetAndEpoch
    progress: Callable[[], None]
    outcome: Callable[[Outcome], None]
    has_last: bool = False
