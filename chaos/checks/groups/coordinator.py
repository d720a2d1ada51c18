"""Group coordinators compared with their logs: what it loads, returns, acknowledges and removes."""

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos.checks.check import CheckContext, OffsetsCheck, ReplicaCheck
from chaos.checks.groups.committed_offsets import DELETE_GROUPS, DELETE_OFFSETS, Deletions, deleted
from chaos.checks.groups.group_state import (
    Change,
    Committed,
    Key,
    LoggedGroup,
    OffsetsPartition,
    Replay,
    logged_batches,
)
from chaos.checks.groups.state_changes import LOADED
from chaos.checks.history import OFFSETS_TOPIC, History
from chaos.checks.pending_requests import PendingRequests
from chaos.checks.replication.replica_view import offsets_partition
from reference_broker.core.events import Closed, Effect, Event, Note, Reply, Request

if TYPE_CHECKING:
    from reference_broker.core.node import Node


COMMIT, FETCH, SYNC, TXN_COMMIT = 8, 9, 14, 28
NONE, UNSTABLE_OFFSET_COMMIT = 0, 88
LOADED_IN_PART = "coordinator_loaded_in_part"
LATE_US = 50_000
"""Physical: a long transaction is decided in slices, and a long response is built in slices."""


class _Parked(NamedTuple):
    body: Any
    requested_us: int


class ResponsesReplicated(OffsetsCheck):
    """no-committed-lost (M-8, X-8): a coordinator responds with values that are committed in its log, and with no
    others.

    - OffsetCommit and TxnOffsetCommit are acknowledged when a record with that offset is committed.
    - OffsetFetch returns the last committed offset of each partition, with its leader epoch, metadata and metadata
      epoch, and -1 where there is none. If the topics are null it returns all offsets of the group. An offset of a
      transaction counts from its commit marker on, and never after an abort. With ``require_stable`` a partition with
      an offset of an open transaction gets UNSTABLE_OFFSET_COMMIT, and no other partition does.
    - A parked SyncGroup gets its assignment when that is committed.

    A coordinator that does not know yet that it was replaced may return old offsets, and is not judged. After a loss of
    committed records (E-7) nothing is judged.
    """

    guarantee = "no-committed-lost"
    acts_on = (COMMIT, FETCH, SYNC, TXN_COMMIT, Closed, type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._pending = PendingRequests[_Parked]()
        self._replied: list[tuple[_Parked, Reply, bool]] = []
        """responses of the current event, which the view has not followed yet"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        self._replied = []
        requested = None
        if event is None:
            self._pending.restarted(node_id)
        elif type(event) is Closed:
            self._pending.closed(node_id, event.connection)
        elif type(event) is Request and event.api_key in self.acts_on:
            requested = _Parked(event.body, at_us)
            self._pending.add(node_id, event, requested)
        for effect in effects:
            if type(effect) is Reply and effect.api_key in self.acts_on:
                of = self._pending.pop(node_id, effect)
                if of is not None:
                    self._replied.append((of, effect, of is requested))
        if self._replied:
            self.context.replicas.after_event(node, self._judge)

    def _judge(self, at_us: int, node: "Node") -> None:
        replied, self._replied = self._replied, []
        for of, reply, is_at_once in replied:
            body: Any = reply.body
            if reply.api_key == FETCH:
                wrong = self._wrong_fetches(at_us, node, of.body, body)
            elif reply.api_key == SYNC:
                wrong = iter(()) if is_at_once or body.error_code else self._wrong_sync(node, of.body, body)
            else:
                wrong = self._wrong_commits(node, of, body, reply.api_key == TXN_COMMIT)
            for each in wrong:
                self.violated(at_us, f"node {node.broker.node_id} {each}")

    def _partition(self, node: "Node", group: str) -> OffsetsPartition | None:
        topic = node.broker.quorum_node.loader.image.topics.get(OFFSETS_TOPIC)
        return None if topic is None else self.offsets.led_by(node, offsets_partition(group, len(topic.partitions)))

    def _wrong_commits(self, node: "Node", of: _Parked, response: Any, transactional: bool) -> Iterator[str]:
        group = str(of.body.group_id)
        partition = self._partition(node, group)
        if partition is None:
            return
        errors = {
            (str(topic.name), int(each.partition_index)): int(each.error_code)
            for topic in response.topics
            for each in topic.partitions
        }
        named = [(str(topic.name), each) for topic in of.body.topics for each in topic.partitions]
        last = {(topic, int(each.partition_index)): each for topic, each in named}
        for (topic, index), each in last.items():
            if (
                errors.get((topic, index)) != NONE
                or sum(commit[0] == topic and commit[1].partition_index == index for commit in named) > 1
            ):
                continue
            self.evidence += 1
            key: Key = group, topic, index
            given = int(each.committed_offset), str(each.committed_metadata or "")
            if transactional:
                sent = [value for at, _, value in partition.opened.get(key, ()) if at >= of.requested_us]
            else:
                sent = partition.since(key, of.requested_us)
            known = [(value.offset, value.metadata) for value in sent if value is not None]
            if given not in known:
                yield (
                    f"acknowledged offset {given[0]} of {topic}-{index} for group {group}, and since the request "
                    f"only {known or 'nothing'} is committed"
                )

    def _wrong_sync(self, node: "Node", body: Any, response: Any) -> Iterator[str]:
        group = str(body.group_id)
        partition = self._partition(node, group)
        known = None if partition is None else partition.state.groups.get(group)
        if partition is None:
            return
        self.evidence += 1
        member = None if known is None else known.members.get(str(body.member_id))
        given = int(body.generation_id), bytes(response.assignment)
        stored = None if known is None or member is None else (known.generation, member.assignment)
        if given != stored:
            yield f"returned {given} to {body.member_id} of group {group}, and {stored} is committed"

    def _wrong_fetches(self, at_us: int, node: "Node", body: Any, response: Any) -> Iterator[str]:
        requires_stable = bool(getattr(body, "require_stable", False))
        requested = list(getattr(body, "groups", ())) or [body]
        responses = {str(each.group_id): each for each in getattr(response, "groups", ())}
        for each in requested:
            group = str(each.group_id)
            of_group: Any = responses.get(group, response)
            partition = self._partition(node, group)
            if partition is not None and int(getattr(of_group, "error_code", NONE)) == NONE:
                yield from self._wrong_fetch(at_us, group, partition, each, of_group, requires_stable)

    def _wrong_fetch(
        self, at_us: int, group: str, partition: OffsetsPartition, body: Any, response: Any, requires_stable: bool
    ) -> Iterator[str]:
        since_us = at_us - LATE_US
        named = {(str(topic.name), int(each.partition_index)) for topic in response.topics for each in topic.partitions}
        if body.topics is None:
            missing = [
                key
                for key in partition.state.offsets
                if key[0] == group and key[1:] not in named and None not in partition.since(key, since_us)
            ]
            if missing:
                yield f"returned all offsets of group {group} without {missing}"
        for topic in response.topics:
            for returned in topic.partitions:
                key: Key = group, str(topic.name), int(returned.partition_index)
                self.evidence += 1
                wrong = _wrong_offset(partition, key, returned, since_us, requires_stable)
                if wrong:
                    yield f"returned {wrong} of {key[1]}-{key[2]} for group {group}"


def _wrong_offset(partition: OffsetsPartition, key: Key, returned: Any, since_us: int, requires_stable: bool) -> str:
    error = int(getattr(returned, "error_code", NONE))
    was_open = partition.open_since(key, since_us)
    if error == UNSTABLE_OFFSET_COMMIT:
        if not requires_stable:
            return "UNSTABLE_OFFSET_COMMIT to a client that does not require stable offsets (X-8)"
        return (
            "" if True in was_open else "UNSTABLE_OFFSET_COMMIT, and no open transaction has committed the offset (X-8)"
        )
    if error:
        return ""
    offset = int(returned.committed_offset)
    if requires_stable and False not in was_open:
        return f"offset {offset}, and an open transaction has committed another one (X-8)"
    values = partition.since(key, since_us)
    if any(_matches(returned, value) for value in values):
        return ""
    known = ["nothing" if value is None else _described(value) for value in values]
    leader_epoch = getattr(returned, "committed_leader_epoch", None)
    return f"offset {offset}, leader epoch {leader_epoch}, and {known} is committed (M-8)"


def _described(value: Committed) -> str:
    return (
        f"offset {value.offset}, leader epoch {value.leader_epoch}, metadata epoch {value.metadata_epoch}, text "
        f"{value.metadata!r}"
    )


def _matches(returned: Any, value: Committed | None) -> bool:
    """Return whether a partition of a response has this value. Some versions lack some fields."""
    due = (
        (-1, -1, "", -1) if value is None else (value.offset, value.leader_epoch, value.metadata, value.metadata_epoch)
    )
    given = (
        int(returned.committed_offset),
        int(getattr(returned, "committed_leader_epoch", due[1])),
        str(returned.metadata or ""),
        int(getattr(returned, "metadata_epoch", due[3])),
    )
    return given == due


class LoadedIsReplayed(OffsetsCheck):
    """groups-consistent (M-8, X-13): a coordinator that has loaded a partition has the groups and offsets of its log.

    For a group, and for the offset of a partition, the last record counts, and a tombstone removes it. Groups count up
    to the end of the log, offsets up to the high watermark. The members have their timeouts, subscriptions and
    assignments. A group that only a transaction has committed offsets for is there until its marker is below the high
    watermark. A load that skipped damaged records is not judged. The record that a coordinator appends for a group
    has the group's whole state, so that the next coordinator continues with the same group.
    """

    guarantee = "groups-consistent"
    acts_on = (LOADED,)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.offsets.on_group_appended.append(self.group_appended)

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        notes = [effect for effect in effects if type(effect) is Note]
        damaged = [dict(each.fields)["partition"] for each in notes if each.what == LOADED_IN_PART]
        for note in notes:
            if note.what == LOADED:
                index = int(dict(note.fields)["partition"])
                if f"{OFFSETS_TOPIC}-{index}" not in damaged:
                    self.context.replicas.after_event(node, partial(self._judge, index))

    def group_appended(self, at_us: int, node: "Node", group_id: str, value: LoggedGroup) -> None:
        partition = next((each for each in node.broker.groups.active() if group_id in each.groups), None)
        if partition is not None:
            self.evidence += 1
            for each in _wrong_group(group_id, partition.groups[group_id], value):
                self.violated(at_us, f"node {node.broker.node_id} has appended a record of a group, and {each}")

    def _judge(self, index: int, at_us: int, node: "Node") -> None:
        partition = next((each for each in node.broker.groups.active() if each.index == index), None)
        if partition is None:
            return
        log = partition.led.log
        committed, undecided, whole = Replay(), Replay(), Replay()
        for batch in logged_batches(log, log.local_log_start_offset, log.log_end_offset):
            replays = [whole]
            if batch.end_offset <= log.high_watermark:
                replays += [committed, undecided]
            elif batch.marker < 0:
                replays.append(undecided)
            for replay in replays:
                for _ in replay.apply(batch):
                    pass
        self.evidence += 1
        with_offsets = {key[0] for key in (*whole.offsets, *whole.open, *undecided.open)}
        wrong = [*_wrong_groups(partition, whole, with_offsets), *_wrong_offsets(partition, committed)]
        for each in wrong[:3]:
            self.violated(at_us, f"node {node.broker.node_id} has loaded {log.directory}, and {each}")


def _wrong_group(group_id: str, group: Any, due: LoggedGroup) -> Iterator[str]:
    """Yield what differs between a group and its record."""
    kept = group.generation, group.protocol_type or "", group.protocol if group.members else None
    logged = due.generation, due.protocol_type, due.protocol
    if kept != logged:
        yield f"group {group_id} has generation, type and protocol {kept}, and its record {logged}"
    members = {
        key: (
            *(each.group_instance_id, each.rebalance_timeout_ms, each.session_timeout_ms),
            *(each.metadata(due.protocol), each.assignment),
        )
        for key, each in group.members.items()
    }
    if members != {key: tuple(each) for key, each in due.members.items()}:
        yield f"group {group_id} has members {members}, and its record {due.members}"
    if due.leader in due.members and group.leader != due.leader:
        yield f"group {group_id} has leader {group.leader}, and its record {due.leader}"


def _wrong_groups(partition: Any, whole: Replay, with_offsets: Collection[str]) -> Iterator[str]:
    for group_id, due in whole.groups.items():
        group = partition.groups.get(group_id)
        if group is None:
            yield f"group {group_id} is missing, and its record has generation {due.generation}"
            continue
        yield from _wrong_group(group_id, group, due)
    for group_id in partition.groups:
        if group_id not in whole.groups and group_id not in with_offsets:
            yield f"group {group_id} is there, and the log has no record of it"


def _wrong_offsets(partition: Any, committed: Replay) -> Iterator[str]:
    for key, due in committed.offsets.items():
        stored = partition.offsets.of(key[0]).get(key[1], {}).get(key[2])
        kept = None if stored is None else (stored.commit.offset, stored.commit.leader_epoch, stored.commit.metadata)
        if kept != (due.offset, due.leader_epoch, due.metadata):
            yield f"{key} has {kept}, and {_described(due)} is committed"
    for group_id in partition.groups:
        for topic, partitions in partition.offsets.of(group_id).items():
            for index in partitions:
                if (group_id, topic, index) not in committed.offsets:
                    yield f"{(group_id, topic, index)} has an offset, and none is committed"


DECIDED_AT_ONCE = 250
"""Physical: a coordinator may decide a transaction with more offsets in several events, and with short slices any."""


class HeldOffsetsReplicated(OffsetsCheck, ReplicaCheck):
    """no-committed-lost (M-8, X-8, KAFKA-5247): a coordinator has in memory for each partition of a group the last
    committed offset of its log, and the pending offsets of open transactions.

    The check compares the keys of each committed batch, and those that a marker decides. A commit marker makes an
    offset valid, unless the key has a later record. An abort marker, or a tombstone of the key, drops it.

    Physical: a coordinator may decide a long transaction in slices. Until it has finished, it also withholds offsets
    that were committed behind the marker. So these keys are compared until they are right, which must be within
    ``LATE_US``.
    """

    guarantee = "no-committed-lost"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.offsets.on_offsets_touched.append(self.offsets_touched)
        self.replicas.on_viewed.append(self.viewed)
        self._new: dict[int, dict[int, dict[Key, None]]] = {}
        """by node and index: keys that the current event touched"""
        self._late: dict[tuple[int, int], tuple[Node, dict[Key, int]]] = {}
        """by node and index: its process, and the keys that may be wrong, each with the time from which it may be"""

    def offsets_touched(self, node: "Node", partition: OffsetsPartition, keys: Sequence[Key]) -> None:
        of_node = self._new.setdefault(node.broker.node_id, {})
        of_node.setdefault(partition.index, {}).update(dict.fromkeys(keys))
        self.context.replicas.after_event(node, self._judge)

    def _judge(self, at_us: int, node: "Node") -> None:
        node_id, is_sliced = node.broker.node_id, self.context.settings.slices_us > 0
        for index, keys in self._new.pop(node_id, {}).items():
            of_node, late = self._late.get((node_id, index), (node, {}))
            if of_node is not node:
                late = {}
            if late or is_sliced or len(keys) > DECIDED_AT_ONCE:
                for key in keys:
                    late.setdefault(key, at_us)
                self._late[node_id, index] = node, late
                self._compare(at_us, node, index, late, LATE_US + self.context.settings.slices_us)
            else:
                self._compare(at_us, node, index, dict.fromkeys(keys, at_us), None)

    def viewed(self, at_us: int, node: "Node") -> None:
        for (node_id, index), (of_node, keys) in list(self._late.items()):
            if node_id == node.broker.node_id:
                if of_node is node:
                    self._compare(at_us, node, index, keys, LATE_US + self.context.settings.slices_us)
                if of_node is not node or not keys:
                    del self._late[node_id, index]

    def end(self, history: History) -> None:
        for (_, index), (node, keys) in self._late.items():
            self._compare(history.end_us, node, index, keys, None)

    def _compare(self, at_us: int, node: "Node", index: int, keys: dict[Key, int], within_us: int | None) -> None:
        """Compare the keys, and drop those that are right, and those that have been wrong for longer, or at all."""
        node_id, partition = node.broker.node_id, self.offsets.led_by(node, index)
        served = next((each for each in node.broker.groups.active() if each.index == index), None)
        if partition is None or served is None:
            keys.clear()
            return
        affected_us = self.context.quorum.fault_times.nodes.get(node_id, 0)
        reported = 0
        for key, since_us in list(keys.items()):
            wrong = list(_wrong_held(served.offsets, partition, key))
            if wrong and within_us is not None and at_us - max(since_us, affected_us) <= within_us:
                continue
            del keys[key]
            self.evidence += 1
            for each in wrong[: 3 - reported]:
                reported += 1
                self.violated(at_us, f"node {node_id} {each}")


def _wrong_held(offsets: Any, partition: OffsetsPartition, key: Key) -> Iterator[str]:
    """Yield what a coordinator holds otherwise than its log."""
    group_id, topic, index = key
    where = f"{topic}-{index} of group {group_id}"
    stored, due = offsets.of(group_id).get(topic, {}).get(index), partition.state.offsets.get(key)
    kept = None if stored is None else (stored.commit.offset, stored.commit.leader_epoch, stored.commit.metadata)
    if kept != (None if due is None else (due.offset, due.leader_epoch, due.metadata)):
        yield f"has {kept} for {where}, and {'nothing' if due is None else _described(due)} is committed last"
    is_open = any(tuple(each) == key for each in offsets.pending_of(group_id))
    if is_open != (key in partition.state.open):
        has = "has" if is_open else "lacks"
        yield f"{has} an offset of an open transaction for {where}, and the log {'lacks' if is_open else 'has'} one"


class RemovalsDue(OffsetsCheck):
    """no-committed-lost (KIP-211): a committed offset is removed when it has expired, and not earlier.

    ``offsets.retention.minutes`` count from the commit if the group never had members, or has members of which none
    subscribes to the topic. If the group is Empty they count from the time at which its last member left. A commit with
    its own retention time has that instead. OffsetDelete, DeleteGroups and the deletion of the topic remove offsets at
    once.
    """

    guarantee = "no-committed-lost"
    acts_on = (DELETE_GROUPS, DELETE_OFFSETS)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.offsets.on_offset_changed.append(self.offset_changed)
        self._deletions = Deletions()
        self._early: list[tuple[int, Key, str]] = []

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        self._deletions.acted(node.broker.node_id, event, effects)

    def offset_changed(self, at_us: int, node: "Node", partition: OffsetsPartition, change: Change) -> None:
        before, (group_id, topic, index) = change.before, change.key
        if change.now is not None or before is None or partition.has_lost or self._deletions.may_have(change.key):
            return
        broker = node.broker
        if topic not in broker.quorum_node.loader.image.topics:
            return
        group, now_ms = partition.state.groups.get(group_id), broker.now.wall_ms
        from_ms = before.committed_ms
        if group is not None and group.protocol_type and not group.members:
            from_ms = group.since_ms
        due_ms = from_ms + broker.config.offsets_retention_minutes * 60_000
        due_ms = due_ms if before.expires_ms < 0 else before.expires_ms
        where = f"node {broker.node_id} removed {_described(before)} of {topic}-{index} for group {group_id}"
        if group is not None and group.members and group.subscribes(topic):
            self._early.append((at_us, change.key, f"{where}, and its members subscribe to the topic"))
        elif now_ms < due_ms:
            self._early.append((at_us, change.key, f"{where}, and it expires in {due_ms - now_ms} ms"))

    def end(self, history: History) -> None:
        gone = deleted(history)
        for at_us, (_, topic, _), explanation in self._early:
            if topic not in gone:  # Kafka deletes a topic's offsets with the topic.
                self.violated(at_us, explanation)
