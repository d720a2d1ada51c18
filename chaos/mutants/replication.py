"""Mutants of replication: what leaders, followers and the controller know of replicas."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.apis.records.fetch_partition import Reader
from reference_broker.metadata.image import NO_LEADER


@mutant("reference_broker.replication.leader.replicas:Followers.high_watermark")
def high_watermark_at_leaders_end(
    original: Function, self: Any, leader_end: int, now_us: int, max_lag_ms: int, is_eligible: Any
) -> int:
    """The high watermark is the end of the leader's log (F-22)."""
    return leader_end


@mutant("reference_broker.replication.leader.replicas:Followers.may_join")
def joins_behind_high_watermark(original: Function, self: Any, state: Any, high_watermark: int) -> bool:
    """A replica joins the in-sync replicas as soon as it fetches (F-22)."""
    return self.proposal is None and state.replica_id not in self.isr


@mutant("reference_broker.replication.leader.leaders:Leaders._forget_restarted")
def progress_outlives_restart(original: Function, self: Any, followers: Any) -> None:
    """The leader goes on from the follower's progress before its restart (F-22)."""
    for state in followers.states.values():
        if self._brokers.is_stale(state.replica_id, state.broker_epoch):
            state.broker_epoch = self._brokers.epoch_of(state.replica_id)


@mutant("reference_broker.replication.follower.followed:Followed.wanted", revisions=("final",))
def divergence_unseen(original: Function, self: Any, max_bytes: int) -> Any:
    """A follower does not send the epoch of its last record, so it keeps records that its leader lacks (F-13)."""
    return original(self, max_bytes)._replace(last_fetched_epoch=-1)


@mutant("reference_broker.apis.records.fetch_partition:_readable")
def follower_serves_its_log_end(original: Function, log: Any, cached: Any, reader: Any) -> Any:
    """A follower serves consumers to the end of its log, not to the high watermark that it knows (KIP-392)."""
    follows = cached.partition is not None and cached.partition.leader_elsewhere is not None
    return original(log, cached, Reader.FOLLOWER if follows else reader)


@mutant("reference_broker.apis.records.fetch_partition:preferred_replica")
def prefers_a_replica_out_of_sync(
    original: Function, broker: Any, partition: Any, followers: Any, fetch_offset: int, rack: str
) -> int:
    """A leader sends consumers to any replica in their rack, in sync or not (KIP-392)."""
    brokers = broker.controller.image.brokers
    there: list[int] = [one for one in followers.states if brokers[one].rack == rack]
    return there[0] if there else original(broker, partition, followers, fetch_offset, rack)


@mutant("reference_broker.controller.planning.brokers:restarting")
def unclean_restart_stays_in_sync(original: Function, situation: Any, broker_id: int, uncleanly: bool) -> Any:
    """A broker that comes back after an unclean stop stays among the in-sync replicas."""
    yield from ()
    return []


@mutant("reference_broker.controller.planning.partition_changes:elect")
def leader_from_outside_the_isr(
    original: Function, partition: Any, isr: Any, elr: Any, live: Any, election: Any
) -> Any:
    """Any replica may be elected, also one that is neither in sync nor eligible (E-3)."""
    found = original(partition, partition.replicas, elr, live, election)
    return found if found.leader in (*isr, NO_LEADER) else replace(found, unclean=True)
