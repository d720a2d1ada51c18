"""The log never blocks the node: lines that are not read or cannot be written are dropped, counted and reported."""

import json
import os
from collections.abc import Iterator
from io import StringIO

import pytest

from reference_broker.serve.log_lines import BURST_LINES, LINES_PER_SECOND, SELDOM_S, LogLines, LogWriter

LINE = b'{"event": "x"}\n'
LONG_S = 10.0
MORE_THAN_A_PIPE = 1 << 18


def dropped_line(count: int) -> bytes:
    return b"dropped %d\n" % count


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_lines_arrive_in_order(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LogWriter(writing, dropped_line)
    for number in range(100):
        writer.write(b"%d\n" % number)
    assert writer.flush(LONG_S)
    assert os.read(reading, 1 << 16).split() == [b"%d" % number for number in range(100)]


def test_unread_lines_are_dropped_counted_and_reported(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LogWriter(writing, dropped_line, max_waiting_bytes=MORE_THAN_A_PIPE)
    writer.write(bytes(MORE_THAN_A_PIPE - 1) + b"\n")
    assert not writer.flush(0.05)
    for _ in range(5):
        writer.write(bytes(MORE_THAN_A_PIPE // 2))
    assert writer.dropped == 3
    seen = b""
    while not writer.flush(0.01):
        seen += os.read(reading, 1 << 16)
    writer.write(LINE)
    assert writer.flush(LONG_S)
    seen += os.read(reading, 1 << 16)
    assert b"dropped 3\n" in seen
    assert seen.endswith(LINE)


@pytest.mark.parametrize("non_blocking", [False, True])
def test_full_pipe_does_not_block(non_blocking: bool) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, not non_blocking)
    writer = LogWriter(writing, dropped_line, max_waiting_bytes=1 << 20)
    writer.write(bytes(1 << 19))
    assert not writer.flush(0.05)
    read = 0
    while read < 1 << 19:
        read += len(os.read(reading, 1 << 16))
    assert writer.flush(LONG_S)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a device that is always full")
def test_full_disk_drops_lines() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    writer = LogWriter(full, dropped_line)
    for _ in range(3):
        writer.write(LINE)
        assert writer.flush(LONG_S)
    assert writer.dropped == 3
    os.close(full)


def test_closed_pipe_drops_lines() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    writer = LogWriter(writing, dropped_line)
    writer.write(LINE * 2)
    assert writer.flush(LONG_S)
    assert writer.dropped == 2
    os.close(writing)


def test_truncated_line_does_not_corrupt_next_one(tmp_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"{tmp_path}/log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    real = os.write
    results: list[int | OSError] = [5, OSError(28, "no space"), 1 << 20]

    def write(number: int, data: bytes) -> int:
        result = results.pop(0) if results and number == descriptor else 1 << 20
        if isinstance(result, OSError):
            raise result
        return real(number, data[:result])

    monkeypatch.setattr(os, "write", write)
    writer = LogWriter(descriptor, dropped_line)
    writer.write(LINE)
    assert writer.flush(LONG_S)
    writer.write(LINE)
    assert writer.flush(LONG_S)
    os.close(descriptor)
    with open(path, "rb") as log:
        assert log.read() == LINE[:5] + b"\ndropped 1\n" + LINE


def test_events_caused_by_peers_are_limited_and_omissions_reported() -> None:
    now_s = 0.0
    stream = StringIO()
    log = LogLines(1, stream, lambda: now_s)
    for _ in range(BURST_LINES + 7):
        log.limited("warn", "closed", reason="x")
    log.limited("warn", "another")
    now_s = 1.0
    for _ in range(LINES_PER_SECOND + 5):
        log.limited("warn", "closed", reason="y")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    closed = [line for line in lines if line["event"] == "closed"]
    assert len(closed) == BURST_LINES + LINES_PER_SECOND
    assert [line["omitted"] for line in closed if "omitted" in line] == [7]
    assert len(lines) == len(closed) + 1


def test_transient_failures_are_logged_once_then_rarely_per_reason() -> None:
    now_s = 0.0
    stream = StringIO()
    log = LogLines(1, stream, lambda: now_s)
    for _ in range(60):
        log.seldom("info", "closed", "it is starting", peer="p")
        log.seldom("info", "closed", "it ends", peer="p")
    log.limited("warn", "closed", reason="x")
    now_s = SELDOM_S + 0.1
    log.seldom("info", "closed", "it is starting", peer="q")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    reported_lines = [(line["reason"], line.get("peer"), line.get("omitted")) for line in lines]
    assert reported_lines == [
        ("it is starting", "p", None),
        ("it ends", "p", None),
        ("x", None, None),
        ("it is starting", "q", 59),
    ]
