"""The operations of a script that read: ListOffsets, full fetches, fetch sessions, and DeleteRecords."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from chaos.search.differ_world import (
    BY_ID_SINCE,
    COMMITTED,
    MAX_BYTES,
    RETRIABLE,
    UNCOMMITTED,
    ClientRequests,
    ClientResult,
    Partition,
    code_name,
    rounded,
)
from reference_broker.records.batch import read_header
from reference_broker.records.record import read_all
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import (
    NO_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

IDLE_ROUNDS: Final = 40
"""Number of fetches without anything new after which a reader stops. The tier may need some of them."""


@dataclass(slots=True)
class Followed:
    """A partition of the reader."""

    position: int
    sent: tuple[int, int] | None = None
    """the position and the size that the session has of it"""
    last: PartitionData | None = None
    """its part of the last response that had it"""


@dataclass(slots=True)
class Session:
    session_id: int = 0
    epoch: int = 0
    partitions: dict[Partition, tuple[str, bytes]] = field(default_factory=dict)
    """what it has, with the name or ID by which it was named"""


@dataclass
class ReadingClient(ClientRequests):
    """Each public method is one operation, and returns its result."""

    followed: dict[Partition, Followed] = field(default_factory=dict)
    """what the reader of the script fetches"""
    left: dict[Partition, Followed] = field(default_factory=dict)
    """partitions that are not followed any more, and that sessions still have"""
    _sessions: dict[int, Session] = field(default_factory=dict)
    """by node"""

    # Records

    def delete_records(self, topic: str, partition: int, share: float) -> ClientResult:
        """Delete the records below that share of the partition."""
        end = self._offset(topic, partition, -1, UNCOMMITTED)
        if end is None or end.error_code:
            return (("error", "no end"),)
        offset = int(int(end.offset) * share)
        values = {
            "topics": [{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}],
            "timeout": 5000,
        }
        of_partition = self.leader_request(topic, partition, ApiKey.DELETE_RECORDS, values)
        if of_partition is None:
            return (("error", "no response"),)
        return (
            ("up to", offset),
            ("error", code_name(of_partition.error_code)),
            ("low watermark", int(of_partition.low_watermark)),
        )

    def _offset(self, topic: str, partition: int, timestamp: int, isolation: int) -> Any:
        values = {
            "replica_id": -1,
            "isolation_level": isolation,
            "topics": [{"name": topic, "partitions": [{"partition_index": partition, "timestamp": timestamp}]}],
            "timeout": 5000,
        }
        return self.leader_request(topic, partition, ApiKey.LIST_OFFSETS, values)

    def list_offsets(self, topic: str, partition: int, timestamp: int, isolation: int) -> ClientResult:
        of_partition = self._offset(topic, partition, timestamp, isolation)
        if of_partition is None:
            return (("error", "no response"),)
        return (
            ("error", code_name(of_partition.error_code)),
            ("offset", int(of_partition.offset)),
            ("timestamp", rounded(int(of_partition.timestamp))),
        )

    def read(self, topic: str, partition: int, share: float, isolation: int) -> ClientResult:
        """Read from that share of the partition to its end, with full fetches."""
        start, end = (self._offset(topic, partition, which, UNCOMMITTED) for which in (-2, -1))
        if start is None or end is None or start.error_code or end.error_code:
            return (("error", "no bounds"),)
        position = int(start.offset) + int((int(end.offset) - int(start.offset)) * share)
        seen = _Seen(position)
        for _ in range(IDLE_ROUNDS):
            before = seen.position
            data = self._fetch_one(topic, partition, seen.position, isolation)
            if data is None:
                return (("error", "no response"),)
            seen.take(data, isolation)
            if data.error_code or seen.is_at_end(isolation):
                break
            if seen.position == before:
                self.pass_time()
        return seen.result(isolation)

    def _fetch_one(self, topic: str, partition: int, offset: int, isolation: int) -> PartitionData | None:
        def own(response: FetchResponse) -> PartitionData | None:
            return next((each for named in response.responses for each in named.partitions), None)

        def error(response: FetchResponse) -> int:
            data = own(response)
            return response.error_code or (data.error_code if data is not None else ErrorCode.request_timed_out)

        def send(node: int) -> Any:
            rows = [FetchTopic(*self.topic_name(topic), [FetchPartition(partition, offset, MAX_BYTES)])]
            return self.call(node, ApiKey.FETCH, _fetch_request(rows, isolation), self._fetch_version)

        _, response = self.until_settled(lambda: self.leader_of(topic, partition), send, error)
        return None if response is None else own(response)

    @property
    def _fetch_version(self) -> int:
        return BY_ID_SINCE + 3 if self.by_id else BY_ID_SINCE - 1

    # The reader

    def follow(self, topic: str, partition: int, offset: int) -> ClientResult:
        """Add a partition, or go to that offset of it. What a session has sent of it still counts."""
        where = topic, partition
        self.followed[where] = self.followed.get(where) or self.left.pop(where, None) or Followed(offset)
        self.followed[where].position = offset
        return ()

    def unfollow(self, topic: str, partition: int) -> ClientResult:
        gone = self.followed.pop((topic, partition), None)
        if gone is not None:
            self.left[topic, partition] = gone
        return ()

    def poll(self, isolation: int, max_bytes: int) -> ClientResult:
        """Fetch what is followed until nothing new comes. ``max_bytes`` is the size for each partition."""
        seen = {where: _Seen(each.position) for where, each in self.followed.items()}
        idle = 0
        while idle < IDLE_ROUNDS:
            idle += 1
            if not self._poll_once(isolation, max_bytes):
                self.topic_leaders.clear()
                self.pass_time()
                continue
            waits = False
            for where, each in self.followed.items():
                if each.last is None:
                    waits = True
                    continue
                if each.last.error_code in RETRIABLE:
                    self.topic_leaders.clear()
                    waits = True
                    continue
                before = seen[where].position
                seen[where].take(each.last, isolation)
                each.last = replace(each.last, records=b"")
                each.position = seen[where].position
                if each.position != before:
                    idle = 0
                waits |= not (each.last.error_code or seen[where].is_at_end(isolation))
            if not waits:
                break
            if idle:
                self.pass_time()
        for (topic, partition), each in self.followed.items():
            if each.last is not None and each.last.error_code == ErrorCode.offset_out_of_range:
                start = self._offset(topic, partition, -2, UNCOMMITTED)
                each.position = int(start.offset) if start is not None and not start.error_code else 0
        return tuple(
            (f"{topic}-{partition}", each.result(isolation)) for (topic, partition), each in sorted(seen.items())
        )

    def _poll_once(self, isolation: int, max_bytes: int) -> bool:
        """Send one fetch to each leader. Return False if one must be sent again."""
        by_leader: dict[int, dict[Partition, Followed]] = {}
        for (topic, partition), each in self.followed.items():
            by_leader.setdefault(self.leader_of(topic, partition), {})[topic, partition] = each
        nodes = {*by_leader, *self._sessions}
        return all(self._fetch_from(node, by_leader.get(node, {}), isolation, max_bytes) for node in sorted(nodes))

    def _fetch_from(self, node: int, followed: dict[Partition, Followed], isolation: int, max_bytes: int) -> bool:
        """Send one fetch of these partitions, with a session if this way has sessions. Return False if it must be sent
        again."""
        session = self._sessions.setdefault(node, Session()) if self.world.way.incremental else None
        cached = {} if session is None else session.partitions
        naming = {where: self.topic_name(where[0]) for where in followed}
        forgotten = {where: named for where, named in cached.items() if naming.get(where) != named}
        rows: dict[str, list[FetchPartition]] = {}
        for where, each in followed.items():
            if where not in cached or where in forgotten or each.sent != (each.position, max_bytes):
                rows.setdefault(where[0], []).append(FetchPartition(where[1], each.position, max_bytes))
                each.sent = each.position, max_bytes
        if not followed and not forgotten:
            return True
        request = _fetch_request(
            [FetchTopic(*naming[topic, row[0].partition], row) for topic, row in rows.items()],
            isolation,
            0 if session is None else session.session_id,
            -1 if session is None else session.epoch,
            [ForgottenTopic(*named, [index]) for (_, index), named in forgotten.items()],
        )
        response: FetchResponse | None = self.call(node, ApiKey.FETCH, request, self._fetch_version)
        if response is None or response.error_code:
            self._sessions.pop(node, None)
            return False
        if session is not None:
            session.session_id, session.epoch = response.session_id, session.epoch + 1
            session.partitions = naming
            for where in forgotten:
                self.left.pop(where, None)
        names = {named: topic for (topic, _), named in naming.items()}
        for of_topic in response.responses:
            named = ("", of_topic.topic_id) if self.by_id else (of_topic.topic, NO_TOPIC_ID)
            for data in of_topic.partitions:
                partition = followed.get((names.get(named, ""), data.partition))
                if partition is not None:
                    partition.last = data
        return True


@dataclass(slots=True)
class _Seen:
    """A reader's state of one partition."""

    position: int
    records: list[tuple[object, ...]] = field(default_factory=list)
    last: PartitionData | None = None

    def take(self, data: PartitionData, isolation: int) -> None:
        """Add what the response has from the position on, without markers and aborted records."""
        self.last = data
        aborted = sorted(
            (transaction.first_offset, transaction.producer_id) for transaction in data.aborted_transactions or ()
        )
        open_of: set[int] = set()
        last_header = None
        for header, record in read_all(bytes(data.records or b"")):
            if header is not last_header:
                last_header = header
                while aborted and aborted[0][0] <= header.last_offset:
                    open_of.add(aborted.pop(0)[1])
            if header.is_control:
                if isolation == COMMITTED and int.from_bytes((record.key or b"")[2:4]) == 0:
                    open_of.discard(header.producer_id)
                continue
            if isolation == COMMITTED and header.is_transactional and header.producer_id in open_of:
                continue
            if record.offset >= self.position:
                self.records.append((record.offset, record.timestamp_ms, record.key, record.value, record.headers))
        self.position = max(self.position, _end_of(bytes(data.records or b"")))

    def is_at_end(self, isolation: int) -> bool:
        data = self.last
        if data is None:
            return False
        return self.position >= (data.last_stable_offset if isolation == COMMITTED else data.high_watermark)

    def result(self, isolation: int) -> ClientResult:
        data = self.last
        if data is None:
            return (("error", "no data"),)
        end = "is reached" if data.error_code or self.is_at_end(isolation) else f"is not reached at {self.position}"
        return (
            ("error", code_name(data.error_code)),
            ("high watermark", data.high_watermark),
            ("last stable offset", data.last_stable_offset),
            ("log start", data.log_start_offset),
            ("end", end),
            ("records", tuple(self.records)),
        )


def _end_of(data: bytes) -> int:
    """Return the offset after the last whole batch, 0 if there is none."""
    end, at = 0, 0
    while at + 61 <= len(data):
        header = read_header(data, at)
        if at + header.size_bytes > len(data):
            break
        end, at = header.last_offset + 1, at + header.size_bytes
    return end


def _fetch_request(
    topics: Sequence[FetchTopic],
    isolation: int,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: Sequence[ForgottenTopic] = (),
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=50,
        min_bytes=1,
        max_bytes=MAX_BYTES,
        isolation_level=isolation,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=list(topics),
        forgotten=list(forgotten),
    )
