"""Mutants that accept requests of no node of this cluster."""

from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.quorum.values import MAX_EPOCH

REQUESTS = "reference_broker.quorum.raft_handlers"


@mutant(f"{REQUESTS}:_top_level_error")
def cluster_id_unchecked(original: Function, quorum: Any, cluster_id: str | None, is_metadata: bool) -> Any:
    """A node accepts a request of the quorum that names another cluster, or none."""
    del cluster_id
    return original(quorum, quorum.cluster_id, is_metadata)


@mutant(f"{REQUESTS}:_validate_voter_only_request")
def voter_unchecked(original: Function, quorum: Any, remote_id: int, epoch: int, voter_id: int) -> Any:
    """Any node may request votes and announce itself as the leader."""
    known = (
        remote_id if remote_id in quorum.voters else next(voter for voter in quorum.voters if voter != quorum.node_id)
    )
    return original(quorum, known, epoch, voter_id)


@mutant("reference_broker.controller.broker_heartbeats:BrokerHeartbeatManager.heartbeat")
def broker_epoch_unchecked(original: Function, self: Any, heartbeat: Any) -> Any:
    """The controller accepts a heartbeat with any broker epoch, such as that of an earlier start of the broker."""
    broker = self.controller.latest.brokers.get(heartbeat.broker_id) if self.controller.is_active else None
    return original(self, heartbeat if broker is None else replace(heartbeat, broker_epoch=broker.broker_epoch))


@mutant("reference_broker.controller.planning.brokers:IncarnationReplacement._is_duplicate")
def old_registration_believed(original: Function, self: Any, broker: Any) -> bool:
    """A registration takes the ID of a live broker, as a replayed old one would."""
    del original, self, broker
    return False


@mutant(
    "reference_broker.apis.transactions.k24_add_partitions_to_txn:is_internal",
    one_use="what clients may write is another mechanism",
)
def internal_topics_added(original: Function, name: str) -> bool:
    """A client may add any topic to its transaction."""
    del original, name
    return False


@mutant(f"{REQUESTS}:_validate_voter_only_request")
def epoch_bound_unchecked(original: Function, quorum: Any, remote_id: int, epoch: int, voter_id: int) -> Any:
    """A voter accepts any epoch. After the highest ones no election is possible."""
    return original(
        quorum, remote_id, max(quorum.epoch, min(epoch, MAX_EPOCH)) if epoch > MAX_EPOCH else epoch, voter_id
    )


@mutant("reference_broker.controller.broker_heartbeats:BrokerHeartbeatManager.touch", remembers=True)
def broker_sessions_by_wall_clock(original: Function, ahead_us: dict[str, int], self: Any, broker_id: int) -> None:
    """The sessions of brokers expire by the wall clock. ``ahead_us`` is its initial difference from the other clock."""
    original(self, broker_id)
    now = self.node.ports.now()
    ahead = now.wall_ms * 1000 - now.mono_us
    self.deadlines_us[broker_id] -= ahead_us.setdefault("", ahead) - ahead
