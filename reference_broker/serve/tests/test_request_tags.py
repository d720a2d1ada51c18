"""Session ID and epoch of a fetch in the trace, on the request and on its response."""

import pytest

from reference_broker.apis.registry import SERVED
from reference_broker.core.events import Reply
from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.serve.request_decoder import decode
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import FetchRequest
from reference_broker.wire.messages import encode_request


@pytest.mark.clause("F-23", "G-1")
@pytest.mark.parametrize(
    ("version", "session_id", "session_epoch"), [(12, 77, 5), (18, 2**31 - 1, 2**31 - 1), (1000, 77, 5), (1002, 78, 6)]
)
def test_fetch_and_response_are_tagged_with_session(version: int, session_id: int, session_epoch: int) -> None:
    """Also where the node returns an error for an unknown session."""
    body = FetchRequest(session_id=session_id, session_epoch=session_epoch, max_wait_ms=0)
    frame = b"".join(bytes(each) for each in encode_request(ApiKey.FETCH, version, 9, "reader", body))[4:]
    request = decode(3, memoryview(frame), SERVED)
    tag = request.tag
    assert tag.api_key == ApiKey.FETCH
    assert tag.api_version == version
    assert tag.client_id == "reader"
    assert tag.role == "client"
    assert (tag.session_id, tag.session_epoch, tag.error) == (session_id, session_epoch, 0)
    world = NodeWorld()
    world.give(request)
    world.settle()
    reply = world.replies[9]
    assert isinstance(reply, Reply)
    assert (reply.tag.session_id, reply.tag.session_epoch) == (session_id, session_epoch)
    assert reply.tag.error == getattr(reply.body, "error_code", 0) != 0
