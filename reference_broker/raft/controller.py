"""The controller of a quorum of one: orders changes of the metadata, makes them durable, then publishes them.

Two images: ``image`` holds what is durable and published; ``latest`` also what is on its way. Requests are judged by
``latest``, so that several may be on their way at once, and answered when what they saw has been published. Every start
is a new leader epoch: a leader-change control record, this broker's registration, and a new leader epoch for each
of its partitions, since an unclean stop may have taken records that a reader has seen.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from reference_broker.log.disk import Disk
from reference_broker.log.durability import SyncPoint
from reference_broker.log.now import Now
from reference_broker.log.partition_log import PartitionLog
from reference_broker.model.config import BrokerConfig
from reference_broker.model.metadata_delta import MetadataDelta, MetadataFault
from reference_broker.model.metadata_image import EMPTY_IMAGE, MetadataImage, Provenance
from reference_broker.raft.activation import METADATA_VERSION, METADATA_VERSION_FEATURE, Endpoint, activation_records
from reference_broker.raft.metadata_log import BatchTooLarge, MetadataLog, open_metadata_log, segment_paths
from reference_broker.raft.metadata_records import MetadataRecord
from reference_broker.raft.node_files import (
    METADATA_DIRECTORY,
    Identity,
    QuorumState,
    StartRefused,
    put_in_place,
    read_identity,
    read_quorum_state,
    write_identity,
    write_quorum_state,
)
from reference_broker.raft.replay import replay
from reference_broker.raft.uuids import random_uuid, uuid_text
from reference_broker.records.batch import InvalidRecords

MAX_RECORDS_PER_OPERATION = 10_000
"""Kafka's limit on the records of one batch."""

Listener: TypeAlias = Callable[[MetadataDelta, MetadataImage], None]
SyncPaths: TypeAlias = Callable[[tuple[str, ...], Callable[[], None]], None]


class TooManyRecords(Exception):  # noqa: N818 - the limit is the news
    """An operation needs more records than one batch may hold; nothing was written (POLICY_VIOLATION)."""


@dataclass(slots=True)
class _Proposal:
    """A change on its way, whose last record is at ``last_offset``. ``delta`` None: only a wish to be told."""

    last_offset: int
    delta: MetadataDelta | None
    image: MetadataImage
    committed: Callable[[], None]


class Controller:
    """``sync(paths, done)`` calls ``done`` when all bytes appended so far to the paths are durable.

    ``now()``: the instant of the event being handled. ``endpoint``: what clients are told to connect to.
    """

    __slots__ = (
        "_config",
        "_disk",
        "_listeners",
        "_log",
        "_now",
        "_proposals",
        "_random",
        "_sync",
        "endpoint",
        "epoch",
        "identity",
        "image",
        "latest",
        "node_id",
        "ready",
    )

    def __init__(
        self,
        *,
        node_id: int,
        config: BrokerConfig,
        disk: Disk,
        random: Random,
        endpoint: Endpoint,
        sync: SyncPaths,
        now: Callable[[], Now],
    ) -> None:
        self.node_id = node_id
        self.endpoint = endpoint
        self.image: MetadataImage = EMPTY_IMAGE
        self.latest: MetadataImage = EMPTY_IMAGE
        self.epoch = 0
        self.ready = False
        self.identity = Identity("", node_id, "")
        self._config = config
        self._disk = disk
        self._random = random
        self._sync = sync
        self._now = now
        self._listeners: list[Listener] = []
        self._proposals: deque[_Proposal] = deque()
        self._log: MetadataLog | None = None

    @property
    def cluster_id(self) -> str:
        return self.identity.cluster_id

    @property
    def broker_epoch(self) -> int:
        """Of this node's registration; -1 before it is published."""
        broker = self.image.brokers.get(self.node_id)
        return -1 if broker is None else broker.broker_epoch

    @property
    def finalized_features_epoch(self) -> int:
        """Grows with the metadata log."""
        return self.image.provenance.offset

    @property
    def metadata_log(self) -> PartitionLog | None:
        """The partition log below, for its shutdown; None until it is open."""
        return None if self._log is None else self._log.log

    def supported_features(self) -> tuple[tuple[str, int, int], ...]:
        """(name, lowest level, highest level)."""
        return ((METADATA_VERSION_FEATURE, METADATA_VERSION, METADATA_VERSION),)

    def finalized_features(self) -> tuple[tuple[str, int], ...]:
        return tuple(self.image.features.items())

    def subscribe(self, listener: Listener) -> None:
        """``listener`` gets every published delta and the image after it, from the next one on."""
        self._listeners.append(listener)

    def load(self, clean: bool, ready: Callable[[], None]) -> Generator[None, None, None]:
        """Replays the metadata log in slices and starts a new epoch; ``ready`` is called when that is durable.

        Raises StartRefused for another node's or a damaged directory.
        """
        known = read_identity(self._disk, self.node_id)
        state = read_quorum_state(self._disk)
        self._log = yield from open_metadata_log(self._disk, self._config, self._now(), clean)
        if known is not None and self._log.end_offset == 0:
            raise StartRefused(
                f"The metadata log in {METADATA_DIRECTORY} is gone, although this node has served before: restore it "
                "from a copy or use an empty directory."
            )
        image = yield from self._replayed(self._log)
        self.image = self.latest = image
        yield from self._activate(self._log, known, state, ready)

    def propose(self, records: Sequence[MetadataRecord], committed: Callable[[], None]) -> None:
        """Appends the records as one batch; once durable they are published and ``committed`` is called.

        Without records ``committed`` is called when everything proposed before is published (at once if it is).
        Raises TooManyRecords, or DiskError; then nothing was written.
        """
        log = self._log
        assert log is not None, "the controller is used before it has loaded"
        if not records:
            self._after_proposals(committed)
            return
        if len(records) > MAX_RECORDS_PER_OPERATION:
            raise TooManyRecords(
                f"{len(records)} metadata records in one operation, at most {MAX_RECORDS_PER_OPERATION} fit one batch"
            )
        self._append(log, records, committed)
        self._sync_log(log)

    def allocate_topic_id(self) -> bytes:
        """A topic ID that no topic has."""
        while True:
            topic_id = random_uuid(self._random)
            if topic_id not in self.latest.topic_names:
                return topic_id

    def _after_proposals(self, committed: Callable[[], None]) -> None:
        if self._proposals:
            self._proposals.append(_Proposal(self._proposals[-1].last_offset, None, self.latest, committed))
        else:
            committed()

    def _append(self, log: MetadataLog, records: Sequence[MetadataRecord], committed: Callable[[], None]) -> None:
        delta = MetadataDelta(self.latest)
        for record in records:
            replay(delta, record)
        image = delta.build(Provenance())
        try:
            provenance = log.append(self._now(), records, self.epoch)
        except BatchTooLarge as refused:
            raise TooManyRecords(str(refused)) from refused
        self.latest = image.at(provenance)
        self._proposals.append(_Proposal(provenance.offset, delta, self.latest, committed))

    def _sync_log(self, log: MetadataLog, *others: str) -> None:
        point = log.log.sync_point()
        self._sync(tuple(dict.fromkeys((*point.paths, *others))), lambda: self._durable(log, point))

    def _durable(self, log: MetadataLog, point: SyncPoint) -> None:
        """Everything below the point's end offset is: publish it, in order."""
        log.log.mark_synced(point)
        log.log.advance_high_watermark(point.end_offset)
        while self._proposals and self._proposals[0].last_offset < point.end_offset:
            proposal = self._proposals.popleft()
            if proposal.delta is not None:
                self.image = proposal.image
                for listener in self._listeners:
                    listener(proposal.delta, proposal.image)
            proposal.committed()

    def _replayed(self, log: MetadataLog) -> Generator[None, None, MetadataImage]:
        image, offset = EMPTY_IMAGE, log.log.log_start_offset
        while offset < log.end_offset:
            image = _replayed_slice(log, image, offset)
            offset = image.provenance.offset + 1
            yield
        return image

    def _activate(
        self, log: MetadataLog, known: Identity | None, state: QuorumState | None, ready: Callable[[], None]
    ) -> Generator[None, None, None]:
        """Nothing of a new epoch is served before the epoch, the node's identity and the records are durable."""
        self.identity = known or self._new_identity()
        self.epoch = max(0 if state is None else state.leader_epoch, log.log.latest_epoch, 0) + 1
        files = [] if known else [write_identity(self._disk, self.identity)]
        voted = QuorumState(self.node_id, self.epoch, self.node_id, (self.node_id,))
        files.append(write_quorum_state(self._disk, voted))
        log.append_leader_change(self._now(), self.node_id, (self.node_id,), self.epoch)
        for records in activation_records(self.latest, self.node_id, self.endpoint, log.end_offset, self._random):
            self._append(log, records, _nothing)
            yield
        self._proposals[-1].committed = lambda: self._activated(files, ready)
        self._sync_log(log, *files, *segment_paths(self._disk))

    def _new_identity(self) -> Identity:
        return Identity(uuid_text(random_uuid(self._random)), self.node_id, uuid_text(random_uuid(self._random)))

    def _activated(self, files: Sequence[str], ready: Callable[[], None]) -> None:
        for path in files:
            put_in_place(self._disk, path)
        self.ready = True
        ready()


def _replayed_slice(log: MetadataLog, image: MetadataImage, offset: int) -> MetadataImage:
    delta, provenance = MetadataDelta(image), image.provenance
    try:
        for batch in log.batches(offset):
            provenance = batch.provenance
            for record in batch.records:
                replay(delta, record)
        if provenance.offset < offset:
            raise MetadataFault(f"nothing stands at offset {offset}")
        return delta.build(provenance)
    except (MetadataFault, InvalidRecords) as fault:
        raise StartRefused(
            f"The metadata log is damaged in or after the batch that ends at offset {provenance.offset} ({fault}): "
            "restore it from a copy."
        ) from fault


def _nothing() -> None:
    """Nobody waits for this part of a change."""
