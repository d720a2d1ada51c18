"""Vote, BeginQuorumEpoch and EndQuorumEpoch reach the quorum."""

from typing import Any

import pytest

from reference_broker.apis.quorum import k52_vote, k53_begin_quorum_epoch, k54_end_quorum_epoch
from reference_broker.apis.quorum.tests.quorum_api_world import QuorumApiWorld
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.messages import body_class
from reference_broker.wire.schema import schema_fields


@pytest.mark.parametrize(
    ("module", "handler", "key"),
    [
        (k52_vote, "handle_vote", ApiKey.VOTE),
        (k53_begin_quorum_epoch, "handle_begin_quorum_epoch", ApiKey.BEGIN_QUORUM_EPOCH),
        (k54_end_quorum_epoch, "handle_end_quorum_epoch", ApiKey.END_QUORUM_EPOCH),
    ],
)
def test_quorum_request_is_handled_by_quorum(
    monkeypatch: pytest.MonkeyPatch, module: Any, handler: str, key: ApiKey
) -> None:
    world = QuorumApiWorld()
    monkeypatch.setattr(module, handler, lambda *request: request[2](request[:2]))
    request = body_class(key, "request")
    body = request(**{each.name: each.default for each in schema_fields(request)})
    assert module.handle(world.broker, world.call, body) is None
    assert world.call.responses == [(world.quorum, body)]
