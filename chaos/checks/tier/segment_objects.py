"""Remote segments and their objects (KIP-405): its segments, and the stored objects of each.

An object's key ends with ``<20-digit base offset>-<segment ID>.<kind>``, below a folder that begins with the
partition's name.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from chaos.checks.check import Check, CheckContext, Inspection
from chaos.checks.history import History
from chaos.checks.log.batches import BatchIdentity, batches_of, read_batches
from chaos.checks.log.producers import ProducerState, read_snapshot, replayed
from reference_broker.core.events import Effect, Event, Note
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.identifiers import uuid_text
from reference_broker.replication.partitions import Partition

if TYPE_CHECKING:
    from reference_broker.core.node import Node


COPIED = "segment_copied"
NEEDED = ("log", "index", "timeindex", "snapshot", "leader-epoch-checkpoint")
"""P-11: a segment is listed only after all these are stored. A transaction index exists only if there are markers."""


class CopiedSegment(NamedTuple):
    """A segment that a node reported as copied: offsets [base, next) of a partition."""

    partition: str
    """such as ``hot-0``"""
    segment_id: str
    """ID of the copy"""
    base_offset: int
    next_offset: int
    began_ms: int
    """when the copy began, by the node's clock"""

    @property
    def named(self) -> str:
        return f"{self.partition} from {self.base_offset} to {self.next_offset} (copy {self.segment_id})"

    def objects(self, tier: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return its stored objects by kind."""
        start = f"/{self.base_offset:020d}-{self.segment_id}."
        return {
            key.partition(start)[2]: data
            for key, data in tier.items()
            if start in key and key.startswith(f"{self.partition}-")
        }


def copied_in(effects: Sequence[Effect]) -> Iterator[CopiedSegment]:
    """Yield the segments that were copied by one event's effects."""
    for effect in effects:
        if type(effect) is Note and effect.what == COPIED:
            fields = dict(effect.fields)
            yield CopiedSegment(
                str(fields["partition"]),
                str(fields["segment_id"]),
                int(fields["base_offset"]),
                int(fields["next_offset"]),
                int(fields["began_ms"]),
            )


class ClosedSegmentsStored(Check):
    """closed-segments-stored: after the heal each closed segment that may be copied is in the remote tier (P-8, P-14),
    and its local copy is deleted.

    KIP-405: a segment may be copied if it is not the active one, and is wholly below the last stable offset and the
    high watermark. The producer snapshots of its log do not matter (P-14). The oldest segments whose copies are listed
    are deleted while the local log is larger than ``local.retention.bytes`` by at least one of them, or while their
    largest timestamp is older than ``local.retention.ms``.

    ``SimWorld`` calls ``reached`` after the heal, and ``overdue`` if the time runs out before that.
    """

    guarantee = "closed-segments-stored"
    inspection = Inspection.AFTER_EVENTS

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._nodes: dict[int, Node] = {}

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        self._nodes[node.broker.node_id] = node

    def reached(self) -> bool:
        return next(self._missing(), None) is None

    def overdue(self, at_us: int, after_us: int) -> None:
        for node_id, partition, base, end, what in self._missing():
            self.violated(
                at_us,
                f"{partition.log.directory} from {base} to {end} on leader {node_id} is {what} "
                f"{after_us // 1_000_000} s after all was healed",
            )

    def _missing(self) -> Iterator[tuple[int, Partition, int, int, str]]:
        """Yield the leader, the first and next offset of a segment, and how it is not as it is due."""
        for node_id, node in self._nodes.items():
            remote_log = node.broker.remote_log
            if remote_log is None:
                continue
            for partition in node.broker.partitions.by_name.values():
                log = partition.log
                if not log.config.is_remote_copy_enabled:
                    continue
                known = remote_log.metadata.of(partition.topic_id, partition.index)
                listed = [(each.start_offset, each.end_offset + 1) for each in known.listed()]
                stable_end = min(log.high_watermark, log.last_stable_offset)
                kept, kept_ms = log.config.local_retention_bytes, log.config.local_retention_ms
                excess = sum(each.size_bytes for each in log.segments) - kept if kept >= 0 else -1
                wall_ms, is_oldest = node.broker.now.wall_ms, True
                for segment, (base, end) in zip(log.segments, pairwise(log.bases), strict=False):
                    self.evidence += 1
                    excess -= segment.size_bytes
                    is_old = 0 <= kept_ms < wall_ms - segment.max_timestamp_ms and segment.max_timestamp_ms >= 0
                    is_oldest = is_oldest and is_old
                    if end <= stable_end and not _covers(listed, max(base, log.log_start_offset), end):
                        yield node_id, partition, base, end, "not in the tier"
                    elif end <= stable_end and excess >= 0:
                        yield node_id, partition, base, end, "still beside its copy, beyond local.retention.bytes,"
                    elif end <= stable_end and is_oldest:
                        yield node_id, partition, base, end, "still beside its copy, beyond local.retention.ms,"


def _covers(listed: list[tuple[int, int]], offset: int, end: int) -> bool:
    for first, after in sorted(listed):
        if first <= offset < after:
            offset = after
    return offset >= end


class KeptUntilStored(Check):
    """kept-until-stored: records that a replica of a tiered topic has deleted locally are complete in the tier (P-11,
    KIP-405).

    Records below the log start offset are deleted, and need not exist. Replicas get a new log start offset at different
    times, so the greatest one counts. Once all is quiet every replica is judged again: records that were in the tier
    when they were deleted locally must still be there.

    E-7: the metadata of remote segments may be lost with its replicas. KIP-405: the next leader then deletes the
    objects of a copy that did not finish as far as it knows. So records that were once complete in the tier may be
    missing there.
    """

    guarantee = "kept-until-stored"
    inspection = Inspection.AFTER_EVENTS

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._seen: dict[tuple[int, str], int] = {}
        self._starts: dict[str, int] = {}
        self._stored: dict[str, int] = {}
        """By partition: the offset up to which the tier was once complete."""
        self._replicas: dict[int, list[UnifiedLog]] = {}
        """By node: its tiered ones, as it had them last."""

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        if self.context.alone or not node.broker.config.remote_log_storage_system_enable:
            return
        partitions = node.broker.partitions
        logs = [each.log for each in (*partitions.by_name.values(), *partitions.followed.values())]
        node_id = node.broker.node_id
        self._replicas[node_id] = tiered = [log for log in logs if log.config.remote_storage_enable]
        for log in tiered:
            self._starts[log.directory] = max(log.log_start_offset, self._starts.get(log.directory, 0))
            self._look(at_us, node_id, log)

    def end(self, history: History) -> None:
        self._seen.clear()
        for node_id, logs in self._replicas.items():
            for log in logs:
                self._look(history.end_us, node_id, log)

    def _look(self, at_us: int, node_id: int, log: UnifiedLog) -> None:
        name, local_start = log.directory, log.local_log_start_offset
        key, start = (node_id, name), self._starts[name]
        if start >= local_start or self._seen.get(key) == local_start:
            return
        self._seen[key] = local_start
        self.evidence += 1
        whole = self._whole_in_tier(name)
        stored, once = _reached(whole, start), self._stored.get(name, 0)
        if stored < once and self._is_excused(log):
            stored = _reached(whole, once)
        self._stored[name] = max(once, stored)
        if stored < local_start:
            self.violated(
                at_us,
                f"{name} on node {node_id} has no records below {local_start}; the tier has none from {stored}",
            )

    def _is_excused(self, log: UnifiedLog) -> bool:
        replicas = self.context.replicas
        known = replicas.partitions.get((log.topic_id, int(log.directory.rpartition("-")[2])))
        return known is not None and replicas.tier_excused(known)

    def _whole_in_tier(self, name: str) -> list[tuple[int, int]]:
        """Return the offsets [base, end) of the copies with all their objects, in order."""
        copies: dict[str, dict[str, bytes]] = {}
        for key, data in self.context.tier.items():
            if key.startswith(f"{name}-"):
                copy, _, kind = key.rpartition(".")
                copies.setdefault(copy, {})[kind] = data
        return sorted(_offsets(copy["log"]) for copy in copies.values() if all(kind in copy for kind in NEEDED))


def _reached(copies: Sequence[tuple[int, int]], start: int) -> int:
    """Return the end of the records that copies [base, end), in order, have from ``start`` on without a gap."""
    for base, end in copies:
        if base <= start < end:
            start = end
    return start


def _offsets(data: bytes) -> tuple[int, int]:
    batches = [batch for batch, _ in batches_of(data)]
    return (batches[0].base_offset, batches[-1].last_offset + 1) if batches else (0, 0)


class ListedWhenStored(Check):
    """listed-when-stored: a segment is listed only after all its objects are stored, and they equal the log's contents
    (P-11).

    When the first node lists a segment, its objects are searched for; later nodes may list it while it is being
    deleted. When a node reports that it has copied a segment, the log object must have the bytes of the local log, and
    the leader epochs must have for each batch the epoch in the batch itself.
    """

    guarantee = "listed-when-stored"
    inspection = Inspection.AFTER_EVENTS
    acts_on = (COPIED,)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._seen: set[bytes] = set()

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        remote_log = node.broker.remote_log
        if remote_log is None or self.context.alone:
            return
        partitions = node.broker.partitions
        for partition in (*partitions.by_name.values(), *partitions.followed.values()):
            if remote_log.metadata.is_ready(partition.topic_id, partition.index):
                for segment in remote_log.metadata.of(partition.topic_id, partition.index).listed():
                    if segment.segment_id not in self._seen:
                        self._seen.add(segment.segment_id)
                        name, copy = f"{segment.topic}-{segment.partition}", uuid_text(segment.segment_id)
                        self._look(at_us, CopiedSegment(name, copy, segment.start_offset, segment.end_offset + 1, 0))

    def _look(self, at_us: int, listed: CopiedSegment) -> bool:
        self.evidence += 1
        stored = listed.objects(self.context.tier)
        missing = [kind for kind in NEEDED if kind not in stored]
        if missing:
            self.violated(at_us, f"{listed.named} was listed without its {', '.join(missing)}")
        return not missing

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        for copied in copied_in(effects):
            if self._look(at_us, copied):
                self._judge(at_us, node, copied)

    def _judge(self, at_us: int, node: "Node", copied: CopiedSegment) -> None:
        stored = copied.objects(self.context.tier)
        log = next(log for log in node.logs() if log.directory == copied.partition)
        if copied.base_offset < log.local_log_start_offset:
            return  # Physical: there is nothing to compare with. kept-until-stored judges whether it may be deleted.
        local = list(read_batches(log, copied.base_offset, copied.next_offset))
        if b"".join(data for _, data in local) != stored["log"]:
            self.violated(at_us, f"{copied.named}: the bytes in the store are not those of the log")
        self._judge_epochs(at_us, copied, stored["leader-epoch-checkpoint"], [batch for batch, _ in local])

    def _judge_epochs(self, at_us: int, copied: CopiedSegment, data: bytes, batches: Sequence[BatchIdentity]) -> None:
        """A checkpoint has a version, the number of rows, and rows of an epoch with its first offset."""
        rows = [tuple(map(int, line.split())) for line in data.decode().splitlines()[2:]]
        starts = [start for _, start in rows]
        for batch in batches:
            at = bisect_right(starts, batch.base_offset) - 1
            if at < 0 or rows[at][0] != batch.epoch:
                self.violated(at_us, f"{copied.named}: its leader epochs {rows} do not fit {batch.named}")
                return


BEGUN = "COPY_SEGMENT_STARTED"
"""KIP-405: only from this state a copy can still become listed."""


class NewerUploadCounts(Check):
    """newer-upload-counts: of two uploads of the same offsets only that of the newer leader epoch is listed (P-11,
    KIP-405).

    Once any node has an upload of a leader epoch, no segment of an earlier epoch becomes listed. A node that starts
    reads the events of uploads again from the beginning, so only segments that no node had listed before are judged.
    """

    guarantee = "newer-upload-counts"
    inspection = Inspection.AFTER_EVENTS

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._settled: set[bytes] = set()
        """IDs of the segments that any node has listed, or that are deleted."""
        self._newest: dict[tuple[bytes, int], int] = {}
        """The newest leader epoch that has uploaded anything, by topic ID and index."""

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        remote_log = node.broker.remote_log
        if remote_log is None or self.context.alone:
            return
        partitions = node.broker.partitions
        for partition in (*partitions.by_name.values(), *partitions.followed.values()):
            place = partition.topic_id, partition.index
            if not remote_log.metadata.is_ready(*place):
                continue
            known = remote_log.metadata.of(*place)
            listed, others = tuple(known.listed()), known.unfinished()
            newest = self._newest.get(place, -1)
            for segment in listed:
                if segment.segment_id not in self._settled:
                    self.evidence += 1
                    if segment.uploader_epoch < newest:
                        self.violated(
                            at_us,
                            f"{segment.topic}-{segment.partition} from {segment.start_offset} to "
                            f"{segment.end_offset + 1} (copy {uuid_text(segment.segment_id)}) was uploaded in leader "
                            f"epoch {segment.uploader_epoch}, and listed after an upload of epoch {newest} was known",
                        )
            settled = (other for other in others if other.state.name != BEGUN)
            self._settled.update(each.segment_id for each in (*listed, *settled))
            self._newest[place] = max(newest, *(each.uploader_epoch for each in (*listed, *others)), -1)


@dataclass(slots=True)
class _Replay:
    """The producer state from the batches below ``end_offset``."""

    end_offset: int = 0
    known: dict[int, ProducerState] = field(default_factory=dict)
    at: dict[int, dict[int, ProducerState]] = field(default_factory=dict)
    """the same at the ends of copied segments"""


LATE_MS = 3000
"""The age that a record may have when a node appends it, because its producer retries."""


class UploadedProducers(Check):
    """uploaded-producers-replayed: the producer snapshot that is uploaded with a segment equals a full replay to its
    end, for every producer that is not expired and every open transaction (P-8, P-10, P-13).

    The replay applies each batch once, in the order of the log, when a node reports that the batch's segment is copied.
    Clocks differ, and may have been stepped back since a producer expired. So a producer counts as expired if it has
    expired by the latest time that the node's clock has shown (P-7). A log without its first records may have started
    with the snapshot of another node (P-11), and then the clocks of all nodes count.
    """

    guarantee = "uploaded-producers-replayed"
    inspection = Inspection.AFTER_EVENTS
    acts_on = (COPIED,)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._replays: dict[str, _Replay] = {}
        self._latest_ms: dict[int, int] = {}
        """The latest time that each node's clock has shown."""

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        self._clock_showed(node.broker.node_id, node.broker.now.wall_ms)

    def _clock_showed(self, node_id: int, wall_ms: int) -> None:
        self._latest_ms[node_id] = max(wall_ms, self._latest_ms.get(node_id, wall_ms))

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        for copied in copied_in(effects):
            node_id = node.broker.node_id
            self._clock_showed(node_id, copied.began_ms)
            log = next(log for log in node.logs() if log.directory == copied.partition)
            wanted = self._replayed_to(copied, log)
            data = copied.objects(self.context.tier).get("snapshot")
            if wanted is not None and data is not None:
                self.evidence += 1
                latest_ms = max(self._latest_ms.values()) if log.local_log_start_offset else self._latest_ms[node_id]
                self._compare(at_us, copied, wanted, data, log, latest_ms)

    def _replayed_to(self, copied: CopiedSegment, log: UnifiedLog) -> dict[int, ProducerState] | None:
        """Return the replay of the log up to the segment's end, or None if batches before it are not here any more."""
        replay = self._replays.setdefault(copied.partition, _Replay())
        if replay.end_offset < copied.next_offset:
            if log.local_log_start_offset > replay.end_offset:
                return None
            for batch, data in read_batches(log, replay.end_offset, copied.next_offset):
                replay.known = replayed(replay.known, data, batch)
            replay.end_offset = copied.next_offset
            replay.at[copied.next_offset] = replay.known
        return replay.at.get(copied.next_offset)

    def _compare(
        self,
        at_us: int,
        copied: CopiedSegment,
        wanted: dict[int, ProducerState],
        data: bytes,
        log: UnifiedLog,
        latest_ms: int,
    ) -> None:
        try:
            uploaded = read_snapshot(data)
        except ValueError as damage:
            self.violated(at_us, f"{copied.named}: its snapshot of producers is damaged: {damage}")
            return
        limit_ms = latest_ms - log.config.producer_id_expiration_ms
        for producer_id, producer in wanted.items():
            if producer.open_from < 0 and (
                producer.timestamp_ms <= limit_ms or 0 <= producer.last_offset < log.log_start_offset
            ):
                continue
            known = uploaded.get(producer_id)
            if producer.silence_ms >= log.config.producer_id_expiration_ms - LATE_MS and known is not None:
                # P-7: it expired once, with the epoch of its last marker.
                known = known._replace(coordinator_epoch=max(known.coordinator_epoch, producer.coordinator_epoch))
            if known is None or known.in_snapshot != producer.in_snapshot:
                self.violated(
                    at_us,
                    f"{copied.named}: of producer {producer_id} its snapshot has {known}, and a full replay {producer}",
                )
                return
        strangers = [producer_id for producer_id in uploaded if producer_id not in wanted]
        if strangers:
            self.violated(at_us, f"{copied.named}: its snapshot knows producers {strangers}, who wrote nothing")
