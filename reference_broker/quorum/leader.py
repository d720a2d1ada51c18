"""The leader role (Kafka's LeaderState).

A leader opens its epoch with a leader change record, serves fetches and advances the high watermark. It resigns when a
majority of the voters is silent, or when its disk refuses that first record.

The high watermark is the largest offset that a majority of voters has synced. The leader's own log counts up to its
synced end. The high watermark advances only beyond the epoch's first record. With that record, all earlier ones are
committed.
"""

from collections.abc import Callable
from dataclasses import dataclass

from reference_broker.ports.disk import DiskError
from reference_broker.quorum.messages import (
    RaftResponse,
    build_begin_quorum_epoch_request,
    build_fetch_response,
    read_quorum_epoch_response,
)
from reference_broker.quorum.metadata_log import VALID, Valid
from reference_broker.quorum.roles import ElectionState, EpochState, Role, RoleContext
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
    """The progress of another node, by its fetches (Kafka's LeaderState.ReplicaState). -1 means none in this epoch."""

    last_contact_us: int
    """The monotonic time of its last request."""
    end_offset: int = -1
    """The end of its log: the offset of its last fetch."""
    last_fetch_ms: int = -1
    """The wall-clock time of its last fetch."""
    last_caught_up_ms: int = -1
    """The last wall-clock time at which it had the whole log of the leader."""
    leader_end_at_last_fetch: int = -1
    """The end of the leader's log at that fetch. If the next fetch starts at or beyond it, the replica had caught up at
    ``last_fetch_ms``."""


@dataclass(frozen=True, slots=True)
class ParkedFetch:
    """A fetch that is parked until there are records or a new high watermark."""

    partition: FetchPartition
    """The metadata partition in ``request``."""
    request: FetchRequest
    respond: Callable[[FetchResponse], None]
    deadline_us: int
    """The monotonic time of the response if there is nothing new by then."""


class LeaderState(EpochState):
    """The leader of one epoch, from the decision to lead until it resigns or learns of a newer epoch."""

    role = Role.LEADER

    def __init__(self, context: RoleContext, election: ElectionState, listener: QuorumListener) -> None:
        super().__init__(context, election)
        self._listener = listener
        self.start_offset = -1
        """The offset of the leader change record that opens the epoch, or -1 before it is written."""
        self.voters = {peer: ReplicaState(self.now_us) for peer in context.others}
        """The progress of the other voters."""
        self.parked: dict[int, ParkedFetch] = {}
        """Parked fetches by a running number, in the order of their arrival."""
        self._next_number = 0
        self._observers: dict[int, ReplicaState] = {}
        self._begin_requests: dict[int, bool] = {}
        """The voters to which a BeginQuorumEpoch is in flight."""
        self._is_completion_planned = False
        """Whether parked fetches for which there are records are completed in the next event."""
        self._expires_us = NEVER_US
        """The monotonic time of the timer that expires parked fetches."""

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
            self._send_begin_quorum_epochs(0)
        return None

    def resign(self, why: str) -> Role:
        self.context.ports.note("leader_resigned", ("epoch", self.election.epoch), ("why", why))
        return Role.RESIGNED

    def take_parked_fetches(self) -> list[Callable[[FetchResponse], None]]:
        responders = [fetch.respond for fetch in self.parked.values()]
        self.parked.clear()
        return responders

    def can_grant_vote(self, candidate_id: int, is_log_up_to_date: bool, pre_vote: bool) -> bool:  # noqa: ARG002 - EpochState's
        return False

    # Appending

    def appended(self) -> None:
        """Request a sync of the appended records, and complete the parked fetches in the next event."""
        self.when_synced(self._maybe_update_high_watermark)
        if self.parked and not self._is_completion_planned:
            self._is_completion_planned = True
            self.after(0, self._complete_with_records)

    def _complete_with_records(self) -> None:
        self._is_completion_planned = False
        end_offset = self.context.log.end_offset
        self._complete(lambda parked: parked.partition.fetch_offset < end_offset)

    def _complete(self, due: Callable[[ParkedFetch], bool]) -> None:
        for number, parked in list(self.parked.items()):
            if due(parked):  # Decision parked-metadata-fetch-due
                self._finish(number)

    def _finish(self, number: int) -> None:
        parked = self.parked.pop(number)
        parked.respond(self._build_response(parked.partition, parked.request))

    # Fetches

    def fetch(self, partition: FetchPartition, request: FetchRequest, respond: Callable[[FetchResponse], None]) -> None:
        """Respond to a fetch of this epoch, or park it."""
        log = self.context.log
        validity = log.validate_offset_and_epoch(partition.fetch_offset, partition.last_fetched_epoch)
        replica = self._replica_state(request.replica_id)
        if replica is not None:
            replica.last_contact_us = self.now_us
            if isinstance(validity, Valid) and self._update_replica_state(replica, partition.fetch_offset):
                self._maybe_update_high_watermark()
        self._complete_older_fetch(request.replica_id)
        high_watermark = self.context.high_watermark.offset
        is_current = partition.fetch_offset >= log.end_offset and partition.high_watermark >= high_watermark
        if validity is VALID and is_current and request.max_wait_ms and self.live:  # Decision metadata-fetch-parked
            self._park(partition, request, respond)
        else:
            respond(self._build_response(partition, request))

    def note_contact(self, replica_id: int) -> None:
        """Note that a voter is alive, although it downloads a snapshot instead of fetching the log."""
        replica = self.voters.get(replica_id)
        if replica is not None:
            replica.last_contact_us = self.now_us

    def _park(self, partition: FetchPartition, request: FetchRequest, respond: Callable[[FetchResponse], None]) -> None:
        wait_us = min(request.max_wait_ms * 1000, self.context.timing.fetch_timeout_us)  # The fetcher may be gone.
        deadline_us = self.now_us + wait_us
        self._next_number += 1
        self.parked[self._next_number] = ParkedFetch(partition, request, respond, deadline_us)
        self._expire_at(deadline_us)

    def _expire_at(self, deadline_us: int) -> None:
        """Set the timer, unless it is set for an earlier time. ``_expire`` then sets it for this deadline."""
        if deadline_us < self._expires_us:
            self._expires_us = deadline_us
            self.at(deadline_us, self._expire)

    def _expire(self) -> None:
        now_us = self.now_us
        self._expires_us = NEVER_US
        self._complete(lambda parked: parked.deadline_us <= now_us + TOGETHER_US)
        if self.parked:
            self._expire_at(min(parked.deadline_us for parked in self.parked.values()))

    def _complete_older_fetch(self, replica_id: int) -> None:
        """Complete the replica's parked fetch. A replica has one fetch in flight, so that one lost its connection."""
        if replica_id != NO_NODE and self.parked:
            self._complete(lambda parked: parked.request.replica_id == replica_id)

    def _build_response(self, partition: FetchPartition, request: FetchRequest) -> FetchResponse:
        """Read the log, and build the response: records, the diverging epoch, or the snapshot to download."""
        context, log = self.context, self.context.log
        validity = log.validate_offset_and_epoch(partition.fetch_offset, partition.last_fetched_epoch)
        records = b""
        if validity is VALID and partition.fetch_offset < log.end_offset:
            max_bytes = min(request.max_bytes, partition.partition_max_bytes)
            records = log.read(partition.fetch_offset, max_bytes, log.end_offset)
        # This role may have ended within the event. The response still comes from the leader of this epoch.
        epoch, high_watermark = self.election.epoch, context.high_watermark.offset
        return build_fetch_response(
            ErrorCode.none, context.node_id, epoch, high_watermark, log.start_offset, validity, records
        )

    def _replica_state(self, replica_id: int) -> ReplicaState | None:
        """Return the state of a voter or observer, which is added at its first fetch. Return None for a consumer, for
        this node itself, and for an observer beyond MAX_OBSERVERS."""
        if replica_id < 0 or replica_id == self.context.node_id:
            return None
        replica = self.voters.get(replica_id) or self._observers.get(replica_id)
        if replica is None and len(self._observers) < MAX_OBSERVERS:
            replica = self._observers[replica_id] = ReplicaState(self.now_us)
        return replica

    def _update_replica_state(self, replica: ReplicaState, offset: int) -> bool:
        """Update the replica's progress after a fetch from ``offset``. Return whether its end moved."""
        now_ms, end_offset = self.context.ports.now().wall_ms, self.context.log.end_offset
        if offset >= end_offset:
            replica.last_caught_up_ms = max(now_ms, replica.last_caught_up_ms)
        elif replica.leader_end_at_last_fetch >= 0 and offset >= replica.leader_end_at_last_fetch:
            replica.last_caught_up_ms = max(replica.last_fetch_ms, replica.last_caught_up_ms)
        replica.last_fetch_ms = max(now_ms, replica.last_fetch_ms)
        replica.leader_end_at_last_fetch = end_offset
        moved = replica.end_offset != offset
        replica.end_offset = offset
        return moved

    # The high watermark

    def _maybe_update_high_watermark(self) -> None:
        context = self.context
        ends = [context.log.synced_offset, *(replica.end_offset for replica in self.voters.values())]
        replicated_by_majority = sorted(ends, reverse=True)[context.majority - 1]
        if replicated_by_majority <= self.start_offset or self.start_offset < 0:  # Decision majority-in-own-epoch
            return
        if context.high_watermark.advance(replicated_by_majority) and self.live:  # Decision quorum-commit-advanced
            high_watermark = context.high_watermark.offset
            self._complete(lambda parked: parked.partition.high_watermark < high_watermark)

    # Contact with the voters

    def _send_begin_quorum_epochs(self, silent_us: int) -> None:
        """Send BeginQuorumEpoch to each voter that has sent nothing for ``silent_us``. Repeat this every half fetch
        timeout."""
        period_us = self.context.timing.fetch_timeout_us // 2
        now_us = self.now_us
        for peer, replica in self.voters.items():
            # Decision begin-epoch-announced
            if peer not in self._begin_requests and now_us - replica.last_contact_us >= silent_us:
                self._begin_requests[peer] = True
                self._send_begin_epoch(peer)
        self.after(period_us, lambda: self._send_begin_quorum_epochs(period_us))

    def _send_begin_epoch(self, peer: int) -> None:
        context = self.context

        def done(_response: RaftResponse | None = None) -> None:
            self._begin_requests.pop(peer, None)

        self.send_request(
            peer,
            ApiKey.BEGIN_QUORUM_EPOCH,
            build_begin_quorum_epoch_request(context.cluster_id, peer, context.node_id, self.election.epoch),
            read_quorum_epoch_response,
            done,
            done,
        )

    def _check_quorum(self) -> Role | None:
        """Resign if no majority has sent a request within 1.5 fetch timeouts. Without this check, a leader that is cut
        off would serve old data and would never complete a write (KAFKA-15489)."""
        context = self.context
        contacts = sorted((replica.last_contact_us for replica in self.voters.values()), reverse=True)
        deadline_us = contacts[context.majority - 2] + context.timing.check_quorum_us
        if self.now_us >= deadline_us:  # Decision check-quorum
            return self.resign("a majority of voters was silent")
        self.at(deadline_us, self._check_quorum)
        return None

    def preferred_successors(self) -> tuple[int, ...]:
        """Return the other voters, the one with the longest log first (EndQuorumEpoch's PreferredCandidates)."""
        return tuple(sorted(self.voters, key=lambda peer: (-self.voters[peer].end_offset, peer)))

    def describe(self) -> QuorumDescription:
        context, now = self.context, self.context.ports.now()
        self._observers = {
            peer: observer
            for peer, observer in self._observers.items()
            if now.mono_us - observer.last_contact_us <= OBSERVER_SESSION_US
        }
        own = ReplicaDescription(context.node_id, context.log.end_offset, now.wall_ms, now.wall_ms)
        voters = [own, *(_describe(peer, voter) for peer, voter in self.voters.items())]
        return QuorumDescription(
            leader_id=context.node_id,
            leader_epoch=self.election.epoch,
            high_watermark=context.high_watermark.offset,
            voters=tuple(sorted(voters, key=lambda voter: voter.replica_id)),
            observers=tuple(_describe(peer, self._observers[peer]) for peer in sorted(self._observers)),
        )


def _describe(peer: int, replica: ReplicaState) -> ReplicaDescription:
    return ReplicaDescription(peer, replica.end_offset, replica.last_fetch_ms, replica.last_caught_up_ms)
