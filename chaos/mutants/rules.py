"""Mutants for the rules of checks: no scenario names them, and each was written together with the rule that kills it.
What is killed here proves a rule; ``unplanned`` measures how many unplanned defects the simulator kills."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.apis.records.fetch import PARKED
from reference_broker.controller.planning.brokers import handle_broker_unfenced
from reference_broker.groups import rebalances
from reference_broker.metadata.records import ConfigRecord, ProducerIdsRecord
from reference_broker.ports import slicing
from reference_broker.ports.store import Delete
from reference_broker.remote_log.copier import CopyStage
from reference_broker.remote_log.objects import keys_of
from reference_broker.wire.errors import Error, ErrorCode

CACHE = "reference_broker.sessions.fetch_session_cache:FetchSessionCache"
FETCH = "reference_broker.apis.records.fetch"
PARTITION = "reference_broker.apis.records.fetch_partition"
MEMBERSHIP = "reference_broker.groups.group_metadata_manager"
TOPIC = 2
REPLICAS = "reference_broker.replication.leader.replicas"
HEARTBEATS = "reference_broker.controller.broker_heartbeats:BrokerHeartbeatManager"
SENDER = "reference_broker.transactions.transaction_marker_channel_manager:TransactionMarkerChannelManager"


# --- fetch sessions ------------------------------------------------------------------------------------------------


@mutant(f"{FETCH}:Fetch._is_completable")
def arrivals_end_no_wait(original: Function, self: Any) -> bool:
    """Data that arrive end no wait, so that each parked fetch lasts its max_wait_ms (F-14)."""
    return bool(original(self)) and not (self.stage is PARKED and not self.is_urgent)


@mutant(f"{FETCH}:Fetch._park")
def parked_longer_than_requested(original: Function, self: Any) -> None:
    """A fetch waits 200 ms longer than it requested (F-14)."""
    self.request = replace(self.request, max_wait_ms=self.request.max_wait_ms + 200)
    original(self)


@mutant(f"{CACHE}.overtake")
def overtaken_fetch_stays_parked(original: Function, self: Any, session: Any, parked: Any) -> None:
    """A later request of the session leaves the parked one to its timer (F-3, G-3)."""
    session.detach()


@mutant("reference_broker.sessions.fetch_session_cache:is_evictable_by_size")
def half_applied_size_counts(original: Function, session: Any, candidate: Any, wall_ms: int) -> bool:
    """A session that applies a request over several events has the size that it has reached (F-18, G-4)."""
    is_old = wall_ms - session.created_ms > session.min_eviction_ms
    return is_old and len(candidate.partitions) > len(session.partitions)


@mutant("reference_broker.apis.records.partition_errors:leader_epoch_error")
def newer_leader_epoch_fenced(original: Function, leader_epoch: int, request_epoch: int) -> Any:
    """A fetcher that knows a newer leader epoch is fenced, and looks for a leader that it knows already (F-13)."""
    error = original(leader_epoch, request_epoch)
    return ErrorCode.fenced_leader_epoch if error is ErrorCode.unknown_leader_epoch else error


@mutant(f"{PARTITION}:offsets_of")
def stable_offset_sent_too_high(original: Function, log: Any) -> tuple[int, int, int]:
    """A response has the high watermark in place of the last stable offset (F-14, X-4)."""
    high_watermark, _, log_start = original(log)
    return high_watermark, high_watermark, log_start


@mutant(f"{PARTITION}:read")
def partition_limit_ignored(
    original: Function, cached: Any, lookup: Any, isolation: Any, max_bytes: int, at_least_one: bool
) -> Any:
    """The records of a partition may exceed its limit and that of the response (F-16)."""
    return original(cached, lookup, isolation, 10 * max_bytes, at_least_one)


@mutant("reference_broker.sessions.fetch_session:CachedPartition.remember")
def cached_last_epoch_kept(original: Function, self: Any, requested: Any, topic_id: bytes) -> None:
    """A session keeps the last fetched epoch from the first request that named the partition (F-13)."""
    before = self.last_fetched_epoch
    original(self, requested, topic_id)
    if self.named_by_request >= 0:
        self.last_fetched_epoch = before


@mutant("reference_broker.replication.follower.fetcher:ReplicaFetcher._apply_one")
def follower_keeps_its_log_start_to_itself(original: Function, self: Any, name: Any, data: Any) -> None:
    """A follower names a partition only after records or an error, so that its leader never learns a log start that
    moved without them (F-12)."""
    was_named = name in self._to_name
    original(self, name, data)
    if not data.records and not data.error_code and data.diverging_epoch is None and not was_named:
        self._to_name.pop(name, None)


@mutant("reference_broker.sessions.fetch_session:CachedPartition.remember")
def seek_back_not_noted(original: Function, self: Any, requested: Any, topic_id: bytes) -> None:
    """A fetcher that goes back to an earlier offset gets nothing of what it names again (F-13)."""
    before = self.fetch_offset
    original(self, requested, topic_id)
    if self.named_by_request >= 0:
        self.fetch_offset = max(before, requested.fetch_offset)


@mutant("reference_broker.sessions.fetch_session:FetchSession.belongs_in_response", revisions=("final",))
def moved_log_start_not_returned(original: Function, self: Any, cached: Any, data: Any) -> bool:
    """A partition whose log start offset alone has changed is omitted from the next response (F-14)."""
    known = cached.sent_log_start_offset
    cached.sent_log_start_offset = data.log_start_offset
    try:
        return bool(original(self, cached, data))
    finally:
        cached.sent_log_start_offset = known


@mutant("reference_broker.ports.slicing:in_slices")
def last_slice_skipped(
    original: Function, items: Collection[Any], size: int, do: Callable[[Any], object]
) -> Generator[None, None, None]:
    """Work on partitions that takes several slices ends before its last one. A request that names many does not add
    or update them all, and a response lacks some (F-13, F-14)."""
    is_long = len(items) > size
    yield from original(list(items)[: (len(items) - 1) // size * size] if is_long else items, size, do)


@mutant("reference_broker.replication.follower.fetcher:ReplicaFetcher._apply_one")
def follower_names_one_partition_of_a_response(original: Function, self: Any, name: Any, data: Any) -> None:
    """After a response with records of several partitions a follower names only the first of them, and is sent the
    records of the others again (F-12)."""
    before = dict(self._to_name)
    original(self, name, data)
    if before and data.records:
        self._to_name = before


# --- replication and metadata --------------------------------------------------------------------------------------


@mutant("reference_broker.controller.planning.partition_requests:IsrChange._stale_state")
def old_proposals_accepted(original: Function, self: Any, partition: Any, requested: Any) -> Any:
    """The controller takes an AlterPartition of an older leader epoch or partition epoch, which comes late
    (KIP-497)."""
    error = original(self, partition, requested)
    return None if error in (ErrorCode.fenced_leader_epoch, ErrorCode.invalid_update_version) else error


@mutant(f"{REPLICAS}:Followers.begin_leadership")
def new_leader_counts_followers_as_equal(original: Function, self: Any, isr: tuple[int, ...], now_us: int) -> None:
    """A new leader takes its in-sync followers to be as far as itself before they fetch from it (F-22)."""
    original(self, isr, now_us)
    for state in self.states.values():
        if state.replica_id in isr:
            state.log_end_offset = self.leader_end


@mutant(f"{HEARTBEATS}._submit", remembers=True)
def second_unfencing_never_ends(
    original: Function,
    memory: dict[str, int],
    self: Any,
    broker: Any,
    name: str,
    plan: Any,
    only_if_silent: bool = False,
) -> None:
    """Every second change that would unfence a broker is lost, and the broker counts as changing from then on
    (KIP-631)."""
    memory["unfencings"] = memory.get("unfencings", 0) + (plan is handle_broker_unfenced)
    if plan is handle_broker_unfenced and memory["unfencings"] % 2 == 0:
        self.pending[broker.broker_id] = None
    else:
        original(self, broker, name, plan, only_if_silent)


@mutant(f"{HEARTBEATS}.has_session")
def sessions_of_brokers_never_end(original: Function, self: Any, broker_id: int) -> bool:
    """The controller fences no broker that sends no heartbeats (KIP-631)."""
    return True


@mutant("reference_broker.metadata.loader:MetadataLoader.catch_up")
def committed_records_loaded_late(original: Function, self: Any, high_watermark: int) -> None:
    """A node loads records of the metadata log a second after it learns that they are committed (T-9)."""
    self._high_watermark = max(self._high_watermark, high_watermark)
    if not self._scheduled and self._reloading is None:
        self._scheduled = True
        self._node.after(1_000_000, self._load_some)


@mutant("reference_broker.metadata.snapshots:records_of")
def snapshot_forgets_producer_ids(original: Function, image: Any) -> Iterator[Any]:
    """A snapshot lacks the next producer ID, so that a controller which loads it gives out IDs again (S-15)."""
    for record in original(image):
        if not isinstance(record, ProducerIdsRecord):
            yield record


# --- groups --------------------------------------------------------------------------------------------------------


@mutant("reference_broker.groups.rebalances:join_response")
def followers_get_the_members(original: Function, group: Any, member_id: str) -> Any:
    """Every member gets the members of the generation, and each that assigns takes itself for the leader (KIP-62)."""
    return replace(original(group, member_id), members=rebalances.joined_members(group))


@mutant("reference_broker.groups.rebalances:sync_response")
def parked_syncs_get_no_assignment(original: Function, group: Any, member: Any) -> Any:
    """A member whose SyncGroup came before the leader's gets an empty assignment, and reads nothing until the next
    rebalance (KIP-62)."""
    response = original(group, member)
    is_parked = member.member_id in group.parked_syncs
    return replace(response, assignment=b"") if is_parked and member.member_id != group.leader else response


@mutant("reference_broker.groups.group:Group.maybe_elect_new_joined_leader")
def leader_is_the_last_to_join(original: Function, self: Any) -> bool:
    """A leader that has joined again loses its role to another member (KIP-62)."""
    found: bool = original(self)
    joined = [member_id for member_id in self.members if self.has_joined(member_id)]
    self.leader = joined[-1] if joined else self.leader
    return found


@mutant("reference_broker.groups.group:SupportedProtocols.select")
def protocol_of_the_first_member(original: Function, self: Any, members: Any) -> str:
    """The first protocol of the longest member is selected, whether or not the others support it (KIP-62)."""
    name: str = next(iter(members)).protocols[0].name
    return name


@mutant("reference_broker.groups.group:Group.update")
def metadata_of_first_join_kept(
    original: Function, self: Any, member: Any, protocols: Any, rebalance_timeout_ms: int, session_timeout_ms: int
) -> None:
    """A member that joins again keeps the metadata of its first JoinGroup, so that the leader assigns by an old
    subscription (KIP-62)."""
    original(self, member, member.protocols, rebalance_timeout_ms, session_timeout_ms)


@mutant("reference_broker.groups.rebalances:maybe_prepare_rebalance_or_complete_join")
def join_waits_for_the_rebalance_timeout(original: Function, served: Any, reason: str) -> None:
    """A rebalance in progress ends only with its timeout, also where the last member has joined (KIP-62)."""
    if served.group.can_rebalance:
        original(served, reason)


@mutant("reference_broker.groups.rebalances:_complete_or_delay_initial_rebalance")
def initial_delay_prolonged_for_ever(original: Function, served: Any, delay_ms: int, remaining_ms: int) -> None:
    """The initial delay is prolonged beyond the rebalance timeout while members come (KIP-134)."""
    original(served, delay_ms, max(remaining_ms, 1000))


@mutant("reference_broker.groups.served_group:ServedGroup.restart_session")
def session_a_tenth_too_short(original: Function, self: Any, member_id: str, timeout_ms: int) -> None:
    """The session of a member ends after nine tenths of its timeout (KIP-62)."""
    original(self, member_id, timeout_ms * 9 // 10)


@mutant("reference_broker.groups.served_group:ServedGroup.restart_session")
def session_a_second_too_long(original: Function, self: Any, member_id: str, timeout_ms: int) -> None:
    """The session of a member ends a second after its timeout (KIP-62)."""
    original(self, member_id, timeout_ms + 1000)


@mutant("reference_broker.groups.rebalances:expire_pending_sync")
def late_syncs_wait_for_ever(original: Function, served: Any) -> None:
    """The timer of a generation is not armed: a member that never syncs stays (KIP-62)."""
    served.timer = None


@mutant("reference_broker.groups.group:Group.check_commit")
def simple_commits_to_a_stable_group(
    original: Function, self: Any, member_id: str, group_instance_id: str | None, generation: int
) -> Error:
    """A consumer that assigns itself commits to a group with members (KIP-447)."""
    error: Error = original(self, member_id, group_instance_id, generation)
    return ErrorCode.none if generation < 0 else error


@mutant("reference_broker.groups.group:Group.check_member")
def successor_does_not_fence(original: Function, self: Any, member_id: str, group_instance_id: str | None) -> Error:
    """A static member is checked by its ID alone, and gets UNKNOWN_MEMBER_ID where its successor fences it
    (KIP-345)."""
    error: Error = original(self, member_id, None)
    return error


@mutant(f"{MEMBERSHIP}:GroupMetadataManager.heartbeat")
def heartbeat_hides_the_rebalance(
    original: Function, self: Any, group_id: str, member_id: str, group_instance_id: str | None, generation: int
) -> Error:
    """A member that sends a heartbeat in a rebalance is not sent to join again (KIP-62)."""
    error: Error = original(self, group_id, member_id, group_instance_id, generation)
    return ErrorCode.none if error is ErrorCode.rebalance_in_progress else error


@mutant("reference_broker.groups.group:Group.accepts")
def group_one_member_too_large(original: Function, self: Any, member_id: str, max_size: int) -> bool:
    """A group takes one member more than group.max.size (KIP-389)."""
    accepted: bool = original(self, member_id, max_size + 1)
    return accepted


@mutant("reference_broker.groups.offset_cleanup:_expires_ms")
def offsets_expire_at_once(original: Function, group: Any, commit: Any, retention_ms: int) -> int | None:
    """The retention time of offsets is taken for seconds instead of minutes, and all but used offsets go (KIP-211)."""
    found: int | None = original(group, commit, 0)
    return found


@mutant("reference_broker.groups.group_coordinator_shard:OffsetsPlayback.replay")
def tombstones_of_offsets_not_replayed(
    original: Function, self: Any, header: Any, record: Any, end_offset: int
) -> None:
    """A coordinator that loads ignores the removal of offsets, and they are back (M-8)."""
    if record.value is not None or header.is_control:
        original(self, header, record, end_offset)


@mutant("reference_broker.groups.records:group_value")
def session_timeout_written_as_rebalance_timeout(original: Function, group: Any) -> bytes:
    """The record of a group has the session timeout of its members in both places. The next coordinator gives them that
    time to join (KIP-62)."""
    kept = [(member, member.rebalance_timeout_ms) for member in group.members.values()]
    for each, _ in kept:
        each.rebalance_timeout_ms = each.session_timeout_ms
    value: bytes = original(group)
    for each, timeout_ms in kept:
        each.rebalance_timeout_ms = timeout_ms
    return value


@mutant("reference_broker.groups.offset_metadata_manager:_fetched")
def open_transactions_look_stable(
    original: Function, shard: Any, group_id: str, requested: Any, requires_stable: bool
) -> Any:
    """OffsetFetch with require_stable returns the offset before an open transaction instead of
    UNSTABLE_OFFSET_COMMIT (X-8)."""
    return original(shard, group_id, requested, False)


# --- snapshots -----------------------------------------------------------------------------------------------------


@mutant("reference_broker.metadata.snapshots:records_of")
def topic_configs_missing_from_snapshot(original: Function, image: Any) -> Iterator[Any]:
    """A snapshot does not contain the settings of topics. A node that loads it has the defaults (S-12, S-15)."""
    return (each for each in original(image) if not isinstance(each, ConfigRecord) or each.resource_type != TOPIC)


# --- storage -------------------------------------------------------------------------------------------------------


@mutant("reference_broker.remote_log.expiring.expirer:SegmentRemoval.remove")
def objects_deleted_before_deletion_is_written(
    original: Function, self: Any, segment: Any, ended: Callable[[str], None]
) -> None:
    """The objects of a segment are deleted while its DELETE_SEGMENT_STARTED is being written, which may be refused
    (P-11)."""
    self.ports.store(Delete(keys_of(segment)), lambda _: None, lambda _: None)
    original(self, segment, ended)


@mutant("reference_broker.remote_log.objects:keys_of")
def last_object_of_segment_not_deleted(original: Function, segment: Any) -> tuple[str, ...]:
    """The deletion of a remote segment leaves its leader epochs in the store (P-11)."""
    keys: tuple[str, ...] = original(segment)
    return keys[:-1]


@mutant("reference_broker.log.retention:tierable")
def first_timestamp_in_remote_metadata(
    original: Function, segments: Any, end_offset: int, from_offset: int
) -> tuple[Any, ...]:
    """The metadata of a remote segment has the timestamp of its first batch as the largest one. Remote retention
    deletes it too early, and lookups by time skip it (P-11)."""
    return tuple(
        each._replace(max_timestamp_ms=segments[segments.index_of(each.base_offset)].first_timestamp_ms)
        for each in original(segments, end_offset, from_offset)
    )


@mutant("reference_broker.remote_log.copier:Copier._advance")
def first_object_stored_before_begin_is_committed(original: Function, self: Any, copy: Any) -> None:
    """The first object of a copy is stored while its COPY_SEGMENT_STARTED is being written. If that is lost, the object
    stays (P-11)."""
    if copy.stage is CopyStage.WRITING_COPY_STARTED and not self._is_closed:
        self._context.ports.store(copy.data.objects[0], lambda _: None, lambda _: None)
    original(self, copy)


@mutant("reference_broker.log.segment:Segment.add")
def largest_timestamp_of_first_batch(
    original: Function, self: Any, header: Any, base_offset: int, max_timestamp_ms: int, index_interval_bytes: int
) -> None:
    """A segment's largest timestamp stays that of its first batch. Retention deletes records that are not old enough
    (P-11)."""
    known = self.max_timestamp_ms, self.max_timestamp_offset, self.max_timestamp_position
    is_first = self.size_bytes == 0
    original(self, header, base_offset, max_timestamp_ms, index_interval_bytes)
    if not is_first:
        self.max_timestamp_ms, self.max_timestamp_offset, self.max_timestamp_position = known


@mutant("reference_broker.log.segment:Segment.write_indexes")
def closed_without_last_time_entry(original: Function, self: Any, disk: Any) -> tuple[str, ...]:
    """A segment is closed without the entry of its largest timestamp. A lookup by time in its copy misses records
    (P-11)."""
    written = [each.path for each in (self.offsets, self.times) if each.write(disk)]
    return (*written, *self.aborted.write(disk))


@mutant("reference_broker.log.indexes:OffsetIndex.add")
def index_entry_one_offset_late(original: Function, self: Any, base: int, last: int, position: int) -> None:
    """An entry of the offset index names the offset behind its batch (P-4)."""
    original(self, base, last + 1, position)


@mutant("reference_broker.log.segment:Segment.truncate")
def bytes_since_entry_kept_at_truncation(original: Function, self: Any, disk: Any, size: int, next_offset: int) -> None:
    """A truncation leaves the number of bytes since the last index entry at 0, so that entries are far apart
    (KIP-101)."""
    original(self, disk, size, next_offset)
    self.bytes_since_entry = 0


@mutant("reference_broker.log.leader_epochs:LeaderEpochFileCache.note")
def epoch_begins_one_record_late(original: Function, self: Any, epoch: int, start_offset: int) -> bool:
    """A leader epoch that is not the first begins one record late in the log's cache (KIP-101)."""
    noted: bool = original(self, epoch, start_offset + 1 if self.epochs and epoch > self.epochs[-1] else start_offset)
    return noted


@mutant("reference_broker.log.producer_state:_row")
def marker_time_not_in_snapshot(original: Function, producer_id: int, producer: Any) -> bytes:
    """A producer snapshot has the time of a producer's last batch, and not that of its marker behind it (P-2, P-7)."""
    marks = producer.batch_metadata
    row: bytes = original(
        producer_id, producer._replace(last_timestamp_ms=marks[-1].timestamp_ms) if marks else producer
    )
    return row


@mutant("reference_broker.log.log_files:LogFiles.roll")
def roll_snapshot_without_newest_producer(
    original: Function,
    self: Any,
    now: Any,
    base_offset: int,
    log_start_offset: int,
    producers: Any,
    buffers: Sequence[Any] = (),
) -> None:
    """The snapshot of a roll lacks the producer that was seen first last, as if it were taken one batch early (P-2)."""
    newest = next(reversed(producers.by_id), None)
    known = producers.by_id
    if newest is not None:
        producers.by_id = {who: one for who, one in known.items() if who != newest}
    try:
        original(self, now, base_offset, log_start_offset, producers, buffers)
    finally:
        producers.by_id = known


@mutant("reference_broker.log.retention:_is_too_old")
def age_of_first_record_counts(original: Function, segment: Any, retention_ms: int, wall_ms: int) -> bool:
    """Retention deletes a segment when its first record is too old, and not its newest one (P-11)."""
    return retention_ms >= 0 and wall_ms - segment.first_timestamp_ms > retention_ms


@mutant("reference_broker.log.retention:_is_too_old")
def age_of_segments_ignored(original: Function, segment: Any, retention_ms: int, wall_ms: int) -> bool:
    """Retention deletes no segment because of its age (P-11)."""
    return False


@mutant("reference_broker.log.retention:count_expired")
def one_segment_too_many_deleted(
    original: Function, segments: Any, config: Any, log_start_offset: int, high_watermark: int, wall_ms: int
) -> int:
    """Retention by size deletes segments until the log is smaller than it may be (P-11)."""
    count: int = original(segments, config, log_start_offset, high_watermark, wall_ms)
    ends = (*segments.bases[1:], -1)
    return count + 1 if 0 < count < len(segments) - 1 and ends[count] <= high_watermark else count


@mutant("reference_broker.log.cleaner.cleaning:_end")
def min_compaction_lag_ignored(original: Function, log: Any, first_dirty: int, now: Any) -> int:
    """The cleaner takes segments with records younger than ``min.compaction.lag.ms`` (X-11)."""
    end: int = log.bases[log.segments.index_of(min(log.last_stable_offset, log.bases[-1]))]
    return end


@mutant("reference_broker.log.cleaner.cleaning:Cleanable.is_due")
def dirty_ratio_ignored(original: Function, self: Any, min_dirty_ratio: float) -> bool:
    """The cleaner cleans a log as soon as anything in it is dirty (X-11)."""
    is_dirty: bool = self.dirty_bytes > 0
    return is_dirty


@mutant("reference_broker.log.log_files:LogFiles.note_synced")
def synced_offset_ahead_of_sync(original: Function, self: Any) -> None:
    """The file of the synced offset names the end of the log. After a power loss a start takes the log for damaged
    (E-7)."""
    original(self)
    if self.segments.items and not self.durability.unsettled_cut:
        self.checkpoints.note_synced(max(self.segments[-1].next_offset, self.checkpoints.durable_end))


@mutant("reference_broker.core.clean_shutdown:sync_and_mark")
def led_logs_not_synced_before_the_mark(
    original: Function,
    ports: Any,
    disk: Any,
    logs: Callable[[], Iterable[Any]],
    broker_epoch: int,
    done: Callable[[], None],
) -> None:
    """A clean stop syncs the metadata log alone, and marks all of them as durable (P-3, E-4)."""
    original(ports, disk, lambda: list(logs())[-1:], broker_epoch, done)


@mutant("reference_broker.log.checkpoints:OffsetCheckpoints.prepare_log_start")
def log_start_never_synced(original: Function, self: Any, offset: int) -> str:
    """The log start is written to its checkpoint, and no sync covers that. Remote segments below it are deleted all the
    same (E-7, P-11)."""
    original(self, offset)
    return str(self._recovery_point.path)


# --- transactions --------------------------------------------------------------------------------------------------


@mutant("reference_broker.transactions.transaction_marker_channel_manager:_writable_marker")
def markers_of_other_leaders_abort(original: Function, marker: Any, partitions: Any) -> Any:
    """The markers that a coordinator sends to other leaders are those of an abort, whatever was decided (X-3)."""
    return original(replace(marker, is_commit=False), partitions)


@mutant(f"{SENDER}._add_all_to_broker_queues")
def markers_of_first_slice_only(
    original: Function, self: Any, pending: Iterable[tuple[Any, Sequence[Any]]]
) -> Generator[None, None, None]:
    """Where the partitions of a transaction do not fit one slice, only those of the first one get their markers. The
    transaction stays open in the others (X-3)."""
    size = slicing.MARKER_PARTITIONS_PER_SLICE
    yield from original(self, [(pending_txn, partitions[:size]) for pending_txn, partitions in pending])


# --- offsets of transactions ---------------------------------------------------------------------------------------


@mutant("reference_broker.groups.committed_offsets:CommittedOffsets._replicated_pending")
def first_offset_of_transaction_wins(original: Function, self: Any, batch: Any) -> None:
    """Of two commits of one partition in one transaction the first one counts (X-8)."""
    pending = {key: {**commits} for key, _ in batch.changes for commits in [self._pending.of(key.group).get(key, {})]}
    original(self, batch)
    for key, commits in pending.items():
        if batch.producer_id in commits:
            self._pending.put(batch.producer_id, key, commits[batch.producer_id])


@mutant("reference_broker.replication.leader.leaders:Leaders.acknowledge")
def acknowledged_one_offset_early(
    original: Function, self: Any, offsets: Any, timeout_ms: int, completed: Callable[[Any], None]
) -> Any:
    """A produce is acknowledged when all its records but the last one are replicated (E-7)."""
    return original(self, [(partition, offset - 1) for partition, offset in offsets], timeout_ms, completed)


@mutant("reference_broker.groups.committed_offsets:CommittedOffsets.all_groups")
def removed_group_loaded_again(original: Function, self: Any) -> tuple[str, ...]:
    """A coordinator that loads a log, of which it does not know yet what is replicated, lists groups again whose
    tombstones it has read (M-8)."""
    return tuple(dict.fromkeys([*original(self), *(key.group for key in self._newest)]))
