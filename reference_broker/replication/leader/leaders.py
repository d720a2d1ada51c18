"""The leader's half of replication: high watermarks, in-sync replicas, and requests that wait for them.

Works on partitions with several replicas (``partition.followers``). One with a single replica pays nothing: its high
watermark is its log's end, which whoever appends moves. Rules as in Kafka's Partition and ReplicaManager; cost is that
of the event: an append and a fetch cost the number of followers, the lag check walks over partitions that have somebody
behind, and a partition at rest is not visited at all.
"""

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.metadata_replica import MetadataReplica
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.image import MetadataImage, PartitionImage
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.node_ports import Ports
from reference_broker.replication.high_watermarks import HighWatermarks
from reference_broker.replication.leader.acknowledgements import Abandon, Acknowledgements, Answered, Heap, Offsets
from reference_broker.replication.leader.follower_waits import FollowerWaits
from reference_broker.replication.leader.isr import IsrProposals
from reference_broker.replication.leader.lag_check import LagCheck
from reference_broker.replication.leader.replica_metrics import ReplicaMetrics
from reference_broker.replication.leader.replicas import Cached, Followers, FollowerState, Proposal
from reference_broker.replication.leader.standings import Standings
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error, ErrorCode


class Leaders:
    """``high_watermarks``: the file that remembers them; followers' are noted there by whoever moves them."""

    __slots__ = (
        "_acks",
        "_brokers",
        "_deletions",
        "_lag_check",
        "_max_lag_ms",
        "_metrics",
        "_moved",
        "_node_id",
        "_ports",
        "_proposals",
        "high_watermarks",
        "waits",
    )

    def __init__(
        self,
        ports: Ports,
        node_id: int,
        config: BrokerConfig,
        replica: MetadataReplica,
        high_watermarks: HighWatermarks,
        metrics: Metrics,
    ) -> None:
        self.high_watermarks = high_watermarks
        self._ports = ports
        self._node_id = node_id
        self._max_lag_ms = config.replica_lag_time_max_ms
        self._brokers = Standings(node_id, replica)
        self._acks = Acknowledgements(ports, _acks_of)
        self._deletions = Acknowledgements(ports, _deletions_of)
        self._metrics = ReplicaMetrics(metrics)
        self._proposals = IsrProposals(
            ports, node_id, replica, self._isr_committed, self._isr_refused, self._metrics.failed_isr_updates
        )
        self._lag_check = LagCheck(ports, self._max_lag_ms, self._look)
        self._moved: list[Partition] = []
        self.waits = FollowerWaits(ports)

    def start(self) -> None:
        """Once, when the node is registered and its partitions are open: lag is looked at from now on."""
        self.high_watermarks.keep_only(self._brokers.has_replica_here)
        self._lag_check.start()

    def halt(self) -> None:
        """The node ends in good order: the file has the last word. Raises DiskError."""
        self.high_watermarks.write()

    # --- roles ------------------------------------------------------------------------------------------------------

    def leads(self, partition: Partition, state: PartitionImage) -> None:
        """This node leads ``partition`` as ``state`` says; repeated with each newer state. An older one than an answer
        of the controller has told already changes nothing."""
        if len(state.replicas) == 1 and partition.followers is None:
            partition.partition_epoch = state.partition_epoch
            self._metrics.count(partition)
            self._own_all(partition)
            return
        followers = partition.followers
        new_epoch = followers is None or followers.leader_epoch != state.leader_epoch
        followers = self._take_up(partition, state) if new_epoch else followers
        assert followers is not None, "made just now"
        if new_epoch or state.partition_epoch > partition.partition_epoch:
            partition.partition_epoch = state.partition_epoch
            followers.assign(state.replicas, self._now_us())
            self._forget_restarted(followers)
            self._commit(partition, followers, state.isr)

    def resigns(self, partition: Partition) -> None:
        """It is led here no more: who waits for it learns that at once."""
        followers, partition.followers = partition.followers, None
        self._metrics.discount(partition)
        self._lag_check.unwatch(partition)
        if partition.deleted_topic:
            self.high_watermarks.forget(partition.log)
        if followers is None:
            return
        error = _resigned(partition)
        self._acks.fail(partition, followers.acks, error)
        self._deletions.fail(partition, followers.deletions, error)

    def image_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:  # noqa: ARG002 - the listener's form
        """A broker that came back may join; a dead follower holds no deletion up. Costs the partitions that have
        somebody behind, in slices."""
        if delta.brokers:
            self._lag_check.begin(shrinks=False)

    def reconfigured(self, partition: Partition) -> None:
        """Its log has other settings: a lower min.insync.replicas may let the high watermark move."""
        self._metrics.count(partition)
        if partition.followers is not None and self._advance(partition, partition.followers):
            partition.changed()

    def _own_all(self, partition: Partition) -> None:
        """One replica: all that is in the log is committed."""
        if partition.log.advance_high_watermark(partition.log.log_end_offset):
            partition.changed()

    def _take_up(self, partition: Partition, state: PartitionImage) -> Followers:
        """A new epoch: this leader's first, or a later one, in which the followers' progress stays known."""
        log, now_us = partition.log, self._now_us()
        end = log.log_end_offset
        followers = partition.followers
        if followers is None:
            followers = Followers(self._node_id, state.leader_epoch, end, end)
            followers.assign(state.replicas, now_us)
            followers.begin_leadership(state.isr)
            partition.followers = followers
            self.high_watermarks.moved(log)
        else:
            followers.begin_epoch(state.leader_epoch, end, state.isr, now_us)
        self.waits.expect(one for one in state.replicas if one != self._node_id)
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
        """A follower of a new life may have lost what its old one had. Until the metadata's news of that life are
        carried out here, ``is_eligible`` keeps the old progress from counting."""
        for state in followers.states.values():
            if self._brokers.is_stale(state.replica_id, state.broker_epoch):
                state.forget()

    # --- progress ---------------------------------------------------------------------------------------------------

    def appended(self, partition: Partition) -> None:
        """Its log grew by a client's records. Without anybody else in sync they are committed; whoever appended calls
        ``partition.changed()``."""
        followers, end = partition.followers, partition.log.log_end_offset
        if followers is None:
            partition.log.advance_high_watermark(end)
            return
        followers.appended(end)
        if not followers.is_watched:
            self._lag_check.watch(partition, followers)
        if not followers.in_sync:
            self._advance(partition, followers)

    def fetched(self, partition: Partition, cached: Cached, replica_id: int, replica_epoch: int) -> Error:
        """An accepted request of a follower asks for ``cached.fetch_offset`` on, which is in the log and on its line.

        ``replica_epoch``: its broker epoch, -1 if it does not say. Nothing counts where a later incarnation of it is
        known (NOT_LEADER_OR_FOLLOWER) or where it has no replica: UNKNOWN_LEADER_EPOCH if it tells the leader epoch, of
        which this leader may not know all yet, else NOT_LEADER_OR_FOLLOWER. ``tell`` must follow.
        """
        followers = partition.followers
        if followers is None:
            return ErrorCode.none
        state = followers.states.get(replica_id)
        if state is None:
            return (
                ErrorCode.not_leader_or_follower if cached.current_leader_epoch < 0 else ErrorCode.unknown_leader_epoch
            )
        if self._brokers.is_stale(replica_id, replica_epoch):
            return ErrorCode.not_leader_or_follower
        state.broker_epoch = replica_epoch
        before, log_start = state.log_end_offset, state.log_start_offset
        state.fetched(cached, partition.log.log_end_offset)
        if not followers.is_watched and state.log_end_offset < partition.log.log_end_offset:
            self._lag_check.watch(partition, followers)  # It was there already and went back: it may stay behind.
        if followers.outside and state in followers.outside:
            self._let_join(partition, followers, state)
        if state.log_end_offset != before and self._advance(partition, followers):
            self._moved.append(partition)
        if followers.deletions and state.log_start_offset != log_start:
            self._complete_deletions(partition, followers)
        return ErrorCode.none

    def tell(self) -> None:
        """Tells the watchers of partitions whose high watermark ``fetched`` moved: a fetch that waits is answered,
        which may make and evict sessions, so not while one is being walked over."""
        if self._moved:
            moved, self._moved = self._moved, []
            for partition in moved:
                partition.changed()

    def acknowledge(self, offsets: Offsets, timeout_ms: int, answered: Answered) -> Abandon | None:
        """acks=all: calls ``answered`` when every partition's high watermark is at its offset (one past the last record
        written), with the partitions that failed: NOT_ENOUGH_REPLICAS_AFTER_APPEND, REQUEST_TIMED_OUT,
        NOT_LEADER_OR_FOLLOWER. At once where nothing is left to wait for.

        One that was resigned since the append (while it was being synced) may hold another leader's records by now,
        whatever its high watermark. Returns how to end the waiting unanswered; None: it is answered."""
        missing = []
        errors: dict[Partition, Error] = {}
        for partition, offset in offsets:
            if partition.followers is None:
                errors[partition] = _resigned(partition)
            elif partition.log.high_watermark < offset:
                missing.append((partition, offset))
            else:
                error = self._verdict(partition, partition.followers)
                if error:
                    errors[partition] = error
        if not missing:
            answered(errors)
            return None
        if errors:
            return self._acks.wait(missing, timeout_ms, lambda late: answered(errors | late))
        return self._acks.wait(missing, timeout_ms, answered)

    def deleted(self, offsets: Offsets, timeout_ms: int, answered: Answered) -> Abandon | None:
        """DeleteRecords: calls ``answered`` when the log start of every live replica is at its offset, or at once.
        Returns as ``acknowledge`` does."""
        missing = [(partition, offset) for partition, offset in offsets if self.low_watermark(partition) < offset]
        if not missing:
            answered({})
            return None
        abandon = self._deletions.wait(missing, timeout_ms, answered)
        for partition, _ in missing:
            if partition.followers is not None:
                self._lag_check.watch(partition, partition.followers)  # A follower that dies holds it up no more.
        return abandon

    def low_watermark(self, partition: Partition) -> int:
        """The smallest log start offset of its live replicas."""
        start, followers = partition.log.log_start_offset, partition.followers
        return start if followers is None else followers.low_watermark(start, self._brokers.is_alive)

    # --- high watermark ---------------------------------------------------------------------------------------------

    def _advance(self, partition: Partition, followers: Followers) -> bool:
        """Moves the high watermark as far as it may go, and answers who waited for it. Not below min.insync.replicas
        (KIP-966)."""
        log = partition.log
        if followers.is_under_min_isr(log.config.min_insync_replicas):
            return False
        end = log.log_end_offset
        mark = followers.high_watermark(end, self._now_us(), self._max_lag_ms, self._brokers.is_eligible)
        if not log.advance_high_watermark(mark):
            return False
        self.high_watermarks.moved(log)
        self._ports.note("high_watermark", ("partition", log.directory), ("offset", mark))
        if followers.acks:
            self._acks.reached(partition, followers.acks, mark, self._verdict(partition, followers))
        return True

    def _verdict(self, partition: Partition, followers: Followers) -> Error:
        """For what is committed now: there may be too few replicas since it was appended."""
        wanted = min(partition.log.config.min_insync_replicas, len(followers.states) + 1)
        return ErrorCode.none if len(followers.maximal_isr) >= wanted else ErrorCode.not_enough_replicas_after_append

    def _complete_deletions(self, partition: Partition, followers: Followers) -> None:
        self._deletions.reached(partition, followers.deletions, self.low_watermark(partition), ErrorCode.none)

    # --- in-sync replicas -------------------------------------------------------------------------------------------

    def _let_join(self, partition: Partition, followers: Followers, state: FollowerState) -> None:
        if followers.may_join(state, partition.log.high_watermark) and self._brokers.is_eligible(state):
            isr = (*followers.isr, state.replica_id)
            self._propose(partition, followers, isr, state.replica_id)

    def _shrink(self, partition: Partition, followers: Followers) -> None:
        if followers.proposal is not None:
            return
        lagging = followers.lagging(self._now_us(), self._max_lag_ms)
        if lagging:
            isr = tuple(one for one in followers.isr if one not in lagging)
            self._propose(partition, followers, isr, None)

    def _propose(self, partition: Partition, followers: Followers, isr: tuple[int, ...], joining: int | None) -> None:
        broker_epochs = tuple(map(self._brokers.epoch_of, isr))
        proposal = Proposal(isr, broker_epochs, followers.leader_epoch, partition.partition_epoch, joining)
        followers.propose(proposal)
        self._lag_check.watch(partition, followers)
        self._proposals.propose(partition, proposal)

    def _isr_committed(self, partition: Partition, isr: tuple[int, ...], partition_epoch: int) -> None:
        """The controller's answer came before the metadata, which would have settled the proposal."""
        followers = partition.followers
        if followers is not None:
            partition.partition_epoch = partition_epoch
            self._commit(partition, followers, isr)

    def _isr_refused(self, partition: Partition) -> None:
        if partition.followers is not None:
            partition.followers.withdraw()
            if self._advance(partition, partition.followers):
                partition.changed()

    def _commit(self, partition: Partition, followers: Followers, isr: tuple[int, ...]) -> None:
        changed, proposal = isr != followers.isr, followers.proposal
        followers.commit(isr)
        self._metrics.count(partition)
        if proposal is not None and sorted(proposal.isr) == sorted(isr):
            meter = self._metrics.isr_shrinks if proposal.joining is None else self._metrics.isr_expands
            meter.value += 1
        if changed:
            self._ports.note(
                "isr_changed",
                ("partition", partition.log.directory),
                ("isr", ",".join(map(str, isr))),
                ("partition_epoch", partition.partition_epoch),
            )
        if not followers.is_even(partition.log.log_end_offset):
            self._lag_check.watch(partition, followers)
        if self._advance(partition, followers):
            partition.changed()
        if proposal is not None and proposal.joining in isr:
            self._let_next_join(partition, followers)

    def _let_next_join(self, partition: Partition, followers: Followers) -> None:
        """One joins at a time. Who was ready meanwhile names a partition at rest no more: it need not wait for the lag
        check."""
        end, now_us = partition.log.log_end_offset, self._now_us()
        for state in followers.outside:
            if state.log_end_offset == end and state.was_here(now_us, self._max_lag_ms):
                self._let_join(partition, followers, state)

    def _look(self, partition: Partition, followers: Followers, shrinks: bool) -> None:
        """It has somebody behind: what time alone may have changed, or other brokers' lives."""
        self._forget_restarted(followers)
        for state in tuple(followers.outside):
            if state.was_here(self._now_us(), self._max_lag_ms):
                self._let_join(partition, followers, state)
        if shrinks:
            self._shrink(partition, followers)
        if self._advance(partition, followers):
            partition.changed()
        if followers.deletions:
            self._complete_deletions(partition, followers)

    def _now_us(self) -> int:
        return self._ports.now().mono_us


def _resigned(partition: Partition) -> Error:
    return ErrorCode.unknown_topic_or_partition if partition.deleted_topic else ErrorCode.not_leader_or_follower


def _acks_of(partition: Partition) -> Heap:
    """Of a partition that is led here no more: an empty one, since resigning has settled all."""
    return [] if partition.followers is None else partition.followers.acks


def _deletions_of(partition: Partition) -> Heap:
    return [] if partition.followers is None else partition.followers.deletions
