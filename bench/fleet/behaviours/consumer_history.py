"""Records what a consumer does, as an observer of the consumer and of the channels that carry its requests.

After ``sent`` a request ends with ``lost``, or with ``response_received`` and ``response_handled``. Between these two
the consumer reports what it makes of the response. A read is recorded when the application gets the records, and
belongs to the fetch that brought them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from bench.fleet.behaviours.client_channels import ChannelHistory
from bench.fleet.behaviours.journal import AssignmentBook, Journal, Operation
from bench.fleet.behaviours.protocol import HistoryRow, ResponseReceived, TopicPartition
from bench.fleet.values import ValueSpan, compress, read_record, read_row
from reference_broker.client.consumer_observer import ConsumerObserver, FetchedPartition, FetchResult, PositionReset
from reference_broker.client.consumer_partitions import ConsumerRecord
from reference_broker.client.group_consumer import COMMIT_CHANNEL, COMMITTED_CHANNEL, METADATA_CHANNEL
from reference_broker.client.group_membership import Assigned, GroupEvent, Joined, Left, Lost, Revoked
from reference_broker.client.group_requests import (
    JOIN_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    GroupRequest,
    MemberIdentity,
    error_of,
    name_of,
)
from reference_broker.client.leader_fetches import FETCH, LIST_OFFSETS, listed_offsets
from reference_broker.client.metadata_cache import MetadataUpdate
from reference_broker.client.offset_commits import Committed, CommittedOffset, Fetched, OffsetToCommit
from reference_broker.client.session_handler import NO_SESSION_ID, FetchPlan, Wanted
from reference_broker.wire.apis import FIRST_DRAFT_VERSION, api_name
from reference_broker.wire.errors import Error, ErrorCode, error_name
from reference_broker.wire.fetch import FINAL_EPOCH, FetchRequest
from reports.rows import END_OF_RUN_US, CommitRow, MembershipRow, MetadataEpochRow, PositionRow, ResetRow

OUT_OF_RANGE: Final = "OFFSET_OUT_OF_RANGE"
NO_OFFSET: Final = "no_offset"
_REASONS: Final[Mapping[str, str]] = {"out_of_range": OUT_OF_RANGE}
"""The history's words for reasons of resets, where they differ from the consumer's words."""


@dataclass(slots=True)
class ResponseEffect:
    """The effect of one response, collected while the consumer works on it."""

    response: ResponseReceived
    operation: Operation | None
    error: str | None = None
    rows: list[HistoryRow] = field(default_factory=list)


@dataclass(slots=True)
class Reads:
    """The operation of one fetch, and the number of its spans that have been read so far."""

    index: int
    spans: int = 0


@dataclass(slots=True)
class Brought:
    """One partition of a fetch response."""

    reads: Reads
    producers: tuple[tuple[int, int], ...]  # (last offset, producer ID) of each batch

    def producer_of(self, offset: int) -> int:
        return next((producer for last, producer in self.producers if offset <= last), -1)


class ConsumerHistory(ConsumerObserver, ChannelHistory):
    """The history of all consumers that one client runs, one after the other. ``quiet`` counts the fetches in a row
    that brought neither records nor an error, by partition."""

    def __init__(self, journal: Journal, group: str, isolation: int = 0) -> None:
        self.journal = journal
        self.isolation = isolation
        self.group = group
        self.quiet: dict[TopicPartition, int] = {}
        self._sent: dict[str, Operation] = {}
        self._outcome: ResponseEffect | None = None
        self._drafted = False
        self._planned: dict[int, tuple[FetchPlan, Mapping[TopicPartition, Wanted]]] = {}
        self._book = AssignmentBook(journal)
        self._brought: dict[TopicPartition, Brought] = {}
        self._out_of_range: dict[TopicPartition, int] = {}
        self._given_at: dict[TopicPartition, int] = {}
        self._revoked: dict[TopicPartition, None] = {}
        self._member_id = ""
        self._join_began_us = -1

    @property
    def _now_us(self) -> int:
        return self.journal.now.mono_us

    def still_open(self, until_us: int = END_OF_RUN_US) -> list[HistoryRow]:
        """Return the rows of the assignments that have lasted until now."""
        return self._book.end_all(until_us)

    def forget(self) -> None:
        """The client ends this life, so all its assignments end."""
        self.journal.record(*self.still_open(self._now_us))
        for operation in self._sent.values():
            self.journal.end(operation, "info", "closed")
        self._sent.clear()
        self._planned.clear()
        self._brought.clear()
        self._out_of_range.clear()
        self._given_at.clear()
        self._revoked.clear()
        self.quiet.clear()
        self._join_began_us = -1

    # -- requests -----------------------------------------------------------------------------------------------

    def sent(self, channel: str, request: GroupRequest) -> None:
        """A request goes out. A commit or a fetch of offsets is one operation, however many requests it needs. A
        request that closes a session is none, since it fetches nothing."""
        node = -1 if request.to is None else request.to.node_id
        if channel in (COMMIT_CHANNEL, COMMITTED_CHANNEL):
            if channel in self._sent and request.api_key in (OFFSET_COMMIT, OFFSET_FETCH):
                self._sent[channel].node = node
            return
        if request.api_key == FETCH and _closes_session(cast(FetchRequest, request.body)):
            return
        operation = self._sent[channel] = self.journal.begin(_snake(api_name(request.api_key)))
        operation.node = node
        if channel == METADATA_CHANNEL:
            self._drafted = request.api_version >= FIRST_DRAFT_VERSION
        elif request.api_key == FETCH:
            self._fetch_sent(operation, *self._planned[node])
        elif request.api_key == JOIN_GROUP and self._join_began_us < 0:
            self._join_began_us = self._now_us

    def _fetch_sent(self, operation: Operation, plan: FetchPlan, held: Mapping[TopicPartition, Wanted]) -> None:
        operation.session_id, operation.session_epoch = plan.session_id, plan.session_epoch
        operation.partitions_sent = len(plan.to_send)
        for partition, wanted in held.items():
            self._book.begin(partition, wanted.fetch_offset)

    def response_received(self, channel: str, response: ResponseReceived) -> None:
        """The consumer is about to get this response."""
        operation = None if channel in (COMMIT_CHANNEL, COMMITTED_CHANNEL) else self._sent.pop(channel, None)
        self._outcome = ResponseEffect(response, operation)
        if operation is not None:
            self._outcome.error = _error_in(operation.f, response.body)

    def response_handled(self, channel: str) -> None:  # noqa: ARG002
        """The consumer has handled the response."""
        outcome, self._outcome = self._outcome, None
        if outcome is not None and outcome.operation is not None:
            kind, rows = "fail" if outcome.error else "ok", tuple(outcome.rows)
            self.journal.end(outcome.operation, kind, outcome.error, outcome.response, rows)

    def lost(self, channel: str, reason: str) -> None:
        """The request gets no response."""
        if channel in (COMMIT_CHANNEL, COMMITTED_CHANNEL) or channel not in self._sent:
            return
        operation = self._sent.pop(channel)
        if operation.f == "fetch":
            self._unquiet(self._planned[operation.node][1])
        self.journal.end(operation, "fail" if operation.f in ("metadata", "list_offsets") else "info", reason)

    def _response_in_hand(self) -> tuple[ResponseEffect, Operation]:
        outcome = self._outcome
        assert outcome is not None, "the consumer gets no response"
        assert outcome.operation is not None, "the response is a commit's"
        return outcome, outcome.operation

    # -- metadata -----------------------------------------------------------------------------------------------

    def metadata_received(self, update: MetadataUpdate, accepted: bool) -> None:
        """Record the metadata epoch, which only the drafts carry."""
        outcome, operation = self._response_in_hand()
        if self._drafted:
            index, node = operation.index, operation.node
            row = MetadataEpochRow(self.journal.process, index, node, update.metadata_epoch, accepted, self._now_us)
            outcome.rows.append(row)

    # -- fetches ------------------------------------------------------------------------------------------------

    def fetching(self, node_id: int, plan: FetchPlan, partitions: Mapping[TopicPartition, Wanted]) -> None:
        self._planned[node_id] = plan, partitions

    def fetched(self, reply: FetchResult) -> None:
        outcome, operation = self._response_in_hand()
        response = reply.response
        operation.response_session_id, operation.response_partitions = response.session_id, reply.partition_count
        if reply.problem is not None:
            outcome.error = error_name(response.error_code) if response.error_code else "INVALID_ANSWER"
        reads = Reads(operation.index)
        wanted = self._planned[reply.node_id][1]
        outcome.rows += [self._fetched(reads, partition, wanted.get(partition.where)) for partition in reply.partitions]
        restless = [partition.where for partition in reply.partitions if partition.error or partition.batches]
        for topic_partition in wanted:
            self.quiet[topic_partition] = self.quiet.get(topic_partition, 0) + 1
        self._unquiet(restless if reply.problem is None else wanted)

    def _unquiet(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self.quiet.pop(partition, None)

    def _fetched(self, reads: Reads, part: FetchedPartition, partition: Wanted | None) -> PositionRow:
        if part.error is ErrorCode.offset_out_of_range:
            self._out_of_range[part.where] = reads.index
        if part.batches:
            producers = tuple((batch.header.last_offset, batch.header.producer_id) for batch in part.batches)
            self._brought[part.where] = Brought(reads, producers)
        data, error = part.data, name_of(part.error) if part.error else None
        bounds = (data.high_watermark, data.log_start_offset)
        row = PositionRow(self.journal.process, reads.index, *part.where, part.before, part.after, *bounds, error)
        row.last_stable_offset = data.last_stable_offset
        row.tombstone_horizon = data.tombstone_horizon
        row.leader_epoch = -1 if partition is None else partition.current_leader_epoch
        return row

    def read(self, records: Sequence[ConsumerRecord]) -> None:
        """The application has got these records."""
        found: dict[TopicPartition, list[ValueSpan]] = {}
        for record in records:
            where, value = TopicPartition(record.topic, record.partition), read_record(record.value, record.headers)
            producer = self._brought[where].producer_of(record.offset)
            span = ValueSpan(record.offset, 1, producer, value.writer, value.sequence, value.valid)
            found.setdefault(where, []).append(span)
        for where, parts in found.items():
            reads = self._brought[where].reads
            for span in compress(parts):
                self.journal.record(
                    read_row(self.journal.process, reads.index, reads.spans, where, span, self.isolation)
                )
                reads.spans += 1

    def position_reset(self, reset: PositionReset) -> None:
        where, reason = reset.partition, _REASONS.get(reset.reason, reset.reason)
        index = self._out_of_range.pop(where, self.journal.begun - 1)
        moved = (reset.from_offset, reset.to_offset)
        self.journal.record(
            ResetRow(self.journal.process, index, *where, *moved, reason, reset.metadata_epoch, self._now_us)
        )
        self._unquiet([where])
        self._book.move(where, reset.to_offset)

    def _read_no_more(self, partitions: Iterable[TopicPartition]) -> None:
        self._unquiet(partitions)
        for partition in partitions:
            self._out_of_range.pop(partition, None)
            self._book.end(partition)

    # -- offsets ------------------------------------------------------------------------------------------------

    def offsets_wanted(self, partitions: tuple[TopicPartition, ...]) -> None:  # noqa: ARG002
        self._sent[COMMITTED_CHANNEL] = self.journal.begin("offset_fetch")

    def offsets_fetched(self, fetched: Fetched) -> None:
        operation = self._sent.pop(COMMITTED_CHANNEL)
        error = name_of(fetched.error) if fetched.error else None
        self.journal.end(operation, "fail" if error else "ok", error)
        for partition, at in fetched.offsets.items():
            draft = fetched.version >= FIRST_DRAFT_VERSION
            self._record_offset("fetched", operation.index, partition, at, fetched.sent_as, draft, None)

    def commit_begun(self, partitions: tuple[TopicPartition, ...]) -> None:
        operation = self._sent[COMMIT_CHANNEL] = self.journal.begin("offset_commit")
        operation.partitions_sent = len(partitions)

    def committed(self, committed: Committed) -> None:
        operation = self._sent.pop(COMMIT_CHANNEL)
        wrong = next((each for each in committed.errors.values() if each), ErrorCode.none)
        kind = "ok" if not wrong else "info" if wrong is ErrorCode.request_timed_out else "fail"
        self.journal.end(operation, kind, name_of(wrong) if wrong else None)
        for partition, error in committed.errors.items():
            at, draft = committed.offsets[partition], committed.version >= FIRST_DRAFT_VERSION
            name = name_of(error) if error else None
            self._record_offset("commit", operation.index, partition, at, committed.sent_as, draft, name)

    def loaded(self, partition: TopicPartition, at: CommittedOffset, identity: MemberIdentity) -> None:
        """An offset was loaded from outside the cluster."""
        self._record_offset("loaded", -1, partition, at, identity, True, None)

    def stored(self, partition: TopicPartition, at: OffsetToCommit, identity: MemberIdentity, done: bool) -> None:
        """An offset was stored outside the cluster. ``done`` is False if a later owner has stored one already."""
        self._record_offset("stored", -1, partition, at, identity, True, None if done else "FENCED")

    def _record_offset(
        self,
        kind: str,
        index: int,
        partition: TopicPartition,
        at: CommittedOffset | OffsetToCommit,
        who: MemberIdentity,
        draft: bool,
        error: str | None,
    ) -> None:
        self.journal.record(
            CommitRow(
                self.journal.process,
                index,
                kind,
                self.group,
                who.generation_id,
                who.member_id,
                *partition,
                at.offset,
                at.leader_epoch,
                at.metadata_epoch if draft else -1,
                draft,
                error,
                self._now_us,
            )
        )

    # -- the group ----------------------------------------------------------------------------------------------

    def group_event(self, event: GroupEvent) -> None:
        match event:
            case Joined():
                since_us = self._join_began_us if self._join_began_us >= 0 else self._now_us
                self._join_began_us, self._member_id = -1, event.member_id
                self._record_member("joined", event.generation, since_us=since_us)
            case Assigned():
                for partition in event.partitions:
                    self._revoked.pop(partition, None)
                    self._given_at[partition] = self._now_us
                    self._record_member("assigned", event.generation, partition)
            case Revoked():
                self._revoked.update(dict.fromkeys(event.partitions))
                self._read_no_more(event.partitions)
            case Lost():
                self._take_away(event.partitions, "lost", event.generation)
            case Left():
                self._record_member("left", event.generation)

    def released(self, event: Revoked) -> None:
        """Release revoked partitions, except those that were lost or assigned again meanwhile."""
        self._take_away(
            [partition for partition in event.partitions if partition in self._revoked], "revoked", event.generation
        )

    def cut_off(self) -> None:
        """The client ends without a response to its leaving."""
        self._record_member("left", -1)

    def _take_away(self, partitions: Iterable[TopicPartition], what: str, generation: int) -> None:
        self._read_no_more(partitions)
        for partition in partitions:
            self._revoked.pop(partition, None)
            self._record_member(what, generation, partition, self._given_at.pop(partition, self._now_us))

    def _record_member(
        self, event: str, generation: int, partition: TopicPartition | None = None, since_us: int = -1
    ) -> None:
        since_us = since_us if since_us >= 0 else self._now_us
        who = (self.journal.process, self.group, self._member_id)
        self.journal.record(MembershipRow(*who, generation, event, *(partition or ("", -1)), self._now_us, since_us))


def _closes_session(body: FetchRequest) -> bool:
    return body.session_id != NO_SESSION_ID and body.session_epoch == FINAL_EPOCH


def _error_in(f: str, body: object) -> str | None:
    """Return the name of the response's error. The consumer handles errors of metadata and fetches."""
    code: Error | int = ErrorCode.none
    if f == _snake(api_name(LIST_OFFSETS)):
        code = next((error for error, _, _ in listed_offsets(body).values() if error), ErrorCode.none)
    elif f not in ("metadata", "fetch"):
        code = error_of(getattr(body, "error_code", 0))
    return name_of(code) if code else None


def _snake(name: str) -> str:
    """Turn JoinGroup into join_group."""
    words = (f"_{each.lower()}" if each.isupper() and place else each.lower() for place, each in enumerate(name))
    return "".join(words)
