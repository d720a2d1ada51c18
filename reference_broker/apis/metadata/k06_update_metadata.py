"""UpdateMetadata: the active controller sends the metadata that this broker shows to clients, with a metadata epoch.

* An update of an older controller is refused. An older update of the same controller is ignored.
* Updates are applied one after the other. A large one takes several events.
* Unlike Kafka: one deleted partition means that the whole topic is deleted.

Version notes:
* v1000: KIP-232's page on Kafka's version 4; Kafka 4 has no UpdateMetadata. It names no topic IDs and no incarnation of
  the broker, and a controller's first request replaces what others sent.
* v1001: what the nodes use between them.

KIPs: 232.
"""

from collections import deque
from dataclasses import dataclass, field

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.registry import Api
from reference_broker.metadata.cache import Request, is_overtaken, refusal, update_from
from reference_broker.ports.node_ports import later
from reference_broker.ports.slicing import Sliced, run_slices, slices_run_by
from reference_broker.wire.drafts import (
    UpdateMetadataRequest1000,
    UpdateMetadataRequest1001,
    UpdateMetadataResponse1000,
)
from reference_broker.wire.errors import Error, ErrorCode

MAX_WAITING = 64
"""The limit for one node. Each controller that believes to be active sends one update at a time."""


@dataclass(slots=True)
class UpdateMetadata:
    """The handler of one node."""

    broker: Broker
    waiting: deque[tuple[Call, Request]] = field(default_factory=deque)
    """The pending requests. The first one is being applied."""

    def handle(self, call: Call, body: Request) -> UpdateMetadataResponse1000 | None:
        """Respond when the update is applied or refused."""
        if len(self.waiting) == MAX_WAITING:
            return UpdateMetadataResponse1000(error_code=ErrorCode.broker_not_available)
        self.waiting.append((call, body))
        if len(self.waiting) == 1:  # Decision metadata-update-queued
            self._begin()
        return None

    def _begin(self) -> None:
        call, body = self.waiting[0]
        run_slices(self.broker.ports, slices_run_by(call.run, _apply_and_respond(self.broker, call, body)), self._end)

    def _end(self) -> None:
        self.waiting.popleft()
        if self.waiting:
            later(self.broker.ports, 0, self._begin)


API: Api[Request] = Api(
    (UpdateMetadataRequest1000, UpdateMetadataRequest1001), lambda broker: UpdateMetadata(broker).handle
)


def _apply_and_respond(broker: Broker, call: Call, body: Request) -> Sliced[None]:
    error = yield from _applied(broker, body)
    if error is not ErrorCode.none:
        _note(broker, "update_metadata_refused", body, ("error", int(error)))
    call.respond(UpdateMetadataResponse1000(error_code=error))


def _applied(broker: Broker, body: Request) -> Sliced[Error]:
    """Apply an update and return the error. It is judged again at the end, because the metadata epoch may
    have been switched off meanwhile."""
    error, counts = _judged(broker, body)
    if not counts:  # Decision metadata-update-counts
        return error
    update = yield from update_from(body, broker.metadata)
    error, counts = _judged(broker, body)
    if not counts:  # Decision metadata-update-overtaken-later
        return error
    if update is None:
        return ErrorCode.invalid_request
    broker.metadata = broker.metadata.apply(update)
    _note(broker, "update_metadata_applied", body)
    return ErrorCode.none


def _judged(broker: Broker, body: Request) -> tuple[Error, bool]:
    """(the error, whether the update is applied)."""
    error = refusal(body, broker.metadata, broker.lifecycle.registered_epoch)
    return error, error is ErrorCode.none and not is_overtaken(body, broker.metadata)


def _note(broker: Broker, what: str, body: Request, *more: tuple[str, int]) -> None:
    broker.ports.note(
        what,
        ("epoch", body.metadata_epoch),
        ("controller_epoch", body.controller_epoch),
        ("controller_id", body.controller_id),
        *more,
    )
