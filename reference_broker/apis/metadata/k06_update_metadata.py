"""UpdateMetadata: the active controller says what this broker is to tell clients, under a metadata epoch (KIP-232)."""

from collections.abc import Generator

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.metadata.updates import is_overtaken, refusal, update_from
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.drafts import UpdateMetadataRequest1000, UpdateMetadataResponse1000
from reference_broker.wire.errors import Error

CARD = Card(
    api_key=ApiKey.UPDATE_METADATA,
    min_version=1000,
    max_version=1000,
    behaviour="Only as a draft, since Kafka 4 has no UpdateMetadata. An update of an older controller is refused, an "
    "older one of the same controller ignored. One is applied after the other, a large one in slices.",
    simplifications="Topics are deleted whole: one deleted partition says that all are.",
    kips=(232,),
)

MOST_WAITING = 64
"""Updates of one node; each controller that believes to be active sends one at a time."""


def handle(broker: Broker, call: Call, body: object) -> UpdateMetadataResponse1000 | None:
    """Answers once it is applied."""
    assert isinstance(body, UpdateMetadataRequest1000)
    waiting = broker.metadata_updates
    if len(waiting) == MOST_WAITING:
        return UpdateMetadataResponse1000(error_code=Error.BROKER_NOT_AVAILABLE)
    waiting.append((call, body))
    if len(waiting) == 1:
        _begin(broker)
    return None


def _begin(broker: Broker) -> None:
    _, body = broker.metadata_updates[0]
    _step(broker, _applied(broker, body))


def _step(broker: Broker, slices: Generator[None, None, Error]) -> None:
    outside = broker.outside
    try:
        next(slices)
    except StopIteration as stop:
        call, body = broker.metadata_updates.popleft()
        if stop.value is not Error.NONE:
            _note_refusal(broker, body, stop.value)
        call.respond(UpdateMetadataResponse1000(error_code=stop.value))
        if broker.metadata_updates:
            outside.set_timer(broker.now.mono_us, lambda: _begin(broker))
    else:
        outside.set_timer(broker.now.mono_us, lambda: _step(broker, slices))


def _applied(broker: Broker, body: UpdateMetadataRequest1000) -> Generator[None, None, Error]:
    """Judged again when it is made ready: the epoch may have been switched off meanwhile."""
    error, counts = _judged(broker, body)
    if not counts:
        return error
    update = yield from update_from(body, broker.metadata)
    error, counts = _judged(broker, body)
    if not counts:
        return error
    if update is None:
        return Error.INVALID_REQUEST
    broker.metadata = broker.metadata.apply(update)
    if update.whole:
        broker.topic_answers.clear()
    else:
        for name in update.topics:
            broker.topic_answers.pop(name, None)
    broker.outside.note(
        "update_metadata_applied",
        ("epoch", body.metadata_epoch),
        ("controller_epoch", body.controller_epoch),
        ("controller_id", body.controller_id),
    )
    return Error.NONE


def _judged(broker: Broker, body: UpdateMetadataRequest1000) -> tuple[Error, bool]:
    """Its answer, and whether it is to be applied."""
    error = refusal(body, broker.metadata, broker.replica.lifecycle.registered_epoch)
    return error, error is Error.NONE and not is_overtaken(body, broker.metadata)


def _note_refusal(broker: Broker, body: UpdateMetadataRequest1000, error: Error) -> None:
    broker.outside.note(
        "update_metadata_refused",
        ("epoch", body.metadata_epoch),
        ("controller_epoch", body.controller_epoch),
        ("controller_id", body.controller_id),
        ("error", int(error)),
    )
