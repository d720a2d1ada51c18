"""Records of what passed through the proxy: tables for the judge of a run, and a log for people.

The rows of the tables (``reports.rows``) are JSON lines. The suite makes Parquet of them after the run
(``chaos.live.run_folder``).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import msgspec

from chaos.frame_proxy.frames import FETCH, Label
from chaos.interceptor.raw_frames import RawFrame
from reference_broker.wire.fetch import FetchRequest, FetchResponse
from reports.columns import Row
from reports.rows import FrameLineRow, FrameRow

SESSIONS_SINCE: Final = 7
TOPIC_IDS_SINCE: Final = 13
DRAFTS_SINCE: Final = 1000
"""The versions of Fetch with sessions, with topic IDs, and those that are drafts."""
NOBODY: Final = -1
FRAMES: Final = "frames-0.jsonl"
LINES: Final = "frame_lines-0.jsonl"


class Sent(NamedTuple):
    """A request that was forwarded to the node."""

    seq: int
    at_us: int
    node: int
    source: int
    """ID of the node that sent it, or NOBODY for a client."""
    connection: int
    label: Label
    request_bytes: int


class FrameRecorder:
    """Writes into two files in ``folder``. ``nodes`` counts the nodes of the target. All is done in one thread."""

    def __init__(self, folder: Path, nodes: int, now_us: Callable[[], int]) -> None:
        self._nodes = nodes
        self._now_us = now_us
        self._last = 0
        self._encode = msgspec.json.Encoder().encode
        self._frames: IO[bytes] = (folder / FRAMES).open("ab")
        self._lines: IO[bytes] = (folder / LINES).open("ab")

    def sent(
        self, node: int, source: int | None, connection: int, label: Label, size: int, raw: RawFrame | None
    ) -> Sent:
        """Take a request when it goes to the node. ``raw`` is there if it is whole."""
        sender = NOBODY if source is None else source
        sent = Sent(self._next(), self._now_us(), node, sender, connection, label, size)
        body = raw.value() if raw is not None and reads_lines(label) else None
        if isinstance(body, FetchRequest):
            self._write(self._lines, _request_lines(sent, body))
        return sent

    def response(self, sent: Sent, what: str, size: int, error: int, raw: RawFrame | None) -> None:
        """Take a node's response. ``what`` is ``response``, or ``response_taken`` if a rule has taken it."""
        seq, session, throttle_ms = self._next(), 0, 0
        body = raw.value() if raw is not None and reads_lines(sent.label) else None
        if isinstance(body, FetchResponse):
            session, throttle_ms = body.session_id, body.throttle_time_ms
            self._write(self._lines, _response_lines(sent, body))
        self._row(sent, what, seq, error, session, throttle_ms, size)

    def no_response(self, sent: Sent, what: str) -> None:
        """Take a request that gets no response (acks=0), or whose connection ended first."""
        self._row(sent, what, NOBODY)

    def flush(self) -> None:
        self._lines.flush()
        self._frames.flush()

    def close(self) -> None:
        self._lines.close()
        self._frames.close()

    def _row(
        self, sent: Sent, what: str, seq: int, error: int = 0, session: int = 0, throttle_ms: int = 0, size: int = 0
    ) -> None:
        tag = sent.label.tag
        row = FrameRow(
            sent.node,
            self._nodes,
            sent.source,
            sent.connection,
            tag.client_id,
            tag.api_key,
            tag.api_version,
            tag.session_id,
            tag.session_epoch,
            what,
            sent.seq,
            sent.at_us,
            seq,
            self._now_us(),
            error,
            session,
            throttle_ms,
            sent.request_bytes,
            size,
        )
        self._write(self._frames, (row,))

    def _next(self) -> int:
        self._last += 1
        return self._last

    def _write(self, file: IO[bytes], rows: Iterable[Row]) -> None:
        if file.closed:  # A connection ended after the proxy.
            return
        for row in rows:
            file.write(self._encode(row.values()) + b"\n")


def reads_lines(label: Label) -> bool:
    """Return whether the partitions of a request and of its response are recorded: those of fetches with sessions."""
    key, version, *_ = label.header
    return key == FETCH and SESSIONS_SINCE <= version < DRAFTS_SINCE


def _request_lines(sent: Sent, body: FetchRequest) -> Iterator[FrameLineRow]:
    for topic in body.topics:
        name = _name(sent, topic)
        for partition in topic.partitions:
            yield FrameLineRow(sent.seq, sent.node, "named", name, partition.partition, partition.fetch_offset)
    for gone in body.forgotten:
        for index in gone.partitions:
            yield FrameLineRow(sent.seq, sent.node, "forgotten", _name(sent, gone), index)


def _response_lines(sent: Sent, body: FetchResponse) -> Iterator[FrameLineRow]:
    for topic in body.responses:
        name = _name(sent, topic)
        for partition in topic.partitions:
            yield FrameLineRow(
                sent.seq,
                sent.node,
                "returned",
                name,
                partition.partition,
                NOBODY,
                partition.high_watermark,
                partition.log_start_offset,
                partition.error_code,
                len(partition.records or b""),
                partition.diverging_epoch is not None or partition.preferred_read_replica != NOBODY,
            )


def _name(sent: Sent, topic: Any) -> str:
    by_id = sent.label.header.api_version >= TOPIC_IDS_SINCE
    return str(topic.topic_id.hex() if by_id else topic.topic)


KEPT: Final = 10_000
"""The number of newest entries that can be read. A log file has all of them."""
AT_ONCE: Final = 1_000


class Entry(msgspec.Struct, omit_defaults=True):
    """One entry of the log of exchanges: a request with its response, or another event."""

    number: int
    """Number of the entry, from 1 on."""
    at_us: int
    """Time at which the request arrived, since the proxy's start."""
    what: str
    """``response``, ``no_response`` (a Produce request with acks=0), ``response_taken`` (by a rule), ``lost`` (the
    connection ended first), or the name of another event."""
    node: int
    connection: int
    api: str = ""
    version: int = -1
    client_id: str = ""
    correlation_id: int = 0
    session_id: int = 0
    session_epoch: int = -1
    request_bytes: int = 0
    response_bytes: int = 0
    error: str = ""
    took_us: int = 0
    """Time from the request to the node's response."""
    detail: str = ""
    """Describes an event that is not an exchange."""


class RequestLog:
    """Keeps the newest entries, and writes all to ``file`` if there is one. All is done in one thread."""

    def __init__(self, file: Path | None = None) -> None:
        self._kept: deque[Entry] = deque(maxlen=KEPT)
        self._last = 0
        self._encoder = msgspec.json.Encoder()
        self._out: IO[bytes] | None = None if file is None else file.open("ab")

    def next_number(self) -> int:
        self._last += 1
        return self._last

    def add(self, entry: Entry) -> None:
        self._kept.append(entry)
        if self._out is not None:
            self._out.write(self._encoder.encode(entry) + b"\n")

    def since(self, number: int) -> Sequence[Entry]:
        """Return the oldest AT_ONCE of the kept entries with a greater number."""
        entries = [entry for entry in self._kept if entry.number > number]
        return entries[:AT_ONCE]

    def flush(self) -> None:
        if self._out is not None:
            self._out.flush()

    def close(self) -> None:
        if self._out is not None:
            self._out.close()
            self._out = None
