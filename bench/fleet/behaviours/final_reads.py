"""Readers at the end of a run, when all is quiet: of all logs, of a mirror's target, and of committed offsets.

``FinalReader`` records the contents of the logs and where they begin and end. ``target_reader`` does the same with a
mirror's target cluster, to show what the mirror omitted or wrote twice. ``OffsetsReader`` fetches the committed
offsets of all groups. Members fetch offsets only when partitions are assigned to them, so an offset that is lost after
that shows only here.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from bench.fleet.batch_reader import BatchReader
from bench.fleet.behaviours.bodies import LATEST, describe_topic_config_request
from bench.fleet.behaviours.cluster import ClusterScript
from bench.fleet.behaviours.protocol import (
    Address,
    Chance,
    ClientSettings,
    HistoryRow,
    ResponseReceived,
    TopicPartition,
)
from bench.fleet.behaviours.script import Steps
from bench.fleet.values import read_row
from reference_broker.client.consumer import READ_COMMITTED, READ_UNCOMMITTED, ConsumerState
from reference_broker.client.group_requests import (
    GroupCoordinator,
    GroupRequest,
    GroupVersions,
    MemberIdentity,
    name_of,
)
from reference_broker.client.metadata_cache import MetadataUpdate, NodeAddress
from reference_broker.client.offset_commits import CommittedOffsets, Fetched, fetched_offsets
from reference_broker.client.session_handler import FetchSessionHandler, Wanted
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import error_name
from reference_broker.wire.fetch import FetchResponse, PartitionData
from reports.rows import CommitRow, EndRow, PositionRow, SpanRow, TargetSpanRow

if TYPE_CHECKING:
    from kio.schema.describe_configs.v4.response import DescribeConfigsResponse


OFFSET_OUT_OF_RANGE: Final = 1
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
UNKNOWN_FOR_US: Final = 15_000_000
"""A partition that every Metadata response of this time (or of half the limit) calls unknown does not exist any more.
Brokers that have just started may need some seconds until they know all topics."""
MAX_NAMED: Final = 5
"""Number of partitions that a sentence lists."""
PARTITIONS_PER_FETCH: Final = 50
MAX_BYTES: Final = 16 << 20
PARTITION_MAX_BYTES: Final = 2 << 20
MAX_WAIT_MS: Final = 100
FINAL_READ: Final = "final_read"
RETENTION: Final = ("cleanup.policy", "retention.ms", "retention.bytes", "segment.bytes")
Limits: TypeAlias = tuple[int | None, int | None, int | None]
UNLIMITED: Final = (None, None, None)


def without_ends(rows: Sequence[HistoryRow]) -> list[HistoryRow]:
    """Return the rows without those of the ends, which another final reader reports."""
    return [row for row in rows if not isinstance(row, EndRow)]


@dataclass(frozen=True, slots=True)
class FinalReadPlan:
    """The plan of one final reader."""

    process: str
    partitions: tuple[TopicPartition, ...]
    limit_us: int = 60_000_000
    operation: str = FINAL_READ  # the name of its reads in the history
    keep: Callable[[Sequence[HistoryRow]], list[HistoryRow]] = list  # selects or converts the rows to record
    read_committed: bool = False
    """Read until the last stable offset has reached the high watermark, too. A partition in which a transaction stays
    open then gets its EndRow at the limit."""


class FinalReader(ClusterScript):
    """Reads each partition from its log's start to its high watermark, outside any session; one EndRow for each.

    It ends after ``limit_us`` at the latest. ``unread`` then holds the partitions that were not read to their end. One
    that does not exist any more gets an EndRow with its error: that it cannot be read is evidence, not a lack of it.
    Where a log does not begin at 0, the EndRow also has the settings by which records may have been deleted. It waits
    for them until the limit, unless no broker serves DescribeConfigs (``Versions.describe_configs`` is -1).
    """

    KEEPS_CONNECTIONS = True

    def __init__(self, plan: FinalReadPlan, settings: ClientSettings, random: Chance, reader: BatchReader) -> None:
        super().__init__(plan.process, settings, random, [partition.topic for partition in plan.partitions])
        self._plan = plan
        self.reader = reader
        self._isolation = READ_COMMITTED if plan.read_committed else READ_UNCOMMITTED
        self._keeps_ends = any(isinstance(each, EndRow) for each in plan.keep([EndRow("", 0, 0, 0, 0)]))
        self._held_back: dict[TopicPartition, EndRow] = {}
        self.unread: dict[TopicPartition, None] = dict.fromkeys(plan.partitions)
        self.consumer = ConsumerState()
        self._unknown_since_us: dict[TopicPartition, int] = {}
        self._refused: dict[TopicPartition, int] = {}  # offsets that were out of range
        self._sizes: Counter[TopicPartition] = Counter()
        self._retention: dict[str, Limits] = {}
        self._undescribed: dict[str, None] = {}
        self._describe_at_us = self._describe_failures = 0
        self._deadline_us = 0

    @property
    def gives_up(self) -> bool:
        return self.now.mono_us >= self._deadline_us

    @property
    def missed(self) -> str:
        """Return in words what could not be read to its end, and which topics' retention stayed unknown; or nothing."""
        names = [f"{topic}-{partition}" for topic, partition in self.unread]
        parts = [
            f"{_listed(names)} could not be read to the end" if names else "",
            f"{_listed(list(self._undescribed))} could not be described" if self._undescribed else "",
        ]
        return ", and ".join(filter(None, parts))

    def from_offsets(self, process: str, starts: Mapping[TopicPartition, int]) -> "FinalReader":
        """Return a reader of these partitions that begins at these offsets, and records no EndRow."""
        plan = replace(self._plan, process=process, partitions=tuple(starts), keep=without_ends)
        other = FinalReader(plan, self.settings, self.random, self.reader)
        for partition, offset in starts.items():
            other.consumer.seek(partition, offset)
        return other

    def run(self) -> Steps[None]:
        self._deadline_us = self.now.mono_us + self._plan.limit_us
        if not self._plan.partitions:
            return
        if (yield from self.refresh()):
            self.succeeded()
        while self.unread and not self.gives_up:
            leader = self._next_leader()
            if leader is None or not (yield from self.connect_to_node(leader)):
                self._postpone(
                    [
                        topic_partition
                        for topic_partition in self.unread
                        if self.metadata.leader_of(topic_partition) == leader
                    ]
                )
                yield from self.back_off()
                yield from self.refresh()
                self._end_unknown()
                continue
            chosen = [
                topic_partition for topic_partition in self.unread if self.metadata.leader_of(topic_partition) == leader
            ][:PARTITIONS_PER_FETCH]
            is_placed = (yield from self._seek_starts(chosen)) and (yield from self._describe())
            if not is_placed or not (yield from self._read(leader, chosen)):
                self._postpone(chosen)
                yield from self.back_off()
                yield from self.refresh()
                continue
            self.succeeded()
            if self.now.mono_us < self._describe_at_us and all(map(self._waits_for_retention, self.unread)):
                yield from self.sleep_until(min(self._describe_at_us, self._deadline_us))
        self._undescribed = {
            topic_partition.topic: None for topic_partition in self.unread if self._waits_for_retention(topic_partition)
        }
        self.journal.record(*self._plan.keep(list(self._held_back.values())))
        for partition in self._held_back:
            self.unread.pop(partition, None)

    def _take_metadata(self, update: MetadataUpdate) -> bool:
        accepted = super()._take_metadata(update)
        if accepted:
            topics = {each.topic: each for each in update.topics}
            for partition in self.unread:
                topic = topics.get(partition.topic)
                code = 0 if topic is None else topic.error_code
                fewer = topic is not None and not code and partition.partition not in topic.partitions
                if code == UNKNOWN_TOPIC_OR_PARTITION or fewer:
                    self._unknown_since_us.setdefault(partition, self.now.mono_us)
                else:
                    self._unknown_since_us.pop(partition, None)
        return accepted

    def _end_unknown(self) -> None:
        """Record the end of partitions that do not exist any more."""
        for partition, since_us in list(self._unknown_since_us.items()):
            if partition in self.unread and self.now.mono_us - since_us >= min(
                UNKNOWN_FOR_US, self._plan.limit_us // 2
            ):
                del self.unread[partition]
                error = error_name(UNKNOWN_TOPIC_OR_PARTITION)
                self.journal.record(*self._plan.keep([EndRow(*partition, 0, 0, self.now.mono_us, 0, error)]))

    def _postpone(self, some: Sequence[TopicPartition]) -> None:
        """Read all others first, perhaps those of another leader: an error may last until the limit."""
        for partition in some:
            if partition in self.unread:
                self.unread[partition] = self.unread.pop(partition)

    def _next_leader(self) -> NodeAddress | None:
        for partition in self.unread:
            leader = self.metadata.leader_of(partition)
            if leader is not None:
                return leader
        return None

    def _seek_starts(self, chosen: Sequence[TopicPartition]) -> Steps[bool]:
        missing = [topic_partition for topic_partition in chosen if topic_partition not in self.consumer.positions]
        if not missing:
            return True
        found = yield from self.bound_offsets(missing)
        refused = [each for each in found if each in self._refused]
        ends = (yield from self.bound_offsets(refused, LATEST)) if refused else {}
        for partition, offset in found.items():
            refused_at = self._refused.pop(partition, -1)
            # A record of the remote tier that is out of reach may be back at the next attempt.
            is_in_log = offset <= refused_at <= ends.get(partition, -1)
            if is_in_log:
                self.consumer.seek(partition, refused_at)
            else:
                self.consumer.seek(partition, offset)
                self._sizes.pop(partition, None)
            self._note_start(partition, offset)
        return len(found) == len(missing)

    def _note_start(self, partition: TopicPartition, offset: int) -> None:
        is_wanted = self._keeps_ends and self.settings.versions.describe_configs >= 0
        if is_wanted and offset > 0 and partition.topic not in self._retention:
            self._undescribed.setdefault(partition.topic)

    def _waits_for_retention(self, partition: TopicPartition) -> bool:
        return partition in self._held_back and partition.topic in self._undescribed

    def _describe(self) -> Steps[bool]:
        """Query the limits of topics whose logs do not begin at 0. A compacted topic has none that bound what may be
        missing. Return False if the connection is gone. Other partitions are read while it waits for a retry."""
        wanted = {partition.topic for partition in self.unread}
        self._undescribed = {each: None for each in self._undescribed if each in wanted}
        if not self._undescribed or self.now.mono_us < self._describe_at_us:
            return True
        operation = self.journal.begin("describe_configs")
        body = describe_topic_config_request(list(self._undescribed), *RETENTION)
        response = yield from self.call(ApiKey.DESCRIBE_CONFIGS, self.settings.versions.describe_configs, body)
        if isinstance(response, str):
            self.journal.end(operation, "fail", response)
            self._describe_later()
            return False
        error: str | None = None
        for result in cast("DescribeConfigsResponse", response.body).results:
            if result.error_code.value:
                error = error_name(result.error_code.value)
                continue
            value = {config.name: config.value or "" for config in result.configs}
            policy, age, size, segment = (value.get(name, "") for name in RETENTION)
            known = age and size and "compact" not in policy
            self._retention[result.resource_name] = (
                (int(age), int(size), int(segment) if segment else None) if known else UNLIMITED
            )
            self._undescribed.pop(result.resource_name, None)
        self.journal.end(operation, "fail" if error else "ok", error, response)
        if self._undescribed:
            self._describe_later()
        else:
            self._describe_failures = 0
        return True

    def _describe_later(self) -> None:
        self._describe_at_us = self.now.mono_us + self.wait_us(self._describe_failures)
        self._describe_failures += 1

    def _read(self, leader: NodeAddress, chosen: Sequence[TopicPartition]) -> Steps[bool]:
        """Fetch once, and return whether that went well."""
        wanted = {topic_partition: self._wanted(topic_partition) for topic_partition in chosen}
        handler = FetchSessionHandler(sessionless=True)
        plan = handler.build(wanted)
        operation = self.journal.begin(self._plan.operation)
        operation.node, operation.partitions_sent = leader.node_id, len(wanted)
        version = plan.version(self.settings.versions.fetch)
        request = plan.request(version, MAX_WAIT_MS, 0, MAX_BYTES, isolation_level=self._isolation)
        response = yield from self.call(ApiKey.FETCH, version, request, MAX_WAIT_MS * 1000)
        if isinstance(response, str):
            self.journal.end(operation, "info", response)
            return False
        body = cast(FetchResponse, response.body)
        handled = handler.handle_response(body)
        rows: list[HistoryRow] = []
        error = handled.problem and (error_name(body.error_code) if body.error_code else "INVALID_ANSWER")
        if error is None:
            for partition, data in handled.partitions:
                error = self._handle_partition(operation.index, partition, data, rows) or error
        operation.response_session_id, operation.response_partitions = body.session_id, len(handled.partitions)
        # What was read counts, whatever error another partition has.
        has_read = any(isinstance(row, PositionRow) and row.error is None for row in rows)
        kind, problem = ("fail", error) if error and not has_read else ("ok", None)
        self.journal.end(operation, kind, problem, response, tuple(self._plan.keep(rows)))
        return error is None

    def _wanted(self, partition: TopicPartition) -> Wanted:
        return Wanted(
            self.metadata.topic_id(partition.topic), self.consumer.positions[partition].offset, PARTITION_MAX_BYTES
        )

    def _handle_partition(
        self, index: int, partition: TopicPartition, data: PartitionData, rows: list[HistoryRow]
    ) -> str | None:
        """Handle one partition of the response, and return the name of its error, if any."""
        position = self.consumer.positions[partition]
        before = position.offset
        error = error_name(data.error_code) if data.error_code else None
        if data.error_code == OFFSET_OUT_OF_RANGE:
            self._refused[partition] = before
            del self.consumer.positions[partition]
            self._held_back.pop(partition, None)
        elif error is None:
            self._sizes[partition] += len(data.records or b"")
            spans = self.reader.read(partition, self.consumer.take(partition, data))
            first = sum(isinstance(each, SpanRow) for each in rows)
            rows.extend(
                read_row(self.process, index, first + number, partition, span, self._isolation)
                for number, span in enumerate(spans)
            )
        bounds = (data.high_watermark, data.log_start_offset)
        row = PositionRow(self.process, index, *partition, before, position.offset, *bounds, error)
        row.last_stable_offset = data.last_stable_offset
        rows.append(row)
        if error is None:
            self._note_end(partition, data, position.offset, rows)
        return error

    def _note_end(self, partition: TopicPartition, data: PartitionData, offset: int, rows: list[HistoryRow]) -> None:
        self._note_start(partition, data.log_start_offset)
        bounds = (data.log_start_offset, data.high_watermark)
        retention = self._retention.get(partition.topic, UNLIMITED) if data.log_start_offset > 0 else UNLIMITED
        end = EndRow(
            *partition, *bounds, self.now.mono_us, data.last_stable_offset, None, self._sizes[partition], *retention
        )
        is_whole = offset >= data.high_watermark
        if is_whole and not (data.log_start_offset > 0 and partition.topic in self._undescribed):
            self._held_back.pop(partition, None)
            del self.unread[partition]
            rows.append(end)
        elif is_whole or (self._isolation == READ_COMMITTED and offset >= data.last_stable_offset >= 0):
            self._held_back[partition] = end
            self._postpone([partition])
        else:
            self._held_back.pop(partition, None)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{', '.join(names[:MAX_NAMED])}{more}"


def target_reader(
    process: str, settings: ClientSettings, random: Chance, partitions: Sequence[TopicPartition], limit_us: int
) -> FinalReader:
    """Return a final reader whose rows go to a table of their own. The topics of both clusters have the same names,
    but a record has another offset in the target."""
    plan = FinalReadPlan(process, tuple(partitions), limit_us, "target_read", _as_target_runs)
    return FinalReader(plan, settings, random, BatchReader())


def _as_target_runs(rows: Sequence[HistoryRow]) -> list[HistoryRow]:
    return [row for each in rows for row in _as_target_run(each)]


def _as_target_run(row: HistoryRow) -> list[HistoryRow]:
    if isinstance(row, SpanRow):
        where = (row.topic, row.partition)
        return [TargetSpanRow(*where, row.first_offset, row.count, row.writer, row.first_sequence)]
    if isinstance(row, EndRow):
        return [TargetSpanRow(row.topic, row.partition, row.high_watermark, 0, "", -1)]
    return []


FINAL_OFFSETS: Final = "final_offsets"
"""The name of these reads in the history."""


class OffsetsReader(ClusterScript):
    """Fetches the stable offsets of each group, with a version that carries no metadata epoch, and ends.

    ``groups`` maps group IDs to the partitions that they commit. After ``limit_us`` the groups that are ``unread`` stay
    so.
    """

    KEEPS_CONNECTIONS = True

    def __init__(
        self,
        process: str,
        settings: ClientSettings,
        random: Chance,
        groups: Mapping[str, Sequence[TopicPartition]],
        limit_us: int,
    ) -> None:
        super().__init__(process, settings, random, ())
        self.groups = groups
        self.limit_us = limit_us
        self.unread: dict[str, None] = dict.fromkeys(groups)
        self._failures: Counter[NodeAddress | None] = Counter()

    @property
    def missed(self) -> str:
        """Return the groups whose offsets could not be read, as a sentence without its full stop; or nothing."""
        several = "s" * (len(self.unread) > 1)
        return f"the committed offsets of group{several} {', '.join(self.unread)} could not be read" * bool(self.unread)

    def run(self) -> Steps[None]:
        """The groups take turns of one request each, so that one whose coordinator is stuck does not hold up others."""
        deadline_us = self.now.mono_us + self.limit_us
        versions, settings = self.settings.versions, self.settings
        of_group = GroupVersions(find_coordinator=versions.find_coordinator, offset_fetch=versions.offset_fetch)
        reads: dict[str, CommittedOffsets] = {}
        for group, partitions in self.groups.items():
            coordinator = GroupCoordinator(group, of_group, settings.backoff_us, settings.request_timeout_us)
            reads[group] = CommittedOffsets(coordinator)
            reads[group].fetch(partitions, MemberIdentity(group), deadline_us)
        while reads:
            due = [each for each, offsets in reads.items() if (offsets.wake_at_us or 0) <= self.now.mono_us]
            if not due:
                yield from self.sleep_until(min(read.wake_at_us or 0 for read in reads.values()))
                continue
            # A node that did not respond comes after the others, because it may take a request's whole timeout again.
            group = min(due, key=lambda each: self._failures[reads[each].coordinator.node])
            offsets = reads.pop(group)
            yield from self._turn(group, offsets)
            if offsets.busy:
                reads[group] = offsets

    def _turn(self, group: str, offsets: CommittedOffsets) -> Steps[None]:
        """Send the group's next request, unless its time is over, and record what a fetch has found."""
        request = offsets.next_request(self.now.mono_us)
        if request is not None and request.api_key != ApiKey.OFFSET_FETCH:
            yield from self._send(offsets, request)
            return
        operation = self.journal.begin(FINAL_OFFSETS)
        reason = None if request is None else (yield from self._send(offsets, request))
        fetched = offsets.take_result()
        if fetched is None:
            self.journal.end(operation, "fail", reason)
            return
        assert isinstance(fetched, Fetched), "a fetch of offsets ends with what it fetched"
        error = name_of(fetched.error) if fetched.error else None
        self.journal.end(operation, "fail" if error else "ok", error)
        if error is None:
            del self.unread[group]
        for partition, at in fetched.offsets.items():
            who = (self.process, operation.index, "fetched", group, fetched.sent_as.generation_id, "")
            self.journal.record(
                CommitRow(*who, *partition, at.offset, at.leader_epoch, -1, False, None, self.now.mono_us)
            )

    def _send(self, offsets: CommittedOffsets, request: GroupRequest) -> Steps[str | None]:
        """Send the request, and return why it brought nothing: a fetch's error, or no response."""
        to = self._next_address() if request.to is None else Address(request.to.host, request.to.port)
        response: ResponseReceived | str = "disconnected"
        if (yield from self._reach(to)):
            response = yield from self.call(request.api_key, request.api_version, request.body)
        if isinstance(response, str):
            self._failures[request.to] += request.to is not None
            offsets.failed(self.now.mono_us)
            return response
        offsets.responded(self.now.mono_us, response.body)
        found = fetched_offsets(response.body) if request.api_key == ApiKey.OFFSET_FETCH else {}
        return None if isinstance(found, dict) else name_of(found)
