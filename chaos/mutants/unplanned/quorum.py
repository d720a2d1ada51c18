"""Mutants of the quorum that no scenario names: votes, what counts towards the high watermark, and waits."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.quorum.values import NO_NODE

LEADER = "reference_broker.quorum.leader:LeaderState"


@mutant(f"{LEADER}._maybe_update_high_watermark")
def observers_counted(original: Function, self: Any) -> None:
    """The fetches of observers count towards the high watermark, so that records are committed that a majority of the
    voters lacks (KIP-595)."""
    voters = self.voters
    self.voters = {**voters, **self._observers}
    try:
        original(self)
    finally:
        self.voters = voters


@mutant(f"{LEADER}._maybe_update_high_watermark")
def leaders_unsynced_records_counted(original: Function, self: Any) -> None:
    """The leader counts its own log up to its end, synced or not. A power loss takes records from it that are committed
    (KIP-595)."""
    context = self.context
    ends = [context.log.end_offset, *(replica.end_offset for replica in self.voters.values())]
    replicated_by_majority = sorted(ends, reverse=True)[context.majority - 1]
    if replicated_by_majority <= self.start_offset or self.start_offset < 0:
        return
    if context.high_watermark.advance(replicated_by_majority) and self.live:
        high_watermark = context.high_watermark.offset
        self._complete(lambda parked: parked.partition.high_watermark < high_watermark)


@mutant("reference_broker.quorum.raft_client:KafkaRaftClient._read_quorum_state")
def vote_forgotten_at_start(original: Function, self: Any) -> Any:
    """A voter that starts again has its epoch, but not its vote in that epoch, so that it may vote twice and two
    leaders win (KIP-595)."""
    return replace(original(self), voted_id=NO_NODE)


@mutant("reference_broker.quorum.raft_handlers:_decide_vote")
def longer_log_gets_the_vote(
    original: Function, quorum: Any, request: Any, is_log_up_to_date: bool, responder: Any
) -> None:
    """A voter compares the ends of two logs by their offsets only. A candidate with more records of an older epoch
    wins, and committed ones are cut (KIP-595)."""
    original(quorum, request, request.end.offset >= quorum.log.end.offset, responder)


@mutant("reference_broker.quorum.follower:FollowerState._fetch_when_synced")
def voter_fetches_before_sync(original: Function, self: Any) -> None:
    """A voter names the end of its log in the next fetch before its records are synced, as an observer may. The leader
    counts records that a power loss takes (KIP-595)."""
    if self._is_fetching:
        return
    self._is_fetching = True
    self.context.log_sync.request(lambda: None)
    self._fetch()


@mutant(f"{LEADER}._check_quorum")
def quorum_checked_once(original: Function, self: Any) -> Any:
    """A leader checks once that a majority of voters is in contact, and never again. Cut off later, it does not resign,
    and its clients wait (KIP-595, KAFKA-15489)."""
    context = self.context
    contacts = sorted((replica.last_contact_us for replica in self.voters.values()), reverse=True)
    deadline_us = contacts[context.majority - 2] + context.timing.check_quorum_us
    return self.resign("a majority of voters was silent") if self.now_us >= deadline_us else None


@mutant("reference_broker.quorum.metadata_log:MetadataLog.truncate_to_diverging")
def cut_at_the_leaders_end_only(original: Function, self: Any, end: Any) -> int:
    """A follower cuts its log where the leader's epoch ends, also if it never had that epoch. Records that diverge
    stay, and it finds the same divergence again and again (KIP-595)."""
    new_end: int = self.truncate_to(end.offset)
    return new_end


@mutant("reference_broker.quorum.unattached:ResignedState.start")
def resigned_never_seeks_votes(original: Function, self: Any) -> None:
    """A leader that has resigned sets no timer to seek votes itself. If it has the longest log, nobody is elected
    (KIP-595)."""
    is_shutting_down, self._is_shutting_down = self._is_shutting_down, True
    original(self)
    self._is_shutting_down = is_shutting_down
