"""Log lines for a node's notes and requests. ``crucible.request.log.enable`` adds one line for each request.

The trace recorder, which is a hook, records all notes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from reference_broker.core.events import Close, Closed, Effect, Event, Note, Reply, Request
from reference_broker.ports.node_ports import Now
from reference_broker.serve.log_lines import LogLines
from reference_broker.wire.apis import ApiKey, api_name

EVENTS = frozenset({"producer_snapshot_recreated"})
"""Notes of what is right, but unusual enough to be logged: a few for each log that becomes tiered."""
WARNINGS = frozenset(
    {
        "coordinator_load_failed",
        "coordinator_loaded_in_part",
        "lost_replicas_not_reported",
        "producer_snapshot_damaged",
        "quarantine_ended",
        "setting_without_effect",
        "stray_renamed",
        "truncated_below_high_watermark",
    }
)
LOSSES = frozenset({"log_cut", "log_quarantined", "remote_log_events_missing"})
"""Notes of data that was lost, or is in doubt. Each of them is logged."""
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
"""Notes of failures that only a person can fix for good. They may repeat for hours."""
ERROR_EVERY_US = 10_000_000
"""Each of these gets at most one line in this time. The line has the number of those omitted before it."""


@dataclass(slots=True)
class NoteLog:
    """Logs the notes of a node that an operator must see."""

    _log: LogLines
    _logged: dict[str, tuple[int, int]] = field(default_factory=dict)
    """When the last line of a note was written, and the number omitted since, by the name of the note."""

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
        logged_us, omitted = self._logged.get(note.what, (now_us - ERROR_EVERY_US, 0))
        if now_us - logged_us < ERROR_EVERY_US:
            self._logged[note.what] = (logged_us, omitted + 1)
            return
        self._logged[note.what] = (now_us, 0)
        self._log.error(note.what, **dict(note.fields), **({"omitted": omitted} if omitted else {}))


@dataclass(slots=True)
class RequestLog:
    """A hook (``core.events``) that changes nothing. It is the last hook, so that it logs what the node saw and did."""

    _log: LogLines
    _arrived_us: dict[int, int] = field(default_factory=dict)
    """The arrival time of the request that is with the node, by connection."""

    def before(self, now: Now, event: Event) -> Sequence[Event]:
        if isinstance(event, Request):
            self._arrived_us[event.connection] = now.mono_us
        return (event,)

    def after(self, now: Now, event: Event, effects: Sequence[Effect]) -> Sequence[Effect]:
        for effect in effects:
            if isinstance(effect, Reply):
                self._log_request(now, effect)
            elif isinstance(effect, Close):
                self._arrived_us.pop(effect.connection, None)
        if isinstance(event, Closed):
            self._arrived_us.pop(event.connection, None)
        return effects

    def _log_request(self, now: Now, reply: Reply) -> None:
        tag = reply.tag
        session: dict[str, int] = {}
        if reply.api_key == ApiKey.FETCH:
            session = {
                "session_id": tag.session_id,
                "session_epoch": tag.session_epoch,
                "response_session_id": getattr(reply.body, "session_id", 0),
            }
        self._log.info(
            "request",
            api=api_name(reply.api_key),
            version=tag.api_version,
            connection=reply.connection,
            correlation_id=reply.correlation_id,
            client_id=tag.client_id,
            error=tag.error,
            took_us=now.mono_us - self._arrived_us.pop(reply.connection, now.mono_us),
            **session,
        )
