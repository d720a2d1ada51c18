"""The leader role.

A leader opens its epoch with a leader change record, serves fetches and moves the high watermark. It resigns when a
majority of the voters is silent, or when its disk refuses that first record.

The high watermark is the largest offset that a majority of voters has synced. The leader's own log counts only up
to its synced end. The high watermark moves only beyond the epoch's first record, which commits the records of older
epochs with it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from reference_broker.ports.disk import DiskError
from reference_broker.quorum.messages import RaftResponse, begin_epoch, fetched, read_epoch_response
from reference_broker.quorum.metadata_log import VALID, Valid
from reference_broker.quorum.roles import ElectionState, Role, RoleContext, RoleState
from reference_broker.quorum.values import NO_NODE, QuorumDescription, QuorumListener, ReplicaDescription
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchPartition, FetchRequest, FetchResponse

OBSERVER_SESSION_US = 300_000_000
"""An observer that is silent for longer is no longer listed by DescribeQuorum
(LeaderState.OBSERVER_SESSION_TIMEOUT_MS)."""
MAX_OBSERVERS = 1000
TOGETHER_US = 20_000
"""Parked fetches that expire within this time of each other get their responses together, so that one timer serves them
all."""
NEVER_US = 1 << 62


@dataclass(slots=True)
class ReplicaState:
    """Another node as its fetches show it (Kafka's ReplicaState); -1 means not known in this epoch."""

    contact_us: int
    """When the replica last sent a request."""
    end_offset: int = -1
    """The offset of its last fetch."""
    last_fetch_ms: int = -1
    """The wall-clock time of its last fetch."""
    last_caught_up_ms: int = -1
    """The last wall-clock time at which it had the whole log."""
    leader_end_at_fetch: int = -1
    """The end of the leader's log at its last fetch. If the next fetch starts there, the replica had caught up at the
    time of the last one."""


@dataclass(frozen=True, slots=True)
class ParkedFetch:
    """A fetch that is parked until there are records or a new high watermark."""

    partition: FetchPartition
    request: FetchRequest
    respond: Callable[[FetchResponse], None]
    deadline_us: int


class Leader(RoleState):
    """Leads one epoch."""

    role = Role.LEADER

    def __init__(self, context: RoleContext, election: ElectionState, listener: QuorumListener) -> None:
        super().__init__(context, election)
        self._listener = listener
        self.start_offset = -1
        """The offset of the epoch's first record, or -1 before it is written."""
        self.voters = {peer: ReplicaState(self.now_us) for peer in context.others}
        self.parked: dict[int, ParkedFetch] = {}
        """By number, in the order of their arrival."""
        self._next_number = 0
        self._observers: dict[int, ReplicaState] = {}
        self._beginning: dict[int, bool] = {}
        """The voters to which a BeginQuorumEpoch request is in flight."""
        self._is_completing_planned = False
        """A timer is set that completes the parked fetches for which there are new records."""
        self._expires_us = NEVER_US
        """When the timer of the parked fetches fires."""

    def start(self) -> Role | None:
        context, epoch = self.context, self.election.epoch
        try:
            first = context.log.append_leader_change(context.ports.now(), context.node_id, context.voters, epoch)
        except DiskError as failure:
            if context.log.log.is_offline:
                raise
            context.ports.note("metadata_not_written", ("what", "leader change"), ("why", str(failure)))
            return self.resign(f"the record that opens its epoch could not be written: {failure}")
        self.start_offset = first.offset
        context.ports.note("leader_elected", ("epoch", epoch), ("start_offset", first.offset))
        self._listener.leadership_won(epoch, first.offset)
        self.appended()
        if context.others and self.live:
            self.after(context.timing.check_quorum_us, self._check_quorum)
            self._announce(0)
        return None

    def resign(self, why: str) -> Role:
        self.context.ports.note("leader_resigned", ("epoch", self.election.epoch), ("why", why))
        return Role.RESIGNED

    def take_parked(self) -> list[Callable[[FetchResponse], None]]:
        parked = [each.respond for each in self.parked.values()]
        self.parked.clear()
        return parked

    def would_vote(self, candidate_id: int, up_to_date: bool, pre_vote: bool) -> bool:  # noqa: ARG002 - RoleState's
        return False

    # Appending

    def appended(self) -> None:
        """Sync appended records, and complete parked fetches after this event."""
        self.when_synced(self._advance)
        if self.parked and not self._is_completing_planned:
            self._is_completing_planned = True
            self.after(0, self._complete_with_records)

    def _complete_with_records(self) -> None:
        self._is_completing_planned = False
        end_offset = self.context.log.end_offset
        self._complete(lambda parked: parked.partition.fetch_offset < end_offset)

    def _complete(self, due: Callable[[ParkedFetch], bool]) -> None:
        for number, parked in list(self.parked.items()):
            if due(parked):  # Decision parked-metadata-fetch-due
                self._finish(number)

    def _finish(self, number: int) -> None:
        parked = self.parked.pop(number)
        parked.respond(self._read(parked.partition, parked.request))

    # Fetches

    def fetch(self, partition: FetchPartition, request: FetchRequest, respond: Callable[[FetchResponse], None]) -> None:
        """Respond to a fetch of this epoch, or park it."""
        log = self.context.log
        validity = log.validate(partition.fetch_offset, partition.last_fetched_epoch)
        replica = self._replica(request.replica_id)
        if replica is not None:
            replica.contact_us = self.now_us
            if isinstance(validity, Valid) and self._record_fetch(replica, partition.fetch_offset):
                self._advance()
        self._supersede(request.replica_id)
        high_watermark = self.context.high_watermark.offset
        is_current = partition.fetch_offset >= log.end_offset and partition.high_watermark >= high_watermark
        if validity is VALID and is_current and request.max_wait_ms and self.live:  # Decision metadata-fetch-parked
            self._park(partition, request, respond)
        else:
            respond(self._read(partition, request))

    def contacted(self, replica_id: int) -> None:
        """Note that a voter is alive, although it does not fetch the log now."""
        replica = self.voters.get(replica_id)
        if replica is not None:
            replica.contact_us = self.now_us

    def _park(self, partition: FetchPartition, request: FetchRequest, respond: Callable[[FetchResponse], None]) -> None:
        wait_us = min(request.max_wait_ms * 1000, self.context.timing.fetch_timeout_us)  # The fetcher may be gone.
        deadline_us = self.now_us + wait_us
        self._next_number += 1
        self.parked[self._next_number] = ParkedFetch(partition, request, respond, deadline_us)
        self._expire_at(deadline_us)

    def _expire_at(self, deadline_us: int) -> None:
        """Set the timer, unless it fires earlier anyway and then handles this deadline too."""
        if deadline_us < self._expires_us:
            self._expires_us = deadline_us
            self.at(deadline_us, self._expire)

    def _expire(self) -> None:
        now_us = self.now_us
        self._expires_us = NEVER_US
        self._complete(lambda parked: parked.deadline_us <= now_us + TOGETHER_US)
        if self.parked:
            self._expire_at(min(parked.deadline_us for parked in self.parked.values()))

    def _supersede(self, replica_id: int) -> None:
        """Complete an older fetch of the replica. A replica has one fetch at a time, so the older one lost its
        connection."""
        if replica_id != NO_NODE and self.parked:
            self._complete(lambda parked: parked.request.replica_id == replica_id)

    def _read(self, partition: FetchPartition, request: FetchRequest) -> FetchResponse:
        """Return the response from the current log."""
        context, log = self.context, self.context.log
        validity = log.validate(partition.fetch_offset, partition.last_fetched_epoch)
        records = b""
        if validity is VALID and partition.fetch_offset < log.end_offset:
            max_bytes = min(request.max_bytes, partition.partition_max_bytes)
            records = log.read(partition.fetch_offset, max_bytes, log.end_offset)
        # This role may have ended within the event. The response still comes from the leader of this epoch.
        epoch, high_watermark = self.election.epoch, context.high_watermark.offset
        return fetched(ErrorCode.none, context.node_id, epoch, high_watermark, log.start_offset, validity, records)

    def _replica(self, replica_id: int) -> ReplicaState | None:
        """Return None for a consumer, for this node itself, and for an observer beyond MAX_OBSERVERS."""
        if replica_id < 0 or replica_id == self.context.node_id:
            return None
        replica = self.voters.get(replica_id) or self._observers.get(replica_id)
        if replica is None and len(self._observers) < MAX_OBSERVERS:
            replica = self._observers[replica_id] = ReplicaState(self.now_us)
        return replica

    def _record_fetch(self, replica: ReplicaState, offset: int) -> bool:
        """Record a fetch from ``offset``. Returns True if the replica's end moved."""
        now_ms, end_offset = self.context.ports.now().wall_ms, self.context.log.end_offset
        if offset >= end_offset:
            replica.last_caught_up_ms = max(now_ms, replica.last_caught_up_ms)
        elif replica.leader_end_at_fetch >= 0 and offset >= replica.leader_end_at_fetch:
            replica.last_caught_up_ms = max(replica.last_fetch_ms, replica.last_caught_up_ms)
        replica.last_fetch_ms = max(now_ms, replica.last_fetch_ms)
        replica.leader_end_at_fetch = end_offset
        moved = replica.end_offset != offset
        replica.end_offset = offset
        return moved

    # The high watermark

    def _advance(self) -> None:
        context = self.context
        ends = [context.log.synced_offset, *(replica.end_offset for replica in self.voters.values())]
        held_by_majority = sorted(ends, reverse=True)[context.majority - 1]
        if held_by_majority <= self.start_offset or self.start_offset < 0:  # Decision majority-in-own-epoch
            return
        if context.high_watermark.advance(held_by_majority) and self.live:  # Decision quorum-commit-advanced
            high_watermark = context.high_watermark.offset
            self._complete(lambda parked: parked.partition.high_watermark < high_watermark)

    # Contact with the voters

    def _announce(self, silent_us: int) -> None:
        """Send BeginQuorumEpoch to every voter that has been silent for ``silent_us``, and repeat this every half fetch
        timeout."""
        period_us = self.context.timing.fetch_timeout_us // 2
        now_us = self.now_us
        for peer, replica in self.voters.items():
            # Decision begin-epoch-announced
            if peer not in self._beginning and now_us - replica.contact_us >= silent_us:
                self._beginning[peer] = True
                self._send_begin_epoch(peer)
        self.after(period_us, lambda: self._announce(period_us))

    def _send_begin_epoch(self, peer: int) -> None:
        context = self.context

        def over(_response: RaftResponse | None = None) -> None:
            self._beginning.pop(peer, None)

        self.send_request(
            peer,
            ApiKey.BEGIN_QUORUM_EPOCH,
            begin_epoch(context.cluster_id, peer, context.node_id, self.election.epoch),
            read_epoch_response,
            over,
            over,
        )

    def _check_quorum(self) -> Role | None:
        """Resign if a majority is silent. Otherwise a leader that the majority has left would serve reads of old data
        and would never complete a write (KAFKA-15489)."""
        context = self.context
        contacts = sorted((replica.contact_us for replica in self.voters.values()), reverse=True)
        deadline_us = contacts[context.majority - 2] + context.timing.check_quorum_us
        if self.now_us >= deadline_us:  # Decision check-quorum
            return self.resign("a majority of voters was silent")
        self.at(deadline_us, self._check_quorum)
        return None

    def successors(self) -> tuple[int, ...]:
        """Return the other voters, the longest log first."""
        return tuple(sorted(self.voters, key=lambda peer: (-self.voters[peer].end_offset, peer)))

    def describe(self) -> QuorumDescription:
        context, now = self.context, self.context.ports.now()
        for gone in [
            peer
            for peer, observer in self._observers.items()
            if now.mono_us - observer.contact_us > OBSERVER_SESSION_US
        ]:
            del self._observers[gone]
        own = ReplicaDescription(context.node_id, context.log.end_offset, now.wall_ms, now.wall_ms)
        voters = [own, *(_described(peer, voter) for peer, voter in self.voters.items())]
        return QuorumDescription(
            leader_id=context.node_id,
            leader_epoch=self.election.epoch,
            high_watermark=context.high_watermark.offset,
            voters=tuple(sorted(voters, key=lambda each: each.replica_id)),
            observers=tuple(_described(peer, self._observers[peer]) for peer in sorted(self._observers)),
        )


def _described(peer: int, replica: ReplicaState) -> ReplicaDescription:
    return ReplicaDescription(peer, replica.end_offset, replica.last_fetch_ms, replica.last_caught_up_ms)
