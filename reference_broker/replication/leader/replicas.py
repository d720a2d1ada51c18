"""A leader's view of the other replicas of one partition: how far each has read, and who counts as in sync.

Pure values and arithmetic; offsets and monotonic microseconds come from the caller. Words as in KIP-497 and KIP-966:
the *committed* in-sync replicas are those of the metadata, the *maximal* ones add a replica that is being proposed.
The rules are those of Kafka's Partition and Replica.

Progress is what a follower has requested (F-22), never what was sent. A partition that an incremental request does not
name counts as fetched at its cached offset: the session's contact time tells when, and is looked at only before an
append moves the leader's end and when somebody asks who lags.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

UNKNOWN_OFFSET = -1
UNKNOWN_EPOCH = -2
"""No fetch has told a broker epoch yet; -1 is a follower that does not tell it."""

_NEVER_US = -(1 << 62)
"""Before any time, also on a clock that begins at zero."""


class Contact(Protocol):
    """The session that caches a partition (``sessions.fetch_session.FetchSession``)."""

    @property
    def contact_us(self) -> int: ...


class Cached(Protocol):
    """What a follower's session holds of one partition (``sessions.fetch_session.CachedPartition``)."""

    @property
    def session(self) -> Contact: ...

    @property
    def live(self) -> bool: ...

    @property
    def fetch_offset(self) -> int: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def current_leader_epoch(self) -> int: ...


@dataclass(slots=True, eq=False)
class FollowerState:
    """``last_caught_up_us``: when it last held all that the leader held at that time. ``leader_end_at_fetch``: the
    leader's end at its latest named fetch, which was at ``last_fetch_us``."""

    replica_id: int
    last_caught_up_us: int
    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    leader_end_at_fetch: int = UNKNOWN_OFFSET
    last_fetch_us: int = _NEVER_US
    broker_epoch: int = UNKNOWN_EPOCH
    cached: Cached | None = None

    def fetched(self, cached: Cached, leader_end: int) -> None:
        """An accepted request at ``cached.session.contact_us`` asks for ``cached.fetch_offset`` on."""
        offset, now_us = cached.fetch_offset, cached.session.contact_us
        if offset >= leader_end:
            self.last_caught_up_us = max(self.last_caught_up_us, now_us)
        elif offset >= self.leader_end_at_fetch:
            self.last_caught_up_us = max(self.last_caught_up_us, self.last_fetch_us)
        self.log_end_offset = offset
        self.log_start_offset = cached.log_start_offset
        self.leader_end_at_fetch = max(leader_end, self.leader_end_at_fetch)
        self.last_fetch_us = now_us
        self.cached = cached

    def settle(self, leader_end: int) -> None:
        """Requests that did not name the partition fetched it at its cached offset: up to date if that is the end."""
        cached = self.cached
        if (
            cached is not None
            and self.log_end_offset == leader_end
            and cached.live
            and cached.fetch_offset == leader_end
        ):
            self.last_caught_up_us = max(self.last_caught_up_us, cached.session.contact_us)

    def was_here(self, now_us: int, max_lag_ms: int) -> bool:
        """It has fetched the partition lately, named or not: a dead one may hold everything, and must not join."""
        cached = self.cached
        contact_us = self.last_fetch_us
        if cached is not None and cached.live and cached.fetch_offset == self.log_end_offset:
            contact_us = cached.session.contact_us
        return now_us - contact_us <= max_lag_ms * 1000

    def is_caught_up(self, leader_end: int, now_us: int, max_lag_ms: int) -> bool:
        return self.log_end_offset == leader_end or now_us - self.last_caught_up_us <= max_lag_ms * 1000

    def begin_epoch(self, leader_end: int, now_us: int, in_sync: bool) -> None:
        """The same leader in a new epoch: it counts from now, and is not brought back by what it fetched before."""
        self.last_caught_up_us = now_us if in_sync else _NEVER_US
        self.leader_end_at_fetch = leader_end
        self.last_fetch_us = now_us if in_sync else _NEVER_US
        self.cached = None

    def forget(self) -> None:
        """It has a new life: what it had told, and when, was of another one, which may have had more than it has."""
        self.last_caught_up_us = self.last_fetch_us = _NEVER_US
        self.log_end_offset = self.log_start_offset = self.leader_end_at_fetch = UNKNOWN_OFFSET
        self.broker_epoch = UNKNOWN_EPOCH
        self.cached = None


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """In-sync replicas asked for, not committed yet. ``joining``: the replica that it adds; None: it only takes away.
    Epochs as of the time when it was made: however often it is asked for, it means the incarnations of
    ``broker_epochs`` (one for each of ``isr``), and none that came later (KIP-903)."""

    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int
    joining: int | None = None


@dataclass(slots=True, eq=False)
class Followers:
    """Of one partition with several replicas, on its leader.

    ``isr``: committed, in the order of the metadata. ``states``: all other replicas, by broker ID. ``in_sync`` and
    ``outside`` split them by the maximal in-sync set. ``leader_end``: the leader's log end when last told.
    ``acks`` and ``deletions``: heaps of (offset, number, waiting) of requests to be answered at that high or low
    watermark. ``is_watched``: its leader's lag check visits it.
    """

    leader_id: int
    leader_epoch: int
    epoch_start_offset: int
    leader_end: int
    isr: tuple[int, ...] = ()
    states: dict[int, FollowerState] = field(default_factory=dict)
    in_sync: list[FollowerState] = field(default_factory=list)
    outside: list[FollowerState] = field(default_factory=list)
    proposal: Proposal | None = None
    is_watched: bool = False
    acks: list[tuple[int, int, object]] = field(default_factory=list)
    deletions: list[tuple[int, int, object]] = field(default_factory=list)

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """With the replica that a proposal adds: stricter than the committed set, and so safe (KIP-497)."""
        proposal = self.proposal
        return self.isr if proposal is None or proposal.joining is None else proposal.isr

    def assign(self, replicas: tuple[int, ...], now_us: int) -> None:
        """Who has a replica, the leader included; states of those who stay are kept. ``commit`` must follow."""
        states = {}
        for replica_id in replicas:
            if replica_id != self.leader_id:
                states[replica_id] = self.states.get(replica_id) or FollowerState(replica_id, now_us)
        self.states = states

    def commit(self, isr: tuple[int, ...]) -> None:
        """The metadata has these in-sync replicas; what was proposed is settled by it."""
        self.isr = isr
        self.proposal = None
        self._split()

    def propose(self, proposal: Proposal) -> None:
        self.proposal = proposal
        self._split()

    def withdraw(self) -> None:
        """The proposal was refused and certainly not applied."""
        self.proposal = None
        self._split()

    def begin_epoch(self, leader_epoch: int, leader_end: int, isr: tuple[int, ...], now_us: int) -> None:
        """This leader goes on in a new epoch. If it is not the next one another may have led between, and followers
        may have lost what they had of this one: nothing of them is known."""
        is_next, self.leader_epoch = leader_epoch == self.leader_epoch + 1, leader_epoch
        self.epoch_start_offset = self.leader_end = leader_end
        for state in self.states.values():
            if not is_next:
                state.log_end_offset = state.log_start_offset = UNKNOWN_OFFSET
            state.begin_epoch(leader_end, now_us, state.replica_id in isr)

    def begin_leadership(self, isr: tuple[int, ...]) -> None:
        """A new leader knows nothing of the others: those out of sync shall not hold the high watermark back."""
        for state in self.states.values():
            if state.replica_id not in isr:
                state.last_caught_up_us = _NEVER_US

    def appended(self, leader_end: int) -> None:
        """The leader's log grew: settles first who was up to date until now. Costs the number of followers."""
        before = self.leader_end
        for state in self.in_sync:
            if state.log_end_offset == before:
                state.settle(before)
        for state in self.outside:
            if state.log_end_offset == before:
                state.settle(before)
        self.leader_end = leader_end

    def high_watermark(
        self, leader_end: int, now_us: int, max_lag_ms: int, is_eligible: Callable[[FollowerState], bool]
    ) -> int:
        """The smallest end among the maximal in-sync replicas and those that are caught up and may join."""
        lowest = leader_end
        for state in self.in_sync:
            if state.log_end_offset < lowest:
                lowest = state.log_end_offset
        for state in self.outside:
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

    def is_even(self, leader_end: int) -> bool:
        """Everybody is in sync, and at the leader's end, and nobody waits for a log start: nothing to watch until the
        next append."""
        if self.outside or self.proposal is not None or self.deletions:
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

    def may_join(self, state: FollowerState, high_watermark: int) -> bool:
        """It holds everything committed, and reached this epoch's start, beyond which all may be committed already."""
        return (
            self.proposal is None
            and state.replica_id not in self.isr
            and state.log_end_offset >= high_watermark
            and state.log_end_offset >= self.epoch_start_offset
        )

    def is_under_min_isr(self, min_insync_replicas: int) -> bool:
        """By the committed set. More than there are replicas cannot be asked for."""
        isr = len(self.isr)
        return isr < min_insync_replicas and isr <= len(self.states)

    def _split(self) -> None:
        isr = self.maximal_isr
        self.in_sync = [state for state in self.states.values() if state.replica_id in isr]
        self.outside = [state for state in self.states.values() if state.replica_id not in isr]
