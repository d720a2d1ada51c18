"""Mutants of replication that no scenario names: the state of replicas, proposals, and restarts of brokers."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Generator
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.metadata.features import keeps_eligible_leaders
from reference_broker.ports.slicing import ISR_PARTITIONS_PER_SLICE
from reference_broker.replication.leader.isr import RETRY_MS
from reference_broker.wire.errors import ErrorCode

REPLICAS = "reference_broker.replication.leader.replicas"
ISR = "reference_broker.replication.leader.isr"


@mutant("reference_broker.controller.planning.partition_requests:IsrChange._stale_state")
def old_partition_epoch_accepted(original: Function, self: Any, partition: Any, requested: Any) -> Any:
    """The controller takes an AlterPartition of an older partition epoch. One that is repeated after its response was
    lost brings replicas back that have left the ISR since (KIP-497, E-7)."""
    error = original(self, partition, requested)
    return None if error is ErrorCode.invalid_update_version else error


@mutant(f"{REPLICAS}:Replica.count_unnamed_fetches")
def rest_counts_as_lag(original: Function, self: Any, leader_end: int) -> None:
    """The requests that did not name a partition at rest do not count. At the next append its followers count as
    lagging since their last record (F-22)."""


@mutant(f"{REPLICAS}:Followers._split")
def joining_replica_not_waited_for(original: Function, self: Any) -> None:
    """The high watermark does not wait for a replica that is proposed for the ISR. The controller may have accepted it,
    and elect it without those records (KIP-497, E-7)."""
    isr = self.isr
    self.in_sync = [state for state in self.states.values() if state.replica_id in isr]
    self.out_of_sync = [state for state in self.states.values() if state.replica_id not in isr]


@mutant(f"{REPLICAS}:Followers.may_join")
def joins_before_the_epochs_start(original: Function, self: Any, state: Any, high_watermark: int) -> bool:
    """A replica joins the ISR when it has reached the high watermark of a new leader, which may lag behind what was
    acknowledged under the former one (E-7)."""
    start, self.epoch_start_offset = self.epoch_start_offset, -1
    may_join: bool = original(self, state, high_watermark)
    self.epoch_start_offset = start
    return may_join


@mutant(f"{REPLICAS}:Followers.begin_epoch")
def progress_outlives_foreign_epoch(
    original: Function, self: Any, leader_epoch: int, leader_end: int, isr: tuple[int, ...], now_us: int
) -> None:
    """A leader that leads again, after another one led, keeps what it knew of its followers, which may have lost those
    records meanwhile (F-22, E-7)."""
    self.leader_epoch = leader_epoch - 1
    original(self, leader_epoch, leader_end, isr, now_us)


@mutant("reference_broker.controller.planning.brokers:handle_broker_restarted")
def fenced_broker_stays_eligible(
    original: Function, context: Any, broker_id: int, uncleanly: bool
) -> Generator[None, None, Any]:
    """A broker that was fenced before it registers after an unclean shutdown stays an eligible leader (E-4)."""
    known = context.latest.brokers.get(broker_id)
    if keeps_eligible_leaders(context.latest) and known is not None and known.fenced:
        return []
    return (yield from original(context, broker_id, uncleanly))


@mutant(f"{ISR}:LagCheck._round")
def lag_of_partition_once_even_unseen(original: Function, self: Any, shrinks: bool) -> Generator[None, None, None]:
    """A partition whose replicas were all at the leader's end counts as watched after that. A follower that falls
    behind later never leaves the ISR (F-22)."""
    for number, partition in enumerate(list(self.watched), 1):
        followers = partition.followers
        if followers is not None:
            if followers.is_at_rest(partition.log.log_end_offset):
                self.unwatch(partition)
            self._visit(partition, followers, shrinks)
        if number % ISR_PARTITIONS_PER_SLICE == 0:
            yield


@mutant(f"{ISR}:AlterPartitionManager._failed")
def proposals_stop_after_lost_response(original: Function, self: Any) -> None:
    """An AlterPartition without a response counts as in flight from then on, so that this leader proposes no ISR any
    more (KIP-497, F-22)."""
    self._send_soon(RETRY_MS)
