"""Mutants of replication: acknowledgements, the state of replicas, and elections (KIP-966)."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.controller.planning.config_changes import MIN_ISR_OF_BROKER, MIN_ISR_STAYS
from reference_broker.log.reading import FetchIsolation
from reference_broker.metadata.broker_settings import CLUSTER, MIN_ISR_KEY
from reference_broker.metadata.image import NO_LEADER
from reference_broker.metadata.records import ClearElrRecord, ConfigRecord


@mutant("reference_broker.replication.leader.leaders:Leaders.acknowledge")
def acknowledged_before_replicated(
    original: Function, self: Any, offsets: Any, timeout_ms: int, completed: Any
) -> None:
    """A leader acknowledges acks=all as soon as its own log has the records (F-22)."""
    completed({})


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
    """The leader keeps the follower's progress from before its restart (F-22)."""
    for state in followers.states.values():
        if self._brokers.is_stale(state.replica_id, state.broker_epoch):
            state.broker_epoch = self._brokers.epoch_of(state.replica_id)


@mutant("reference_broker.replication.follower.followed:FollowedPartition.wanted", revisions=("final",))
def divergence_unseen(original: Function, self: Any, max_bytes: int) -> Any:
    """A follower does not send the epoch of its last record, so it keeps records that its leader lacks (F-13)."""
    return original(self, max_bytes)._replace(last_fetched_epoch=-1)


@mutant("reference_broker.apis.records.fetch_partition:_readable")
def follower_serves_its_log_end(original: Function, log: Any, cached: Any, isolation: Any) -> Any:
    """A follower serves consumers up to its log end offset, not up to the high watermark that it knows (KIP-392)."""
    follows = cached.partition is not None and cached.partition.followed_leader is not None
    return original(log, cached, FetchIsolation.LOG_END if follows else isolation)


@mutant("reference_broker.apis.records.fetch_partition:preferred_replica")
def prefers_a_replica_out_of_sync(
    original: Function, broker: Any, partition: Any, followers: Any, fetch_offset: int, rack: str
) -> int:
    """A leader sends consumers to any replica in their rack, in sync or not (KIP-392)."""
    brokers = broker.controller.image.brokers
    there: list[int] = [one for one in followers.states if brokers[one].rack == rack]
    return there[0] if there else original(broker, partition, followers, fetch_offset, rack)


@mutant("reference_broker.controller.planning.brokers:handle_broker_restarted")
def unclean_restart_stays_in_sync(original: Function, context: Any, broker_id: int, uncleanly: bool) -> Any:
    """A broker that restarts after an unclean stop stays in the ISR."""
    yield from ()
    return []


@mutant("reference_broker.controller.planning.partition_changes:elect")
def leader_from_outside_the_isr(
    original: Function, partition: Any, isr: Any, elr: Any, live: Any, election: Any
) -> Any:
    """Any replica may be elected, also one that is neither in sync nor eligible (E-3)."""
    found = original(partition, partition.replicas, elr, live, election)
    return found if found.leader in (*isr, NO_LEADER) else replace(found, unclean=True)


CONFIG_CHANGES = "reference_broker.controller.planning.config_changes"


@mutant("reference_broker.controller.planning.partition_changes:PartitionChangeBuilder._eligible_leader_replicas")
def elr_not_kept(original: Function, self: Any, topic: Any, partition: Any, isr: Any, unclean: int) -> Any:
    """A replica that leaves the ISR is never eligible. The last one leads, whatever it lost (E-1, E-7)."""
    return ()


@mutant("reference_broker.controller.planning.brokers:Registration.is_after_clean_shutdown")
def unclean_restart_keeps_elr(original: Function, self: Any, broker: Any) -> bool:
    """Each shutdown counts as clean, so a broker that lost records stays an eligible leader (E-4)."""
    return broker is not None


@mutant("reference_broker.replication.leader.leaders:Leaders._may_advance")
def high_watermark_below_min_isr(original: Function, partition: Any, followers: Any) -> bool:
    """The high watermark advances with fewer in-sync replicas than the minimum, beyond eligible leaders (E-2)."""
    return True


@mutant("reference_broker.replication.leader.isr:AlterPartitionManager._settled")
def isr_of_response_applied_at_once(
    original: Function, self: Any, partition: Any, proposal: Any, response: Any
) -> bool:
    """A leader applies the ISR of an AlterPartition response at once, with the min.insync.replicas of its own, older
    metadata (E-2)."""
    is_held = self._pending.get(partition) is proposal and partition.followers.proposal is proposal
    settled: bool = original(self, partition, proposal, response)
    if is_held and settled and not response.error_code:
        partition.partition_epoch = int(response.partition_epoch)
        leaders = self._refused.__self__
        leaders._commit(partition, partition.followers, tuple(int(one) for one in response.isr))
    return settled


@mutant("reference_broker.replication.broker_metadata_publisher:BrokerMetadataPublisher._update")
def isr_published_before_min_isr(
    original: Function, self: Any, change: Any, topic: Any, image: Any, is_reconfigured: bool
) -> Any:
    """A leader applies the ISR of an image before the min.insync.replicas of the same image (E-2)."""
    return original(self, change, topic, image, False)


@mutant("reference_broker.controller.planning.partition_changes:has_directory")
def leads_without_directory(original: Function, partition: Any, replica: int, directories: Any) -> bool:
    """A broker leads a replica although its directory was replaced (E-6)."""
    return True


@mutant("reference_broker.controller.planning.partition_changes:elect")
def last_known_leader_never_elected(
    original: Function, partition: Any, isr: Any, elr: Any, live: Any, election: Any
) -> Any:
    """A partition whose last in-sync replica restarts after an unclean shutdown stays without a leader (E-5)."""
    found = original(partition, isr, elr, live, election)
    return replace(found, leader=-1, unclean=False) if found.unclean and not isr and not elr else found


@mutant(f"{CONFIG_CHANGES}:_records")
def eligible_outlive_min_isr(original: Function, context: Any, requested: Any) -> Any:
    """A new min.insync.replicas does not clear eligible leader replicas (E-8)."""
    found = original(context, requested)
    return [each for each in found if not isinstance(each, ClearElrRecord)] if isinstance(found, list) else found


@mutant(f"{CONFIG_CHANGES}:_records")
def broker_sets_its_own_min_isr(original: Function, context: Any, requested: Any) -> Any:
    """A broker's own min.insync.replicas can be altered while eligible leader replicas are kept (E-8)."""
    found = original(context, requested)
    kind, name = requested.resource
    own = ConfigRecord(resource_type=kind, resource_name=name, name=MIN_ISR_KEY, value=requested.steps[0][2])
    return [own] if found is MIN_ISR_OF_BROKER else found


@mutant(f"{CONFIG_CHANGES}:_records")
def clusters_min_isr_removed(original: Function, context: Any, requested: Any) -> Any:
    """The cluster's min.insync.replicas can be removed while eligible leader replicas are kept (E-8)."""
    found = original(context, requested)
    gone = ConfigRecord(resource_type=CLUSTER[0], resource_name=CLUSTER[1], name=MIN_ISR_KEY, value=None)
    return [gone] if found is MIN_ISR_STAYS else found


@mutant("reference_broker.replication.leader.purgatory:DelayedOperationPurgatory.wait")
def acknowledgement_waits_beyond_its_timeout(
    original: Function, self: Any, offsets: Any, timeout_ms: int, completed: Any
) -> Any:
    """A produce with acks=all waits for its replicas for a minute longer than its request allows."""
    return original(self, offsets, timeout_ms + 60_000, completed)


@mutant("reference_broker.controller.broker_heartbeats:BrokerHeartbeatManager.touch")
def broker_sessions_five_times_as_long(original: Function, self: Any, broker_id: int) -> None:
    """The session of a broker that sends no heartbeats any more lasts five times as long as the settings allow."""
    original(self, broker_id)
    self.deadlines_us[broker_id] += 4 * self.config.broker_session_timeout_ms * 1000


@mutant("reference_broker.replication.leader.purgatory:DelayedOperationPurgatory.fail")
def former_leader_keeps_requests_parked(original: Function, self: Any, partition: Any, heap: Any, error: Any) -> None:
    """A node that leads a partition no more leaves acks=all and DeleteRecords parked until they time out."""


@mutant("reference_broker.replication.leader.isr:LagCheck._round")
def slow_followers_stay(original: Function, self: Any, shrinks: bool) -> Generator[None, None, None]:
    """A leader never proposes to remove a follower that is behind (F-22)."""
    yield from original(self, False)
