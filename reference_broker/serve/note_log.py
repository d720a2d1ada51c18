"""Logs the notes of a node that an operator must see. The trace recorder, which is a hook, records all notes."""

from dataclasses import dataclass, field

from reference_broker.core.effects import Note
from reference_broker.serve.log_lines import LogLines

EVENTS = frozenset({"producer_snapshot_recreated"})
"""Notes of what is right, but unusual enough to be told: a few for each log that is made tiered."""
WARNINGS = frozenset(
    {
        "coordinator_load_failed",
        "coordinator_loaded_in_part",
        "lost_replicas_not_told",
        "producer_snapshot_damaged",
        "quarantine_ended",
        "setting_without_effect",
        "stray_renamed",
        "truncated_below_high_watermark",
    }
)
LOSSES = frozenset({"log_cut", "log_quarantined", "remote_log_events_missing"})
"""Notes that say what was lost, or is in doubt. Each of them is logged."""
ERRORS = frozenset(
    {
        "copy_failed",
        "download_postponed",
        "epochs_used_up",
        "expiring_failed",
        "fetched_not_written",
        "metadata_not_written",
        "snapshot_damaged",
    }
)
"""Notes of what only a person can put right for good. They may repeat for hours."""
ERROR_EVERY_US = 10_000_000
"""Each of these gets at most one line in this time. The line says how many were left out before it."""


@dataclass(slots=True)
class NoteLog:
    """``_logged`` holds, by the name of a note, when its last line was written and how many were left out since."""

    _log: LogLines
    _logged: dict[str, tuple[int, int]] = field(default_factory=dict)

    def take(self, note: Note, now_us: int) -> None:
        if note.what in EVENTS:
            self._log.info(note.what, **dict(note.fields))
        elif note.what in WARNINGS:
            self._log.warn(note.what, **dict(note.fields))
        elif note.what in LOSSES:
            self._log.error(note.what, **dict(note.fields))
        elif note.what in ERRORS:
            self._error(note, now_us)

    def _error(self, note: Note, now_us: int) -> None:
        logged_us, left_out = self._logged.get(note.what, (now_us - ERROR_EVERY_US, 0))
        if now_us - logged_us < ERROR_EVERY_US:
            self._logged[note.what] = (logged_us, left_out + 1)
            return
        self._logged[note.what] = (now_us, 0)
        self._log.error(note.what, **dict(note.fields), **({"left_out": left_out} if left_out else {}))
