"""Mutants of replication: what leaders, followers and the controller know of replicas."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Mutant
from reference_broker.metadata.image import NO_LEADER

Function = Callable[..., Any]


def _high_watermark_at_leaders_end(original: Function) -> Function:  # noqa: ARG001
    def high_watermark(self: Any, leader_end: int, now_us: int, max_lag_ms: int, is_eligible: Any) -> int:  # noqa: ARG001
        return leader_end

    return high_watermark


def _joins_behind_high_watermark(original: Function) -> Function:  # noqa: ARG001
    def may_join(self: Any, state: Any, high_watermark: int) -> bool:  # noqa: ARG001
        return self.proposal is None and state.replica_id not in self.isr

    return may_join


def _progress_outlives_restart(original: Function) -> Function:  # noqa: ARG001
    def forget_restarted(self: Any, followers: Any) -> None:
        for state in followers.states.values():
            if self._brokers.is_stale(state.replica_id, state.broker_epoch):
                state.broker_epoch = self._brokers.epoch_of(state.replica_id)

    return forget_restarted


def _divergence_unseen(original: Function) -> Function:
    def wanted(self: Any, max_bytes: int) -> Any:
        return original(self, max_bytes)._replace(last_fetched_epoch=-1)

    return wanted


def _unclean_restart_stays_in_sync(original: Function) -> Function:  # noqa: ARG001
    def restarting(situation: Any, broker: Any) -> Any:  # noqa: ARG001
        yield from ()
        return []

    return restarting


def _leader_from_outside_the_isr(original: Function) -> Function:
    def elect(partition: Any, isr: Any, acceptable: Any, election: Any) -> Any:
        found = original(partition, partition.replicas, acceptable, election)
        return found if found.leader in (*isr, NO_LEADER) else replace(found, unclean=True)

    return elect


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "high_watermark_at_leaders_end",
        "what the leader has appended is committed",
        "node",
        "reference_broker.replication.leader.replicas:Followers.high_watermark",
        ("self", "leader_end", "now_us", "max_lag_ms", "is_eligible"),
        _high_watermark_at_leaders_end,
        ("F-22",),
    ),
    Mutant(
        "joins_behind_high_watermark",
        "a replica is taken in as soon as it fetches",
        "node",
        "reference_broker.replication.leader.replicas:Followers.may_join",
        ("self", "state", "high_watermark"),
        _joins_behind_high_watermark,
        ("F-22",),
    ),
    Mutant(
        "progress_outlives_restart",
        "what a follower had fetched before it restarted counts as what it has",
        "node",
        "reference_broker.replication.leader.leaders:Leaders._forget_restarted",
        ("self", "followers"),
        _progress_outlives_restart,
        ("F-22",),
    ),
    Mutant(
        "divergence_unseen",
        "a follower does not tell the epoch of its last record, and keeps what its leader lacks",
        "node",
        "reference_broker.replication.follower.followed:Followed.wanted",
        ("self", "max_bytes"),
        _divergence_unseen,
        ("F-13",),
        ("final",),
    ),
    Mutant(
        "unclean_restart_stays_in_sync",
        "who comes back after an unclean stop keeps its place",
        "node",
        "reference_broker.controller.planning.registration:restarting",
        ("situation", "broker"),
        _unclean_restart_stays_in_sync,
    ),
    Mutant(
        "leader_from_outside_the_isr",
        "any replica may be elected",
        "node",
        "reference_broker.controller.planning.partition_changes:elect",
        ("partition", "isr", "acceptable", "election"),
        _leader_from_outside_the_isr,
    ),
)
