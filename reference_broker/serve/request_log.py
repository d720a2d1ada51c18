"""One log line for each answered request (``crucible.request.log.enable``); fetches with their session (KIP-227)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from reference_broker.core.effects import Close, Effect, Reply
from reference_broker.core.events import Closed, Event, Request
from reference_broker.ports.now import Now
from reference_broker.serve.log_lines import LogLines
from reference_broker.wire.apis import ApiKey, api_name


@dataclass(slots=True)
class RequestLog:
    """A hook (``core.hooks``) that changes nothing. It stands last, so that it tells what the node saw and did."""

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
                self._told(now, effect)
            elif isinstance(effect, Close):
                self._arrived_us.pop(effect.connection, None)
        if isinstance(event, Closed):
            self._arrived_us.pop(event.connection, None)
        return effects

    def _told(self, now: Now, reply: Reply) -> None:
        tag = reply.tag
        session: dict[str, int] = {}
        if reply.api_key == ApiKey.FETCH:
            session = {
                "session_id": tag.session_id,
                "session_epoch": tag.session_epoch,
                "answered_session_id": getattr(reply.body, "session_id", 0),
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
