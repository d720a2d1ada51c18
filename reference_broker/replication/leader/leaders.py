"""The leader's side of replication: high watermarks, in-sync replicas, and requests that wait for them.

The rules are those of Kafka's Partition and ReplicaManager. A partition with a single replica has no ``Followers``, and
pays nothing for them: ``syncing.advance_only_replica`` is all that moves its high watermark.

An append or a fetch costs the number of followers. The lag check visits only partitions in which some replica is
behind. A partition at rest is not visited at all.
"""

from dataclasses import dataclass
from functools import partial

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.metadata_quorum_node import MetadataQuorumNode
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.image import MetadataImage, PartitionImage
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.node_ports import Ports
from reference_broker.replication.high_watermarks import HighWatermarkCheckpoints
from reference_broker.replication.leader.isr import AlterPartitionManager, LagCheck
from reference_broker.replication.leader.purgatory import (
    Abandon,
    Completed,
    DelayedOperationPurgatory,
    FollowerWaits,
    Offsets,
    acks_of,
    deletions_of,
)
from reference_broker.replication.leader.replica_metrics import ReplicaMetrics
from reference_broker.replication.leader.replicas import (
    UNKNOWN_EPOCH,
    Cached,
    Followers,
    Proposal,
    Replica,
    error_without_replica,
)
from reference_broker.replication.partitions import Partition
from reference_broker.replication.syncing import (
    advance_only_replica,
    leader_end,
    must_sync,
    nobody_waits,
    sync_led_then,
)
from reference_broker.wire.errors import Error, ErrorCode


@dataclass(slots=True)
class BrokerStates:
    """Whether brokers are alive and may join an ISR, and which replicas are here, by the metadata image."""

    _node_id: int
    _quorum_node: MetadataQuorumNode

    def is_eligible(self, state: Replica) -> bool:
        """Return whether a follower may join the ISR: it is not fenced, not leaving, and of the incarnation in the
        metadata (KIP-903)."""
        broker = self._quorum_node.controller.image.brokers.get(state.replica_id)
        if broker is None or broker.fenced or broker.in_controlled_shutdown:
            return False
        return state.broker_epoch == broker.broker_epoch

    def is_stale(self, replica_id: int, replica_epoch: int) -> bool:
        """Whether a later incarnation is known. False for an epoch below 0, which identifies no incarnation."""
        return 0 <= replica_epoch < self.epoch_of(replica_id)

    def epoch_of(self, replica_id: int) -> int:
        """The epoch of the incarnation in the metadata, or UNKNOWN_EPOCH if none is registered.

        This node knows its own epoch before the metadata has it.
        """
        if replica_id == self._node_id:
            return self._quorum_node.lifecycle.registered_epoch
        broker = self._quorum_node.controller.image.brokers.get(replica_id)
        return UNKNOWN_EPOCH if broker is None else broker.broker_epoch

    def is_alive(self, replica_id: int) -> bool:
        broker = self._quorum_node.controller.image.brokers.get(replica_id)
        return broker is not None and not broker.fenced

    def has_replica_here(self, topic: str, index: int) -> bool:
        image = self._quorum_node.controller.image.topics.get(topic)
        if image is None or index >= len(image.partitions):
            return False
        return self._node_id in image.partitions[index].replicas


class Leaders:
    """The partitions that this node leads. ``high_watermarks`` is their checkpoint file, which followers share."""

    def __init__(
        self,
        ports: Ports,
        node_id: int,
        config: BrokerConfig,
        quorum_node: MetadataQuorumNode,
        high_watermarks: HighWatermarkCheckpoints,
        metrics: Metrics,
    ) -> None:
        self.high_watermarks = high_watermarks
        self._ports = ports
        self._node_id = node_id
        self._max_lag_ms = config.replica_lag_time_max_ms
        self._prefers_followers = bool(config.replica_selector_class)
        self._brokers = BrokerStates(node_id, quorum_node)
        self._acks = DelayedOperationPurgatory(ports, acks_of)
        self._deletions = DelayedOperationPurgatory(ports, deletions_of)
        self._metrics = ReplicaMetrics(metrics)
        self._proposals = AlterPartitionManager(
            ports, node_id, quorum_node, self._isr_refused, self._metrics.failed_isr_updates
        )
        self._lag_check = LagCheck(ports, self._max_lag_ms, self._check_lag)
        self._to_notify: list[Partition] = []
        """Partitions whose watchers ``notify_watchers`` will call."""
        self.waits = FollowerWaits(ports)

    def start(self) -> None:
        """Start the lag check. Called once, when the node is registered and its partitions are open."""
        self.high_watermarks.keep_only(self._brokers.has_replica_here)
        self._lag_check.start()

    # --- roles ------------------------------------------------------------------------------------------------------

    def leads(self, partition: Partition, state: PartitionImage) -> None:
        """Lead ``partition`` as ``state`` says. The call is repeated with each newer state.

        The log's min.insync.replicas is that of the same image, so that the high watermark moves by an ISR and a
        minimum of one metadata offset (E-2).
        """
        if len(state.replicas) == 1 and partition.followers is None:
            partition.partition_epoch = state.partition_epoch
            self._metrics.count(partition)
            log = partition.log
            self.high_watermarks.leads_only_replica(log)
            if advance_only_replica(log):
                partition.changed()
            if must_sync(log):
                sync_led_then(self._ports, [partition], nobody_waits)
            return
        followers = partition.followers
        new_epoch = followers is None or followers.leader_epoch != state.leader_epoch
        followers = self._begin_leader_epoch(partition, state) if new_epoch else followers
        assert followers is not None, "a new leader epoch makes it"
        if new_epoch or state.partition_epoch > partition.partition_epoch:  # Decision partition-state
            partition.partition_epoch = state.partition_epoch
            followers.assign(state.replicas)
            self._forget_restarted(followers)
            self._commit(partition, followers, state.isr)
        if new_epoch and must_sync(partition.log):
            sync_led_then(self._ports, [partition], nobody_waits)

    def stops_leading(self, partition: Partition) -> None:
        """Fail all requests that wait for the partition, which this node no longer leads."""
        followers, partition.followers = partition.followers, None
        self._metrics.discount(partition)
        self._lag_check.unwatch(partition)
        if partition.is_topic_deleted:
            self.high_watermarks.forget(partition.log)
        if followers is None:
            return
        error = _error_not_led(partition)
        self._acks.fail(partition, followers.acks, error)
        self._deletions.fail(partition, followers.deletions, error)

    def image_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:  # noqa: ARG002 - the listener's form
        """Start a round of the lag check if a broker changed.

        A broker that came back may join, and a dead follower must not hold up a deletion.
        """
        if delta.brokers:
            self._lag_check.begin(shrinks=False)

    def reconfigured(self, partition: Partition) -> None:
        """The log's settings changed: a lower min.insync.replicas may let the high watermark move. With a lower
        flush.messages it may have to wait for a sync, which no further append may trigger."""
        self._metrics.count(partition)
        if partition.followers is None:
            if advance_only_replica(partition.log):
                partition.changed()
            return
        if self._advance(partition, partition.followers):
            partition.changed()
        if must_sync(partition.log):
            sync_led_then(self._ports, [partition], nobody_waits)

    def _begin_leader_epoch(self, partition: Partition, state: PartitionImage) -> Followers:
        """Begin a leader epoch. If it is not this leader's first, it keeps the followers' progress.

        ``Followers.begin_epoch`` says when that is dropped after all.
        """
        log, now_us = partition.log, self._now_us()
        end = log.log_end_offset
        followers = partition.followers
        if followers is None:  # Decision leadership
            followers = Followers(self._node_id, state.leader_epoch, end, end)
            followers.assign(state.replicas)
            followers.begin_leadership(state.isr, now_us)
            partition.followers = followers
            partition.synced = partial(self._synced, partition)
            self.high_watermarks.moved(log)
        else:
            followers.begin_epoch(state.leader_epoch, end, state.isr, now_us)
        self.waits.expect(partition, [replica_id for replica_id in state.replicas if replica_id != self._node_id])
        self._ports.note(
            "leads",
            ("partition", log.directory),
            ("leader_epoch", state.leader_epoch),
            ("isr", ",".join(map(str, state.isr))),
            ("log_end_offset", end),
            ("high_watermark", log.high_watermark),
        )
        return followers

    def _forget_restarted(self, followers: Followers) -> None:
        """Drop the progress of restarted followers, which may have lost records.

        Until this node has applied the metadata of the restart, ``is_eligible`` keeps the old progress from counting.
        """
        for state in followers.states.values():
            if self._brokers.is_stale(state.replica_id, state.broker_epoch):  # Decision follower-restarted
                state.forget()

    # --- progress ---------------------------------------------------------------------------------------------------

    def appended(self, partition: Partition) -> None:
        """Note that records were appended. If no other replica is in sync, this moves the high watermark.

        The code that appended calls ``partition.changed()``.
        """
        followers = partition.followers
        if followers is None:
            advance_only_replica(partition.log)
            return
        followers.appended(partition.log.log_end_offset)
        if not followers.is_watched:
            self._lag_check.watch(partition, followers)
        if not followers.in_sync:
            self._advance(partition, followers)

    def _synced(self, partition: Partition) -> None:
        """Advance the high watermark after a sync of this node's log, which may have held it back."""
        if partition.followers is not None and self._advance(partition, partition.followers):
            partition.changed()

    def fetched(self, partition: Partition, cached: Cached, replica_id: int, replica_epoch: int) -> Error:
        """Note that a follower's accepted request fetches from ``cached.fetch_offset`` on.

        The caller has checked that this offset is in the log and that the logs have not diverged before it.
        ``replica_epoch`` is the follower's broker epoch, -1 if the request has none. ``notify_watchers`` must follow.

        The request does not count in two cases: a later incarnation of the follower is known
        (NOT_LEADER_OR_FOLLOWER), or the follower has no replica (``error_without_replica``).
        """
        followers = partition.followers
        if followers is None:
            return ErrorCode.none
        state = followers.states.get(replica_id)
        if state is None:
            return error_without_replica(cached)
        if self._brokers.is_stale(replica_id, replica_epoch):  # Decision fetch-incarnation
            return ErrorCode.not_leader_or_follower
        self.waits.named(partition, replica_id)
        if state.broker_epoch != replica_epoch:
            state.cached = None  # Another incarnation's session is never resumed.
            state.broker_epoch = replica_epoch
        before, log_start = state.log_end_offset, state.log_start_offset
        state.fetched(cached, partition.log.log_end_offset)
        if not followers.is_watched and state.log_end_offset < partition.log.log_end_offset:
            self._lag_check.watch(partition, followers)  # It had reached the end and went back: it may stay behind.
        if followers.out_of_sync and state in followers.out_of_sync:
            self._maybe_expand_isr(partition, followers, state)
        # Decision follower-progress-visible
        if state.log_end_offset != before and (
            self._advance(partition, followers) or self._may_be_read_now(partition, followers, replica_id, before)
        ):
            self._to_notify.append(partition)
        if followers.deletions and state.log_start_offset != log_start:
            self._complete_deletions(partition, followers)
        return ErrorCode.none

    def _may_be_read_now(self, partition: Partition, followers: Followers, replica_id: int, before: int) -> bool:
        """Whether consumers may be sent to the replica from now on, because it has reached the high watermark only
        now."""
        return self._prefers_followers and before < partition.log.high_watermark and replica_id in followers.isr

    def notify_watchers(self) -> None:
        """Call the watchers of the partitions whose high watermark ``fetched`` moved, or whose follower consumers may
        now read from.

        This is a separate step because it calls parked fetches and coordinators, which must not happen while the caller
        walks over a session. The fetches are completed at the end of the event.
        """
        if self._to_notify:
            to_notify, self._to_notify = self._to_notify, []
            for partition in to_notify:
                partition.changed()

    def acknowledge(self, offsets: Offsets, timeout_ms: int, completed: Completed) -> Abandon | None:
        """Wait for acks=all: calls ``completed`` when every partition's high watermark has reached its offset.

        An offset is one past the last record written. ``completed`` gets the partitions that failed, with
        NOT_ENOUGH_REPLICAS_AFTER_APPEND, REQUEST_TIMED_OUT or NOT_LEADER_OR_FOLLOWER. A partition that this node
        stopped leading while the append was being synced fails, since it may hold another leader's records by now.

        Return a function that drops the request, or None if it was completed at once.
        """
        missing = []
        errors: dict[Partition, Error] = {}
        for partition, offset in offsets:
            if partition.followers is None:
                errors[partition] = _error_not_led(partition)
            elif partition.log.high_watermark < offset:  # Decision acks-all-replicated
                missing.append((partition, offset))
            else:
                error = self._error_after_append(partition, partition.followers)
                if error:
                    errors[partition] = error
        if not missing:
            completed(errors)
            return None
        if errors:
            return self._acks.wait(missing, timeout_ms, lambda late: completed(errors | late))
        return self._acks.wait(missing, timeout_ms, completed)

    def await_deletion(self, offsets: Offsets, timeout_ms: int, completed: Completed) -> Abandon | None:
        """Wait for DeleteRecords: calls ``completed`` when the log start of every live replica has reached its offset.

        It is called at once if that is already so. Return the same as ``acknowledge``.
        """
        missing = [(partition, offset) for partition, offset in offsets if self.low_watermark(partition) < offset]
        if not missing:
            completed({})
            return None
        abandon = self._deletions.wait(missing, timeout_ms, completed)
        for partition, _ in missing:
            if partition.followers is not None:
                self._lag_check.watch(partition, partition.followers)  # A follower that dies must not hold it up.
        return abandon

    def low_watermark(self, partition: Partition) -> int:
        """The smallest log start offset among the partition's live replicas."""
        start, followers = partition.log.log_start_offset, partition.followers
        return start if followers is None else followers.low_watermark(start, self._brokers.is_alive)

    # --- high watermark ---------------------------------------------------------------------------------------------

    def _advance(self, partition: Partition, followers: Followers) -> bool:
        """Move the high watermark as far as it may go, and complete the requests that wait for it. Where
        flush.messages requires a sync, this node's own log counts only as far as it is durable."""
        log = partition.log
        if not self._may_advance(partition, followers):  # Decision watermark-below-min-isr
            return False
        mark = followers.high_watermark(leader_end(log), self._now_us(), self._max_lag_ms, self._brokers.is_eligible)
        if not log.advance_high_watermark(mark):  # Decision high-watermark
            return False
        self.high_watermarks.moved(log)
        self._ports.note("high_watermark", ("partition", log.directory), ("offset", mark))
        if followers.acks:
            self._acks.reached(partition, followers.acks, mark, self._error_after_append(partition, followers))
        return True

    @staticmethod
    def _may_advance(partition: Partition, followers: Followers) -> bool:
        """Whether there are min.insync.replicas in-sync replicas.

        With fewer the high watermark does not move, so that replicas that left the ISR still have all committed
        records, and are eligible leaders (E-2, KIP-966).
        """
        return not followers.is_under_min_isr(partition.log.config.min_insync_replicas)

    def _error_after_append(self, partition: Partition, followers: Followers) -> Error:
        """Return the error of requests that are committed now: there may be too few replicas since their append."""
        required = min(partition.log.config.min_insync_replicas, len(followers.states) + 1)
        # Decision committed-isr
        return ErrorCode.none if len(followers.maximal_isr) >= required else ErrorCode.not_enough_replicas_after_append

    def _complete_deletions(self, partition: Partition, followers: Followers) -> None:
        self._deletions.reached(partition, followers.deletions, self.low_watermark(partition), ErrorCode.none)

    # --- in-sync replicas -------------------------------------------------------------------------------------------

    def _maybe_expand_isr(self, partition: Partition, followers: Followers, state: Replica) -> None:
        """Propose the ISR with this follower, if it may join."""
        # Decision isr-expands
        if followers.may_join(state, partition.log.high_watermark) and self._brokers.is_eligible(state):
            isr = (*followers.isr, state.replica_id)
            self._propose(partition, followers, isr, state.replica_id)

    def _propose(self, partition: Partition, followers: Followers, isr: tuple[int, ...], joining: int | None) -> None:
        """Propose an ISR to the controller (AlterPartition)."""
        broker_epochs = tuple(map(self._brokers.epoch_of, isr))
        proposal = Proposal(isr, broker_epochs, followers.leader_epoch, partition.partition_epoch, joining)
        followers.propose(proposal)
        self._lag_check.watch(partition, followers)
        self._proposals.propose(partition, proposal)

    def _isr_refused(self, partition: Partition) -> None:
        """Withdraw a proposal. The replica that it would have added no longer holds the high watermark back."""
        if partition.followers is not None:
            partition.followers.withdraw()
            if self._advance(partition, partition.followers):
                partition.changed()

    def _commit(self, partition: Partition, followers: Followers, isr: tuple[int, ...]) -> None:
        """Apply the in-sync replicas of the metadata, which may let the high watermark move."""
        changed, proposal = isr != followers.isr, followers.proposal
        followers.commit(isr)
        self._metrics.count(partition)
        if proposal is not None and sorted(proposal.isr) == sorted(isr):  # Decision isr-committed
            meter = self._metrics.isr_shrinks if proposal.joining is None else self._metrics.isr_expands
            meter.value += 1
        if changed:
            self._ports.note(
                "isr_changed",
                ("partition", partition.log.directory),
                ("isr", ",".join(map(str, isr))),
                ("partition_epoch", partition.partition_epoch),
            )
        if not followers.is_at_rest(partition.log.log_end_offset):
            self._lag_check.watch(partition, followers)
        if self._advance(partition, followers) or (changed and self._prefers_followers):
            partition.changed()
        if proposal is not None and proposal.joining in isr:
            self._expand_isr_with_next(partition, followers)

    def _expand_isr_with_next(self, partition: Partition, followers: Followers) -> None:
        """Propose the next replica that may join, since only one joins at a time.

        A follower that became ready meanwhile does not name a partition at rest again. Without this step it would wait
        for the lag check.
        """
        end, now_us = partition.log.log_end_offset, self._now_us()
        for state in followers.out_of_sync:
            if state.log_end_offset == end and state.has_fetched_lately(now_us, self._max_lag_ms):
                self._maybe_expand_isr(partition, followers, state)

    def _check_lag(self, partition: Partition, followers: Followers, shrinks: bool) -> None:
        """The lag check of one partition in which some replica is behind.

        It finds changes without a fetch: time passed, or other brokers came or went.
        """
        self._forget_restarted(followers)
        for state in followers.states.values():
            state.return_to_former_session(partition.log.log_end_offset)
        for state in tuple(followers.out_of_sync):
            if state.has_fetched_lately(self._now_us(), self._max_lag_ms):
                self._maybe_expand_isr(partition, followers, state)
        lagging = followers.lagging(self._now_us(), self._max_lag_ms) if shrinks and followers.proposal is None else ()
        if lagging:  # Decision isr-shrinks
            self._propose(
                partition,
                followers,
                tuple(replica_id for replica_id in followers.isr if replica_id not in lagging),
                None,
            )
        if self._advance(partition, followers):
            partition.changed()
        if followers.deletions:
            self._complete_deletions(partition, followers)

    def _now_us(self) -> int:
        return self._ports.now().mono_us


def _error_not_led(partition: Partition) -> Error:
    return ErrorCode.unknown_topic_or_partition if partition.is_topic_deleted else ErrorCode.not_leader_or_follower
