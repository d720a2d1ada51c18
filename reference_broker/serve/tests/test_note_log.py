"""Notes of a node that get a log line, and how often."""

import json
from io import StringIO

import pytest

from reference_broker.core.events import Note
from reference_broker.serve.log_lines import LogLines
from reference_broker.serve.node_log import ERROR_EVERY_US, NoteLog


def test_repeated_error_is_logged_rarely_with_count_of_omitted() -> None:
    stream = StringIO()
    notes = NoteLog(LogLines(3, stream))
    for at_us in (0, 1, 2, ERROR_EVERY_US, ERROR_EVERY_US + 1):
        notes.take(Note("snapshot_damaged", (("end_offset", 7), ("why", "a bit"))), at_us)
    notes.take(Note("download_postponed", (("times", 1),)), 3)
    notes.take(Note("truncated_below_high_watermark", (("offset", 5),)), 4)
    notes.take(Note("metadata_published", (("offset", 5),)), 5)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["level"], line["event"], line.get("omitted", 0)) for line in lines] == [
        ("error", "snapshot_damaged", 0),
        ("error", "snapshot_damaged", 2),
        ("error", "download_postponed", 0),
        ("warn", "truncated_below_high_watermark", 0),
    ]
    assert (lines[0]["end_offset"], lines[0]["why"]) == (7, "a bit")


def test_rebuilt_producer_snapshot_is_logged_each_time() -> None:
    stream = StringIO()
    notes = NoteLog(LogLines(3, stream))
    for offset in (10, 20):
        notes.take(Note("producer_snapshot_recreated", (("offset", offset), ("read_bytes", 5))), offset)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["level"], line["event"], line["offset"], line["read_bytes"]) for line in lines] == [
        ("info", "producer_snapshot_recreated", 10, 5),
        ("info", "producer_snapshot_recreated", 20, 5),
    ]


def test_lost_remote_log_events_are_logged_for_each_partition() -> None:
    stream = StringIO()
    notes = NoteLog(LogLines(3, stream))
    for partition in ("hot-0", "hot-1"):
        notes.take(Note("remote_log_events_missing", (("partition", partition), ("log_start_offset", 5))), 0)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["level"], line["event"], line["partition"], line["log_start_offset"]) for line in lines] == [
        ("error", "remote_log_events_missing", "hot-0", 5),
        ("error", "remote_log_events_missing", "hot-1", 5),
    ]


@pytest.mark.parametrize("what", ["copy_failed", "expiring_failed"])
def test_failing_store_is_logged_rarely(what: str) -> None:
    stream = StringIO()
    notes = NoteLog(LogLines(3, stream))
    for at_us in (0, 1, ERROR_EVERY_US):
        notes.take(Note(what, (("partition", "hot-0"), ("reason", "no store"))), at_us)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["level"], line["event"], line["reason"], line.get("omitted", 0)) for line in lines] == [
        ("error", what, "no store", 0),
        ("error", what, "no store", 1),
    ]
