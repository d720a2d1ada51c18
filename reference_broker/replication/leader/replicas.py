"""A leader's view of the other replicas of one partition: how far each has read, and which count as in sync.

These are pure values and arithmetic; offsets and monotonic microseconds come from the caller. The terms are those of
KIP-497 and KIP-966: the *committed* in-sync replicas are those of the metadata, and the *maximal* ones also include a
replica that is being proposed. The rules are those of Kafka's Partition and Replica.

A follower's progress is what it has requested (F-22), never what was sent to it. A partition that an incremental
request does not name counts as fetched at its cached offset, at the session's contact time. That time is read only
before an append moves the leader's end, and when the lag check looks for replicas that lag.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from reference_broker.wire.errors import ErrorCode

UNKNOWN_OFFSET = -1
UNKNOWN_EPOCH = -2
"""No fetch had a broker epoch yet. A follower whose fetches have none has -1."""

_NEVER_US = -(1 << 62)
"""A time before any other, also on a clock that begins at zero."""


class Contact(Protocol):
    """The session that caches a partition (``sessions.fetch_session.FetchSession``)."""

    contact_us: int


class Cached(Protocol):
    """A partition cached in a follower's session (``sessions.fetch_session.CachedPartition``)."""

    @property
    def session(self) -> Contact: ...

    @property
    def live(self) -> bool: ...

    @property
    def is_fetched_unnamed(self) -> bool: ...

    fetch_offset: int
    log_start_offset: int
    current_leader_epoch: int


def error_without_replica(cached: Cached) -> ErrorCode:
    """Return the error for a node that fetches as a follower and has no replica, as far as this leader knows.

    A node that names the leader epoch may know of a newer assignment than this leader, and retries.
    """
    return ErrorCode.not_leader_or_follower if cached.current_leader_epoch < 0 else ErrorCode.unknown_leader_epoch


@dataclass(slots=True, eq=False)
class Replica:
    """The progress of one follower."""

    replica_id: int
    last_caught_up_us: int
    """The last time at which the follower had all records that the leader had then."""
    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    leader_end_at_fetch: int = UNKNOWN_OFFSET
    """The leader's end at ``last_fetch_us``."""
    last_fetch_us: int = _NEVER_US
    """The time of the latest fetch that named the partition."""
    broker_epoch: int = UNKNOWN_EPOCH
    """The broker epoch in its latest fetch."""
    cached: Cached | None = None
    """The partition in the follower's latest session, None before its first fetch."""
    former: Cached | None = None
    """The partition in the session that it used before, if that was another one."""

    def fetched(self, cached: Cached, leader_end: int) -> None:
        """Note an accepted request at ``cached.session.contact_us`` for records from ``cached.fetch_offset`` on."""
        offset, now_us = cached.fetch_offset, cached.session.contact_us
        if offset >= leader_end:  # Decision follower-caught-up
            self.last_caught_up_us = max(self.last_caught_up_us, now_us)
        elif offset >= self.leader_end_at_fetch:  # Decision follower-behind
            self.last_caught_up_us = max(self.last_caught_up_us, self.last_fetch_us)
        self.log_end_offset = offset
        self.log_start_offset = cached.log_start_offset
        self.leader_end_at_fetch = max(leader_end, self.leader_end_at_fetch)
        self.last_fetch_us = now_us
        if cached is not self.cached:
            self.former, self.cached = self.cached, cached

    def return_to_former_session(self, leader_end: int) -> None:
        """Go back to the session that the follower uses.

        A full fetch of a connection that the follower gave up may come after those of its next session. That session
        goes on and does not name a partition at rest again, so that its progress would be unknown for good.
        """
        former, cached = self.former, self.cached
        # Decision fetch-overtaken
        if (
            former is not None
            and cached is not None
            and former.live
            and former.session.contact_us > cached.session.contact_us
        ):
            self.fetched(former, leader_end)

    def count_unnamed_fetches(self, leader_end: int) -> None:
        """Count the requests that did not name the partition: each fetched it at its cached offset.

        The follower is up to date if that offset is the leader's end.
        """
        cached = self.cached
        # Decision unnamed-partition
        if (
            cached is not None
            and self.log_end_offset == leader_end
            and cached.is_fetched_unnamed
            and cached.fetch_offset == leader_end
        ):
            self.last_caught_up_us = max(self.last_caught_up_us, cached.session.contact_us)

    def has_fetched_lately(self, now_us: int, max_lag_ms: int) -> bool:
        """Whether the follower has fetched lately, naming the partition or not.

        A dead follower may have every record and still must not join.
        """
        cached = self.cached
        contact_us = self.last_fetch_us
        if cached is not None and cached.is_fetched_unnamed and cached.fetch_offset == self.log_end_offset:
            contact_us = cached.session.contact_us
        return now_us - contact_us <= max_lag_ms * 1000

    def is_caught_up(self, leader_end: int, now_us: int, max_lag_ms: int) -> bool:
        return self.log_end_offset == leader_end or now_us - self.last_caught_up_us <= max_lag_ms * 1000

    def begin_epoch(self, leader_end: int, now_us: int, in_sync: bool) -> None:
        """Begin a new epoch of the same leader. Lag counts from now; earlier fetches do not bring the follower back."""
        self.last_caught_up_us = now_us if in_sync else _NEVER_US
        self.leader_end_at_fetch = leader_end
        self.last_fetch_us = now_us if in_sync else _NEVER_US
        self.cached = self.former = None

    def forget(self) -> None:
        """Drop the progress of a follower that restarted, since it may have lost records."""
        self.last_caught_up_us = self.last_fetch_us = _NEVER_US
        self.log_end_offset = self.log_start_offset = self.leader_end_at_fetch = UNKNOWN_OFFSET
        self.broker_epoch = UNKNOWN_EPOCH
        self.cached = self.former = None


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """In-sync replicas that this leader proposes and that are not committed yet. The epochs are those at the time of
    the proposal."""

    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    """One for each of ``isr``. However often the proposal is sent, it means these incarnations and no later ones
    (KIP-903)."""
    leader_epoch: int
    partition_epoch: int
    joining: int | None = None
    """The replica that the proposal adds, or None if it only removes replicas."""


@dataclass(slots=True, eq=False)
class Followers:
    """The followers of one partition with several replicas, as its leader sees them."""

    leader_id: int
    leader_epoch: int
    epoch_start_offset: int
    """The leader's log end when this leader epoch began."""
    leader_end: int
    """The leader's log end at the latest ``appended`` or ``begin_epoch``."""
    isr: tuple[int, ...] = ()
    """The committed set, in the order of the metadata."""
    states: dict[int, Replica] = field(default_factory=dict)
    """All other replicas by broker ID."""
    in_sync: list[Replica] = field(default_factory=list)
    """Followers in the maximal ISR."""
    out_of_sync: list[Replica] = field(default_factory=list)
    """Followers that are not in it."""
    proposal: Proposal | None = None
    """The AlterPartition that is not committed yet, if there is one."""
    is_watched: bool = False
    """Whether the leader's lag check visits the partition."""
    acks: list[tuple[int, int, object]] = field(default_factory=list)
    """A heap of (offset, number, request) for requests that wait for the high watermark."""
    deletions: list[tuple[int, int, object]] = field(default_factory=list)
    """A heap of (offset, number, request) for requests that wait for the low watermark."""

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The committed set plus the replica that a proposal adds: stricter, and therefore safe (KIP-497)."""
        proposal = self.proposal
        return self.isr if proposal is None or proposal.joining is None else proposal.isr

    def assign(self, replicas: tuple[int, ...]) -> None:
        """Set the replicas, leader included, and keep the states of those that stay. ``commit`` must follow.

        A replica that is added has not caught up yet. Otherwise it would hold the high watermark back while it copies
        the log.
        """
        states = {}
        for replica_id in replicas:
            if replica_id != self.leader_id:
                states[replica_id] = self.states.get(replica_id) or Replica(replica_id, _NEVER_US)
        self.states = states

    def commit(self, isr: tuple[int, ...]) -> None:
        """Set the in-sync replicas of the metadata, and drop the proposal, which they settle."""
        self.isr = isr
        self.proposal = None
        self._split()

    def propose(self, proposal: Proposal) -> None:
        self.proposal = proposal
        self._split()

    def withdraw(self) -> None:
        """Drop a proposal that was refused and certainly not applied."""
        self.proposal = None
        self._split()

    def begin_epoch(self, leader_epoch: int, leader_end: int, isr: tuple[int, ...], now_us: int) -> None:
        """Begin a new epoch of this leader.

        If that is not the epoch after its last one, another leader may have led in between, and followers may have
        lost records that they had fetched from this one. Then their progress is unknown.
        """
        is_next, self.leader_epoch = leader_epoch == self.leader_epoch + 1, leader_epoch
        self.epoch_start_offset = self.leader_end = leader_end
        for state in self.states.values():
            if not is_next:  # Decision leader-epoch-gap
                state.log_end_offset = state.log_start_offset = UNKNOWN_OFFSET
            state.begin_epoch(leader_end, now_us, state.replica_id in isr)

    def begin_leadership(self, isr: tuple[int, ...], now_us: int) -> None:
        """Count the in-sync followers as caught up, since a new leader knows no progress. The others do not count, so
        that they do not hold the high watermark back."""
        for state in self.states.values():
            if state.replica_id in isr:
                state.last_caught_up_us = now_us

    def appended(self, leader_end: int) -> None:
        """Note that the leader's log grew, after counting the followers that were up to date until now. Costs one step
        for each follower."""
        before = self.leader_end
        for state in self.states.values():
            if state.log_end_offset == before:
                state.count_unnamed_fetches(before)
        self.leader_end = leader_end

    def high_watermark(
        self, leader_end: int, now_us: int, max_lag_ms: int, is_eligible: Callable[[Replica], bool]
    ) -> int:
        """The smallest log end among the maximal in-sync replicas and the replicas that are caught up and may join."""
        lowest = leader_end
        for state in self.in_sync:
            if state.log_end_offset < lowest:
                lowest = state.log_end_offset
        for state in self.out_of_sync:
            # Decision outsider-holds-watermark
            if (
                state.log_end_offset < lowest
                and state.is_caught_up(leader_end, now_us, max_lag_ms)
                and is_eligible(state)
            ):
                lowest = state.log_end_offset
        return lowest

    def low_watermark(self, leader_start: int, is_alive: Callable[[int], bool]) -> int:
        """The smallest log start among the leader and the live followers."""
        lowest = leader_start
        for state in self.states.values():
            if state.log_start_offset < lowest and is_alive(state.replica_id):
                lowest = state.log_start_offset
        return lowest

    def is_at_rest(self, leader_end: int) -> bool:
        """Whether there is nothing to watch until the next append.

        That is so if all replicas are in sync and at the leader's end and no request waits for a log start.
        """
        if self.out_of_sync or self.proposal is not None or self.deletions:
            return False
        return all(state.log_end_offset == leader_end for state in self.in_sync)

    def lagging(self, now_us: int, max_lag_ms: int) -> tuple[int, ...]:
        """Committed in-sync replicas that have not caught up for longer than ``replica.lag.time.max.ms``."""
        end = self.leader_end
        lagging = []
        for replica_id in self.isr:
            state = self.states.get(replica_id)
            if state is not None and not state.is_caught_up(end, now_us, max_lag_ms):
                lagging.append(replica_id)
        return tuple(lagging)

    def may_join(self, state: Replica, high_watermark: int) -> bool:
        """Whether the follower has all committed records and has reached this epoch's start.

        Everything below that start may be committed already.
        """
        return (
            self.proposal is None
            and state.replica_id not in self.isr
            and state.log_end_offset >= high_watermark
            and state.log_end_offset >= self.epoch_start_offset
        )

    def is_under_min_isr(self, min_insync_replicas: int) -> bool:
        """Count the committed set. The minimum is capped at the number of replicas."""
        isr = len(self.isr)
        return isr < min_insync_replicas and isr <= len(self.states)

    def _split(self) -> None:
        isr = self.maximal_isr
        self.in_sync = [state for state in self.states.values() if state.replica_id in isr]
        self.out_of_sync = [state for state in self.states.values() if state.replica_id not in isr]
