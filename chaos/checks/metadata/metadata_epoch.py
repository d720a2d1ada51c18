"""The metadata epoch (KIP-232): its propagation to nodes and clients, and the protection of consumers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from chaos.checks.check import Check, CheckContext, Inspection, fields_of
from chaos.checks.history import OFFSETS_TOPIC, History, TopicPartition, grouped, partition_of
from chaos.checks.log.batches import read_batches, records_in
from chaos.checks.sessions.fetch_model import FETCH
from reference_broker.core.events import Closed, Effect, Event, Note, PeerDown, PeerReply, Reply, Request, Send
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.cache import MetadataCache
from reports.rows import CommitRow, EndRow, PositionRow, ResetRow, TraceRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node


EPOCH_COMMITTED, APPLIED = "metadata_epoch", "update_metadata_applied"


class NonmonotonicMetadataEpoch(Check):
    """nonmonotonic-metadata-epoch: no client and no node accepts metadata that is older than its own, and the metadata
    log has each epoch once.

    A client that restarts begins without an epoch (M-12: -1 before any response), and so does a new process of a node,
    because M-1 makes the log durable, but not the applied state of a node. The log's epochs grow with its offsets.
    """

    guarantee = "nonmonotonic-metadata-epoch"
    rows: ClassVar[tuple[str, ...]] = (EPOCH_COMMITTED, APPLIED)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._applied: dict[tuple[int, int], int] = {}
        self._offset_of: dict[int, int] = {}
        self._epoch_at: dict[int, int] = {}
        self._last = (-1, -1)

    def trace(self, row: TraceRow) -> None:
        fields = fields_of(row)
        epoch = int(fields["epoch"])
        if row.what == APPLIED:
            key = (row.node, row.incarnation)
            known = self._applied.get(key, -1)
            if epoch < known:
                self.violated(row.at_us, f"node {row.node} had metadata epoch {known} and applied {epoch}")
            self._applied[key] = max(known, epoch)
            return
        self._in_the_log(row.at_us, epoch, int(fields["offset"]))

    def _in_the_log(self, at_us: int, epoch: int, offset: int) -> None:
        """All notes of a committed epoch must name the same offset."""
        if self._epoch_at.get(offset, epoch) != epoch or self._offset_of.get(epoch, offset) != offset:
            other = self._offset_of.get(epoch, offset)
            self.violated(at_us, f"metadata epoch {epoch} was committed at offset {offset}, and at {other}")
        elif offset not in self._epoch_at and offset > self._last[0] and epoch <= self._last[1]:
            self.violated(
                at_us,
                f"metadata epoch {epoch} was committed at offset {offset}, behind {self._last[1]} at {self._last[0]}",
            )
        self._epoch_at.setdefault(offset, epoch)
        self._offset_of.setdefault(epoch, offset)
        self._last = max(self._last, (offset, epoch))

    def end(self, history: History) -> None:
        left = grouped((row for row in history.memberships if row.event == "left"), lambda row: row.process)
        joined = grouped((row for row in history.memberships if row.event == "joined"), lambda row: row.process)
        known: dict[tuple[str, int], int] = {}
        for epoch in sorted(history.metadata_epochs, key=lambda row: (row.at_us, row.index)):
            if not epoch.accepted:
                continue
            self.evidence += 1
            # Metadata that the client requested before it left, or in that microsecond, belongs to its earlier life,
            # even if the response came later.
            operation = history.operation_of.get((epoch.process, epoch.index))
            from_us = epoch.at_us if operation is None else operation.invoke_us
            ends_us = [row.at_us for row in left.get(epoch.process, ()) if row.at_us < from_us]
            # Physical: a client that leaves still reads metadata, and nothing shows when the next one takes its place.
            if ends_us and not any(ends_us[-1] < row.at_us <= epoch.at_us for row in joined.get(epoch.process, ())):
                continue
            life = len(ends_us)
            newest = known.get((epoch.process, life), epoch.metadata_epoch)
            if epoch.metadata_epoch < newest:
                self.violated(
                    epoch.at_us,
                    f"{epoch.process} had metadata epoch {newest} and took {epoch.metadata_epoch} "
                    f"from node {epoch.node}",
                )
            known[epoch.process, life] = max(newest, epoch.metadata_epoch)


Content: TypeAlias = tuple[object, ...]
METADATA, FIRST_DRAFT = 3, 1000
"""Kafka's API key, and the first version whose response has the epoch (D-1)."""


class OneContentPerEpoch(Check):
    """one-content-per-epoch: nodes that send clients the same metadata epoch send the same content with it.

    After each new epoch at a node its whole cache is compared with that of the first node with this epoch, since caches
    in the simulator are small. A response to a client must have the epoch of the metadata that the node sends (M-4).
    Physical: the response is built in slices, so it may have any epoch that the node had since the request. Until a
    controller has sent the node an update, there is no epoch to compare.

    In a live run the check is inside one node's process, so it judges only the responses of that node.
    """

    guarantee = "one-content-per-epoch"
    inspection = Inspection.AFTER_EVENTS
    needs_one_node = True
    acts_on = (METADATA, Closed)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._content: dict[int, tuple[int, Content]] = {}
        self._seen: dict[int, tuple[int, int]] = {}
        self._requested: dict[tuple[int, int], int] = {}
        """epoch that a node had when a client's request came, by node and connection"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id, epoch = node.broker.node_id, node.broker.metadata.metadata_epoch
        if type(event) is Request and event.api_key == METADATA and event.api_version >= FIRST_DRAFT:
            self._requested[node_id, event.connection] = epoch
        elif type(event) is Closed:
            self._requested.pop((node_id, event.connection), None)
        for effect in effects:
            if type(effect) is Reply and effect.api_key == METADATA and effect.api_version >= FIRST_DRAFT:
                since = self._requested.pop((node_id, effect.connection), epoch)
                self._check_response(at_us, node_id, since, epoch, effect.body)

    def _check_response(self, at_us: int, node_id: int, since: int, epoch: int, body: object) -> None:
        sent = getattr(body, "metadata_epoch", -1)
        if since >= 0 and epoch >= 0 and not since <= sent <= epoch:
            self.violated(at_us, f"node {node_id} has metadata epoch {epoch} and sent a client {sent}")

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        if self.context.alone:
            return
        cache, node_id = node.broker.metadata, node.broker.node_id
        # M-11: -1 means that no controller has sent the node anything.
        if cache.metadata_epoch < 0 or self._seen.get(node_id) == (incarnation, cache.metadata_epoch):
            return
        self._seen[node_id] = (incarnation, cache.metadata_epoch)
        content = content_of(cache)
        first, known = self._content.setdefault(cache.metadata_epoch, (node_id, content))
        if known != content:
            differs = [before for before, other in zip(known, content, strict=False) if before != other][:1]
            self.violated(
                at_us,
                f"nodes {first} and {node_id} have different content with metadata epoch {cache.metadata_epoch}: "
                f"{differs or (len(known), len(content))}",
            )


def content_of(cache: MetadataCache) -> Content:
    """Return what a Metadata response is made of, in a fixed order."""
    topics = (
        (name, topic.topic_id, index, each.leader, each.leader_epoch, each.replicas, each.isr)
        for name, topic in sorted(cache.topics.items())
        for index, each in enumerate(topic.partitions)
    )
    return (tuple(broker.broker_id for broker in cache.live_brokers()), cache.controller_epoch, *topics)


class NoFetchBeforeEpoch(Check):
    """no-fetch-before-epoch: a consumer fetches from a partition only once its metadata is new enough.

    Its metadata must be at least as new as the metadata epoch that was stored with the offset where the consumer
    begins. The offset comes from a commit (M-10) or from a store outside Kafka (M-13). A client that restarted has no
    epochs.
    """

    guarantee = "no-fetch-before-epoch"

    def end(self, history: History) -> None:
        owed = [row for row in received_offsets(history) if row.metadata_epoch >= 0]
        self.evidence += len(owed)
        if not owed:
            return
        fetches = history.with_operations(history.positions, "fetch")
        fetched = grouped(fetches, lambda fetch: (fetch[0].process, partition_of(fetch[0])))
        accepted = grouped((row for row in history.metadata_epochs if row.accepted), lambda row: row.process)
        left = grouped((row for row in history.memberships if row.event == "left"), lambda row: row.process)
        for row in sorted(owed, key=lambda row: row.process):
            starts = [
                (operation.invoke_us, position.index)
                for position, operation in fetched.get((row.process, partition_of(row)), ())
                if operation.invoke_us >= row.at_us
            ]
            if not starts:
                continue
            first_us, first = min(starts)
            since_us = max((each.at_us for each in left.get(row.process, ()) if each.at_us <= first_us), default=-1)
            if since_us > row.at_us:
                continue  # The client left meanwhile, and received the offset again when it came back.
            known = [each.metadata_epoch for each in accepted.get(row.process, ()) if since_us < each.at_us <= first_us]
            newest = max(known, default=-1)
            if newest < row.metadata_epoch:
                self.violated(
                    first_us,
                    f"{row.process} fetched {row.topic}-{row.partition} (operation {first}) with metadata epoch "
                    f"{newest}; the offset from operation {row.index} has epoch {row.metadata_epoch}",
                )


def received_offsets(history: History) -> Iterator[CommitRow]:
    """Yield the rows with which a consumer receives an offset, from its coordinator or from outside."""
    return (row for row in history.commits if row.kind in ("fetched", "loaded") and row.error is None)


OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"


class Rewinds(Check):
    """rewinds: no client that keeps metadata epochs gets OFFSET_OUT_OF_RANGE at a position that exists in its
    partition.

    Some positions do not count:
    - Below a log start that was seen, because those records were deleted. The log start may have moved before the reset
      although it was first seen after it.
    - Above the log's end once all is quiet, or above an offset where a replica truncated its log after a client had
      read up to the position and before the reset: M-15 is about logs without truncation. An earlier truncation is no
      excuse, since the log has grown again since then. Nor is a later one, by a stale leader that returns.
    - Positions of clients without the metadata epoch (-1): their rewind is the failure that the epoch prevents (M-15).
    - Positions of a client that began at an offset which was committed without an epoch (M-11): it has no epoch to wait
      for.
    """

    guarantee = "rewinds"
    rows: ClassVar[tuple[str, ...]] = ("truncated", "truncated_below_high_watermark")

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._cuts: list[tuple[str, int, int]] = []
        """partition as nodes name it, the log's end after the cut, time"""

    def trace(self, row: TraceRow) -> None:
        fields = fields_of(row)
        if "partition" in fields:  # The metadata log's name no partition.
            self._cuts.append((fields["partition"], fields["offset"], row.at_us))

    def end(self, history: History) -> None:
        keepers = {row.process for row in history.metadata_epochs if row.accepted and row.metadata_epoch >= 0}
        self.evidence += sum(row.process in keepers for row in history.positions)
        starts: dict[TopicPartition, int] = {}
        rows: list[PositionRow | EndRow] = [*history.positions, *history.ends]
        for row in rows:
            starts[partition_of(row)] = max(starts.get(partition_of(row), 0), row.log_start_offset)
        began = grouped(received_offsets(history), lambda row: (row.process, partition_of(row)))
        ends = {partition_of(row): row.high_watermark for row in history.ends}
        for reset in history.resets:
            partition = partition_of(reset)
            is_lost = reset.from_offset > ends.get(partition, reset.from_offset)
            is_held = starts.get(partition, 0) <= reset.from_offset and not is_lost
            has_epoch = reset.metadata_epoch >= 0 and _had_epoch(reset, began.get((reset.process, partition), []))
            if reset.reason == OUT_OF_RANGE and is_held and has_epoch and not self._was_cut_off(reset, history):
                self.violated(
                    reset.at_us,
                    f"{reset.process} was at offset {reset.from_offset} of {reset.topic}-{reset.partition}, got "
                    f"OFFSET_OUT_OF_RANGE and went on at {reset.to_offset}; its metadata epoch was "
                    f"{reset.metadata_epoch}",
                )

    def _was_cut_off(self, reset: ResetRow, history: History) -> bool:
        """Return whether a replica truncated its log below the position between the first read up to there and the
        reset."""
        name = f"{reset.topic}-{reset.partition}"
        cuts = [at_us for partition, offset, at_us in self._cuts if partition == name and offset < reset.from_offset]
        if not cuts:
            return False
        came = (
            history.ended_us(row)
            for row in history.positions
            if partition_of(row) == partition_of(reset) and row.error is None and row.next_offset >= reset.from_offset
        )
        reached_us = min(came, default=0)
        return any(reached_us <= at_us <= reset.at_us for at_us in cuts)


def _had_epoch(reset: ResetRow, of_place: list[CommitRow]) -> bool:
    """Return whether the offset at which the client began had a metadata epoch."""
    before = [row for row in of_place if row.at_us <= reset.at_us]
    last = max(before, key=lambda row: row.at_us, default=None)
    return last is None or last.metadata_epoch >= 0 or last.offset < 0


FEATURE = "crucible.metadata.epoch"
UPDATE_METADATA = 6
"""Kafka's API key, which D-1 keeps for the draft."""
OFFSET_KEY_VERSIONS = (0, 1)
WITH_EPOCH = 4
"""Version of an offset's value that holds the epoch, as a tagged field."""


class SwitchRespected(Check):
    """switch-respected: nothing uses the metadata epoch before ``crucible.metadata.epoch`` is finalized or after it was
    disabled, and clients with an epoch continue then (M-14).

    A node whose image has the feature at level 0 sends no UpdateMetadata, and stores offsets in Kafka's own schema,
    without the epoch. At level 0 no epoch is written, so the epoch in its image stays the same. Until a node has
    applied the finalized feature, no offset has an epoch. A node that has applied level 0 ignores updates up to the
    epoch of its image at that time, also after the feature was enabled again.

    A node that has sent clients an epoch sends no smaller one while its process lives. Clients drop metadata with a
    smaller one (M-5), so they would accept none any more.

    With ``alone`` the check sees one node only, and judges only what is appended while this node leads. It also does so
    once a node has seen the feature finalized: that one may have stored epochs before this one became leader.
    """

    guarantee = "switch-respected"
    inspection = Inspection.AFTER_EVENTS
    needs_one_node = True
    acts_on = ((Send, UPDATE_METADATA), METADATA, APPLIED, NoneType)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._alone = context.alone
        self._on = False
        """whether some node has seen the feature finalized"""
        self._off: dict[int, tuple[int, int]] = {}
        """For each node with the feature at level 0: since when it was seen so, and the metadata epoch of its image."""
        self._overtaken: dict[int, int] = {}
        """by node: the metadata epoch of its image when it saw level 0 last"""
        self._read_to: dict[tuple[int, int, str, int, int], int] = {}
        self._sent_epochs: dict[int, int] = {}
        """greatest epoch that each node has sent to clients"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        if event is None:
            self._sent_epochs.pop(node.broker.node_id, None)
            self._off.pop(node.broker.node_id, None)
            self._overtaken.pop(node.broker.node_id, None)
        for effect in effects:
            if type(effect) is Note and effect.what == APPLIED:
                self._check_applied(at_us, node.broker.node_id, int(dict(effect.fields)["epoch"]))
            elif type(effect) is Reply and effect.api_key == METADATA:
                self._check_sent(at_us, node.broker.node_id, getattr(effect.body, "metadata_epoch", None))
        self._see(at_us, node)
        since_us, _ = self._off.get(node.broker.node_id, (at_us, -1))
        # It may have sent an update in the event in which it saw level 0.
        if since_us < at_us or not self._on:
            for effect in effects:
                if type(effect) is Send and effect.api_key == UPDATE_METADATA:
                    self.violated(at_us, f"node {node.broker.node_id} sent UpdateMetadata while {FEATURE} was at 0")

    def _see(self, at_us: int, node: "Node") -> None:
        """Record whether the node's image has the feature, and check that the epoch does not change while it has
        not."""
        if not node.listening:
            return  # It has no image yet.
        node_id, image = node.broker.node_id, node.broker.loader.image
        if image.features.get(FEATURE, 0) > 0:
            self._on = True
            self._off.pop(node_id, None)
            return
        _, epoch = self._off.setdefault(node_id, (at_us, image.metadata_epoch))
        self._overtaken[node_id] = image.metadata_epoch
        if epoch and image.metadata_epoch != epoch:  # 0: it may have read all changes of another node at once.
            self.violated(at_us, f"node {node_id} read metadata epoch {image.metadata_epoch} while {FEATURE} was at 0")
            self._off[node_id] = at_us, image.metadata_epoch

    def _check_applied(self, at_us: int, node_id: int, epoch: int) -> None:
        """Judge an update by what the node had seen before this event."""
        overtaken = self._overtaken.get(node_id, 0)
        self.evidence += overtaken > 0
        if 0 < epoch <= overtaken:
            self.violated(
                at_us,
                f"node {node_id} applied an update of metadata epoch {epoch}, and {FEATURE} was switched off after "
                f"{overtaken} (M-14)",
            )

    def _check_sent(self, at_us: int, node_id: int, epoch: int | None) -> None:
        if epoch is None:
            return  # Only the draft versions of Metadata have one.
        before = self._sent_epochs.setdefault(node_id, epoch)
        if epoch < before:
            self.violated(at_us, f"node {node_id} sent a client metadata epoch {epoch} after {before}")
        self._sent_epochs[node_id] = max(before, epoch)

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        self._see(at_us, node)
        node_id = node.broker.node_id
        if node_id not in self._off or OFFSETS_TOPIC not in node.broker.partitions.topic_ids:
            return
        since_us, _ = self._off[node_id]
        for (topic, index), partition in node.broker.partitions.by_name.items():
            if topic == OFFSETS_TOPIC:
                term = (partition.leader_epoch, since_us) if self._alone or self._on else (0, 0)
                self._look(at_us, (node_id, incarnation, f"{topic}-{index}", *term), partition.log)

    def _look(self, at_us: int, key: tuple[int, int, str, int, int], log: UnifiedLog) -> None:
        """Read the records appended since the last call. If other nodes may store epochs, these are the records that
        this node has appended while it leads and knows level 0."""
        node_id, name = key[0], key[2]
        end = log.log_end_offset
        offset = max(self._read_to.setdefault(key, end if self._alone or self._on else 0), log.log_start_offset)
        if offset >= end:
            self._read_to[key] = offset
            return
        self._read_to[key] = end
        for batch, data in read_batches(log, offset, end):
            for record in records_in(data):
                if _is_offset(record.key) and _version(record.value) >= WITH_EPOCH:
                    self.violated(
                        at_us,
                        f"node {node_id} wrote an offset with its metadata epoch in {name} {batch.named} while "
                        f"{FEATURE} was at 0",
                    )


def _is_offset(key: bytes | None) -> bool:
    return _version(key) in OFFSET_KEY_VERSIONS


def _version(data: bytes | None) -> int:
    """Return the version, an int16 at the start of both keys and values."""
    return -1 if data is None or len(data) < 2 else int.from_bytes(data[:2], "big")


METADATA_COMMITTED = "metadata_committed"
MAX_US = 300_000
"""limits how long an update may wait without a reason; it is made in slices of a few milliseconds"""
STILL_US = 250_000
"""A process that has done nothing for this time may have been stopped."""
LONGEST_PAUSE_US = 800_000


@dataclass(slots=True)
class _Controller:
    """The updates that one process has sent in one term."""

    node: "Node"
    seen_us: int
    term: int = -1
    held_us: int = 0
    """time until which it could not send at all"""
    content_us: int = 0
    sent: dict[int, Send] = field(default_factory=dict)
    """the unacknowledged update of each broker"""
    sent_us: dict[int, int] = field(default_factory=dict)
    """the time at which it was sent"""
    due_us: dict[int, int] = field(default_factory=dict)
    """the time since which each broker lacks an update that could be sent"""
    active_us: int = -1
    """when it became the active controller, -1 once it has committed an epoch for that, or need not"""


ACTIVATED = "controller_activated"
TAKEOVER_US = 1_000_000
"""An idle controller commits the epoch of its first update within this time of its activation. No clause gives one."""


class UpdatesSentAtOnce(Check):
    """updates-sent-at-once: UpdateMetadata goes to all live brokers at the same time (M-3).

    An update to one broker does not wait for the response of another one. The controller sends a broker an update soon
    after its newest content was committed, or soon after the broker's response to the previous update, or after the
    pause that follows a failure. A new controller always sends an update: clients learn the controller from it, and a
    broker may lack the last update of the former one.

    Physical: nothing is sent while a metadata transaction is being written (M-2). A process that is stopped sends
    nothing; it does nothing else then either.
    """

    guarantee = "updates-sent-at-once"
    needs_one_node = True
    acts_on = ((Send, UPDATE_METADATA), PeerReply, PeerDown, FETCH, EPOCH_COMMITTED, METADATA_COMMITTED, ACTIVATED)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._controllers: dict[int, _Controller] = {}

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        known = self._controllers.get(node.broker.node_id)
        if known is None or known.node is not node:
            known = self._controllers[node.broker.node_id] = _Controller(node, at_us)
        if at_us - known.seen_us > STILL_US or node.broker.quorum_node.controller.is_writing_transaction:
            known.held_us = at_us
        known.seen_us = at_us
        if known.sent and isinstance(event, (PeerReply, PeerDown)) and event.peer in known.sent:
            _take_response(at_us, known, event)
        for effect in effects:
            if type(effect) is Note and effect.what == ACTIVATED:
                known.active_us = at_us
            elif type(effect) is Note and effect.what == EPOCH_COMMITTED:
                known.active_us = -1
                _has_content(at_us, known, dict(effect.fields))
            elif type(effect) is Note and effect.what == METADATA_COMMITTED and dict(effect.fields)["kind"] != "batch":
                known.held_us = at_us
            elif type(effect) is Send and effect.api_key == UPDATE_METADATA:
                self._sent(at_us, known, effect)

        if known.active_us >= 0:
            self._took_over(at_us, node, known)

    def _took_over(self, at_us: int, node: "Node", known: _Controller) -> None:
        """Judge a controller that has not committed an epoch yet."""
        replica = node.broker.quorum_node
        if not replica.quorum.is_leader or replica.loader.image.features.get(FEATURE, 0) < 1:
            known.active_us = -1
        # Physical: while records wait for a majority, the epoch does, too.
        elif replica.quorum.high_watermark < replica.log.log.log_end_offset:
            known.active_us = at_us
        elif at_us - max(known.active_us, known.held_us) > TAKEOVER_US:
            known.active_us = -1
            self.violated(
                at_us,
                f"node {node.broker.node_id} has been the active controller for {TAKEOVER_US // 1000} ms, all of its "
                "records are committed, and it sends no update (M-2, M-3)",
            )

    def _sent(self, at_us: int, known: _Controller, send: Send) -> None:
        self.evidence += 1
        waited_us = at_us - max(known.held_us, known.due_us.pop(send.peer, at_us))
        known.sent[send.peer], known.sent_us[send.peer] = send, at_us
        if waited_us > MAX_US:
            node_id = known.node.broker.node_id
            self.violated(at_us, f"node {node_id} sent broker {send.peer} an update {waited_us // 1000} ms late")


def _has_content(at_us: int, known: _Controller, fields: Mapping[str, int | str]) -> None:
    """The newest content was committed: each live broker lacks it. A fenced one is sent nothing."""
    if known.term != int(fields["controller_epoch"]):
        known.term = int(fields["controller_epoch"])
        known.sent.clear()
        known.due_us.clear()
    known.content_us = at_us
    for broker_id, broker in known.node.broker.loader.image.brokers.items():
        if broker.fenced:
            known.due_us.pop(broker_id, None)
        elif broker_id not in known.sent:
            known.due_us.setdefault(broker_id, at_us)


def _take_response(at_us: int, known: _Controller, event: PeerReply | PeerDown) -> None:
    sent = known.sent[event.peer]
    if event.channel is not sent.channel or (isinstance(event, PeerReply) and event.token != sent.token):
        return
    del known.sent[event.peer]
    if isinstance(event, PeerDown) or bool(getattr(event.body, "error_code", 0)):
        known.due_us[event.peer] = at_us + LONGEST_PAUSE_US
    elif known.content_us > known.sent_us[event.peer]:
        known.due_us[event.peer] = at_us
