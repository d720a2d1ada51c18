"""All checks of a simulated run. Every run gets all of them, whatever its scenario lists."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chaos.checks.all_assigned import AllAssigned
from chaos.checks.bootstrapped import Bootstrapped
from chaos.checks.check import Check
from chaos.checks.commit_regression import CommitRegression
from chaos.checks.commits_accepted import CommitsAccepted
from chaos.checks.commits_fenced import CommitsFenced
from chaos.checks.duplicate import Duplicate
from chaos.checks.epoch_gated_by_transaction import EpochGatedByTransaction
from chaos.checks.eviction_rules import EvictionRules
from chaos.checks.fetch_gap import FetchGap
from chaos.checks.full_answer_exact import FullAnswerExact
from chaos.checks.group_skip import GroupSkip
from chaos.checks.groups_consistent import GroupsConsistent
from chaos.checks.high_watermark_monotonic import HighWatermarkMonotonic
from chaos.checks.inconsistent_offsets import InconsistentOffsets
from chaos.checks.int_nonmonotonic_poll import IntNonmonotonicPoll
from chaos.checks.int_poll_skip import IntPollSkip
from chaos.checks.isr_honest import IsrHonest
from chaos.checks.leader_completeness import LeaderCompleteness
from chaos.checks.leader_never_loads_snapshot import LeaderNeverLoadsSnapshot
from chaos.checks.log_consistent import LogConsistent
from chaos.checks.log_matching import LogMatching
from chaos.checks.lost_metadata import LostMetadata
from chaos.checks.lost_write import LostWrite
from chaos.checks.majority_high_watermark import MajorityHighWatermark
from chaos.checks.markers_gated import MarkersGated
from chaos.checks.metrics_exact import MetricsExact
from chaos.checks.mirror_complete import MirrorComplete
from chaos.checks.monotonic_epoch import MonotonicEpoch
from chaos.checks.monotonic_high_watermark import MonotonicHighWatermark
from chaos.checks.no_acked_lost import NoAckedLost
from chaos.checks.no_committed_lost import NoCommittedLost
from chaos.checks.no_false_fencing import NoFalseFencing
from chaos.checks.no_fetch_before_epoch import NoFetchBeforeEpoch
from chaos.checks.no_starvation import NoStarvation
from chaos.checks.nonmonotonic_metadata_epoch import NonmonotonicMetadataEpoch
from chaos.checks.nonmonotonic_poll import NonmonotonicPoll
from chaos.checks.nonmonotonic_send import NonmonotonicSend
from chaos.checks.one_abort_per_begin import OneAbortPerBegin
from chaos.checks.one_content_per_epoch import OneContentPerEpoch
from chaos.checks.one_group_leader import OneGroupLeader
from chaos.checks.one_leader_per_epoch import OneLeaderPerEpoch
from chaos.checks.one_partition_leader_per_epoch import OnePartitionLeaderPerEpoch
from chaos.checks.poll_skip import PollSkip
from chaos.checks.quorum_converges import QuorumConverges
from chaos.checks.quorum_view import QuorumView
from chaos.checks.redelivery import Redelivery
from chaos.checks.replica_view import ReplicaView
from chaos.checks.replicas_converge import ReplicasConverge
from chaos.checks.replicas_equal import ReplicasEqual
from chaos.checks.rewinds import Rewinds
from chaos.checks.sequence_order import SequenceOrder
from chaos.checks.session_lost import SessionLost
from chaos.checks.session_order import SessionOrder
from chaos.checks.snapshot_at_log_start import SnapshotAtLogStart
from chaos.checks.snapshot_equals_replay import SnapshotEqualsReplay
from chaos.checks.snapshot_transfer import SnapshotTransfer
from chaos.checks.stable_isr import StableIsr
from chaos.checks.stable_leadership import StableLeadership
from chaos.checks.stale_leader_epoch_fenced import StaleLeaderEpochFenced
from chaos.checks.switch_respected import SwitchRespected
from chaos.checks.torn_metadata import TornMetadata
from chaos.checks.unrequested_partition import UnrequestedPartition
from chaos.checks.unseen import Unseen
from chaos.checks.values import Place


@dataclass(frozen=True, slots=True)
class Settings:
    """What the checks must know of the cluster. ``settled_us``: a voter that has heard of its leader for so long does
    not seek another; ``session_us``: a broker that is well is not fenced after so long; ``in_sync_us``: a follower that
    is well is in sync after so long; ``min_eviction_ms``: of the first revision's sessions."""

    session_slots: int
    first_session_epoch: int = 1
    settled_us: int = 6_000_000
    session_us: int = 12_000_000
    in_sync_us: int = 45_000_000
    min_eviction_ms: int = 120_000
    subscribed: Mapping[str, Sequence[Place]] = field(default_factory=dict)
    """by group: the partitions that its members share"""


def all_checks(settings: Settings, view: QuorumView, replicas: ReplicaView) -> tuple[Check, ...]:
    """Fresh checks for one run."""
    return (
        SessionOrder(settings.first_session_epoch),
        SequenceOrder(settings.first_session_epoch),
        SessionLost(),
        EvictionRules(settings.session_slots, settings.min_eviction_ms),
        MetricsExact(),
        LogConsistent(),
        InconsistentOffsets(),
        Duplicate(),
        LostWrite(),
        Unseen(),
        PollSkip(),
        NonmonotonicPoll(),
        IntPollSkip(),
        IntNonmonotonicPoll(),
        NonmonotonicSend(),
        UnrequestedPartition(),
        FetchGap(),
        TornMetadata(),
        LostMetadata(),
        *quorum_checks(settings, view),
        NoStarvation(),
        StaleLeaderEpochFenced(),
        FullAnswerExact(),
        *replica_checks(settings, replicas),
        *group_checks(settings, view, replicas),
    )


def group_checks(settings: Settings, view: QuorumView, replicas: ReplicaView) -> tuple[Check, ...]:
    """Those of consumer groups, their committed offsets, and the metadata epoch."""
    return (
        NonmonotonicMetadataEpoch(),
        CommitRegression(),
        Rewinds(),
        Redelivery(),
        GroupSkip(),
        OneContentPerEpoch(),
        NoCommittedLost(replicas),
        OneGroupLeader(replicas),
        AllAssigned(settings.subscribed),
        NoFetchBeforeEpoch(),
        CommitsAccepted(),
        CommitsFenced(),
        GroupsConsistent(),
        EpochGatedByTransaction(view),
        SwitchRespected(),
        MirrorComplete(),
    )


def replica_checks(settings: Settings, view: ReplicaView) -> tuple[Check, ...]:
    """Those of partitions with several replicas."""
    return (
        NoAckedLost(view),
        ReplicasEqual(view),
        HighWatermarkMonotonic(view),
        OnePartitionLeaderPerEpoch(view),
        IsrHonest(view),
        StableIsr(view, settings.in_sync_us),
        ReplicasConverge(view),
    )


def quorum_checks(settings: Settings, view: QuorumView) -> tuple[Check, ...]:
    """Those of the controllers' quorum and of the metadata log."""
    return (
        OneLeaderPerEpoch(view),
        MonotonicEpoch(view),
        LogMatching(view),
        LeaderCompleteness(view),
        MonotonicHighWatermark(view),
        MajorityHighWatermark(view),
        StableLeadership(view, settings.settled_us),
        SnapshotAtLogStart(view),
        LeaderNeverLoadsSnapshot(view),
        SnapshotEqualsReplay(view),
        OneAbortPerBegin(view),
        QuorumConverges(view),
        NoFalseFencing(view, settings.session_us),
        MarkersGated(view),
        SnapshotTransfer(),
        Bootstrapped(view),
    )
