"""In-sync replicas and eligible leader replicas (KIP-966): which replicas may be in these sets, and which must stay."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos.checks.check import Check, CheckContext, Inspection, ReplicaCheck, fields_of
from chaos.checks.history import History
from chaos.checks.pending_requests import PendingRequests
from chaos.checks.replication.follower_progress import ALTER_PARTITION, LeaderTerm, Proposed, altered
from chaos.checks.replication.replica_view import Copy, Held, PartitionKey, Replicated
from reference_broker.core.events import Closed, Effect, Event, PeerDown, PeerReply, Reply, Request, Send
from reference_broker.metadata.image import MetadataImage, PartitionImage
from reference_broker.replication.partitions import Partition
from reports.rows import TraceRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node


class IsrHonest(ReplicaCheck):
    """isr-honest: each in-sync replica and each eligible leader replica has all committed records.

    The check compares logs when the newest leader's high watermark moves, and when the metadata adds a replica to one
    of the two sets. A replica that registered after an unclean shutdown may not be eligible (E-4).
    """

    guarantee = "isr-honest"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.replicas.on_copy_changed.append(self.copy_changed)
        self.replicas.on_metadata_changed.append(self.metadata_changed)

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:
        moved = now.high_watermark > before.high_watermark and before.incarnation == now.incarnation
        if moved and now.leader_epoch == partition.state.leader_epoch:
            for member in (*partition.state.isr, *partition.state.elr):
                what = f"the high watermark of leader {copy.node_id}"
                self._holds(at_us, partition, member, now.high_watermark, what)

    def metadata_changed(self, at_us: int, partition: Replicated, before: PartitionImage, now: PartitionImage) -> None:
        for member in now.isr:
            if member not in before.isr:
                self._holds(at_us, partition, member, partition.committed_end, "committed when it joined")
        # A node may publish several changes at once. In between a replica may have joined the ISR, and left it again.
        in_between = now.partition_epoch > before.partition_epoch + 1
        for member in now.elr:
            if member in partition.eligible.registered and not in_between:
                self.violated(
                    at_us,
                    f"{partition.name}: {member} is an eligible leader in partition epoch {now.partition_epoch}, "
                    "although it registered after an unclean shutdown",
                )
            elif member not in before.elr:
                self._holds(at_us, partition, member, partition.committed_end, "committed when it became eligible")

    def _holds(self, at_us: int, partition: Replicated, member: int, offset: int, what: str) -> None:
        if partition.excused:
            return  # E-7: no replica had kept the committed records, and the new leader has not taken over yet.
        copy = partition.copies.get(member)
        end_offset = 0 if copy is None else copy.held.end_offset
        if end_offset < offset and not partition.eligible.had(member, offset):
            self.violated(
                at_us,
                f"{partition.name}: {member} ends at {end_offset}, below {offset}, {what}; "
                f"in sync: {partition.state.isr}, eligible: {partition.state.elr}",
            )


class StableIsr(ReplicaCheck):
    """stable-isr: a replica stays in sync while no fault touches it, its leader, or a link of theirs.

    A follower that has nothing to fetch stays in sync, however long that lasts (F-22).

    ``_fenced_early`` has the brokers that a new controller fenced before it had led for a whole session, and when.
    Their heartbeats may still have gone to the controller before it, which a fault had silenced (physical).
    """

    guarantee = "stable-isr"
    rows = ("leader_elected", "broker_fenced")

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.replicas.on_metadata_changed.append(self.metadata_changed)
        self.replicas.on_viewed.append(self.viewed)
        self._elections: list[tuple[int, int]] = []
        """(time, node) of each leader of the quorum, in order"""
        self._fenced_early: dict[int, int] = {}
        self._left: list[tuple[int, int, str]] = []
        """(time, replica, explanation) of replicas that left in this event, whose notes come after the metadata"""

    def trace(self, row: TraceRow) -> None:
        if row.what == "leader_elected":
            self._elections.append((row.at_us, row.node))
            return
        elected_us, controller = self._elections[-1] if self._elections else (0, -1)
        if controller != row.node or row.at_us - elected_us > self.context.settings.session_us:
            return
        since_us = row.at_us - self.context.settings.in_sync_us
        if any(self.replicas.fault_times.touches_since(node, since_us) for _, node in self._elections[-2:-1]):
            self._fenced_early[fields_of(row)["broker"]] = row.at_us

    def metadata_changed(self, at_us: int, partition: Replicated, before: PartitionImage, now: PartitionImage) -> None:
        fault_times, in_sync_us = self.replicas.fault_times, self.context.settings.in_sync_us
        since_us = at_us - in_sync_us
        for member in before.isr:
            # Physical: a node that was dead, paused or cut off could not fetch, serve or send heartbeats (F-22).
            judged = (member, before.leader, now.leader)
            if member in now.isr or any(fault_times.touches_since(node, since_us) for node in judged):
                continue
            explanation = (
                f"{partition.name}: replica {member} left the in-sync replicas {before.isr} of leader {before.leader}, "
                f"although no fault had touched it for {in_sync_us // 1000} ms"
            )
            self._left.append((at_us, member, explanation))

    def viewed(self, at_us: int, node: "Node") -> None:  # noqa: ARG002
        if self._left:
            self._judge()

    def end(self, history: History) -> None:  # noqa: ARG002
        self._judge()

    def _judge(self) -> None:
        for left_us, replica, explanation in self._left:
            if self._fenced_early.get(replica, -1) < left_us - self.context.settings.in_sync_us:
                self.violated(left_us, explanation)
        self._left.clear()


class ProposalsHonest(ReplicaCheck):
    """isr-honest: a leader proposes only replicas that may be in sync, and a proposal counts until it is settled.

    A replica joins when it has requested the high watermark and the start of the leader's epoch (KIP-497), and is named
    with a broker epoch that is registered (KIP-903). One that leaves had not caught up for replica.lag.time.max.ms. It
    may have done so since the leader decided. A replica may join behind the leader's end. If it was out of sync when
    the leader epoch began, it has not caught up before a request from that end, and may leave at once (Kafka's
    ``Replica.resetReplicaState``). The request names the partition epoch and the leader epoch of the leader's metadata.

    A proposal ends with a greater partition epoch or a refusal that was certainly not applied. Until then the maximal
    ISR has the replica that joins (KIP-497).

    The controller accepts a proposal only in the partition epoch that it names. So the epoch that it returns is that
    one if nothing changed, or the next one.

    Physical: the active controller handles its own proposals without a message. So the proposals of a node that becomes
    the active controller are not judged any more.
    """

    guarantee = "isr-honest"
    rows = ("leader_elected",)
    acts_on = ((Send, ALTER_PARTITION), PeerReply, PeerDown)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.replicas.on_copy_changed.append(self.copy_changed)
        self._progress = context.progress

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        node_id, progress = node.broker.node_id, self._progress
        if progress.nodes.get(node_id) is not node or not (progress.proposals or progress.sent):
            return
        for key, proposed, partition_epoch in progress.accepted:
            if partition_epoch not in (proposed.partition_epoch, proposed.partition_epoch + 1):
                partition = node.broker.partitions.by_id.get(key)
                name = key if partition is None else f"{partition.topic}-{partition.index}"
                self.violated(
                    at_us,
                    f"{name}: the controller accepted {proposed.isr}, which leader {node_id} had proposed in partition "
                    f"epoch {proposed.partition_epoch}, and returned epoch {partition_epoch} (KIP-497)",
                )
        for led, proposed in progress.sent:
            if not led.is_removed:
                self._judge(at_us, node, led, proposed)
        for leader_id, key in progress.proposals:
            here = node.broker.partitions.by_id.get(key) if leader_id == node_id else None
            if here is not None:
                self._is_kept(at_us, node, here)

    def trace(self, row: TraceRow) -> None:
        self._progress.forget_proposals(row.node)

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:  # noqa: ARG002
        if now.end_offset > before.end_offset and now.leader_epoch >= 0 and now.incarnation == before.incarnation:
            self._progress.appended(copy.node_id, partition.key, before.end_offset)

    def _judge(self, at_us: int, node: "Node", led: Partition, proposed: Proposed) -> None:
        image, node_id = node.broker.quorum_node.loader.image, node.broker.node_id
        topic = image.topic_by_id(led.topic_id)
        if topic is None or node._publisher.is_behind:
            return
        state = topic.partitions[led.index]
        who = f"{led.topic}-{led.index}: leader {node_id} proposes {proposed.isr}"
        self.evidence += 1
        if (proposed.leader_epoch, proposed.partition_epoch) != (state.leader_epoch, state.partition_epoch):
            self.violated(
                at_us,
                f"{who} in leader epoch {proposed.leader_epoch} and partition epoch {proposed.partition_epoch}, "
                f"and its metadata has {state.leader_epoch} and {state.partition_epoch} (KIP-497)",
            )
            return
        term = self._progress.term(at_us, node, led)
        for member, epoch in zip(proposed.isr, proposed.broker_epochs, strict=True):
            broker = image.brokers.get(member)
            if member in state.isr or member == node_id:
                continue
            latest = term.latest(member)
            offset = -1 if latest is None else latest.offset
            if proposed.is_first and offset < max(led.log.high_watermark, term.start_offset):
                self.violated(
                    at_us,
                    f"{who}, although replica {member} has requested {offset}; its high watermark is "
                    f"{led.log.high_watermark}, and its epoch began at {term.start_offset} (KIP-497)",
                )
            if broker is None or epoch > broker.broker_epoch:
                named = f"{who} with epoch {epoch} of broker {member}"
                self.violated(at_us, f"{named}, registered in {broker and broker.broker_epoch} (KIP-903)")
        lag_us = node.broker.config.replica_lag_time_max_ms * 1000
        for member in set(state.isr).difference(proposed.isr):
            known = term.followers.get(member)
            if known is not None and at_us - known.caught_up_us <= lag_us and not known.has_lagged:
                self.violated(
                    at_us,
                    f"{who}, although replica {member} has never been behind for {lag_us // 1000} ms (F-22)",
                )

    def _is_kept(self, at_us: int, node: "Node", led: Partition) -> None:
        topic = node.broker.quorum_node.loader.image.topic_by_id(led.topic_id)
        if topic is None or led.followers is None or node._publisher.is_behind:
            return
        state = topic.partitions[led.index]
        proposed = self._progress.proposal(node.broker.node_id, led, state.partition_epoch)
        if proposed is None:
            return
        self.evidence += 1
        joining = set(proposed.isr).difference(state.isr)
        if not joining <= set(led.followers.maximal_isr):
            self.violated(
                at_us,
                f"{led.topic}-{led.index}: leader {node.broker.node_id} counts in sync {led.followers.maximal_isr}, "
                f"and nothing has settled its proposal {proposed.isr} of partition epoch {state.partition_epoch} "
                f"(KIP-497)",
            )


PROPOSAL_US = 5_000_000
"""A leader's proposal is committed within this time, while no fault affects others than the replica."""


class LaggingLeave(ReplicaCheck):
    """isr-honest: an in-sync replica that stays behind for much longer than replica.lag.time.max.ms leaves the ISR.

    Kafka checks for such replicas twice in that time, and the controller commits the leader's proposal. So the limit is
    twice the time and ``PROPOSAL_US``, unless a fault touched another node, or a link between others. With short slices
    a leader counts requests some time after their arrival, which extends the limit (``Settings.slices_us``).

    All in-sync replicas are compared now and then.
    """

    guarantee = "isr-honest"
    inspection = Inspection.ONLY_THOROUGH

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._behind: dict[tuple[int, PartitionKey, int], tuple[int, int, int]] = {}
        """by leader, partition and replica: the leader epoch, when the replica had caught up, and when it was seen
        behind first"""

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        node_id, progress = node.broker.node_id, self.context.progress
        if not node.listening or progress.nodes.get(node_id) is not node or node._publisher.is_behind:
            return
        for (leader_id, key), term in progress.terms.items():
            led = node.broker.partitions.by_id.get(key) if leader_id == node_id else None
            topic = node.broker.quorum_node.loader.image.topic_by_id(key[0])
            if led is None or topic is None or led.leader_epoch != term.leader_epoch or term.node is not node:
                continue
            for member in topic.partitions[key[1]].isr:
                if member != node_id:
                    self._judge(at_us, led, term, node_id, member)

    def _judge(self, at_us: int, led: Partition, term: LeaderTerm, leader_id: int, member: int) -> None:
        known = term.followers.get(member)
        name = leader_id, (led.topic_id, led.index), member
        caught_up_us = term.began_us if known is None else known.caught_up_us
        if known is not None and known.offset >= led.log.log_end_offset:
            self._behind.pop(name, None)
            return
        seen = self._behind.get(name)
        if seen is None or seen[:2] != (led.leader_epoch, caught_up_us):
            self._behind[name] = led.leader_epoch, caught_up_us, at_us
            return
        behind_us = at_us - seen[2]
        lag_us = term.node.broker.config.replica_lag_time_max_ms * 1000
        allowed_us = 2 * lag_us + PROPOSAL_US + self.context.settings.slices_us
        self.evidence += 1
        if behind_us > allowed_us and not self._others_disturbed(at_us - behind_us, member):
            self.violated(
                at_us,
                f"{led.topic}-{led.index}: replica {member} has been behind leader {leader_id} for {behind_us // 1000} "
                "ms, and is still in sync",
            )

    def _others_disturbed(self, since_us: int, member: int) -> bool:
        """Physical: the leader must run and reach the controller, and the controller a majority."""
        faults = self.replicas.fault_times
        return any(until_us >= since_us for node, until_us in faults.nodes.items() if node != member) or any(
            until_us >= since_us for pair, until_us in faults.links.items() if member not in pair
        )


COMPARED_EVERY_US = 500_000
CHECKED_WITHIN_US = 1_250_000
"""Kafka looks for lagging replicas twice in replica.lag.time.max.ms. No clause gives the time that a leader takes to
send its proposal then. Physical: behind slow links it takes a bit longer to learn where its controller is."""


@dataclass(slots=True)
class _Follower:
    """An in-sync replica that a leader does not see at the end of its log."""

    leader_epoch: int
    caught_up_us: int
    since_us: int
    """when it was found behind first"""


class ShrinksProposed(ReplicaCheck):
    """isr-honest: a leader proposes to remove a replica that has been behind for replica.lag.time.max.ms (F-22).

    The controller's decision is not judged here, so faults of other nodes are no excuse. But the leader has one
    AlterPartition in flight at a time (KIP-497), and must know a controller. Physical: a leader that is paused or waits
    for its disk proposes nothing. With short slices a leader counts requests some time after their arrival, which
    extends the limit (``Settings.slices_us``).

    Compares all in-sync replicas of a leader once in ``COMPARED_EVERY_US``.
    """

    guarantee = "isr-honest"
    inspection = Inspection.AFTER_EVENTS

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._behind: dict[tuple[int, PartitionKey, int], _Follower] = {}
        """by leader, partition and replica"""
        self._controllers: dict[int, tuple[Node, int, int]] = {}
        """by node: its process, and the epoch and leader of the quorum that it knows"""
        self._known_us: dict[int, int] = {}
        """by node: since when it has known that"""
        self._compared_us: dict[int, int] = {}
        """by node: when its followers were compared last"""

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        node_id, progress = node.broker.node_id, self.context.progress
        if not thorough and at_us - self._compared_us.get(node_id, -COMPARED_EVERY_US) < COMPARED_EVERY_US:
            return
        self._compared_us[node_id] = at_us
        if not node.listening or progress.nodes.get(node_id) is not node or node._publisher.is_behind:
            return
        seen = self.context.quorum.nodes[node_id].seen
        known = node, seen.epoch, seen.leader_id
        if self._controllers.get(node_id) != known or seen.leader_id < 0:
            self._controllers[node_id], self._known_us[node_id] = known, at_us
        if seen.leads:
            return  # Physical: an active controller proposes to itself, without a message.
        image = node.broker.quorum_node.loader.image
        for (leader_id, key), term in progress.terms.items():
            led = node.broker.partitions.by_id.get(key) if leader_id == node_id else None
            topic = image.topic_by_id(key[0])
            if led is None or topic is None or led.leader_epoch != term.leader_epoch or term.node is not node:
                continue
            newest = self.replicas.partitions.get(key)
            if newest is None or newest.state.leader_epoch != led.leader_epoch:
                continue  # KIP-497: a leader whose epoch is fenced waits for its metadata.
            for member in topic.partitions[key[1]].isr:
                if member != node_id and member in newest.state.isr:
                    self._judge(at_us, led, term, member)

    def _judge(self, at_us: int, led: Partition, term: LeaderTerm, member: int) -> None:
        leader_id, known = term.node.broker.node_id, term.followers.get(member)
        name = leader_id, (led.topic_id, led.index), member
        caught_up_us = term.began_us if known is None else known.caught_up_us
        if known is not None and known.offset >= led.log.log_end_offset:
            self._behind.pop(name, None)
            return
        behind = self._behind.get(name)
        if behind is None or (behind.leader_epoch, behind.caught_up_us) != (led.leader_epoch, caught_up_us):
            self._behind[name] = _Follower(led.leader_epoch, caught_up_us, at_us)
            return
        since_us = max(behind.since_us, self.replicas.fault_times.nodes.get(leader_id, 0))
        lag_us = term.node.broker.config.replica_lag_time_max_ms * 1000
        self.evidence += at_us - since_us > lag_us
        due_us = max(since_us + 3 * lag_us // 2, self._known_us[leader_id])
        free_us = self.context.progress.held_until(leader_id, (led.topic_id, led.index), due_us)
        if free_us is not None and at_us - free_us > CHECKED_WITHIN_US + self.context.settings.slices_us:
            self._behind.pop(name)
            self.violated(
                at_us,
                f"{led.topic}-{led.index}: in-sync replica {member} has been behind leader {leader_id} for "
                f"{(at_us - since_us) // 1000} ms, and the leader proposes nothing (F-22)",
            )


class _Claims(NamedTuple):
    """An AlterPartition request, with what the controller's image had when it came."""

    is_of_old_broker: bool
    stale: dict[tuple[bytes, int], str]
    """partitions whose epoch in the request is an old one"""


class OldProposalsRefused(Check):
    """isr-honest: the controller refuses a proposal of an older partition epoch, leader epoch or broker epoch (KIP-497,
    KIP-380).

    A repeated or late proposal would bring back replicas that have left the ISR since then. All three epochs only grow,
    so an epoch that is older than that of the controller's image when the request arrives is also older than that of
    its log.
    """

    guarantee = "isr-honest"
    acts_on = (ALTER_PARTITION, Closed, type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._pending = PendingRequests[_Claims]()

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        if event is None:
            self._pending.restarted(node_id)
        elif type(event) is Closed:
            self._pending.closed(node_id, event.connection)
        elif type(event) is Request and event.api_key == ALTER_PARTITION and node.listening:
            self._pending.add(node_id, event, self._read(node, event.body))
        if not self._pending:
            return
        for effect in effects:
            request = None
            if type(effect) is Reply and effect.api_key == ALTER_PARTITION:
                request = self._pending.pop(node_id, effect)
            body: Any = getattr(effect, "body", None)
            if request is None or body is None:
                continue
            self.evidence += request.is_of_old_broker + len(request.stale)
            if body.error_code:
                continue
            if request.is_of_old_broker:
                self.violated(at_us, f"controller {node_id} takes proposals of an earlier start of a broker (KIP-380)")
            for topic_id, each in altered(body):
                why = request.stale.get((topic_id, int(each.partition_index)))
                if why and not each.error_code:
                    self.violated(at_us, f"controller {node_id} takes a proposal of {why} (KIP-497)")

    @staticmethod
    def _read(node: "Node", body: Any) -> _Claims:
        image = node.broker.quorum_node.loader.image
        broker = image.brokers.get(int(body.broker_id))
        stale = {}
        for topic_id, each in altered(body):
            topic, index = image.topic_by_id(topic_id), int(each.partition_index)
            if topic is None or not 0 <= index < len(topic.partitions):
                continue
            state, named = topic.partitions[index], (int(each.leader_epoch), int(each.partition_epoch))
            known = state.leader_epoch, state.partition_epoch
            if named[0] < known[0] or named[1] < known[1]:
                stale[topic_id, index] = f"{topic.name}-{index} in leader and partition epoch {named}, and has {known}"
        return _Claims(broker is not None and int(body.broker_epoch) < broker.broker_epoch, stale)


FEATURE = "eligible.leader.replicas.version"
MIN_ISR = "min.insync.replicas"
TOPIC, BROKER = 2, 4
"""Types of resources that have settings (ConfigResource.Type)."""
ALL_BROKERS = ""


class MinIsrKept(Check):
    """min-isr-kept: with eligible leader replicas, the whole cluster has one min.insync.replicas.

    KIP-966: while ``eligible.leader.replicas.version`` is 1 the cluster has a min.insync.replicas, no broker has one of
    its own, and a change of it clears the eligible leader replicas that were kept by the old one (E-8).

    One excuse: a partition whose ISR is empty keeps its list, since only its members could lead without loss (E-3).

    Compares each image that a node publishes with the one before.
    """

    guarantee = "min-isr-kept"
    inspection = Inspection.AFTER_EVENTS
    needs_one_node = True

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._images: dict[int, MetadataImage] = {}

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        node_id = node.broker.node_id
        if event is None:
            self._images.pop(node_id, None)
        if not node.listening:
            return
        image, before = node.broker.quorum_node.loader.image, self._images.get(node_id)
        if image is before:
            return
        self._images[node_id] = image
        if not image.features.get(FEATURE):
            return
        if before is None or image.configs is not before.configs or not before.features.get(FEATURE):
            self._settings(at_us, node_id, image)
        if before is not None and before.features.get(FEATURE) and image.configs is not before.configs:
            for name in _changed(before, image):
                self._cleared(at_us, node_id, before, image, name)

    def _settings(self, at_us: int, node_id: int, image: MetadataImage) -> None:
        if MIN_ISR not in image.configs.get((BROKER, ALL_BROKERS), {}):
            self.violated(at_us, f"node-{node_id} published metadata in which the cluster has no {MIN_ISR}")
        for (kind, name), settings in image.configs.items():
            if kind == BROKER and name != ALL_BROKERS and MIN_ISR in settings:
                self.violated(at_us, f"node-{node_id} published metadata in which broker {name} has its own {MIN_ISR}")

    def _cleared(self, at_us: int, node_id: int, before: MetadataImage, image: MetadataImage, name: str) -> None:
        """``name`` is the topic whose setting has changed, or empty for that of the cluster."""
        old = dict(_partitions(before, name))
        for key, partition in _partitions(image, name):
            known = old.get(key)
            stays = known is not None and known.partition_epoch == partition.partition_epoch
            if stays and partition.isr and (partition.elr or partition.last_known_elr):
                kept = f"{key[0]}-{key[1]} kept the eligible leader replicas {partition.elr}"
                self.violated(at_us, f"node-{node_id}: {kept}, although {MIN_ISR} of {name or 'the cluster'} changed")


def _changed(before: MetadataImage, image: MetadataImage) -> Iterator[str]:
    """Yield the topics whose setting has changed, and an empty name for the cluster's."""
    for kind, name in dict.fromkeys([*before.configs, *image.configs]):
        is_meant = (kind == TOPIC and name in before.topics) or (kind, name) == (BROKER, ALL_BROKERS)
        old, new = (each.configs.get((kind, name), {}).get(MIN_ISR) for each in (before, image))
        if is_meant and old != new:
            yield name


def _partitions(image: MetadataImage, name: str) -> Iterator[tuple[tuple[str, int], PartitionImage]]:
    for topic in image.topics.values():
        if name in ("", topic.name):
            for index, partition in enumerate(topic.partitions):
                yield (topic.name, index), partition
