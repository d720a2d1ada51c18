"""Committed offsets of consumer groups."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from chaos.checks.check import Check, CheckContext, Inspection, fields_of
from chaos.checks.history import OFFSETS_TOPIC, History, TopicPartition, grouped, partition_of
from chaos.checks.pending_requests import PendingRequests
from chaos.checks.reads_and_writes.reads import reads
from chaos.checks.replication.replica_view import offsets_partition
from reference_broker.core.events import Effect, Event, Reply, Request
from reference_broker.groups.committed_offsets import OffsetKey
from reports.rows import CommitRow, MembershipRow, OperationRow, ResetRow, SpanRow, TraceRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node


Key: TypeAlias = tuple[str, str, int]
"""(group, topic, partition). Each of them has one committed offset."""

NEVER_US = 2**62
"""The end of a request of unknown outcome. It may take effect at any time."""
COMMIT, FETCHED = "commit", "fetched"
REFUSED = (
    "INVALID_METADATA_EPOCH",
    "ILLEGAL_GENERATION",
    "UNKNOWN_MEMBER_ID",
    "REBALANCE_IN_PROGRESS",
    "FENCED_INSTANCE_ID",
    "OFFSET_METADATA_TOO_LARGE",
    "INVALID_COMMIT_OFFSET_SIZE",
    "UNKNOWN_TOPIC_OR_PARTITION",
    "INVALID_GROUP_ID",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "UNSUPPORTED_VERSION",
    "not_sent",
    "refused",
)
"""Errors of a commit that wrote nothing, by Kafka's protocol: the coordinator rejected it before it wrote. After any
other error (a timeout, say) the commit may have been written, or be replicated later."""


@dataclass(frozen=True, slots=True)
class OffsetRequest:
    """One partition of a request to commit or fetch offsets."""

    row: CommitRow
    invoke_us: int
    until_us: int
    """NEVER_US if the request's end is unknown"""
    acked: bool
    """whether the response had no error"""
    stored_epoch: int
    """metadata epoch that a commit leaves; -1 in versions without it (M-11)"""

    @property
    def named(self) -> str:
        row = self.row
        return f"{row.process} (operation {row.index}): {row.topic}-{row.partition} of group {row.group}"


def effective_requests(history: History, kind: str) -> dict[Key, list[OffsetRequest]]:
    """Return requests by their key.

    For ``kind`` COMMIT these are the requests that wrote or may have written. For FETCHED they are those that got
    a response.
    """
    effective = (commit for commit in requests(history, kind) if commit.row.error not in REFUSED)
    known = (request for request in effective if kind == COMMIT or request.acked)
    return grouped(known, lambda request: (request.row.group, request.row.topic, request.row.partition))


def requests(history: History, kind: str) -> Iterator[OffsetRequest]:
    """Yield all requests of this kind, also rejected ones."""
    for row in history.commits:
        if row.kind != kind:
            continue
        operation = history.operation_of.get((row.process, row.index))
        invoke_us = row.at_us if operation is None else min(operation.invoke_us, row.at_us)
        known = row.error is None or row.error in REFUSED
        epoch = row.metadata_epoch if row.draft else -1
        yield OffsetRequest(row, invoke_us, row.at_us if known else NEVER_US, row.error is None, epoch)


def deleted(history: History) -> dict[str, int]:
    """Return the time of the first request to delete each topic. A rejected deletion does not count.

    Kafka's coordinator forgets the offsets of a deleted topic.
    """
    deleted_us: dict[str, int] = {}
    for row in history.changes:
        if row.change == "delete" and row.type != "fail":
            operation = history.operation_of.get((row.process, row.index))
            requested_us = 0 if operation is None else operation.invoke_us
            deleted_us[row.topic] = min(requested_us, deleted_us.get(row.topic, requested_us))
    return deleted_us


class CommitRegression(Check):
    """commit-regression: a committed offset, its metadata epoch and its generation never go back.

    Two requests have an order only if they did not overlap. An acknowledged commit may not have a smaller epoch (M-7)
    or generation than one that was acknowledged before it began. A fetched offset may not be older than such a commit
    either. A commit in a version without the metadata epoch removes the stored epoch (M-11). Epochs are therefore not
    compared across the time in which such a commit may take effect.

    KIP-211: a coordinator returns no offset while the last committed record of the partition is a tombstone, and the
    next commit may have any epoch. ``RemovalsDue`` judges whether it removed the offset too early. A group that is
    created after its own tombstone begins with generation 1.
    """

    guarantee = "commit-regression"

    def end(self, history: History) -> None:
        if not history.commits:
            return
        commits = effective_requests(history, COMMIT)
        gone = deleted(history)
        for key, written in commits.items():
            self.evidence += sum(commit.acked for commit in written)
            removals_us = [removal.at_us for removal in self.context.offsets.removals.get(key, ())]
            self._smaller_epochs(written, removals_us)
            self._older_generations(written, self.context.offsets.deletions_us.get(key[0], []))
        for key, fetches in effective_requests(history, FETCHED).items():
            # Kafka deletes a topic's offsets with the topic. A fetch that ended before any such request is judged.
            judged = [fetch for fetch in fetches if fetch.until_us < gone.get(key[1], NEVER_US)]
            self._older_values(commits.get(key, []), [fetch for fetch in judged if not self._has_expired(key, fetch)])

    def _has_expired(self, key: Key, fetch: OffsetRequest) -> bool:
        """Return whether the fetch found no offset, and a tombstone was the key's last committed record meanwhile."""
        return fetch.row.offset < 0 and self.context.offsets.was_removed(key, fetch.invoke_us, fetch.until_us)

    def _smaller_epochs(self, written: list[OffsetRequest], removals_us: list[int]) -> None:
        old = [commit for commit in written if not commit.row.draft]
        acked = [commit for commit in written if commit.acked and commit.row.draft]
        for later, earlier in _ordered_pairs(acked, lambda commit: commit.stored_epoch, removals_us):
            # M-11: a commit without an epoch removes the stored one. Physical: it may take effect until its end.
            touched = any(commit.until_us > earlier.invoke_us and commit.invoke_us < later.until_us for commit in old)
            if not touched:
                self.violated(
                    later.until_us,
                    f"{later.named}: offset {later.row.offset} was committed with metadata epoch {later.stored_epoch} "
                    f"after {earlier.row.process} had committed {earlier.row.offset} with {earlier.stored_epoch}",
                )

    def _older_generations(self, written: list[OffsetRequest], deletions_us: list[int]) -> None:
        acked = [commit for commit in written if commit.acked and commit.row.generation >= 0]
        for later, earlier in _ordered_pairs(acked, lambda commit: commit.row.generation, deletions_us):
            self.violated(
                later.until_us,
                f"{later.named}: offset {later.row.offset} was committed in generation {later.row.generation} after "
                f"{earlier.row.process} had committed {earlier.row.offset} in {earlier.row.generation}",
            )

    def _older_values(self, written: list[OffsetRequest], fetches: list[OffsetRequest]) -> None:
        for fetch in fetches:
            before = [commit for commit in written if commit.acked and commit.until_us < fetch.invoke_us]
            if not before:
                continue
            last = max(before, key=lambda commit: commit.invoke_us)
            row = fetch.row
            explained = any(
                commit.row.offset == row.offset
                and commit.until_us >= last.invoke_us
                and commit.invoke_us < fetch.until_us
                and (not row.draft or commit.stored_epoch == row.metadata_epoch)
                for commit in written
            )
            if not explained:
                self.violated(
                    fetch.until_us,
                    f"{fetch.named}: offset {row.offset} with metadata epoch {row.metadata_epoch} was fetched, though "
                    f"offset {last.row.offset} with {last.stored_epoch} had been committed",
                )


def _ordered_pairs(
    acked: list[OffsetRequest], value: Callable[[OffsetRequest], int], ends_us: list[int]
) -> Iterator[tuple[OffsetRequest, OffsetRequest]]:
    """Yield (later, earlier) where the earlier request had ended when the later one began, and has a greater value.

    Of all earlier requests it takes the one with the greatest value, and of those the newest. At each of ``ends_us``,
    which ascend, a tombstone ended what was compared before. A request that overlaps one is not compared.
    """
    lives: dict[int, list[OffsetRequest]] = {}
    for commit in acked:
        life = bisect_right(ends_us, commit.invoke_us)
        if life == bisect_right(ends_us, commit.until_us):
            lives.setdefault(life, []).append(commit)
    for alive in lives.values():
        yield from _ordered_pairs_of(alive, value)


def _ordered_pairs_of(
    acked: list[OffsetRequest], value: Callable[[OffsetRequest], int]
) -> Iterator[tuple[OffsetRequest, OffsetRequest]]:
    ends = sorted(acked, key=lambda commit: commit.until_us)
    greatest: list[OffsetRequest] = []
    at = 0
    for later in sorted(acked, key=lambda commit: commit.invoke_us):
        while at < len(ends) and ends[at].until_us < later.invoke_us:
            if not greatest or value(ends[at]) >= value(greatest[-1]):
                greatest.append(ends[at])
            at += 1
        yield from ((later, earlier) for earlier in greatest[-1:] if value(earlier) > value(later))


NEVER = ("UNSUPPORTED_VERSION", "UNKNOWN_SERVER_ERROR", "INVALID_REQUEST", "not_sent")
OLDER = "INVALID_METADATA_EPOCH"
NO_TOPIC = "UNKNOWN_TOPIC_OR_PARTITION"


class CommitsAccepted(Check):
    """commits-accepted: no valid commit is rejected.

    INVALID_METADATA_EPOCH is right only if the last commit may have had a greater epoch (M-7). An unknown topic is
    correct only once somebody has requested to delete the topic. An unknown version or an unknown server error has no
    excuse at all.
    """

    guarantee = "commits-accepted"

    def end(self, history: History) -> None:
        refused = [commit for commit in requests(history, COMMIT) if commit.row.error in (*NEVER, OLDER, NO_TOPIC)]
        written = effective_requests(history, COMMIT) if refused else {}
        gone = deleted(history)
        for commit in refused:
            row = commit.row
            is_older = row.error == OLDER and _may_follow_a_greater_epoch(
                commit, written.get((row.group, row.topic, row.partition), [])
            )
            # Physical: a deleted topic has nothing that a commit could be kept for.
            is_gone = row.error == NO_TOPIC and gone.get(row.topic, NEVER_US) <= commit.until_us
            if not is_older and not is_gone:
                self.violated(
                    commit.until_us,
                    f"{commit.named}: offset {row.offset} with metadata epoch {row.metadata_epoch} "
                    f"({'draft' if row.draft else 'usual'} version) was refused: {row.error}",
                )


def _may_follow_a_greater_epoch(refused: OffsetRequest, others: list[OffsetRequest]) -> bool:
    """M-7: the last commit had a greater epoch. It is one that began before the refusal, and that no acknowledged
    commit is known to follow. A commit without an epoch leaves -1 (M-11), after which any epoch passes."""
    earlier = [commit for commit in others if commit.acked and commit.until_us < refused.invoke_us]
    last_us = max((commit.invoke_us for commit in earlier), default=-1)
    return any(
        commit.stored_epoch > refused.row.metadata_epoch
        and commit.invoke_us < refused.until_us
        and commit.until_us >= last_us
        for commit in others
    )


OFFSET_COMMIT = 8


class CommitsFenced(Check):
    """commits-fenced: a coordinator acknowledges a commit only to a member of the group's current generation.

    A commit does not change the generation, so the coordinator has decided by the generation that the group has after
    the request. The check reads it from the broker, and compares by itself.
    """

    guarantee = "commits-fenced"
    needs_one_node = True
    acts_on = (OFFSET_COMMIT,)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._stale = PendingRequests[str]()
        """by (node, connection, correlation ID): commits of another generation than the group's, with the explanation
        to report if they are acknowledged"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        if type(event) is Request and event.api_key == OFFSET_COMMIT:
            self._request(node, event)
        if not self._stale:
            return
        for effect in effects:
            if type(effect) is Reply and effect.api_key == OFFSET_COMMIT:
                explanation = self._stale.pop(node.broker.node_id, effect)
                if explanation is not None and _acknowledges(effect.body):
                    self.violated(at_us, explanation)

    def _request(self, node: "Node", event: Request) -> None:
        body: Any = event.body
        generation = int(body.generation_id_or_member_epoch)
        if generation < 0:
            return  # Kafka: a client that is no member commits without a generation.
        known = (shard.groups.get(str(body.group_id)) for shard in node.broker.groups.active())
        group = next((candidate for candidate in known if candidate is not None), None)
        if group is None or group.generation != generation or str(body.member_id) not in group.members:
            explanation = (
                f"node {node.broker.node_id} acknowledged a commit of {event.client_id} in generation {generation} "
                f"of group {body.group_id}, "
                + ("which it does not know" if group is None else f"whose generation is {group.generation}")
            )
            self._stale.add(node.broker.node_id, event, explanation)


def _acknowledges(body: Any) -> bool:
    return any(int(partition.error_code) == 0 for topic in body.topics for partition in topic.partitions)


COMMITTED, LEADS = "offset_committed", "leads"
LOADING_US = 1_000_000
"""Within this time of its election the leader of a small partition must have loaded it."""
DELETE_GROUPS, DELETE_OFFSETS = 42, 47


REFUSALS = (14, 24, 68, 69, 86)
"""Errors of a coordinator that has deleted nothing: it still loads (COORDINATOR_LOAD_IN_PROGRESS), the group's ID is
invalid, it is not empty or not found (INVALID_GROUP_ID, NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND), or its members subscribe
to the topic (GROUP_SUBSCRIBED_TO_TOPIC). With another error it may have written the deletion."""


class Deletions:
    """Offsets that a client requested to delete (DeleteGroups, KIP-496), unless the coordinator has refused that."""

    def __init__(self) -> None:
        self._requested = Counter[Key | str]()
        """number of requests that may have deleted a key, or all keys of a group"""
        self._pending = PendingRequests[tuple[Key | str, ...]]()

    def acted(self, node_id: int, event: Event | None, effects: Sequence[Effect]) -> None:
        """Follow a node's requests and responses of DELETE_GROUPS and DELETE_OFFSETS."""
        if type(event) is Request and event.api_key in (DELETE_GROUPS, DELETE_OFFSETS):
            named = tuple(_to_delete(event))
            self._requested.update(named)
            self._pending.add(node_id, event, named)
        for effect in effects if self._pending else ():
            if type(effect) is Reply and effect.api_key in (DELETE_GROUPS, DELETE_OFFSETS):
                named = self._pending.pop(node_id, effect) or ()
                refused = set(_refused(effect, named))
                self._requested.subtract(key for key in named if key in refused)

    def may_have(self, key: Key) -> bool:
        """Return whether the key may have been deleted."""
        return self._requested[key] > 0 or self._requested[key[0]] > 0


def _to_delete(request: Request) -> Iterator[Key | str]:
    body: Any = request.body
    if request.api_key == DELETE_GROUPS:
        yield from map(str, body.groups_names)
        return
    for topic in body.topics:
        for partition in topic.partitions:
            yield str(body.group_id), str(topic.name), int(partition.partition_index)


def _refused(reply: Reply, named: Sequence[Key | str]) -> Iterator[Key | str]:
    """Yield what the response refuses to delete."""
    body: Any = reply.body
    if reply.api_key == DELETE_GROUPS:
        yield from (str(result.group_id) for result in body.results if int(result.error_code) in REFUSALS)
        return
    if int(body.error_code) in REFUSALS:
        yield from named
    groups = {key[0] for key in named}
    for topic in body.topics:
        for partition in topic.partitions:
            if int(partition.error_code) in REFUSALS:
                yield from ((group, str(topic.name), int(partition.partition_index)) for group in groups)


class NoCommittedLost(Check):
    """no-committed-lost: an offset that a coordinator acknowledged as committed survives any failover of coordinators.

    At the end the coordinator of each group must have the offset that was committed last, or one that a client
    requested to commit and that may have been committed after it. commit-regression judges that clients see it too.
    ``RemovalsDue`` and ``ResponsesReplicated`` judge offsets that a client requested to delete (KIP-496, DeleteGroups),
    unless a coordinator refused that, and offsets whose last committed record removes them (KIP-211).

    Physical: a coordinator that began to lead within ``LOADING_US`` of the end may still load its partition.
    """

    guarantee = "no-committed-lost"
    inspection = Inspection.ONLY_THOROUGH
    rows: ClassVar[tuple[str, ...]] = (COMMITTED, LEADS)
    acts_on = (DELETE_GROUPS, DELETE_OFFSETS)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._deletions = Deletions()
        self._committed: dict[Key, tuple[int, int]] = {}
        """by group, topic and partition: the offset that was committed last, and when"""
        self._led_us: dict[str, int] = {}
        """by partition of the offsets topic: when a node last began to lead it"""
        self._nodes: dict[int, Node] = {}

    def trace(self, row: TraceRow) -> None:
        fields = fields_of(row)
        if row.what == LEADS:
            self._led_us[str(fields["partition"])] = row.at_us
            return
        topic, _, index = str(fields["partition"]).rpartition("-")
        self._committed[str(fields["group"]), topic, int(index)] = int(fields["offset"]), row.at_us

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        self._deletions.acted(node.broker.node_id, event, effects)

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        self._nodes[node.broker.node_id] = node

    def end(self, history: History) -> None:
        gone = deleted(history)
        written = effective_requests(history, COMMIT)
        for key, (offset, at_us) in self._committed.items():
            group, topic, index = key
            if topic in gone or self._deletions.may_have(key) or self.context.replicas.offsets_excused(group):
                continue  # Kafka deletes offsets with their topic. E-7: no replica had kept the group's commits.
            if self.context.offsets.has_removed(key):
                continue  # KIP-211: RemovalsDue judges whether it had expired.
            stored = self._held(key)
            if stored is None and self._may_load(group, history.end_us):
                continue
            self.evidence += 1
            # Physical: a commit may be written although its coordinator died before it responded.
            later = [commit.row.offset for commit in written.get(key, ()) if commit.until_us >= at_us]
            if stored not in (offset, *later):
                now = "nothing" if stored is None else f"offset {stored}"
                self.violated(
                    at_us,
                    f"{topic}-{index} of group {group}: offset {offset} was committed; its coordinator holds {now} in "
                    "the end",
                )

    def _may_load(self, group: str, end_us: int) -> bool:
        """Return whether the group's partition has had a new leader just before the end, and no node has loaded it."""
        topics = (node.broker.quorum_node.loader.image.topics.get(OFFSETS_TOPIC) for node in self._nodes.values())
        count = max((len(topic.partitions) for topic in topics if topic is not None), default=0)
        index = offsets_partition(group, count)
        led_us = self._led_us.get(f"{OFFSETS_TOPIC}-{index}")
        if led_us is None or end_us - led_us > LOADING_US:
            return False
        return not any(shard.index == index for node in self._nodes.values() for shard in node.broker.groups.active())

    def _held(self, key: Key) -> int | None:
        """Return the offset in the memory of the group's coordinator. It shares no code with what is judged but
        the look into that memory."""
        for node in self._nodes.values():
            for coordinated in node.broker.groups.active():
                stored = coordinated.offsets.find(OffsetKey(*key))
                if stored is not None:
                    return stored.offset
        return None


NO_OFFSET = "no_offset"
"""The reason of a reset where nothing was committed."""


class FirstRead(NamedTuple):
    """The first records that a member read of a partition after the partition was assigned to it."""

    given: MembershipRow
    span: SpanRow
    operation: OperationRow


class Redelivery(Check):
    """redelivery: a member does not begin to read an assigned partition below the offset that its group has committed.

    Records that were read but not committed may be read again: the guarantee is at least once. ``rewinds`` judges
    positions that were out of range.

    KIP-211: the reset policy decides where a member begins that found no offset while the last committed record of the
    partition was a tombstone. ``RemovalsDue`` judges whether the offset was removed too early.
    """

    guarantee = "redelivery"

    def end(self, history: History) -> None:
        if not history.memberships:
            return
        self.evidence += assigned_times(history)
        commits = effective_requests(history, COMMIT)
        moves = grouped(history.resets, lambda row: (row.process, partition_of(row)))
        for assignment, span, operation in first_reads(history):
            written = commits.get((assignment.group, assignment.topic, assignment.partition), [])
            last = _last_acked(written, assignment.at_us)
            if last is None or span.first_offset >= last.row.offset:
                continue
            sent_back = any(
                commit.row.offset <= span.first_offset
                and commit.until_us > last.invoke_us
                and commit.invoke_us < operation.invoke_us
                for commit in written
            )
            was_moved = any(
                assignment.at_us <= row.at_us <= operation.complete_us
                and (row.reason != NO_OFFSET or self._had_expired(assignment, row))
                for row in moves.get((assignment.process, partition_of(assignment)), ())
            )
            if not sent_back and not was_moved:
                self.violated(
                    operation.complete_us,
                    f"{assignment.process} was given {assignment.topic}-{assignment.partition} in generation "
                    f"{assignment.generation} and read from offset {span.first_offset}; group {assignment.group} had "
                    f"committed {last.row.offset}",
                )

    def _had_expired(self, assignment: MembershipRow, reset: ResetRow) -> bool:
        """Return whether a tombstone was the last committed record when the member looked for its offset."""
        key = assignment.group, assignment.topic, assignment.partition
        return self.context.offsets.was_removed(key, assignment.at_us, reset.at_us)


def assigned_times(history: History) -> int:
    """Return how often a partition was assigned to a member."""
    return sum(row.event == "assigned" for row in history.memberships)


def first_reads(history: History) -> Iterator[FirstRead]:
    """Yield them in the order of reading."""
    assigned = (row for row in history.memberships if row.event == "assigned")
    assignments = grouped(assigned, lambda row: (row.process, partition_of(row)))
    seen: set[tuple[str, TopicPartition, int]] = set()
    for span, operation in reads(history):
        key = (span.process, partition_of(span))
        rows = assignments.get(key, [])
        times = bisect_right(rows, operation.invoke_us, key=lambda row: row.at_us)
        if times and (*key, times) not in seen:
            seen.add((*key, times))
            yield FirstRead(rows[times - 1], span, operation)


def _last_acked(written: list[OffsetRequest], before_us: int) -> OffsetRequest | None:
    acked = [commit for commit in written if commit.acked and commit.until_us < before_us]
    return max(acked, key=lambda commit: (commit.invoke_us, commit.row.offset), default=None)
