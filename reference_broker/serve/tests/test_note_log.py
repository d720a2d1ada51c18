"""Which notes of a node get a line in its log, and how often."""

import json
from io import StringIO

from reference_broker.core.effects import Note
from reference_broker.serve.log_lines import LogLines
from reference_broker.serve.note_log import ERROR_EVERY_US, NoteLog


def test_an_error_that_repeats_gets_a_line_now_and_then_that_counts_those_left_out() -> None:
    stream = StringIO()
    notes = NoteLog(LogLines(3, stream))
    for at_us in (0, 1, 2, ERROR_EVERY_US, ERROR_EVERY_US + 1):
        notes.take(Note("snapshot_damaged", (("end_offset", 7), ("why", "a bit"))), at_us)
    notes.take(Note("download_postponed", (("times", 1),)), 3)
    notes.take(Note("truncated_below_high_watermark", (("offset", 5),)), 4)
    notes.take(Note("metadata_published", (("offset", 5),)), 5)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["level"], line["event"], line.get("left_out", 0)) for line in lines] == [
        ("error", "snapshot_damaged", 0),
        ("error", "snapshot_damaged", 2),
        ("error", "download_postponed", 0),
        ("warn", "truncated_below_high_watermark", 0),
    ]
    assert (lines[0]["end_offset"], lines[0]["why"]) == (7, "a bit")
