"""Second set: followers' progress, in-sync and eligible replicas, truncation, and the file of high watermarks."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.controller.planning.partition_requests import NO_CHECK
from reference_broker.metadata.broker_settings import min_isr_of
from reference_broker.replication.leader.replicas import Proposal
from reference_broker.wire.errors import ErrorCode

LEADERS = "reference_broker.replication.leader.leaders:Leaders"
REPLICAS = "reference_broker.replication.leader.replicas"
FOLLOWER = "reference_broker.replication.follower"


# --- progress ---------------------------------------------------------------------------------------------------------


@mutant("reference_broker.sessions.fetch_session:CachedPartition.bind")
def offset_of_former_leadership_counts(original: Function, self: Any, partitions: Any) -> Any:
    """A follower's cached offset counts for a leadership that began after it was requested, although the follower may
    have truncated its log since (F-22)."""
    found = original(self, partitions)
    self.is_offset_proven = True
    return found


@mutant(f"{REPLICAS}:Replica.fetched")
def progress_never_goes_back(original: Function, self: Any, cached: Any, leader_end: int) -> None:
    """The leader keeps a follower's largest fetch offset when the follower fetches from a lower one, after it has
    truncated its log, and so commits records that it lacks (E-7, F-22)."""
    before = self.log_end_offset
    original(self, cached, leader_end)
    self.log_end_offset = max(before, self.log_end_offset)


@mutant(f"{LEADERS}.low_watermark")
def dead_follower_holds_up_deletion(original: Function, self: Any, partition: Any) -> int:
    """DeleteRecords waits for the log start of replicas that are fenced, too, and times out while one is down
    (KIP-107)."""
    start: int = partition.log.log_start_offset
    followers = partition.followers
    return start if followers is None else int(followers.low_watermark(start, lambda _: True))


# --- in-sync and eligible replicas ------------------------------------------------------------------------------------


@mutant(f"{REPLICAS}:Followers.withdraw")
def refused_proposal_kept(original: Function, self: Any) -> None:
    """A leader whose AlterPartition was refused keeps the proposed replica in its maximal ISR, and proposes nothing for
    the partition any more (KIP-497, E-1)."""
    self._split()


@mutant(f"{LEADERS}._propose")
def proposal_without_broker_epochs(
    original: Function, self: Any, partition: Any, followers: Any, isr: tuple[int, ...], joining: int | None
) -> None:
    """AlterPartition carries no broker epochs, so that a replica that has restarted uncleanly since it caught up comes
    into the ISR (KIP-903, E-4)."""
    epochs = (NO_CHECK,) * len(isr)
    proposal = Proposal(isr, epochs, followers.leader_epoch, partition.partition_epoch, joining)
    followers.propose(proposal)
    self._lag_check.watch(partition, followers)
    self._proposals.propose(partition, proposal)


@mutant("reference_broker.controller.planning.partition_requests:_bad_isr")
def fenced_broker_joins_isr(original: Function, image: Any, partition: Any, requested: Any) -> ErrorCode | None:
    """The controller accepts an ISR with a broker that is fenced or in controlled shutdown, if its epoch is right
    (KIP-841, E-4)."""
    problem: ErrorCode | None = original(image, partition, requested)
    if problem is not ErrorCode.ineligible_replica:
        return problem
    for broker_id, broker_epoch in requested.isr:
        known = image.brokers.get(broker_id)
        if known is None or broker_epoch not in (NO_CHECK, known.broker_epoch):
            return problem
    return None


@mutant("reference_broker.controller.planning.partition_changes:PartitionChangeBuilder._has_min_isr")
def eligible_replicas_kept_at_min_isr(
    original: Function, self: Any, topic: Any, partition: Any, isr: tuple[int, ...]
) -> bool:
    """Eligible leader replicas are cleared only if the ISR is larger than min.insync.replicas. While it has just that
    size records are committed that they lack (E-1, E-7)."""
    count = len(isr)
    return count >= len(partition.replicas) or count > min_isr_of(self.image, topic.name)


# --- followers --------------------------------------------------------------------------------------------------------


@mutant(f"{FOLLOWER}.partition_data_applier:truncation_offset")
def follower_truncates_to_high_watermark(original: Function, log: Any, leader: Any) -> int:
    """A follower that diverges truncates its log to its high watermark, and not where the leader's epoch ends. It drops
    committed records, or keeps ones that diverge (KIP-101, KIP-279)."""
    high_watermark: int = log.high_watermark
    return high_watermark


@mutant(f"{FOLLOWER}.followed:FollowedPartition.accepts_response")
def response_of_former_epoch_applied(original: Function, self: Any) -> bool:
    """A follower applies the response to a fetch in an older leader epoch of the same leader (F-20, KIP-320)."""
    requested = self.requested
    return requested is not None and self.resumes_us == 0 and requested.fetch_offset == self.log.log_end_offset


@mutant("reference_broker.replication.high_watermarks:HighWatermarkCheckpoints.write")
def checkpoint_of_moved_high_watermarks_only(original: Function, self: Any) -> None:
    """The file replication-offset-checkpoint gets only the high watermarks that moved since it was written last, and
    loses the rows of partitions at rest (KIP-101, X-4)."""
    if self._moved:
        self._rows.clear()
    original(self)
